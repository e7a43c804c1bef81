//! Checkpoints of a job over several hubs. Each hub writes its part. A checkpoint is whole when all hubs have
//! written their parts of the same round. The job continues from the latest whole checkpoint.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::checkpoint::{ADAM, EVERY, all_push_rounds, hub_every, hub_to_kill, rounds, train, weights_are};
use crate::processes::hub::start_hub;
use fabric::conformance::Watchdog;
use hub_tests::program::{kill, until};
use hub_tests::training::Training;
use hub_tests::values::same_bits;
use hub_tests::{
    FIRST, addresses, authorization, config_at, describe, hub, join_all, join_by_hand, join_request,
    on_threads, push_all, ready_all, refusal, refused, says,
};
use pbox_core::control::{CheckpointReply, ErrorReply, JoinRequest, Pass, Peers};
use pbox_core::{Dtype, JobTerms, Key, Optimizer, Round};
use phub_server::Hub;
use rustix::process::Signal;
use worker_shim::Session;

fn directories(hubs: usize) -> Vec<tempfile::TempDir> {
    (0..hubs).map(|_| tempfile::tempdir().unwrap()).collect()
}

fn hubs(dirs: &[tempfile::TempDir], every: Option<u32>) -> Vec<Hub> {
    dirs.iter().map(|dir| hub_every(dir.path(), every)).collect()
}

/// Returns the rounds of which a hub has a part, ascending.
fn rounds_in(dir: &Path) -> Vec<u32> {
    let round = |name: String| name.split_once('@')?.1.split_once('.')?.0.parse().ok();
    let names =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut rounds: Vec<u32> =
        names.filter(|name| name.ends_with(".safetensors")).filter_map(round).collect();
    rounds.sort_unstable();
    rounds
}

/// Returns the rounds that have a part at every hub.
fn whole(dirs: &[tempfile::TempDir]) -> Vec<u32> {
    let mut rounds = rounds_in(dirs[0].path());
    rounds.retain(|round| dirs.iter().all(|dir| rounds_in(dir.path()).contains(round)));
    rounds
}

fn part(dirs: &[tempfile::TempDir], hub: usize, round: u32) -> PathBuf {
    dirs[hub].path().join(format!("job@{round}.hub{hub}of{}.safetensors", dirs.len()))
}

/// Asks a hub for a checkpoint, as an operator does.
fn ask(hub: &str) -> Result<CheckpointReply, String> {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let mut answer = agent
        .post(&format!("http://{hub}/v1/jobs/job/checkpoint"))
        .header("authorization", authorization())
        .send_empty()
        .unwrap();
    match answer.status().is_success() {
        true => Ok(answer.body_mut().read_json().unwrap()),
        false => Err(answer.body_mut().read_json::<ErrorReply>().unwrap().error),
    }
}

#[test]
fn hubs_that_are_killed_go_on_with_the_bits_of_hubs_that_were_not() {
    let _watchdog = Watchdog::start();
    killed(2, |_| {});
}

/// A spike can be found only after ten rounds, and between two kills there are fewer rounds. So the hubs must
/// keep the mean of the norms from before a kill.
#[test]
fn hubs_that_are_killed_agree_on_the_mean_of_the_norms_before() {
    let _watchdog = Watchdog::start();
    killed(3, |training| {
        (training.skip_spikes, training.spikes) = (Some(2.0), (12..60).step_by(5).collect());
    });
}

/// The first round after each kill is scaled by the norm of a round that earlier hubs have made.
#[test]
fn hubs_that_are_killed_know_the_norm_of_the_round_before() {
    let _watchdog = Watchdog::start();
    killed(2, |training| training.clip_norm_last = Some(3.0));
}

fn killed(count: usize, change: fn(&mut Training)) {
    let dirs = directories(count);
    let mut keys = vec![Key::f32("a", [3000]), Key::f32("b", [1]), Key::f32("c", [70, 90])];
    (keys[1].dtype, keys[2].dtype) = (Dtype::F16, Dtype::BF16);
    let mut training = Training::new("job", keys, ADAM);
    (training.chunk_bytes, training.rounds) = (1024, 60);
    change(&mut training);
    let mut lives = 0;
    let last = loop {
        let hubs: Vec<_> = dirs.iter().map(|dir| hub_to_kill(dir.path())).collect();
        let list = hubs.iter().map(|(_, address)| address.clone()).collect::<Vec<_>>().join(",");
        let pids: Vec<_> = hubs.iter().map(|(hub, _)| hub.pid()).collect();
        lives += 1;
        // The hubs are killed at any moment after there is a checkpoint to continue from. The last hubs are
        // not killed.
        let begun = AtomicU32::new(0);
        let ended = on_threads(training.workers, |rank| {
            let done = |round| {
                let begun = begun.fetch_add(1, Ordering::Relaxed) + 1;
                let is_due = lives <= 6 && begun > lives * 2 && round < 50;
                if rank > 0 || !is_due {
                    return;
                }
                // On a busy machine all rounds may be made before the first checkpoint is on the disk.
                if round >= 2 * EVERY {
                    until("a checkpoint is whole", || !whole(&dirs).is_empty());
                }
                if !whole(&dirs).is_empty() {
                    pids.iter().for_each(|&pid| kill(pid, Signal::KILL));
                }
            };
            train(&training, &list, rank, training.rounds, done)
        });
        match ended.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(weights) => break weights,
            Err(error) => println!("life {lives}: {error}"),
        }
    };
    assert!(lives > 3, "they were killed {} times", lives - 1);
    let expected = training.reference_after(training.rounds);
    for weights in last {
        for (key, (seen, expected)) in weights.iter().zip(&expected).enumerate() {
            same_bits(format!("key {key} after {lives} lives of {count} hubs"), seen, expected);
        }
    }
}

#[test]
fn parts_are_written_when_due_and_older_ones_removed() {
    let _watchdog = Watchdog::start();
    let dirs = directories(3);
    let hubs = hubs(&dirs, Some(EVERY));
    let list = addresses(&hubs);
    let mut sessions = ready_all(2, |rank| config_at(&list, "job", rank, 2));
    for checkpoint in 1..=6 {
        // The broadcast counts as a round.
        let count = if checkpoint == 1 { EVERY - 1 } else { EVERY };
        std::thread::scope(|scope| {
            sessions.iter_mut().for_each(|session| {
                scope.spawn(move || rounds(session, count).unwrap());
            });
        });
        // A hub that does not know yet that a checkpoint is complete skips the next checkpoint.
        let round = Round(checkpoint * EVERY);
        until("all hubs know that the checkpoint is written", || {
            let jobs = hubs.iter().map(|hub| describe(&hub.address().to_string()).jobs.remove(0));
            jobs.map(|job| job.checkpoint).all(|written| written.is_some_and(|it| it.round == round))
        });
        assert!(whole(&dirs).contains(&round.0));
    }
    for dir in &dirs {
        let rounds = rounds_in(dir.path());
        assert!((2..=4).contains(&rounds.len()), "{rounds:?}");
    }
    // The job ends while the last part is still being written. The end waits, and then writes its own
    // checkpoint.
    std::thread::scope(|scope| {
        sessions.iter_mut().for_each(|session| {
            scope.spawn(move || rounds(session, EVERY).unwrap());
        });
    });
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    assert_eq!(whole(&dirs).last(), Some(&(7 * EVERY)));
}

#[test]
fn a_checkpoint_is_written_on_request_at_the_end_and_at_a_clean_stop_of_any_hub() {
    let _watchdog = Watchdog::start();
    let dirs = directories(2);
    let first = hubs(&dirs, None);
    let list = addresses(&first);
    let mut sessions = ready_all(2, |rank| config_at(&list, "job", rank, 2));
    all_push_rounds(&mut sessions, 1, Round(1), 1.0);
    for hub in &first {
        let reply = ask(&hub.address().to_string()).unwrap();
        let bytes = |hub| std::fs::metadata(part(&dirs, hub, 2)).unwrap().len();
        assert_eq!((reply.round, reply.bytes), (Round(2), bytes(0) + bytes(1)));
    }
    all_push_rounds(&mut sessions, 1, Round(2), 0.5);
    assert_eq!(sessions[1].checkpoint().unwrap().round, Round(3));
    all_push_rounds(&mut sessions, 1, Round(3), 0.0);
    // If one hub stops, the other hubs write their parts, too.
    let mut first = first;
    first.remove(1).stop("it is Friday");
    assert_eq!(whole(&dirs).last(), Some(&4));
    drop((sessions, first));

    let second = hubs(&dirs, None);
    let list = addresses(&second);
    let mut sessions = join_all(2, |rank| config_at(&list, "job", rank, 2));
    all_push_rounds(&mut sessions, 1, Round(4), -0.5);
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    let mut sessions = join_all(2, |rank| config_at(&list, "job", rank, 2));
    all_push_rounds(&mut sessions, 1, Round(5), -1.0);
    assert!(whole(&dirs).len() >= 2, "{:?}", whole(&dirs));
}

/// Runs a job of two hubs to its end, with whole checkpoints before rounds 3 and 5.
fn ended(dirs: &[tempfile::TempDir]) {
    let hubs = hubs(dirs, None);
    let list = addresses(&hubs);
    let mut sessions = ready_all(1, |rank| config_at(&list, "job", rank, 1));
    all_push_rounds(&mut sessions, 2, Round(1), 1.0);
    sessions[0].checkpoint().unwrap();
    all_push_rounds(&mut sessions, 2, Round(3), 0.0);
    sessions.remove(0).leave().unwrap();
    assert_eq!(whole(dirs), [3, 5]);
}

#[test]
fn a_part_that_is_missing_costs_one_generation() {
    let _watchdog = Watchdog::start();
    for lost in [0, 1] {
        let dirs = directories(2);
        ended(&dirs);
        std::fs::remove_file(part(&dirs, lost, 5)).unwrap();
        let hubs = hubs(&dirs, None);
        let mut session = Session::join(config_at(&addresses(&hubs), "job", 0, 1)).unwrap();
        all_push_rounds(std::slice::from_mut(&mut session), 1, Round(3), 0.0);
        weights_are(&session, -0.5);
        let rounds: Vec<_> = dirs.iter().map(|dir| rounds_in(dir.path())).collect();
        assert_eq!(rounds, [[3], [3]], "what was not whole is gone, and is written again");
        session.leave().unwrap();
        assert_eq!(whole(&dirs), [3, 4]);
    }
}

fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_part_that_is_damaged_costs_one_generation_at_all_hubs() {
    let _watchdog = Watchdog::start();
    for spoiled in [0, 1] {
        let dirs = directories(2);
        ended(&dirs);
        damage(&part(&dirs, spoiled, 5));
        let hubs = hubs(&dirs, None);
        let session = Session::join(config_at(&addresses(&hubs), "job", 0, 1)).unwrap();
        assert_eq!(session.next_round(), Round(3));
        weights_are(&session, 0.0);
        let warning = describe(&hubs[0].address().to_string()).jobs.remove(0).checkpoint_warning.unwrap();
        let file = format!("job@5.hub{spoiled}of2.safetensors");
        says(warning, &[&format!("damaged is hub {spoiled}, at"), &file, "digest", "before round 3"]);
        let aside = format!("job@damaged.hub{spoiled}of2.safetensors");
        assert!(dirs[spoiled].path().join(aside).exists(), "a person may want it");
        assert_eq!([rounds_in(dirs[0].path()), rounds_in(dirs[1].path())], [[3], [3]]);
    }
    // If no round is left of which all parts are good, the join fails.
    let dirs = directories(2);
    ended(&dirs);
    for round in [3, 5] {
        damage(&part(&dirs, 1, round));
    }
    let hubs = hubs(&dirs, None);
    let why = refused(config_at(&addresses(&hubs), "job", 0, 1));
    says(why, &["not complete", "damaged is hub 1, at", "job@3.hub1of2", "job@5.hub1of2", "digest"]);
    assert_eq!(rounds_in(dirs[1].path()), [3, 5], "nothing was renamed");
}

#[test]
fn no_checkpoint_is_removed_for_a_pass_that_hub_0_does_not_confirm() {
    let _watchdog = Watchdog::start();
    let dirs = directories(2);
    ended(&dirs);
    let hubs = hubs(&dirs, None);
    let terms = JobTerms { hubs: 2, ..join_request(0, 1).terms };
    let names: Vec<String> = hubs.iter().map(|hub| hub.address().to_string()).collect();
    let at = |hub: u32, pass: Option<Pass>| {
        let peers = Some(Peers { hubs: names.clone(), pass });
        JoinRequest { hub, peers, terms: terms.clone(), ..join_request(0, 1) }
    };
    let refused = |pass: Pass| {
        let request = serde_json::to_vec(&at(1, Some(pass))).unwrap();
        let (status, why) = refusal(&hubs[1], "/v1/jobs/job/join", request);
        assert_eq!(status, 409, "{why}");
        assert_eq!(whole(&dirs), [3, 5]);
        why
    };
    // A pass that an earlier process of hub 0 gave to a worker. The last whole checkpoint of that process was of
    // another round.
    let former = Pass { secret: "1".repeat(32), worker: 1, first_round: Round(3), checkpoints: true };
    says(
        refused(former.clone()),
        &["begins with round 3", "keeps its checkpoints of rounds [5]", "join again"],
    );
    // Hub 0 has a new job.
    let pass = join_by_hand(&hubs[0], "job", &at(0, None)).pass.unwrap();
    assert_eq!(pass.first_round, Round(5));
    says(refused(former), &["hub 0 of the job", "no job \"job\"", "with this secret"]);
    let other = Pass { first_round: Round(3), ..pass.clone() };
    says(refused(other), &["hub 0 of the job", "begins with round 5"]);
    join_by_hand(&hubs[1], "job", &at(1, Some(pass)));
    assert_eq!(whole(&dirs), [3, 5]);
}

#[test]
fn a_job_is_not_begun_anew_in_silence() {
    let _watchdog = Watchdog::start();
    let dirs = directories(2);
    ended(&dirs);
    let here = hubs(&dirs, None);
    // The list has the hubs in another order, or another number of hubs.
    says(refused(config_at(&addresses(here.iter().rev()), "job", 0, 1)), &["over other hubs", "same order"]);
    says(refused(config_at(&addresses(&here[..1]), "job", 0, 1)), &["over other hubs", "its only hub"]);
    // The chunks are laid out differently.
    let mut other = config_at(&addresses(&here), "job", 0, 1);
    other.terms.chunk_bytes = 192;
    says(refused(other), &["share the model in another way", "chunk size"]);
    for round in [3, 5] {
        std::fs::remove_file(part(&dirs, 1, round)).unwrap();
    }
    let error = refused(config_at(&addresses(&here), "job", 0, 1));
    says(
        error,
        &["not complete", "hub 0, at", "has rounds [3, 5]", "hub 1, at", "has rounds []", "from zero"],
    );
    assert_eq!(rounds_in(dirs[0].path()), [3, 5], "nothing was removed");
    drop(here);

    let dirs = directories(1);
    let alone = hubs(&dirs, None);
    let mut session = ready_all(1, |rank| config_at(&addresses(&alone), "job", rank, 1)).remove(0);
    session.checkpoint().unwrap();
    session.leave().unwrap();
    let dirs = [dirs.into_iter().next().unwrap(), tempfile::tempdir().unwrap()];
    drop(alone);
    let two = hubs(&dirs, None);
    says(
        refused(config_at(&addresses(&two), "job", 0, 1)),
        &["job.safetensors", "over other hubs", "hub 0 of 2"],
    );
}

#[test]
fn hubs_write_checkpoints_alike() {
    let _watchdog = Watchdog::start();
    let dirs = directories(2);
    let (none, keeps, every) = (hub(1), hub_every(dirs[0].path(), None), hub_every(dirs[1].path(), Some(2)));
    for (hubs, words) in [
        ([&keeps, &none], ["hub 0 writes checkpoints, and hub 1", "does not", "or none"]),
        ([&none, &keeps], ["hub 1 of 2", "hub 0 does not", "or none"]),
        ([&keeps, &every], ["at no round", "every 2 rounds", "the same --checkpoint-every"]),
    ] {
        says(refused(config_at(&addresses(hubs), "job", 0, 1)), &words);
    }
}

#[test]
fn a_hub_that_is_silent_in_a_cut_is_named_and_the_job_goes_on_or_ends() {
    let _watchdog = Watchdog::start();
    let dirs = directories(2);
    let start = |dir: &tempfile::TempDir| {
        let dir = dir.path().to_str().unwrap();
        start_hub(&[("PHUB_CHECKPOINTS", dir), ("PHUB_HEARTBEAT_LIMIT_S", "2")])
    };
    let (lead, other) = (start(&dirs[0]), start(&dirs[1]));
    let list = format!("{},{}", lead.1, other.1);
    let mut sessions = ready_all(1, |rank| config_at(&list, "job", rank, 1));
    all_push_rounds(&mut sessions, 1, Round(1), 1.0);
    other.0.stop();
    let why = ask(&lead.1).unwrap_err();
    says(why, &["hub 1 of the job, at", &other.1, "hold the job's rounds", "no answer came within 2.0 s"]);
    // The suspended hub does not answer the worker, either.
    let error = loop {
        if let Err(error) = push_all(&mut sessions[0]).and_then(|()| sessions[0].wait_all()) {
            break error;
        }
    };
    says(error, &["lost the hub at", &other.1]);
    drop(sessions);
    other.0.signal(Signal::CONT);
    for (_, address) in [&lead, &other] {
        until("the job has ended at both hubs", || {
            // The hub that was suspended may notice first that the worker is silent, or first that the
            // worker's links have ended.
            let jobs = format!("{:?}", describe(address).jobs);
            jobs.contains("worker 0 is gone") || jobs.contains("worker 0 was silent")
        });
    }
    // A new job of this name begins. The new job has the failed job's last state if the suspended hub could save
    // its part in time.
    let mut sessions = ready_all(1, |rank| config_at(&list, "job", rank, 1));
    rounds(&mut sessions[0], 1).unwrap();
}

#[test]
fn a_job_whose_hub_keeps_no_weights_goes_on_with_the_round() {
    let _watchdog = Watchdog::start();
    for count in [1, 2] {
        let dirs = directories(count);
        let joined = |hubs: &[Hub], workers: u32| {
            let list = addresses(hubs);
            join_all(workers, |rank| {
                let mut config = config_at(&list, "job", rank, workers);
                config.terms.optimizer = Optimizer::Average;
                config
            })
        };
        let first = hubs(&dirs, None);
        let mut sessions = joined(&first, 2);
        average_rounds(&mut sessions, 3);
        let reply = sessions[0].checkpoint().unwrap();
        assert_eq!(reply.round, Round(3));
        assert!(reply.bytes < 4096 * count as u64, "it has no tensors: {reply:?}");
        drop((sessions, first));
        let second = hubs(&dirs, None);
        let mut sessions = joined(&second, 3);
        assert!(sessions.iter().all(|session| session.next_round() == Round(3)));
        average_rounds(&mut sessions, 2);
        // A worker may use its keys different numbers of times.
        sessions.iter_mut().for_each(|session| session.push(FIRST).unwrap());
        sessions.iter_mut().for_each(|session| session.wait(FIRST).unwrap());
        sessions.into_iter().for_each(|session| session.leave().unwrap());
        drop(second);
        let third = hubs(&dirs, None);
        assert_eq!(
            joined(&third, 1)[0].next_round(),
            Round(3),
            "a job that ends saves its weights, and has none"
        );
    }
}

/// Makes rounds in which rank `r` pushes `r`, and all workers get the mean.
fn average_rounds(sessions: &mut [Session], count: u32) {
    let mean = (sessions.len() - 1) as f32 / 2.0;
    for _ in 0..count {
        for (session, rank) in sessions.iter_mut().zip(0u8..) {
            session.keys().for_each(|key| session.gradient_mut(key).unwrap().fill(f32::from(rank)));
            push_all(session).unwrap();
        }
        for session in sessions.iter_mut() {
            session.wait_all().unwrap();
            weights_are(session, mean);
        }
    }
}
