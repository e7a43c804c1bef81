//! The timeline of a run: the work of the hub and the workers, in order, with times of one clock.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::processes::hub::start_hub_under;
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::{
    PATIENT_S, authorization, config, config_at, hub, on_threads, push_all, ready_all, refused, says,
    settings,
};
use phub_server::{Hub, HubSettings};
use serde_json::Value;
use worker_shim::Background;

use super::page::get;

const ROUNDS: u64 = 6;
const WORKERS: u32 = 2;
/// The numbers of chunks of the small model's three keys, at 64 bytes each.
const CHUNKS: [usize; 3] = [8, 1, 4];
/// The difference that rounding may cause, in microseconds.
const SAME: f64 = 0.01;

/// An event of a trace.
#[derive(Clone, Debug)]
struct Event {
    what: String,
    key: String,
    chunk: Option<u64>,
    round: Option<u64>,
    rank: Option<u64>,
    track: u64,
    begin: f64,
    end: f64,
}

fn events(trace: &str) -> Vec<Event> {
    let whole: Value = serde_json::from_str(trace).unwrap_or_else(|error| panic!("{error} in {trace:.300}"));
    let processes = whole["metadata"]["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 1, "{processes:?}");
    let all = whole["traceEvents"].as_array().unwrap();
    assert!(all.iter().all(|event| event["pid"] == processes[0]["pid"]), "one process, one number");
    of_process(&whole, 0)
}

fn of_process(whole: &Value, number: usize) -> Vec<Event> {
    let process = &whole["metadata"]["processes"][number];
    assert_eq!((&process["clock"]["clock"], &process["lost_events"]), (&"CLOCK_MONOTONIC".into(), &0.into()));
    let all = whole["traceEvents"].as_array().unwrap().iter();
    let all: Vec<&Value> = all.filter(|event| event["pid"] == process["pid"]).collect();
    assert!(all.iter().any(|event| event["name"] == "thread_name"), "tracks have names");
    let event = |event: &Value| {
        let (args, begin) = (&event["args"], event["ts"].as_f64().unwrap());
        Event {
            what: event["cat"].as_str().unwrap().to_owned(),
            key: args["key"].as_str().unwrap_or_default().to_owned(),
            chunk: args["chunk"].as_u64(),
            round: args["round"].as_u64(),
            rank: args["rank"].as_u64(),
            track: event["tid"].as_u64().unwrap(),
            begin,
            end: begin + event["dur"].as_f64().unwrap_or(0.0),
        }
    };
    all.into_iter().filter(|event| event["ph"] != "M").map(event).collect()
}

fn read(path: &Path) -> Vec<Event> {
    events(&std::fs::read_to_string(path).unwrap())
}

/// Returns all events with the name `what` in a key's round. If `rank` is given, returns only the events of
/// this rank.
fn of<'a>(all: &'a [Event], what: &str, key: &str, round: u64, rank: Option<u64>) -> Vec<&'a Event> {
    let is_it = |event: &&Event| {
        event.what == what
            && event.key == key
            && event.round == Some(round)
            && (rank.is_none() || event.rank == rank)
    };
    all.iter().filter(is_it).collect()
}

/// Checks the order of each key's events. For each chunk, a push arrives, then the hub steps the chunk, then
/// the hub posts the answers, and then the worker has its answer.
///
/// The times of two processes may differ by `same` microseconds. The smallest value of `same` is
/// the difference that rounding may cause.
fn check_order(at_hub: &[Event], by_worker: &[Vec<Event>], same: f64) {
    for (key, chunks) in ["first.weight", "second.bias", "third.weight"].into_iter().zip(CHUNKS) {
        for round in 1..=ROUNDS {
            let steps = of(at_hub, "sum+step", key, round, None);
            let answers = of(at_hub, "answers", key, round, None);
            assert_eq!((steps.len(), answers.len()), (chunks, chunks), "{key}, round {round}");
            let step_of: HashMap<_, _> = steps.iter().map(|step| (step.chunk, step)).collect();
            assert_eq!(step_of.len(), chunks, "each chunk once");
            for (rank, worker) in (0..).zip(by_worker) {
                let pushes = of(worker, "push", key, round, Some(rank));
                let got = of(worker, "answer", key, round, Some(rank));
                assert!(
                    !pushes.is_empty() && got.len() == 1,
                    "{key}, round {round}, rank {rank}: {pushes:?} {got:?}"
                );
                let arrivals = of(at_hub, "arrival", key, round, Some(rank));
                assert_eq!(arrivals.len(), chunks, "{key}, round {round}, rank {rank}");
                for arrival in &arrivals {
                    let step = step_of[&arrival.chunk];
                    assert!(pushes[0].begin <= arrival.begin + same, "{pushes:?} {arrival:?}");
                    assert!(arrival.begin <= step.end + SAME, "{arrival:?} {step:?}");
                }
                for answer in &answers {
                    assert!(step_of[&answer.chunk].end <= answer.begin + SAME, "{answer:?}");
                    assert!(answer.begin <= got[0].begin + same, "{answer:?} {got:?}");
                }
            }
        }
    }
}

/// Checks that spans on a track do not overlap.
fn check_tracks(all: &[Event]) {
    let mut ends: HashMap<u64, f64> = HashMap::new();
    let mut spans: Vec<&Event> = all.iter().filter(|event| event.end > event.begin).collect();
    spans.sort_by(|a, b| a.begin.total_cmp(&b.begin));
    for span in spans {
        let end = ends.insert(span.track, span.end).unwrap_or(0.0);
        assert!(end <= span.begin + 0.01, "{span:?} begins before {end}");
    }
}

#[test]
fn a_push_arrives_is_stepped_and_is_answered_in_this_order() {
    let _watchdog = Watchdog::start();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let hub = Hub::start(&HubSettings { trace: Some(file("hub.json")), ..settings(2, PATIENT_S) }).unwrap();
    let mut sessions = ready_all(WORKERS, |rank| {
        let mut config = config(&hub, "job", rank, WORKERS);
        config.trace = Some(file("run.json"));
        config
    });
    for _round in 0..ROUNDS {
        sessions.iter_mut().for_each(|session| push_all(session).unwrap());
        sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    }
    let mut answer = get(&hub, "/v1/trace", &[("authorization", &authorization())]);
    assert_eq!(answer.status(), 200);
    let while_it_runs = events(&answer.body_mut().read_to_string().unwrap());
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    hub.stop("the test is over");

    let at_hub = read(&file("hub.json"));
    let by_worker: Vec<_> = (0..WORKERS).map(|rank| read(&file(&format!("run.rank{rank}.json")))).collect();
    check_order(&at_hub, &by_worker, SAME);
    check_order(&while_it_runs, &by_worker, SAME);
    check_tracks(&at_hub);
    by_worker.iter().for_each(|events| check_tracks(events));
    assert!(
        at_hub.iter().any(|event| event.what == "wait")
            && by_worker[0].iter().any(|event| event.what == "wait")
    );
}

#[test]
fn a_background_session_has_a_track_for_its_callers() {
    let _watchdog = Watchdog::start();
    let directory = tempfile::tempdir().unwrap();
    let hub =
        Hub::start(&HubSettings { trace: Some(directory.path().join("hub.json")), ..settings(1, PATIENT_S) });
    let hub = hub.unwrap();
    let sessions = on_threads(WORKERS, |rank| {
        let mut config = config(&hub, "job", rank, WORKERS);
        config.trace = Some(directory.path().join("run"));
        let session = Background::join(config, &mut || false).unwrap();
        session.broadcast_written(&mut || false).unwrap();
        for _round in 0..ROUNDS {
            (0..3).for_each(|key| session.push(pbox_core::KeyId(key)).unwrap());
            session.wait_all(&mut || false).unwrap();
        }
        session
    });
    sessions.iter().for_each(|session| session.leave(&mut || false).unwrap());
    let by_worker: Vec<_> =
        (0..WORKERS).map(|rank| read(&directory.path().join(format!("run.rank{rank}")))).collect();
    hub.stop("the test is over");
    check_order(&read(&directory.path().join("hub.json")), &by_worker, SAME);
    for events in &by_worker {
        let of_callers = |what| events.iter().filter(|event| event.what == what && event.track == 2).count();
        assert_eq!(of_callers("push") as u64, 3 * ROUNDS);
        assert!(of_callers("wait") > 0);
    }
}

/// The timeline has all times on one clock. The hub is in a namespace whose clock shows another time, as on
/// another machine.
#[test]
fn machines_with_other_clocks_are_laid_on_one() {
    const AHEAD_S: f64 = 1e6;
    let _watchdog = Watchdog::start();
    let apart = [
        "unshare",
        "--user",
        "--map-root-user",
        "--time",
        "--monotonic",
        "1000000",
        "--fork",
        "--kill-child",
    ];
    let apart_works = Command::new(apart[0]).args(&apart[1..]).arg("true").stderr(Stdio::null()).status();
    if !apart_works.is_ok_and(|status| status.success()) {
        return eprintln!("NOT RUN: this machine permits no namespace with a clock of its own");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (mut program, address) =
        start_hub_under(&apart, &[("PHUB_TRACE", file("hub.json").to_str().unwrap())]);
    let mut sessions = ready_all(WORKERS, |rank| {
        let mut config = config_at(&address, "job", rank, WORKERS);
        config.transport = Some(Transport::Tcp);
        config.trace = Some(file("run.json"));
        config
    });
    for _round in 0..ROUNDS {
        sessions.iter_mut().for_each(|session| push_all(session).unwrap());
        sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    }
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    assert!(program.finish().success());

    let parts = ["hub.json", "run.rank0.json", "run.rank1.json"].map(file);
    let first = |at: usize| read(&parts[at])[0].begin;
    assert!((first(0) - first(1)) / 1e6 > AHEAD_S / 2.0, "two clocks");
    let to = file("all.json");
    let arguments = ["phub-server".into(), "trace".into()].into_iter().chain(parts.map(Into::into));
    assert!(phub_cli::run(arguments.chain(["--to".into(), to.clone().into()])));
    let whole: Value = serde_json::from_str(&std::fs::read_to_string(to).unwrap()).unwrap();
    let within = |worker: usize| {
        let clock = &whole["metadata"]["processes"][worker]["clock"];
        assert!(clock["shifted_ns"].as_f64().unwrap() / 1e9 > AHEAD_S / 2.0, "{clock}");
        clock["within_ns"].as_f64().unwrap() / 1e3
    };
    let same = within(1).max(within(2));
    check_order(&of_process(&whole, 0), &[of_process(&whole, 1), of_process(&whole, 2)], same + SAME);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_at_the_start() {
    let _watchdog = Watchdog::start();
    let directory = tempfile::tempdir().unwrap();
    let nowhere = Some(directory.path().join("missing").join("run.json"));
    let words = ["missing", "opening it for writing failed", "name a file that can be written"];
    let error = Hub::start(&HubSettings { trace: nowhere.clone(), ..settings(1, PATIENT_S) }).unwrap_err();
    says(&error, &["--trace", words[0], words[1], words[2]]);
    let hub = hub(1);
    let mut config = config(&hub, "job", 0, 1);
    config.trace = nowhere;
    says(refused(config), &["PHUB_TRACE", "run.rank0.json", words[1], words[2]]);
    let mut none = get(&hub, "/v1/trace", &[("authorization", &authorization())]);
    assert_eq!(none.status(), 404);
    says(none.body_mut().read_to_string().unwrap(), &["records no timeline", "--trace FILE"]);
}
