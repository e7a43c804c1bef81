//! Who has how many connections to the control port, so that one address cannot take all.
//!
//! A connection gives its place back when it ends. Runs on the control thread.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

/// The address of a request's client, as it is [counted](counted_as).
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientAddress(pub IpAddr);

impl ClientAddress {
    pub fn new(from: SocketAddr) -> Self {
        ClientAddress(counted_as(from.ip()))
    }
}

/// The open connections of each address.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Crowd,
    from: IpAddr,
}

impl Crowd {
    /// A place for a connection from this address, which may have so many.
    pub fn enter(&self, from: SocketAddr, limit: usize) -> Option<Place> {
        let from = counted_as(from.ip());
        let mut open = self.lock();
        let places = open.entry(from).or_default();
        if *places >= limit {
            return None;
        }
        *places += 1;
        Some(Place { crowd: self.clone(), from })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.crowd.lock();
        if let Some(places) = open.get_mut(&self.from) {
            *places -= 1;
            if *places == 0 {
                open.remove(&self.from);
            }
        }
    }
}

/// The address under which a client is counted: this machine's own loopback addresses are one client, and so is a network
/// of IPv6 with 64 bits, which one machine may have for itself.
fn counted_as(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        from if from.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(from) => Ipv6Addr::from_bits(from.to_bits() >> 64 << 64).into(),
        from => from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_gets_places_back() {
        let crowd = Crowd::default();
        let enter = |from: &str| crowd.enter(from.parse().unwrap(), 2);
        let (first, second) = (enter("10.0.0.1:1").unwrap(), enter("10.0.0.1:2").unwrap());
        assert!(enter("10.0.0.1:3").is_none());
        let other = enter("10.0.0.2:1").unwrap();
        drop(first);
        let third = enter("10.0.0.1:4").unwrap();
        assert!(enter("[::ffff:10.0.0.1]:5").is_none(), "the same machine");
        drop((second, third, other));
        assert!(crowd.lock().is_empty());
    }

    #[test]
    fn what_one_machine_can_have_many_of_is_one_address() {
        let crowd = Crowd::default();
        let enter = |from: &str| crowd.enter(from.parse().unwrap(), 1);
        let _local = enter("127.0.0.1:1").unwrap();
        assert!(enter("127.3.0.9:1").is_none() && enter("[::1]:1").is_none());
        let _remote = enter("[2001:db8::1]:1").unwrap();
        assert!(enter("[2001:db8::ffff:2]:1").is_none());
        assert!(enter("[2001:db8:0:1::1]:1").is_some());
    }
}
