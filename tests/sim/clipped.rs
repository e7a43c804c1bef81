//! Steps that wait for the norm of the whole gradient: what the seeds of clusters do not show by themselves.

use std::sync::Arc;

use fabric::sim::{Faults, Net};
use pbox_core::{Key, KeyId, Layout, OnLoss, Optimizer, Round};
use sim_tests::simulated::{JOB, Simulated, Terms};

/// A worker that has pushed its gradients of round 0 to two cores, of which core 0 has taken its part in, and nothing else.
fn pushed() -> Simulated {
    let layout = Arc::new(Layout::new(vec![Key::f32("a", [16]), Key::f32("b", [16])], 64).unwrap());
    let terms = Terms::new(1, 2, Optimizer::Average).with(|job| {
        (job.clip_norm, job.on_loss) = (Some(1.0), OnLoss::Continue);
    });
    let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms).unwrap();
    let worker = &mut job.workers[0];
    for key in [0, 1].map(KeyId) {
        worker.gradient_mut::<f32>(key).unwrap().fill(3.0);
        worker.put(key).unwrap();
    }
    worker.flush().unwrap();
    while job.turn_core(0) && job.cores[0].tally().arrivals == 0 {}
    job
}

fn lowest(job: &mut Simulated, core: usize) -> Round {
    job.cores[core].hold(JOB).unwrap().lowest
}

#[test]
fn a_round_that_is_found_steps_at_every_core_also_for_a_worker_that_is_lost() {
    let mut job = pushed();
    job.turn_core(1);
    let mut notices = Vec::new();
    job.cores[0].remove_worker(JOB, 0, &mut notices);
    assert_eq!([0, 1].map(|core| lowest(&mut job, core)), [Round(1); 2]);
}

#[test]
fn a_hold_takes_back_what_is_not_found_and_no_more() {
    let mut job = pushed();
    assert_eq!(job.cores[0].hold(JOB).unwrap().highest, Round(0));
    job.turn_core(1);
    assert_eq!(job.cores[1].hold(JOB).unwrap().highest, Round(0), "core 0 has taken its part back");

    let mut job = pushed();
    job.turn_core(1);
    let front = job.cores[0].hold(JOB).unwrap();
    assert_eq!((front.lowest, front.highest), (Round(0), Round(1)), "the round is as good as over");
}
