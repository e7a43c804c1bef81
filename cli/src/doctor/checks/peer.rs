//! Checks of the path from this machine to a hub on another machine, with packets of full size and over each
//! pair of RDMA NICs. The trial is a job with one round, in which this process is the only worker.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use authority::Credential;
use fabric::any::{self, Transport};
use fabric::tcp::Options;
use fabric::verbs::{self, NicOptions};
use fabric::{Arrival, LinkId, NicPair, Port as _, Posted, Receive, SendWindow, Until};
use membership::{Join, Named, NicSettings, Ports, on_host};
use pbox_core::control::{HubReply, JoinRequest, TransportAddress};
use pbox_core::{ChunkId, DEFAULT_CHUNK_BYTES, JobTerms, Key, Optimizer, Round, Wire};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, ip_mtu, set_ip_mtu_discover};

use crate::doctor::check::{Check, Verdict};

/// The timeout of each answer of the hub, and of the bytes over a link.
const PATIENCE: Duration = Duration::from_secs(10);
/// The timeout of the answer to a packet.
const ECHO: Duration = Duration::from_secs(1);
/// The timeout of a connection to a data port.
const CONNECT: Duration = Duration::from_secs(3);
/// The number of chunks of each link: 1 MiB, which takes 20 us at 400 Gb/s and 40 ms on soft-RoCE.
const CHUNKS: usize = 32;
/// The most chunks of all links together.
const MOST_CHUNKS: usize = 4096;
/// The size of the headers of IPv4 and UDP, in bytes.
const HEADERS: u32 = 28;
const DEFAULT_PORT: u16 = 7077;

/// Returns the address of the control port of a peer, which is host:port or a host. An IPv6 address may lack brackets if it
/// has no port.
pub(crate) fn with_port(peer: &str) -> String {
    let is_host = !peer.contains(':') || peer.ends_with(']');
    match peer.parse::<Ipv6Addr>() {
        Ok(bare) => format!("[{bare}]:{DEFAULT_PORT}"),
        Err(_) if is_host => format!("{peer}:{DEFAULT_PORT}"),
        Err(_) => peer.to_owned(),
    }
}

/// Checks the path to `peer`, which is host:port or a host.
pub(crate) fn check(
    peer: &str,
    credential: Option<&Credential>,
    nics: &NicSettings,
    ready: &[NicOptions],
    report: &mut dyn FnMut(Check),
) {
    let name = format!("way to {peer}");
    let address = with_port(peer);
    let hub = match membership::describe(&address, PATIENCE, credential) {
        Ok(hub) => hub,
        Err(error) => {
            let fix = "start phub-server serve on the peer, with --listen at an address of the network, and set PHUB_TOKEN to its secret";
            return report(Check::fail(name, error.to_string(), fix));
        }
    };
    report(Check::pass(&name, format!("a hub of version {} with {} cores", hub.version, hub.cores.len())));
    report(data_addresses(peer, &address, &hub));
    report(packets(peer, &address));
    report(rdma(peer, &address, &hub, credential, nics, ready));
}

/// Checks that each data-path address of the hub accepts a connection. Otherwise a port that a firewall
/// blocks would show only when a worker joins.
fn data_addresses(peer: &str, control: &str, hub: &HubReply) -> Check {
    let name = format!("data ports of {peer}");
    let mut all: Vec<SocketAddr> = Vec::new();
    for way in &hub.transports {
        match way {
            TransportAddress::Shm { .. } => {}
            TransportAddress::Verbs { address } => all.push(*address),
            TransportAddress::Tcp { addresses } => all.extend(addresses),
        }
    }
    // An address of zeros stands for the address of the control port.
    let of_control = control.to_socket_addrs().map_or(Vec::new(), Vec::from_iter);
    all.iter_mut().for_each(|address| *address = on_host(*address, &of_control));
    all.sort_unstable();
    all.dedup();
    let tried: Vec<(SocketAddr, Option<Error>)> =
        all.into_iter().map(|to| (to, TcpStream::connect_timeout(&to, CONNECT).err())).collect();
    judge_addresses(name, &tried)
}

fn judge_addresses(name: String, tried: &[(SocketAddr, Option<Error>)]) -> Check {
    if tried.is_empty() {
        return Check::note(
            name,
            "the peer's hub offers no address for data, so its workers must be on its machine",
        );
    }
    let open: Vec<String> =
        tried.iter().filter(|(_, error)| error.is_none()).map(|(to, _)| to.to_string()).collect();
    let shut: Vec<String> =
        tried.iter().filter_map(|(to, error)| error.as_ref().map(|error| format!("{to}: {error}"))).collect();
    if shut.is_empty() {
        return Check::pass(name, format!("each one takes a connection: {}", open.join(", ")));
    }
    let ports: Vec<String> =
        tried.iter().filter(|(_, error)| error.is_some()).map(|(to, _)| to.port().to_string()).collect();
    Check::fail(
        name,
        format!("no connection to {}", shut.join("; ")),
        format!(
            "let TCP port {} pass (firewall, security group, port of the container); --data-listen of the hub chooses the ports, by default \
             7078 and 7079",
            ports.join(", ")
        ),
    )
}

/// The result of sending a packet that must not be fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Echo {
    /// The packet arrived: the peer answered that nothing listens at the port.
    Delivered,
    /// The packet did not arrive: a router answered that it is too large.
    TooLarge,
    /// No answer came.
    Silence,
}

/// Checks the size of the largest packets that reach the peer.
fn packets(peer: &str, address: &str) -> Check {
    let name = format!("path MTU to {peer}");
    let found = address.to_socket_addrs().ok().and_then(|mut all| all.find(SocketAddr::is_ipv4));
    let Some(to) = found else {
        return Check::note(name, "the peer has no IPv4 address, and this check tries only IPv4");
    };
    match send_packets(to) {
        Ok((mtu, large, small)) => judge_packets(name, mtu, large, small),
        Err(error) => Check::note(name, format!("cannot try it: {error}")),
    }
}

/// Returns the MTU of the path, and the results of two packets: one as large as the MTU, and a small one.
fn send_packets(to: SocketAddr) -> Result<(u32, Echo, Echo), Error> {
    let socket = UdpSocket::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), 0))?;
    set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
    socket.connect(to)?; // the number of the hub's TCP port, at which nothing listens for UDP
    socket.set_read_timeout(Some(ECHO))?;
    let echo = |bytes: u32| -> Result<Echo, Error> {
        // The kernel may first report errors of earlier packets.
        for result in [socket.send(&vec![0; bytes as usize]).map(|_| 0), socket.recv(&mut [0])] {
            match result {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(Echo::Delivered),
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                    return Ok(Echo::TooLarge);
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(Echo::Silence)
    };
    // Tries several times, because each router on the path may have a smaller MTU.
    for _ in 0..8 {
        let mtu = ip_mtu(&socket)?;
        let large = echo(mtu.min(65_535).saturating_sub(HEADERS))?;
        if large != Echo::TooLarge {
            let small = if large == Echo::Silence { echo(1)? } else { large };
            return Ok((mtu, large, small));
        }
    }
    Err(Error::other("the path has reported too often that packets are too large"))
}

fn judge_packets(name: String, mtu: u32, large: Echo, small: Echo) -> Check {
    match (large, small) {
        (Echo::Delivered, _) => {
            Check::pass(name, format!("{mtu} bytes: a packet of this size arrived at the peer"))
        }
        (_, Echo::Delivered) => Check::warn(
            name,
            format!(
                "small packets arrive, but packets of {mtu} bytes, the MTU of the interface, are lost without an error"
            ),
            "set one MTU on all interfaces and switches of the path, or a smaller MTU on this machine (ip link set DEV mtu N)",
        ),
        _ => Check::note(
            name,
            format!(
                "the interface's MTU is {mtu} bytes; the path's MTU is unknown, because the peer answers no UDP packets"
            ),
        ),
    }
}

fn rdma(
    peer: &str,
    address: &str,
    hub: &HubReply,
    credential: Option<&Credential>,
    nics: &NicSettings,
    ready: &[NicOptions],
) -> Check {
    let name = format!("RDMA to {peer}");
    if !hub.transports.iter().any(|offer| offer.transport() == Transport::Verbs) {
        return Check::note(name, "the peer's hub offers no RDMA");
    }
    if ready.is_empty() {
        return Check::note(name, "the peer's hub offers RDMA; no NIC of this machine is ready");
    }
    match pairs(address, hub, credential, nics, ready) {
        Ok(rates) => judge_pairs(name, &rates),
        Err(error) => {
            let fix = "see the hub's log; set PHUB_RAILS to pair the NICs in another way, or test the two NICs without a hub by ib_write_bw";
            Check::fail(name, error, fix)
        }
    }
}

/// The bytes that crossed between two NICs, and the time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    links: u32,
    /// The bytes in each direction.
    bytes: usize,
    time: Duration,
    /// The line rate of the slower NIC in each direction, if it is known at both ends.
    line_mbps: Option<u32>,
}

impl Rate {
    /// Returns the rate of both directions together.
    fn gigabytes(&self) -> f64 {
        2.0 * self.bytes as f64 / self.time.as_secs_f64() / 1e9
    }

    /// Returns the part of the line rate that each direction used.
    fn of_line(&self) -> Option<f64> {
        Some(self.bytes as f64 * 8e-6 / self.time.as_secs_f64() / f64::from(self.line_mbps?))
    }

    fn words(&self) -> String {
        let seen = format!(
            "{} links, {:.3} GB/s both ways together, with sums at the hub",
            self.links,
            self.gigabytes()
        );
        match self.of_line().zip(self.line_mbps) {
            None => seen,
            Some((part, mbps)) => {
                let line = f64::from(mbps) / 1e3;
                format!("{seen}, each way {:.0} % of a line rate of {line} Gb/s", 100.0 * part)
            }
        }
    }
}

/// The rates of all pairs of NICs, by the text that describes the pair.
type Rates = BTreeMap<String, Rate>;

/// Judges the pairs: names the pairs that are much slower than the fastest pair, or than their NICs.
fn judge_pairs(name: String, rates: &Rates) -> Check {
    let fastest = rates.values().map(Rate::gigabytes).fold(0.0, f64::max);
    let seen: Vec<String> = rates.iter().map(|(pair, rate)| format!("{pair}: {}", rate.words())).collect();
    let seen = seen.join("\n");
    let those = |are: &dyn Fn(&Rate) -> bool| -> Vec<&str> {
        rates.iter().filter(|(_, rate)| are(rate)).map(|(pair, _)| pair.as_str()).collect()
    };
    let slow = those(&|rate| rate.gigabytes() < 0.5 * fastest);
    if !slow.is_empty() {
        let fix = format!(
            "less than half of the fastest pair's rate: {}; look at the cable, the switch between the two NICs, and the slots of both NICs",
            slow.join("; ")
        );
        return Check::warn(name, seen, fix);
    }
    let below = those(&|rate| rate.of_line().is_some_and(|part| part < 0.5));
    if !below.is_empty() {
        let fix = format!(
            "less than half of the line rate: {}; ib_write_bw between the two NICs shows which is slow: the wire, or the one core that sums 1 MiB in this check; a line rate of soft-RoCE is nominal",
            below.join("; ")
        );
        return Check { verdict: Verdict::Note, ..Check::warn(name, seen, fix) };
    }
    Check::pass(name, seen)
}

/// Returns the line rate of the slower of two NICs. If a device has several ports, its slowest port counts.
fn line_mbps(pair: &NicPair, ready: &[NicOptions], hub: &HubReply) -> Option<u32> {
    let own = ready.iter().filter(|nic| nic.device == pair.joiner);
    let own = own.map(|nic| verbs::mbps(&nic.device, nic.port.unwrap_or(1)));
    let theirs = hub.nics.iter().filter(|nic| nic.device == pair.hub).map(|nic| nic.mbps);
    // `None` is smaller than any value.
    own.min()?.zip(theirs.min()?).map(|(own, theirs)| own.min(theirs))
}

/// Makes each core of the hub sum what this process pushes over the core's link, one core after another.
fn pairs(
    address: &str,
    hub: &HubReply,
    credential: Option<&Credential>,
    nics: &NicSettings,
    ready: &[NicOptions],
) -> Result<Rates, String> {
    let in_words = |error: &dyn std::fmt::Display| error.to_string();
    let chunks = (hub.cores.len() * CHUNKS).min(MOST_CHUNKS);
    let keys = vec![Key::f32("bytes", [(chunks * DEFAULT_CHUNK_BYTES / 4) as u64])];
    let terms = JobTerms::new(1, keys, Optimizer::Average);
    let wire = Wire::of_terms(&terms).map_err(|error| in_words(&error))?;
    let schedule = terms.level.schedule;
    let request = JoinRequest { trial: true, ..JoinRequest::new(0, terms) };
    let job = format!("phub-doctor-{}", hub.cores.len());
    let (addresses, job, named) = (&[address][..], &job, &Named::Here);
    let join = Join { addresses, job, limit: PATIENCE, request: &request, credential, named };
    let mut let_in = join.once().map_err(|error| in_words(&error))?;
    let window = SendWindow::new(wire.gradient_window_bytes()).map_err(|error| in_words(&error))?;
    let (window, _) = window.split(vec![Vec::new()]).map_err(|error| in_words(&error))?;
    let (ports, mut port) = Ports::one(&let_in, Some(Transport::Verbs), nics, 0, Options::default())
        .map_err(|error| in_words(&error))?;
    let receive = |_| Receive::New(wire.weights_window_bytes());
    let path =
        membership::open(&let_in, schedule, &wire, &window, receive, &ports, Instant::now() + PATIENCE)
            .map_err(|error| in_words(&error))?;
    let links: Vec<_> = path.endpoints.into_iter().map(|endpoint| port.attach(endpoint)).collect();
    let member = let_in.remove(0).keep(0..links.len(), port.waker());
    let until = Instant::now() + PATIENCE;
    let round = loop {
        match membership::takes_part(std::slice::from_ref(&member), 0) {
            Ok(round) => break round,
            Err(_) if Instant::now() > until => {
                return Err(format!("job {job:?} did not begin within {PATIENCE:?}"));
            }
            Err(_) => port.wait(Until::Any, Duration::from_millis(100)),
        }
    };
    let mut rates = Rates::new();
    let of_cores = path.placement.chunks_by_core().into_iter().zip(links);
    for ((chunks, link), way) in of_cores.zip(&path.ways[0].paths) {
        let bytes = chunks.iter().map(|&chunk| wire.gradient_span(chunk).bytes).sum::<usize>();
        let words = &way.words;
        let time =
            cross(&mut port, link, &wire, &chunks, round).map_err(|error| format!("{words}: {error}"))?;
        // The text begins with the hub's port. This port is left out, because a NIC may have several ports.
        let pair = words.split_once(", ").map_or(words.as_str(), |(_, pair)| pair);
        let rate = rates.entry(pair.to_owned()).or_default();
        rate.links += 1;
        rate.bytes += bytes;
        rate.time += time;
        rate.line_mbps = line_mbps(way, ready, hub);
    }
    member.leave_trial(round.next()).map_err(|error| in_words(&error))?;
    Ok(rates)
}

/// Pushes these chunks over a link, and waits for their answers. Returns the time that this took.
fn cross(
    port: &mut any::Port,
    link: LinkId,
    wire: &Wire,
    chunks: &[ChunkId],
    round: Round,
) -> Result<Duration, String> {
    let (begun, mut answers) = (Instant::now(), 0);
    let mut left = chunks.iter().copied().peekable();
    while answers < chunks.len() {
        while let Some(&chunk) = left.peek() {
            let imm = wire.push(chunk, round).encode();
            if port.post(link, wire.gradient_span(chunk), imm) != Posted::Accepted {
                break;
            }
            left.next();
        }
        port.flush();
        answers += port.poll(&mut [Arrival::default(); 64]);
        if let Some(closed) = port.closed() {
            return Err(closed.reason.to_string());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("{answers} of {} answers arrived within {PATIENCE:?}", chunks.len()));
        }
        if answers < chunks.len() {
            port.wait(Until::Any, Duration::from_millis(100));
        }
    }
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_without_a_port_gets_the_default_one() {
        for (peer, address) in [
            ("a", "a:7077"),
            ("10.0.0.1", "10.0.0.1:7077"),
            ("a:1", "a:1"),
            ("::1", "[::1]:7077"),
            ("[fd00::2]", "[fd00::2]:7077"),
            ("[fd00::2]:1", "[fd00::2]:1"),
        ] {
            assert_eq!(with_port(peer), address);
        }
    }

    #[test]
    fn a_packet_to_this_machine_comes_with_the_loopbacks_size() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (mtu, large, _) = send_packets(free).unwrap();
        assert_eq!(large, Echo::Delivered);
        assert!(mtu >= 1280, "{mtu}");
    }

    #[test]
    fn a_data_port_that_takes_no_connection_is_a_failure() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let shut = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let reply = |addresses: &[SocketAddr]| -> HubReply {
            let reply = r#"{"protocol":1,"version":"1","kernels":"","rss_bytes":0,"transports":[],"cores":[],"jobs":[]}"#;
            let hub: HubReply = serde_json::from_str(reply).unwrap();
            HubReply { transports: vec![TransportAddress::Tcp { addresses: addresses.to_vec() }], ..hub }
        };
        let anywhere = SocketAddr::from(([0, 0, 0, 0], open.local_addr().unwrap().port()));
        let look = |addresses: &[SocketAddr]| data_addresses("there", "127.0.0.1:1", &reply(addresses));
        assert_eq!(look(&[anywhere, anywhere]).verdict, Verdict::Pass);
        let failed = look(&[anywhere, shut]);
        assert_eq!(failed.verdict, Verdict::Fail);
        let port = format!("port {} pass", shut.port());
        assert!(
            failed.seen.contains(&shut.to_string()) && failed.fix.unwrap().contains(&port),
            "{}",
            failed.seen
        );
        assert_eq!(look(&[]).verdict, Verdict::Note);
    }

    #[test]
    fn large_packets_that_vanish_are_a_warning_and_silence_is_none() {
        let judge = |large, small| judge_packets("path".into(), 9000, large, small);
        assert_eq!(judge(Echo::Delivered, Echo::Delivered).verdict, Verdict::Pass);
        let lost = judge(Echo::Silence, Echo::Delivered);
        assert_eq!(lost.verdict, Verdict::Warn);
        assert!(lost.seen.contains("packets of 9000 bytes"), "{}", lost.seen);
        assert_eq!(judge(Echo::Silence, Echo::Silence).verdict, Verdict::Note);
    }

    fn rate(ms: u64, line_mbps: Option<u32>) -> Rate {
        Rate { links: 2, bytes: 1 << 20, time: Duration::from_millis(ms), line_mbps }
    }

    #[test]
    fn a_pair_is_compared_with_its_line_rate_where_that_is_known() {
        // 8,388,608 bits in 10 ms are 0.839 Gb/s.
        let judge = |mbps| judge_pairs("RDMA".into(), &Rates::from([("a with x".into(), rate(10, mbps))]));
        let fine = judge(Some(1000));
        assert_eq!(fine.verdict, Verdict::Pass);
        assert!(fine.seen.ends_with("each way 84 % of a line rate of 1 Gb/s"), "{}", fine.seen);
        let slow = judge(Some(2500));
        assert_eq!(slow.verdict, Verdict::Note);
        assert!(slow.seen.ends_with("each way 34 % of a line rate of 2.5 Gb/s"), "{}", slow.seen);
        assert!(slow.fix.unwrap().starts_with("less than half of the line rate: a with x;"));
        let unknown = judge(None);
        assert!(unknown.verdict == Verdict::Pass && unknown.seen.ends_with("sums at the hub"), "{unknown:?}");
    }

    #[test]
    fn a_pair_that_is_slower_than_half_of_the_fastest_is_named() {
        let of = |pair: &str, ms| (pair.to_owned(), rate(ms, None));
        let fine = Rates::from([of("a with x", 10), of("b with y", 12)]);
        let check = judge_pairs("RDMA".into(), &fine);
        assert_eq!(check.verdict, Verdict::Pass);
        assert!(check.seen.contains("a with x: 2 links, 0.210 GB/s"), "{}", check.seen);
        let slow = Rates::from([of("a with x", 10), of("b with y", 30)]);
        let check = judge_pairs("RDMA".into(), &slow);
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.fix.unwrap().contains("rate: b with y;"));
    }
}
