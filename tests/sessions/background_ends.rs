//! The end of a session on its own thread: it leaves its job, and its thread ends. The thread of a join that
//! is given up ends, too. The file has one test, alone in its process, because it counts threads.

use fabric::any::Transport;
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

/// Returns the number of open sockets and event descriptors of this process.
fn open_links() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("Linux has /proc");
    let targets = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let is_link = |target: &str| target.starts_with("socket:") || target == "anon_inode:[eventfd]";
    targets.filter(|target| target.to_str().is_some_and(is_link)).count()
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

        // A session that has left keeps its memory, and no links, as long as its handle lives.
        for transport in [Transport::Shm, Transport::Tcp] {
            let before = open_links();
            let mut settings = config(&hub, "last", 0, 1);
            settings.transport = Some(transport);
            let left = Background::join(settings, &mut patient).unwrap();
            left.leave(&mut patient).unwrap();
            until("the links of the session are closed", || open_links() <= before);
            drop(left);
        }
    });
}
