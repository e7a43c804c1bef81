//! Addresses of control ports: the checks of an address, and its parts.

use std::net::{IpAddr, Ipv6Addr};

/// The length limit of a host name, in bytes.
const MAX_HOST_BYTES: usize = 253;

/// An error: the text is not the address of a control port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{seen:?} is not the address of a control port; expected a host and a port, like 10.0.0.1:7077, [::1]:7077 or name:7077"
)]
pub struct NotAnAddress {
    seen: String,
}

/// Checks that a text is a host and a port, and nothing else. The text becomes the address of requests, so it must not have
/// a path, a query or a user.
///
/// # Errors
/// Returns an error if the text is not an address.
pub fn check_address(text: &str) -> Result<(), NotAnAddress> {
    let is_port = |port: &str| {
        port.bytes().all(|digit| digit.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    match text.rsplit_once(':') {
        Some((host, port)) if is_port(port) && is_host(host) => Ok(()),
        // The text comes from outside. The error repeats only its beginning.
        _ => Err(NotAnAddress { seen: text.chars().take(64).collect() }),
    }
}

/// Returns the host of an address, without the brackets of IPv6.
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns the IP address of an address. `None` if its host is a name.
pub fn ip_of(address: &str) -> Option<IpAddr> {
    host_of(address).parse().ok()
}

fn is_host(host: &str) -> bool {
    if let Some(inner) = host.strip_prefix('[') {
        return inner.strip_suffix(']').is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
    }
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(letter);
    // A name may end with a dot.
    let labels = host.strip_suffix('.').unwrap_or(host);
    host.len() <= MAX_HOST_BYTES && labels.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in
            ["10.0.0.1:7077", "[::1]:7077", "[2001:db8::1]:1", "hub:65535", "hub-0.hubs_a.example.:7077"]
        {
            assert_eq!(check_address(good), Ok(()), "{good}");
        }
        for wrong in [
            "",
            ":",
            "hub",
            "hub:",
            ":7077",
            "hub:0",
            "hub:65536",
            "hub:+80",
            "hub:80/",
            "hub:80/path",
            "hub/x:80",
            "hub?x:80",
            "hub#x:80",
            "user@hub:80",
            "user:word@hub:80",
            "http://hub:80",
            "a b:80",
            "hub..x:80",
            "::1:80",
            "[::1:80",
            "[hub]:80",
            "[fe80::1%eth0]:80",
            "hub\r\n:80",
            "h%41:80",
            "häuser:80",
            ".:80",
        ] {
            assert!(check_address(wrong).unwrap_err().to_string().contains("not the address"), "{wrong:?}");
        }
        let long = format!("{}:80", "a".repeat(MAX_HOST_BYTES + 1));
        assert!(check_address(&long).unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn a_host_has_no_brackets() {
        assert_eq!(["[::1]:80", "hub:80", "10.0.0.1:80"].map(host_of), ["::1", "hub", "10.0.0.1"]);
        assert_eq!(ip_of("[::1]:80"), Some(Ipv6Addr::LOCALHOST.into()));
        assert_eq!(ip_of("hub:80"), None);
    }
}
