//! The state of a worker's batches: the batch that is pulled next, and the notices and keys that each batch still
//! needs.
//!
//! Owned by the owner of the exchange that pulls the batches. Counts notices and complete keys. Has no clock, and does
//! not decide which batches are good.
//!
//! ```text
//!   a batch:  waits --all its slices have notices, the previous batch has arrived--> due --> pulled --> released
//! ```
//!
//! Batches are pulled one after another, in the order of the forward pass, round after round. All keys of a batch are released
//! to callers together, when all of them have arrived (iBatch; docs/design/schedules-and-pulls.md).

use std::ops::Range;

use fabric::Port;
use pbox_core::KeyId;

use crate::exchange::{Exchange, ExchangeError};

/// The batches of a worker's layers, and their progress.
#[derive(Debug)]
pub struct Batches {
    /// The layers, in the order of the forward pass. The keys of a layer are needed together.
    layers: Vec<Vec<KeyId>>,
    batches: Vec<Batch>,
    /// The batch of each key, by key.
    batch_of: Vec<usize>,
    /// The number of slices of each key, for each of which the hub sends a notice.
    slices: Vec<usize>,
    /// The batch that is pulled next, or is being pulled.
    at: usize,
    stage: Stage,
    counts: Counts,
}

/// The number of batches since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of batches that have become due: all their notices have arrived, and the previous batch has arrived.
    pub due: u64,
    /// The number of batches whose keys were released to callers.
    pub there: u64,
}

#[derive(Debug)]
struct Batch {
    keys: Vec<KeyId>,
    /// The number of slices for which the hub has sent no notice yet.
    unnoticed: usize,
    /// The number of keys at the batch's beginning that have all arrived.
    whole: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    Due,
    Pulled,
}

impl Batches {
    /// Pulls through `exchange` in batches from now on. At first each layer is a batch. A layer has the keys
    /// that are needed together. The layers are in the order of the forward pass, and have each key once.
    ///
    /// # Panics
    /// Panics if the exchange's schedule pulls nothing, or while a key is in flight.
    pub fn begin<P: Port>(layers: Vec<Vec<KeyId>>, exchange: &mut Exchange<P>) -> Self {
        exchange.let_owner_pull();
        let keys = (0..exchange.layout().keys().len() as u32).map(KeyId);
        Self::new(layers, keys.map(|key| exchange.slices_of_key(key)).collect())
    }

    fn new(layers: Vec<Vec<KeyId>>, slices: Vec<usize>) -> Self {
        let each: Vec<_> = (0..layers.len()).map(|layer| layer..layer + 1).collect();
        let (batches, batch_of) = (Vec::new(), vec![0; slices.len()]);
        let (stage, counts) = (Stage::Waits, Counts::default());
        let mut batches = Batches { layers, batches, batch_of, slices, at: 0, stage, counts };
        batches.set(&each);
        batches
    }

    /// Sets the batches from now on, as ranges of layers. Together the ranges contain all layers, in order.
    ///
    /// # Panics
    /// Panics within a round.
    pub fn set(&mut self, ranges: &[Range<usize>]) {
        let is_fresh = |batch: &Batch| batch.unnoticed == self.unnoticed(&batch.keys);
        assert!(self.batches.iter().all(is_fresh), "batches change between rounds");
        let keys = |range: &Range<usize>| self.layers[range.clone()].concat();
        let batch = |keys: Vec<KeyId>| Batch { unnoticed: self.unnoticed(&keys), whole: 0, keys };
        self.batches = ranges.iter().map(|range| batch(keys(range))).collect();
        self.at = 0;
        for (number, batch) in self.batches.iter().enumerate() {
            batch.keys.iter().for_each(|key| self.batch_of[key.index()] = number);
        }
    }

    fn unnoticed(&self, keys: &[KeyId]) -> usize {
        keys.iter().map(|key| self.slices[key.index()]).sum()
    }

    /// Handles the exchange's notices. Releases the keys of the batch that is being pulled, if all of them have
    /// arrived.
    pub fn take_news<P: Port>(&mut self, exchange: &mut Exchange<P>) {
        exchange.take_notices(|key| self.count_notice(key));
        let there = self.take_whole(|key| exchange.is_whole(key));
        there.unwrap_or_default().iter().for_each(|&key| exchange.hand_out(key));
    }

    /// Counts the notice that a slice of a key can be pulled.
    fn count_notice(&mut self, key: KeyId) {
        self.batches[self.batch_of[key.index()]].unnoticed -= 1;
        self.check_due();
    }

    /// Returns the keys of the batch that is being pulled, if all of them have arrived. Then continues with the next
    /// batch.
    fn take_whole(&mut self, is_whole: impl Fn(KeyId) -> bool) -> Option<&[KeyId]> {
        let number = self.at;
        let batch = &mut self.batches[number];
        if self.stage != Stage::Pulled {
            return None;
        }
        batch.whole += batch.keys[batch.whole..].iter().take_while(|&&key| is_whole(key)).count();
        if batch.whole < batch.keys.len() {
            return None;
        }
        batch.whole = 0;
        let unnoticed = self.unnoticed(&self.batches[number].keys);
        self.batches[number].unnoticed = unnoticed;
        self.counts.there += 1;
        self.at = (number + 1) % self.batches.len();
        self.stage = Stage::Waits;
        self.check_due();
        Some(&self.batches[number].keys)
    }

    fn check_due(&mut self) {
        if self.stage == Stage::Waits && self.batches[self.at].unnoticed == 0 {
            self.stage = Stage::Due;
            self.counts.due += 1;
        }
    }

    /// Whether a batch can be pulled, and its pull has not begun.
    pub fn is_due(&self) -> bool {
        self.stage == Stage::Due
    }

    /// Pulls the batch that is due, if a batch is due.
    pub fn pull<P: Port>(&mut self, exchange: &mut Exchange<P>) -> Result<(), ExchangeError> {
        if !self.is_due() {
            return Ok(());
        }
        self.stage = Stage::Pulled;
        exchange.pull(&self.batches[self.at].keys)
    }

    /// Returns how many batches have been due, and how many have been released.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Checks that a key in flight can arrive: all keys that its batch waits for are pushed.
    ///
    /// # Errors
    /// Returns an error that names a key that is not pushed.
    pub fn check_can_come<P: Port>(&self, key: KeyId, exchange: &Exchange<P>) -> Result<(), ExchangeError> {
        let unpushed = self.unpushed_before(key, |key| !exchange.is_ready(key));
        let Some(unpushed) = unpushed.filter(|_| !exchange.is_ready(key)) else { return Ok(()) };
        let name = |key: KeyId| exchange.layout().keys()[key.index()].name.clone();
        let why = "weights are pulled in batches; push every key of a round before the first wait, or leave out batches";
        Err(ExchangeError::Unpushed { key: name(key), unpushed: name(unpushed), why })
    }

    /// Returns a key that must be pushed before `key`, which is in flight, can arrive.
    fn unpushed_before(&self, key: KeyId, is_under_way: impl Fn(KeyId) -> bool) -> Option<KeyId> {
        let until = self.batch_of[key.index()];
        let before = self.batches.get(self.at..=until).unwrap_or_default();
        before.iter().flat_map(|batch| &batch.keys).copied().find(|&key| !is_under_way(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(ranges: &[Range<usize>]) -> Batches {
        let mut batches = Batches::new((0..3).map(|key| vec![KeyId(key)]).collect(), vec![2; 3]);
        batches.set(ranges);
        batches
    }

    #[test]
    fn batches_are_pulled_back_to_back_once_they_are_noticed() {
        let mut batches = batches(&[0..2, 2..3]);
        for round in 0..3 {
            for key in [2, 2, 1, 0, 0].map(KeyId) {
                batches.count_notice(key);
                assert!(
                    !batches.is_due(),
                    "a slice of the first batch is missing, and it is not the second's turn"
                );
            }
            batches.count_notice(KeyId(1));
            assert!(batches.is_due());
            assert_eq!(batches.batches[batches.at].keys, [KeyId(0), KeyId(1)]);
            batches.stage = Stage::Pulled;
            assert_eq!(batches.take_whole(|key| key == KeyId(1)), None);
            assert_eq!(batches.take_whole(|key| key == KeyId(0)), None, "the other one is missing now");
            assert_eq!(batches.counts(), Counts { due: 2 * round + 1, there: 2 * round });
            assert_eq!(batches.take_whole(|_| true), Some(&[KeyId(0), KeyId(1)][..]));
            assert!(batches.is_due(), "the next one was noticed long ago");
            assert_eq!(batches.batches[batches.at].keys, [KeyId(2)]);
            batches.stage = Stage::Pulled;
            assert_eq!(batches.take_whole(|_| true), Some(&[KeyId(2)][..]));
            assert!(!batches.is_due());
            assert_eq!(batches.take_whole(|_| true), None, "nothing is pulled");
        }
        assert_eq!(batches.counts(), Counts { due: 6, there: 6 });
    }

    #[test]
    fn a_key_that_waits_for_one_that_is_not_pushed() {
        let batches = batches(&[0..1, 1..3]);
        let unpushed_before = |key, pushed: &[u32]| {
            batches.unpushed_before(KeyId(key), |key| pushed.contains(&key.0)).map(|key| key.0)
        };
        assert_eq!(unpushed_before(2, &[2]), Some(0));
        assert_eq!(unpushed_before(2, &[2, 0]), Some(1), "of its own batch");
        assert_eq!(unpushed_before(0, &[2, 0]), None);
        assert_eq!(unpushed_before(2, &[2, 0, 1]), None);
    }

    #[test]
    #[should_panic(expected = "batches change between rounds")]
    fn batches_do_not_change_in_a_round() {
        let mut batches = batches(&[0..1, 1..3]);
        batches.count_notice(KeyId(1));
        batches.set(&[0..1, 1..2, 2..3]);
    }
}
