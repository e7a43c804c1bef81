//! The rate at which this worker encodes gradients, compared with the speed of its link. A codec that is slower than
//! the link makes rounds longer. At each join with a codec, the rate is measured and logged together with the link's
//! speed.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use fabric::any::Transport;
use if_addrs::get_if_addrs;
use membership::Way;
use pbox_core::codec::{Codec, Draw};
use pbox_core::kernels::Kernels;
use pbox_core::{ChunkId, Compression, Round};

use crate::session::config::SessionConfig;

/// The time for which encoding is measured.
const MEASURED: Duration = Duration::from_millis(3);
/// The most elements of the chunk that is encoded.
const MOST_ELEMENTS: usize = 1 << 16;

/// A NIC of this machine, and its speed.
#[derive(Clone, Debug, PartialEq)]
struct Link {
    nic: String,
    gbps: f64,
}

/// The rate at which a codec encodes here, and the speed of the NIC.
struct Rates {
    codec: Codec,
    encoded_gbps: f64,
    link: Option<Link>,
}

impl Rates {
    fn is_slower_than_link(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.gbps > self.encoded_gbps)
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rates { codec, encoded_gbps, link } = self;
        let codec = Compression::Codec(*codec);
        write!(out, "compression {codec}: this worker encodes {encoded_gbps:.1} Gb/s of gradients")?;
        match link {
            Some(Link { nic, gbps }) if self.is_slower_than_link() => write!(
                out,
                ", and this machine's NIC {nic} carries {gbps:.1} Gb/s; if the whole path to the hub is as fast and not busy, a push \
                 is faster without compression"
            ),
            Some(Link { nic, gbps }) => write!(out, ", and this machine's NIC {nic} carries {gbps:.1} Gb/s"),
            None => write!(out, "; over a link that is faster, a push is faster without compression"),
        }
    }
}

/// Logs the rate of the codec of the job's terms, if the terms have a codec. The log line is a warning if the NIC is faster.
pub(in crate::session) fn say(config: &SessionConfig, ways: &[Way]) {
    let Some(Compression::Codec(codec)) = config.terms.level.compression else { return };
    let elements = (config.terms.chunk_bytes / size_of::<f32>()).clamp(1, MOST_ELEMENTS);
    let is_tcp = ways.iter().all(|way| way.transport == Transport::Tcp);
    let link = if is_tcp { link_to(&config.hub) } else { None };
    let rates = Rates { codec, encoded_gbps: encoded_gbps(codec, elements), link };
    let (job, rank) = (&config.job, config.rank);
    if rates.is_slower_than_link() {
        tracing::warn!(job, rank, "{rates}");
    } else {
        tracing::info!(job, rank, "{rates}");
    }
}

/// Returns the rate at which one thread encodes gradients here, in 10^9 bits of f32 per second.
fn encoded_gbps(codec: Codec, elements: usize) -> f64 {
    let kernels = Kernels::detect();
    let values: Vec<f32> =
        (0..elements as u32).map(|n| n.wrapping_mul(2_654_435_761) as i32 as f32 / 2e9).collect();
    let mut state = vec![0.0; codec.state_per_element() * elements];
    let mut payload = vec![0; codec.payload_bytes(elements)];
    let mut encode = |round| {
        let draw = Draw { seed: 0, rank: 0, round: Round(round), chunk: ChunkId(0) };
        codec.encode(kernels, &values, &mut state, draw, &mut payload);
    };
    encode(0); // touches the memory
    let (begun, mut rounds) = (Instant::now(), 0);
    while begun.elapsed() < MEASURED {
        rounds += 1;
        encode(rounds);
    }
    f64::from(rounds) * (32 * elements) as f64 / begun.elapsed().as_secs_f64() / 1e9
}

/// Returns the NIC over which this machine reaches the first of these hubs, if the NIC reports its speed.
fn link_to(hubs: &str) -> Option<Link> {
    let hub = hubs.split(',').next()?.to_socket_addrs().ok()?.next()?;
    let any = match hub {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    // The kernel chooses the route to the hub. `connect` on a datagram socket only sets this route, and sends nothing.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(hub).ok()?;
    let here = socket.local_addr().ok()?.ip();
    let nic = get_if_addrs().ok()?.into_iter().find(|interface| interface.ip() == here)?.name;
    let gbps = gbps_of(&std::fs::read_to_string(format!("/sys/class/net/{nic}/speed")).ok()?)?;
    Some(Link { nic, gbps })
}

/// Parses the kernel's number of 10^6 bits a second, which is -1 if the speed is unknown.
fn gbps_of(text: &str) -> Option<f64> {
    let mbps: i64 = text.trim().parse().ok()?;
    (mbps > 0).then(|| mbps as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_which_of_the_two_is_slower() {
        let said = |encoded_gbps, link: Option<f64>| {
            let link = link.map(|gbps| Link { nic: "eth0".into(), gbps });
            let rates = Rates { codec: Codec::TernGrad, encoded_gbps, link };
            (rates.is_slower_than_link(), rates.to_string())
        };
        let rate = "compression terngrad: this worker encodes 9.0 Gb/s of gradients";
        let (slower, line) = said(9.0, Some(25.0));
        assert!(
            slower
                && line.starts_with(&format!(
                    "{rate}, and this machine's NIC eth0 carries 25.0 Gb/s; if the whole path"
                )),
            "{line}"
        );
        assert_eq!(
            said(9.0, Some(1.0)),
            (false, format!("{rate}, and this machine's NIC eth0 carries 1.0 Gb/s"))
        );
        let (slower, line) = said(9.0, None);
        assert!(!slower && line.starts_with(&format!("{rate}; over a link that is faster")), "{line}");
    }

    #[test]
    fn a_speed_that_the_kernel_does_not_know_is_none() {
        assert_eq!(gbps_of("25000\n"), Some(25.0));
        for text in ["-1\n", "0\n", "", "fast"] {
            assert_eq!(gbps_of(text), None, "{text:?}");
        }
        assert_eq!(link_to("127.0.0.1:7077"), None, "loopback has no speed");
        assert_eq!(link_to("no such address"), None);
    }

    #[test]
    fn each_codec_has_a_rate() {
        for text in ["f16", "bf16", "onebit", "terngrad", "topk:0.01", "dgc:0.01"] {
            let Ok(Compression::Codec(codec)) = text.parse() else { panic!("{text}") };
            assert!(encoded_gbps(codec, 1000) > 0.0, "{text}");
        }
    }
}
