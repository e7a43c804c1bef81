//! Groups: neighbouring small keys that are pushed together cross in one post, each way, and give the same weights.

use std::sync::Arc;

use fabric::sim::{Faults, Net};
use hub_tests::simulated::{Simulated, Terms};
use pbox_core::codec::Codec;
use pbox_core::{Compression, Key, KeyId, Layout, Optimizer, Schedule};

const WORKERS: u32 = 3;
/// Of each small key. A chunk has room for four.
const ELEMENTS: u64 = 16;

/// Nine small keys, a long one between them: groups of four, one and four.
fn layout() -> Arc<Layout> {
    let small = |key: usize| Key::f32(format!("k{key}"), [ELEMENTS]);
    let keys = (0..4).map(small).chain([Key::f32("long", [100])]).chain((5..10).map(small));
    let layout = Layout::new(keys.collect(), 4 * ELEMENTS as usize * 4).unwrap();
    assert_eq!(layout.groups(), [0..4, 6..10]);
    Arc::new(layout)
}

fn job(change: impl FnOnce(&mut pbox_core::JobTerms)) -> Simulated {
    let terms = Terms::new(WORKERS, 1, Optimizer::Average).with(change);
    Simulated::new(Net::new(1, Faults::NONE), &layout(), terms).unwrap()
}

/// What a worker does with a list of keys in a round.
#[derive(Clone, Copy)]
enum How {
    /// All, in this order, as they are to leave together.
    Together,
    /// One after another.
    Apart,
    /// Together, the last first.
    Backwards,
}

/// Makes a round, in which worker r pushes r + `round`, and checks the means. Returns the posts to the hub and to the workers.
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
        // The hub takes them before the next worker's.
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
    // The long key has two chunks, and one small key is in no group.
    const POSTS: u64 = 5;
    const ALONE: u64 = 11;
    let mut job = job(|_| {});
    assert_eq!(round(&mut job, 0, [Together; 3]), (3 * POSTS, 3 * POSTS));
    assert_eq!(round(&mut job, 1, [Backwards; 3]), (3 * POSTS, 3 * POSTS));
    assert_eq!(round(&mut job, 2, [Apart; 3]), (3 * ALONE, 3 * ALONE));
    // The last push of all chunks answers all workers, however they pushed.
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
