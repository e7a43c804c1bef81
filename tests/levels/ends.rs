//! If a job ends, the workers of all its machines learn the reason, and which machine caused the end. Wrong
//! settings of hubs are refused with an error that names them, in bounded time.

use std::sync::OnceLock;
use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::proxy::Proxy;
use hub_tests::values::flip_a_bit;
use hub_tests::{
    FIRST, NOWHERE, SGD, addresses, config_at, describe, free_address, hub, hub_below, on_threads, push_all,
    ready_all, refused, says, settings,
};
use pbox_core::OnLoss;
use phub_server::{Hub, HubSettings, Machine};
use rustix::process::Signal;
use serde_json::Value;
use worker_shim::{Session, SessionConfig, SessionError};

use super::{Machines, on_machines};
use crate::processes::hub::start_hub;

/// The time that a worker waits for workers that never join: long enough for its own join on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the sessions of all workers after the broadcast, by machine and rank.
fn ready(machines: &Machines, workers: u32, on_loss: OnLoss) -> Vec<Vec<Session>> {
    on_machines(machines.below.len() as u32, workers, |machine, rank, _| {
        let mut config = machines.config(machine, "job", rank, workers);
        config.terms.on_loss = on_loss;
        let mut session = Session::join(config).unwrap_or_else(|error| panic!("{machine}, {rank}: {error}"));
        session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
        session
    })
}

/// Makes a round of these sessions, each on its own thread. All gradients have the value `gradient`.
fn round<'a>(
    sessions: impl IntoIterator<Item = &'a mut Session>,
    gradient: f32,
) -> Vec<Result<f32, SessionError>> {
    let round = |session: &mut Session| {
        for key in session.keys() {
            session.gradient_mut::<f32>(key)?.fill(gradient);
            session.push(key)?;
        }
        session.wait_all()?;
        Ok(session.weights::<f32>(FIRST)?[0])
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            sessions.into_iter().map(|session| scope.spawn(move || round(session))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The control port of the hub above.
static ABOVE: OnceLock<String> = OnceLock::new();

/// Formerly a script that was started again at once got the error "rank 0 is taken" from the hubs above.
#[test]
fn a_join_waits_until_the_hubs_above_know_that_the_job_of_its_name_failed() {
    fn held(path: &str, _: &mut Value) {
        let is_refused = || describe(ABOVE.get().unwrap()).counts.refused_joins > 0;
        if path.ends_with("/leave") {
            until("the hub above has refused the next join", is_refused);
        }
    }
    let _watchdog = Watchdog::start();
    let above = hub(1);
    ABOVE.set(above.address().to_string()).unwrap();
    let proxy = Proxy::start(above.address());
    proxy.rewrites(held, |_, _| {});
    let below = hub_below(&proxy.address(), 0, 1);
    let settings = || config_at(&below.address().to_string(), "job", 0, 1);
    Session::join(settings()).unwrap().fail("on purpose");
    Session::join(settings()).unwrap();
}

#[test]
fn a_lost_worker_is_named_on_all_machines_with_its_machine() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::start(1, 2), Machines::mesh(2)] {
        lose_a_worker(&machines);
        // A job of the same name begins from zero.
        let mut sessions = ready(&machines, 2, OnLoss::Stop);
        for weight in round(sessions.iter_mut().flatten(), 1.0) {
            assert_eq!(weight.unwrap(), 0.5);
        }
    }
}

fn lose_a_worker(machines: &Machines) {
    let mut sessions = ready(machines, 2, OnLoss::Stop);
    drop(sessions[1].remove(0)); // without a leave: its links just close
    let told: Vec<_> =
        round(sessions.iter_mut().flatten(), 1.0).into_iter().map(Result::unwrap_err).collect();
    let words = ["\"job\" failed", "worker 0 is gone", "machine 1: worker 0 is gone"];
    for (at, error) in told.iter().enumerate() {
        says(error, if at < 2 { &words } else { &words[..2] });
    }
}

#[test]
fn a_worker_that_fails_says_why_on_all_machines() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::start(1, 2), Machines::mesh(2)] {
        let mut sessions = ready(&machines, 2, OnLoss::Stop);
        sessions[1].remove(0).fail("KeyError: 'x'");
        let told = round(sessions.iter_mut().flatten(), 1.0);
        let words = ["\"job\" failed", "rank 0 failed: KeyError: 'x'", "machine 1: rank 0 failed"];
        for (at, error) in told.into_iter().map(Result::unwrap_err).enumerate() {
            says(error, if at < 2 { &words } else { &words[..2] });
        }
    }
}

/// The hub of a machine does not compare rounds. The hub above ends a job whose pushes wait for a machine
/// that has left.
#[test]
fn a_machine_that_leaves_early_is_named_to_who_waits_for_it() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::start(1, 2), Machines::mesh(2)] {
        let mut sessions = ready(&machines, 1, OnLoss::Stop);
        sessions.remove(1).remove(0).leave().unwrap();
        let told = round(&mut sessions[0], 1.0).remove(0).unwrap_err();
        says(
            told,
            &["\"job\" failed", "the hub of machine 1 has left the job", "of round 1 wait", "the same calls"],
        );
    }
}

#[test]
fn a_machine_whose_weights_differ_is_named_on_all() {
    let _watchdog = Watchdog::start();
    for machines in [Machines::start(1, 3), Machines::mesh(3)] {
        let mut sessions = on_machines(3, 2, |machine, rank, _| {
            let config = machines.config(machine, "job", rank, 2);
            let transport = Some(Transport::Tcp); // on shared memory only the hub can write weights
            let config = SessionConfig { transport, ..config }.with_terms(|terms| terms.compare_every = 2);
            let mut session = Session::join(config).unwrap();
            session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
            session
        });
        for weight in round(sessions.iter_mut().flatten(), 1.0) {
            assert_eq!(weight.unwrap(), 0.5);
        }
        sessions[2].iter().for_each(|session| flip_a_bit(session.weights::<f32>(FIRST).unwrap()));
        for error in round(sessions.iter_mut().flatten(), 1.0) {
            says(error.unwrap_err(), &["weights differ before round 2", "machines [0, 1] and of [2]"]);
        }
    }
}

#[test]
fn a_job_goes_on_without_a_lost_worker_and_its_mean_is_of_those_left() {
    let _watchdog = Watchdog::start();
    let machines = Machines::start(1, 2);
    let mut sessions = ready(&machines, 2, OnLoss::Continue);
    drop(sessions[1].remove(1));
    // SGD with rate 0.5: the mean is 1 for any number of pushes. If the mean were divided by 4, a step would
    // be 0.75.
    for weight in round(sessions.iter_mut().flatten(), 1.0) {
        assert_eq!(weight.unwrap(), 0.5);
    }
    // The last worker of the machine is lost, and the other machine continues.
    drop(sessions.remove(1));
    for weight in round(sessions.iter_mut().flatten(), 1.0) {
        assert_eq!(weight.unwrap(), 0.0);
    }
    // A worker joins the lost machine's hub, and this hub joins the running job again.
    let job = describe(&machines.address(0)).jobs.remove(0);
    assert_eq!(job.above, vec![machines.top[0].address().to_string()]);
    let hub = machines.address(1);
    std::thread::scope(|scope| {
        let coming = scope.spawn(|| {
            on_threads(2, |rank| {
                let mut config = config_at(&hub, "job", rank, 2);
                config.terms.on_loss = OnLoss::Continue;
                Session::join(config).unwrap()
            })
        });
        let mut back = coming.join().unwrap();
        let all = sessions.iter_mut().flatten().chain(&mut back);
        for weight in round(all, 1.0) {
            assert_eq!(weight.unwrap(), -0.5, "newcomers have the weights of the others");
        }
    });
}

#[test]
fn a_top_that_is_killed_is_named_on_all_machines() {
    let _watchdog = Watchdog::start();
    let (top, above) = start_hub(&[]);
    let below: Vec<Hub> = (0..2).map(|machine| hub_below(&above, machine, 2)).collect();
    let machines = Machines { below, top: Vec::new(), is_mesh: false };
    let mut sessions = ready(&machines, 1, OnLoss::Stop);
    top.signal(Signal::KILL);
    for told in round(sessions.iter_mut().flatten(), 1.0) {
        says(told.unwrap_err(), &["\"job\" failed", "hub", &above]);
    }
}

/// If a mesh loses a machine, it loses that machine's share of the weights, so the job ends. If a mesh loses
/// a worker, the job continues.
#[test]
fn a_mesh_goes_on_without_a_worker_and_ends_without_a_machine() {
    let _watchdog = Watchdog::start();
    let mut machines = Machines::mesh(2);
    let mut sessions = ready(&machines, 2, OnLoss::Continue);
    drop(sessions[1].remove(1));
    for weight in round(sessions.iter_mut().flatten(), 1.0) {
        assert_eq!(weight.unwrap(), 0.5);
    }
    machines.below.remove(1).stop("the operator said so");
    for told in round(sessions.iter_mut().flatten(), 1.0) {
        says(told.unwrap_err(), &["\"job\" failed", "the operator said so"]);
    }
}

#[test]
fn a_hub_that_stops_is_named_on_all_machines() {
    let _watchdog = Watchdog::start();
    let mut machines = Machines::start(1, 2);
    let mut sessions = ready(&machines, 1, OnLoss::Stop);
    machines.below.remove(1).stop("the operator said so");
    for told in round(sessions.iter_mut().flatten(), 1.0) {
        says(told.unwrap_err(), &["\"job\" failed", "the operator said so"]);
    }
    let mut sessions = ready(&Machines::start(1, 1), 1, OnLoss::Stop);
    says(round(sessions.iter_mut().flatten(), 1.0).remove(0).unwrap_err(), &["\"job\"", "hub"]);
}

#[test]
fn a_hub_that_is_killed_is_named_on_the_other_machines() {
    let _watchdog = Watchdog::start();
    let top = hub(1);
    let above = top.address().to_string();
    let here = hub_below(&above, 0, 2);
    let (other, address) = start_hub(&[("PHUB_ABOVE", &above), ("PHUB_MACHINE", "1/2")]);
    let hubs = [here.address().to_string(), address];
    let mut sessions = on_threads(2, |machine| {
        let mut session = Session::join(config_at(&hubs[machine as usize], "job", 0, 1)).unwrap();
        session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
        session
    });
    other.signal(Signal::KILL);
    let told: Vec<_> = round(&mut sessions, 1.0).into_iter().map(Result::unwrap_err).collect();
    says(&told[0], &["\"job\" failed", "the hub of machine 1 is gone", "exited or was killed"]);
    says(&told[1], &["\"job\"", "lost the hub"]);
}

#[test]
fn the_top_that_stops_is_named_on_all_machines() {
    let _watchdog = Watchdog::start();
    let mut machines = Machines::start(1, 2);
    let mut sessions = ready(&machines, 1, OnLoss::Stop);
    machines.top.remove(0).stop("the operator said so");
    for told in round(sessions.iter_mut().flatten(), 1.0) {
        says(told.unwrap_err(), &["\"job\" failed", "the operator said so"]);
    }
}

#[test]
fn a_machine_that_does_not_come_is_named() {
    let _watchdog = Watchdog::start();
    let top = hub(1);
    let below = hub_below(&top.address().to_string(), 1, 3);
    let mut config = config_at(&below.address().to_string(), "job", 0, 1);
    config.join_limit = PATIENCE;
    says(refused(config), &["machine(s) [0, 2]", "the hub or some workers are missing"]);
    // The other machines have not joined, and this error does not wait for them.
    let name = |letters| "a".repeat(letters);
    says(
        refused(config_at(&below.address().to_string(), &name(59), 0, 1)),
        &["the name has 59 letters", "appends \".above\"", "at most 58 letters"],
    );
    let mut config = config_at(&below.address().to_string(), &name(58), 0, 1);
    config.join_limit = PATIENCE;
    says(refused(config), &["machine(s) [0, 2]"]);
}

/// A machine counts as joined when all its workers have joined.
#[test]
fn a_worker_that_does_not_come_is_named_on_its_machine_and_its_machine_on_the_others() {
    let _watchdog = Watchdog::start();
    let machines = Machines::mesh(2);
    std::thread::scope(|scope| {
        let incomplete = scope.spawn(|| {
            let mut config = machines.config(1, "job", 0, 2);
            config.join_limit = PATIENCE;
            refused(config)
        });
        let complete = scope.spawn(|| refused(machines.config(0, "job", 0, 1)));
        says(incomplete.join().unwrap(), &["waited 5s for worker(s) [1] of 2 to join"]);
        says(
            complete.join().unwrap(),
            &["machine 1: worker 0 gave up waiting for worker(s) [1] of 2 to join"],
        );
    });
    std::thread::scope(|scope| {
        let incomplete = scope.spawn(|| refused(machines.config(1, "late", 0, 2)));
        let mut config = machines.config(0, "late", 0, 1);
        config.join_limit = PATIENCE;
        says(refused(config), &["waited 5s for machine(s) [1], where the hub or some workers are missing"]);
        says(incomplete.join().unwrap(), &["machine 0: worker 0 gave up waiting for machine(s) [1]"]);
    });
}

#[test]
fn hubs_that_are_above_each_other_are_refused() {
    let _watchdog = Watchdog::start();
    let free = free_address();
    let first = hub_below(&free.to_string(), 0, 1);
    let machine = Some(Machine { number: 0, of: 1 });
    let second =
        HubSettings { listen: free, above: Some(first.address().to_string()), machine, ..settings(1, 30) };
    let second = Hub::start(&second).unwrap();
    for hub in [&first, &second] {
        says(refused(config_at(&hub.address().to_string(), "job", 0, 1)), &["circle", "--above"]);
    }
}

#[test]
fn wrong_settings_are_named() {
    let _watchdog = Watchdog::start();
    // Two hubs have the same number.
    let top = hub(1);
    let top = top.address().to_string();
    let (first, twin) = (hub_below(&top, 0, 2), hub_below(&top, 0, 2));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut config = config_at(&first.address().to_string(), "job", 0, 1);
            config.join_limit = PATIENCE;
            refused(config)
        });
        while describe(&top).jobs.is_empty() {
            std::thread::yield_now();
        }
        says(
            refused(config_at(&twin.address().to_string(), "job", 0, 1)),
            &["rank 0 of job \"job.above\" is taken"],
        );
        says(waiting.join().unwrap(), &["machine(s) [1]"]);
    });
    // No hub is above.
    let (above, machine) = (Some(NOWHERE.to_owned()), Some(Machine { number: 0, of: 1 }));
    let lost = HubSettings { above, machine, above_limit_s: 1, ..settings(1, 30) };
    let lost = Hub::start(&lost).unwrap();
    says(
        refused(config_at(&lost.address().to_string(), "job", 0, 1)),
        &["cannot join the hubs above", NOWHERE],
    );
    // The terms of the machines differ.
    let machines = Machines::start(1, 2);
    let _first = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut config = machines.config(0, "other", 0, 1);
            config.join_limit = PATIENCE;
            refused(config)
        });
        while describe(&machines.top[0].address().to_string()).jobs.is_empty() {
            std::thread::yield_now();
        }
        let mut config = machines.config(1, "other", 0, 1);
        config.terms.seed = 5;
        says(refused(config), &["\"other.above\" has seed 0", "asks for 5"]);
        other.join().unwrap()
    });
    // A hub below other hubs refuses a job over two hubs.
    let list = addresses([&machines.below[0], &machines.below[1]]);
    says(refused(config_at(&list, "job", 0, 1)), &["a hub below other hubs with 2 hubs"]);
}

#[test]
fn machines_that_do_not_meet_are_named() {
    let _watchdog = Watchdog::start();
    // The limit is long enough for two hubs that start at the same time on a busy machine.
    let impatient = HubSettings { above_limit_s: 3, ..settings(1, 30) };
    let machines = Machines {
        below: (0..2).map(|_| Hub::start(&impatient).unwrap()).collect(),
        top: Vec::new(),
        is_mesh: true,
    };
    says(refused(machines.config(0, "job", 0, 1)), &["machine(s) [1] of 2", "within 3.0 s"]);
    let of = |machine: &str, meet: &str| {
        let mut config = machines.config(0, "job", 0, 1);
        config.mesh = Some(format!("{machine}@{meet}").parse().unwrap());
        config
    };
    says(refused(of("1/2", NOWHERE)), &["cannot reach", NOWHERE]);
    // Both machines say that they are the first.
    let meet = machines.address(0);
    std::thread::scope(|scope| {
        let twins = machines.below.iter().map(|hub| {
            let mut config = of("0/2", &meet);
            config.hub = hub.address().to_string();
            scope.spawn(move || refused(config))
        });
        let told: Vec<_> =
            twins.collect::<Vec<_>>().into_iter().map(|twin| twin.join().unwrap().to_string()).collect();
        assert!(told.iter().any(|told| told.contains("both say that they are machine 0/2")), "{told:?}");
        assert!(told.iter().any(|told| told.contains("machine(s) [1] of 2")), "{told:?}");
    });
    // The workers of one machine disagree.
    let alone = |rank, mesh: &str| {
        let mut config = of(mesh, &meet);
        (config.rank, config.terms.workers, config.join_limit) = (rank, 2, PATIENCE);
        refused(config)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| alone(0, "0/1"));
        while describe(&meet).jobs.is_empty() {
            std::thread::yield_now();
        }
        let other = format!("0/2@{meet}");
        says(alone(1, "0/2"), &["has the mesh 0/1", "asks for the mesh", &other]);
        first.join().unwrap();
    });
    // This hub is already below other hubs.
    let below = hub_below(&meet, 0, 1);
    let mut config = of("0/1", &meet);
    config.hub = below.address().to_string();
    says(refused(config), &["asks for a mesh", "is below the hubs at", "--above"]);
}

/// Workers of a job without levels push to the hubs at the top directly. These hubs can serve such a job
/// while hubs below push, too.
#[test]
fn the_top_serves_flat_jobs_beside() {
    let _watchdog = Watchdog::start();
    let machines = Machines::start(1, 1);
    let mut below = ready(&machines, 1, OnLoss::Stop);
    let top = machines.top[0].address().to_string();
    let mut flat = ready_all(2, |rank| config_at(&top, "flat", rank, 2));
    assert_eq!(flat[0].members(), [0, 1]);
    std::thread::scope(|scope| {
        for session in &mut flat {
            scope.spawn(|| {
                push_all(session).unwrap();
                session.wait_all().unwrap();
            });
        }
    });
    assert_eq!(round(below.iter_mut().flatten(), 1.0).remove(0).unwrap(), 0.5, "{SGD:?}");
}
