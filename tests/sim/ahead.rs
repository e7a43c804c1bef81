//! Answers ahead: weights arrive before the pushes that they answer. Events between an answer and its push change no
//! bit of the results.

use std::sync::Arc;

use fabric::sim::{Faults, Net};
use pbox_core::kernels::Numbers;
use pbox_core::{Content, Core, Key, KeyId, Layout, OnLoss, Optimizer, Round};
use sim_tests::says;
use sim_tests::simulated::{JOB, Simulated, Terms};
use sim_tests::values::same_bits;

const KEY: KeyId = KeyId(0);
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.25, momentum: 0.75, weight_decay: 0.125 };

/// Returns two workers that have made the broadcast and a round, and have sent the next gradients ahead of
/// their pushes. All gradients have arrived.
fn sent_ahead(answers_ahead: bool) -> Simulated {
    let layout = Arc::new(Layout::new(vec![Key::f32("a", [40])], 64).unwrap());
    let mut terms = Terms::new(2, 2, NESTEROV).with(|job| {
        (job.answers_ahead, job.on_loss) = (answers_ahead, OnLoss::Continue);
    });
    terms.is_orderly = true;
    let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms).unwrap();
    for round in [0.0, 1.0] {
        (0..2).for_each(|rank| write(&mut job, rank, round));
        push(&mut job, [Content::Gradient; 2]);
    }
    for rank in 0..2 {
        write(&mut job, rank, 2.0);
        send_ahead(&mut job, rank);
    }
    while job.step().unwrap() {}
    job
}

fn write(job: &mut Simulated, rank: usize, round: f32) {
    let gradient = job.workers[rank].gradient_mut::<f32>(KEY).unwrap();
    (0..).zip(gradient).for_each(|(at, value)| *value = round + rank as f32 + at as f32 / 8.0);
}

fn send_ahead(job: &mut Simulated, rank: usize) {
    job.workers[rank].send_ahead(KEY).unwrap();
    job.workers[rank].flush().unwrap();
}

fn push(job: &mut Simulated, contents: [Content; 2]) {
    for (worker, content) in job.workers.iter_mut().zip(contents) {
        worker.put_as(KEY, content).unwrap();
        worker.flush().unwrap();
    }
    job.settle(50).unwrap();
}

fn weights(job: &Simulated) -> [Vec<f32>; 2] {
    [0, 1].map(|rank| job.workers[rank].weights::<f32>(KEY).unwrap().to_vec())
}

/// Runs two rounds with answers ahead, and the same two rounds in another job without them. Compares the weights. `round`
/// makes the first of the two rounds.
fn same(what: &str, round: impl Fn(&mut Simulated)) {
    let [ahead, plain] = [true, false].map(|answers_ahead| {
        let mut job = sent_ahead(answers_ahead);
        round(&mut job);
        let first = weights(&job);
        (0..2).for_each(|rank| write(&mut job, rank, 5.0));
        push(&mut job, [Content::Gradient; 2]);
        [first, weights(&job)].concat()
    });
    for (seen, expected) in ahead.iter().zip(&plain) {
        same_bits(what.to_owned(), seen, expected);
    }
}

#[test]
fn weights_come_before_the_pushes_and_once() {
    let ([mut job, mut plain], gradients) = ([true, false].map(sent_ahead), [Content::Gradient; 2]);
    let words = job.workers[0].weights::<f32>(KEY).unwrap_err().to_string();
    says(words, &["\"a\"", "reading its weights"]);
    // The network alters all answers that are sent from now on. In `job` the answers ahead have already arrived, so
    // they stay unaltered.
    for job in [&job, &plain] {
        let ends = job.ends.iter().flatten().map(|end| end.peer());
        ends.for_each(|end| (0..3).for_each(|chunk| job.net().flip_next(end, 64 * chunk)));
    }
    push(&mut job, gradients);
    push(&mut plain, gradients);
    let (seen, altered) = (weights(&job), weights(&plain));
    assert_ne!(seen, altered);
    same("nothing changed", |job| {
        push(job, gradients);
        let expected = weights(job);
        (0..2).for_each(|rank| same_bits("no bytes", &seen[rank], &expected[rank]));
    });
}

#[test]
fn whatever_comes_between_changes_no_bit() {
    use Content::{Gradient, Nothing, Weights};
    same("other bytes with the push", |job| {
        write(job, 1, 7.0);
        job.workers[1].rewritten(KEY);
        push(job, [Gradient; 2]);
    });
    same("other bytes ahead", |job| {
        write(job, 0, 7.0);
        job.workers[0].rewritten(KEY);
        send_ahead(job, 0);
        push(job, [Gradient; 2]);
    });
    for contents in [[Nothing, Gradient], [Nothing, Nothing], [Weights, Weights]] {
        same("no gradient", |job| push(job, contents));
    }
    same("another learning rate", |job| {
        let optimizer = Optimizer::Nesterov { learning_rate: 0.5, momentum: 0.75, weight_decay: 0.125 };
        let numbers = Numbers::new(optimizer);
        job.cores.iter_mut().for_each(|core| _ = core.set_numbers(JOB, Round(2), &numbers));
        push(job, [Gradient; 2]);
    });
    same("a cut", |job| {
        assert_eq!(job.hold(), Round(2));
        job.release(Round(2), &[]);
        push(job, [Gradient; 2]);
    });
    same("a worker that makes new links", |job| {
        job.unlink(1);
        job.relink(1).unwrap();
        write(job, 1, 2.0);
        push(job, [Gradient; 2]);
    });
    same("bytes that come once more after a push", |job| {
        job.workers[0].put_as(KEY, Gradient).unwrap();
        job.workers[0].flush().unwrap();
        while job.step().unwrap() {}
        write(job, 1, 9.0);
        job.workers[1].rewritten(KEY);
        send_ahead(job, 1);
        while job.step().unwrap() {}
        job.workers[1].put_as(KEY, Gradient).unwrap();
        job.workers[1].flush().unwrap();
        job.settle(50).unwrap();
    });
}

/// The weights of answers ahead do not count as a step. A state, and a worker that joins now, get the weights
/// of the last step.
#[test]
fn weights_ahead_count_nothing() {
    let [states, plain] = [true, false].map(|answers_ahead| {
        let mut job = sent_ahead(answers_ahead);
        job.hold();
        let state = |core: &mut Core<_>| {
            let part = core.last_state(JOB, Round(2)).unwrap().unwrap();
            (part.values.as_slice().to_vec(), part.steps)
        };
        job.cores.iter_mut().map(state).collect::<Vec<_>>()
    });
    assert_eq!(states, plain);
    let [newcomer, plain] = [true, false].map(|answers_ahead| {
        let mut job = sent_ahead(answers_ahead);
        job.kill(1);
        while job.step().unwrap() {}
        job.rejoin(1).unwrap();
        while job.step().unwrap() {}
        job.workers[1].weights::<f32>(KEY).unwrap().to_vec()
    });
    same_bits("a newcomer", &newcomer, &plain);
}
