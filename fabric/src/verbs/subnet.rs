//! The length of the subnet prefix of an interface's address, from the routes that Linux shows. Only
//! [`prefix`] reads files; the other functions parse text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the prefix length of the subnet of `ip` on `netdev`, or `None` if it is unknown.
pub(super) fn prefix(netdev: &str, ip: IpAddr) -> Option<u8> {
    match ip {
        IpAddr::V4(ip) => v4(&std::fs::read_to_string("/proc/net/route").ok()?, netdev, ip),
        IpAddr::V6(ip) => v6(&std::fs::read_to_string("/proc/net/if_inet6").ok()?, ip),
    }
}

/// Returns the prefix length of an IPv4 address. It is the longest among the routes in /proc/net/route that
/// lead to this address over this interface, without a gateway.
fn v4(routes: &str, netdev: &str, ip: Ipv4Addr) -> Option<u8> {
    let mut longest = None;
    for line in routes.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, destination, gateway, _, _, _, _, mask, ..] = fields[..] else { continue };
        // The file has words in the machine's byte order. In memory they are in network order.
        let word =
            |text| u32::from_str_radix(text, 16).ok().map(|word| u32::from_be_bytes(word.to_ne_bytes()));
        let (Some(destination), Some(gateway), Some(mask)) = (word(destination), word(gateway), word(mask))
        else {
            continue;
        };
        if interface == netdev && gateway == 0 && mask != 0 && u32::from(ip) & mask == destination {
            longest = longest.max(Some(mask.leading_ones() as u8));
        }
    }
    longest
}

/// Returns the prefix length of an IPv6 address, which /proc/net/if_inet6 lists with the address.
fn v6(addresses: &str, ip: Ipv6Addr) -> Option<u8> {
    addresses.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        let prefix = fields.nth(1)?;
        (address == u128::from(ip)).then(|| u8::from_str_radix(prefix, 16).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_that_of_the_route_to_the_interfaces_own_subnet() {
        let little_endian = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            eth1\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            eth1\t0000000A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        let routes = if cfg!(target_endian = "little") { little_endian } else { return };
        assert_eq!(v4(routes, "eth0", Ipv4Addr::new(10, 0, 0, 7)), Some(24));
        assert_eq!(v4(routes, "eth1", Ipv4Addr::new(10, 0, 1, 7)), Some(24));
        assert_eq!(v4(routes, "eth1", Ipv4Addr::new(10, 0, 9, 7)), Some(16));
        assert_eq!(v4(routes, "eth0", Ipv4Addr::new(192, 168, 0, 1)), None);
        assert_eq!(v4("rubbish\n\u{0}", "eth0", Ipv4Addr::LOCALHOST), None);
    }

    #[test]
    fn a_prefix_of_ipv6_stands_beside_the_address() {
        let text = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    20010db8000000000000000000000007 02 40 00 80     eth0\n";
        assert_eq!(v6(text, "2001:db8::7".parse().unwrap()), Some(64));
        assert_eq!(v6(text, "2001:db8::8".parse().unwrap()), None);
    }
}
