//! The list of NICs to use, as a person writes it: the form of `NCCL_IB_HCA`, and a GID if one must be named.
//!
//! ```text
//!   mlx5            every device whose name begins with mlx5     =mlx5_1      only the device mlx5_1
//!   ^mlx5_2         all but devices that begin with mlx5_2       ^=mlx5_2     all but the device mlx5_2
//!   mlx5_0:1@3,mlx5_1     port 1 of mlx5_0 with the GID of index 3, and another device
//! ```

use std::str::FromStr;

use super::device::Device;
use super::nic::NicOptions;

/// A choice of NICs by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicList {
    except: bool,
    exact: bool,
    /// The entries of the list. An empty list selects all devices.
    entries: Vec<NicOptions>,
    /// The GID index of devices for which the list names none.
    gid_index: Option<u8>,
}

/// The error of an invalid list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{entry:?} in a list of NICs: {what}; expected DEVICE[:PORT][@GID-INDEX] like mlx5_0:1@3, or a list of such entries with commas between them; = before the list means exact names, ^ means all devices except these"
)]
pub struct ParseNicListError {
    entry: String,
    what: &'static str,
}

impl NicList {
    /// Parses a list as NCCL does. Also returns the entries that name no device. If no entry is left, the
    /// list selects every device.
    pub fn of_nccl(text: &str) -> (Self, Vec<String>) {
        let (except, exact, rest) = marks(text.trim());
        let (mut entries, mut left_out) = (Vec::new(), Vec::new());
        for one in rest.split(',').map(str::trim).filter(|one| !one.is_empty() && !one.starts_with(':')) {
            match entry(one) {
                Ok(entry) => entries.push(entry),
                Err(error) => left_out.push(error.to_string()),
            }
        }
        if entries.is_empty() {
            if left_out.is_empty() {
                left_out.push("the list names no device".to_owned());
            }
            return (NicList::default(), left_out);
        }
        (NicList { except, exact, entries, gid_index: None }, left_out)
    }

    /// Sets the GID index of devices for which the list names none.
    pub(super) fn set_gid_index(&mut self, index: u8) {
        self.gid_index = Some(index);
    }

    /// Returns the entries that match none of these devices, as they were written. Entries for devices to
    /// exclude are left out: such a device need not exist.
    pub fn absent(&self, devices: &[&str]) -> Vec<String> {
        let wanted = self.entries.iter().filter(|_| !self.except);
        let absent = wanted.filter(|entry| !devices.iter().any(|device| self.is(entry, device)));
        absent.map(ToString::to_string).collect()
    }

    /// Returns the options for the device of this name, or `None` if the list does not select it.
    pub fn choose(&self, device: &str) -> Option<NicOptions> {
        self.entries_of(device).into_iter().next()
    }

    /// Returns the NICs of this device to use. If the list names no port, each active port is a NIC. A device
    /// without an active port counts as a NIC, too, so that an error can name its fault.
    pub fn nics(&self, device: &Device) -> Vec<NicOptions> {
        let active: Vec<u8> =
            device.ports.iter().filter(|port| port.active).map(|port| port.number).collect();
        let each_port = |options: NicOptions| match (options.port, active.len()) {
            (None, 2..) => {
                active.iter().map(|&port| NicOptions { port: Some(port), ..options.clone() }).collect()
            }
            _ => vec![options],
        };
        let is_used = |nic: &NicOptions| {
            let ports = device.ports.iter().map(|port| port.number);
            let its: Vec<u8> = match (nic.port, active.as_slice()) {
                (Some(port), _) | (None, &[port]) => vec![port],
                (None, _) => ports.collect(),
            };
            !self.except || its.is_empty() || !its.iter().all(|&port| self.is_left_out(&device.name, port))
        };
        self.entries_of(&device.name).into_iter().flat_map(each_port).filter(is_used).collect()
    }

    /// Whether the list excludes this port.
    fn is_left_out(&self, device: &str, port: u8) -> bool {
        self.entries.iter().any(|entry| self.is(entry, device) && entry.port.is_none_or(|its| its == port))
    }

    /// Whether an entry matches a device.
    fn is(&self, entry: &NicOptions, device: &str) -> bool {
        if self.exact { entry.device == device } else { device.starts_with(&entry.device) }
    }

    /// Returns the list's entries for a device. There are several if the list names several of its ports.
    fn entries_of(&self, device: &str) -> Vec<NicOptions> {
        let its = self.entries.iter().filter(|entry| self.is(entry, device));
        let mut found: Vec<NicOptions> = its.cloned().collect();
        if self.except || self.entries.is_empty() {
            // If the list excludes a port by number, the other ports of the device are still used.
            let is_whole = |entry: &NicOptions| entry.port.is_none();
            found = if found.iter().any(is_whole) { Vec::new() } else { vec![NicOptions::new(device)] };
        }
        for options in &mut found {
            options.device = device.to_owned();
            options.gid_index = options.gid_index.or(self.gid_index);
        }
        found
    }

    /// Whether the list names the devices to use, rather than the devices to exclude.
    pub fn names_devices(&self) -> bool {
        !self.except && !self.entries.is_empty()
    }
}

impl FromStr for NicList {
    type Err = ParseNicListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (except, exact, rest) = marks(text);
        let entries: Vec<NicOptions> =
            rest.split(',').filter(|entry| !entry.is_empty()).map(entry).collect::<Result<_, _>>()?;
        let error = |what| ParseNicListError { entry: text.to_owned(), what };
        if entries.is_empty() && !text.is_empty() {
            return Err(error("names no device"));
        }
        if except && entries.iter().any(|entry| entry.gid_index.is_some()) {
            return Err(error("an excluded device must have no GID index"));
        }
        Ok(NicList { except, exact, entries, gid_index: None })
    }
}

/// Parses the marks before a list. Returns whether the list names NICs to exclude (`^`), whether its names
/// are exact (`=`), and the rest of the text.
fn marks(text: &str) -> (bool, bool, &str) {
    let (except, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
    let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
    (except, exact, rest)
}

fn entry(text: &str) -> Result<NicOptions, ParseNicListError> {
    let error = |what| ParseNicListError { entry: text.to_owned(), what };
    let (rest, gid) = text.split_once('@').map_or((text, None), |(rest, gid)| (rest, Some(gid)));
    let (device, port) = rest.split_once(':').map_or((rest, None), |(rest, port)| (rest, Some(port)));
    let number = |digits: Option<&str>, what| digits.map(str::parse).transpose().map_err(|_| error(what));
    if device.is_empty() {
        return Err(error("has no device"));
    }
    Ok(NicOptions {
        device: device.to_owned(),
        port: number(port, "has a port that is not a number")?,
        gid_index: number(gid, "has a GID index that is not a number from 0 to 255")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(list: &str) -> Vec<String> {
        let list: NicList = list.parse().unwrap();
        let devices = ["mlx5_0", "mlx5_1", "mlx5_10", "rxe0"];
        devices.iter().filter_map(|device| list.choose(device)).map(|nic| nic.device).collect()
    }

    #[test]
    fn names_are_beginnings_unless_they_are_exact() {
        assert_eq!(chosen(""), ["mlx5_0", "mlx5_1", "mlx5_10", "rxe0"]);
        assert_eq!(chosen("mlx5"), ["mlx5_0", "mlx5_1", "mlx5_10"]);
        assert_eq!(chosen("mlx5_1"), ["mlx5_1", "mlx5_10"]);
        assert_eq!(chosen("=mlx5_1"), ["mlx5_1"]);
        assert_eq!(chosen("^mlx5_1"), ["mlx5_0", "rxe0"]);
        assert_eq!(chosen("^=mlx5_1,rxe0"), ["mlx5_0", "mlx5_10"]);
        assert_eq!(chosen("rxe0,mlx5_0"), ["mlx5_0", "rxe0"]);
    }

    #[test]
    fn ports_and_gids_are_the_devices_own() {
        let list: NicList = "mlx5_0:2@3,mlx5_1".parse().unwrap();
        let expected = NicOptions { device: "mlx5_0".into(), port: Some(2), gid_index: Some(3) };
        assert_eq!(list.choose("mlx5_0"), Some(expected));
        assert_eq!(list.choose("mlx5_1"), Some(NicOptions::new("mlx5_1")));
        assert!(list.names_devices());
    }

    #[test]
    fn each_active_port_is_a_nic_unless_one_is_named() {
        let device = |active: &[bool]| Device::made_up("mlx4_0", active);
        let nics = |list: &str, active: &[bool]| -> Vec<String> {
            let list: NicList = list.parse().unwrap();
            list.nics(&device(active)).iter().map(NicOptions::to_string).collect()
        };
        assert_eq!(nics("", &[true, true]), ["mlx4_0:1", "mlx4_0:2"]);
        assert_eq!(nics("mlx4@3", &[true, false, true]), ["mlx4_0:1@3", "mlx4_0:3@3"]);
        assert_eq!(nics("=mlx4_0:2", &[true, true]), ["mlx4_0:2"]);
        assert_eq!(nics("mlx4_0:2@1,mlx4_0:1", &[true, true]), ["mlx4_0:2@1", "mlx4_0:1"]);
        assert_eq!(nics("", &[false, true]), ["mlx4_0"]);
        assert_eq!(nics("", &[false, false]), ["mlx4_0"]);
        assert_eq!(nics("^mlx4_0", &[true, true]), [""; 0]);
    }

    #[test]
    fn a_port_that_is_not_used_leaves_its_device_the_others() {
        let device = |active: &[bool]| Device::made_up("mlx5_bond_0", active);
        let nics = |list: &str, active: &[bool]| -> Vec<String> {
            let list: NicList = list.parse().unwrap();
            list.nics(&device(active)).iter().map(NicOptions::to_string).collect()
        };
        assert_eq!(nics("^mlx5_bond_0:1", &[true]), [""; 0]);
        assert_eq!(nics("^mlx5_bond_0:1", &[true, true]), ["mlx5_bond_0:2"]);
        assert_eq!(nics("^mlx5_bond_0:1", &[false, true]), ["mlx5_bond_0"]);
        assert_eq!(nics("^=mlx5_bond:1", &[true]), ["mlx5_bond_0"]);
        assert_eq!(nics("^mlx5_bond_0:1,mlx5_bond_0:2", &[true, true]), [""; 0]);
    }

    #[test]
    fn entries_without_a_device_are_named() {
        let absent = |list: &str| list.parse::<NicList>().unwrap().absent(&["mlx5_0", "mlx5_10"]);
        assert_eq!(absent("mlx5,mlx5_1"), [""; 0]);
        assert_eq!(absent("=mlx5_1:1,mlx5_0"), ["mlx5_1:1"]);
        assert_eq!(absent("^rxe0"), [""; 0]);
        assert_eq!(absent(""), [""; 0]);
    }

    #[test]
    fn what_nobody_can_follow_is_refused() {
        for (text, what) in [
            ("^", "names no device"),
            ("=,", "names no device"),
            ("mlx5_0:x", "a port that is not a number"),
            ("mlx5_0@256", "a GID index"),
            (":1", "has no device"),
            ("^mlx5_0@1", "must have no GID index"),
        ] {
            let error = text.parse::<NicList>().unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("mlx5_0:1@3"), "{text}: {error}");
        }
    }
}
