//! A worker that fails sends its reason to the other workers. The hub repeats the reason within its own
//! error. Any reason becomes one line that can be printed.

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::{
    FIRST, SECOND, addresses, config, config_at, hub, join_by_hand, join_request, on_threads, post_as_member,
};
use hub_tests::{push_all, ready_all, refused, says};
use pbox_core::control::{LeaveRequest, MAX_REASON_BYTES};
use worker_shim::{Background, Session, SessionConfig};

fn patient() -> bool {
    false
}

#[test]
fn the_others_hear_why_a_worker_fails() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let list = addresses(&hubs);
    for keys_under_way in [true, false] {
        let mut sessions = on_threads(2, |rank| {
            let session = Background::join(config_at(&list, "job", rank, 2), &mut patient).unwrap();
            session.broadcast_written(&mut patient).unwrap();
            session
        });
        let (fails, waits) = (sessions.pop().unwrap(), sessions.pop().unwrap());
        waits.push(FIRST).unwrap();
        if keys_under_way {
            fails.push(SECOND).unwrap();
        }
        fails.close_because("KeyError: 'x'");
        let error = waits.wait(FIRST, &mut patient).unwrap_err();
        says(error, &["job \"job\" failed: rank 1 failed: KeyError: 'x'"]);
        says(fails.push(FIRST).unwrap_err(), &["this session has left"]);
        fails.close_because("a second reason, which is too late");
    }
}

#[test]
fn a_worker_that_drives_its_session_itself_says_why_it_fails() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(3, |rank| config(&hub, "job", rank, 3));
    sessions.pop().unwrap().fail(&format!("\x1b[31m{}", "x".repeat(4 * MAX_REASON_BYTES)));
    for mut session in sessions {
        let error = push_all(&mut session).and_then(|()| session.wait_all()).unwrap_err().to_string();
        let told =
            error.strip_prefix("job \"job\" failed: rank 2 failed: ").unwrap_or_else(|| panic!("{error}"));
        assert!(told.starts_with("[31mxxxx") && told.len() <= MAX_REASON_BYTES, "{told}");
    }
}

/// Formerly the hub waited for the worker's heartbeat, and refused its rank for 10 s.
#[test]
fn a_worker_that_cannot_make_a_link_leaves_its_rank() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let worker = || SessionConfig { transport: Some(Transport::Tcp), ..config(&hub, "job", 0, 1) };
    let mut alone = worker();
    alone.set("tcp_congestion", "no-such").unwrap();
    says(Session::join(alone).err().unwrap(), &["no data path", "no-such", "the kernel does not have it"]);
    Session::join(worker()).unwrap().leave().unwrap();
}

#[test]
fn a_hub_prints_no_more_than_a_line_of_a_strangers_reason() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let token = join_by_hand(&hub, "job", &join_request(1, 2)).token;
    let failed = Some(format!("no\nway \u{202e}{}", "y".repeat(60_000)));
    let request = serde_json::to_vec(&LeaveRequest { failed, ..LeaveRequest::default() }).unwrap();
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| refused(config(&hub, "job", 0, 2)));
        hub_tests::program::until("the other worker waits", || {
            let jobs = hub_tests::describe(&hub.address().to_string()).jobs;
            jobs[0].members.len() == 2
        });
        assert_eq!(post_as_member(&hub, "job", "leave", &token, &request).0, 200);
        waits.join().unwrap()
    });
    says(&waits, &["rank 1 failed: no way  yyyy"]);
    // The worker gets the reason by the hub's notice, or as the error of its connection. The error of a
    // connection has more words before the reason, and may also name the failure of shared memory.
    assert!(waits.len() < MAX_REASON_BYTES + 400 && !waits.contains('\n'), "{waits}");
}
