//! Two snapshots before the same round. The second snapshot is refused, and does not affect the first
//! snapshot.

use std::sync::Arc;

use fabric::sim::{Faults, Net};
use hub_tests::simulated::{Simulated, Terms};
use hub_tests::{FIRST, SECOND, SGD};
use pbox_core::{JobId, Key, Layout, Notice, Occasion, Round, Selection};

const ELEMENTS: usize = 16;

#[test]
fn a_snapshot_that_is_refused_leaves_the_one_under_way_as_it_is() {
    let keys = vec![Key::f32("first", [ELEMENTS as u64]), Key::f32("second", [ELEMENTS as u64])];
    let layout = Arc::new(Layout::new(keys, ELEMENTS * 4).unwrap());
    let terms = Terms::new(1, 1, SGD);
    let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms).unwrap();
    let push = |job: &mut Simulated, key, value: f32| {
        job.workers[0].gradient_mut::<f32>(key).unwrap().fill(value);
        job.workers[0].push(key).unwrap();
        job.settle(100).unwrap();
        job.step().unwrap(); // the core reports the results of snapshots in its next turn
    };
    // In round 0 the worker pushes the first weights.
    push(&mut job, FIRST, 5.0);
    for number in [1, 2] {
        job.cores[0].take_snapshot(
            JobId(0),
            Occasion::Asked(number, Selection::All),
            Round(1),
            &mut job.notices,
        );
    }
    let [Notice::Snapshot { taken, .. }] = &job.notices[..] else { panic!("{:?}", job.notices) };
    assert_eq!(taken.occasion, Occasion::Asked(2, Selection::All), "the first one waits for the second key");
    assert!(taken.part.as_ref().unwrap_err().contains("not written yet"));
    job.notices.clear();
    push(&mut job, SECOND, 7.0);
    let [Notice::Snapshot { taken, .. }] = &job.notices[..] else { panic!("{:?}", job.notices) };
    assert_eq!((taken.occasion, taken.before), (Occasion::Asked(1, Selection::All), Round(1)));
    let expected = [[5.0; ELEMENTS], [7.0; ELEMENTS]].concat();
    assert_eq!(taken.part.as_ref().unwrap().values.as_slice(), expected);
}
