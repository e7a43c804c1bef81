//! Tests of rounds that chunks pass without a step, however many, and of the number of arrivals that a turn handles.

use std::num::NonZeroU32;
use std::sync::Arc;

use fabric::sim::{Faults, Net, Port, Windows};
use fabric::{Port as _, Posted, RecvWindow, SendWindow, Slab, Span};

use super::*;
use crate::job::{Consistency, Credit, JobTerms, OnLoss, Schedule};
use crate::kernels::{Numbers, Optimizer};
use crate::layout::{ChunkId, Key, KeyId};
use crate::place::Placement;
use crate::snapshot::{Occasion, Restored, RestoredKey, Taken};
use crate::turn::ShardSpec;
use crate::wire::Wire;

const JOB: JobId = JobId(1);
/// A round that no loop over single rounds reaches in time, and for which a list of all rounds would be too long.
const FAR: Round = Round(4_000_000_000);

/// Returns a core that has a job of two chunks and two workers, and is before round 1. A snapshot is due before every
/// round.
fn core(consistency: Consistency) -> Core<Port> {
    core_of(consistency, 2).0
}

/// Returns a core as [core](core) makes it, with this number of workers, and the workers' ends of the links.
fn core_of(consistency: Consistency, workers: u32) -> (Core<Port>, Port, Vec<LinkId>) {
    let sgd = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
    let mut terms = JobTerms::new(workers, vec![Key::f32("a", [32])], sgd);
    (terms.on_loss, terms.chunk_bytes, terms.level.consistency) = (OnLoss::Continue, 64, consistency);
    let (terms, wire) = (Arc::new(terms.clone()), Wire::of_terms(&terms).unwrap());
    let placement = Placement::new(wire.layout(), 1);
    let weights = || placement.weights_window(&wire).unwrap();
    let (_, mut claims) = weights();
    let owned = (placement.chunks_by_core().remove(0), claims.remove(0));
    let mut spec = ShardSpec::of_cores(&terms, &wire, [owned]).remove(0);
    let keys = vec![RestoredKey { elements: 0..32, starts: vec![0] }];
    let values = Slab::zeroed("test", 32).unwrap();
    let restored = Restored::new(Round(1), vec![(Round(0), Numbers::new(sgd))], values, keys);
    assert_eq!(restored.weights(KeyId(0), 0..32).len(), 32);
    (spec.restored, spec.snapshot_every) = (Some(Arc::new(restored)), NonZeroU32::new(1));
    let net = Net::new(1, Faults::NONE);
    let mut core = Core::new(net.port(), Kernels::detect());
    core.add_job(JOB, spec).unwrap();
    let (mut port, mut links) = (net.port(), Vec::new());
    for rank in 0..workers {
        let send = || Arc::new(SendWindow::new(4096).unwrap());
        let recv = || Arc::new(RecvWindow::local(4096).unwrap());
        let windows = || Windows { send: send(), recv: recv() };
        let (theirs, endpoint) = net.link(windows(), windows(), 4);
        links.push(port.attach(theirs));
        let own = (consistency != Consistency::Bsp).then(|| weights().1.remove(0));
        core.add_worker(JOB, rank, recv(), own, endpoint).unwrap();
    }
    (core, port, links)
}

/// Returns the snapshots of a core, in the order of their rounds.
fn snapshots(core: &mut Core<Port>, mut notices: Vec<Notice>) -> Vec<Taken> {
    core.turn(&mut notices);
    let taken = |notice| match notice {
        Notice::Snapshot { taken, .. } => Some(taken),
        _ => None,
    };
    let mut taken = Vec::from_iter(notices.into_iter().filter_map(taken));
    taken.sort_by_key(|taken| taken.before);
    taken
}

/// Asserts that one snapshot was taken, and that one result is for all other snapshots.
fn assert_two(taken: &[Taken]) {
    let [first, others] = taken else { panic!("{} results", taken.len()) };
    assert_eq!((first.occasion, first.part.is_ok()), (Occasion::Due(Round(2)), true));
    assert_eq!((others.occasion, others.part.is_ok()), (Occasion::Due(Round(3)), false));
    assert_eq!(others.through, Some(FAR));
}

#[test]
fn rounds_without_workers_are_passed_at_once() {
    let mut core = core(Consistency::Bsp);
    let mut notices = Vec::new();
    core.release(JOB, Round(1), &[0], &mut notices);
    drop(core.remove_worker(JOB, 0, &mut notices));
    core.release(JOB, FAR, &[1], &mut notices);
    let skipped = notices.iter().filter(|notice| matches!(notice, Notice::Skipped { .. })).count();
    assert_eq!(skipped, 2, "one for each chunk");
    assert_two(&snapshots(&mut core, notices));
}

#[test]
fn rounds_of_a_worker_that_begins_far_ahead_are_passed_at_once() {
    let mut core = core(Consistency::Asp);
    let mut notices = Vec::new();
    core.begin_ahead(JOB, &[0, FAR.0 - 1]);
    core.release(JOB, Round(1), &[0, 1], &mut notices);
    drop(core.remove_worker(JOB, 0, &mut notices));
    assert_two(&snapshots(&mut core, notices));
}

#[test]
fn the_last_state_ends_any_number_of_rounds_at_once() {
    for consistency in [Consistency::Bsp, Consistency::Asp] {
        let mut core = core(consistency);
        core.release(JOB, Round(1), &[0, 1], &mut Vec::new());
        core.hold(JOB);
        let part = core.last_state(JOB, FAR).unwrap().unwrap();
        assert_eq!((part.chunks.len(), part.steps), (2, vec![0, 0]), "nobody has pushed");
    }
}

#[test]
fn a_turn_takes_the_pushes_of_all_workers_for_some_chunks() {
    let (mut core, mut port, links) = core_of(Consistency::Bsp, 40);
    let ranks: Vec<u32> = (0..40).collect();
    core.release(JOB, Round(1), &ranks, &mut Vec::new());
    for (number, link) in links.iter().flat_map(|&link| [(0, link), (1, link)]) {
        let imm = Immediate::new(ChunkId(number), Round(1)).encode();
        let span = Span { offset: 64 * number as usize, bytes: 64 };
        assert_eq!(port.post(link, span, imm), Posted::Accepted);
    }
    port.flush();
    assert!(core.turn(&mut Vec::new()));
    assert_eq!((core.tally().arrivals, core.tally().chunks), (80, 2), "of both chunks at once");
}

#[test]
fn the_cores_of_a_hub_share_the_default_credit() {
    let keys = vec![Key::f32("a", [32]), Key::f32("b", [32])];
    let mut terms = JobTerms::new(1, keys, Optimizer::Average);
    (terms.chunk_bytes, terms.level.schedule) = (64, Schedule::P3);
    let (terms, wire) = (Arc::new(terms.clone()), Wire::of_terms(&terms).unwrap());
    let placement = Placement::new(wire.layout(), 2);
    let (_, claims) = placement.weights_window(&wire).unwrap();
    let specs = ShardSpec::of_cores(&terms, &wire, placement.chunks_by_core().into_iter().zip(claims));
    let credits: Vec<_> = specs.iter().map(|spec| spec.terms.level.credit().at_first()).collect();
    assert_eq!(credits, [Some(Credit::AT_FIRST / 2); 2]);
}
