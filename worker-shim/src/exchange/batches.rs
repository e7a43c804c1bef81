//! The exchange where weights are pulled in batches of layers.
//!
//! Says when a batch is asked for and handed out; which layers are a batch is its owner's business.

use std::ops::Range;

use fabric::Port;
use pbox_core::{Immediate, KeyId};

use super::error::ExchangeError;
use super::exchange::{Exchange, KeyState};
use crate::pull::Pulls;

impl<P: Port> Exchange<P> {
    /// Pulls in batches from now on, each of these layers one by itself for the time being: keys that are needed
    /// together, in the order of the forward pass, each key once. A key's weights are lent when all of its batch are
    /// there. For a schedule that pulls, before the first push. `by_hand`: a batch that is due waits for
    /// [`pull_batch`](Self::pull_batch).
    pub fn pull_in_batches(&mut self, layers: Vec<Vec<KeyId>>, by_hand: bool) {
        assert!(self.pulls(), "the schedule {} pulls nothing", self.slices.schedule());
        self.pulls = Some(Pulls::new(layers, self.keys.len()));
        self.by_hand = by_hand;
    }

    /// Whether the schedule is one that pulls.
    pub fn pulls(&self) -> bool {
        self.slices.schedule().pulls()
    }

    /// Other batches, ranges of the layers in order, while nothing is under way.
    pub fn set_batches(&mut self, batches: &[Range<usize>]) {
        self.pulls.iter_mut().for_each(|pulls| pulls.set(batches));
    }

    /// How many batches could be pulled so far, and how many came.
    pub fn batches(&self) -> (u64, u64) {
        self.pulls.as_ref().map_or((0, 0), Pulls::counts)
    }

    /// Whether a batch could be pulled, and waits for [`pull_batch`](Self::pull_batch).
    pub fn batch_is_due(&self) -> bool {
        self.pulls.as_ref().is_some_and(Pulls::is_due)
    }

    /// Pulls the batch that is due.
    pub fn pull_batch(&mut self) -> Result<(), ExchangeError> {
        self.ask_for_batch();
        self.pump()
    }

    fn ask_for_batch(&mut self) {
        let Some(pulls) = self.pulls.as_mut().filter(|pulls| pulls.is_due()) else { return };
        for &key in pulls.pull() {
            let round = self.keys[key.index()].round;
            for slice in self.slices.of_key(key) {
                let message = Immediate::control(self.slices.chunks(slice)[0], round);
                self.outboxes[self.slices.slice(slice).core].control(message);
            }
        }
    }

    /// Whether a key that is under way can come: where weights are pulled in batches, when all that its batch
    /// waits for is pushed.
    ///
    /// # Errors
    /// When not, with a key that is missing.
    pub fn check_can_come(&self, key: KeyId) -> Result<(), ExchangeError> {
        let held = self.pulls.as_ref().filter(|pulls| pulls.holds(key));
        let Some(unpushed) = held.and_then(|pulls| pulls.unpushed_before(key)) else { return Ok(()) };
        let name = |key: KeyId| self.layout.keys()[key.index()].name.clone();
        Err(ExchangeError::Unpushed { key: name(key), unpushed: name(unpushed) })
    }

    pub(super) fn pull_if_due(&mut self) {
        if !self.by_hand {
            self.ask_for_batch();
        }
    }

    /// All of a key is there. Its batch is handed out when it is the last one of it, and the next one may be due.
    pub(super) fn take_in_batch(&mut self, key: KeyId) {
        let Exchange { pulls, keys, .. } = self;
        // Keys that were under way when this worker came were not pulled.
        let Some(pulls) = pulls.as_mut().filter(|pulls| pulls.holds(key)) else { return };
        for key in pulls.arrived(key).unwrap_or_default() {
            let state = &mut keys[key.index()];
            *state = KeyState { round: state.round.next(), outstanding: 0 };
        }
        self.pull_if_due();
    }
}
