//! Counts the connections of each client to the control port. Neither one address nor all clients without a
//! token can take all connections.
//!
//! The end of a connection frees its place. Runs on the control thread.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::http::HeaderMap;
use pbox_core::control::{HOST_HEADER, READER_HEADER};
use tokio::sync::oneshot;

use super::limits::ControlLimits;
use crate::registry::Reader;
use coordinator::Asker;

/// The address of a request's client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientAddress(IpAddr);

impl ClientAddress {
    pub fn new(from: SocketAddr) -> Self {
        ClientAddress(from.ip().to_canonical())
    }

    /// Returns the address of a port of the client's machine.
    pub fn at(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.0, port)
    }

    /// Returns the client for a refusal: its address, and the name that a header of the request gives.
    pub fn asker(self, headers: &HeaderMap) -> Asker {
        let host = headers.get(HOST_HEADER).and_then(|host| host.to_str().ok());
        Asker { counted: counted_as(self.0), address: self.0, host: None }.named(host)
    }

    /// Returns the client as a reader of a state: its address, and the process that a header of the request gives.
    pub fn reader(self, headers: &HeaderMap) -> Reader {
        let process = headers.get(READER_HEADER).and_then(|process| process.to_str().ok()?.parse().ok());
        Reader { address: self.0, process }
    }
}

/// The open connections. A connection that has shown no token yet is a stranger. If there is no place for a new
/// connection, the oldest stranger of the address with the most strangers loses its place. So clients without a token
/// cannot keep out a client with a token. Many connections from one address take places only from each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    /// The number of the newest connection.
    newest: u64,
    /// The address of each connection that has a place, by number.
    places: HashMap<u64, IpAddr>,
    by_address: HashMap<IpAddr, usize>,
    /// The channel that notifies each stranger that it has lost its place.
    strangers: HashMap<u64, oneshot::Sender<()>>,
    /// The numbers of the connections that have shown no token yet, by client address.
    strangers_of: HashMap<IpAddr, BTreeSet<u64>>,
}

/// The place of one connection, until this value is dropped.
#[derive(Debug)]
pub(super) struct Place {
    newcomer: Newcomer,
    gone: oneshot::Receiver<()>,
}

/// A handle of a connection that has shown no token yet.
#[derive(Clone, Debug)]
pub(super) struct Newcomer {
    crowd: Crowd,
    number: u64,
}

impl Newcomer {
    /// Notes that the connection has shown a token.
    pub fn mark_known(&self) {
        self.crowd.lock().take_stranger(self.number);
    }
}

impl Place {
    pub fn newcomer(&self) -> Newcomer {
        self.newcomer.clone()
    }

    /// Waits until the connection has lost its place to another connection.
    pub async fn wait_until_gone(&mut self) {
        if (&mut self.gone).await.is_err() {
            std::future::pending().await // the connection has shown a token
        }
    }
}

impl Crowd {
    /// Returns a place for a connection from this address. Also returns whether a stranger has lost its place for this
    /// connection.
    ///
    /// # Errors
    /// Returns the name of the client or group that already has all the connections that it can have.
    pub fn enter(&self, from: SocketAddr, limits: &ControlLimits) -> Result<(Place, bool), &'static str> {
        let from = counted_as(from.ip());
        let mut open = self.lock();
        let full = if open.by_address.get(&from).is_some_and(|&places| places >= limits.of_an_address) {
            Some(("your address", open.strangers_of.get(&from).and_then(BTreeSet::first).copied()))
        } else if open.places.len() >= limits.connections || open.strangers.len() >= limits.strangers {
            Some(("the hub's control port", open.oldest_of_the_most()))
        } else {
            None
        };
        if let Some((who, oldest)) = full {
            let number = oldest.ok_or(who)?;
            if let Some(gone) = open.take_stranger(number) {
                let _ = gone.send(());
            }
            open.leave(number);
        }
        open.newest += 1;
        let (number, (tell, gone)) = (open.newest, oneshot::channel());
        open.places.insert(number, from);
        *open.by_address.entry(from).or_default() += 1;
        open.strangers.insert(number, tell);
        open.strangers_of.entry(from).or_default().insert(number);
        Ok((Place { newcomer: Newcomer { crowd: self.clone(), number }, gone }, full.is_some()))
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Open {
    /// Returns the oldest stranger of the address that has the most strangers. If several addresses have equally many,
    /// returns the oldest stranger of all these addresses.
    fn oldest_of_the_most(&self) -> Option<u64> {
        let of_address = |numbers: &BTreeSet<u64>| Some((numbers.len(), Reverse(*numbers.first()?)));
        self.strangers_of.values().filter_map(of_address).max().map(|(_, Reverse(number))| number)
    }

    /// Notes that this connection is no longer a stranger.
    fn take_stranger(&mut self, number: u64) -> Option<oneshot::Sender<()>> {
        let tell = self.strangers.remove(&number)?;
        if let Some(from) = self.places.get(&number)
            && let Some(numbers) = self.strangers_of.get_mut(from)
        {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.strangers_of.remove(from);
            }
        }
        Some(tell)
    }

    /// Frees the place of this connection.
    fn leave(&mut self, number: u64) {
        self.take_stranger(number);
        let Some(from) = self.places.remove(&number) else { return };
        if let Some(places) = self.by_address.get_mut(&from) {
            *places -= 1;
            if *places == 0 {
                self.by_address.remove(&from);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.newcomer.crowd.lock().leave(self.newcomer.number);
    }
}

/// Returns the address under which a client is counted. This machine's own loopback addresses are one client. A network of IPv6
/// with a prefix of 64 bits is also one client, because one machine may have the whole network.
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

    fn limits(connections: usize, of_an_address: usize, strangers: usize) -> ControlLimits {
        ControlLimits { connections, of_an_address, strangers, ..ControlLimits::default() }
    }

    /// Returns the place of a connection that has shown a token, or the name of the client that has too many
    /// connections.
    fn known(crowd: &Crowd, from: &str, limits: &ControlLimits) -> Result<Place, &'static str> {
        let (place, _) = crowd.enter(from.parse().unwrap(), limits)?;
        place.newcomer().mark_known();
        Ok(place)
    }

    #[test]
    fn an_address_has_its_share_and_gets_places_back() {
        let (crowd, limits) = (Crowd::default(), limits(9, 2, 9));
        let enter = |from: &str| known(&crowd, from, &limits);
        let (first, second) = (enter("10.0.0.1:1").unwrap(), enter("10.0.0.1:2").unwrap());
        assert_eq!(enter("10.0.0.1:3").unwrap_err(), "your address");
        let other = enter("10.0.0.2:1").unwrap();
        drop(first);
        let third = enter("10.0.0.1:4").unwrap();
        enter("[::ffff:10.0.0.1]:5").expect_err("the same machine");
        drop((second, third, other));
        let open = crowd.lock();
        assert!(open.places.is_empty() && open.by_address.is_empty());
        assert!(open.strangers.is_empty() && open.strangers_of.is_empty());
    }

    #[test]
    fn what_one_machine_can_have_many_of_is_one_address() {
        let (crowd, limits) = (Crowd::default(), limits(9, 1, 9));
        let enter = |from: &str| known(&crowd, from, &limits);
        let _local = enter("127.0.0.1:1").unwrap();
        assert!(enter("127.3.0.9:1").is_err() && enter("[::1]:1").is_err());
        let _remote = enter("[2001:db8::1]:1").unwrap();
        assert!(enter("[2001:db8::ffff:2]:1").is_err());
        assert!(enter("[2001:db8:0:1::1]:1").is_ok());
    }

    #[test]
    fn strangers_give_their_places_up_and_nobody_else() {
        let (crowd, limits) = (Crowd::default(), limits(4, 3, 2));
        let stranger = |from: &str| crowd.enter(from.parse().unwrap(), &limits);
        let gone = |place: &mut Place| place.gone.try_recv().is_ok();
        let _worker = known(&crowd, "10.0.0.1:1", &limits).unwrap();
        let (mut first, given_up) = stranger("10.0.0.2:1").unwrap();
        assert!(!given_up);
        let (mut second, _) = stranger("10.0.0.1:2").unwrap();
        let (mut third, given_up) = stranger("10.0.0.1:3").unwrap();
        assert!(given_up && gone(&mut first) && !gone(&mut second), "two strangers at a time");
        // 10.0.0.1 now has three connections, and its oldest stranger makes room.
        let mut worker = known(&crowd, "10.0.0.1:4", &limits).unwrap();
        assert!(gone(&mut second) && !gone(&mut third) && !gone(&mut worker));
        drop((first, second)); // other clients already have these two places
        let other = known(&crowd, "10.0.0.3:1", &limits).unwrap();
        assert!(!gone(&mut third), "there are four places");
        let last = known(&crowd, "10.0.0.3:2", &limits).unwrap();
        assert!(gone(&mut third));
        assert_eq!(stranger("10.0.0.3:3").unwrap_err(), "the hub's control port");
        drop((other, last));
        assert!(stranger("10.0.0.3:4").is_ok());
    }

    #[test]
    fn a_crowd_leaves_a_client_its_place_until_its_first_bytes_come() {
        let (crowd, limits) = (Crowd::default(), ControlLimits::of_connections(4096));
        let stranger = |from: &str| crowd.enter(from.parse().unwrap(), &limits).unwrap().0;
        let gone = |place: &mut Place| place.gone.try_recv().is_ok();
        // The limit is 2048 strangers. So a client keeps its place while 2000 newer connections arrive.
        let mut slow = stranger("10.0.0.1:1");
        let mut others = Vec::from_iter((0..2000).map(|_| stranger("10.0.0.1:2")));
        assert!(!gone(&mut slow) && !others.iter_mut().any(gone));
        // This client has another address. The number of the first address's connections does not matter.
        let mut elsewhere = stranger("10.0.0.2:1");
        others.extend((0..10_000).map(|_| stranger("10.0.0.1:3")));
        assert!(gone(&mut slow) && !gone(&mut elsewhere));
        assert_eq!(crowd.lock().strangers.len(), limits.strangers);
    }
}
