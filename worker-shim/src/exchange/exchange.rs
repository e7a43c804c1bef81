//! The exchange: sends a worker's pushes, and receives the hub's answers. It has no clock and no control
//! port, and is generic over the transport.
//!
//! ```text
//!   push -> [slices, by priority] -> [the begun slice] --+--> post, as long as the link takes it
//!           [urgent: pulls, chunks to post again] -------+
//! ```
//!
//! Owned by the worker's thread. It keeps the rule on which the whole design depends: one round in flight per
//! chunk. A key is pushed again only after all its answers have arrived. `keys` lends gradients and weights
//! to the caller, and `notices` handles arrivals that are not plain answers. Handling arrivals is
//! unsafe (docs/unsafe.md).

use std::sync::Arc;
use std::time::Instant;

use fabric::{Arrival, CloseReason, LinkId, Port, RecvWindow, Until};
use pbox_core::{ChunkId, Content, Immediate, KeyId, Layout, NormSum, Part, Parts, Round, Slice, Slices};

use super::ahead::{Ahead, post_other};
use super::error::ExchangeError;
use super::groups::Groups;
use super::notices::Pulls;
use super::outbox::{Outbox, Post, Source, Urgent};
use super::windows::Windows;

/// The most arrivals that one poll returns.
const BATCH: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyState {
    /// The round of the push in flight. If no push is in flight, the round of the next push.
    pub round: Round,
    /// The number of answers that have not arrived. If the owner of the exchange releases keys to callers, the release
    /// counts as one more missing answer.
    pub outstanding: u32,
    /// The content of the push in flight.
    pub content: Content,
    /// Whether chunks were sent, or queued to be sent, ahead of the push in flight or, if there is none, of the next
    /// push.
    pub ahead: bool,
    /// Whether no answer so far has changed the weights: no answer to the push in flight or, if there is none, to the
    /// last push.
    pub left_alone: bool,
}

impl KeyState {
    /// Returns the state of the next push, for a key whose answers have all arrived.
    pub fn next(self) -> Self {
        KeyState { round: self.round.next(), left_alone: self.left_alone, ..KeyState::default() }
    }
}

/// The source of the posts of an exchange.
struct Posts<'a> {
    windows: &'a mut Windows,
    keys: &'a [KeyState],
    ahead: &'a mut Ahead,
}

impl Source for Posts<'_> {
    #[inline]
    fn post(&mut self, key: KeyId, chunk: ChunkId) -> Option<Post> {
        let Posts { windows, keys, ahead } = self;
        let state = &keys[key.index()];
        if state.content != Content::Gradient || state.ahead {
            return post_other(windows, ahead, state, chunk);
        }
        let span = windows.outgoing(chunk, state.round, Content::Gradient);
        Some(Post { span, immediate: Immediate::new(chunk, state.round), is_noted: false })
    }

    fn note(&mut self, immediate: Immediate) {
        self.ahead.note(immediate.chunk, immediate.content);
    }
}

/// The next message from the hub that the worker expects for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Nothing,
    /// The hub's notice that the weights of the chunk's slice can be pulled.
    Notice,
    /// No message: the owner of the exchange has to pull the chunk's slice first.
    Pull,
    Answer,
    /// The hub's repeated notice, after a loss of links, that the slice can be pulled. The owner of the exchange had
    /// the notice before, and has not pulled the slice.
    NoticeAgain,
    /// The hub's repeated notice, after a loss of links, or an answer. The owner of the exchange had pulled the slice
    /// before the loss. If the pull had reached the hub, the hub answers. If not, it repeats the notice.
    AnswerOrNotice,
}

/// One worker's data path.
pub struct Exchange<P: Port> {
    pub(super) port: P,
    /// The outbox of the link to each of the hub's cores.
    pub(super) outboxes: Vec<Outbox>,
    pub(super) layout: Arc<Layout>,
    pub(super) windows: Windows,
    pub(super) keys: Vec<KeyState>,
    /// The message that each chunk awaits, by chunk.
    pub(super) awaited: Vec<Awaited>,
    /// The message that a chunk awaits after its push.
    pub(super) first_awaited: Awaited,
    /// The least number of posts that can bring all outstanding answers, by core. The answer to a group is
    /// one post.
    pub(super) outstanding: Vec<u32>,
    pub(super) slices: Slices,
    pub(super) groups: Groups,
    pub(super) pulls: Pulls,
    pub(super) ahead: Ahead,
    /// Whether round 0 is a broadcast of weights.
    pub(super) broadcasts: bool,
    /// 1 if the owner of the exchange releases keys to callers, otherwise 0.
    pub(super) hand_outs: u32,
    /// Answers that arrived before the first round was known; `None` once it is known.
    pub(super) early: Option<Vec<(LinkId, Immediate)>>,
    /// The bytes that were sent over links that no longer exist.
    pub(super) sent_before: u64,
    pub(super) received: u64,
    /// The parts of the gradient's norm over all keys that hubs have sent.
    parts: Parts,
    /// The gradient's norm over all keys, in the last round for which all parts have arrived.
    found: Option<NormSum>,
    /// The priority of each key, if the caller has set the order in which it needs keys. Empty if the layout's order
    /// counts.
    pub(super) priorities: Vec<u32>,
    /// The keys whose last answer has arrived since the caller took this list; `None` if no caller takes it.
    pub(super) answered: Option<Vec<KeyId>>,
    /// The bytes of keys that the caller has put (pushed without a flush) since the last flush.
    unflushed: usize,
    arrivals: Box<[Arrival; BATCH]>,
}

impl<P: Port> Exchange<P> {
    /// Attaches one endpoint for each of the hub's cores. Each endpoint carries the slices of its core. Call
    /// [`begin`](Self::begin) before the first push.
    pub fn new(
        mut port: P,
        endpoints: Vec<P::Endpoint>,
        layout: Arc<Layout>,
        windows: Windows,
        slices: Slices,
    ) -> Self {
        let slices = if windows.coder().is_some() { slices.without_groups() } else { slices };
        let outboxes = outboxes(&mut port, endpoints, &slices);
        let parts = Parts::new(windows.wire().hubs().len());
        Exchange {
            port,
            groups: Groups::new(&layout, &slices),
            outstanding: vec![0; outboxes.len()],
            outboxes,
            sent_before: 0,
            keys: vec![KeyState::default(); layout.keys().len()],
            awaited: vec![Awaited::Nothing; layout.chunks().len()],
            first_awaited: if slices.schedule().pulls() { Awaited::Notice } else { Awaited::Answer },
            ahead: Ahead::new(layout.chunks().len()),
            broadcasts: windows.broadcasts(),
            layout,
            windows,
            slices,
            pulls: Pulls::AtOnce,
            hand_outs: 0,
            early: Some(Vec::new()),
            received: 0,
            parts,
            found: None,
            priorities: Vec::new(),
            answered: None,
            unflushed: 0,
            arrivals: Box::new([Arrival::default(); BATCH]),
        }
    }

    /// Handles answers that still arrive over links that are about to close, until one link has closed, or until the
    /// time `until`. Without this call, a push could count as unanswered although the hub has answered it.
    ///
    /// # Errors
    /// Returns the error of the link that has closed.
    pub(crate) fn take_last(&mut self, until: Instant) -> Result<(), ExchangeError> {
        loop {
            // A closed link is reported only after all its arrivals were handled.
            while self.progress()? > 0 {}
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.port.wait(Until::Any, left);
        }
    }

    /// Drops the lost links. The caller makes [new links](Self::relink) at `port` later. Pushes in flight stay in flight.
    pub fn cut(&mut self, port: P) {
        self.sent_before = self.traffic().sent;
        self.outboxes.clear();
        self.port = port;
        self.forget_ahead();
    }

    /// Replaces the links that were [cut](Self::cut) by new links to the same cores and memory. The caller
    /// then calls [`push_again`](Self::push_again).
    pub fn relink(&mut self, mut port: P, endpoints: Vec<P::Endpoint>, received: Vec<Arc<RecvWindow>>) {
        self.outboxes = outboxes(&mut port, endpoints, &self.slices);
        self.port = port;
        self.windows.receive(received);
    }

    /// Posts all chunks that have no answer again, after a [`relink`](Self::relink). Posts them one by one,
    /// because some chunks of a group may have their answer already.
    ///
    /// # Errors
    /// Returns an error if a link is closed.
    pub fn push_again(&mut self) -> Result<(), ExchangeError> {
        self.groups.leave_apart();
        for hub in 0..self.parts.hubs() {
            self.parts.of_hub(hub).for_each(|part| self.pass_on(hub, &part));
        }
        for (chunk, awaited) in (0..).map(ChunkId).zip(&mut self.awaited) {
            match awaited {
                Awaited::Nothing => continue,
                Awaited::Pull => *awaited = Awaited::NoticeAgain,
                Awaited::Answer if self.first_awaited == Awaited::Notice => {
                    *awaited = Awaited::AnswerOrNotice
                }
                _ => {}
            }
            let key = self.layout.chunk(chunk).key;
            self.outboxes[self.slices.core_of(chunk)].urgent.push_back(Urgent::Resend(key, chunk));
        }
        self.post_queued()
    }

    /// Drops the lost links, and waits for new links at `port`. Pushes in flight will get no answer.
    pub(crate) fn disconnect(&mut self, port: P) {
        self.sent_before = self.traffic().sent;
        self.outboxes.clear();
        self.port = port;
        self.awaited.fill(Awaited::Nothing);
        self.outstanding.clear();
        self.keys.fill(KeyState::default());
        self.ahead.forget_all();
        self.early = Some(Vec::new());
        (self.parts, self.found) = (Parts::new(self.parts.hubs()), None);
    }

    /// Replaces the lost links by new links. The memory stays. The caller then calls [`begin`](Self::begin).
    pub(crate) fn reconnect(
        &mut self,
        mut port: P,
        endpoints: Vec<P::Endpoint>,
        received: Vec<Arc<RecvWindow>>,
        slices: Slices,
    ) {
        let slices = if self.windows.coder().is_some() { slices.without_groups() } else { slices };
        self.outboxes = outboxes(&mut port, endpoints, &slices);
        self.outstanding = vec![0; self.outboxes.len()];
        self.groups = Groups::new(&self.layout, &slices);
        (self.port, self.slices) = (port, slices);
        self.windows.receive(received);
    }

    /// Limits the bytes that each link may hold. Further posts wait in this exchange, in the order of the schedule.
    pub fn set_credit(&mut self, bytes: Option<usize>) {
        self.outboxes.iter().for_each(|outbox| self.port.set_credit(outbox.link, bytes));
    }

    /// Sends a key's gradient, slice by slice. Until all answers have arrived, gradient and weights of the
    /// key belong to the hub.
    pub fn push(&mut self, key: KeyId) -> Result<(), ExchangeError> {
        self.put(key)?;
        self.flush()
    }

    /// Pushes a key like [`push`](Self::push), except that small keys may wait here until the
    /// [`flush`](Self::flush), which must follow soon. Each flush checks whether the hub's cores sleep, which
    /// costs more than the push of a small key.
    #[inline]
    pub fn put(&mut self, key: KeyId) -> Result<(), ExchangeError> {
        self.put_as(key, Content::Gradient)
    }

    /// Pushes a key like [`put`](Self::put), with a content other than a gradient. In the broadcast every
    /// push has weights or nothing.
    #[inline]
    pub fn put_as(&mut self, key: KeyId, content: Content) -> Result<(), ExchangeError> {
        if !self.put_beside(key, content) {
            return self.put_apart(key, content);
        }
        let Some(slice) = self.groups.whole() else { return Ok(()) };
        self.queue_group(slice);
        self.post_put()
    }

    /// Pushes a key that cannot join the incomplete group of the previous keys.
    fn put_apart(&mut self, key: KeyId, content: Content) -> Result<(), ExchangeError> {
        self.check_idle(key, "pushing it again")?;
        if self.windows.coder().is_some() {
            self.check_all_pushed_before(key)?;
        }
        let is_first = self.keys[key.index()].round == Round(0) && self.broadcasts;
        let is_weights = is_first && content != Content::Nothing;
        self.await_answers(key, if is_weights { Content::Weights } else { content });
        match self.slices.group(key) {
            Some(group) => self.begin_group(key, group, content),
            None => {
                self.queue_members();
                self.queue_key(key);
            }
        }
        self.post_put()
    }

    pub(super) fn post_put(&mut self) -> Result<(), ExchangeError> {
        self.post()?;
        if self.unflushed < self.layout.chunk_bytes() { Ok(()) } else { self.flush() }
    }

    pub(super) fn queue_key(&mut self, key: KeyId) {
        if self.keys[key.index()].ahead {
            return self.queue_rest(key);
        }
        self.slices.of_key(key).for_each(|slice| self.queue(slice));
    }

    pub(super) fn queue(&mut self, slice: u32) {
        let &Slice { key, core, priority, .. } = self.slices.slice(slice);
        let priority = self.priorities.get(key.index()).copied().unwrap_or(priority);
        let chunks = self.slices.chunks(slice);
        self.unflushed += chunks.iter().map(|&chunk| self.layout.span(chunk).bytes).sum::<usize>();
        assert!(self.outboxes[core].push(priority, slice), "a key is pushed once until it is answered");
    }

    /// Sends the keys that were [put](Self::put).
    pub fn flush(&mut self) -> Result<(), ExchangeError> {
        self.unflushed = 0;
        if self.queue_members() {
            self.post()?;
        }
        self.port.flush();
        if self.has_unsent() { self.post_queued() } else { Ok(()) }
    }

    /// Notes that a key is in flight.
    pub(super) fn await_answers(&mut self, key: KeyId, content: Content) {
        let chunks = self.layout.key_chunks(key);
        let state = &mut self.keys[key.index()];
        state.outstanding = chunks.len() as u32 + self.hand_outs;
        (state.content, state.left_alone) = (content, true);
        self.awaited[chunks.start as usize..chunks.end as usize].fill(self.first_awaited);
        match self.slices.group(key) {
            Some(group) => self.groups.open(group).into_iter().for_each(|core| self.outstanding[core] += 1),
            None => chunks.map(ChunkId).for_each(|chunk| self.outstanding[self.slices.core_of(chunk)] += 1),
        }
    }

    /// Posts as much as the links accept now, and flushes.
    pub(super) fn post_queued(&mut self) -> Result<(), ExchangeError> {
        loop {
            let posted = self.post()?;
            self.port.flush();
            // The flush may have made room in a link.
            if !posted || !self.has_unsent() {
                return Ok(());
            }
        }
    }

    /// Posts as much as the links accept now. A full link does not stop the other links. Returns whether any link
    /// accepted a post.
    fn post(&mut self) -> Result<bool, ExchangeError> {
        let Exchange { port, outboxes, windows, slices, keys, ahead, .. } = self;
        let mut posts = Posts { windows, keys, ahead };
        let mut posted = false;
        for outbox in outboxes.iter_mut().filter(|outbox| !outbox.is_empty()) {
            match outbox.post_queued(port, slices, &mut posts) {
                Ok(any) => posted |= any,
                Err(error) => return Err(self.why_closed(error)),
            }
        }
        Ok(posted)
    }

    /// Returns the reason why a closed link accepted no post. The port reports this reason only after all arrivals were
    /// handled.
    #[cold]
    fn why_closed(&mut self, error: ExchangeError) -> ExchangeError {
        self.take_arrivals().err().or_else(|| self.closed()).unwrap_or(error)
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.outboxes.iter().any(|outbox| !outbox.is_empty())
    }

    /// Posts the pushes that had to wait, and handles arrivals. Returns the number of arrivals.
    pub fn progress(&mut self) -> Result<usize, ExchangeError> {
        if self.has_unsent() {
            self.post_queued()?;
        }
        let total = self.take_arrivals()?;
        if total > 0 && self.has_unsent() {
            self.post_queued()?;
        }
        if total == 0
            && let Some(error) = self.closed()
        {
            return Err(error);
        }
        Ok(total)
    }

    fn take_arrivals(&mut self) -> Result<usize, ExchangeError> {
        let mut total = 0;
        loop {
            let count = self.port.poll(&mut self.arrivals[..]);
            for index in 0..count {
                let Arrival { link, imm } = self.arrivals[index];
                self.take_arrival(link, Immediate::decode(imm))?;
            }
            total += count;
            if count < BATCH {
                return Ok(total);
            }
        }
    }

    /// Returns the error of a closed link, if a link has closed. If one link fails, the other links close, too, and
    /// report only that their peer has ended. So any other reason takes precedence.
    fn closed(&mut self) -> Option<ExchangeError> {
        let mut closed = self.port.closed()?;
        while let Some(other) = self.port.closed() {
            if closed.reason == CloseReason::PeerGone {
                closed = other;
            }
        }
        let core = self.outboxes.iter().position(|outbox| outbox.link == closed.link).unwrap_or(0);
        Some(ExchangeError::closed(core, &closed.reason))
    }

    pub(super) fn take_arrival(&mut self, link: LinkId, arrival: Immediate) -> Result<(), ExchangeError> {
        let chunk = arrival.chunk;
        if self.awaited.get(chunk.index()) != Some(&Awaited::Answer) {
            return match self.layout.group(chunk) {
                Some(chunks) => self.take_group(link, arrival, chunks),
                None => self.take_notice(link, arrival),
            };
        }
        let (core, key) = (self.slices.core_of(chunk), self.layout.chunk(chunk).key);
        let round = self.keys[key.index()].round;
        if link != self.outboxes[core].link || arrival != Immediate::new(chunk, round) {
            return self.take_other(link, arrival);
        }
        self.take_answer(core, key, arrival)
    }

    /// Handles an arrival for a chunk that awaits an answer, if the arrival is not the plain answer of a step.
    fn take_other(&mut self, link: LinkId, arrival: Immediate) -> Result<(), ExchangeError> {
        let (core, key) = (self.slices.core_of(arrival.chunk), self.layout.chunk(arrival.chunk).key);
        let KeyState { round, content, .. } = self.keys[key.index()];
        let may_come = match arrival.content {
            Content::Weights => true,
            Content::Nothing => content == Content::Nothing || self.windows.wire().skips().skips_any(),
            Content::Gradient | Content::Ahead => false,
        };
        let is_of = arrival == Immediate::new(arrival.chunk, round).with(arrival.content);
        if may_come && is_of && link == self.outboxes[core].link {
            return self.take_answer(core, key, arrival);
        }
        self.take_notice(link, arrival)
    }

    /// Handles the answer to a key's chunk in its round.
    #[inline]
    fn take_answer(&mut self, core: usize, key: KeyId, answer: Immediate) -> Result<(), ExchangeError> {
        let (chunk, round) = (answer.chunk, self.keys[key.index()].round);
        if answer.content != Content::Nothing {
            // SAFETY: the hub has answered this chunk and writes it again only after this worker's next
            // push of it.
            let bytes = unsafe { self.windows.arrived(chunk, round, answer.content, core) };
            let lies = |why| ExchangeError::Frame { chunk: chunk.0, round: round.0, why };
            self.received += bytes.map_err(lies)? as u64;
            self.keys[key.index()].left_alone = false;
        } else if let Some(coder) = self.windows.coder_mut() {
            coder.note_answered(chunk);
        }
        self.awaited[chunk.index()] = Awaited::Nothing;
        if self.slices.group(key).is_none_or(|group| self.groups.close(group)) {
            self.outstanding[core] -= 1;
        }
        let key_state = &mut self.keys[key.index()];
        key_state.outstanding -= 1;
        if key_state.outstanding == 0 {
            *key_state = key_state.next();
            self.answered.iter_mut().for_each(|answered| answered.push(key));
        }
        Ok(())
    }

    /// Handles a hub's part of the gradient's norm, and passes the part on to the other hubs. Returns whether the
    /// arrival is such a part.
    #[cold]
    pub(super) fn take_norm_part(&mut self, link: LinkId, hub: usize, arrival: Immediate) -> bool {
        let Some(&first) = self.windows.wire().hubs().get(hub) else { return false };
        let core = self.slices.core_of(first);
        if link != self.outboxes[core].link || arrival.content != Content::Gradient {
            return false;
        }
        // SAFETY: the hub sends the part before it answers any chunk of the round. Before such an answer,
        // this worker pushes no chunk again.
        let Some(part) = (unsafe { self.windows.norm_part(hub, arrival.round_bits, core) }) else {
            return false;
        };
        if self.parts.take(hub, part) == Part::New {
            self.pass_on(hub, &part);
            if let Some(whole) = self.parts.whole(part.round, self.windows.wire().skips()) {
                self.found = Some(whole);
            }
        }
        true
    }

    /// Passes a hub's part of the norm on to the other hubs, if hubs have no links to each other.
    fn pass_on(&mut self, hub: usize, part: &NormSum) {
        if !self.windows.wire().passes_on() {
            return;
        }
        let hubs = Arc::clone(self.windows.wire().hubs());
        let post = Urgent::Post(self.windows.pass_on(hub, part), Immediate::line(hub, part.round));
        for (_, &first) in hubs.iter().enumerate().filter(|(other, _)| *other != hub) {
            self.outboxes[self.slices.core_of(first)].urgent.push_back(post);
        }
    }

    /// Returns the gradient's sum of squares over all keys, in the last round for which all hubs have sent their
    /// parts. If the job's steps wait for this sum, the sum arrives before the answers of its round. Otherwise it
    /// arrives before the answers of the next round.
    pub fn found(&self) -> Option<NormSum> {
        self.found
    }

    /// Whether no push of the key is in flight.
    pub fn is_ready(&self, key: KeyId) -> bool {
        self.keys[key.index()].outstanding == 0
    }

    /// Whether the weights of a key were left unchanged by its last push, or so far by the push in flight. If so, no
    /// worker had a gradient, and no chunk was answered ahead.
    pub fn was_left_alone(&self, key: KeyId) -> bool {
        self.keys[key.index()].left_alone
    }

    pub(crate) fn content(&self, key: KeyId) -> Content {
        self.keys[key.index()].content
    }

    /// Returns the first key that is in flight.
    pub fn first_under_way(&self) -> Option<KeyId> {
        self.under_way_from(KeyId(0))
    }

    /// Returns the first key in flight that is not before this key.
    pub fn under_way_from(&self, KeyId(first): KeyId) -> Option<KeyId> {
        let behind = self.keys[first as usize..].iter().position(|key| key.outstanding > 0);
        behind.map(|key| KeyId(first + key as u32))
    }

    /// Whether round 0 is a broadcast of weights.
    pub(crate) fn broadcasts(&self) -> bool {
        self.broadcasts
    }

    /// Returns the round of the push in flight. If no push is in flight, returns the round of the key's next
    /// push.
    pub fn round(&self, key: KeyId) -> Round {
        self.keys[key.index()].round
    }

    /// Returns the port, for example to wait on it.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Returns the windows of this worker.
    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Returns the layout.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Checks that no key is in flight. `doing` is the name, for the error, of an action that must not happen within a
    /// round.
    pub(crate) fn check_quiet(&self, doing: &'static str) -> Result<(), ExchangeError> {
        self.first_under_way().map_or(Ok(()), |key| self.check_idle(key, doing))
    }

    pub(crate) fn check_exists(&self, key: KeyId) -> Result<(), ExchangeError> {
        let keys = self.keys.len();
        if key.index() < keys { Ok(()) } else { Err(ExchangeError::NoSuchKey { key: key.0, keys }) }
    }

    pub(super) fn check_idle(&self, key: KeyId, doing: &'static str) -> Result<(), ExchangeError> {
        self.check_exists(key)?;
        if self.is_ready(key) {
            return Ok(());
        }
        Err(self.under_way(key, doing))
    }

    pub(super) fn under_way(&self, key: KeyId, doing: &'static str) -> ExchangeError {
        let name = self.layout.keys()[key.index()].name.clone();
        ExchangeError::UnderWay { key: name, round: self.round(key).0, doing }
    }
}

/// Attaches an endpoint for each core. Each endpoint carries the slices of its core.
fn outboxes<P: Port>(port: &mut P, endpoints: Vec<P::Endpoint>, slices: &Slices) -> Vec<Outbox> {
    let slices_of = slices.by_core(endpoints.len());
    let outbox = |(core, (endpoint, slices))| Outbox::new(core, port.attach(endpoint), slices);
    endpoints.into_iter().zip(slices_of).enumerate().map(outbox).collect()
}
