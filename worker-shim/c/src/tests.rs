//! Tests that a panic in this library does not cross the call from C. The functions that panic are defined
//! here, so that the shipped library has none.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use fabric::conformance::Watchdog;
use phub_server::{CoreSelection, Hub, HubSettings, IdleChoice};

use crate::config::{
    PhubConfig, PhubDtype, phub_config_add_key, phub_config_free, phub_config_new, phub_config_set,
};
use crate::entry::{enter, given, phub_last_error};
use crate::session::*;
use crate::status::PhubStatus;

unsafe extern "C" {
    /// Sorts an array. The C library implements it, and calls `compare` from frames of C.
    fn qsort(
        base: *mut c_void,
        count: usize,
        bytes: usize,
        compare: unsafe extern "C" fn(*const c_void, *const c_void) -> c_int,
    );
}

fn words() -> String {
    // SAFETY: the pointer is never null, and no call fails on this thread meanwhile.
    unsafe { CStr::from_ptr(phub_last_error()) }.to_str().unwrap().to_owned()
}

static COMPARED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn compare(_left: *const c_void, _right: *const c_void) -> c_int {
    let status = enter(|| panic!("on purpose, number {}", COMPARED.fetch_add(1, Ordering::Relaxed)));
    assert_eq!(status, PhubStatus::Internal); // a failure here ends the process: it is in a frame of C
    0
}

#[test]
fn a_panic_does_not_cross_the_frames_of_c() {
    let mut two = [1u32, 2];
    // SAFETY: two elements of four bytes, and a function that reads none of them.
    unsafe { qsort(two.as_mut_ptr().cast(), 2, 4, compare) };
    assert_eq!(COMPARED.load(Ordering::Relaxed), 1);
    assert_eq!(words(), "a defect of libphub; report it with this text: on purpose, number 0");
}

/// Panics on the session's own thread.
unsafe extern "C" fn panic_in_session(session: *const PhubSession) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise.
        let session = unsafe { given("session", session) }?;
        let answer = session.waiting(|background, interrupted| {
            background.with(|_session| -> u32 { panic!("on purpose") }, interrupted)
        });
        answer.map(drop)
    })
}

fn hub() -> Hub {
    let settings = HubSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        cores: Some(CoreSelection::Count(1)),
        idle: IdleChoice::Sleep,
        ..HubSettings::default()
    };
    Hub::start(&settings).unwrap()
}

/// Joins a job that has these keys of three elements.
fn joined(hub: &Hub, job: &str, keys: &[&CStr], settings: &[(&CStr, &CStr)]) -> *mut PhubSession {
    let text = |text: String| CString::new(text).unwrap();
    let (hub, job) = (text(hub.address().to_string()), text(job.into()));
    let sgd = text(r#"{"name": "sgd", "learning_rate": 0.5}"#.into());
    let (mut config, mut session): (*mut PhubConfig, *mut PhubSession) = (null_mut(), null_mut());
    // SAFETY: all pointers point to the right objects, and live until the calls return.
    unsafe {
        let made = phub_config_new(&mut config, hub.as_ptr(), job.as_ptr(), 0, 1, sgd.as_ptr());
        assert_eq!(made, PhubStatus::Ok);
        for name in keys {
            let key =
                phub_config_add_key(config, name.as_ptr(), [3].as_ptr(), 1, PhubDtype::F32 as _, 1.0, 1.0);
            assert_eq!(key, PhubStatus::Ok);
        }
        for (name, value) in settings {
            let set = phub_config_set(config, name.as_ptr(), value.as_ptr());
            assert_eq!(set, PhubStatus::Ok, "{}", words());
        }
        assert_eq!(phub_join(&mut session, config, None, null_mut()), PhubStatus::Ok, "{}", words());
        phub_config_free(config);
    }
    session
}

#[test]
fn a_session_that_panicked_says_so_and_can_be_closed() {
    let _watchdog = Watchdog::start();
    let hub = hub();
    let session = joined(&hub, "first", &[c"only"], &[]);
    // SAFETY: `session` is from phub_join, and freed at the end; results have room.
    unsafe {
        assert_eq!(phub_broadcast(session), PhubStatus::Ok);
        assert_eq!(panic_in_session(session), PhubStatus::Internal);
        assert!(words().contains("session's thread panicked"), "{}", words());
        assert_eq!(phub_push(session, 0), PhubStatus::Internal);
        assert_eq!(phub_leave(session), PhubStatus::Internal);
        // The session's memory stays until it is freed.
        let (mut weights, mut gradient, mut bytes) = (null(), null_mut(), 0);
        assert_eq!(phub_weights(session, 0, &mut weights, &mut bytes), PhubStatus::Ok);
        assert_eq!(phub_gradient(session, 0, &mut gradient, &mut bytes), PhubStatus::Ok);
        assert_eq!(bytes, 12);
        gradient.cast::<f32>().write(weights.cast::<f32>().read() + 1.0);
        phub_session_free(session);
    }
    let session = joined(&hub, "second", &[c"only"], &[]);
    // SAFETY: as above.
    unsafe {
        assert_eq!(phub_broadcast(session), PhubStatus::Ok, "{}", words());
        assert_eq!(phub_leave(session), PhubStatus::Ok, "{}", words());
        phub_session_free(session);
    }
}

/// Checks the calls of a worker with Slim-DP: it writes its weights, and a push in another order is refused at once.
#[test]
fn a_worker_with_slim_dp_writes_its_weights_and_pushes_every_key() {
    let _watchdog = Watchdog::start();
    let hub = hub();
    let session = joined(&hub, "slim", &[c"first", c"second"], &[(c"compression", c"slim:0.5:0.25:4")]);
    // SAFETY: `session` is from phub_join, and freed at the end; results have room; no key is written in flight.
    unsafe {
        assert_eq!(phub_broadcast(session), PhubStatus::Ok, "{}", words());
        for key in 0..2 {
            let (mut weights, mut gradient, mut bytes) = (null(), null_mut(), 0);
            assert_eq!(phub_weights(session, key, &mut weights, &mut bytes), PhubStatus::Ok);
            assert_eq!(phub_gradient(session, key, &mut gradient, &mut bytes), PhubStatus::Ok);
            weights.cast_mut().cast::<f32>().write(2.0);
            gradient.cast::<f32>().write(2.0);
        }
        assert_eq!(phub_push(session, 0), PhubStatus::Ok);
        assert_eq!(phub_wait(session, 0), PhubStatus::Ok, "{}", words());
        assert_eq!(phub_push(session, 0), PhubStatus::Order);
        assert!(words().contains("\"second\" is not pushed for the previous round"), "{}", words());
        assert_eq!(phub_push(session, 1), PhubStatus::Ok);
        assert_eq!(phub_push(session, 0), PhubStatus::Ok, "{}", words());
        assert_eq!(phub_leave(session), PhubStatus::Ok, "{}", words());
        phub_session_free(session);
    }
}

/// The functions for C that do not catch panics: they do nothing that may panic.
const PLAIN: [&str; 2] = ["phub_last_error", "phub_version"];

#[test]
fn every_function_of_the_header_catches_panics() {
    let sources = [
        include_str!("config.rs"),
        include_str!("entry.rs"),
        include_str!("plan.rs"),
        include_str!("session.rs"),
        include_str!("subscription.rs"),
    ];
    let sources = sources.concat();
    let mut functions = 0;
    for function in sources.split("extern \"C\" fn ").skip(1).filter(|text| text.starts_with("phub_")) {
        let (name, rest) = function.split_once('(').unwrap();
        let body = rest.split("\n}\n").next().unwrap();
        functions += 1;
        let enters =
            ["enter(", "enter_session(", "enter_memory(", "free("].iter().any(|by| body.contains(by));
        assert!(PLAIN.contains(&name) || enters, "{name} does not enter()");
    }
    assert_eq!(functions, 32, "functions that C can call");
}
