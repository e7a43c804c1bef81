//! Schedules. They decide which chunks overtake other chunks, and after how many bytes. The tests also count
//! the messages of the baseline, and show that the bits do not depend on the schedule.

use std::sync::Arc;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use fabric::sim::{self, Faults, Net};
use fabric::{Arrival, Port, RecvWindow};
use hub_tests::simulated::{JOB, Simulated, Terms};
use hub_tests::training::Training;
use hub_tests::{config, hub, join_by_hand, join_request, push_all, refusal, says};
use pbox_core::{
    ChunkId, Credit, Immediate, JobTerms, Key, KeyId, Layout, LevelTerms, Optimizer, Placement, Schedule,
    Slices, Wire,
};
use worker_shim::{Exchange, Session, WeightsMode, Windows};

const CHUNK: usize = 256;
const CREDIT: usize = 4 * CHUNK;
const FIRST: KeyId = KeyId(0);
const LAST: KeyId = KeyId(1);

/// Works like [`late_bytes_of`], for layers that are registered in the order in which they are needed.
fn late_bytes(schedule: Schedule, slice_bytes: usize, credit: Option<usize>) -> usize {
    late_bytes_of([FIRST, LAST], schedule, slice_bytes, credit, 1)
}

/// Pushes the layer that is needed last. When a part of that layer is sent, pushes the layer that is needed first. The hub has
/// a link to each of `cores` cores. Returns the bytes of the last layer that arrive after the second push and, on their link,
/// before the first layer is complete.
fn late_bytes_of(
    [first, last]: [KeyId; 2],
    schedule: Schedule,
    slice_bytes: usize,
    credit: Option<usize>,
    cores: usize,
) -> usize {
    let elements = |each: u64, power| [each * (cores as u64).pow(power)];
    let mut keys = vec![Key::f32("first", elements(320, 1)), Key::f32("last", elements(6400, 2))];
    keys.swap(0, first.index());
    let layout = Arc::new(Layout::new(keys, CHUNK).unwrap());
    let placement = Placement::new(&layout, cores);
    let net = Net::new(1, Faults::NONE);
    let wire = Wire::plain(Arc::clone(&layout));
    let (gradients, spans) = Windows::gradients(&wire).unwrap();
    let (weights, _) = placement.weights_window(&wire).unwrap();
    let window = || Arc::new(RecvWindow::local(layout.window_bytes()).unwrap());
    let (here, there) = (window(), window());
    let ours = sim::Windows { send: gradients, recv: Arc::clone(&here) };
    let theirs = sim::Windows { send: weights, recv: there };
    let capacities = placement.capacities();
    let links = capacities.iter().map(|&capacity| net.link(ours.clone(), theirs.clone(), capacity));
    let (ends, far): (Vec<_>, Vec<_>) = links.unzip();
    let windows = Windows::new(&wire, 0, spans, vec![here; cores], WeightsMode::Shared).unwrap();
    let slices = Slices::new(&layout, &placement, schedule, slice_bytes);
    let mut worker = Exchange::new(net.port(), ends, Arc::clone(&layout), windows, slices);
    worker.begin(pbox_core::Round(0)).unwrap();
    worker.set_credit(credit);
    if first > last {
        worker.need(&[first, last]).unwrap();
    }
    let mut hub = net.port();
    far.into_iter().for_each(|far| _ = hub.attach(far));
    // The hub takes one arrival at a time. After each, the worker handles its own arrivals.
    let mut look = |worker: &mut Exchange<sim::Port>| {
        let mut arrivals = [Arrival::default()];
        while hub.poll(&mut arrivals) == 0 {}
        worker.progress().unwrap();
        Immediate::decode(arrivals[0].imm).chunk
    };
    worker.push(last).unwrap();
    (0..7).for_each(|_| assert_eq!(layout.chunk(look(&mut worker)).key, last));
    worker.push(first).unwrap();
    // Each link counts separately: a link that has sent all its chunks of the first layer continues with the
    // last layer.
    let mut missing = vec![0; cores];
    layout.key_chunks(first).for_each(|chunk| missing[placement.owner(ChunkId(chunk))] += 1);
    let mut late = 0;
    while missing.iter().any(|&chunks| chunks > 0) {
        let id = look(&mut worker);
        let (chunk, missing) = (layout.chunk(id), &mut missing[placement.owner(id)]);
        match chunk.key {
            key if key == first => *missing -= 1,
            _ if *missing > 0 => late += chunk.span.bytes,
            _ => {}
        }
    }
    late
}

#[test]
fn urgent_chunks_overtake_all_but_the_credit() {
    let _watchdog = Watchdog::start();
    let rest = 6400 * 4 - 7 * CHUNK;
    assert_eq!(late_bytes(Schedule::Sliced, CHUNK, Some(CREDIT)), rest, "a FIFO: all that was queued");
    assert_eq!(late_bytes(Schedule::Layerwise, CHUNK, Some(CREDIT)), rest);
    assert_eq!(late_bytes(Schedule::P3, CHUNK, None), rest, "without credit the transport has it all");
    for credit in [1, CHUNK, CREDIT, 3 * CREDIT] {
        let late = late_bytes(Schedule::P3, CHUNK, Some(credit));
        assert!(late <= credit.max(CHUNK), "{late} bytes late, with a credit of {credit}");
    }
    // A slice that is begun is finished first.
    let late = late_bytes(Schedule::P3, 10 * CHUNK, Some(CREDIT));
    assert!(late > CREDIT && late <= CREDIT + 10 * CHUNK, "{late} bytes late, with slices of ten chunks");
}

#[test]
fn the_first_layer_waits_for_as_many_bytes_whatever_the_number_of_links() {
    let _watchdog = Watchdog::start();
    let level = LevelTerms { schedule: Schedule::P3, ..LevelTerms::default() };
    let late =
        |links, credit: Credit| late_bytes_of([FIRST, LAST], Schedule::P3, CHUNK, credit.at_first(), links);
    for links in [8, 16, 32] {
        let most = Credit::AT_FIRST.max(links * Credit::LEAST);
        let shared = late(links, level.with_links(links).credit());
        assert!(shared > 0 && shared <= most, "{shared} bytes late over {links} links");
    }
    let (shared, each) = (late(32, level.with_links(32).credit()), late(32, level.credit()));
    assert!(
        each > 10 * shared,
        "{each} bytes late if each link has the credit of a single link, and {shared} if links share it"
    );
    let given = LevelTerms { credit: Some(Credit::Bytes(100)), ..level };
    assert_eq!(given.with_links(32).credit(), Credit::Bytes(100), "what is given is of each link");
}

/// A model whose first layer is registered last. Its worker has learnt in which order the layers are needed.
#[test]
fn a_layer_that_is_needed_first_overtakes_wherever_it_is_registered() {
    let _watchdog = Watchdog::start();
    let late = |schedule| late_bytes_of([LAST, FIRST], schedule, CHUNK, Some(CREDIT), 1);
    assert!(late(Schedule::P3) <= CREDIT);
    assert_eq!(late(Schedule::Sliced), 6400 * 4 - 7 * CHUNK, "a FIFO stays one");
}

/// Returns the number of chunks of the last layer without an answer, when the first layer has all answers. All
/// pushes arrive before the worker handles any answer, and the hub's link has credit for few answers.
fn unanswered([first, last]: [KeyId; 2], schedule: Schedule) -> u32 {
    let mut keys = vec![Key::f32("first", [320]), Key::f32("last", [6400])];
    keys.swap(0, first.index());
    let layout = Arc::new(Layout::new(keys, CHUNK).unwrap());
    let terms = Terms::new(1, 1, Optimizer::Average)
        .with(|job| (job.level.schedule, job.level.credit) = (schedule, Some(Credit::Bytes(CREDIT))));
    let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms.clone()).unwrap();
    if first > last {
        job.workers[0].need(&[first, last]).unwrap();
        let priorities = job.workers[0].priorities().into();
        job.cores[0].set_priorities(JOB, 0, &priorities);
    }
    job.workers[0].push(last).unwrap();
    job.workers[0].push(first).unwrap();
    while job.cores[0].turn(&mut Vec::new()) {}
    let mut last_left = None;
    while !job.workers[0].is_ready(last) {
        job.step().unwrap();
        if job.workers[0].is_ready(first) {
            last_left = last_left.or(Some(job.workers[0].outstanding(last)));
        }
    }
    last_left.unwrap_or(0)
}

/// The hub sends by priority, too. Of the answers that wait, the answers of the first layer are sent first, even if a
/// worker has learnt only later which layer is the first.
#[test]
fn the_hub_sends_the_first_layer_first() {
    let _watchdog = Watchdog::start();
    for registered in [[FIRST, LAST], [LAST, FIRST]] {
        let left = unanswered(registered, Schedule::P3) as usize;
        assert!(left >= 100 - 2 * CREDIT / CHUNK, "all of the last layer but the credit, not {left}");
        assert_eq!(unanswered(registered, Schedule::Sliced), 0, "a FIFO");
    }
}

/// There is one notice and one pull for each part of a layer, worker and round. No weights are sent before
/// the pull.
#[test]
fn kvstore_notifies_once_and_pulls_once() {
    let _watchdog = Watchdog::start();
    const WORKERS: u64 = 3;
    const ROUNDS: u64 = 3;
    let layout = Arc::new(
        Layout::new(vec![Key::f32("a", [1000]), Key::f32("b", [10]), Key::f32("c", [700])], CHUNK).unwrap(),
    );
    for cores in [1, 2] {
        let parts =
            Slices::new(&layout, &Placement::new(&layout, cores), Schedule::KvStore, 0).count() as u64;
        let arrivals = |schedule| {
            let terms = Terms::new(WORKERS as u32, cores, Optimizer::Average)
                .with(|job| job.level.schedule = schedule);
            let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms.clone()).unwrap();
            for _ in 0..ROUNDS {
                for worker in &mut job.workers {
                    (0..3).rev().for_each(|key| worker.push(KeyId(key)).unwrap());
                }
                job.settle(100).unwrap();
            }
            let at_workers: u64 = job.arrivals.iter().sum();
            (job.cores.iter().map(|core| core.tally().arrivals).sum::<u64>(), at_workers)
        };
        let (to_hub, to_workers) = arrivals(Schedule::Layerwise);
        assert_eq!(to_hub, WORKERS * ROUNDS * layout.chunks().len() as u64);
        assert_eq!(to_workers, to_hub);
        let extra = WORKERS * ROUNDS * parts;
        assert_eq!(arrivals(Schedule::KvStore), (to_hub + extra, to_workers + extra));
    }
}

#[test]
fn the_bits_are_the_same_with_every_schedule() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let nesterov = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
    let keys = vec![Key::f32("a", [33]), Key::f32("b", [70_000]), Key::f32("c", [9000])];
    let mut runs = Vec::new();
    for (transport, how) in
        [((|_| Some(Transport::Tcp)) as fn(u32) -> _, "tcp"), (|_| Some(Transport::Shm), "shm")]
    {
        for schedule in Schedule::ALL {
            for (credit, slice_bytes) in [(None, None), (Some(Credit::Bytes(9000)), Some(20_000))] {
                let job = format!("{how}-{schedule}-{}", slice_bytes.unwrap_or(0));
                let mut training = Training::new(job, keys.clone(), nesterov);
                (training.schedule, training.credit, training.slice_bytes) = (schedule, credit, slice_bytes);
                (training.chunk_bytes, training.transport) = (4096, transport);
                runs.push(training.run(&hub.address().to_string()));
            }
        }
    }
    assert!(runs.iter().all(|run| *run == runs[0]));
}

#[test]
fn a_worker_shares_the_default_credit_among_the_links_to_a_hub() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let p3 = |terms: &mut JobTerms| {
        terms.keys = vec![Key::f32("a", [100]), Key::f32("b", [100])];
        terms.level.schedule = Schedule::P3;
    };
    let session = Session::join(config(&hub, "p3", 0, 1).with_terms(p3)).unwrap();
    assert_eq!(session.credit().0, Some(Credit::AT_FIRST / 2));
    session.leave().unwrap();
}

/// The search tries all its candidates, keeps one, and changes no bit.
#[test]
fn credit_is_found() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut config = config(&hub, "auto", 0, 1);
    (config.terms.level.credit, config.terms.level.schedule) = (Some(Credit::Auto), Schedule::P3);
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights::<f32>(|_, weights| weights.fill(1.0)).unwrap();
    for round in 0.. {
        session.keys().for_each(|key| session.gradient_mut(key).unwrap().fill(0.0));
        push_all(&mut session).unwrap();
        session.wait_all().unwrap();
        if session.credit().1.len() == worker_shim::TRIALS.len() {
            break;
        }
        assert!(round < 10 * worker_shim::LAPS * worker_shim::TRIALS.len() as u32, "the search has an end");
    }
    let (found, tried) = session.credit();
    assert_eq!(tried.iter().map(|trial| trial.bytes).collect::<Vec<_>>(), worker_shim::TRIALS);
    assert!(worker_shim::TRIALS.contains(&found.unwrap()));
    session.leave().unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut by_hand = join_request(0, 2);
    by_hand.terms.level.credit = Some(Credit::Bytes(0));
    let (status, error) = refusal(&hub, "/v1/jobs/job/join", serde_json::to_vec(&by_hand).unwrap());
    assert_eq!(status, 400);
    says(error, &["credit is 0 bytes"]);
    join_by_hand(&hub, "job", &join_request(0, 2));
    let mut other = join_request(1, 2);
    other.terms.level.schedule = Schedule::P3;
    let (status, error) = refusal(&hub, "/v1/jobs/job/join", serde_json::to_vec(&other).unwrap());
    assert_eq!(status, 409);
    says(error, &["schedule sliced, worker 1 asks for p3"]);
}
