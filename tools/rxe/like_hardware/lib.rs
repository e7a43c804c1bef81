//! A libibverbs in front of the real one. It behaves like hardware that soft-RoCE is not. It has limits, it fails,
//! it takes its time, and it logs what queue pairs are asked for. All else goes to the real one.
//!
//! On the `unsafe` list. `binary.sh` builds it as `libibverbs.so.1`; a check puts its folder into LD_LIBRARY_PATH. Any thread.
//!
//! | variable | what the library then does |
//! | --- | --- |
//! | `LIKE_AS` | it has the limits of `mlx5`, `mlx4` or `bnxt_re` ([`kinds`]): it says so, and refuses larger things |
//! | `LIKE_MAX_MR` | ENOMEM for more memory regions at a time |
//! | `LIKE_FAULTS` | a file of lines `CALL[@DEVICE] fail ERRNO [after N]` or `CALL[@DEVICE] delay MS`: this call fails, once it was made N times in this process, or takes so much longer. It is read again when 20 ms are over. Calls of the data path are `ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq` and `ibv_req_notify_cq` |
//! | `LIKE_GRH` | ports say that a GRH is required |
//! | `LIKE_PKEYS` | ports say that this is their table of partition keys: `ffff,0,8003`, in which 0 is an empty entry. The real port has one: queue pairs get that |
//! | `LIKE_INFINIBAND` | a file of lines `DEVICE LID GID INDEX REAL`: a port says that it has this LID, and who asks for a path to this LID or GID gets one from the real GID of this index to the real GID. What is in sysfs (link layer, GIDs) is the check's to cover |
//! | `LIKE_EVENTS` | a named pipe: each byte that is written into it is an event of port 1, by its number in ibv_event_type; there are no others. After DEVICE_FATAL nothing can be made on the context that read it: EIO. From PORT_ERR to PORT_ACTIVE the port says that it is down |
//! | `LIKE_EVENTS_OF` | the pipe is for the device of this name alone; the others have their own events |
//! | `LIKE_LOG` | a file that gets a line for each queue pair made, each change of one, and each range of memory or of a dma-buf that is registered |
//!
//! Drivers of hardware take dma-bufs, which soft-RoCE's does not: here `ibv_reg_dmabuf_mr` maps the dma-buf, and has the mapping
//! registered.

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

/// A variable's number.
fn setting(name: &str) -> Option<i64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number")))
}

/// Writes a line into the log by one write, because several processes share the file.
fn log(line: String) {
    let Ok(file) = std::env::var("LIKE_LOG") else { return };
    let file = OpenOptions::new().append(true).create(true).open(&file);
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .expect("LIKE_LOG can be written");
}

/// Returns the result of a failing call that should make something.
fn fail<T>(errno: c_int) -> *mut T {
    // SAFETY: the thread's own errno.
    unsafe { *__errno_location() = errno };
    std::ptr::null_mut()
}
