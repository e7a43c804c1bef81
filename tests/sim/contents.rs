//! Tests that contents of pushes are checked. Some contents, such as weights and gradients, may not be pushed
//! in one round. Such pushes end the job with an error that names the ranks, the key and the round. Contents
//! that a job does not take end the job in the same way.

use std::sync::Arc;

use fabric::sim::{Faults, Net};
use pbox_core::slim::SlimDp;
use pbox_core::{Compression, Consistency, Content, Key, KeyId, Layout, Notice, Optimizer};
use sim_tests::levels::{self, Levels, Shape};
use sim_tests::simulated::{Simulated, Terms};
use sim_tests::{SGD, says};

fn layout() -> Arc<Layout> {
    Arc::new(Layout::new(vec![Key::f32("a", [40]), Key::f32("fc.bias", [3])], 64).unwrap())
}

/// Returns the core's notices in a job with one worker for each of `contents`. After the broadcast, each worker has
/// pushed the second key with its content.
fn notices_of(terms: Terms, contents: &[Content]) -> Vec<String> {
    let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout(), terms).unwrap();
    if job.workers[0].round(KeyId(1)).0 == 0 {
        for worker in &mut job.workers {
            (0..2).for_each(|key| worker.push(KeyId(key)).unwrap());
        }
        job.settle(50).unwrap();
    }
    for (worker, &content) in job.workers.iter_mut().zip(contents) {
        worker.put_as(KeyId(1), content).unwrap();
        worker.flush().unwrap();
    }
    for _ in 0..50 {
        let _ = job.step(); // links may close
    }
    let has_answer = |(worker, _): (&worker_shim::Exchange<_>, _)| worker.is_ready(KeyId(1));
    assert!(!job.workers.iter().zip(contents).any(has_answer), "nobody has an answer");
    let words = |notice: &Notice| match notice {
        Notice::JobFailed { reason, .. } => reason.clone(),
        Notice::WorkerGone { rank, reason, .. } => format!("rank {rank}: {reason}"),
        other => panic!("{other:?}"),
    };
    job.notices.iter().map(words).collect()
}

#[test]
fn weights_that_come_with_others_end_the_job() {
    use Content::{Gradient, Nothing, Weights};
    for compression in [None, Some("topk:0.5")] {
        let terms = Terms::new(4, 2, SGD)
            .with(|job| job.level.compression = compression.map(|codec| codec.parse().unwrap()));
        let notices = notices_of(terms, &[Weights, Gradient, Nothing, Weights]);
        let expected = "key \"fc.bias\" got in round 1 weights from rank 0, 3; a gradient from rank 1; nothing from rank 2: \
                        weights are replaced only if each rank pushes weights of the key in the same round: write the \
                        weights on all ranks, or on none";
        assert_eq!(notices, [expected]);
    }
}

#[test]
fn a_job_that_takes_gradients_only_names_who_pushed_what() {
    let alone = |consistency| Terms::new(2, 1, SGD).with(|job| job.level.consistency = consistency);
    let slim = Some(Compression::Slim(SlimDp::new(0.5, 0.25)));
    let slim = Terms::new(2, 1, SGD).with(|job| job.level.compression = slim);
    for (terms, why) in [
        (alone(Consistency::Asp), "workers that step alone push gradients only"),
        (alone(Consistency::Ssp { staleness: 0 }), "choose the consistency bsp"),
        (slim, "Slim-DP takes gradients only"),
    ] {
        for (content, name) in [(Content::Nothing, "nothing"), (Content::Weights, "weights")] {
            let notices = notices_of(terms.clone(), &[content]);
            says(&notices[0], &["rank 0", &format!("pushed {name} for key \"fc.bias\" in round 1"), why]);
        }
    }
}

#[test]
fn machines_that_push_weights_and_others_end_the_job_at_the_top() {
    let layout = layout();
    let machine = || Shape::Hub(vec![Shape::Worker; 2]);
    let job =
        pbox_core::JobTerms::new(1, Vec::new(), Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 });
    let terms = levels::Terms {
        job,
        levels: vec![pbox_core::LevelTerms::default(); 2],
        cores: vec![1],
        worker_credit: None,
        mesh: false,
        is_orderly: true,
        late: None,
        earlier: None,
    };
    let mut tree = Levels::new(Net::new(1, Faults::NONE), &layout, terms, &[machine(), machine()]).unwrap();
    for worker in &mut tree.workers {
        (0..2).for_each(|key| worker.exchange.push(KeyId(key)).unwrap());
    }
    (0..100).for_each(|_| _ = tree.step().unwrap());
    let contents = [Content::Nothing, Content::Gradient, Content::Weights, Content::Weights];
    for (worker, content) in tree.workers.iter_mut().zip(contents) {
        assert!(worker.exchange.is_ready(KeyId(1)));
        worker.exchange.put_as(KeyId(1), content).unwrap();
        worker.exchange.flush().unwrap();
    }
    for _ in 0..100 {
        let _ = tree.step(); // links may close
    }
    let failed = |(_, notice): &(usize, Notice)| match notice {
        Notice::JobFailed { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    let words = tree.notices.iter().find_map(failed).expect("the job fails");
    says(words, &["key \"fc.bias\" got in round 1 weights from rank 1; a gradient from rank 0"]);
}
