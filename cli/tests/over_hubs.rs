//! Weights of a job over several hubs. While rounds run, every element that a reader gets belongs to the
//! round that is named. Hubs that do not belong together are named in an error.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabric::IdlePolicy;
use fabric::conformance::Watchdog;
use half::bf16;
use pbox_core::{Key, Optimizer};
use subscription::{NoWeights, Source, SourceSettings};
use versions::{Precision, Reader, Weights, list as list_versions};
use worker_shim::{Session, SessionConfig};

use crate::support::{Serve, failure, phub_server, says};

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };

/// The shapes of two keys that are split over hubs, and of two that are not.
pub(crate) const SHAPES: [(&str, &[u64]); 4] =
    [("a", &[100]), ("b", &[30, 200]), ("c", &[]), ("d", &[7, 11, 13])];

pub(crate) fn serve(dir: &Path, hubs: usize) -> Vec<Serve> {
    (0..hubs).map(|_| serve_at(dir, "127.0.0.1:0")).collect()
}

/// Starts a hub at this address.
pub(crate) fn serve_at(dir: &Path, at: &str) -> Serve {
    let arguments = ["serve", "--listen", at, "--cores", "1", "--insecure", "--idle", "sleep"];
    Serve::start(phub_server(&arguments).current_dir(dir).env("RUST_LOG", "error"))
}

pub(crate) fn list(hubs: &[Serve]) -> String {
    hubs.iter().map(|hub| hub.address.as_str()).collect::<Vec<_>>().join(",")
}

/// Returns the gradient of an element, which is the same in each round.
fn gradient(element: usize) -> f32 {
    (element % 7 + 1) as f32
}

/// Returns the worker of a job whose weights are zeros.
pub(crate) fn worker(hubs: &str) -> Session {
    worker_of(hubs, &SHAPES)
}

/// Returns the worker of a job with these keys.
pub(crate) fn worker_of(hubs: &str, shapes: &[(&str, &[u64])]) -> Session {
    let keys = shapes.iter().map(|(name, shape)| Key::f32(*name, shape.to_vec())).collect();
    let mut config = SessionConfig::new(hubs, "job", 0, 1, keys, SGD);
    (config.idle, config.hub_wait) = (IdlePolicy::SHARED, Duration::ZERO);
    config.terms.chunk_bytes = 1024;
    config.terms.ema = Some(0.5);
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|_, weights| weights.fill(0.0)).unwrap();
    session
}

pub(crate) fn step(session: &mut Session) {
    let keys: Vec<_> = session.keys().collect();
    for &key in &keys {
        let gradients = session.gradient_mut(key).unwrap();
        gradients.iter_mut().enumerate().for_each(|(element, value)| *value = gradient(element));
        session.push(key).unwrap();
    }
    session.wait_all().unwrap();
}

/// Makes rounds all the time while `read` runs.
fn while_stepping<T>(session: &mut Session, read: impl FnOnce() -> T) -> T {
    while_counting(session, &AtomicU32::new(0), read)
}

/// Makes rounds all the time while `read` runs. After each round, `next` gets the number of the next round.
pub(crate) fn while_counting<T>(session: &mut Session, next: &AtomicU32, read: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                step(session);
                next.store(session.next_round().0, Ordering::Relaxed);
            }
        });
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
        ends.store(true, Ordering::Relaxed);
        seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn source(hubs: &str, averages: bool, fetch_deltas: bool) -> Source {
    Source::new(SourceSettings { averages, fetch_deltas, ..SourceSettings::new(hubs, "job") }).unwrap()
}

/// Asserts that each element of each key has its value before a round.
pub(crate) fn check(weights: &Weights, round: u32) {
    check_by(weights, round, 0.0, f64::from(round - 1));
}

/// Asserts that each element of each key has its average before a round. Averages are rounded, and the
/// averages of the next round differ by half a gradient.
fn check_averages(weights: &Weights, round: u32) {
    let steps = f64::from(round - 1);
    check_by(weights, round, 0.1, steps - 1.0 + (-steps).exp2());
}

#[track_caller]
fn check_by(weights: &Weights, round: u32, tolerance: f64, steps: f64) {
    assert_eq!(weights.tensors(), SHAPES.len());
    for (name, shape) in SHAPES {
        let (precision, seen) = weights.form(name).unwrap();
        assert_eq!((precision, seen.iter().map(|&of| of as u64).collect()), (Precision::F32, shape.to_vec()));
        for (element, value) in weights.get(name).unwrap().chunks(4).enumerate() {
            let value = f32::from_le_bytes(value.try_into().unwrap());
            let gradient = f64::from(gradient(element));
            let away = (f64::from(value) + 0.5 * steps * gradient).abs();
            assert!(away <= tolerance * gradient, "{name}, element {element}, before round {round}: {value}");
        }
    }
}

fn every_element_is_of_the_round(count: usize) {
    let dir = tempfile::tempdir().unwrap();
    let hubs = serve(dir.path(), count);
    let hubs = list(&hubs);
    let mut session = worker(&hubs);
    step(&mut session);
    let last = while_stepping(&mut session, || {
        let mut last = 0;
        for (averages, fetch_deltas) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut source = source(&hubs, averages, fetch_deltas);
            for _ in 0..10 {
                let (origin, weights) = source.fetch().unwrap();
                if averages {
                    check_averages(&weights, origin.round)
                } else {
                    check(&weights, origin.round)
                }
                // On a busy machine, possibly no round ends between two reads.
                assert!(origin.round >= last, "{} after {last}", origin.round);
                last = origin.round;
            }
        }
        last
    });
    // The worker pushes nothing now, so all hubs of the job are in the same round.
    assert!(session.next_round().0 >= last);
    let (origin, weights) = source(&hubs, false, false).fetch().unwrap();
    assert_eq!(origin.round, session.next_round().0);
    check(&weights, origin.round);
    session.leave().unwrap();
}

#[test]
fn every_element_of_two_hubs_is_of_the_round_that_is_named() {
    let _watchdog = Watchdog::start();
    every_element_is_of_the_round(2);
}

#[test]
fn every_element_of_three_hubs_is_of_the_round_that_is_named() {
    let _watchdog = Watchdog::start();
    every_element_is_of_the_round(3);
}

#[test]
fn a_reader_that_named_rounds_ahead_also_reads_a_job_that_rests() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hubs = serve(dir.path(), 2);
    let hubs = list(&hubs);
    let mut session = worker(&hubs);
    let mut source = source(&hubs, false, false);
    // The reader first asks for a round that never comes, and then for the current state.
    while_stepping(&mut session, || (0..5).for_each(|_| _ = source.fetch().unwrap()));
    let (origin, weights) = source.fetch().unwrap();
    assert_eq!(origin.round, session.next_round().0);
    check(&weights, origin.round);
}

#[test]
fn a_file_and_versions_of_several_hubs_have_whole_tensors() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hubs = serve(dir.path(), 2);
    let hubs = list(&hubs);
    let mut session = worker(&hubs);
    step(&mut session);
    let [file, to] = ["weights.safetensors", "versions"].map(|name| dir.path().join(name));
    let [file_text, to_text] = [&file, &to].map(|path| path.to_str().unwrap().to_owned());
    for arguments in [
        &["pull", "job", &hubs, "--to", &file_text, "--dtype", "bf16"][..],
        &["publish", "job", &hubs, "--to", &to_text, "--once"],
        &["versions", "verify", &to_text],
    ] {
        let output = phub_server(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let bytes = std::fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let b = tensors.tensor("b").unwrap();
    assert_eq!(b.shape(), [30, 200]);
    let expected = (0..6000).flat_map(|element| bf16::from_f32(-0.5 * gradient(element)).to_le_bytes());
    assert!(b.data().iter().copied().eq(expected));
}

/// Returns the first and the last multiple that a line of a publisher names as published or passed.
fn multiples_of(line: &str) -> (u32, u32) {
    let after = |words: &str| {
        let (_, rest) = line.split_once(words)?;
        rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
    };
    let first = if line.starts_with("version") { after(", before round ") } else { after("round ") };
    let first = first.unwrap_or_else(|| panic!("{line}"));
    (first, after(" to ").unwrap_or(first))
}

/// Publishes three versions while rounds run, and returns whether the publisher has named rounds that had passed. Each multiple
/// is published or named.
fn each_rounds(count: usize, rounds: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let hubs = serve(dir.path(), count);
    let hubs = list(&hubs);
    let mut session = worker(&hubs);
    step(&mut session);
    let to = dir.path().join("versions");
    let arguments = ["publish", "job", &hubs, "--to", to.to_str().unwrap(), "--each-rounds", rounds];
    let (versions, passed) = while_stepping(&mut session, || {
        let mut publisher = phub_server(&arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(publisher.stdout.take().unwrap()).lines().map(Result::unwrap);
        let (mut versions, mut passed, mut due) = (0, false, None);
        for line in lines {
            let (first, last) = multiples_of(&line);
            assert_eq!(first, due.unwrap_or(first), "{line}");
            due = Some(last + rounds.parse::<u32>().unwrap());
            versions += usize::from(line.starts_with("version 00000"));
            passed |= line.starts_with("round ") && line.contains("has passed: the job is in round");
            if versions == 3 {
                break;
            }
        }
        publisher.kill().unwrap();
        publisher.wait().unwrap();
        (versions, passed)
    });
    assert_eq!(versions, 3);
    let mut reader = Reader::new(&to);
    let mut last = 0;
    for version in list_versions(&to).unwrap().into_iter().take(3) {
        let at = reader.go_to(version.id).unwrap();
        let round = at.origin.round;
        assert!(round > last && round.is_multiple_of(rounds.parse().unwrap()), "{round} after {last}");
        check(&at.weights, round);
        last = round;
    }
    passed
}

#[test]
fn versions_come_before_multiples_of_a_number_of_rounds() {
    let _watchdog = Watchdog::start();
    each_rounds(2, "300");
    assert!(each_rounds(1, "2"), "two rounds pass while a version is written");
}

#[test]
fn a_reader_of_a_hub_below_others_gets_the_weights_from_the_hubs_above() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let above = serve(dir.path(), 2);
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--insecure", "--idle", "sleep"];
    let of_level = ["--machine", "0/1", "--above", &list(&above)];
    let mut below = phub_server(&[&arguments[..], &of_level].concat());
    let below = Serve::start(below.current_dir(dir.path()).env("RUST_LOG", "error"));
    let mut source = source(&below.address, false, false);
    assert!(matches!(source.fetch(), Err(NoWeights::NoJob(_))));
    for steps in 1..=2 {
        // The second job has the name of the first one.
        let mut session = worker(&below.address);
        (0..steps).for_each(|_| step(&mut session));
        let (origin, weights) = loop {
            match source.fetch() {
                Ok(fetched) => break fetched,
                Err(NoWeights::NoJob(_) | NoWeights::NotYet(_)) => thread::yield_now(),
                Err(why) => panic!("{why:?}"),
            }
        };
        assert_eq!((origin.job.as_str(), origin.round), ("job", session.next_round().0));
        check(&weights, origin.round);
        if steps == 2 {
            session.leave().unwrap();
        } else {
            // The job fails, because its worker ends without a leave. The loop below first gets the failed job,
            // which the hub still describes.
            let key = session.keys().next().unwrap();
            session.push(key).unwrap();
            drop(session);
        }
        while !matches!(source.fetch(), Err(NoWeights::NoJob(_))) {
            thread::yield_now();
        }
    }
}

#[test]
fn a_job_whose_hub_keeps_no_weights_is_an_error_at_once() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hubs = serve(dir.path(), 1);
    let mut config =
        SessionConfig::new(&hubs[0].address, "job", 0, 1, vec![Key::f32("a", [9])], Optimizer::Average);
    (config.idle, config.hub_wait) = (IdlePolicy::SHARED, Duration::ZERO);
    let _session = Session::join(config).unwrap();
    let to = dir.path().join("versions");
    says(
        failure(&["publish", "job", &hubs[0].address, "--to", to.to_str().unwrap()]),
        &["job \"job\"", "the job's optimizer, average, keeps no weights"],
    );
}

#[test]
fn hubs_that_do_not_belong_together_are_named() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let [ours, theirs] = [(); 2].map(|()| serve(dir.path(), 2));
    let mut sessions = [worker(&list(&ours)), worker(&list(&theirs))];
    sessions.iter_mut().for_each(step);
    let [first, second] = [0, 1].map(|hub| ours[hub].address.as_str());
    let file = dir.path().join("weights.safetensors").to_str().unwrap().to_owned();
    let refused = |hubs: &str, words: &[&str]| {
        let begun = Instant::now();
        says(failure(&["pull", "job", hubs, "--to", &file]), words);
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    refused(first, &["the number of hubs given for job \"job\" is 1; expected all 2 hubs of the job"]);
    refused(&format!("{first},{first}"), &[first, "is listed twice"]);
    let twice = first.replace("127.0.0.1", "localhost");
    refused(&format!("{first},{twice}"), &["are both hub 0 of job \"job\"", first, &twice]);
    let strange = format!("{first},{}", theirs[1].address);
    refused(&strange, &[first, &theirs[1].address, "have different jobs with the name \"job\""]);
    let others = format!("{first},{second},{}", theirs[0].address);
    refused(&others, &["is 3; expected all 2 hubs"]);
    // No hub listens at this port.
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    refused(&format!("{first},{away}"), &[&away]);
    let mut source = source(&format!("{first},{away}"), false, false);
    assert!(matches!(source.fetch(), Err(NoWeights::Away(why)) if why.contains(&away)));
}
