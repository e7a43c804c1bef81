//! Compressed jobs whose workers join and leave. All workers have the same weights. RDMA is tested if
//! `PHUB_TEST_DEVICE` names devices.

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::values::{self, bits};
use hub_tests::{config, copying_transports, hub, push_all, ready_all};
use pbox_core::OnLoss;
use pbox_core::Round;
use worker_shim::Session;

fn until_members(session: &Session, expected: &[u32]) {
    while session.members() != expected {
        std::thread::yield_now();
    }
}

/// Makes a round: all workers push the gradients of their rank and round, and wait. Asserts that all have the
/// same bits.
fn round(sessions: &mut [(u32, Session)]) {
    for (rank, session) in sessions.iter_mut() {
        let round = session.next_round().0;
        for key in session.keys() {
            values::fill_gradient(5, *rank, round, key, session.gradient_mut(key).unwrap());
        }
        push_all(session).unwrap();
    }
    sessions.iter_mut().for_each(|(_, session)| session.wait_all().unwrap());
    all_have_the_same(sessions);
}

fn all_have_the_same(sessions: &[(u32, Session)]) {
    let seen = |session: &Session| -> Vec<Vec<u32>> {
        session.keys().map(|key| bits(session.weights(key).unwrap())).collect()
    };
    let first = seen(&sessions[0].1);
    for (rank, session) in sessions {
        assert_eq!(seen(session), first, "rank {rank} has what the others have");
    }
}

#[test]
fn workers_come_and_go_and_all_have_the_same_weights() {
    let _watchdog = Watchdog::start();
    for transport in [Transport::Shm].into_iter().chain(copying_transports()) {
        for codec in ["bf16", "qsgd:4", "topk:0.1"] {
            let hub = hub(2);
            let config = |rank| {
                let mut config = config(&hub, "job", rank, 3);
                (config.terms.on_loss, config.transport) = (OnLoss::Continue, Some(transport));
                config.terms.level.compression = Some(codec.parse().unwrap());
                config
            };
            let mut sessions: Vec<(u32, Session)> = (0..).zip(ready_all(3, config)).collect();
            round(&mut sessions);
            drop(sessions.remove(1));
            until_members(&sessions[0].1, &[0, 2]);
            round(&mut sessions);
            round(&mut sessions);
            let back = Session::join(config(1)).unwrap();
            assert_eq!(back.next_round(), Round(4));
            sessions.push((1, back));
            all_have_the_same(&sessions);
            round(&mut sessions);
            // The join is in the middle of a round. The newcomer gets each chunk when the other workers get
            // it.
            for (_, session) in &mut sessions[..2] {
                push_all(session).unwrap();
            }
            drop(sessions.pop());
            until_members(&sessions[0].1, &[0, 2]);
            sessions.iter_mut().for_each(|(_, session)| session.wait_all().unwrap());
            all_have_the_same(&sessions);
            round(&mut sessions);
        }
    }
}
