//! Keys between pushes: gradients and weights are lent to the caller while their key is idle. This file also handles
//! the first round of a worker, the count of missing answers, and the traffic counts.
//!
//! Part of the exchange, on the worker's thread. Reading the weights window is unsafe (docs/unsafe.md).
//!
//! A worker that joins a job with weights begins as if it had already pushed the round before its first round. Every key is in
//! flight until its weights have arrived.

use fabric::{Port, Until};
use pbox_core::{ChunkId, Content, Element, Key, KeyId, Layout, Round, Schedule};

use super::coder::Coder;
use super::error::ExchangeError;
use super::exchange::{Awaited, Exchange, KeyState};
use super::windows::Windows;

/// The bytes of gradients and weights that a worker has sent and received; in a compressed job, the bytes of frames.
/// Padding between small keys in one post counts, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The bytes that were sent to the hub.
    pub sent: u64,
    /// The bytes that were received from the hub.
    pub received: u64,
}

impl<P: Port> Exchange<P> {
    /// Notes that this worker takes part from round `first` on. If `first` is not 0, the worker counts as having pushed the
    /// previous round. Every key is then in flight until its weights have arrived.
    ///
    /// # Errors
    /// Returns an error if answers have arrived that this worker does not await.
    pub fn begin(&mut self, first: Round) -> Result<(), ExchangeError> {
        self.windows.coder_mut().into_iter().for_each(|coder| coder.begin(first));
        if first > Round(0) {
            for key in (0..self.keys.len() as u32).map(KeyId) {
                self.keys[key.index()].round = Round(first.0 - 1);
                self.await_answers(key, Content::Gradient);
            }
        }
        let early = self.early.take().unwrap_or_default();
        early.into_iter().try_for_each(|(link, answer)| self.take_arrival(link, answer))
    }

    /// Returns a key's gradient, to write. The gradient belongs to the caller until [`push`](Self::push).
    pub fn gradient_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], ExchangeError> {
        self.check_idle_as::<E>(key, "writing its gradient")?;
        let Exchange { windows, layout, .. } = self;
        windows.gradient_mut(key).ok_or_else(|| in_dma_buf(layout, key))
    }

    /// Returns a key's weights, as of its last finished round.
    ///
    /// # Errors
    /// Returns an error while the key is in flight. If the hub answers bytes ahead, and the weights are not read from a
    /// copy, also returns an error after [`send_ahead`](Self::send_ahead).
    pub fn weights<E: Element>(&self, key: KeyId) -> Result<&[E], ExchangeError> {
        self.check_read_as::<E>(key, "reading its weights")?;
        // SAFETY: `check_read_as` saw that all pushes of the key, and all its bytes ahead, are answered.
        // `&self` excludes new pushes.
        Ok(unsafe { self.windows.weights(key) })
    }

    /// Returns a key's weights to read and its gradient to write, together.
    pub fn tensors<E: Element>(&mut self, key: KeyId) -> Result<(&[E], &mut [E]), ExchangeError> {
        self.check_read_as::<E>(key, "using its tensors")?;
        let Exchange { windows, layout, .. } = self;
        // SAFETY: `check_read_as` saw that all pushes of the key, and all its bytes ahead, are answered.
        // `&mut self` excludes new pushes.
        let (weights, gradient) = unsafe { windows.tensors(key) };
        Ok((weights, gradient.ok_or_else(|| in_dma_buf(layout, key))?))
    }

    /// Returns a key's weights, to write, in a job with Slim-DP. Weights that are not sent stay as the worker
    /// wrote them.
    ///
    /// # Errors
    /// Returns an error while the key is in flight, and in a job without Slim-DP.
    pub fn weights_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], ExchangeError> {
        self.check_idle_as::<E>(key, "writing its weights")?;
        let Exchange { windows, layout, .. } = self;
        let name = || layout.keys()[key.index()].name.clone();
        windows.weights_mut(key).ok_or_else(|| ExchangeError::HubsWeights { key: name() })
    }

    /// Sets all gradients to zero in a job with Slim-DP. The caller had written weights into them for a broadcast that
    /// does not happen.
    pub fn discard_changes(&mut self) {
        self.windows.coder_mut().into_iter().for_each(Coder::discard_changes);
    }

    /// Notes that the hub has stepped a key's push of a round, and that its answer will never arrive, because newer
    /// weights have arrived instead.
    pub fn answered_without(&mut self, key: KeyId, round: Round) {
        let Exchange { windows, layout, .. } = self;
        let Some(coder) = windows.coder_mut() else { return };
        for chunk in layout.key_chunks(key).map(ChunkId) {
            coder.answered_without(chunk, round, layout.chunk(chunk).span);
        }
    }

    /// Checks that the key's weights can be read now: the key is idle, its type is `E`, and the hub is not answering
    /// bytes ahead into the weights.
    fn check_read_as<E: Element>(&self, key: KeyId, doing: &'static str) -> Result<(), ExchangeError> {
        self.check_idle_as::<E>(key, doing)?;
        let may_come = self.ahead.are_answered && self.keys[key.index()].ahead;
        match may_come && !self.windows.has_copy() {
            true => Err(self.under_way(key, doing)),
            false => Ok(()),
        }
    }

    fn check_idle_as<E: Element>(&self, key: KeyId, doing: &'static str) -> Result<(), ExchangeError> {
        self.check_idle(key, doing)?;
        let Key { name, dtype, .. } = &self.layout.keys()[key.index()];
        if *dtype != E::DTYPE {
            let (key, seen, asked) = (name.clone(), dtype.name(), E::DTYPE.name());
            return Err(ExchangeError::OtherType { key, seen, asked });
        }
        Ok(())
    }

    /// Returns the round that must be pushed for all keys before this key is pushed again. Only Slim-DP has such
    /// rounds.
    pub(crate) fn awaited_before(&self, key: KeyId) -> Option<Round> {
        let coder = self.windows.coder()?;
        let former = self.keys[key.index()].round.0.checked_sub(1).map(Round);
        former.filter(|&former| coder.needs_all(former))
    }

    /// Checks that all keys were pushed for the previous round, if Slim-DP selects its significant set in
    /// that round. The selection waits for all keys of its round, and the next round waits for the selection.
    pub(super) fn check_all_pushed_before(&self, key: KeyId) -> Result<(), ExchangeError> {
        let round = self.keys[key.index()].round;
        let Some(former) = self.awaited_before(key) else { return Ok(()) };
        let missing = |key: &KeyState| key.round < former || (key.round == former && key.outstanding == 0);
        let name = |index: usize| self.layout.keys()[index].name.clone();
        match self.keys.iter().position(missing) {
            None => Ok(()),
            Some(index) => {
                Err(ExchangeError::NeedsAll { key: name(key.index()), round: round.0, missing: name(index) })
            }
        }
    }

    /// Checks that all keys are pushed for the round of a key in flight. If a key is not pushed, the key in flight gets
    /// no answer, in a job whose steps wait for the gradients of all keys.
    pub(crate) fn check_all_pushed_with(&self, key: KeyId) -> Result<(), ExchangeError> {
        let round = self.keys[key.index()].round;
        let is_unpushed =
            |other: &KeyState| other.round < round || (other.round == round && other.outstanding == 0);
        let unpushed = self.keys.iter().position(is_unpushed).filter(|_| !self.is_ready(key));
        let Some(unpushed) = unpushed else { return Ok(()) };
        let name = |index: usize| self.layout.keys()[index].name.clone();
        let why = "with clip_norm, skip_nonfinite or skip_spikes a step needs the gradients of all keys; push every key of a \
                   round before the first wait";
        Err(ExchangeError::Unpushed { key: name(key.index()), unpushed: name(unpushed), why })
    }

    /// Sends keys in this order from now on, instead of the layout's order. Only the schedule p3 follows this order.
    /// Workers may choose different orders. Keys that are not named come last.
    ///
    /// # Errors
    /// Returns an error if a key does not exist.
    pub fn need(&mut self, order: &[KeyId]) -> Result<(), ExchangeError> {
        order.iter().try_for_each(|&key| self.check_exists(key))?;
        if self.slices.schedule() != Schedule::P3 {
            return Ok(());
        }
        let mut priorities = vec![order.len() as u32; self.keys.len()];
        (0..).zip(order).for_each(|(place, key)| priorities[key.index()] = place);
        for keys in self.groups.keys() {
            // A group is sent with the priority of its first key, but is needed as soon as any of its keys is needed.
            // So the first key gets the group's best priority.
            let keys = keys.start as usize..keys.end as usize;
            let first = priorities[keys.clone()].iter().min().copied();
            first.into_iter().for_each(|first| priorities[keys.start] = first);
        }
        self.priorities = priorities;
        Ok(())
    }

    /// Returns the priority of each key, lowest first. Empty if the layout's order counts.
    pub fn priorities(&self) -> &[u32] {
        &self.priorities
    }

    /// Records from now on which keys get their last missing answer.
    pub(crate) fn note_answered(&mut self) {
        self.answered = Some(Vec::new());
    }

    /// Replaces the contents of `keys` by the keys that have got their last missing answer since the last call.
    pub(crate) fn take_answered(&mut self, keys: &mut Vec<KeyId>) {
        keys.clear();
        self.answered.iter_mut().for_each(|answered| std::mem::swap(answered, keys));
    }

    /// Returns the number of answers that a key still waits for.
    pub fn outstanding(&self, key: KeyId) -> u32 {
        self.awaited_chunks(key).count() as u32
    }

    fn awaited_chunks(&self, key: KeyId) -> impl Iterator<Item = ChunkId> {
        let chunks = self.layout.key_chunks(key).map(ChunkId);
        chunks.filter(|chunk| self.awaited[chunk.index()] != Awaited::Nothing)
    }

    /// Returns the event until which a caller should sleep that waits for this key, or for all keys. The event is the
    /// arrival of all missing answers from the core with the most missing answers.
    pub fn until(&self, key: Option<KeyId>) -> Until {
        if self.has_unsent() || self.first_awaited == Awaited::Notice {
            return Until::Any; // an answer may make room, and a pull follows a notice
        }
        let most = |owed: &[u32]| owed.iter().copied().enumerate().max_by_key(|&(_, owed)| owed);
        let most_owed = match key {
            None => most(&self.outstanding),
            Some(key) => {
                let mut owed = vec![0; self.outstanding.len()];
                self.awaited_chunks(key).for_each(|chunk| owed[self.slices.core_of(chunk)] += 1);
                most(&owed)
            }
        };
        match most_owed {
            Some((core, count)) if count > 0 => Until::Arrivals { link: self.outboxes[core].link, count },
            _ => Until::Any,
        }
    }

    /// Returns the bytes that were sent and received until now.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            sent: self.outboxes.iter().fold(self.sent_before, |sent, outbox| sent + outbox.posted_bytes),
            received: self.received,
        }
    }

    /// Returns the number of gradients that were NaN or infinite when they were encoded; 0 in a job without
    /// compression.
    pub fn not_finite(&self) -> u64 {
        self.windows.coder().map_or(0, Coder::not_finite)
    }

    /// Closes the links, and returns the memory.
    pub fn into_windows(self) -> Windows {
        self.windows
    }
}

fn in_dma_buf(layout: &Layout, key: KeyId) -> ExchangeError {
    ExchangeError::InDmaBuf { key: layout.keys()[key.index()].name.clone() }
}
