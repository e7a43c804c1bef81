//! A loan by RDMA: the hub writes into a ring at the reader, and the reader copies the values from there into its memory.
//!
//! ```text
//!   reader                                            hub
//!   Lender: listens for a handshake over RDMA
//!   token, port --- control port ------------------->
//!   handshake      <--------------------------------- Loan::take
//!                  <== slot 0: the number of bytes ==
//!   memory for them -- 0 ---------------------------->
//!                  <== slots 1, 2, ..: the values ==== Loan::write
//!   copied ----------- 1, 2, .. --------------------->  a slot is free again
//!                  <-- control port: bytes written --- Loan::finish
//! ```
//!
//! NICs register only the two rings, however long the values are. The hub connects, so the reader's NICs need no address that the
//! hub knows.
//!
//! This file is on the `unsafe` list, because it reads the ring.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use crate::handshake::{Joined, Receive};
use crate::ids::{Imm, LinkId, Span};
use crate::memory::{RecvWindow, SendWindow, Slab, Spans};
use crate::plan::PlannedLink;
use crate::port::{Arrival, Port as _, Posted, Until};
use crate::proof::name_of;
use crate::verbs::{
    self, ConnectError, Endpoint, Group, GroupOptions, Listener, MAX_RAILS, NicOptions, RailMap, VerbsError,
};

/// The number of bytes of a slot of the ring.
const SLOT: usize = 1 << 20;
/// The number of slots of the ring: more than cross any network while the reader copies one slot.
const SLOTS: usize = 8;
/// The number of bytes of the ring, which each end has.
pub const RING: usize = SLOT * SLOTS;
/// The number of bytes that a reader posts: none, but no window is empty.
const NOTHING: usize = 64;
/// The span of an answer.
const NO_BYTES: Span = Span { offset: 0, bytes: 0 };
/// The time within which a process that has connected to a lender must show its proof.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// The time limit of each step of a handshake: a firewall may drop the packets to a reader.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(3);
/// The longest sleep in a wait for the other end, after which the wait looks at its deadline again.
const LOOK: Duration = Duration::from_secs(1);

/// A port for loans, over some NICs. It has one link at a time.
pub struct LoanPort {
    group: Arc<Group>,
    port: verbs::Port,
}

impl std::fmt::Debug for LoanPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoanPort").finish_non_exhaustive()
    }
}

impl LoanPort {
    /// Opens the first of these NICs, as many as a port may have.
    ///
    /// # Errors
    /// Returns an error if libibverbs is missing, no NIC can be opened, or memory or descriptors run out.
    pub fn new(nics: &[NicOptions], options: GroupOptions) -> Result<Self, VerbsError> {
        let nics = &nics[..nics.len().min(MAX_RAILS)];
        let (group, port) = verbs::worker_group(nics, options)?;
        Ok(LoanPort { group, port })
    }

    /// Opens the NICs of a group once more. `turn` rotates the order of the NICs. The group's map of rails is for other peers.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn beside(group: &Group, turn: usize) -> Result<Self, VerbsError> {
        let mut nics = group.all_nics();
        let first = turn % nics.len().max(1);
        nics.rotate_left(first);
        Self::new(&nics, GroupOptions { rails: RailMap::default(), ..group.options.clone() })
    }

    /// Waits for the next immediate of the only link. Returns `None` once `stopped` is true. Without a deadline, only
    /// `stopped` bounds the wait.
    fn next(
        &mut self,
        link: LinkId,
        deadline: Option<Instant>,
        stopped: &AtomicBool,
    ) -> io::Result<Option<Imm>> {
        loop {
            let mut arrival = [Arrival::default()];
            if self.port.poll(&mut arrival) == 1 {
                return Ok(Some(arrival[0].imm));
            }
            if let Some(closed) = self.port.closed() {
                return Err(io::Error::other(closed.reason.to_string()));
            }
            if stopped.load(Ordering::Acquire) {
                return Ok(None);
            }
            let left = deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the other end is too slow"));
            }
            self.port.wait(Until::Arrivals { link, count: 1 }, left.min(LOOK));
        }
    }

    fn post(&mut self, link: LinkId, span: Span, imm: Imm) -> io::Result<()> {
        let posted = self.port.post(link, span, imm);
        self.port.flush();
        match posted {
            Posted::Accepted => Ok(()),
            Posted::Full => {
                Err(io::Error::other("the link has no room, although the other end has answered"))
            }
            Posted::Closed => {
                let why = self.port.closed().map(|closed| closed.reason.to_string());
                Err(io::Error::other(why.unwrap_or_else(|| "the link is closed".into())))
            }
        }
    }
}

/// A reader that has memory to lend.
#[derive(Debug)]
pub struct Lender {
    token: [u8; 16],
    listener: Listener,
    stopped: AtomicBool,
    waker: Waker,
}

/// Memory with the values that a hub has written.
#[derive(Debug)]
pub struct Lent {
    slab: Slab,
    bytes: usize,
}

impl Lent {
    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the memory.
    pub fn into_slab(self) -> Slab {
        self.slab
    }
}

impl Lender {
    /// Creates a lender at this port, which listens for the hub with this token.
    ///
    /// # Errors
    /// Returns an error if this process cannot make a socket.
    pub fn new(port: &LoanPort, token: [u8; 16]) -> Result<Self, ConnectError> {
        // A machine without IPv6 has no address of the first kind.
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = Listener::bind(everywhere)
            .or_else(|_| Listener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))))?;
        Ok(Lender { token, listener, stopped: false.into(), waker: port.port.waker() })
    }

    /// Returns the TCP port to which the hub connects.
    pub fn tcp_port(&self) -> u16 {
        self.listener.address().port()
    }

    /// Waits until the hub has connected and has written all values, at most `most` bytes. Returns `None` after
    /// [`stop`](Self::stop).
    ///
    /// # Errors
    /// Returns an error if the hub has more bytes, if the link closes, or if there is no memory.
    pub fn lend(&self, port: &mut LoanPort, most: u64) -> Result<Option<Lent>, ConnectError> {
        port.group.mend();
        let ours = Arc::new(SendWindow::new(NOTHING)?);
        loop {
            let Some(accepted) = self.listener.accept()? else { return Ok(None) };
            // Another process may have connected.
            let Ok(mut hello) = accepted.hello(ASK_LIMIT) else { continue };
            hello.identify(|name| (name == name_of(self.token)).then_some(self.token));
            if hello.token() != self.token {
                hello.refuse("this reader waits for a hub with the token of its loan");
                continue;
            }
            let joined = hello.welcome(&port.group, &ours, RING, &plan(), |_| (), || ())?;
            let (link, ring) = attach(port, joined);
            let lent = self.receive(port, link, &ring, most);
            port.port.detach(link);
            return lent
                .map_err(|error| ConnectError::Nonsense(format!("lending memory to the hub: {error}")));
        }
    }

    fn receive(
        &self,
        port: &mut LoanPort,
        link: LinkId,
        ring: &RecvWindow,
        most: u64,
    ) -> io::Result<Option<Lent>> {
        let mut length = [0; size_of::<u64>()];
        let Some(()) = self.take(port, link, ring, 0, &mut length)? else { return Ok(None) };
        let bytes = u64::from_le_bytes(length);
        if bytes > most {
            let why = format!("the hub asks for memory of {bytes} bytes; expected at most {most}");
            return Err(io::Error::other(why));
        }
        if self.stopped.load(Ordering::Acquire) {
            return Ok(None); // the hub has answered without the memory
        }
        let bytes = bytes as usize;
        let mut slab =
            Slab::zeroed("lent memory", bytes.div_ceil(size_of::<f32>())).map_err(io::Error::other)?;
        // The pages are allocated before the hub has the values.
        slab.as_mut_slice().fill(0.0);
        port.post(link, NO_BYTES, Imm(0))?;
        let memory = &mut slab.as_mut_slice().as_mut_bytes()[..bytes];
        for (number, into) in (1..).zip(memory.chunks_mut(SLOT)) {
            let Some(()) = self.take(port, link, ring, number, into)? else { return Ok(None) };
            port.post(link, NO_BYTES, Imm(number))?;
        }
        Ok(Some(Lent { slab, bytes }))
    }

    /// Waits for the slot with this number, and copies it. Returns `None` once the lender is stopped.
    fn take(
        &self,
        port: &mut LoanPort,
        link: LinkId,
        ring: &RecvWindow,
        number: u32,
        into: &mut [u8],
    ) -> io::Result<Option<()>> {
        let Some(Imm(seen)) = port.next(link, None, &self.stopped)? else { return Ok(None) };
        if seen != number {
            return Err(io::Error::other(format!("the hub posted slot {seen}; expected slot {number}")));
        }
        let (slot, _) = ring.elements_ptr::<u8>(span_of(number, into.len())).map_err(io::Error::other)?;
        // SAFETY: `elements_ptr` checked that the span is in the window. The hub writes the slot again only after the
        // answer, which follows this copy.
        unsafe { std::ptr::copy_nonoverlapping(slot, into.as_mut_ptr(), into.len()) };
        Ok(Some(()))
    }

    /// Ends [`lend`](Self::lend) in the thread that waits in it.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.listener.stop();
        self.waker.wake_by_ref();
    }
}

/// Memory of a reader, which a hub has borrowed.
#[derive(Debug)]
pub struct Loan {
    port: LoanPort,
    link: LinkId,
    /// The slots of the ring at this end.
    slots: Spans,
    bytes: u64,
    written: u64,
    /// The number of bytes in the slot that is not posted yet.
    filled: usize,
    /// The number of slots that were posted.
    posted: u32,
    /// The number of slots that the reader has answered.
    answered: u32,
}

impl Loan {
    /// Connects to the reader at this address, and asks for memory of `bytes` bytes, which the reader allocates within `limit`.
    ///
    /// # Errors
    /// Returns an error if no reader with this token listens there, or if the reader has no memory. Also returns an error
    /// if no NIC of this end reaches a NIC of the reader.
    pub fn take(
        mut port: LoanPort,
        address: SocketAddr,
        token: [u8; 16],
        bytes: u64,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        port.group.mend();
        let slots = (0..SLOTS).map(|slot| Span { offset: slot * SLOT, bytes: SLOT }).collect();
        let (window, mut slots) =
            SendWindow::new(RING)?.split(vec![slots]).expect("slots are disjoint and aligned");
        let receive = Receive::New(NOTHING);
        let joined = verbs::connect(address, token, &port.group, &window, receive, &plan(), HANDSHAKE_LIMIT)?;
        let (link, _) = attach(&mut port, joined);
        let slots = slots.remove(0);
        let mut loan = Loan { port, link, slots, bytes, written: 0, filled: 0, posted: 0, answered: 0 };
        let length = bytes.to_le_bytes();
        loan.slots.elements_mut::<u8>(0)[..length.len()].copy_from_slice(&length);
        let asked = loan.post(length.len()).and_then(|()| loan.wait_for(1, Instant::now() + limit));
        asked.map_err(|error| ConnectError::Nonsense(format!("asking for memory: {error}")))?;
        Ok(loan)
    }

    /// Returns the number of bytes that are borrowed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of bytes that are not written yet.
    pub fn room(&self) -> u64 {
        self.bytes - self.written
    }

    /// Writes the next bytes, for which there must be room.
    ///
    /// # Errors
    /// Returns an error if the link closes, or if the reader takes the bytes too slowly for `deadline`.
    pub fn write(&mut self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        assert!(bytes.len() as u64 <= self.room(), "the caller checks the room");
        while !bytes.is_empty() {
            if self.filled == 0 {
                self.wait_for((self.posted + 1).saturating_sub(SLOTS as u32), deadline)?;
            }
            let slot = self.posted as usize % SLOTS;
            let room = &mut self.slots.elements_mut::<u8>(slot)[self.filled..];
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            self.filled += count;
            self.written += count as u64;
            if self.filled == SLOT || self.written == self.bytes {
                self.post(self.filled)?;
            }
        }
        Ok(())
    }

    /// Waits until the reader has all bytes that were written. Returns the port.
    ///
    /// # Errors
    /// Returns an error if the link closes, or if the reader takes the bytes too slowly for `deadline`.
    pub fn finish(mut self, deadline: Instant) -> io::Result<LoanPort> {
        self.wait_for(self.posted, deadline)?;
        self.port.port.detach(self.link);
        Ok(self.port)
    }

    /// Posts the first bytes of the next slot.
    fn post(&mut self, bytes: usize) -> io::Result<()> {
        self.port.post(self.link, span_of(self.posted, bytes), Imm(self.posted))?;
        self.posted += 1;
        self.filled = 0;
        Ok(())
    }

    /// Waits until the reader has answered the first `count` slots.
    fn wait_for(&mut self, count: u32, deadline: Instant) -> io::Result<()> {
        let never = AtomicBool::new(false);
        while self.answered < count {
            let imm = self.port.next(self.link, Some(deadline), &never)?;
            if imm != Some(Imm(self.answered)) {
                let (seen, expected) = (imm.map(|imm| imm.0), self.answered);
                return Err(io::Error::other(format!(
                    "the reader answered slot {seen:?}; expected slot {expected}"
                )));
            }
            self.answered += 1;
        }
        Ok(())
    }
}

/// Returns the plan of a loan's connection: one link, with room for all slots.
fn plan() -> Vec<PlannedLink> {
    PlannedLink::of_one_port(&[SLOTS as u32])
}

/// Returns the place of the first bytes of a slot. Both ends have the same ring.
fn span_of(number: u32, bytes: usize) -> Span {
    Span { offset: number as usize % SLOTS * SLOT, bytes }
}

fn attach(port: &mut LoanPort, mut joined: Joined<Endpoint>) -> (LinkId, Arc<RecvWindow>) {
    (port.port.attach(joined.endpoints.remove(0)), joined.recv)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::conformance::Watchdog;

    const LONG: Duration = Duration::from_secs(30);

    /// Returns a port on the first device to test on.
    fn port() -> Option<LoanPort> {
        let named = std::env::var("PHUB_TEST_DEVICE").unwrap_or_default();
        match named.split(',').next().filter(|name| !name.is_empty()) {
            Some(name) => Some(LoanPort::new(&[NicOptions::new(name)], GroupOptions::default()).unwrap()),
            None => {
                println!("skipped: PHUB_TEST_DEVICE names no RDMA device to test on");
                None
            }
        }
    }

    fn at(lender: &Lender) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, lender.tcp_port()).into()
    }

    fn later() -> Instant {
        Instant::now() + LONG
    }

    #[test]
    fn a_hub_writes_into_the_memory_of_a_reader() {
        let _watchdog = Watchdog::start();
        let (Some(mut reader), mut hub) = (port(), port()) else { return };
        // The ports are used for several loans. The longest is longer than the ring.
        for bytes in [0, 10, SLOT, SLOT + 3, 20 * SLOT + 2] {
            let token = super::super::token().unwrap();
            let lender = Lender::new(&reader, token).unwrap();
            let values: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let lent = thread::scope(|scope| {
                let lent = scope.spawn(|| lender.lend(&mut reader, bytes as u64).unwrap().unwrap());
                let mut loan =
                    Loan::take(hub.take().unwrap(), at(&lender), token, bytes as u64, LONG).unwrap();
                values.chunks(300_000).for_each(|values| loan.write(values, later()).unwrap());
                hub = Some(loan.finish(later()).unwrap());
                lent.join().unwrap()
            });
            assert_eq!(lent.bytes(), bytes);
            assert!(lent.into_slab().as_slice().as_bytes()[..bytes] == values);
        }
    }

    #[test]
    fn a_loan_has_a_limit() {
        let _watchdog = Watchdog::start();
        let (Some(mut reader), Some(hub)) = (port(), port()) else { return };
        let lender = Lender::new(&reader, [1; 16]).unwrap();
        thread::scope(|scope| {
            let lent = scope.spawn(|| lender.lend(&mut reader, 8).unwrap_err().to_string());
            let why = Loan::take(hub, at(&lender), [1; 16], 9, LONG).unwrap_err().to_string();
            assert!(why.contains("asking for memory: the peer closed the link"), "{why}");
            let why = lent.join().unwrap();
            assert!(why.contains("9 bytes; expected at most 8"), "{why}");
        });
    }

    #[test]
    fn who_lacks_the_token_writes_nothing_and_stop_ends_each_wait() {
        let _watchdog = Watchdog::start();
        let (Some(mut reader), Some(stranger), Some(hub)) = (port(), port(), port()) else { return };
        let lender = Lender::new(&reader, [2; 16]).unwrap();
        thread::scope(|scope| {
            let lent = scope.spawn(|| lender.lend(&mut reader, 8).map(|lent| lent.is_none()));
            let why = Loan::take(stranger, at(&lender), [0; 16], 8, LONG).unwrap_err().to_string();
            assert!(why.contains("the token of its loan"), "{why}");
            // A hub that has the memory, and never writes.
            let _loan = Loan::take(hub, at(&lender), [2; 16], 8, LONG).unwrap();
            lender.stop();
            assert!(lent.join().unwrap().unwrap());
        });
        let lender = Lender::new(&reader, [3; 16]).unwrap();
        thread::scope(|scope| {
            let lent = scope.spawn(|| lender.lend(&mut reader, 8).map(|lent| lent.is_none()));
            lender.stop();
            assert!(lent.join().unwrap().unwrap());
        });
    }

    #[test]
    fn the_end_of_one_process_ends_the_loan_of_the_other() {
        let _watchdog = Watchdog::start();
        let (Some(mut reader), Some(hub)) = (port(), port()) else { return };
        let lender = Lender::new(&reader, [4; 16]).unwrap();
        thread::scope(|scope| {
            let lent = scope.spawn(|| lender.lend(&mut reader, 8).map(|_| ()));
            drop(Loan::take(hub, at(&lender), [4; 16], 8, LONG).unwrap());
            let why = lent.join().unwrap().unwrap_err().to_string();
            assert!(why.contains("the peer closed the link"), "{why}");
        });
    }
}
