//! A test that sends bytes over one NIC to itself, and checks them. It is the final proof that the NIC works.
//!
//! This file is on the `unsafe` list, because it reads the receive windows. Any thread may call the test,
//! which makes its own ports and drops them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::VerbsError;
use super::group::GroupOptions;
use super::handshake::connect::{ConnectError, Listener, connect};
use super::nic::NicOptions;
use super::path_settings::PathFlags;
use super::port::{Endpoint, Port, group, worker_group};
use crate::handshake::{Joined, Receive};
use crate::ids::{Imm, LinkId, Span};
use crate::memory::{RecvWindow, SendWindow, Spans, WindowError};
use crate::plan::PlannedLink;
use crate::port::{Arrival, Port as _, Posted, Until};

/// The number of bytes of a post. The hub's chunks have the same size.
const CHUNK: usize = 32 << 10;
/// The timeout of each step of the handshake, and of all posts in one direction.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The result of the test.
#[derive(Clone, Debug)]
pub struct Loopback {
    /// The NIC, its port and GID, and the reason for this choice.
    pub reason: String,
    /// The bytes in each direction.
    pub bytes: usize,
    /// The time from the first post to the last arrival. The two directions run one after the other.
    pub elapsed: Duration,
}

/// The error of a NIC that does not move bytes.
#[derive(Debug, thiserror::Error)]
pub enum LoopbackError {
    /// The NIC cannot be used at all.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Two ports on the NIC could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There was not enough memory for the windows.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The link closed.
    #[error("{device}: the link to itself closed after {arrived} of {posts} posts: {reason}")]
    Closed {
        /// The NIC.
        device: String,
        /// The number of posts that arrived.
        arrived: usize,
        /// The number of posts that were sent.
        posts: usize,
        /// The reason why the link closed.
        reason: String,
    },
    /// Posts did not arrive in time.
    #[error(
        "{device}: {arrived} of {posts} posts to itself arrived within {TIMEOUT:?}; is a firewall in the way (RoCE v2 is UDP port 4791)?"
    )]
    Silent {
        /// The NIC.
        device: String,
        /// The number of posts that arrived.
        arrived: usize,
        /// The number of posts that were sent.
        posts: usize,
    },
    /// Bytes arrived that differ from the bytes that were sent.
    #[error("{device}: chunk {chunk} arrived with other bytes than were sent")]
    Wrong {
        /// The NIC.
        device: String,
        /// The number of the chunk.
        chunk: usize,
    },
}

/// Connects two ports of one NIC by a link with room for `capacity` posts. Sends `bytes` bytes over the link
/// in each direction, with the path settings `paths`.
///
/// # Errors
/// Returns the fault that prevents the NIC from moving bytes.
pub fn loopback(
    nic: &NicOptions,
    bytes: usize,
    capacity: u32,
    paths: &PathFlags,
) -> Result<Loopback, LoopbackError> {
    let spans: Vec<Span> = (0..bytes.div_ceil(CHUNK))
        .map(|index| Span { offset: index * CHUNK, bytes: CHUNK.min((bytes - index * CHUNK) / 4 * 4) })
        .collect();
    let links = PlannedLink::of_one_port(&[capacity.max(1)]);
    let options = GroupOptions { paths: paths.clone(), ..GroupOptions::default() };
    let (hub_group, mut hub_ports) = group(std::slice::from_ref(nic), options.clone())?;
    let (worker_group, worker_port) = worker_group(std::slice::from_ref(nic), options)?;
    let reason =
        hub_group.nics(0).iter().map(|nic| format!("{}: {}", nic.address().device, nic.reason())).collect();
    let (hub_window, hub_spans) = window(bytes, &spans)?;
    let (worker_window, worker_spans) = window(bytes, &spans)?;
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.address();
    let (hub_joined, worker_joined) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            connect(address, [0; 16], &worker_group, &worker_window, Receive::New(bytes), &links, TIMEOUT)
        });
        let hub = listener.accept().and_then(|accepted| {
            let hello = accepted.expect("nobody stops the listener").hello(TIMEOUT)?;
            hello.welcome(&hub_group, &hub_window, bytes, &links, |_| (), || ())
        });
        (hub, worker.join().expect("connecting does not panic"))
    });
    // If both ends failed, the worker's error says more: the hub only sees that the worker closed the
    // connection.
    let (worker_joined, hub_joined) = (worker_joined?, hub_joined?);
    let mut hub = End::new(hub_ports.remove(0), hub_joined, hub_spans, nic);
    let mut worker = End::new(worker_port, worker_joined, worker_spans, nic);
    let begin = Instant::now();
    worker.send(&mut hub, 1)?;
    hub.send(&mut worker, 2)?;
    Ok(Loopback { reason, bytes, elapsed: begin.elapsed() })
}

fn window(bytes: usize, spans: &[Span]) -> Result<(Arc<SendWindow>, Spans), WindowError> {
    let window = SendWindow::new(bytes)?;
    let (window, mut owned) = window.split(vec![spans.to_vec()]).expect("chunks are disjoint and aligned");
    Ok((window, owned.remove(0)))
}

/// One end of the link.
struct End {
    port: Port,
    link: LinkId,
    recv: Arc<RecvWindow>,
    spans: Spans,
    device: String,
}

impl End {
    fn new(mut port: Port, mut joined: Joined<Endpoint>, spans: Spans, nic: &NicOptions) -> Self {
        let link = port.attach(joined.endpoints.remove(0));
        End { port, link, recv: joined.recv, spans, device: nic.device.clone() }
    }

    /// Posts every chunk to the other end, each with different words, and checks the arrived words.
    fn send(&mut self, to: &mut End, salt: u32) -> Result<(), LoopbackError> {
        let posts = self.spans.len();
        for chunk in 0..posts {
            for (index, word) in (0u32..).zip(self.spans.elements_mut::<u32>(chunk)) {
                *word = pattern(salt, chunk, index);
            }
        }
        let deadline = Instant::now() + TIMEOUT;
        let (mut posted, mut arrived) = (0, 0);
        let mut arrivals = [Arrival::default(); 64];
        while arrived < posts {
            while posted < posts
                && self.port.post(self.link, self.spans.span(posted), Imm(posted as u32)) == Posted::Accepted
            {
                posted += 1;
            }
            self.port.flush();
            self.port.poll(&mut [Arrival::default()]); // nothing arrives at this end, but its sends complete
            let count = to.port.poll(&mut arrivals);
            for arrival in &arrivals[..count] {
                to.check(salt, arrival.imm.0 as usize, self)?;
            }
            arrived += count;
            for port in [&mut self.port, &mut to.port] {
                if let Some(closed) = port.closed() {
                    let (device, reason) = (to.device.clone(), closed.reason.to_string());
                    return Err(LoopbackError::Closed { device, arrived, posts, reason });
                }
            }
            if count == 0 {
                to.port.wait(Until::Any, Duration::from_millis(1)); // short: this thread also sends
                if Instant::now() > deadline {
                    return Err(LoopbackError::Silent { device: to.device.clone(), arrived, posts });
                }
            }
        }
        Ok(())
    }

    fn check(&self, salt: u32, chunk: usize, from: &End) -> Result<(), LoopbackError> {
        let wrong = || LoopbackError::Wrong { device: self.device.clone(), chunk };
        if chunk >= from.spans.len() {
            return Err(wrong());
        }
        // SAFETY: each chunk is posted once in a direction. This chunk has arrived, so nobody writes it.
        let words = unsafe { self.recv.elements::<u32>(from.spans.span(chunk)) }.map_err(|_| wrong())?;
        let right = (0u32..).zip(words).all(|(index, &word)| word == pattern(salt, chunk, index));
        if right { Ok(()) } else { Err(wrong()) }
    }
}

/// Returns a word that differs for each chunk, index and direction, and from memory that was never written.
fn pattern(salt: u32, chunk: usize, index: u32) -> u32 {
    (salt << 30 | (chunk as u32) << 13 | index).wrapping_mul(0x9e37_79b1)
}
