//! Addresses to listen at, as people write them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The port of a hub's control port without a setting.
pub(super) const CONTROL_PORT: u16 = 7077;
/// The port of the data path over TCP, next to the control port. The port after it is for RDMA's handshake.
pub(super) const DATA_PORT: u16 = 7078;

/// Returns an address and a port: `10.0.0.1:7077`, `[::1]:7077`, `localhost:7077`, and `:7077` or `*:7077` for all
/// addresses.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.trim();
    let bare =
        bare.strip_prefix("http://").or(bare.strip_prefix("https://")).unwrap_or(bare).trim_end_matches('/');
    let expected = "expected the address of an interface and a port, like 10.0.0.1:7077, [::1]:7077, or 0.0.0.0:7077 for all";
    if let Ok(address) = bare.parse() {
        return Ok(address);
    }
    let invalid = || format!("invalid address; {expected}");
    let (host, port) = bare.rsplit_once(':').ok_or_else(invalid)?;
    let port: u16 = port.parse().map_err(|_| invalid())?;
    let ip: IpAddr = match host {
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        "" | "*" => Ipv4Addr::UNSPECIFIED.into(),
        _ => return Err(invalid()),
    };
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_people_write_it() {
        for (text, expected) in [
            ("127.0.0.1:7077", "127.0.0.1:7077"),
            ("localhost:7077", "127.0.0.1:7077"),
            (":7077", "0.0.0.0:7077"),
            ("*:0", "0.0.0.0:0"),
            ("http://10.0.0.1:7077/", "10.0.0.1:7077"),
            ("[::]:7077", "[::]:7077"),
        ] {
            assert_eq!(address(text).map(|address| address.to_string()), Ok(expected.to_owned()), "{text}");
        }
        for text in ["localhost", "7077", "hub.example:7077", "::1:7077", ":x", ""] {
            assert!(address(text).unwrap_err().contains("invalid address"), "{text}");
        }
    }
}
