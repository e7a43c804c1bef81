//! The exchange: a worker's pushes go out, and the hub's answers come in. It has no clock and no control port, and is
//! generic over the transport.
//!
//! Owned by the worker's thread. It keeps the rule that the whole design stands on: one round in flight per chunk. A
//! key is pushed again only after all its answers came, and its gradient and weights are lent to the caller only while
//! none is under way. Arrivals that are no plain answer are in `notices`. On the `unsafe` list: reading the weights
//! window.
//!
//! A worker that joins a job with weights begins as if it had pushed the round before its first one: every key is
//! under way until its weights are there.

use std::sync::Arc;

use fabric::{Arrival, LinkId, Port, Until};
use pbox_core::{ChunkId, Element, Immediate, Key, KeyId, Layout, Round, Slices};

use super::coder::Coder;
use super::error::ExchangeError;
use super::notices::Pulls;
use super::outbox::{LinkClosed, Outbox};
use super::windows::Windows;

/// Arrivals that one poll takes.
const BATCH: usize = 256;

/// Bytes of gradients and weights that have crossed. In a compressed job these are the bytes of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the hub.
    pub sent: u64,
    /// From the hub.
    pub received: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyState {
    /// The round of the push under way, else of the next one.
    pub round: Round,
    /// Answers that have not come, and 1 more until the key is handed out if the exchange's owner does that.
    pub outstanding: u32,
}

/// What the worker awaits of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Nothing,
    /// That the weights of its slice can be pulled.
    Notice,
    Answer,
}

/// One worker's data path.
pub struct Exchange<P: Port> {
    port: P,
    /// One for the link to each of the hub's cores.
    pub(super) outboxes: Vec<Outbox>,
    pub(super) layout: Arc<Layout>,
    pub(super) windows: Windows,
    pub(super) keys: Vec<KeyState>,
    /// By chunk.
    pub(super) awaited: Vec<Awaited>,
    /// What a chunk awaits after a push.
    first_awaited: Awaited,
    /// Answers outstanding by core.
    outstanding: Vec<u32>,
    pub(super) slices: Slices,
    pub(super) pulls: Pulls,
    /// How often a whole key is handed out by the exchange's owner: 0 or 1.
    pub(super) hand_outs: u32,
    /// Answers that came before the first round was known; `None` once it is.
    pub(super) early: Option<Vec<(LinkId, Immediate)>>,
    received: u64,
    arrivals: Box<[Arrival; BATCH]>,
}

impl<P: Port> Exchange<P> {
    /// Attaches one endpoint for each of the hub's cores, to which the slices go. [`begin`](Self::begin) before the
    /// first push.
    pub fn new(
        mut port: P,
        endpoints: Vec<P::Endpoint>,
        layout: Arc<Layout>,
        windows: Windows,
        slices: Slices,
    ) -> Self {
        let slices_of = slices.by_core(endpoints.len());
        let boxed = |(endpoint, slices)| Outbox::new(port.attach(endpoint), slices);
        let outboxes: Vec<Outbox> = endpoints.into_iter().zip(slices_of).map(boxed).collect();
        Exchange {
            port,
            outstanding: vec![0; outboxes.len()],
            outboxes,
            keys: vec![KeyState::default(); layout.keys().len()],
            awaited: vec![Awaited::Nothing; layout.chunks().len()],
            first_awaited: if slices.schedule().pulls() { Awaited::Notice } else { Awaited::Answer },
            layout,
            windows,
            slices,
            pulls: Pulls::AtOnce,
            hand_outs: 0,
            early: Some(Vec::new()),
            received: 0,
            arrivals: Box::new([Arrival::default(); BATCH]),
        }
    }

    /// This worker takes part from round `first` on. When that is not 0, every key is under way until
    /// its weights of the round before are there, as if it had pushed that round.
    ///
    /// # Errors
    /// When answers came that this worker does not await.
    pub fn begin(&mut self, first: Round) -> Result<(), ExchangeError> {
        self.windows.coder_mut().into_iter().for_each(|coder| coder.begin(first));
        if first > Round(0) {
            for key in (0..self.keys.len() as u32).map(KeyId) {
                self.keys[key.index()].round = Round(first.0 - 1);
                self.await_answers(key);
            }
        }
        let early = self.early.take().unwrap_or_default();
        early.into_iter().try_for_each(|(link, answer)| self.take_arrival(link, answer))
    }

    /// Bounds the bytes that each link holds. Posts beyond that wait here, in the order of the schedule.
    pub fn set_credit(&mut self, bytes: Option<usize>) {
        self.outboxes.iter().for_each(|outbox| self.port.set_credit(outbox.link(), bytes));
    }

    /// Sends a key's gradient, slice by slice. Until its answers are all in, gradient and weights of
    /// the key belong to the hub.
    pub fn push(&mut self, key: KeyId) -> Result<(), ExchangeError> {
        self.check_idle(key, "pushing it again")?;
        if self.windows.coder().is_some() {
            self.check_all_pushed_before(key)?;
        }
        self.await_answers(key);
        for slice in self.slices.of_key(key) {
            self.outboxes[self.slices.slice(slice).core].push(&self.slices, slice);
        }
        self.post_queued()
    }

    /// A key is under way.
    fn await_answers(&mut self, key: KeyId) {
        let chunks = self.layout.key_chunks(key);
        self.keys[key.index()].outstanding = chunks.len() as u32 + self.hand_outs;
        for chunk in chunks {
            self.awaited[chunk as usize] = self.first_awaited;
            self.outstanding[self.slices.core_of(ChunkId(chunk))] += 1;
        }
    }

    /// With Slim-DP, a selection waits for all keys of its round, and the next round for the selection.
    fn check_all_pushed_before(&self, key: KeyId) -> Result<(), ExchangeError> {
        let round = self.keys[key.index()].round;
        let needs_all = |&former: &Round| self.windows.coder().is_some_and(|coder| coder.needs_all(former));
        let Some(former) = round.0.checked_sub(1).map(Round).filter(needs_all) else { return Ok(()) };
        let missing = |key: &KeyState| key.round < former || (key.round == former && key.outstanding == 0);
        let name = |index: usize| self.layout.keys()[index].name.clone();
        match self.keys.iter().position(missing) {
            None => Ok(()),
            Some(index) => {
                Err(ExchangeError::NeedsAll { key: name(key.index()), round: round.0, missing: name(index) })
            }
        }
    }

    /// Posts what the links take now. A full link does not stop the others.
    pub(super) fn post_queued(&mut self) -> Result<(), ExchangeError> {
        let Exchange { port, outboxes, windows, slices, keys, .. } = self;
        let mut outgoing = |key: KeyId, chunk| {
            let round = keys[key.index()].round;
            (windows.outgoing(chunk, round), round)
        };
        loop {
            let mut posted = false;
            for (core, outbox) in outboxes.iter_mut().enumerate().filter(|(_, outbox)| !outbox.is_empty()) {
                match outbox.post_queued(port, slices, &mut outgoing) {
                    Ok(any) => posted |= any,
                    Err(LinkClosed) => return Err(closed_link(port, core)),
                }
            }
            port.flush();
            // The flush may have made room.
            if !posted || outboxes.iter().all(Outbox::is_empty) {
                return Ok(());
            }
        }
    }

    fn has_unsent(&self) -> bool {
        self.outboxes.iter().any(|outbox| !outbox.is_empty())
    }

    /// Posts what had to wait, and takes in what has come. Returns the number of arrivals.
    pub fn progress(&mut self) -> Result<usize, ExchangeError> {
        let mut total = 0;
        if self.has_unsent() {
            self.post_queued()?;
        }
        loop {
            let count = self.port.poll(&mut self.arrivals[..]);
            for index in 0..count {
                let Arrival { link, imm } = self.arrivals[index];
                self.take_arrival(link, Immediate::decode(imm))?;
            }
            total += count;
            if count < BATCH {
                break;
            }
        }
        if total > 0 && self.has_unsent() {
            self.post_queued()?;
        }
        if total == 0
            && let Some(closed) = self.port.closed()
        {
            let core = self.outboxes.iter().position(|outbox| outbox.link() == closed.link).unwrap_or(0);
            return Err(ExchangeError::closed(core, &closed.reason));
        }
        Ok(total)
    }

    fn take_arrival(&mut self, link: LinkId, arrival: Immediate) -> Result<(), ExchangeError> {
        let chunk = arrival.chunk;
        if self.awaited.get(chunk.index()) != Some(&Awaited::Answer) {
            return self.take_notice(link, arrival);
        }
        let (core, key) = (self.slices.core_of(chunk), self.layout.chunk(chunk).key);
        let round = self.keys[key.index()].round;
        if link != self.outboxes[core].link() || arrival != Immediate::new(chunk, round) {
            return self.take_notice(link, arrival);
        }
        // SAFETY: the hub has answered this chunk and writes it again only after this worker's next
        // push of it.
        let bytes = unsafe { self.windows.arrived(chunk, round, core) };
        let lies = |why| ExchangeError::Frame { chunk: chunk.0, round: round.0, why };
        self.received += bytes.map_err(lies)? as u64;
        self.awaited[chunk.index()] = Awaited::Nothing;
        self.outstanding[core] -= 1;
        let key_state = &mut self.keys[key.index()];
        key_state.outstanding -= 1;
        if key_state.outstanding == 0 {
            key_state.round = key_state.round.next();
        }
        Ok(())
    }

    /// Bytes that have crossed so far.
    pub fn traffic(&self) -> Traffic {
        Traffic { sent: self.outboxes.iter().map(Outbox::posted_bytes).sum(), received: self.received }
    }

    /// Gradients that were NaN or infinite when they were encoded; 0 in a job without compression.
    pub fn not_finite(&self) -> u64 {
        self.windows.coder().map_or(0, Coder::not_finite)
    }

    /// Whether no push of the key is under way.
    pub fn is_ready(&self, key: KeyId) -> bool {
        self.keys[key.index()].outstanding == 0
    }

    /// The first key that is under way.
    pub fn first_under_way(&self) -> Option<KeyId> {
        self.keys.iter().position(|key| key.outstanding > 0).map(|key| KeyId(key as u32))
    }

    /// The round of the push under way, else of the key's next push.
    pub fn round(&self, key: KeyId) -> Round {
        self.keys[key.index()].round
    }

    /// Answers that a key still waits for.
    pub fn outstanding(&self, key: KeyId) -> u32 {
        self.awaited_chunks(key).count() as u32
    }

    fn awaited_chunks(&self, key: KeyId) -> impl Iterator<Item = ChunkId> {
        let chunks = self.layout.key_chunks(key).map(ChunkId);
        chunks.filter(|chunk| self.awaited[chunk.index()] != Awaited::Nothing)
    }

    /// What to sleep for when only this key matters, or all keys do: the number of answers that are missing from the core
    /// that owes the most of them.
    pub fn until(&self, key: Option<KeyId>) -> Until {
        if self.has_unsent() || self.first_awaited == Awaited::Notice {
            return Until::Any; // an answer may make room, and a pull follows a notice
        }
        let mut owed = self.outstanding.clone();
        if let Some(key) = key {
            owed.fill(0);
            self.awaited_chunks(key).for_each(|chunk| owed[self.slices.core_of(chunk)] += 1);
        }
        match owed.iter().enumerate().max_by_key(|&(_, &owed)| owed) {
            Some((core, &count)) if count > 0 => Until::Arrivals { link: self.outboxes[core].link(), count },
            _ => Until::Any,
        }
    }

    /// The port, to wait on.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// Closes the links, and keeps the memory.
    pub fn into_windows(self) -> Windows {
        self.windows
    }

    /// A key's gradient, to write. Its contents are the caller's until [`push`](Self::push).
    pub fn gradient_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], ExchangeError> {
        self.check_idle_as::<E>(key, "writing its gradient")?;
        Ok(self.windows.gradient_mut(key))
    }

    /// A key's weights, as of its last finished round.
    pub fn weights<E: Element>(&self, key: KeyId) -> Result<&[E], ExchangeError> {
        self.check_idle_as::<E>(key, "reading its weights")?;
        // SAFETY: `check_idle_as` saw that no push of the key is unanswered, and `&self` keeps it so.
        Ok(unsafe { self.windows.weights(key) })
    }

    /// A key's weights to read and its gradient to write, together.
    pub fn tensors<E: Element>(&mut self, key: KeyId) -> Result<(&[E], &mut [E]), ExchangeError> {
        self.check_idle_as::<E>(key, "using its tensors")?;
        // SAFETY: `check_idle_as` saw that no push of the key is unanswered, and `&mut self` keeps it so.
        Ok(unsafe { self.windows.tensors(key) })
    }

    /// A key's weights, to write. With Slim-DP, weights that are not sent stay as the worker writes them.
    ///
    /// # Errors
    /// While the key is under way, and in any other job.
    pub fn weights_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], ExchangeError> {
        self.check_idle_as::<E>(key, "writing its weights")?;
        let Exchange { windows, layout, .. } = self;
        let name = || layout.keys()[key.index()].name.clone();
        windows.weights_mut(key).ok_or_else(|| ExchangeError::HubsWeights { key: name() })
    }

    /// With Slim-DP, makes all gradients zero: they were written for a broadcast that does not take place.
    pub fn discard_changes(&mut self) {
        self.windows.coder_mut().into_iter().for_each(Coder::discard_changes);
    }

    /// As `check_idle`, and the key is of type `E`.
    fn check_idle_as<E: Element>(&self, key: KeyId, doing: &'static str) -> Result<(), ExchangeError> {
        self.check_idle(key, doing)?;
        let Key { name, dtype, .. } = &self.layout.keys()[key.index()];
        if *dtype != E::DTYPE {
            let (key, seen, asked) = (name.clone(), dtype.name(), E::DTYPE.name());
            return Err(ExchangeError::OtherType { key, seen, asked });
        }
        Ok(())
    }

    /// The layout.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Checks that no key is under way, before something that must not be done within a round.
    pub(crate) fn check_quiet(&self, doing: &'static str) -> Result<(), ExchangeError> {
        self.first_under_way().map_or(Ok(()), |key| self.check_idle(key, doing))
    }

    pub(crate) fn check_exists(&self, key: KeyId) -> Result<(), ExchangeError> {
        let keys = self.keys.len();
        if key.index() < keys { Ok(()) } else { Err(ExchangeError::NoSuchKey { key: key.0, keys }) }
    }

    fn check_idle(&self, key: KeyId, doing: &'static str) -> Result<(), ExchangeError> {
        self.check_exists(key)?;
        if self.is_ready(key) {
            return Ok(());
        }
        let name = self.layout.keys()[key.index()].name.clone();
        Err(ExchangeError::UnderWay { key: name, round: self.round(key).0, doing })
    }
}

#[cold]
fn closed_link<P: Port>(port: &mut P, core: usize) -> ExchangeError {
    match port.closed() {
        Some(closed) => ExchangeError::closed(core, &closed.reason),
        None => ExchangeError::Closed { core, reason: "closed earlier".into(), here: false },
    }
}
