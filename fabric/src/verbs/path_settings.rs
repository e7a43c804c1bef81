//! The settings of queue pairs' paths. Some networks need other values than the defaults. Only this table
//! knows their names, ranges and defaults: programs make their flags from the table. The settings are read
//! once, when NICs are opened.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::address::Mtu;
use super::nccl;

/// A setting of RDMA paths.
#[derive(Debug)]
pub struct PathSetting {
    /// The flag of programs, such as `--rdma-timeout`. It takes precedence over the variables.
    pub flag: &'static str,
    /// The environment variables: this program's, and then NCCL's, because many fabrics set NCCL's already.
    /// The first variable that is set takes effect. NCCL's variable is ignored if its number is invalid here,
    /// or if it leaves the choice to NCCL.
    pub variables: &'static [&'static str],
    /// The smallest value.
    pub least: u16,
    /// The largest value.
    pub most: u16,
    /// The value without flag and variable.
    pub default: u16,
    /// The purpose of the setting, for help texts.
    pub help: &'static str,
}

/// The local ACK timeout of a packet: 4.096 us times 2 to the power of the setting. It applies to the first
/// try and to each retry. The default, 0.54 s, exceeds the time in which a full queue drains. With soft-RoCE
/// between two emulated machines, a full queue of 2 MB takes 80 ms. With the value 14 (67 ms), NICs in that
/// test sent a fifth of all packets twice. In one of four such runs, a hub saw a write arrive twice, which
/// never happened again. The cause is not known; the retries of soft-RoCE (Linux 6.1) are suspected. 0 would
/// mean no timeout.
const TIMEOUT: PathSetting = PathSetting {
    flag: "--rdma-timeout",
    variables: &["PHUB_RDMA_TIMEOUT", "NCCL_IB_TIMEOUT"],
    least: 1,
    most: 31,
    default: 17,
    help: "Timeout after which a packet without an acknowledgement is sent again: 4.096 us x 2 to the power of this number",
};
/// The number of retries. The default gives about 4 s until the peer counts as gone, so a port may be down
/// for that time. It is not the largest value, 7: soft-RoCE takes 7 as no limit, and a link without a path
/// would never fail.
const RETRIES: PathSetting = PathSetting {
    flag: "--rdma-retries",
    variables: &["PHUB_RDMA_RETRIES", "NCCL_IB_RETRY_CNT"],
    least: 0,
    most: 7,
    default: 6,
    help: "How often a packet is sent again before its link fails. Raise it, or --rdma-timeout, if ports may be down for longer than 3.8 s",
};
/// The number of retries after the answer "not ready". 7 means no limit. A peer that lacks a receive request
/// gives this answer, which never happens within the protocol
/// ([decision 59](../../../docs/design/rdma.md#settings-of-paths)).
const RNR_RETRIES: PathSetting = PathSetting {
    flag: "--rdma-rnr-retries",
    variables: &["PHUB_RDMA_RNR_RETRIES"],
    least: 0,
    most: 7,
    default: 7,
    help: "How often a packet is sent again to a peer without a receive request (RNR) before its link fails; 7: endlessly",
};
/// The traffic class of the GRH.
const TRAFFIC_CLASS: PathSetting = PathSetting {
    flag: "--rdma-tc",
    variables: &["PHUB_RDMA_TC", "NCCL_IB_TC"],
    least: 0,
    most: 255,
    default: 0,
    help: "Traffic class of packets, whose upper six bits are the DSCP. Set it if the switches have a lossless class for RDMA",
};
const SERVICE_LEVEL: PathSetting = PathSetting {
    flag: "--rdma-sl",
    variables: &["PHUB_RDMA_SL", "NCCL_IB_SL"],
    least: 0,
    most: 15,
    default: 0,
    help: "Service level of packets, by which an InfiniBand fabric chooses their lane",
};
const PKEY: PathSetting = PathSetting {
    flag: "--rdma-pkey",
    variables: &["PHUB_RDMA_PKEY", "NCCL_IB_PKEY"],
    least: 0,
    most: u16::MAX,
    default: 0,
    help: "Partition key of packets, by its index in the port's table",
};
/// The path MTU, for a path whose switches accept only smaller packets than both ports do.
const MTU: PathSetting = PathSetting {
    flag: "--rdma-mtu",
    variables: &["PHUB_RDMA_MTU"],
    least: 256,
    most: 4096,
    default: 4096,
    help: "The largest packet in bytes; a port with a lower MTU uses its own MTU",
};
/// The setting that sends the immediate as a write of its own, after a plain write of the bytes. A fabric with
/// adaptive routing spreads the packets of plain writes over its paths, but keeps the packets of a write with
/// immediate in order.
const ADAPTIVE_ROUTING: PathSetting = PathSetting {
    flag: "--rdma-adaptive-routing",
    variables: &["PHUB_RDMA_ADAPTIVE_ROUTING", "NCCL_IB_ADAPTIVE_ROUTING"],
    least: 0,
    most: 1,
    default: 0,
    help: "Adaptive routing: 1 lets the fabric send the packets of a chunk over several paths, and needs two RDMA writes for each chunk",
};
const RELAXED_ORDERING: PathSetting = PathSetting {
    flag: "--rdma-relaxed-ordering",
    variables: &["PHUB_RDMA_RELAXED_ORDERING", "NCCL_IB_PCI_RELAXED_ORDERING"],
    least: 0,
    most: 2,
    default: 2,
    help: "Relaxed ordering, with which a NIC may write received bytes into memory in any order (PCI): 0 no, 1 yes, 2 if library and driver support it",
};

/// All settings of paths.
pub static PATH_SETTINGS: [&PathSetting; 9] = [
    &TIMEOUT,
    &RETRIES,
    &RNR_RETRIES,
    &TRAFFIC_CLASS,
    &SERVICE_LEVEL,
    &PKEY,
    &MTU,
    &ADAPTIVE_ROUTING,
    &RELAXED_ORDERING,
];

/// The values that flags set. The environment may set further values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathFlags(BTreeMap<&'static str, u16>);

impl PathFlags {
    /// Sets the value of a setting. The value is checked when NICs are opened.
    pub fn set(&mut self, setting: &PathSetting, value: u16) {
        self.0.insert(setting.flag, value);
    }

    /// Returns the traffic class of packets.
    ///
    /// # Errors
    /// Returns an error if any path setting has an invalid value.
    pub fn traffic_class(&self) -> Result<u8, SettingError> {
        Ok(PathSettings::new(self)?.traffic_class)
    }
}

/// The error of a flag or variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {seen:?}; expected {expected}; change it, or leave it out to use {default}")]
pub struct SettingError {
    name: &'static str,
    seen: String,
    expected: String,
    default: u16,
}

impl PathSetting {
    /// Returns the value, and the flag or variable that set it. If none set it, returns the default and this
    /// program's variable.
    fn read(
        &self,
        flags: &PathFlags,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(u16, &'static str), SettingError> {
        let Some((name, seen)) = self.said(flags, environment) else {
            return Ok((self.default, self.variables[0]));
        };
        let PathSetting { least, most, default, .. } = *self;
        match self.number(name, &seen) {
            Some(number) => Ok((number, name)),
            None if is_nccls(name) => Ok((default, self.variables[0])),
            None => {
                let expected = format!("a number from {least} to {most}");
                Err(SettingError { name, seen, expected, default })
            }
        }
    }

    /// Returns the flag or variable that takes effect, and its text. An empty variable counts as not set.
    fn said(
        &self,
        flags: &PathFlags,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Option<(&'static str, String)> {
        let flag = flags.0.get(self.flag).map(|value| (self.flag, value.to_string()));
        let set = |name: &str| environment(name).filter(|text| !text.trim().is_empty());
        flag.or_else(|| self.variables.iter().find_map(|&name| Some((name, set(name)?))))
    }

    /// Parses the number of a flag or variable. Returns `None` if it is invalid.
    fn number(&self, name: &str, seen: &str) -> Option<u16> {
        let number =
            if is_nccls(name) { u16::try_from(nccl::number(seen)?).ok() } else { seen.trim().parse().ok() };
        number.filter(|number| (self.least..=self.most).contains(number))
    }

    /// Returns a warning if NCCL's variable would take effect but its number is invalid.
    pub(super) fn warning(
        &self,
        flags: &PathFlags,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Option<String> {
        let (name, seen) = self.said(flags, environment)?;
        let counts = !is_nccls(name) || self.number(name, &seen).is_some() || nccl::is_own_choice(&seen);
        let PathSetting { least, most, default, flag, .. } = self;
        (!counts).then(|| {
            format!(
                "{name} is {seen:?}, which is ignored: expected a number from {least} to {most}; the default {default} counts \
                 ({flag} changes it)"
            )
        })
    }
}

/// Whether a variable belongs to NCCL, which may allow more values than a queue pair does.
fn is_nccls(name: &str) -> bool {
    name.starts_with("NCCL_")
}

/// The order in which a NIC's writes may reach memory. With relaxed ordering, too, the completion of a write
/// comes after all bytes of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelaxedOrdering {
    Off,
    On,
    /// Relaxed ordering, if the library and the driver support it.
    IfTaken,
}

/// The settings of a queue pair's path, and of the ordering of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathSettings {
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub traffic_class: u8,
    pub service_level: u8,
    pub pkey_index: u16,
    /// The flag or variable that sets the partition key.
    pkey_name: &'static str,
    /// The largest packet size. A port that allows larger packets uses this size.
    pub mtu: Mtu,
    /// Whether the immediate of a post is a separate write.
    pub writes_apart: bool,
    pub relaxed_ordering: RelaxedOrdering,
}

impl PathSettings {
    /// Reads the settings from flags and this process's environment.
    pub fn new(flags: &PathFlags) -> Result<Self, SettingError> {
        Self::read(flags, |name| std::env::var(name).ok())
    }

    fn read(flags: &PathFlags, environment: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let named = |setting: &PathSetting| setting.read(flags, &environment);
        let number = |setting: &PathSetting| named(setting).map(|(number, _)| number);
        let byte = |setting: &PathSetting| number(setting).map(|number| number as u8);
        let (pkey_index, pkey_name) = named(&PKEY)?;
        Ok(PathSettings {
            timeout: byte(&TIMEOUT)?,
            retries: byte(&RETRIES)?,
            rnr_retries: byte(&RNR_RETRIES)?,
            traffic_class: byte(&TRAFFIC_CLASS)?,
            service_level: byte(&SERVICE_LEVEL)?,
            pkey_index,
            pkey_name,
            mtu: Mtu::within(number(&MTU)?),
            writes_apart: number(&ADAPTIVE_ROUTING)? == 1,
            relaxed_ordering: match number(&RELAXED_ORDERING)? {
                0 => RelaxedOrdering::Off,
                1 => RelaxedOrdering::On,
                _ => RelaxedOrdering::IfTaken,
            },
        })
    }

    /// Returns these settings, after a check that the port's table has the partition key. If NCCL's variable
    /// names a key that is not in the table, the default is used instead. The table has `keys` entries. `key`
    /// returns an entry, if the driver shows it.
    pub fn with_pkey(
        self,
        port: &str,
        keys: u16,
        key: impl Fn(u16) -> Option<u16>,
    ) -> Result<Self, SettingError> {
        let by_default = PathSettings { pkey_index: PKEY.default, pkey_name: PKEY.variables[0], ..self };
        match self.check_pkey(port, keys, key) {
            Ok(()) => Ok(self),
            Err(_) if is_nccls(self.pkey_name) => Ok(by_default),
            Err(error) => Err(error),
        }
    }

    fn check_pkey(
        &self,
        port: &str,
        keys: u16,
        key: impl Fn(u16) -> Option<u16>,
    ) -> Result<(), SettingError> {
        let index = self.pkey_index;
        let most = keys.max(1) - 1; // a driver that reports 0 keys has the default key
        let is_empty = |key: u16| key & 0x7fff == 0; // the highest bit only says full membership
        let expected = if index > most {
            format!("a number from 0 to {most}, as the table of {port} has {keys} keys")
        } else if key(index).is_some_and(is_empty) {
            let used = (0..=most).filter_map(|at| Some((at, key(at).filter(|&key| !is_empty(key))?)));
            let used: Vec<String> = used.map(|(at, key)| format!("{at} ({key:#06x})")).collect();
            format!(
                "the index of a partition key: the table of {port} has no key at this index; its keys are {}",
                used.join(", ")
            )
        } else {
            return Ok(());
        };
        Err(SettingError { name: self.pkey_name, seen: index.to_string(), expected, default: PKEY.default })
    }

    /// Returns how long packets are retried before the link fails.
    pub fn patience(&self) -> Duration {
        Duration::from_nanos(4096 << self.timeout) * u32::from(self.retries + 1)
    }
}

impl fmt::Display for PathSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PathSettings { timeout, retries, rnr_retries, traffic_class, service_level, pkey_index, .. } =
            self;
        let ordering = match self.relaxed_ordering {
            RelaxedOrdering::Off => "0",
            RelaxedOrdering::On => "1",
            RelaxedOrdering::IfTaken => "where it is taken",
        };
        write!(
            f,
            "timeout {timeout} and {retries} retries ({:.1} s), {rnr_retries} RNR retries, traffic class {traffic_class}, \
             service level {service_level}, pkey index {pkey_index}, adaptive routing {}, relaxed ordering {ordering}",
            self.patience().as_secs_f64(),
            u8::from(self.writes_apart)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<PathSettings, String> {
        read_with(&[], variables)
    }

    fn read_with(flags: &[(&PathSetting, u16)], variables: &[(&str, &str)]) -> Result<PathSettings, String> {
        let mut given = PathFlags::default();
        flags.iter().for_each(|&(setting, value)| given.set(setting, value));
        let value =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| v.to_string());
        PathSettings::read(&given, value).map_err(|error| error.to_string())
    }

    #[test]
    fn a_flag_counts_more_than_a_variable() {
        let variables = [("PHUB_RDMA_TIMEOUT", "19"), ("NCCL_IB_TC", "106"), ("PHUB_RDMA_SL", "16")];
        let flags = [(&TIMEOUT, 20), (&TRAFFIC_CLASS, 8), (&SERVICE_LEVEL, 2)];
        let seen = read_with(&flags, &variables).unwrap();
        assert_eq!((seen.timeout, seen.traffic_class, seen.service_level), (20, 8, 2));
        let error = read_with(&[(&RETRIES, 8)], &[]).unwrap_err();
        assert!(error.contains("--rdma-retries is \"8\"; expected a number from 0 to 7"), "{error}");
    }

    #[test]
    fn names_are_unique_and_defaults_in_range() {
        let names =
            || PATH_SETTINGS.iter().flat_map(|each| [each.flag].into_iter().chain(each.variables.to_vec()));
        let unique: std::collections::HashSet<&str> = names().collect();
        assert_eq!(unique.len(), names().count());
        for each in PATH_SETTINGS {
            assert!((each.least..=each.most).contains(&each.default), "{}", each.flag);
        }
    }

    #[test]
    fn nccls_names_count_where_our_own_are_not_set() {
        let none = read(&[]).unwrap();
        assert_eq!(none.mtu.bytes(), 4096);
        let mtu = |bytes| read(&[("PHUB_RDMA_MTU", bytes)]).unwrap().mtu.bytes();
        assert_eq!([mtu("256"), mtu("1500"), mtu("2048")], [256, 1024, 2048]);
        assert_eq!((none.timeout, none.retries, none.rnr_retries, none.traffic_class), (17, 6, 7, 0));
        assert_eq!(none.relaxed_ordering, RelaxedOrdering::IfTaken);
        let nccl = [
            ("NCCL_IB_TIMEOUT", "22"),
            ("NCCL_IB_TC", "106"),
            ("NCCL_IB_SL", "3"),
            ("NCCL_IB_PKEY", "1"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "1"),
            ("NCCL_IB_PCI_RELAXED_ORDERING", "0"),
        ];
        let seen = read(&nccl).unwrap();
        assert_eq!((seen.timeout, seen.retries, seen.writes_apart), (22, 6, true));
        assert_eq!((seen.traffic_class, seen.service_level, seen.pkey_index), (106, 3, 1));
        assert_eq!(seen.relaxed_ordering, RelaxedOrdering::Off);
        let both = read(&[("NCCL_IB_TIMEOUT", "22"), ("PHUB_RDMA_TIMEOUT", "19")]).unwrap();
        assert_eq!(both.timeout, 19);
        let said = "timeout 17 and 6 retries (3.8 s), 7 RNR retries, traffic class 0, service level 0, pkey index 0, \
                    adaptive routing 0, relaxed ordering where it is taken";
        assert_eq!(none.to_string(), said);
    }

    #[test]
    fn what_is_out_of_range_is_named_with_what_was_expected() {
        for (name, value, range) in [
            ("PHUB_RDMA_TIMEOUT", "0", "from 1 to 31"),
            ("PHUB_RDMA_RETRIES", "8", "from 0 to 7"),
            ("PHUB_RDMA_RETRIES", "seven", "from 0 to 7"),
            ("PHUB_RDMA_TC", "256", "from 0 to 255"),
            ("PHUB_RDMA_SL", "16", "from 0 to 15"),
            ("PHUB_RDMA_MTU", "9000", "from 256 to 4096"),
            ("PHUB_RDMA_PKEY", "-1", "from 0 to 65535"),
            ("PHUB_RDMA_ADAPTIVE_ROUTING", "2", "from 0 to 1"),
            ("PHUB_RDMA_RNR_RETRIES", "8", "from 0 to 7"),
            ("PHUB_RDMA_RELAXED_ORDERING", "3", "from 0 to 2"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(value) && error.contains(range), "{error}");
        }
    }

    #[test]
    fn a_number_of_nccls_that_cannot_be_is_as_if_it_were_not_set() {
        let wrong = [
            ("NCCL_IB_TIMEOUT", "50"),
            ("NCCL_IB_RETRY_CNT", "13"),
            ("NCCL_IB_TC", "-1"),
            ("NCCL_IB_SL", "high"),
            ("NCCL_IB_ADAPTIVE_ROUTING", "-2"),
            ("NCCL_IB_PCI_RELAXED_ORDERING", ""),
        ];
        assert_eq!(read(&wrong), read(&[]));
        assert_eq!(read(&[("NCCL_IB_PKEY", "0x2")]).unwrap().pkey_index, 2);
        assert_eq!(read(&[("PHUB_RDMA_TIMEOUT", ""), ("NCCL_IB_TIMEOUT", "19")]).unwrap().timeout, 19);
    }

    #[test]
    fn a_partition_key_must_be_in_the_ports_table() {
        let check = |settings: &PathSettings, table: &[u16]| {
            let key = |index: u16| table.get(usize::from(index)).copied();
            let checked = settings.check_pkey("mlx5_0 port 1", table.len() as u16, key);
            checked.map_err(|error| error.to_string())
        };
        let settings = read(&[("PHUB_RDMA_PKEY", "3")]).unwrap();
        assert_eq!(check(&settings, &[0xffff, 0, 0, 0x8003]), Ok(()));
        assert_eq!(settings.check_pkey("mlx5_0 port 1", 4, |_| None), Ok(()), "the driver does not say");
        let error = check(&settings, &[0xffff, 0, 0]).unwrap_err();
        let expected = "PHUB_RDMA_PKEY is \"3\"; expected a number from 0 to 2, as the table of mlx5_0 port 1 has 3 keys";
        assert!(error.contains(expected), "{error}");
        assert!(settings.with_pkey("mlx5_0 port 1", 3, |_| None).is_err());
        let of_nccl = read(&[("NCCL_IB_PKEY", "3")]).unwrap();
        assert_eq!(of_nccl.with_pkey("mlx5_0 port 1", 4, |_| None).unwrap().pkey_index, 3);
        assert_eq!(of_nccl.with_pkey("mlx5_0 port 1", 3, |_| None).unwrap().pkey_index, 0);
        let settings = read_with(&[(&PKEY, 2)], &[("NCCL_IB_PKEY", "3")]).unwrap();
        for empty in [0, 0x8000] {
            let error = check(&settings, &[0xffff, 0, empty, 0x8003]).unwrap_err();
            let expected = "--rdma-pkey is \"2\"; expected the index of a partition key: the table of mlx5_0 port 1 has no key \
                            at this index; its keys are 0 (0xffff), 3 (0x8003); change it";
            assert!(error.contains(expected), "{error}");
        }
    }
}
