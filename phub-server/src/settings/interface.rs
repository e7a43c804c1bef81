//! The address at which hubs of other machines reach this hub: the address of a network interface.

use std::net::IpAddr;

use fabric::verbs::NicList;
use if_addrs::{Interface, get_if_addrs};

use crate::error::HubError;

/// Environment variables of other programs that name the interface to use, in NCCL's form. These variables are
/// preferences: if a variable cannot be followed, the hub still starts.
const OTHERS: [&str; 2] = ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"];

/// Returns the address of the interface that the setting or, without a setting, the environment names; `None`
/// if neither names an interface.
///
/// # Errors
/// Returns an error if the setting names no interface with an address.
pub(crate) fn address(setting: Option<&NicList>) -> Result<Option<IpAddr>, HubError> {
    match setting {
        // A list that only excludes interfaces chooses no interface, so the routing table decides.
        Some(list) if !list.names_devices() => Ok(None),
        Some(list) => {
            let chosen = choose(list, get_if_addrs()?);
            chosen.map(Some).map_err(|there_are| HubError::NoInterface { there_are })
        }
        None => match OTHERS.iter().find_map(|&name| Some((name, set_by_others(name)?))) {
            Some((name, text)) => Ok(of_others(name, &text, get_if_addrs()?)),
            None => Ok(None),
        },
    }
}

fn set_by_others(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|list| !list.trim().is_empty())
}

/// Returns the address of the interface that another program's variable selects. The variable has beginnings
/// of names, with commas between them; exact names after `=`, all other interfaces after `^`. Ports are
/// ignored.
fn of_others(name: &str, text: &str, interfaces: Vec<Interface>) -> Option<IpAddr> {
    let names: Vec<&str> = text.split(',').map(|one| one.split(':').next().unwrap_or_default()).collect();
    let (list, _) = NicList::of_nccl(&names.join(","));
    if !list.names_devices() {
        return None;
    }
    let chosen = choose(&list, interfaces);
    if let Err(there_are) = &chosen {
        let there_are = there_are.join(", ");
        tracing::warn!(
            "{name} is {text:?}, and no interface of that name has an address, so the routing table chooses; this machine has: {there_are}"
        );
    }
    chosen.ok()
}

/// Returns the first address of an interface in the list, IPv4 before IPv6. If there is no such interface, returns the
/// names of all interfaces.
fn choose(list: &NicList, interfaces: Vec<Interface>) -> Result<IpAddr, Vec<String>> {
    let named = interfaces.iter().filter(|interface| list.choose(&interface.name).is_some());
    let usable = named.filter(|interface| !interface.is_link_local());
    match usable.min_by_key(|interface| interface.ip().is_ipv6()) {
        Some(interface) => Ok(interface.ip()),
        None => {
            let mut names: Vec<String> = interfaces.into_iter().map(|interface| interface.name).collect();
            names.sort();
            names.dedup();
            Err(names)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_an_address_and_an_unknown_interface_is_named() {
        let address_of = |list: &str| address(Some(&list.parse().unwrap()));
        assert_eq!(address_of("=lo").unwrap(), Some(IpAddr::from([127, 0, 0, 1])));
        assert_eq!(address_of("^lo").unwrap(), None);
        let error = address_of("nowhere7").unwrap_err().to_string();
        let (_, names) = error.split_once("this machine has: ").unwrap();
        let names: Vec<&str> = names.split(", ").collect();
        assert!(error.contains("--interface") && names.contains(&"lo"), "{error}");
        // An interface with several addresses is named once.
        assert!(names.iter().all(|name| names.iter().filter(|other| *other == name).count() == 1), "{error}");
    }

    #[test]
    fn what_another_program_is_told_stops_no_hub() {
        let of = |text: &str| of_others("NCCL_SOCKET_IFNAME", text, get_if_addrs().unwrap());
        let loopback = Some(IpAddr::from([127, 0, 0, 1]));
        for text in ["lo", "=lo", "l", "ib,lo", "lo:1", "=ib0,lo"] {
            assert_eq!(of(text), loopback, "{text}");
        }
        for text in ["ib", "=l", "^lo", "^", ":1", "nowhere7,"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
