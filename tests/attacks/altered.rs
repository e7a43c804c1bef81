//! A network that alters a bit in spite of TCP's checksum, which has only 16 bits. With checksums, the job
//! ends with an error that names the frame. Without checksums, a worker gets a wrong weight, and no error
//! shows it.

use std::convert::Infallible;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::relay::{RelayPath, Stall};
use hub_tests::values::bits;
use hub_tests::{config_at, on_threads, ready_all, says};
use worker_shim::SessionError;

use super::{Behind, beside};
use crate::processes::worker::Worker;

/// The length of the hello, which a worker sends before its first frame, and of the hub's welcome.
const HELLO: u64 = 80;
const WELCOME: u64 = 16;
/// The header lengths of plain frames and of frames with checksums.
const PLAIN_HEADER: u64 = 16;
const HEADER: u64 = 32;

/// Trains until an error, and returns the error. Checks every bit of every round.
fn train(args: &str) -> String {
    let endless = || -> Result<Infallible, SessionError> {
        let mut worker = Worker::join(args)?;
        loop {
            worker.round()?;
        }
    };
    let Err(error) = endless();
    error.to_string()
}

/// Returns the errors of worker 1 and worker 0 after one altered bit. The bit is in byte `at` of the stream
/// of worker 0 in this direction. `asks` is `checksum` if worker 0 asks for checksums, and else empty. Worker
/// 0 broadcasts the weights, so its first frames already carry bytes.
fn altered(hub: &Behind, asks: &str, direction: Stall, at: u64) -> [String; 2] {
    hub.relay.alter(RelayPath::Data, direction, at);
    let (near, far) = (hub.address(), hub.relay.address());
    let errors = on_threads(2, |rank| match rank {
        0 => train(&format!("{near} altered 1 2")),
        _ => train(&format!("{far} altered 0 2 tcp {asks}")),
    });
    assert!(hub.relay.has_altered(RelayPath::Data));
    errors.try_into().unwrap()
}

#[test]
fn an_altered_bit_is_named_and_never_counted() {
    let _watchdog = Watchdog::start();
    for (variables, asks) in [(&[("PHUB_CHECKSUM", "1")][..], ""), (&[], "checksum")] {
        let hub = Behind::start(variables);
        beside(&[&hub.address()], || {
            let later = 3_000; // the first rounds are right
            let header = "the header of a frame";
            let frame = "a frame of 64 bytes for offset";
            for (at, what) in
                [(2, header), (9, header), (14, header), (HEADER + 5, frame), (later, "a frame")]
            {
                let [other, _] = altered(&hub, asks, Stall::UP, HELLO + at);
                says(
                    &other,
                    &[
                        "\"altered\" failed",
                        "worker 0 is gone",
                        what,
                        "has checksum",
                        "expected",
                        "alters bytes",
                    ],
                );
                let [_, error] = altered(&hub, asks, Stall::DOWN, WELCOME + at);
                says(
                    &error,
                    &[
                        "at this worker, rank 0",
                        "the link to the hub's core",
                        what,
                        "has checksum",
                        "expected",
                        "alters bytes",
                    ],
                );
            }
            let [other, _] = altered(&hub, asks, Stall::UP, HELLO + HEADER + 5);
            says(&other, &[frame, "with chunk", "round 0 modulo 64"]);
        });
    }
}

/// A wrong bit becomes a weight if there are no checksums.
#[test]
fn without_checksums_a_wrong_bit_is_a_weight() {
    let _watchdog = Watchdog::start();
    let hub = Behind::start(&[]);
    hub.relay.alter(RelayPath::Data, Stall::DOWN, WELCOME + PLAIN_HEADER + 5);
    let (near, far) = (hub.address(), hub.relay.address());
    let sessions = ready_all(2, |rank| {
        let mut config = config_at(if rank == 0 { &near } else { &far }, "wrong", rank, 2);
        config.transport = (rank == 1).then_some(Transport::Tcp);
        config
    });
    let weights = sessions.iter().map(|session| {
        session.keys().flat_map(|key| bits(session.weights::<f32>(key).unwrap())).collect::<Vec<u32>>()
    });
    let weights: Vec<_> = weights.collect();
    let wrong: u32 =
        weights[0].iter().zip(&weights[1]).map(|(right, seen)| (right ^ seen).count_ones()).sum();
    assert_eq!(wrong, 1);
}
