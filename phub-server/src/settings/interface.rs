//! The address of this hub for hubs of other machines: that of a network interface.

use std::net::IpAddr;

use fabric::verbs::NicList;
use if_addrs::{Interface, get_if_addrs};

use crate::error::HubError;

/// Settings of other programs that name the interface to be used, in NCCL's form.
const OTHERS: [&str; 2] = ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"];

/// The address of the interface that the setting names, else the environment; `None` if neither names an interface.
pub(crate) fn address(setting: Option<&NicList>) -> Result<Option<IpAddr>, HubError> {
    let of_others =
        || OTHERS.iter().find_map(|name| std::env::var(name).ok().filter(|list| !list.is_empty()));
    let list = match setting {
        Some(list) => list.clone(),
        None => of_others().unwrap_or_default().parse()?,
    };
    // A list of what not to use leaves the choice to the routes.
    if !list.names_devices() {
        return Ok(None);
    }
    match choose(&list, get_if_addrs()?) {
        Ok(address) => Ok(Some(address)),
        Err(there_are) => Err(HubError::NoInterface { there_are }),
    }
}

/// The first address of an interface in the list, IPv4 before IPv6; else all interfaces.
fn choose(list: &NicList, interfaces: Vec<Interface>) -> Result<IpAddr, Vec<String>> {
    let named = interfaces.iter().filter(|interface| list.choose(&interface.name).is_some());
    let usable = named.filter(|interface| !interface.is_link_local());
    match usable.min_by_key(|interface| interface.ip().is_ipv6()) {
        Some(interface) => Ok(interface.ip()),
        None => {
            let mut names: Vec<String> = interfaces.into_iter().map(|interface| interface.name).collect();
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
        assert!(error.contains("--interface") && error.contains("lo"), "{error}");
    }
}
