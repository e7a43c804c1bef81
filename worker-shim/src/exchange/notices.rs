//! Arrivals that are not plain answers. Some are notices of a schedule that pulls, or requests to push a chunk again.
//! Other arrivals are answers before the first round is known, or violations of the protocol.
//!
//! Part of the exchange, on the worker's thread. Does not depend on which keys are pulled together.

use fabric::{LinkId, Port};
use pbox_core::{ChunkId, Content, Immediate, KeyId};

use super::error::ExchangeError;
use super::exchange::{Awaited, Exchange};
use super::outbox::{NO_BYTES, Urgent};

/// The party that pulls weights after the hub's notice.
#[derive(Debug)]
pub(super) enum Pulls {
    /// The exchange pulls at once.
    AtOnce,
    /// The owner of the exchange pulls, and releases each key to the callers when its batch is complete. The list has a key for
    /// each notice that the owner has not taken yet.
    ByOwner(Vec<KeyId>),
}

impl<P: Port> Exchange<P> {
    /// Makes the owner of the exchange [pull](Self::pull) keys and [release](Self::hand_out) them to callers from now
    /// on. [`take_notices`](Self::take_notices) tells the owner when it can pull, and [`is_whole`](Self::is_whole) when
    /// it can release.
    ///
    /// # Panics
    /// Panics if the schedule pulls nothing, or while a key is in flight.
    pub fn let_owner_pull(&mut self) {
        let schedule = self.slices.schedule();
        assert!(schedule.pulls(), "the schedule {schedule} pulls nothing");
        assert_eq!(self.first_under_way(), None, "pulls change between rounds");
        self.pulls = Pulls::ByOwner(Vec::with_capacity(self.slices.count()));
        self.hand_outs = 1;
    }

    /// Calls `take` for each slice that has become ready to pull since the last call, with the key of the
    /// slice.
    pub fn take_notices(&mut self, take: impl FnMut(KeyId)) {
        if let Pulls::ByOwner(noticed) = &mut self.pulls {
            noticed.drain(..).for_each(take);
        }
    }

    /// Whether all answers of a key have arrived, and the key is not released to callers yet.
    pub fn is_whole(&self, key: KeyId) -> bool {
        self.hand_outs == 1 && self.keys[key.index()].outstanding == 1
    }

    /// Asks the hub for the weights of these keys. The hub must have sent a notice for each slice of these keys.
    ///
    /// # Errors
    /// Returns an error if a link is closed.
    pub fn pull(&mut self, keys: &[KeyId]) -> Result<(), ExchangeError> {
        for &key in keys {
            self.slices.of_key(key).for_each(|slice| self.pull_slice(slice));
        }
        self.post_queued()
    }

    /// Releases a key to callers, after all its answers have arrived. The key is then no longer in flight.
    pub fn hand_out(&mut self, key: KeyId) {
        let state = &mut self.keys[key.index()];
        *state = state.next();
        self.answered.iter_mut().for_each(|answered| answered.push(key));
    }

    /// Returns the number of slices in which a key is pulled.
    pub fn slices_of_key(&self, key: KeyId) -> usize {
        self.slices.of_key(key).len()
    }

    /// Handles an arrival that is not the answer that its chunk awaits now.
    ///
    /// # Errors
    /// Returns an error if the arrival breaks the protocol.
    #[cold]
    pub(super) fn take_notice(&mut self, link: LinkId, arrival: Immediate) -> Result<(), ExchangeError> {
        let Immediate { chunk, round_bits, content } = arrival;
        let unexpected =
            |expected: String| Err(ExchangeError::UnexpectedAnswer { chunk: chunk.0, round_bits, expected });
        if content == Content::Ahead && self.may_come_ahead(link, arrival) {
            return Ok(());
        }
        if let Some(hub) = arrival.hub() {
            return match self.take_norm_part(link, hub, arrival) {
                true => Ok(()),
                false => unexpected(
                    "but only the core of a hub's first chunk may send the hub's part of a norm".into(),
                ),
            };
        }
        if let Some(early) = &mut self.early {
            if early.len() == self.awaited.len() {
                return unexpected("where at most one answer for each chunk was expected".into());
            }
            early.push((link, arrival));
            return Ok(());
        }
        let awaited = match self.awaited.get(chunk.index()) {
            None | Some(Awaited::Nothing) => {
                return unexpected("of which no push is in flight".into());
            }
            Some(&awaited) => awaited,
        };
        let (core, key) = (self.slices.core_of(chunk), self.layout.chunk(chunk).key);
        let round = self.keys[key.index()].round;
        if awaited == Awaited::AnswerOrNotice && arrival == Immediate::new(chunk, round).with(content) {
            self.awaited[chunk.index()] = Awaited::Answer;
            return self.take_arrival(link, arrival);
        }
        if link == self.outboxes[core].link && arrival == Immediate::control(chunk, round) {
            if matches!(awaited, Awaited::Notice | Awaited::NoticeAgain | Awaited::AnswerOrNotice) {
                if !self.notice_slice(chunk, key) {
                    return unexpected("where a notice names the first chunk of its layer".into());
                }
                return Ok(());
            }
            if self.windows.coder_mut().is_some_and(|coder| coder.push_again(chunk)) {
                self.outboxes[core].urgent.push_back(Urgent::Resend(key, chunk));
                return Ok(());
            }
        }
        let kind =
            if matches!(awaited, Awaited::Notice | Awaited::NoticeAgain) { "a notice" } else { "an answer" };
        unexpected(format!("where {kind} was expected for round {} over the link of core {core}", round.0))
    }

    /// Handles the hub's notice that the weights of a slice can be pulled. The notice is a post without
    /// bytes. Returns false if `chunk` is not the slice's first chunk.
    fn notice_slice(&mut self, chunk: ChunkId, key: KeyId) -> bool {
        let slice = self.slices.of_chunk(chunk);
        let chunks = self.slices.chunks(slice);
        if chunks[0] != chunk {
            return false;
        }
        let former = self.awaited[chunk.index()];
        chunks.iter().for_each(|chunk| self.awaited[chunk.index()] = Awaited::Pull);
        match (former, &mut self.pulls) {
            (Awaited::NoticeAgain, _) => {}
            (Awaited::Notice, Pulls::ByOwner(noticed)) => noticed.push(key),
            _ => self.pull_slice(slice),
        }
        true
    }

    /// Pulls a slice. If links were lost after the notice, the hub must first send its notice again, and the slice is
    /// pulled when that notice arrives.
    fn pull_slice(&mut self, slice: u32) {
        let chunks = self.slices.chunks(slice);
        let first = chunks[0];
        let later = self.awaited[first.index()] == Awaited::NoticeAgain;
        let awaited = if later { Awaited::AnswerOrNotice } else { Awaited::Answer };
        chunks.iter().for_each(|chunk| self.awaited[chunk.index()] = awaited);
        if later {
            return;
        }
        let pulled = self.slices.slice(slice);
        let message = Immediate::control(first, self.keys[pulled.key.index()].round);
        self.outboxes[pulled.core].urgent.push_back(Urgent::Post(NO_BYTES, message));
    }
}
