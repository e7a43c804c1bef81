//! A state that rank 0 brings to the hub of its machine is sent to the hubs at the top. A client fetches the
//! state from these hubs.

use std::time::Duration;

use fabric::conformance::Watchdog;
use hub_tests::state::fetch_all;
use hub_tests::values::{self, Saved, bits};
use hub_tests::{
    PATIENT_S, authorization, bring, config_at, hub, hub_below, join_by_hand, join_request, on_threads, says,
    small_model,
};
use pbox_core::{KeyId, Optimizer, Round, Schedule, Tensors};
use phub_server::Hub;
use worker_shim::{Session, SessionConfig, State};

use super::checkpoints::mesh;
use super::{Machines, on_machines};
use crate::checkpoints::checkpoint::rounds;
use crate::checkpoints::state::{elements, offer, ones};

const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.1, weight_decay: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
const BEFORE: Round = Round(7);
const LAST: Round = Round(10);

/// Returns the bytes of weights, of Adam's two moments and of averages, without negative values.
fn values() -> Vec<u8> {
    let value = |i: usize| values::weight(5, KeyId(0), i).abs();
    (0..4 * elements()).flat_map(|i| value(i).to_le_bytes()).collect()
}

fn state() -> State {
    State { before: BEFORE, steps: None, values: Box::new(std::io::Cursor::new(values())) }
}

fn state_at(hubs: &[String], job: &str) -> Saved {
    let tensors = Tensors::from(ADAM).with_ema(Some(0.9));
    fetch_all(hubs, job, &small_model(), &tensors, Duration::from_secs(PATIENT_S)).unwrap()
}

/// Trains two workers with these settings; the first worker brings a state. Returns the bits of the last
/// weights and averages. The hubs `top` have the state, under the job name `job`.
fn train(
    config: impl Fn(u32) -> SessionConfig + Sync,
    schedule: Schedule,
    top: &[String],
    job: &str,
) -> Vec<Vec<u32>> {
    let ended = on_threads(2, |worker| {
        let mut averages: Vec<Vec<u32>> = Vec::new();
        let mut config = config(worker);
        let is_flat = config.terms.workers == 2;
        (config.terms.optimizer, config.terms.level.schedule) = (ADAM, schedule);
        config.terms.ema = Some(0.9);
        let mut session = match worker {
            0 => Session::join_with(config, state()).unwrap(),
            // If the worker is alone on its machine, its state has no effect.
            1 if !is_flat => Session::join_with(config, ones(9, 5)).unwrap(),
            _ => Session::join(config).unwrap(),
        };
        assert_eq!(session.next_round(), BEFORE);
        if worker == 0 {
            let seen = state_at(top, job);
            assert!(seen.before == BEFORE && seen.values == values());
        }
        for round in BEFORE.0..LAST.0 {
            for key in session.keys() {
                values::fill_gradient(3, worker, round, key, session.gradient_mut(key).unwrap());
                session.push(key).unwrap();
            }
            session.wait_all().unwrap();
        }
        if worker == 0 {
            // The other worker continues meanwhile, or leaves.
            let last = state_at(top, job);
            assert_eq!(last.before, LAST);
            averages = last.tensor(&small_model(), 3).iter().map(|averages| bits(averages)).collect();
        }
        let weights: Vec<_> = session.keys().map(|key| bits(session.weights(key).unwrap())).collect();
        session.leave().unwrap();
        (weights, averages)
    });
    let [(first, averages), (second, _)] = ended.try_into().unwrap();
    assert_eq!(first, second);
    [first, averages].concat()
}

#[test]
fn a_state_goes_through_every_shape_of_hubs_with_the_bits_of_the_flat_job() {
    let _watchdog = Watchdog::start();
    let flat = hub(2);
    let flat = flat.address().to_string();
    let of_flat = |rank| config_at(&flat, "job", rank, 2);
    let expected = train(of_flat, Schedule::Sliced, std::slice::from_ref(&flat), "job");
    let names = |hubs: &[Hub]| hubs.iter().map(|hub| hub.address().to_string()).collect::<Vec<_>>();
    for machines in [Machines::mesh(2), Machines::start(1, 2), Machines::start(2, 2)] {
        let top = names(if machines.is_mesh { &machines.below } else { &machines.top });
        for schedule in [Schedule::Sliced, Schedule::KvStore] {
            let config = |machine| machines.config(machine, "job", 0, 1);
            assert_eq!(train(config, schedule, &top, "job.above"), expected, "{schedule:?}");
        }
    }
    // Three levels.
    let top = [hub(1), hub(1)];
    let list = hub_tests::addresses(&top);
    let racks = [0, 1].map(|rack| hub_below(&list, rack, 2));
    let machines = racks.each_ref().map(|rack| hub_below(&rack.address().to_string(), 0, 1));
    let hubs = machines.each_ref().map(|hub| hub.address().to_string());
    let config = |machine: u32| config_at(&hubs[machine as usize], "job", 0, 1);
    assert_eq!(train(config, Schedule::Sliced, &names(&top), "job.above.above"), expected);
}

/// Scripts load their state on every machine. As in a broadcast, only the state of the first machine's rank 0
/// counts.
#[test]
fn every_machine_may_bring_a_state() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::mesh(2), Machines::start(1, 2)] {
        on_machines(2, 2, |machine, rank, _| {
            let config = machines.config(machine, "job", rank, 2);
            let mut session = match rank {
                0 => Session::join_with(config, ones(BEFORE.0, elements())).unwrap(),
                _ => Session::join(config).unwrap(),
            };
            assert_eq!(session.next_round(), BEFORE);
            rounds(&mut session, 2).unwrap();
            crate::checkpoints::checkpoint::weights_are(&session, 0.0);
            session.leave().unwrap();
        });
    }
}

#[test]
fn a_state_of_another_length_is_refused_below_other_hubs() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::mesh(1), Machines::start(1, 2), Machines::start(2, 2)] {
        for (values, why) in [(elements() - 1, "bytes too early"), (elements() + 1, "too long")] {
            let config = machines.config(0, &format!("job.{values}"), 0, 1);
            says(Session::join_with(config, ones(7, values)).map(drop).unwrap_err(), &["state", why]);
        }
    }
}

#[test]
fn a_job_whose_top_has_a_state_goes_on_with_its_own() {
    let _watchdog = Watchdog::start();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let machines = mesh(&dirs);
    for next in [Round(9), Round(11)] {
        on_machines(2, 1, |machine, rank, _| {
            let config = machines.config(machine, "job", rank, 1);
            let mut session = Session::join_with(config, ones(9, elements())).unwrap();
            assert_eq!(session.next_round(), next);
            rounds(&mut session, 2).unwrap();
            session.leave().unwrap();
        });
    }
}

#[test]
fn a_bad_offer_and_a_bad_state_are_refused_below_other_hubs() {
    let _watchdog = Watchdog::start();
    let machines = Machines::start(2, 2);
    let [first, second] = &machines.below[..] else { unreachable!() };
    let rank_0 = join_by_hand(first, "job", &join_request(0, 2));
    let rank_1 = join_by_hand(first, "job", &join_request(1, 2));
    says(offer(first, "job", &rank_1.token, 3).unwrap_err(), &["400: worker 1 offers a state", "rank 0"]);
    says(offer(first, "job", &rank_0.token, 0).unwrap_err(), &["400: the state is before round 0"]);
    says(bring(first, "job", &rank_0.token, vec![0; 4]).1, &["expects no state from worker 0"]);
    let bytes = offer(first, "job", &rank_0.token, 3).unwrap().unwrap() as usize;
    assert_eq!(bytes, 4 * elements());
    says(offer(first, "job", &rank_0.token, 3).unwrap_err(), &["409", "too late"]);
    let elsewhere = join_by_hand(second, "job", &join_request(0, 2));
    assert_eq!(offer(second, "job", &elsewhere.token, 3).unwrap(), None);
    says(bring(second, "job", &elsewhere.token, vec![0; bytes]).1, &["expects no state"]);
    assert_eq!(bring(first, "job", &rank_0.token, vec![0; bytes + 1]).0, 413);
    let (status, why) = bring(first, "job", &rank_0.token, vec![0; bytes - 4]);
    assert_eq!((status, why.contains("expects no state")), (409, true), "once: {why}");
}

#[test]
fn a_short_state_is_refused_by_the_machines_hub() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::start(1, 2), Machines::start(2, 2)] {
        let first = &machines.below[0];
        let joined = join_by_hand(first, "job", &join_request(0, 1));
        let bytes = offer(first, "job", &joined.token, 3).unwrap().unwrap() as usize;
        let (status, why) = bring(first, "job", &joined.token, vec![0; bytes - 4]);
        assert_eq!(status, 400);
        says(why, &[&format!("{} bytes, expected {bytes}", bytes - 4), "join again"]);
    }
}

#[test]
fn a_hub_below_others_says_who_has_the_state() {
    let _watchdog = Watchdog::start();
    let machines = Machines::start(1, 1);
    let mut session = Session::join(machines.config(0, "job", 0, 1)).unwrap();
    session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(1.0)).unwrap();
    let url = format!("http://{}/v1/jobs/job/state", machines.address(0));
    let mut answer = ureq::get(url)
        .header("authorization", authorization())
        .config()
        .http_status_as_error(false)
        .build()
        .call()
        .unwrap();
    assert_eq!(answer.status(), 409);
    let top = machines.top[0].address().to_string();
    says(answer.body_mut().read_to_string().unwrap(), &["at the hubs above", "job.above", &top]);
}
