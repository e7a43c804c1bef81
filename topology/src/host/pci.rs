//! The address of a PCI function.
//!
//! This module must not depend on which devices exist.

use std::fmt;
use std::str::FromStr;

/// Domain, bus, device and function; printed as Linux prints it: `0000:3b:00.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, below 32.
    pub device: u8,
    /// Function number, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// The error for a text that does not have the form `dddd:bb:dd.f`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{seen}\" is not a PCI address: expected domain:bus:device.function in hexadecimal, such as 0000:3b:00.1"
)]
pub struct ParsePciAddressError {
    seen: String,
}

impl FromStr for PciAddress {
    type Err = ParsePciAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParsePciAddressError { seen: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let mut parts = text.split(':');
    let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let (device, function) = rest.split_once('.')?;
    let plain = |s: &str, max: usize| {
        !s.is_empty() && s.len() <= max && s.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let shaped = plain(domain, 8) && plain(bus, 2) && plain(device, 2) && plain(function, 1);
    if parts.next().is_some() || !shaped || domain.len() < 4 {
        return None;
    }
    let address = PciAddress {
        domain: u32::from_str_radix(domain, 16).ok()?,
        bus: u8::from_str_radix(bus, 16).ok()?,
        device: u8::from_str_radix(device, 16).ok()?,
        function: u8::from_str_radix(function, 16).ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_parses() {
        for text in ["0000:3b:00.1", "10000:e1:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_not_an_address() {
        for text in ["", "virtio2", "3b:00.1", "0000:3b:20.0", "0000:3b:00.8", "0000:+1:00.0", "pci0000:00"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
