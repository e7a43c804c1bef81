//! Hubs that lose their links to a living hub above make new links, as workers do. All weights have the bits
//! of a run without losses. `tests/sim/{bits,staleness}/levels.rs` tests the same with random seeds, for
//! codecs, schedules and machines that step alone.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::relinks::cut;
use super::returning::{WORKERS, begun, end_together, step, weights};
use super::returns_of_levels::{Cluster, MACHINES, on_machines};
use fabric::conformance::Watchdog;
use hub_tests::relay::{Relay, RelayPath, Stall};
use hub_tests::{describe, free_address, says};
use worker_shim::{Returns, SessionConfig};

const TOP: usize = MACHINES as usize;

/// Starts hubs of two machines below another hub, which they reach through a relay.
fn through_a_network(above_limit_s: u32) -> (Cluster, Relay, String) {
    let mut relay = None;
    let cluster = Cluster::start_with(false, 1_000_000, above_limit_s, |addresses, variables| {
        let data = free_address();
        let network = Relay::start(addresses[TOP], data);
        variables[TOP].extend([
            ("PHUB_DATA_LISTEN", data.to_string()),
            ("PHUB_CORES", "1".to_owned()), // the relay has one data port
            ("PHUB_TRANSPORTS", "tcp".to_owned()),
        ]);
        for variables in &mut variables[..TOP] {
            variables.retain(|(name, _)| *name != "PHUB_ABOVE");
            variables.push(("PHUB_ABOVE", network.address()));
        }
        relay = Some((network, addresses[TOP].to_string()));
    });
    let (relay, top) = relay.expect("just made");
    (cluster, relay, top)
}

/// Returns the weights of all workers after some steps, and the number of times that hubs made new links.
fn run(cuts: bool) -> (Vec<Vec<Vec<u32>>>, u64) {
    const STEPS: u32 = 60;
    let (cluster, relay, top) = through_a_network(30);
    let (made, over, ended) = (AtomicU32::new(0), AtomicBool::new(!cuts), AtomicU32::new(0));
    let configs: Vec<SessionConfig> =
        (0..MACHINES * WORKERS).map(|number| cluster.config(number / WORKERS, number % WORKERS)).collect();
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| cut(&[&relay], &made, &over));
        on_machines(|worker| {
            let mut session = begun(configs[worker as usize].clone());
            for number in 0..STEPS {
                step(&mut session, worker, number).unwrap();
                made.fetch_add(1, Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
            end_together(&mut session, &ended, MACHINES * WORKERS);
            assert_eq!((session.returns(), session.relinks()), (Returns::default(), 0));
            weights(&session)
        })
    });
    (seen, describe(&top).counts.relinks)
}

#[test]
fn links_that_lead_up_are_made_again_and_change_no_bit() {
    let _watchdog = Watchdog::start();
    let (expected, none) = run(false);
    let (seen, relinks) = run(true);
    assert_eq!(seen, expected);
    assert!(relinks > 5 && none == 0, "{relinks} {none}");
}

#[test]
fn links_that_lead_up_and_cannot_be_made_again_end_the_job_in_words() {
    let _watchdog = Watchdog::start();
    let (cluster, relay, _) = through_a_network(2);
    let ready = AtomicU32::new(0);
    let errors = on_machines(|worker| {
        let config = cluster.config(worker / WORKERS, worker % WORKERS);
        let mut session = begun(SessionConfig { hub_wait: Duration::ZERO, ..config });
        step(&mut session, worker, 0).unwrap();
        if ready.fetch_add(1, Ordering::Relaxed) + 1 == MACHINES * WORKERS {
            relay.stall(RelayPath::Data, Stall::BOTH);
            relay.cut(RelayPath::Data);
        }
        (1..).find_map(|number| step(&mut session, worker, number).err()).expect("the job ends")
    });
    for error in errors {
        says(error, &["\"job\" failed", "a link to the hubs above", "reconnecting failed"]);
    }
}
