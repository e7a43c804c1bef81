//! Secrets and tokens as people use them: `phub-server token`, the environment, files, and a change of the
//! secret while a job runs.

use std::path::Path;
use std::process::Stdio;

use fabric::conformance::Watchdog;
use pbox_core::{Key, Optimizer};
use rustix::process::Signal;
use worker_shim::{Credential, Session, SessionConfig, SessionError};

use crate::support::{Serve, phub_server, says};

const SERVE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--cores", "1"];

/// Returns the output of `phub-server token` with these arguments.
fn token(home: &Path, arguments: &[&str]) -> String {
    let output = phub_server(&[&["token"], arguments].concat()).env("HOME", home).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Runs the program, which must fail. Returns its output.
fn failure(command: &mut std::process::Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

fn try_to_join(hub: &str, job: &str, token: &str) -> Result<Session, SessionError> {
    let mut config = SessionConfig::new(hub, job, 0, 1, vec![Key::f32("a", [100])], Optimizer::Average);
    config.token = Some(Credential::parse(token, "a test").unwrap());
    Session::join(config)
}

fn join(hub: &str, job: &str, token: &str) -> Session {
    try_to_join(hub, job, token).unwrap()
}

/// Returns why the token may not join.
fn refused(hub: &str, job: &str, token: &str) -> SessionError {
    try_to_join(hub, job, token).err().expect("the hub refuses")
}

fn round(session: &mut Session) {
    session.keys().try_for_each(|key| session.push(key)).unwrap();
    session.wait_all().unwrap();
}

#[test]
fn a_user_needs_to_do_nothing_on_one_machine() {
    let _watchdog = Watchdog::start();
    let home = tempfile::tempdir().unwrap();
    let hub = Serve::start(phub_server(&SERVE).env("HOME", home.path()).env("RUST_LOG", "warn"));
    // Another program of this user finds the same secret.
    let secret = std::fs::read_to_string(home.path().join(".config/phub/secret")).unwrap();
    join(&hub.address, "job", &secret).leave().unwrap();
    let of_job = token(home.path(), &["--right", "join", "--job", "job"]);
    join(&hub.address, "job", &of_job).leave().unwrap();
    says(refused(&hub.address, "other", &of_job), &["allows to join job \"job\""]);
    let expires = token(home.path(), &["--right", "join", "--job", "job", "--expires", "30d"]);
    assert!(expires.starts_with("phub-join@"), "{expires}");
    join(&hub.address, "job", &expires).leave().unwrap();
    // A token with a changed time is invalid.
    let longer = expires.replacen("@1", "@9", 1);
    says(refused(&hub.address, "job", &longer), &["not made with the hub's secret"]);
    for wrong in ["0d", "30", "d", "1.5d", "30w"] {
        says(failure(&mut phub_server(&["token", "--expires", wrong])), &["expected a number of days"]);
    }
    let read = token(home.path(), &[]);
    says(refused(&hub.address, "job", &read), &["allows to read job \"*\"", "to join job \"job\""]);
}

#[test]
fn a_secret_changes_while_a_job_runs() {
    let _watchdog = Watchdog::start();
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("cluster");
    let (old, new) = (token(home.path(), &["--new"]), token(home.path(), &["--new"]));
    assert_ne!(old, new);
    std::fs::write(&file, &old).unwrap();
    let mut command = phub_server(&SERVE);
    command.arg("--token-file").arg(&file).env("HOME", home.path()).stderr(Stdio::piped());
    let mut hub = Serve::start(&mut command);
    let mut log = hub.stderr();
    let mut reload = |text: String| {
        std::fs::write(&file, text).unwrap();
        hub.signal(Signal::HUP);
        log.by_ref().map_while(Result::ok).find(|line| line.contains("SIGHUP")).unwrap()
    };
    let mut session = join(&hub.address, "job", &old);
    round(&mut session);
    refused(&hub.address, "other", &new);
    says(reload(format!("{new}\n{old}\n")), &["read again"]);
    for secret in [&old, &new] {
        join(&hub.address, "other", secret).leave().unwrap();
    }
    says(reload("too-short".into()), &["keeps the secret", "16 or more"]);
    join(&hub.address, "other", &old).leave().unwrap();
    says(reload(new.clone()), &["read again"]);
    says(refused(&hub.address, "other", &old), &["not made with the hub's secret"]);
    // The job that joined with the old secret continues, and ends well.
    round(&mut session);
    session.leave().unwrap();
}

#[test]
fn a_hub_says_what_is_wrong_with_its_secret() {
    let home = tempfile::tempdir().unwrap();
    let of_job = token(home.path(), &["--right", "operate"]);
    says(failure(phub_server(&SERVE).env("PHUB_TOKEN", of_job)), &["PHUB_TOKEN is a token", "the secret"]);
    says(failure(phub_server(&SERVE).env("PHUB_TOKEN", "1234")), &["PHUB_TOKEN", "16 or more", "--insecure"]);
    says(
        failure(phub_server(&SERVE).env("PHUB_TOKEN_FILE", "/nowhere/secret")),
        &["/nowhere/secret", "No such file"],
    );
    says(
        failure(phub_server(&SERVE).env_remove("HOME").env_remove("XDG_CONFIG_HOME")),
        &["no secret", "HOME"],
    );
}

#[test]
fn an_insecure_hub_serves_everybody_and_says_so() {
    let _watchdog = Watchdog::start();
    let mut command = phub_server(&SERVE);
    command.arg("--insecure").env_remove("HOME").env_remove("XDG_CONFIG_HOME").stderr(Stdio::piped());
    let mut hub = Serve::start(&mut command);
    assert!(
        hub.stderr().map_while(Result::ok).any(|line| line.contains("WARN") && line.contains("--insecure"))
    );
    join(&hub.address, "job", "any-secret-of-anybody").leave().unwrap();
}
