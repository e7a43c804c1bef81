//! Clients that send requests to the hub. Quotas count by a client's address. Status and logs show the address.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The length limit of a machine name. Longer names are dropped.
const HOST_BYTES: usize = 64;

/// A client that sends a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asker {
    /// The address to which quotas apply.
    pub counted: IpAddr,
    /// The address of the client itself.
    pub address: IpAddr,
    /// The machine name that the client reports. It proves nothing.
    pub host: Option<Arc<str>>,
}

impl Asker {
    /// Returns the client with its machine name. A name that is too long, or has characters that host names cannot have, is
    /// dropped.
    pub fn named(self, host: Option<&str>) -> Self {
        let is_fit = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let host =
            host.filter(|host| !host.is_empty() && host.len() <= HOST_BYTES && host.chars().all(is_fit));
        Asker { host: host.map(Arc::from), ..self }
    }
}

/// The client in words: `10.0.0.5 (node7)`.
impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.host.as_ref().map_or(Ok(()), |host| write!(f, " ({host})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_be_anything_else_is_none() {
        let address = IpAddr::from([10, 0, 0, 5]);
        let named =
            |host: &str| Asker { counted: address, address, host: None }.named(Some(host)).to_string();
        assert_eq!(named("node-7.rack_1"), "10.0.0.5 (node-7.rack_1)");
        for host in ["", "a b", "<b>", "\u{1b}[2J", &"x".repeat(65)] {
            assert_eq!(named(host), "10.0.0.5", "{host:?}");
        }
    }
}
