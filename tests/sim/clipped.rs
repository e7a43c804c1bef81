//! Steps that wait for the norm of the whole gradient, in cases that the random clusters of `bits::seeds` do not reach.

use std::sync::Arc;

use fabric::sim::{Faults, Net, Windows};
use fabric::{Port, Posted, RecvWindow, SendWindow};
use pbox_core::kernels::Kernels;
use pbox_core::{
    ChunkId, Core, ExactSum, Immediate, JobTerms, Key, KeyId, Layout, NormSum, Notice, OnLoss, Optimizer,
    Placement, Round, ShardSpec, Share, Wire,
};
use sim_tests::simulated::{JOB, Simulated, Terms};

/// Returns a worker that has pushed its gradients of round 0 to two cores. Only core 0 has taken in its push.
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
fn a_round_whose_part_is_whole_steps_at_every_core_also_for_a_worker_that_is_lost() {
    let mut job = pushed();
    job.turn_core(1);
    let mut notices = Vec::new();
    job.cores[0].remove_worker(JOB, 0, &mut notices);
    (0..2).for_each(|core| _ = job.turn_core(core));
    assert_eq!([0, 1].map(|core| lowest(&mut job, core)), [Round(1); 2]);
}

#[test]
fn a_hold_takes_back_what_is_not_whole_and_no_more() {
    let mut job = pushed();
    assert_eq!(job.cores[0].hold(JOB).unwrap().highest, Round(0));
    job.turn_core(1);
    assert_eq!(job.cores[1].hold(JOB).unwrap().highest, Round(0), "core 0 has taken its part back");

    let mut job = pushed();
    job.turn_core(1);
    let front = job.cores[0].hold(JOB).unwrap();
    assert_eq!((front.lowest, front.highest), (Round(0), Round(1)), "the round is as good as over");
}

/// Returns a worker that has pushed all its gradients of round 0 to two hubs with one core each. The hubs
/// have sent their parts of the norm.
fn told_by_two_hubs() -> Simulated {
    let layout = Arc::new(Layout::new(vec![Key::f32("a", [16]), Key::f32("b", [16])], 64).unwrap());
    let terms = Terms::new(1, 1, Optimizer::Average).with(|job| (job.clip_norm, job.hubs) = (Some(1.0), 2));
    let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms).unwrap();
    for key in [0, 1].map(KeyId) {
        job.workers[0].gradient_mut::<f32>(key).unwrap().fill(3.0);
        job.workers[0].push(key).unwrap();
    }
    (0..200).for_each(|_| (0..2).for_each(|core| _ = job.turn_core(core)));
    job
}

#[test]
fn parts_that_are_lost_with_links_are_told_and_passed_on_again() {
    for are_taken in [false, true] {
        let mut job = told_by_two_hubs();
        if are_taken {
            while job.workers[0].found().is_none() {
                job.workers[0].progress().unwrap();
            }
        }
        job.unlink(0); // neither hub has taken the part of the other one
        while !job.relink(0).unwrap() {
            job.control().unwrap();
        }
        (0..500).for_each(|_| _ = job.step().unwrap());
        assert_eq!(job.workers[0].first_under_way(), None, "parts were taken: {are_taken}");
        assert_eq!(job.workers[0].found().unwrap().sum.value(), 32.0 * 9.0);
    }
}

/// Returns the reasons why the core of hub 0 drops workers, after they have passed on these parts of the norm from hub
/// 1.
///
/// The job has two hubs and two workers. The workers push the only chunk of hub 0 in round 0. Then the workers pass on
/// the parts. Each entry has the worker's rank, the part, and the round and the hub that the post names.
fn passed_on(parts: &[(u32, NormSum, Round, usize)]) -> Vec<String> {
    let layout = Arc::new(Layout::new(vec![Key::f32("a", [16]), Key::f32("b", [16])], 64).unwrap());
    let terms =
        JobTerms { clip_norm: Some(1.0), hubs: 2, ..JobTerms::new(2, Vec::new(), Optimizer::Average) };
    let (terms, wire) = (Arc::new(terms.clone()), Wire::new(Arc::clone(&layout), &terms));
    let placement = Placement::of_share(&layout, terms.level.schedule, Share::of_hub(&terms, 0), 1);
    let (weights, mut claims) = placement.weights_window(&wire).unwrap();
    let owned = (placement.chunks_by_core().remove(0), claims.remove(0));
    let chunk: ChunkId = owned.0[0];
    let net = Net::new(1, Faults::NONE);
    let mut core = Core::new(net.port(), Kernels::detect());
    core.add_job(JOB, ShardSpec::of_cores(&terms, &wire, [owned]).remove(0)).unwrap();
    let (mut notices, mut workers) = (Vec::new(), Vec::new());
    for rank in 0..2 {
        let window = SendWindow::new(wire.gradient_window_bytes()).unwrap();
        let (send, mut spans) = window.split(vec![wire.gradient_lines().collect()]).unwrap();
        let local = |bytes| Arc::new(RecvWindow::local(bytes).unwrap());
        let (here, there) = (local(wire.weights_window_bytes()), local(wire.gradient_window_bytes()));
        let (ours, theirs) = net.link(
            Windows { send, recv: here },
            Windows { send: Arc::clone(&weights), recv: Arc::clone(&there) },
            wire.posts(1),
        );
        core.add_worker(JOB, rank, there, None, theirs).unwrap();
        let mut port = net.port();
        let link = port.attach(ours);
        workers.push((port, link, spans.remove(0)));
    }
    core.release(JOB, Round(0), &[0, 1], &mut notices);
    for (port, link, _) in &mut workers {
        let push = Immediate::new(chunk, Round(0)).encode();
        assert_eq!(port.post(*link, wire.gradient_span(chunk), push), Posted::Accepted);
        port.flush();
    }
    for &(rank, part, round, hub) in parts {
        let span = wire.gradient_line(hub.min(1), round);
        let (port, link, lines) = &mut workers[rank as usize];
        let place = (0..lines.len()).find(|&place| lines.span(place) == span).unwrap();
        part.write(lines.elements_mut(place));
        assert_eq!(port.post(*link, span, Immediate::line(hub, round).encode()), Posted::Accepted);
        port.flush();
        (0..100).for_each(|_| _ = core.turn(&mut notices));
    }
    let reason = |notice| match notice {
        Notice::WorkerGone { rank, reason, .. } => format!("{rank}: {reason}"),
        other => panic!("{other:?}"),
    };
    notices.into_iter().map(reason).collect()
}

fn part(round: u32, square: f64) -> NormSum {
    let mut sum = ExactSum::default();
    sum.add(square);
    NormSum { round: Round(round), sum, ..NormSum::default() }
}

#[test]
fn who_passes_on_a_lie_is_dropped_and_named_and_nobody_else() {
    let cases: [(&[_], &str); 6] = [
        (&[(0, part(1, 4.0), Round(1), 1), (1, part(1, 4.0), Round(1), 1)], ""),
        (
            &[(0, part(1, 4.0), Round(1), 1), (1, part(1, 5.0), Round(1), 1)],
            "1: passed on hub 1's part of a norm in a round that is 1 modulo 64, but another worker has passed on another sum",
        ),
        (
            &[(1, part(2, 4.0), Round(2), 1)],
            "1: passed on hub 1's part of a norm in a round that is 2 modulo 64, but no hub",
        ),
        (
            &[(1, part(5, 4.0), Round(1), 1)],
            "1: passed on hub 1's part of a norm in a round that is 1 modulo 64, but the part",
        ),
        (
            &[(1, part(0, 4.0), Round(0), 0)],
            "1: passed on hub 0's part of a norm in a round that is 0 modulo 64, but no other",
        ),
        (
            &[(1, part(0, 4.0), Round(0), 7)],
            "1: passed on hub 7's part of a norm in a round that is 0 modulo 64, but no other",
        ),
    ];
    for (parts, expected) in cases {
        let dropped = passed_on(parts);
        match expected {
            "" => assert!(dropped.is_empty(), "{dropped:?}"),
            _ => {
                assert!(dropped.len() == 1 && dropped[0].starts_with(expected), "{dropped:?}, not {expected}")
            }
        }
    }
}

#[test]
fn a_copy_that_comes_twice_or_late_changes_nothing() {
    let first = (0, part(0, 4.0), Round(0), 1);
    assert_eq!(passed_on(&[first, first, (1, part(0, 4.0), Round(0), 1)]), [""; 0]);
}
