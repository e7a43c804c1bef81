//! Groups of small neighbouring keys. If a group's keys are pushed together, one post carries them in each
//! direction. The weights are the same as without groups.

use std::sync::Arc;

use fabric::sim::{Faults, Net};
use hub_tests::simulated::{Simulated, Terms};
use hub_tests::trouble::{Dice, optimizer};
use pbox_core::codec::Codec;
use pbox_core::{
    Compression, JobId, Key, KeyId, Layout, Notice, Occasion, Optimizer, Round, Schedule, Selection,
};

const WORKERS: u32 = 3;
/// The number of elements of each small key. A chunk has room for four.
const ELEMENTS: u64 = 16;

/// Returns nine small keys, with a long key between them. They form groups of four, one and four keys. The
/// last group has two learning rates.
fn layout() -> Arc<Layout> {
    let small = |key: usize| Key::f32(format!("k{key}"), [ELEMENTS]);
    let keys = (0..4).map(small).chain([Key::f32("long", [100])]).chain((5..10).map(small));
    let mut keys = Vec::from_iter(keys);
    keys[8].lr_mult = 0.5;
    let layout = Layout::new(keys, 4 * ELEMENTS as usize * 4).unwrap();
    assert_eq!(layout.groups(), [0..4, 6..10]);
    Arc::new(layout)
}

fn job(change: impl FnOnce(&mut pbox_core::JobTerms)) -> Simulated {
    let terms = Terms::new(WORKERS, 1, Optimizer::Average).with(change);
    Simulated::new(Net::new(1, Faults::NONE), &layout(), terms).unwrap()
}

/// The way in which a worker pushes a list of keys in a round.
#[derive(Clone, Copy)]
enum How {
    /// All keys together, in the order in which one post can send them.
    Together,
    /// One after another.
    Apart,
    /// All keys together, the last key first.
    Backwards,
}

/// Makes a round in which rank r pushes r + `round`, and checks the means. Returns the number of posts to the
/// hub and to the workers.
fn round(job: &mut Simulated, round: u32, how: [How; WORKERS as usize]) -> (u64, u64) {
    let counts = |job: &Simulated| {
        let to_hub = job.cores.iter().map(|core| core.tally().arrivals).sum::<u64>();
        (to_hub, job.arrivals.iter().sum::<u64>())
    };
    let before = counts(job);
    let keys: Vec<KeyId> = (0..10).map(KeyId).collect();
    for (how, rank) in how.into_iter().zip(0..) {
        let worker = &mut job.workers[rank as usize];
        for &key in &keys {
            worker.gradient_mut::<f32>(key).unwrap().fill((rank + round) as f32);
        }
        match how {
            How::Together => keys.iter().for_each(|&key| worker.put(key).unwrap()),
            How::Apart => keys.iter().for_each(|&key| worker.push(key).unwrap()),
            How::Backwards => keys.iter().rev().for_each(|&key| worker.put(key).unwrap()),
        }
        worker.flush().unwrap();
        // The hub handles these pushes before those of the next worker.
        (0..100).for_each(|_| _ = job.step().unwrap());
    }
    job.settle(100).unwrap();
    for worker in &job.workers {
        for &key in &keys {
            assert!(worker.is_ready(key), "key {} of round {round}", key.0);
            assert!(worker.weights::<f32>(key).unwrap().iter().all(|&mean| mean == (1 + round) as f32));
        }
    }
    let after = counts(job);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn keys_that_are_pushed_together_cross_in_one_post() {
    use How::{Apart, Backwards, Together};
    // `POSTS` counts two chunks of the long key, one small key without a group, and two groups. `ALONE`
    // counts the two chunks and nine small keys.
    const POSTS: u64 = 5;
    const ALONE: u64 = 11;
    let mut job = job(|_| {});
    assert_eq!(round(&mut job, 0, [Together; 3]), (3 * POSTS, 3 * POSTS));
    assert_eq!(round(&mut job, 1, [Backwards; 3]), (3 * POSTS, 3 * POSTS));
    assert_eq!(round(&mut job, 2, [Apart; 3]), (3 * ALONE, 3 * ALONE));
    // The last push of each chunk answers all workers, however they have pushed.
    assert_eq!(round(&mut job, 3, [Apart, Together, Backwards]), (ALONE + 2 * POSTS, 3 * POSTS));
    assert_eq!(round(&mut job, 4, [Together, Backwards, Apart]), (ALONE + 2 * POSTS, 3 * ALONE));
}

#[test]
fn keys_of_different_rounds_and_of_modes_without_groups_leave_one_by_one() {
    let mut job = job(|_| {});
    // One key of a group is a round ahead.
    let ahead = KeyId(7);
    for worker in &mut job.workers {
        worker.push(ahead).unwrap();
    }
    job.settle(100).unwrap();
    assert_eq!(round(&mut job, 1, [How::Together; 3]).0, 3 * 8, "a group is whole, and the other is not");
    let coded = |terms: &mut pbox_core::JobTerms| {
        terms.level.compression = Some(Compression::Codec(Codec::Bf16));
    };
    assert_eq!(round(&mut self::job(coded), 0, [How::Together; 3]), (33, 33));
    let by_layer = |terms: &mut pbox_core::JobTerms| terms.level.schedule = Schedule::Layerwise;
    assert_eq!(round(&mut self::job(by_layer), 0, [How::Together; 3]), (33, 33));
}

/// Returns the bits of all weights after six rounds, and of a snapshot before round 4, with averages. `how`
/// returns how a rank pushes in a round.
fn bits((optimizer, ema): (Optimizer, Option<f64>), how: impl Fn(u32, u32) -> How) -> Vec<u32> {
    let mut job = job(|terms| (terms.optimizer, terms.ema) = (optimizer, ema));
    let keys = || (0..10).map(KeyId);
    job.cores[0].take_snapshot(JobId(0), Occasion::Asked(1, Selection::All), Round(4), &mut job.notices);
    for round in 0..6 {
        for rank in 0..WORKERS {
            let worker = &mut job.workers[rank as usize];
            for key in keys() {
                let value =
                    |element: usize| (1 + key.0 * 31 + rank * 7 + round) as f32 / (element + 3) as f32;
                let gradient = worker.gradient_mut::<f32>(key).unwrap();
                gradient.iter_mut().enumerate().for_each(|(element, of)| *of = value(element));
            }
            match how(round, rank) {
                How::Apart => keys().for_each(|key| worker.push(key).unwrap()),
                How::Together => keys().for_each(|key| worker.put(key).unwrap()),
                How::Backwards => keys().rev().for_each(|key| worker.put(key).unwrap()),
            }
            worker.flush().unwrap();
        }
        job.settle(1000).unwrap();
    }
    let [Notice::Snapshot { taken, .. }] = &job.notices[..] else { panic!("{:?}", job.notices) };
    let (worker, part) = (&job.workers[0], taken.part.as_ref().unwrap());
    let weights = keys().flat_map(|key| worker.weights::<f32>(key).unwrap());
    weights.chain(part.values.as_slice()).map(|value| value.to_bits()).collect()
}

#[test]
fn a_group_that_steps_as_one_makes_the_bits_of_its_keys() {
    use How::{Apart, Backwards, Together};
    let mut dice = Dice::new(1);
    let by_dice = (0..20).map(|_| {
        let optimizer = optimizer(&mut dice);
        let is_averaged = optimizer.keeps_weights() && dice.below(2) == 0;
        (optimizer, is_averaged.then_some(0.9))
    });
    let plain = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };
    for optimizer in by_dice.chain([(plain, Some(0.9))]) {
        let apart = bits(optimizer, |_, _| Apart);
        assert_eq!(bits(optimizer, |_, _| Together), apart, "{optimizer:?}");
        let turns = [Together, Apart, Backwards, Together, Together];
        assert_eq!(
            bits(optimizer, |round, rank| turns[(round * 3 + rank) as usize % 5]),
            apart,
            "{optimizer:?}"
        );
        let rounds = [Together, Apart];
        assert_eq!(bits(optimizer, |round, _| rounds[round as usize % 2]), apart, "{optimizer:?}");
    }
}
