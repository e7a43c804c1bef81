//! Members of a job that post messages which no session posts. Each loses its link, the job's error names the
//! rank and the fault, and another job continues with the right bits.

use fabric::Port as _;
use fabric::any::{ConnectError, Transport};
use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{config, describe, hub, join_by_hand, join_request, push_all, says};
use pbox_core::ChunkId;
use pbox_core::control::JoinReply;
use phub_server::Hub;
use worker_shim::Session;

use super::by_hand::{self, ByHand, JOB};

fn join(hub: &Hub) -> ByHand {
    ByHand::join(hub, &join_request(0, 2), Transport::Shm)
}

fn connect(reply: JoinReply) -> Result<ByHand, ConnectError> {
    ByHand::connect(reply, &join_request(0, 2), Transport::Shm)
}

/// Posts any immediate to any core, with the bytes of chunk 0.
fn post(attacker: &mut ByHand, core: usize, chunk: u32, round: u32) {
    attacker.post(core, attacker.wire.gradient_span(ChunkId(0)), chunk, round);
}

/// Attacks a hub that has another job. Returns the error of the other worker of the attacked job.
fn attack(hub: &Hub, violate: impl FnOnce(&mut ByHand)) -> String {
    let address = hub.address().to_string();
    let beside = Training { rounds: 100, ..Training::small("beside") };
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| beside.run(&address));
        let victim = || config(hub, JOB, 1, 2);
        let error = by_hand::attack(hub, &join_request(0, 2), Transport::Shm, victim, violate);
        beside.join().expect("the job beside goes on");
        error
    })
}

/// A worker that writes its gradients while the hub reads them makes wrong values only in its own job.
#[test]
fn a_gradient_that_is_written_while_it_is_read() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    const ROUNDS: u32 = 300;
    let beside = Training { rounds: 200, ..Training::small("beside") };
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| beside.run(&address));
        let victim = scope.spawn(|| {
            let mut victim = Session::join(config(&hub, JOB, 1, 2)).unwrap();
            victim.broadcast_weights(|_, _: &mut [f32]| ()).unwrap();
            for _ in 1..ROUNDS {
                push_all(&mut victim).unwrap();
                victim.wait_all().unwrap();
            }
            victim // returned, because the job ends when its session is dropped
        });
        let mut attacker = join(&hub);
        attacker.until_running(&hub);
        let chunks = attacker.chunks();
        for round in 0..ROUNDS {
            for chunk in 0..chunks {
                let core = attacker.owner(chunk);
                post(&mut attacker, core, chunk, round);
            }
            let mut answers = 0;
            while answers < chunks as usize {
                // The values are all kinds of bit patterns, also NaN, until the round is over.
                let bits = 0x7f80_0001u32.wrapping_mul(round + answers as u32 + 1);
                for chunk in 0..chunks as usize {
                    attacker.gradient.elements_mut::<f32>(chunk).fill(f32::from_bits(bits));
                }
                answers += attacker.poll();
            }
        }
        drop(victim.join().expect("the victim's rounds end"));
        beside.join().expect("the job beside has right bits");
    });
    Training::small("after").run(&address);
}

#[test]
fn a_chunk_that_does_not_exist() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for chunk in [13, 1000, pbox_core::MAX_CHUNKS - 1] {
        let error = attack(&hub, |attacker| post(attacker, 0, chunk, 0));
        says(error, &[&format!("chunk {chunk}"), "does not own", "13 chunks"]);
    }
}

#[test]
fn a_chunk_twice_in_a_round() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let error = attack(&hub, |attacker| {
        let core = attacker.owner(3);
        post(attacker, core, 3, 0);
        post(attacker, core, 3, 0);
    });
    // If the victim's push of the chunk arrives between the two pushes of the attacker, the attacker's
    // second push belongs to an old round.
    assert!(
        ["chunk 3 twice in round 0", "chunk 3 for a round that is 0 modulo 64, but round 1"]
            .iter()
            .any(|words| error.contains(words)),
        "{error}"
    );
}

#[test]
fn a_chunk_of_another_core() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    if describe(&hub.address().to_string()).cores.len() < 2 {
        return eprintln!("this machine has one cpu: there is no other core");
    }
    let error = attack(&hub, |attacker| {
        let core = 1 - attacker.owner(5);
        post(attacker, core, 5, 0);
    });
    says(error, &["chunk 5", "link of a core that does not own it"]);
}

#[test]
fn a_chunk_of_another_round() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for round in [1, 63] {
        let error = attack(&hub, |attacker| {
            let core = attacker.owner(7);
            post(attacker, core, 7, round);
        });
        says(error, &["chunk 7", &format!("{round} modulo 64"), "round 0", "in flight"]);
    }
}

#[test]
fn a_link_that_hangs_up() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let error = attack(&hub, |attacker| {
        let link = attacker.links.remove(0);
        attacker.port.detach(link);
    });
    says(error, &["closed the link, exited or was killed"]);
}

#[test]
fn an_unknown_token() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let good = join_by_hand(&hub, JOB, &join_request(0, 2));
    let bad = JoinReply { token: "0".repeat(32), ..good };
    says(connect(bad).map(|_| ()).unwrap_err(), &["refused", "token", "join first"]);
}

/// Two connections with one token would be two links of one rank.
#[test]
fn a_token_used_twice() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let first = join(&hub);
    let again = connect(first.reply.clone());
    says(again.map(|_| ()).unwrap_err(), &["refused", "worker 0", &format!("{JOB:?}"), "connected already"]);
    drop(first);
    // The cores still work.
    Training::small("after").run(&hub.address().to_string());
}
