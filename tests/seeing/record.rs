//! The record of a hub. A replay has the same answers as the hub, or names the first answer that differs.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use coordinator::record::{NotReplayed, Replayed, replay};
use fabric::conformance::Watchdog;
use hub_tests::{
    PATIENT_S, config, join_by_hand, join_request, leave_by_hand, post, push_all, ready_all, settings,
};
use pbox_core::OnLoss;
use phub_server::{Hub, HubSettings};
use worker_shim::Session;

fn replayed(record: &str) -> Result<Replayed, NotReplayed> {
    replay(record.lines().map(|line| Ok::<_, String>(line.to_owned())), Instant::now())
}

/// Whether the program reports that all answers of a record are equal.
fn is_equal(record: &Path) -> bool {
    phub_cli::run(["phub-server".into(), "replay".into(), record.into()])
}

fn round(sessions: &mut [Session]) {
    for session in sessions.iter_mut() {
        session.keys().for_each(|key| session.gradient_mut(key).unwrap().fill(1.0));
        push_all(session).unwrap();
    }
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
}

/// Runs a hub. A worker is lost and returns, a checkpoint is written, and all workers leave. Then a worker
/// joins by hand, and its job fails. Returns the token of that worker.
fn run(settings: &HubSettings) -> String {
    let hub = Hub::start(settings).unwrap();
    let of = |rank: u32| {
        let mut config = config(&hub, "job", rank, 2);
        config.terms.on_loss = OnLoss::Continue;
        config
    };
    let mut sessions = ready_all(2, of);
    round(&mut sessions);
    drop(sessions.pop());
    while sessions[0].members() != [0] {
        std::thread::yield_now();
    }
    round(&mut sessions);
    sessions.push(Session::join(of(1)).unwrap());
    round(&mut sessions);
    let (status, written) = post(&hub, "/v1/jobs/job/checkpoint", "");
    assert_eq!(status, 200, "{written}");
    round(&mut sessions);
    sessions.into_iter().rev().for_each(|session| session.leave().unwrap());
    let joined = join_by_hand(&hub, "by-hand", &join_request(0, 2));
    assert_eq!(leave_by_hand(&hub, "by-hand", &joined.token), 200);
    joined.token
}

#[test]
fn a_replay_of_a_hub_has_the_same_answers_and_names_the_first_that_differs() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("record");
    let settings = HubSettings {
        record: Some(file.clone()),
        checkpoints: Some(dir.path().join("checkpoints")),
        ..settings(2, PATIENT_S)
    };
    let token = run(&settings);
    let record = std::fs::read_to_string(&file).unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!record.contains(&token), "a token is in the record");
    let Replayed { inputs, jobs, ended, .. } = replayed(&record).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((inputs, jobs), (record.lines().count() - 2, 2));
    assert_eq!(ended.as_deref(), Some("the hub stopped"));
    let names = ["{\"Leave\"", "{\"Join\"", "\"LinkEnded\"", "\"WantState\"", "{\"Fail\""];
    for name in names {
        assert!(record.contains(name), "{name} is in the record");
    }
    assert!(is_equal(&file));

    // The changed record gives another rank to the worker that returned.
    let changed = "\"rank\":1,\"hub\":[0,1]";
    let (before, behind) = record.rsplit_once(changed).unwrap();
    let wrong = format!("{before}{}{behind}", changed.replace("\"rank\":1", "\"rank\":0"));
    let line = before.lines().count();
    let NotReplayed::Differs(difference) = replayed(&wrong).unwrap_err() else { panic!("it differs") };
    assert_eq!(difference.line, line, "{difference}");
    assert!(difference.seen.contains("rank 0 of job \\\"job\\\""), "{difference}");
    std::fs::write(&file, wrong).unwrap();
    assert!(!is_equal(&file));

    // The next hub keeps the existing record.
    drop(Hub::start(&settings).unwrap());
    assert!(!is_equal(&dir.path().join("record.before")));
    assert!(is_equal(&file));
}
