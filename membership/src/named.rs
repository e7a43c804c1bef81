//! Addresses of hubs, and who gave them. Threads look names up, within a time limit. An address from another process is
//! used only if the operator allows it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use pbox_core::control::{check_address, host_of, ip_of};

/// The limit on concurrent lookups in this process. A lookup keeps its thread even after all callers have stopped waiting for
/// its result.
const AT_ONCE: usize = 256;
/// The time limit of a wait for a name server.
pub const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// The number of lookups in progress.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// The source from which this process has an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Named {
    /// This process's own settings.
    #[default]
    Here,
    /// A message of another process, which may give only the addresses of these peers.
    Outside(PeerList),
}

impl Named {
    /// Checks that this process may send requests to this address.
    ///
    /// # Errors
    /// Returns an error if the address came from outside, and the list of peers does not have it.
    pub fn check(&self, host: &str, ip: IpAddr) -> io::Result<()> {
        match self {
            Named::Outside(peers) if !peers.allows(host, ip) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("--peers, the list of hosts that this hub may ask, does not have {host} ({ip})"),
            )),
            _ => Ok(()),
        }
    }

    /// Whether the server at the address may be something other than a hub.
    pub fn is_outside(&self) -> bool {
        matches!(self, Named::Outside(_))
    }
}

/// The hosts and networks that are allowed as peers: `10.0.0.0/8,hub-1.example,fd00::/8`. If the list is empty, all are
/// allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerList(Vec<Peer>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Peer {
    Name(String),
    Network(IpAddr, u32),
}

impl PeerList {
    /// Whether a machine at this address, whose name is not known, may be a peer.
    pub fn allows_address(&self, ip: IpAddr) -> bool {
        self.allows("", ip)
    }

    fn allows(&self, host: &str, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        let is_it = |peer: &Peer| match peer {
            Peer::Name(name) => name.eq_ignore_ascii_case(host.trim_end_matches('.')),
            Peer::Network(network, prefix) => is_within(*network, *prefix, ip),
        };
        self.0.is_empty() || self.0.iter().any(is_it)
    }
}

fn is_within(network: IpAddr, prefix: u32, ip: IpAddr) -> bool {
    let (network, ip, bits) = match (network, ip) {
        (IpAddr::V4(network), IpAddr::V4(ip)) => (network.to_bits().into(), ip.to_bits().into(), 32),
        (IpAddr::V6(network), IpAddr::V6(ip)) => (network.to_bits(), ip.to_bits(), 128),
        _ => return false,
    };
    let differing: u128 = network ^ ip;
    differing.checked_shr(bits - prefix).is_none_or(|differing| differing == 0)
}

impl FromStr for PeerList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).map(str::parse).collect::<Result<_, _>>().map(PeerList)
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let expected =
                "a host without a port, or a network like 10.0.0.0/8; several with commas between them";
            format!("{text:?}: expected {expected}")
        };
        let (address, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let bare = address.strip_prefix('[').and_then(|bare| bare.strip_suffix(']')).unwrap_or(address);
        let Ok(ip) = bare.parse::<IpAddr>() else {
            let is_name =
                prefix.is_none() && !text.contains('[') && check_address(&format!("{text}:1")).is_ok();
            return is_name.then(|| Peer::Name(text.trim_end_matches('.').to_owned())).ok_or_else(wrong);
        };
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), |prefix| prefix.parse().map_err(|_| wrong()))?;
        if prefix <= bits { Ok(Peer::Network(ip, prefix)) } else { Err(wrong()) }
    }
}

/// A lookup in progress, which is counted.
struct UnderWay;

impl UnderWay {
    fn begin() -> Option<Self> {
        let before = UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        Some(UnderWay).filter(|_| before < AT_ONCE)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A callback for the result of a lookup: the addresses, or the kind and the text of the error.
type Waiter = Box<dyn FnOnce(Result<&[SocketAddr], (io::ErrorKind, &str)>) + Send>;

/// The callbacks of each address. Another request for a name waits for the lookup in progress. Otherwise, a client that
/// retries every two seconds could take all threads for one name that cannot be resolved.
static WAITING: Mutex<BTreeMap<String, Vec<Waiter>>> = Mutex::new(BTreeMap::new());

fn waiting() -> MutexGuard<'static, BTreeMap<String, Vec<Waiter>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks an address up, and passes the result to `done`. Calls `done` at once for an IP address, and on a new thread
/// for a name. If no thread can be started, drops `done`.
pub fn look_up_with(
    address: &str,
    named: &Named,
    done: impl FnOnce(io::Result<Vec<SocketAddr>>) + Send + 'static,
) {
    if let Err(error) = check_address(address) {
        return done(Err(io::Error::new(io::ErrorKind::InvalidInput, error.to_string())));
    }
    // The host is an IP address, so no name server is asked.
    if ip_of(address).is_some() {
        return done(find(address, named));
    }
    let (host, named) = (host_of(address).to_owned(), named.clone());
    let mut waiting_now = waiting();
    let others = waiting_now.get(address).map(Vec::len);
    let under_way = UnderWay::begin().filter(|_| others.is_none());
    if under_way.is_none() && others.is_none_or(|others| others >= AT_ONCE) {
        drop(waiting_now);
        let busy = format!("{AT_ONCE} names are being looked up already: the name server is slow; try again");
        return done(Err(io::Error::new(io::ErrorKind::TimedOut, busy)));
    }
    let waiter: Waiter = Box::new(move |found| {
        let found = found.map_err(|(kind, words)| io::Error::new(kind, words.to_owned()));
        done(found.and_then(|found| allowed(&host, found.to_vec(), &named)));
    });
    waiting_now.entry(address.to_owned()).or_default().push(waiter);
    drop(waiting_now);
    let Some(under_way) = under_way else { return };
    let asked = address.to_owned();
    let work = move || {
        let found = asked.to_socket_addrs().map(Vec::from_iter);
        drop(under_way);
        let found = found.as_deref().map_err(|error| (error.kind(), error.to_string()));
        let waiters = waiting().remove(&asked).unwrap_or_default(); // the lock is released before they are called
        for waiter in waiters {
            waiter(found.as_ref().map(|found| *found).map_err(|(kind, words)| (*kind, words.as_str())));
        }
    };
    if let Err(error) = std::thread::Builder::new().name("phub-names".into()).spawn(work) {
        tracing::warn!(
            address,
            %error,
            "cannot start a thread that looks up the name; raise the limit on threads (ulimit -u)"
        );
        waiting().remove(address);
    }
}

/// Looks an address up within a time limit.
///
/// # Errors
/// Returns an error if nothing is found within `limit`, or if the address is not allowed.
pub fn look_up(address: &str, named: &Named, limit: Duration) -> io::Result<Vec<SocketAddr>> {
    let (done, found) = mpsc::channel();
    look_up_with(address, named, move |result| drop(done.send(result)));
    let limit = limit.min(LOOKUP_LIMIT);
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, no_answer(limit));
    found.recv_timeout(limit).map_err(late)?
}

/// Returns the address of a socket on a host that has the addresses `found`. A socket at 0.0.0.0 is reached only at the host's
/// IPv4 addresses, and a socket at `[::]` at all addresses of the host.
pub fn on_host(socket: SocketAddr, found: &[SocketAddr]) -> SocketAddr {
    let has = |address: &&SocketAddr| socket.is_ipv6() || address.is_ipv4();
    match found.iter().find(has).or(found.first()) {
        Some(address) if socket.ip().is_unspecified() => SocketAddr::new(address.ip(), socket.port()),
        _ => socket,
    }
}

/// Returns the words for a lookup that found nothing within `limit`.
pub fn no_answer(limit: Duration) -> String {
    let seconds = limit.as_secs_f64();
    format!("no name server answered within {seconds:.1} s; check /etc/resolv.conf, or use an IP address")
}

fn find(address: &str, named: &Named) -> io::Result<Vec<SocketAddr>> {
    allowed(host_of(address), address.to_socket_addrs()?.collect(), named)
}

/// Returns the addresses of a host, if all of them are allowed.
fn allowed(host: &str, found: Vec<SocketAddr>, named: &Named) -> io::Result<Vec<SocketAddr>> {
    found.iter().try_for_each(|found| named.check(host, found.ip()))?;
    match found.is_empty() {
        true => {
            let why = format!("{host} has no IP address; check the name, or use an IP address");
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_hosts_and_networks() {
        let peers: PeerList = "10.0.0.0/8, hub-1.example, fd00::/8,192.168.1.5, [::1]".parse().unwrap();
        for (host, ip, allowed) in [
            ("10.2.3.4", "10.2.3.4", true),
            ("11.2.3.4", "11.2.3.4", false),
            ("anything", "10.0.0.1", true),
            ("mapped", "::ffff:10.0.0.1", true),
            ("HUB-1.example.", "11.0.0.1", true),
            ("hub-2.example", "11.0.0.1", false),
            ("::", "fd12::1", true),
            ("::", "fe80::1", false),
            ("192.168.1.5", "192.168.1.5", true),
            ("192.168.1.6", "192.168.1.6", false),
            ("::1", "::1", true),
        ] {
            assert_eq!(peers.allows(host, ip.parse().unwrap()), allowed, "{host} {ip}");
        }
        let all: PeerList = "0.0.0.0/0".parse().unwrap();
        assert!(all.allows("a", "8.8.8.8".parse().unwrap()) && !all.allows("a", "::1".parse().unwrap()));
        assert!(PeerList::default().allows("a", "8.8.8.8".parse().unwrap()));
        for wrong in ["", "10.0.0.0/33", "10.0.0.0/x", "hub:7077", "hub/8", "a,,b", "[hub]", "http://hub"] {
            assert!(wrong.parse::<PeerList>().unwrap_err().contains("expected a host"), "{wrong:?}");
        }
    }

    /// Checks a name such as `localhost`, whose first address may be an IPv6 address. A hub at 0.0.0.0 does not listen at
    /// that address.
    #[test]
    fn a_socket_of_ipv4_is_reached_by_ipv4() {
        let [four, six] = ["10.0.0.1:7077", "[fd00::1]:7077"].map(|address| address.parse().unwrap());
        for (socket, found, reached) in [
            ("0.0.0.0:7078", &[six, four][..], "10.0.0.1:7078"),
            ("0.0.0.0:7078", &[four, six], "10.0.0.1:7078"),
            ("[::]:7078", &[six, four], "[fd00::1]:7078"),
            ("[::]:7078", &[four, six], "10.0.0.1:7078"),
            ("0.0.0.0:7078", &[six], "[fd00::1]:7078"),
            ("10.0.0.9:7078", &[six, four], "10.0.0.9:7078"),
            ("0.0.0.0:7078", &[], "0.0.0.0:7078"),
        ] {
            assert_eq!(
                on_host(socket.parse().unwrap(), found),
                reached.parse().unwrap(),
                "{socket} {found:?}"
            );
        }
    }

    /// A lookup may begin another lookup: the callback for a result may look up another name.
    #[test]
    fn a_lookup_may_begin_another_one() {
        let (found, addresses) = mpsc::channel();
        look_up_with("localhost:1", &Named::Here, move |first| {
            look_up_with("localhost:2", &Named::Here, move |second| {
                found.send([first.unwrap()[0].port(), second.unwrap()[0].port()]).unwrap();
            });
        });
        assert_eq!(addresses.recv_timeout(LOOKUP_LIMIT).unwrap(), [1, 2]);
    }

    #[test]
    fn what_came_from_outside_leads_only_where_it_may() {
        let outside = Named::Outside("10.0.0.0/8".parse().unwrap());
        let limit = Duration::from_secs(60);
        assert_eq!(look_up("127.0.0.1:7", &Named::Here, limit).unwrap(), ["127.0.0.1:7".parse().unwrap()]);
        let refused = look_up("127.0.0.1:7", &outside, limit).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("--peers"), "{refused}");
        let wrong = look_up("127.0.0.1:7/path", &Named::Here, limit).unwrap_err();
        assert_eq!(wrong.kind(), io::ErrorKind::InvalidInput);
    }
}
