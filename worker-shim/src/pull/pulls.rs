//! Pulls in batches of layers: which of a worker's weights are asked for next, where they are pulled at all.
//!
//! Owned by the exchange. Counts what is pushed, noticed and there; no link, no clock, and no opinion of which batches
//! are good ones.
//!
//! ```text
//!   a batch:  waits --all its keys are pushed and noticed, the batch before is there--> due --> pulled --> there
//! ```
//!
//! Batches are pulled one after the other, in the order of the forward pass, and round after round. A batch is one
//! communication: its keys are handed out together, when all of it is there (iBatch; decision 19).

use std::ops::Range;

use pbox_core::KeyId;

/// The batches of a worker's layers, and how far they are.
#[derive(Debug)]
pub(crate) struct Pulls {
    /// Keys that are needed together, in the order of the forward pass.
    layers: Vec<Vec<KeyId>>,
    batches: Vec<Batch>,
    /// By key.
    batch_of: Vec<usize>,
    /// By key: it is pushed, and not handed out.
    held: Vec<bool>,
    /// The batch that is pulled next, or is on its way.
    at: usize,
    stage: Stage,
    /// Batches that were due, and that came, since the beginning.
    counts: (u64, u64),
}

#[derive(Debug)]
struct Batch {
    keys: Vec<KeyId>,
    unpushed: usize,
    /// Slices that are pushed, and that the hub has not said to be there.
    unnoticed: usize,
    missing: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waits,
    Due,
    Pulled,
}

impl Pulls {
    /// Of layers that have each of so many keys once; each a batch by itself.
    pub fn new(layers: Vec<Vec<KeyId>>, keys: usize) -> Self {
        let each: Vec<_> = (0..layers.len()).map(|layer| layer..layer + 1).collect();
        let (batches, batch_of, held) = (Vec::new(), vec![0; keys], vec![false; keys]);
        let mut pulls = Pulls { layers, batches, batch_of, held, at: 0, stage: Stage::Waits, counts: (0, 0) };
        pulls.set(&each);
        pulls
    }

    /// These batches from now on, which are all layers in order.
    ///
    /// # Panics
    /// When something is under way.
    pub fn set(&mut self, batches: &[Range<usize>]) {
        assert!(!self.held.contains(&true), "batches change between rounds");
        self.at = 0;
        let keys = |range: &Range<usize>| self.layers[range.clone()].concat();
        self.batches = batches.iter().map(|range| Batch::new(keys(range))).collect();
        for (number, batch) in self.batches.iter().enumerate() {
            batch.keys.iter().for_each(|key| self.batch_of[key.index()] = number);
        }
    }

    /// A key is pushed, in so many slices.
    pub fn pushed(&mut self, key: KeyId, slices: usize) {
        self.held[key.index()] = true;
        let batch = &mut self.batches[self.batch_of[key.index()]];
        batch.unpushed -= 1;
        batch.unnoticed += slices;
    }

    /// A slice of a key can be pulled.
    pub fn noticed(&mut self, key: KeyId) {
        self.batches[self.batch_of[key.index()]].unnoticed -= 1;
        self.look();
    }

    /// All of a key is there: the keys of its batch, when it is the last of them.
    pub fn arrived(&mut self, key: KeyId) -> Option<&[KeyId]> {
        let number = self.batch_of[key.index()];
        let batch = &mut self.batches[number];
        batch.missing -= 1;
        if batch.missing > 0 {
            return None;
        }
        (batch.unpushed, batch.missing) = (batch.keys.len(), batch.keys.len());
        batch.keys.iter().for_each(|key| self.held[key.index()] = false);
        self.counts.1 += 1;
        self.at = (number + 1) % self.batches.len();
        self.stage = Stage::Waits;
        self.look();
        Some(&self.batches[number].keys)
    }

    fn look(&mut self) {
        let batch = &self.batches[self.at];
        if self.stage == Stage::Waits && batch.unpushed == 0 && batch.unnoticed == 0 {
            self.stage = Stage::Due;
            self.counts.0 += 1;
        }
    }

    /// Whether a batch can be pulled and is not yet.
    pub fn is_due(&self) -> bool {
        self.stage == Stage::Due
    }

    /// The keys of the batch that is due, which is pulled now.
    pub fn pull(&mut self) -> &[KeyId] {
        self.stage = Stage::Pulled;
        &self.batches[self.at].keys
    }

    /// How many batches were due, and how many came, since the beginning.
    pub fn counts(&self) -> (u64, u64) {
        self.counts
    }

    /// Whether a key is pushed and not handed out.
    pub fn holds(&self, key: KeyId) -> bool {
        self.held[key.index()]
    }

    /// A key that has to be pushed before this one, which is held, can come.
    pub fn unpushed_before(&self, key: KeyId) -> Option<KeyId> {
        let until = self.batch_of[key.index()];
        let before = self.batches.get(self.at..=until).unwrap_or_default();
        before.iter().flat_map(|batch| &batch.keys).copied().find(|&key| !self.holds(key))
    }
}

impl Batch {
    fn new(keys: Vec<KeyId>) -> Self {
        let count = keys.len();
        Batch { keys, unpushed: count, unnoticed: 0, missing: count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulls(batches: &[Range<usize>]) -> Pulls {
        let mut pulls = Pulls::new((0..3).map(|key| vec![KeyId(key)]).collect(), 3);
        pulls.set(batches);
        pulls
    }

    #[test]
    fn batches_are_pulled_back_to_back_once_they_are_noticed() {
        let mut pulls = pulls(&[0..2, 2..3]);
        for _round in 0..3 {
            for key in [2, 1, 0].map(KeyId) {
                pulls.pushed(key, 2);
                assert!(pulls.holds(key));
            }
            for key in [2, 2, 1, 0, 0].map(KeyId) {
                pulls.noticed(key);
                assert!(
                    !pulls.is_due(),
                    "a slice of the first batch is missing, and the second is not its turn"
                );
            }
            pulls.noticed(KeyId(1));
            assert!(pulls.is_due());
            assert_eq!(pulls.pull(), [KeyId(0), KeyId(1)]);
            assert!(!pulls.is_due(), "once");
            assert_eq!(pulls.arrived(KeyId(1)), None);
            assert_eq!(pulls.arrived(KeyId(0)), Some(&[KeyId(0), KeyId(1)][..]));
            assert!(!pulls.holds(KeyId(0)) && pulls.holds(KeyId(2)));
            assert!(pulls.is_due(), "the next one was noticed long ago");
            assert_eq!(pulls.pull(), [KeyId(2)]);
            assert_eq!(pulls.arrived(KeyId(2)), Some(&[KeyId(2)][..]));
        }
        assert_eq!(pulls.counts(), (6, 6));
    }

    #[test]
    fn a_key_that_waits_for_one_that_is_not_pushed() {
        let mut pulls = pulls(&[0..1, 1..3]);
        pulls.pushed(KeyId(2), 1);
        assert_eq!(pulls.unpushed_before(KeyId(2)), Some(KeyId(0)));
        pulls.pushed(KeyId(0), 1);
        assert_eq!(pulls.unpushed_before(KeyId(2)), Some(KeyId(1)), "of its own batch");
        assert_eq!(pulls.unpushed_before(KeyId(0)), None);
        pulls.pushed(KeyId(1), 1);
        assert_eq!(pulls.unpushed_before(KeyId(2)), None);
    }

    #[test]
    #[should_panic(expected = "batches change between rounds")]
    fn batches_do_not_change_in_a_round() {
        let mut pulls = pulls(&[0..1, 1..3]);
        pulls.pushed(KeyId(1), 1);
        pulls.set(&[0..1, 1..2, 2..3]);
    }
}
