//! Workers push and do not read their answers, over the simulated network. The core drops and names every worker whose
//! ring of answers is full, even if several rings are full at once.

use std::sync::Arc;

use fabric::sim::{self, Faults, Net, Windows};
use fabric::{Arrival, LinkId, Port, Posted, RecvWindow, SendWindow, Span};
use pbox_core::kernels::Kernels;
use pbox_core::{
    ChunkId, Core, Immediate, JobId, JobTerms, Key, Layout, Notice, Optimizer, Placement, Round, ShardSpec,
    Wire,
};

const JOB: JobId = JobId(1);
const WORKERS: u32 = 3;
/// The number of chunks less one.
const CAPACITY: u32 = 1;

#[test]
fn all_workers_whose_rings_are_full_are_named() {
    let layout = Arc::new(Layout::new(vec![Key::f32("a", [32])], 64).unwrap());
    let placement = Placement::new(&layout, 1);
    let terms = Arc::new(JobTerms::new(WORKERS, layout.keys().to_vec(), Optimizer::Average));
    let wire = Wire::new(Arc::clone(&layout), &terms);
    let (weights, mut claims) = placement.weights_window(&wire).unwrap();
    let owned = (placement.chunks_by_core().remove(0), claims.remove(0));
    let spec = ShardSpec::of_cores(&terms, &wire, [owned]).remove(0);
    let net = Net::new(1, Faults::NONE);
    let mut core = Core::new(net.port(), Kernels::detect());
    core.add_job(JOB, spec).unwrap();
    let window = || Arc::new(RecvWindow::local(layout.window_bytes()).unwrap());
    let mut workers = Vec::new();
    for rank in 0..WORKERS {
        let (here, there) = (window(), window());
        let gradients = Arc::new(SendWindow::new(layout.window_bytes()).unwrap());
        let (ours, theirs) = net.link(
            Windows { send: gradients, recv: here },
            Windows { send: Arc::clone(&weights), recv: Arc::clone(&there) },
            CAPACITY,
        );
        core.add_worker(JOB, rank, there, None, theirs).unwrap();
        let mut port = net.port();
        let link = port.attach(ours);
        workers.push((port, link));
    }
    let mut notices = Vec::new();
    core.release(JOB, Round(0), &[0, 1, 2], &mut notices);
    push_all(&mut core, &mut workers, ChunkId(0), &mut notices);
    // One worker takes its answer, so its ring has room again.
    let (port, _) = &mut workers[1];
    while port.poll(&mut [Arrival::default()]) == 0 {}
    push_all(&mut core, &mut workers, ChunkId(1), &mut notices);
    let gone: Vec<u32> = notices
        .iter()
        .map(|notice| match notice {
            Notice::WorkerGone { job: JOB, rank, reason, .. }
                if reason.contains("ring of answers is full") =>
            {
                *rank
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(gone, [0, 2]);
}

/// Makes every worker push a chunk. The core takes the pushes in.
fn push_all(
    core: &mut Core<sim::Port>,
    workers: &mut [(sim::Port, LinkId)],
    chunk: ChunkId,
    notices: &mut Vec<Notice>,
) {
    for (port, link) in workers {
        let imm = Immediate::new(chunk, Round(0)).encode();
        assert_eq!(port.post(*link, Span { offset: 0, bytes: 0 }, imm), Posted::Accepted);
        port.flush();
        let before = core.tally().arrivals;
        while core.tally().arrivals == before {
            core.turn(notices);
        }
    }
}
