//! The number of bytes that cross the network in the broadcast, and in a round of a compressed job. If
//! `PHUB_TEST_DEVICE` names devices, RDMA is tested, too.

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::proxy::Proxy;
use hub_tests::values::fill_gradient;
use hub_tests::{FIRST, config, config_at, copying_transports, hub, on_threads, ready_all};
use pbox_core::{Consistency, Key, LevelTerms, Optimizer, Schedule};
use serde_json::{Value, json};
use worker_shim::Session;

/// Only rank 0 sends the first weights, because the windows of other ranks would be sent for nothing. An
/// older hub wants the weights of all ranks.
#[test]
fn only_rank_0_sends_the_first_weights() {
    fn older(path: &str, answer: &mut Value) {
        if path.ends_with("/join") {
            answer["protocol"] = json!(12);
        }
    }
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let proxy = Proxy::start(hub.address());
    proxy.rewrites(|_, _| (), older);
    let (current, former) = (hub.address().to_string(), proxy.address());
    type Change = fn(&mut LevelTerms);
    let changes: [(&str, Change); 6] = [
        ("sliced", |_| ()),
        ("kvstore", |level| level.schedule = Schedule::KvStore),
        ("ssp", |level| level.consistency = Consistency::Ssp { staleness: 1 }),
        ("topk", |level| level.compression = "topk:0.1".parse().ok()),
        ("slim", |level| level.compression = "slim:0.2:0.1:50".parse().ok()),
        ("asp", |level| {
            (level.consistency, level.compression) = (Consistency::Asp, "bf16".parse().ok());
        }),
    ];
    let wires = copying_transports().into_iter().chain([Transport::Shm]);
    let jobs = wires.flat_map(|wire| [&current, &former].map(|address| (wire, address)));
    for ((wire, address), (name, change)) in jobs.flat_map(|job| changes.map(|change| (job, change))) {
        let sent = on_threads(3, |rank| {
            let mut config =
                config_at(address, &format!("{name}-{wire}-{address}").replace([':', '.'], "-"), rank, 3);
            config.terms.keys = vec![Key::f32("a", [20 << 10]), Key::f32("b", [10]), Key::f32("c", [10])];
            config.terms.chunk_bytes = 32 << 10;
            config.terms.optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
            config.transport = Some(wire);
            change(&mut config.terms.level);
            let mut session = Session::join(config).unwrap();
            for key in session.keys() {
                session.gradient_mut(key).unwrap().fill(1.0 + rank as f32);
            }
            session.broadcast_written().unwrap();
            for key in session.keys() {
                assert!(
                    session.weights::<f32>(key).unwrap().iter().all(|&weight| weight == 1.0),
                    "{name} by {wire}"
                );
            }
            let sent = session.traffic().sent;
            session.leave().unwrap();
            sent
        });
        let of_others = if *address == former { sent[0] } else { 0 };
        assert!(sent[0] >= 80 << 10, "{name} by {wire}: {sent:?}");
        assert_eq!(sent, [sent[0], of_others, of_others], "{name} by {wire} at {address}");
    }
}

/// A compressed round sends the codec's share of the bytes.
#[test]
fn fewer_bytes_cross() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let codecs = [("none", 1.0), ("bf16", 0.51), ("qsgd:4:512", 0.14), ("topk:0.01", 0.03)];
    for (transport, (codec, share)) in
        copying_transports().into_iter().flat_map(|wire| codecs.map(|codec| (wire, codec)))
    {
        let mut sessions = ready_all(2, |rank| {
            let mut config = config(&hub, &format!("{transport}-{}", codec.replace(':', "-")), rank, 2);
            config.terms.keys = vec![Key::f32("a", [64 << 10])];
            config.terms.chunk_bytes = 32 << 10;
            config.transport = Some(transport);
            config.terms.level.compression = codec.parse().ok();
            config
        });
        let before = sessions[0].traffic();
        for session in &mut sessions {
            let gradient = session.gradient_mut::<f32>(FIRST).unwrap();
            gradient.iter_mut().enumerate().for_each(|(i, value)| *value = (i % 1000) as f32 - 500.0);
            session.push(FIRST).unwrap();
        }
        sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
        let now = sessions[0].traffic();
        let whole = (4 * (64 << 10)) as f64;
        let (sent, received) = ((now.sent - before.sent) as f64, (now.received - before.received) as f64);
        assert!(
            sent <= share * whole && received <= 2.0 * share * whole,
            "{codec} by {transport}: {sent} and {received} bytes"
        );
        assert!(sent > 0.3 * share * whole, "{codec} by {transport}: {sent} bytes are too few to be true");
        assert_eq!(
            before.sent as f64,
            if codec == "none" { whole } else { whole + 8.0 * 8.0 },
            "the broadcast"
        );
    }
}

/// With Slim-DP, the share alpha of the model is sent. With `keys`, the explorer's elements are sent with
/// their places, which have 16 bits.
#[test]
fn alpha_of_the_model_crosses() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let parameters = 256 << 10;
    let optimizer = Optimizer::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
    let jobs = [
        ("slim:0.2:0.1:50", 0.2, 0.2),
        ("slim:0.2:0.1:50:none:keys", 0.2 + 0.1 / 2.0, 0.2),
        ("slim:0.3:0.3:50", 0.3, 0.3),
        ("slim:0.3:0:50:none:keys", 0.3 + 0.3 / 2.0, 0.3),
    ];
    for (wire, (text, pushed, answered)) in
        copying_transports().into_iter().flat_map(|wire| jobs.map(|job| (wire, job)))
    {
        on_threads(2, |rank| {
            let mut config = config(&hub, &format!("{wire}-{}", text.replace([':', '.'], "-")), rank, 2);
            config.terms.keys = vec![Key::f32("a", [parameters])];
            (config.terms.chunk_bytes, config.transport) = (32 << 10, Some(wire));
            (config.terms.level.compression, config.terms.optimizer) =
                (Some(text.parse().unwrap()), optimizer);
            let mut session = Session::join(config).unwrap();
            session.broadcast_written().unwrap();
            for round in 1..=4 {
                let before = session.traffic();
                fill_gradient(1, rank, round, FIRST, session.gradient_mut(FIRST).unwrap());
                session.push(FIRST).unwrap();
                session.wait_all().unwrap();
                let now = session.traffic();
                let part = |bytes: u64| bytes as f64 / (4.0 * parameters as f64);
                let (sent, received) = (part(now.sent - before.sent), part(now.received - before.received));
                // The first two rounds send all values. The answer of the second round also has the significant set,
                // which is a bit for each parameter.
                let (pushed, answered) = match round {
                    1 => (1.0, 1.0),
                    2 => (1.0, 1.0 + 1.0 / 32.0),
                    _ => (pushed, answered),
                };
                let what =
                    format!("{text} by {wire}, round {round}: {sent} of the model sent, {received} received");
                // The headers have 24 bytes for each chunk, which is 0.0007 of the model.
                assert!((sent - pushed).abs() < 0.003, "{what}, not {pushed}");
                assert!((received - answered).abs() < 0.003, "{what}, not {answered}");
            }
            session.leave().unwrap();
        });
    }
}
