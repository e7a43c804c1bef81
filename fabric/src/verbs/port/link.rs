//! A link's queue pair with its requests and counts.
//!
//! A handshake's thread makes and connects the queue pair; then the port's thread owns it. This module has
//! windows as addresses and keys, and does not depend on the state of the link in its port.

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};

use super::rails::{PortState, Rail, Route};
use super::registered::{Carried, Registered};
use crate::credit::Credit;
use crate::ids::{Imm, Span};
use crate::port::{Crossed, Posted};
use crate::ranges::Ranges;
use crate::verbs::error::VerbsError;
use crate::verbs::handles::chain::{Place, RECEIVES, ReceiveChain, SENDS, SendChain};
use crate::verbs::handles::error::DeviceError;
use crate::verbs::handles::queue_pair::{Peer, QueuePair};
use crate::verbs::handles::work::{Tally, Work};

/// The most fences in flight: one for the detached link, and one for another link of its connection.
const FENCES: u32 = 2;
/// The most sends between two signalled sends. With 32, a completion costs a thirtieth of a send's time.
const MAX_INTERVAL: u32 = 32;
/// The number of sends beyond the capacity whose acknowledgements may be late: the peer's answer to a send
/// may come before the acknowledgement.
const LATE: u32 = 64;
/// The most sends of a link that its NIC has at a time. Further sends wait in the link, because a device does
/// not guarantee its own limit. 1024 chunks of 32 KiB are 32 MiB, and take 0.7 ms at 400 Gb/s: far longer
/// than any round trip.
const MOST_SENDS: u32 = 1024;

/// The numbers of requests in the queues of a link, for its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Depths {
    /// The most sends that the NIC has and that have not completed.
    sends: u32,
    /// The most sends that wait for room in the NIC's queue.
    waiting: u32,
    /// The number of sends from one signalled send to the next.
    interval: u32,
    receives: u32,
    /// The number of requests per send: 2 if the immediate is a separate write.
    each: u32,
}

impl Depths {
    /// Returns the depths of a link's queues. A full send queue always contains a signalled send. Up to
    /// `interval` sends may be done although no completion shows it yet. So the queue has room for that many
    /// sends beyond the capacity, and a post has room once the peer has polled all. Each send that can be in
    /// flight has a receive request. Receive requests are posted again in batches.
    ///
    /// A send queue has at most `most` requests, the limit of the device. Sends beyond that limit, and beyond
    /// [`MOST_SENDS`], wait in the link. A device that allows too few receive requests causes an error.
    fn for_capacity(capacity: u32, most: u32, each: u32) -> Self {
        let interval = (capacity / 2).clamp(1, MAX_INTERVAL);
        let posts = capacity.saturating_add(interval).saturating_add(capacity.min(LATE));
        let sends = posts.min(MOST_SENDS).min(most.saturating_sub(FENCES) / each).max(1);
        let receives = posts.saturating_add(RECEIVES);
        Depths { sends, waiting: posts - sends, interval: interval.min(sends), receives, each }
    }

    fn send_requests(self) -> u32 {
        self.sends * self.each + FENCES
    }

    /// Returns the highest number of completions that can come when the queue pair fails: one for each request in its queues.
    fn completions(self) -> u32 {
        self.send_requests().saturating_add(self.receives)
    }
}

/// The keys of a range that a link sends: this end's key and the peer's.
#[derive(Clone, Copy, Debug, Default)]
struct Keys {
    local: u32,
    remote: u32,
}

/// A queue pair that can receive, but is not connected to a peer yet.
pub(in crate::verbs) struct Unconnected {
    // The queue pair is dropped before the route is released, as in `Link`.
    qp: QueuePair,
    receives: ReceiveChain,
    registered: Arc<Registered>,
    carried: Carried,
    depths: Depths,
    pub first_packet: u32,
    route: Route,
}

impl Unconnected {
    /// Creates a link on a rail of a port.
    pub fn new(
        port: &Arc<PortState>,
        rail: &Arc<Rail>,
        registered: &Arc<Registered>,
        carried: Carried,
        capacity: u32,
    ) -> Result<Self, VerbsError> {
        let each = 1 + u32::from(registered.nic.settings.writes_apart);
        let depths = Depths::for_capacity(capacity, registered.nic.context.limits.work_requests, each);
        let queue = &rail.queue;
        queue.reserve(depths.completions())?;
        let route = Route::new(port, rail, depths.completions());
        let qp = QueuePair::new(&registered.domain, queue, depths.send_requests(), depths.receives)?;
        qp.initialise(&registered.nic)?;
        let mut receives = ReceiveChain::new(route.id(Work::Receive).encode());
        let mut left = depths.receives;
        while left > 0 {
            let count = left.min(RECEIVES);
            receives.post(&qp, count).map_err(|errno| {
                let device = registered.nic.context.device.clone();
                let error = std::io::Error::from_raw_os_error(errno).to_string();
                VerbsError::Device(DeviceError::Call { device, call: "ibv_post_recv", error })
            })?;
            left -= count;
        }
        let first_packet = random_packet().map_err(VerbsError::system("drawing a packet number"))?;
        let registered = Arc::clone(registered);
        Ok(Unconnected { qp, receives, registered, carried, depths, first_packet, route })
    }

    /// Returns the queue pair's number.
    pub fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Returns the keys of the ranges that the peer writes.
    pub fn receive_keys(&self) -> Vec<u32> {
        self.registered.remote_keys(&self.carried)
    }

    /// Whether the immediates of the link's posts are separate writes.
    pub fn writes_apart(&self) -> bool {
        self.depths.each == 2
    }

    pub fn sent_ranges(&self) -> usize {
        self.carried.sent.iter().len()
    }

    /// Connects the queue pair to the peer's queue pair. The windows begin at address `from` at this end, and
    /// at `to` at the peer. `remote` has the peer's key for each range that is sent. `apart` says whether the
    /// peer's immediates are separate writes.
    pub fn connect(
        self,
        peer: &Peer,
        from: u64,
        to: u64,
        remote: &[u32],
        apart: bool,
    ) -> Result<Link, VerbsError> {
        self.qp.connect(&self.registered.nic, self.first_packet, peer)?;
        let Unconnected { qp, receives, registered, carried, depths, route, .. } = self;
        let local = registered.local_keys(&carried);
        assert_eq!(local.len(), remote.len(), "a key for each range");
        let keys = local.into_iter().zip(remote).map(|(local, &remote)| Keys { local, remote });
        Ok(Link {
            sends: SendChain::new(),
            receives,
            from,
            to,
            keys: keys.collect(),
            ranges: carried.sent,
            depths,
            in_flight: 0,
            unsignalled: 0,
            signalled: VecDeque::with_capacity(depths.sends as usize),
            waiting: VecDeque::with_capacity(depths.waiting as usize),
            credit: Credit::default(),
            crossed: Crossed::default(),
            fences: 0,
            fence_due: false,
            peer_writes_apart: apart,
            consumed: 0,
            send_id: route.id(Work::Send).encode(),
            qp,
            registered,
            route,
        })
    }
}

/// A connected queue pair. While it lives, the window from which it posts and the window that the peer writes
/// stay registered.
pub(in crate::verbs) struct Link {
    // The queue pair is dropped first. After that, nothing accesses the windows, and nothing completes under
    // the route.
    qp: QueuePair,
    sends: SendChain,
    receives: ReceiveChain,
    /// Address of the first byte of this end's window.
    from: u64,
    /// Address of the first byte of the peer's window.
    to: u64,
    /// The ranges that the link may post. `keys` has the keys of each range.
    ranges: Ranges,
    keys: Vec<Keys>,
    depths: Depths,
    /// The number of sends without a known completion, including those that are held back.
    in_flight: u32,
    /// The number of sends since the last signalled send.
    unsignalled: u32,
    /// The signalled sends: for each, the number of sends that its completion covers, and their bytes of the
    /// link's credit.
    signalled: VecDeque<(u32, usize)>,
    /// The posts that wait for room in the send queue, in order, with their keys and their bytes of the
    /// link's credit.
    waiting: VecDeque<(Span, Keys, Imm, usize)>,
    credit: Credit,
    pub crossed: Crossed,
    fences: u32,
    /// Whether a fence must be posted after the last waiting post.
    fence_due: bool,
    /// Whether the peer's immediates are separate writes. Then a completion does not tell how many bytes
    /// arrived before it.
    pub peer_writes_apart: bool,
    /// The number of receive requests that were used and not posted again.
    consumed: u32,
    send_id: u64,
    #[cfg_attr(not(test), expect(dead_code, reason = "held: what the queue pair reads and writes"))]
    registered: Arc<Registered>,
    pub route: Route,
}

impl Link {
    /// Returns the queue pair's number.
    pub fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Adds a send to the chain, which the next flush hands over. A full chain is handed over at once. Without
    /// room in the send queue, the send waits in the link. Returns `Full` if the link can hold no more
    /// waiting sends, or has no credit. Returns the errno of `ibv_post_send` if that call fails.
    ///
    /// # Panics
    /// Panics if the link does not carry the span: then the caller's layout differs from the plan's.
    pub fn post(&mut self, span: Span, imm: Imm, tally: &mut Tally) -> Result<Posted, i32> {
        let keys = self.keys_of(span);
        let has_room = self.in_flight < self.depths.sends;
        if !has_room && self.waiting.len() >= self.depths.waiting as usize {
            return Ok(Posted::Full);
        }
        let Some(counted) = self.credit.take(span.bytes) else { return Ok(Posted::Full) };
        // Waiting posts go first: as soon as there is room, they are handed over.
        if has_room {
            self.hold(span, keys, imm, counted, tally)?;
        } else {
            self.waiting.push_back((span, keys, imm, counted));
        }
        Ok(Posted::Accepted)
    }

    /// Returns the keys of the range that holds a span. A span without bytes needs no keys.
    #[inline]
    fn keys_of(&self, span: Span) -> Keys {
        if span.bytes == 0 {
            return Keys::default();
        }
        let place = self.ranges.holding(span).unwrap_or_else(|| {
            panic!("{span:?} was posted on a link that carries {} other ranges", self.keys.len())
        });
        self.keys[place]
    }

    /// Adds a send to the chain. Hands the chain over when it is full.
    #[inline]
    fn hold(
        &mut self,
        span: Span,
        keys: Keys,
        imm: Imm,
        counted: usize,
        tally: &mut Tally,
    ) -> Result<(), i32> {
        self.in_flight += 1;
        self.unsignalled += 1;
        // A send that counts bytes must be signalled, because its completion gives the bytes back to the
        // credit.
        let signalled = self.unsignalled == self.depths.interval || counted > 0;
        if signalled {
            self.signalled.push_back((std::mem::take(&mut self.unsignalled), counted));
        }
        let offset = span.offset as u64;
        let bytes = u32::try_from(span.bytes).expect("a span of less than 4 GiB");
        self.crossed.sent += u64::from(bytes);
        let from = Place { address: self.from + offset, key: keys.local };
        let to = Place { address: self.to + offset, key: keys.remote };
        if self.depths.each == 2 && bytes > 0 {
            if self.sends.held() + 2 > SENDS {
                self.flush(tally)?;
            }
            self.sends.push(self.send_id, false, from, to, bytes, None);
            self.sends.push(self.send_id, signalled, Place::NONE, Place::NONE, 0, Some(imm.0));
        } else {
            self.sends.push(self.send_id, signalled, from, to, bytes, Some(imm.0));
        }
        if self.sends.is_full() {
            self.flush(tally)?;
        }
        Ok(())
    }

    /// Hands over waiting posts as far as there is room now.
    #[cold]
    fn hand_over_waiting(&mut self, tally: &mut Tally) -> Result<(), i32> {
        while self.in_flight < self.depths.sends
            && let Some((span, keys, imm, counted)) = self.waiting.pop_front()
        {
            self.hold(span, keys, imm, counted, tally)?;
        }
        self.flush(tally)?;
        if self.waiting.is_empty() && std::mem::take(&mut self.fence_due) {
            self.fence()?;
        }
        Ok(())
    }

    /// Hands over the posts that are held back.
    pub fn flush(&mut self, tally: &mut Tally) -> Result<(), i32> {
        if self.sends.is_empty() {
            return Ok(());
        }
        tally.sends += self.sends.held() as u64;
        tally.send_calls += 1;
        self.sends.post(&self.qp)
    }

    /// Notes that a signalled send and all sends before it have completed. Waiting sends get their room.
    pub fn sent(&mut self, tally: &mut Tally) -> Result<(), i32> {
        if let Some((sends, counted)) = self.signalled.pop_front() {
            self.in_flight -= sends;
            self.credit.give(counted);
        }
        if self.waiting.is_empty() { Ok(()) } else { self.hand_over_waiting(tally) }
    }

    /// Limits the bytes of posts whose completion has not been reported yet.
    pub fn set_credit(&mut self, bytes: Option<usize>) {
        self.credit.limit_to(bytes);
    }

    /// Notes that an arrival was shown: its receive request is used up.
    pub fn shown(&mut self, tally: &mut Tally) -> Result<(), i32> {
        self.consumed += 1;
        if self.consumed < RECEIVES {
            return Ok(());
        }
        self.consumed = 0;
        tally.receives += u64::from(RECEIVES);
        tally.receive_calls += 1;
        self.receives.post(&self.qp, RECEIVES)
    }

    /// Posts a fence, a write without bytes, after the earlier posts. When these posts are done, the fence
    /// completes, and [`fence_passed`](Self::fence_passed) is called.
    pub fn fence(&mut self) -> Result<(), i32> {
        if !self.waiting.is_empty() {
            self.fence_due = true;
            return Ok(());
        }
        if self.in_flight == 0 || self.fences == FENCES {
            return Ok(()); // nothing is in flight, or the last fence comes after all posts
        }
        SendChain::post_fence(&self.qp, self.route.id(Work::Fence).encode())?;
        self.fences += 1;
        Ok(())
    }

    pub fn fence_passed(&mut self) {
        self.fences = self.fences.saturating_sub(1);
    }

    /// Drops the fences, because the queue pair has failed and will send nothing more.
    pub fn give_up(&mut self) {
        self.fences = 0;
        self.fence_due = false;
    }

    pub fn is_fenced(&self) -> bool {
        self.fences > 0 || self.fence_due
    }

    /// Returns the most arrivals that can be unread.
    pub fn most_unread(&self) -> u32 {
        self.depths.receives
    }

    /// Returns the number of unread arrivals for which the link has room in any case. It is less than the
    /// number of receive requests, because a batch of them may be used and not posted again yet.
    pub fn sure_unread(&self) -> u32 {
        self.depths.receives - (RECEIVES - 1)
    }
}

/// Methods for tests of a hostile or a dead peer.
#[cfg(test)]
impl Link {
    /// Stops answering packets.
    pub fn vanish(&self) {
        self.qp.vanish(&self.registered.nic);
    }

    /// Returns the address that posts go to, and the key of the first range.
    pub fn target(&self) -> (u32, u64) {
        (self.keys[0].remote, self.to)
    }

    /// Changes the target of posts.
    pub fn aim_at(&mut self, (key, address): (u32, u64)) {
        self.to = address;
        self.keys.iter_mut().for_each(|keys| keys.remote = key);
    }

    /// Sends an empty message that is not a write.
    pub fn send_plainly(&self) {
        SendChain::post_plain(&self.qp).unwrap();
    }
}

/// Returns the number of a first packet, with 24 bits. It is random, so that packets of an earlier queue pair
/// do not match.
pub(in crate::verbs) fn random_packet() -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u32::from_le_bytes(bytes) & 0xff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_hold_the_capacity_whatever_is_late() {
        for capacity in [1, 2, 3, 5, 8, 64, 100, 1750, 8094, 1 << 20] {
            for (most, each) in [(2 * RECEIVES, 1), (600, 1), (8192, 2), (32768, 1), (32768, 2)] {
                let depths = Depths::for_capacity(capacity, most, each);
                assert!(depths.sends + depths.waiting >= capacity + depths.interval, "{depths:?}");
                assert!(depths.interval <= depths.sends, "a full queue has a signalled send: {depths:?}");
                assert!(depths.sends <= MOST_SENDS && depths.send_requests() <= most, "{depths:?}");
                assert!(depths.receives >= capacity + RECEIVES, "{depths:?}");
            }
        }
        let small = Depths::for_capacity(100, 32768, 1);
        assert_eq!((small.sends, small.waiting), (196, 0), "nothing waits where the queue takes all");
        let _ = Depths::for_capacity(u32::MAX, 32768, 2).completions();
    }
}
