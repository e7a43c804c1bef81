//! The end of a session on its own thread: it leaves its job, and its thread ends. The thread of a join that
//! is given up ends, too. The file has one test, alone in its process, because it counts threads.

use fabric::conformance::{Watchdog, alone};
use hub_tests::program::until;
use hub_tests::{config, hub, on_threads, says};
use pbox_core::KeyId;
use worker_shim::{Background, BackgroundError, SessionError};

/// Waits until this process has `count` threads of sessions. For a moment, /proc still shows a thread that
/// was joined.
fn until_session_threads_are(count: usize) {
    until(&format!("{count} threads are sessions'"), || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has /proc");
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "phub-session").count() == count
    });
}

#[test]
fn a_session_that_ends_leaves_its_job_and_no_thread() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let mut patient = || false;
        let hub = hub(1);

        let given_up = Background::join(config(&hub, "alone", 0, 2), &mut || true).unwrap_err();
        says(given_up, &["interrupted while waiting for the other workers"]);
        until_session_threads_are(0); // the thread ends without a call

        let mut sessions = on_threads(2, |rank| {
            let session = Background::join(config(&hub, "job", rank, 2), &mut || false).unwrap();
            session.broadcast_written(&mut || false).unwrap();
            session
        });
        until_session_threads_are(2);
        drop(sessions.pop());
        until_session_threads_are(1);
        // The worker has left and was not lost.
        let rest = sessions.pop().unwrap();
        rest.push(KeyId(0)).unwrap();
        let Err(BackgroundError::Session(error)) = rest.wait(KeyId(0), &mut patient) else {
            panic!("no error")
        };
        assert!(matches!(*error, SessionError::PeerLeft { rank: 1, .. }), "{error}");
        drop(rest);
        until_session_threads_are(0);
    });
}
