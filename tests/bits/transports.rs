//! Transports to a hub. The bits do not depend on the transport, and a worker takes the best transport that
//! it can have. With every transport, a killed worker is named. RDMA is tested if `PHUB_TEST_DEVICE` names
//! devices, as in a virtual machine of `make rxe`.

use crate::processes::worker::{Remote, Worker};
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use fabric::tcp::Options;
use hub_tests::program::until;
use hub_tests::training::Training;
use hub_tests::{
    PATIENT_S, config, describe, has_rdma, hub, push_all, ready_all, refused, says, settings, small_model,
};
use pbox_core::{Credit, Key, Schedule};
use phub_server::{Hub, HubSettings};
use rustix::process::Signal;
use worker_shim::{Session, SessionError, WeightsMode};

const NESTEROV: pbox_core::Optimizer =
    pbox_core::Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };

#[test]
fn the_bits_are_the_same_by_every_transport() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let scheduled = |job: &str, transport, schedule, credit| {
        let mut training = Training::new(job, small_model(), NESTEROV);
        (training.schedule, training.credit) = (schedule, credit);
        (training.chunk_bytes, training.workers, training.transport) = (64, 4, transport);
        training.weights =
            if job.starts_with("private") { WeightsMode::Private } else { WeightsMode::Shared };
        training.run(&hub.address().to_string())
    };
    let run = |job: &str, transport| scheduled(job, transport, Schedule::Sliced, None);
    let shm = run("shm", |_| Some(Transport::Shm));
    assert_eq!(run("tcp", |_| Some(Transport::Tcp)), shm);
    assert_eq!(run("private", |_| Some(Transport::Tcp)), shm);
    let mixed = |rank| Some(if rank % 2 == 0 { Transport::Shm } else { Transport::Tcp });
    assert_eq!(run("mixed", mixed), shm, "workers of one job by different transports");
    if has_rdma() {
        assert_eq!(run("verbs", |_| Some(Transport::Verbs)), shm);
        assert_eq!(run("private-verbs", |_| Some(Transport::Verbs)), shm);
        let mixed = |rank| Some([Transport::Verbs, Transport::Tcp, Transport::Shm][rank as usize % 3]);
        assert_eq!(run("mixed-with-rdma", mixed), shm, "two of one job by RDMA, one each by the others");
        for schedule in Schedule::ALL {
            let (job, credit) = (format!("mixed-{schedule}"), Some(Credit::Bytes(100)));
            assert_eq!(scheduled(&job, mixed, schedule, credit), shm, "{schedule}, credit for one chunk");
        }
    }
}

/// Workers send the bytes of gradients ahead of their pushes, and the hub answers before the pushes. A third of
/// the gradients changes before the push.
#[test]
fn the_bits_are_the_same_with_bytes_ahead_by_every_transport() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let run = |job: &str, ahead, transport| {
        let keys = vec![Key::f32("large", [300, 40]), Key::f32("small", [1]), Key::f32("third", [2000])];
        let mut training = Training::new(job, keys, NESTEROV);
        (training.chunk_bytes, training.workers, training.transport) = (1024, 4, transport);
        (training.ahead, training.rounds) = (ahead, 12);
        training.run(&hub.address().to_string())
    };
    let plain = run("plain", false, |_| None);
    assert_eq!(run("shm", true, |_| Some(Transport::Shm)), plain);
    assert_eq!(run("tcp", true, |_| Some(Transport::Tcp)), plain);
    let mixed = |rank| Some(if rank % 2 == 0 { Transport::Shm } else { Transport::Tcp });
    assert_eq!(run("mixed", true, mixed), plain);
    if has_rdma() {
        assert_eq!(run("verbs", true, |_| Some(Transport::Verbs)), plain);
        let mixed = |rank| Some([Transport::Verbs, Transport::Tcp, Transport::Shm][rank as usize % 3]);
        assert_eq!(run("mixed-with-rdma", true, mixed), plain);
    }
}

/// Chunks are larger than any socket's buffer, and there are enough rounds to fill every queue now and then.
#[test]
fn large_chunks_cross_by_tcp() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let keys = vec![Key::f32("large", [3 << 20]), Key::f32("small", [100])];
    let mut training = Training::new("large", keys, NESTEROV);
    (training.chunk_bytes, training.transport) = (8 << 20, |_| Some(Transport::Tcp));
    training.run(&hub.address().to_string());
}

#[test]
fn a_worker_takes_the_best_transport_and_says_why() {
    let _watchdog = Watchdog::start();
    let by = |transports: &[Transport], wanted| {
        let settings = HubSettings { transports: Some(transports.to_vec()), ..settings(1, PATIENT_S) };
        let hub = Hub::start(&settings).unwrap();
        let mut config = config(&hub, "job", 0, 1);
        config.transport = wanted;
        let session = Session::join(config)?;
        let way = session.ways()[0].clone();
        session.leave()?;
        Ok::<_, SessionError>((way.transport, way.reason))
    };
    let (shm, tcp) = (Transport::Shm, Transport::Tcp);
    let (transport, reason) = by(&[tcp, shm], None).unwrap();
    assert_eq!(transport, shm);
    assert!(reason.contains("on this machine"), "{reason}");
    let (transport, reason) = by(&[shm, tcp], Some(tcp)).unwrap();
    assert_eq!(transport, tcp);
    assert!(reason.contains("shm: not the transport that was asked for"), "{reason}");
    assert_eq!(by(&[tcp], None).unwrap().0, tcp);
    says(
        by(&[tcp], Some(shm)).unwrap_err(),
        &["no transport reaches the data path", "shm: the hub does not offer this transport"],
    );
    let nothing = HubSettings { transports: Some(Vec::new()), ..settings(1, PATIENT_S) };
    says(Hub::start(&nothing).unwrap_err(), &["--transports names no transport"]);
}

/// The hub sees no connection of this worker. Without the worker's report, the hub would wait for heartbeats
/// until its limit.
#[test]
fn a_worker_that_no_transport_takes_to_the_hub_ends_the_wait_of_the_others() {
    let _watchdog = Watchdog::start();
    let only_tcp = HubSettings { transports: Some(vec![Transport::Tcp]), ..settings(1, PATIENT_S) };
    let hub = Hub::start(&only_tcp).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| Session::join(config(&hub, "job", 0, 2)).err().unwrap());
        until("worker 0 is there", || describe(&hub.address().to_string()).jobs.len() == 1);
        let mut by_shm = config(&hub, "job", 1, 2);
        by_shm.transport = Some(Transport::Shm);
        says(Session::join(by_shm).err().unwrap(), &["no transport reaches the data path"]);
        says(
            waits.join().unwrap(),
            &[
                "rank 1 failed",
                "no transport reaches the data path",
                "shm: the hub does not offer this transport",
            ],
        );
    });
}

#[test]
fn a_hub_lists_its_transports() {
    let hub = hub(2);
    let said = serde_json::to_value(describe(&hub.address().to_string()).transports).unwrap();
    let names: Vec<&str> =
        said.as_array().unwrap().iter().filter_map(|way| way["transport"].as_str()).collect();
    // The best transport comes first.
    let ways = if has_rdma() { vec!["shm", "verbs", "tcp"] } else { vec!["shm", "tcp"] };
    assert_eq!(names, ways);
    let addresses = said[ways.len() - 1]["addresses"].as_array().unwrap();
    assert!(addresses.iter().all(|address| address.as_str().unwrap().starts_with("127.0.0.1:")), "{said}");
}

#[test]
fn a_killed_worker_is_named_to_a_worker_on_shared_memory() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let address = hub.address().to_string();
    let ways = if has_rdma() { vec!["tcp", "verbs"] } else { vec!["tcp"] };
    for way in ways {
        let mut far = Remote::start(&format!("{address} {way} 1 2 {way}"));
        let mut near = Worker::join(&format!("{address} {way} 0 2 shm")).unwrap();
        far.says("joined");
        (0..100).for_each(|_| far.send("round"));
        (0..10).for_each(|_| near.round().unwrap());
        far.process().signal(Signal::KILL);
        let error = loop {
            if let Err(error) = near.round() {
                break error;
            }
        };
        says(error, &[&format!("{way:?} failed"), "worker 1 is gone"]);
    }
}

/// A connection by TCP without a token is refused.
#[test]
fn tcp_without_a_token_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut steady = ready_all(1, |rank| config(&hub, "steady", rank, 1));
    let window = std::sync::Arc::new(fabric::SendWindow::new(4096).unwrap());
    let transports = describe(&hub.address().to_string()).transports;
    let Some(pbox_core::control::TransportAddress::Tcp { addresses }) = transports.into_iter().last() else {
        panic!("a hub offers TCP")
    };
    let limit = std::time::Duration::from_secs(30);
    let plan = fabric::PlannedLink::of_one_port(&vec![8; addresses.len()]);
    let told = fabric::tcp::connect(
        &addresses,
        [9; 16],
        &Options::default(),
        &window,
        fabric::Receive::New(4096),
        &plan,
        limit,
    )
    .unwrap_err()
    .to_string();
    assert!(told.contains("not one of this hub's"), "{told}");
    push_all(&mut steady[0]).unwrap();
    steady[0].wait_all().unwrap();
    let mut wrong = config(&hub, "steady", 0, 1);
    wrong.transport = Some(Transport::Tcp);
    says(refused(wrong), &["rank 0"]);
}
