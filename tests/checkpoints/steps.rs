//! Keys that have made different numbers of steps: Adam continues to count the steps of each key. The
//! state comes from a worker or from a checkpoint, on one hub and on several. The bits are those of a job
//! that was never interrupted. All hyperparameters of the optimizer continue in the same way.

use super::checkpoint::{ADAM, hub_every};
use super::state::{gather, train_to};
use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::values::{Reference, Saved, same_bits};
use hub_tests::{addresses, hub, on_threads};
use pbox_core::{Consistency, Dtype, Key, KeyId, Numbers, Optimizer, Round};
use phub_server::Hub;
use worker_shim::{Session, SessionError, State};

/// The number of steps of each key: fewer than rounds, as many as rounds, and none.
const STEPS: [u32; 3] = [1, 3, 0];

/// The round that follows the state.
const BEFORE: u32 = 4;

fn keys() -> Vec<Key> {
    let mut keys = vec![Key::f32("a", [3000]), Key::f32("b", [1]), Key::f32("c", [70, 90])];
    keys[2].dtype = Dtype::BF16;
    keys
}

fn trained(job: &str) -> Training {
    let mut training = Training::new(job, keys(), ADAM);
    (training.workers, training.chunk_bytes) = (2, 1024);
    training
}

/// Returns a state in which each value differs from zero.
fn state() -> Saved {
    let training = trained("before");
    let hub = hub(1);
    let address = hub.address().to_string();
    let states = on_threads(training.workers, |rank| {
        let mut session = Session::join(training.config(&address, rank)).unwrap();
        training.broadcast(&mut session, rank).unwrap();
        train_to(&training, &mut session, rank, BEFORE - 1);
        let state = (rank == 0).then(|| gather(&[&address], "before", &training.keys, &training.optimizer));
        session.leave().unwrap();
        state
    });
    states.into_iter().flatten().next().unwrap()
}

/// Continues a job from the state `brings` of rank 0, or from the state at the hubs if `brings` is `None`.
/// Makes rounds up to the round `last`.
fn goes_on(
    training: &Training,
    hubs: &[Hub],
    brings: Option<&Saved>,
    change: impl Fn(&mut Session) -> Result<(), SessionError> + Sync,
    last: u32,
) -> Vec<Vec<Vec<f32>>> {
    let address = addresses(hubs);
    on_threads(training.workers, |rank| {
        let config = training.config(&address, rank);
        let brought = brings.filter(|_| rank == 0).map(Saved::state);
        let mut session = match brought {
            Some(state) => {
                Session::join_with(config, State { steps: Some(STEPS.to_vec()), ..state }).unwrap()
            }
            None => Session::join(config).unwrap(),
        };
        if rank == 0 {
            change(&mut session).unwrap();
        }
        train_to(training, &mut session, rank, last);
        let weights = session.keys().map(|key| training.read(&session, key)).collect();
        session.leave().unwrap();
        weights
    })
}

/// Brings the state to some hubs, trains, saves, and trains again. All hyperparameters change in each of the
/// two jobs.
fn go_on_from_file(hubs: usize) {
    let state = state();
    let dirs: Vec<_> = (0..hubs).map(|_| tempfile::tempdir().unwrap()).collect();
    let start = || -> Vec<Hub> { dirs.iter().map(|dir| hub_every(dir.path(), None)).collect() };
    let training = trained("job");
    let (learning_rate, weight_decay, epsilon) = (0.05, 0.25, 1e-4);
    let next = Optimizer::Adam { learning_rate, weight_decay, beta1: 0.5, beta2: 0.75, epsilon };
    let table = vec![[1.0, 1.0], [2.0, 0.5], [0.25, 1.0]];
    let of_keys = || Some(table.clone());
    let mut reference =
        Reference::new(training.seed, training.workers, ADAM, &training.keys).with(&state).with_steps(&STEPS);
    let at_start = Numbers::new(ADAM);

    let first = start();
    let changes = |session: &mut Session| session.set_optimizer(next, of_keys());
    goes_on(&training, &first, Some(&state), changes, BEFORE + 1);
    let changed = at_start.then(Numbers { multipliers: Some(table.clone().into()), ..Numbers::new(next) });
    (0..2).for_each(|_| reference.advance_by(&changed));
    first.into_iter().for_each(|hub| assert!(hub.stop("its checkpoint is written").is_empty()));

    // The job continues with its hyperparameters, and a new learning rate changes no other hyperparameter.
    let second = start();
    let mut other = training.clone();
    other.chunk_bytes = if hubs == 1 { 256 } else { 1024 };
    goes_on(&other, &second, None, |_| Ok(()), BEFORE + 2);
    reference.advance_by(&changed);
    second.into_iter().for_each(|hub| assert!(hub.stop("its checkpoint is written").is_empty()));
    let third = start();
    let seen = goes_on(&other, &third, None, |session| session.set_learning_rate(0.5), BEFORE + 3);
    reference.advance_by(&changed.with_learning_rate(0.5));
    for weights in seen {
        for (key, (seen, expected)) in weights.iter().zip(&reference.weights).enumerate() {
            same_bits(format!("{hubs} hubs, key {key}"), seen, expected);
        }
    }
}

#[test]
fn keys_with_different_steps_go_on_from_a_checkpoint() {
    let _watchdog = Watchdog::start();
    go_on_from_file(1);
}

#[test]
fn keys_with_different_steps_go_on_from_the_parts_of_several_hubs() {
    let _watchdog = Watchdog::start();
    go_on_from_file(2);
}

/// The state of a key is reset between two rounds; the other keys keep theirs.
#[test]
fn the_state_of_a_key_is_set_to_zero_between_rounds() {
    let _watchdog = Watchdog::start();
    let (state, training, hub) = (state(), trained("job"), hub(2));
    let mut reference =
        Reference::new(training.seed, training.workers, ADAM, &training.keys).with(&state).with_steps(&STEPS);
    [0, 2].into_iter().for_each(|key| reference.reset(KeyId(key)));
    (0..3).for_each(|_| reference.advance_by(&Numbers::new(ADAM)));
    let reset = |session: &mut Session| session.set_numbers(Numbers::new(ADAM), &[KeyId(0), KeyId(2)]);
    for weights in goes_on(&training, &[hub], Some(&state), reset, BEFORE + 2) {
        for (key, (seen, expected)) in weights.iter().zip(&reference.weights).enumerate() {
            same_bits(format!("key {key}"), seen, expected);
        }
    }
}

#[test]
fn states_of_keys_that_do_not_exist_are_not_set_to_zero() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut config = trained("job").config(&hub.address().to_string(), 0);
    config.terms.workers = 1;
    let mut session = Session::join(config.clone()).unwrap();
    session.broadcast_written().unwrap();
    let refused = session.set_numbers(Numbers::new(ADAM), &[KeyId(3)]).unwrap_err().to_string();
    assert!(refused.contains("reset: there is no key 3 of 3"), "{refused}");
    session.leave().unwrap();
    config.terms.level.consistency = Consistency::Asp;
    config.terms.compare_every = 0;
    let mut session = Session::join(config).unwrap();
    session.broadcast_written().unwrap();
    let refused = session.set_numbers(Numbers::new(ADAM), &[KeyId(0)]).unwrap_err().to_string();
    assert!(refused.contains("reset: with consistency asp"), "{refused}");
}

#[test]
fn steps_of_other_keys_are_refused() {
    let _watchdog = Watchdog::start();
    let (state, training, hub) = (state(), trained("job"), hub(1));
    let brought = State { before: Round(BEFORE), steps: Some(vec![1; 2]), ..state.state() };
    let config = training.config(&hub.address().to_string(), 0);
    let error = Session::join_with(config, brought).err().unwrap().to_string();
    assert!(
        error.contains("numbers of steps for 2 keys: expected a number for each of the job's 3 keys"),
        "{error}"
    );
}
