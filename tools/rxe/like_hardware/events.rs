//! Events that a named pipe delivers.

use std::ffi::{CString, c_int, c_uint};
use std::fs::File;
use std::io::Read as _;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd as _;
use std::sync::Mutex;

use crate::devices::name_of;
use crate::ffi::*;
use crate::log;

/// The contexts that get their events from a pipe. Each entry has the context, the descriptor of its real events, and
/// the descriptor of the pipe.
pub static EVENTS: Mutex<Vec<(usize, c_int, c_int)>> = Mutex::new(Vec::new());

/// Contexts with a failed device.
pub static FAILED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Devices with a port that is down.
pub static DOWN: Mutex<Vec<CString>> = Mutex::new(Vec::new());

pub fn has_failed(context: *mut ibv_context) -> bool {
    FAILED.lock().unwrap().contains(&(context as usize))
}

pub fn events_of(context: *mut ibv_context) -> Option<(c_int, c_int)> {
    let events = EVENTS.lock().unwrap();
    events.iter().find(|(of, ..)| *of == context as usize).map(|&(_, real, pipe)| (real, pipe))
}

/// Makes an object, such as a queue. Meanwhile the context has the descriptor of its real events, not of the pipe.
pub fn with_real_events<T>(context: *mut ibv_context, make: impl Fn() -> T) -> T {
    let Some((real, pipe)) = events_of(context) else { return make() };
    // SAFETY: the caller's context is open. Other threads read its events by `get_async_event`.
    unsafe { (*context).async_fd = real };
    let made = make();
    // SAFETY: the caller's open context, as above.
    unsafe { (*context).async_fd = pipe };
    made
}

/// Waits for an event of a pipe. If several threads wait, each event goes to one of them.
pub fn get_async_event(
    go_on: impl Fn() -> c_int,
    (context, event): (*mut ibv_context, *mut ibv_async_event),
) -> c_int {
    let Some((_, pipe)) = events_of(context) else { return go_on() };
    let mut kind = [0];
    // SAFETY: the pipe is never closed.
    let mut pipe = ManuallyDrop::new(unsafe { File::from_raw_fd(pipe) });
    if pipe.read_exact(&mut kind).is_err() {
        return -1;
    }
    log(format!("event {}", kind[0]));
    let name = name_of(context);
    match c_uint::from(kind[0]) {
        IBV_EVENT_DEVICE_FATAL => FAILED.lock().unwrap().push(context as usize),
        IBV_EVENT_PORT_ERR => DOWN.lock().unwrap().push(name),
        IBV_EVENT_PORT_ACTIVE => DOWN.lock().unwrap().retain(|down| *down != name),
        _ => {}
    }
    let element = ibv_event_element { port_num: 1 };
    // SAFETY: the caller's structure.
    unsafe { *event = ibv_async_event { element, event_type: kind[0].into() } };
    0
}

/// Acknowledges an event. Events of a port or a device need no acknowledgement, and the events of a pipe are
/// all of that kind.
pub fn ack_async_event(go_on: impl Fn(), (event,): (*mut ibv_async_event,)) {
    // SAFETY: the caller's structure.
    if unsafe { (*event).event_type } < IBV_EVENT_DEVICE_FATAL {
        go_on();
    }
}
