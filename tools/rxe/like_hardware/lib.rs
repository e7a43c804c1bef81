//! A libibverbs in front of the real library, for tests on soft-RoCE. It imitates hardware: it has limits, calls fail
//! or are slow, and it logs the settings of queue pairs. All other calls go to the real library unchanged.
//!
//! On the `unsafe` list. `binary.sh` builds it as `libibverbs.so.1`; a check puts its folder into
//! LD_LIBRARY_PATH. Any thread may call it.
//!
//! | variable | what the library then does |
//! | --- | --- |
//! | `LIKE_AS` | devices have the limits of `mlx5`, `mlx4` or `bnxt_re` ([`kinds`]): queries report them, and calls that ask for more fail |
//! | `LIKE_MAX_MR` | a process may have this number of memory regions at a time; more fail with ENOMEM |
//! | `LIKE_FAULTS` | a file of lines `CALL[@DEVICE] fail ERRNO [after N]` or `CALL[@DEVICE] delay MS`: the call fails, at first or after N calls in this process, or takes MS milliseconds longer. The file is read again after 20 ms. Calls of the data path are `ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq` and `ibv_req_notify_cq` |
//! | `LIKE_GRH` | ports report that a GRH is required |
//! | `LIKE_PKEYS` | ports report this table of partition keys: `ffff,0,8003`, in which 0 is an empty entry. The real port has one key, and queue pairs get that key |
//! | `LIKE_INFINIBAND` | a file of lines `DEVICE LID GID INDEX REAL`: the port reports this LID. A path to this LID or GID becomes a path from the real GID with this index to the real GID. The test itself must replace what is in sysfs (link layer, GIDs) |
//! | `LIKE_EVENTS` | a named pipe: each byte that is written into it is an event of port 1, by its number in ibv_event_type. There are no other events. After a context has read DEVICE_FATAL, it can make no objects: calls fail with EIO. From PORT_ERR to PORT_ACTIVE the port reports that it is down |
//! | `LIKE_EVENTS_OF` | the pipe is only for the device with this name; other devices have their own events |
//! | `LIKE_LOG` | a file that gets a line when a queue pair is made or changed, and when a range of memory or of a dma-buf is registered |
//!
//! Drivers of hardware take dma-bufs, and soft-RoCE's driver does not. So `ibv_reg_dmabuf_mr` maps the dma-buf here, and registers
//! the mapping.

#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code, clippy::missing_safety_doc)]

mod devices;
mod events;
mod faults;
#[path = "../../../fabric/src/verbs/handles/ffi.rs"]
mod ffi;
mod functions;
mod infiniband;
mod kinds;
mod memory;
mod queues;
mod real;

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io::Write as _;

const EIO: c_int = 5;
const ENOMEM: c_int = 12;
const EINVAL: c_int = 22;
const EBADF: c_int = 9;
const EOPNOTSUPP: c_int = 95;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Returns the number in an environment variable, if it is set.
fn setting(name: &str) -> Option<i64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; expected a number")))
}

/// Writes a line into the log by one write, because several processes share the file.
fn log(line: String) {
    let Ok(file) = std::env::var("LIKE_LOG") else { return };
    let file = OpenOptions::new().append(true).create(true).open(&file);
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .expect("LIKE_LOG can be written");
}

/// Sets errno, and returns the null pointer with which a call fails that should make an object.
fn fail<T>(errno: c_int) -> *mut T {
    // SAFETY: the thread's own errno.
    unsafe { *__errno_location() = errno };
    std::ptr::null_mut()
}
