//! A job over several hubs. Its bits are those of a job at one hub, and each hub has its share. If one hub
//! fails, the job ends at all hubs, with an error that names that hub.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::processes::hub::start_hub;
use crate::processes::worker::{Remote, Worker};
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::training::Training;
use hub_tests::{NOWHERE, addresses, config_at, describe, hub, on_threads, refused, says, small_model};
use pbox_core::{Dtype, Key, KeyId, Optimizer, Schedule};
use phub_server::Hub;
use rustix::process::Signal;
use worker_shim::{Session, WeightsMode};

const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };

/// Returns keys that every schedule splits over hubs, and a key that no schedule splits.
fn model() -> Vec<Key> {
    vec![
        Key::f32("first.weight", [300, 40]),
        Key::f32("bias", [1]),
        Key::new(Dtype::F16, "half", [5000]),
        Key::f32("large.weight", [1001, 1000]),
    ]
}

#[test]
fn the_bits_are_those_of_the_reference_with_every_schedule() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(2), hub(1)];
    let transports: [fn(u32) -> Option<Transport>; 3] = [
        |_| None,
        |_| Some(Transport::Tcp),
        |rank| Some([Transport::Shm, Transport::Tcp][rank as usize % 2]),
    ];
    for (schedule, transport) in Schedule::ALL.into_iter().flat_map(|s| transports.map(|t| (s, t))) {
        let mut training = Training::new("job", model(), NESTEROV);
        (training.schedule, training.transport) = (schedule, transport);
        (training.chunk_bytes, training.rounds) = (4096, 3);
        training.rates = vec![(2, 0.01)];
        training.run(&addresses(&hubs));
    }
}

#[test]
fn every_hub_and_core_has_its_share() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(2), hub(1)];
    let mut training = Training::new("job", vec![Key::f32("only", [1 << 20])], NESTEROV);
    training.rounds = 2;
    training.run(&addresses(&hubs));
    let chunks = |hub: &Hub| -> Vec<u64> {
        describe(&hub.address().to_string()).cores.iter().map(|core| core.chunks).collect()
    };
    let by_hub: Vec<u64> = hubs.iter().map(|hub| chunks(hub).iter().sum()).collect();
    assert_eq!(by_hub, [64 * 3; 2], "128 chunks, three times: the broadcast and two rounds");
    let cores = chunks(&hubs[0]);
    assert!(cores.iter().all(|&of_core| of_core == 64 * 3 / cores.len() as u64), "{cores:?}");
}

#[test]
fn hubs_on_other_machines_write_to_one_window_and_no_weights_are_copied() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    for mode in [WeightsMode::Shared, WeightsMode::Private] {
        let mut config = config_at(&addresses(&hubs), "job", 0, 1);
        config.terms.keys = vec![Key::f32("split", [1 << 20])];
        (config.terms.chunk_bytes, config.terms.answers_ahead) = (1 << 15, true);
        (config.transport, config.weights) = (Some(Transport::Tcp), mode);
        let mut session = Session::join(config).unwrap();
        session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(1.0)).unwrap();
        session.gradient_mut::<f32>(KeyId(0)).unwrap().fill(0.0);
        session.send_ahead([KeyId(0)]).unwrap();
        // Hubs may write answers into the window now, so only a copy of the weights can be read.
        assert_eq!(session.weights::<f32>(KeyId(0)).is_ok(), mode == WeightsMode::Private);
        session.push(KeyId(0)).unwrap();
        session.wait(KeyId(0)).unwrap();
        assert!(session.weights::<f32>(KeyId(0)).unwrap().iter().all(|&weight| weight == 1.0));
        session.leave().unwrap();
    }
}

#[test]
fn a_hub_may_be_left_without_chunks() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let mut training = Training::new("job", vec![Key::f32("only", [3])], NESTEROV);
    training.workers = 2;
    training.run(&addresses(&hubs));
}

#[test]
fn a_bad_list_of_hubs_is_refused() {
    for (hubs, words) in [
        ("a:1,,b:1", "one address is empty"),
        ("a:1, a:1", "a:1 is listed twice"),
        ("", "empty"),
        ("a:1,b", "\"b\" is not the address"),
        ("a:0", "\"a:0\""),
        ("a:65536", "\"a:65536\""),
        ("::1:7077", "\"::1:7077\""),
        ("http://a:1/v1", "\"a:1/v1\""),
    ] {
        says(refused(config_at(hubs, "job", 0, 1)), &["hubs", words, "expected host:port"]);
    }
}

#[test]
fn an_address_may_be_given_as_the_hub_prints_it() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    Session::join(config_at(&format!("http://{}", hub.address()), "job", 0, 1)).unwrap();
}

#[test]
fn a_hub_that_is_not_there_is_named_and_nobody_waits_at_the_others() {
    let _watchdog = Watchdog::start();
    let here = hub(1);
    let list = format!("{},{NOWHERE}", here.address());
    says(refused(config_at(&list, "job", 0, 2)), &["cannot reach", NOWHERE, "is phub-server running there"]);
    let jobs = describe(&here.address().to_string()).jobs;
    says(format!("{jobs:?}"), &["Failed", "rank 0 failed: its join ended before it had links"]);
}

#[test]
fn workers_that_name_the_hubs_in_another_order_are_refused() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let outcomes = on_threads(2, |rank| {
        let list = if rank == 0 { addresses(&hubs) } else { addresses(hubs.iter().rev()) };
        let mut config = config_at(&list, "job", rank, 2);
        config.join_limit = Duration::from_secs(2); // for the worker that joins a hub after the other worker has given up
        Session::join(config).map(drop).expect_err("they cannot meet").to_string()
    });
    let told =
        outcomes.iter().any(|words| words.contains("this hub is hub") && words.contains("asks for hub"));
    assert!(told, "{outcomes:?}");
}

/// Starts a proxy of a hub for one request. The proxy changes the digest of the placement in the reply.
/// Returns the proxy's address.
fn another_digest(hub: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, hub) = (listener.local_addr().unwrap().to_string(), hub.to_owned());
    std::thread::spawn(move || {
        let (mut worker, _) = listener.accept().unwrap();
        let mut hub = TcpStream::connect(hub).unwrap();
        let (mut asks, mut forwards) = (worker.try_clone().unwrap(), hub.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut asks, &mut forwards));
        let mut said = Vec::new();
        while !said.trim_ascii_end().ends_with(b"}") {
            let mut some = [0; 4096];
            let bytes = hub.read(&mut some).unwrap();
            said.extend(&some[..bytes]);
        }
        let (before, after) = std::str::from_utf8(&said).unwrap().split_once("\"placement\":\"").unwrap();
        let other = format!("{before}\"placement\":\"{}{}", "0".repeat(16), &after[16..]);
        worker.write_all(other.as_bytes()).unwrap();
        let _ = worker.read(&mut [0]); // returns when the worker has read the reply and closes
    });
    address
}

#[test]
fn a_hub_that_places_otherwise_is_named() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let other = another_digest(&hubs[1].address().to_string());
    let error = refused(config_at(&format!("{},{other}", hubs[0].address()), "job", 0, 2));
    says(
        error,
        &[&format!("the hub at {other}"), "a placement of its share", "0000000000000000", "this version"],
    );
    let jobs = describe(&hubs[0].address().to_string()).jobs;
    says(format!("{jobs:?}"), &["Failed", "rank 0 failed: its join ended before it had links"]);
}

#[test]
fn workers_that_split_keys_differently_are_refused() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let outcomes = on_threads(2, |rank| {
        let mut config = config_at(&addresses(&hubs), "job", rank, 2);
        (config.terms.split_above, config.join_limit) = (10 + u64::from(rank), Duration::from_secs(2));
        Session::join(config).map(drop).expect_err("they cannot meet").to_string()
    });
    assert!(outcomes.iter().any(|words| words.contains("has split_above 1")), "{outcomes:?}");
}

#[test]
fn a_worker_that_is_killed_is_named_by_all_hubs() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let list = addresses(&hubs);
    let mut remote = Remote::start(&format!("{list} job 1 2"));
    let mut here = Worker::join(&format!("{list} job 0 2")).unwrap();
    remote.says("joined");
    remote.send("round");
    here.round().unwrap();
    remote.says("round 1");
    remote.process().signal(Signal::KILL);
    says(here.round().unwrap_err(), &["\"job\" failed", "worker 1 is gone", "exited or was killed"]);
    for hub in &hubs {
        let address = hub.address().to_string();
        until("the hub's job has failed", || {
            format!("{:?}", describe(&address).jobs).contains("worker 1 is gone")
        });
    }
}

#[test]
fn a_hub_that_is_killed_is_named_and_the_job_ends_at_the_others() {
    let _watchdog = Watchdog::start();
    let here = hub(1);
    let (far, dies) = start_hub(&[]);
    let list = format!("{},{dies}", here.address());
    let mut config = config_at(&list, "job", 0, 1);
    config.terms.keys = small_model();
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights::<f32>(|_, weights| weights.fill(1.0)).unwrap();
    far.signal(Signal::KILL);
    let error = loop {
        let round = session.keys().try_for_each(|key| session.push(key));
        if let Err(error) = round.and_then(|()| session.wait_all()) {
            break error;
        }
    };
    says(error, &["lost the hub at", &dies]);
    drop(session);
    let address = here.address().to_string();
    until("the other hub's job has failed", || {
        format!("{:?}", describe(&address).jobs).contains("worker 0 is gone")
    });
}
