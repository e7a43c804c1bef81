//! A libibverbs that stands before the real one and behaves like hardware that soft-RoCE is not: it has limits, it fails, it
//! takes its time, and it logs what queue pairs are asked for. All else goes to the real one.
//!
//! On the `unsafe` list. `binary.sh` builds it as `libibverbs.so.1`; a check puts its folder into LD_LIBRARY_PATH. Any thread.
//!
//! | variable | what the library then does |
//! | --- | --- |
//! | `LIKE_AS` | it has the limits of `mlx5`, `mlx4` or `bnxt_re` ([`KINDS`]): it says so, and refuses larger things |
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

#[path = "../../fabric/src/verbs/handles/ffi.rs"]
mod ffi;

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::mem::ManuallyDrop;
use std::net::Ipv6Addr;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use ffi::*;

const EIO: c_int = 5;
const ENOMEM: c_int = 12;
const EINVAL: c_int = 22;
const EBADF: c_int = 9;
const PAGE: u64 = 4096;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const EOPNOTSUPP: c_int = 95;
/// Where distributions have the real library.
const REAL: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/lib/aarch64-linux-gnu/libibverbs.so.1",
    "/usr/lib64/libibverbs.so.1",
    "/usr/lib/libibverbs.so.1",
];
const RTLD_NOW: c_int = 2;
/// Drivers find the real library's private functions among the global ones.
const RTLD_GLOBAL: c_int = 0x100;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn mmap(
        start: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(start: *mut c_void, bytes: usize) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// A function of the real library.
fn real(name: &str) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let found = REAL.iter().find(|file| std::path::Path::new(file).exists()).expect("a libibverbs.so.1");
        let file = CString::new(*found).unwrap();
        // SAFETY: a path; the library's initialisers ask nothing of the process.
        unsafe { dlopen(file.as_ptr(), RTLD_NOW | RTLD_GLOBAL) as usize }
    });
    let symbol = CString::new(name).unwrap();
    // SAFETY: a library that stays loaded, and a name.
    let found = unsafe { dlsym(library as *mut c_void, symbol.as_ptr()) };
    assert!(!found.is_null(), "the real libibverbs has no {name}");
    found
}

/// A variable's number.
fn setting(name: &str) -> Option<i64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number")))
}

/// The limits of a kind of NIC.
struct Kind {
    name: &'static str,
    /// What it says of both queues of a queue pair.
    max_qp_wr: u32,
    /// What send queue it makes.
    sends: u32,
    max_cqe: i32,
    max_mr: i64,
    resizes: bool,
}

/// As `ibv_devinfo -v` shows them in public reports. mlx5: openucx/ucx issue 8229, ofiwg/libfabric pull request 9940; a send
/// request of a reliable connection has 256 bytes, of 2 MiB in a queue. mlx4: a ConnectX-3 of firmware 2.42.5000. bnxt_re: a
/// Thor in uccl-project/uccl issue 250 (no figure for regions there); linux-rdma/rdma-core pull request 1315 gave it
/// `ibv_resize_cq` in 2023.
const KINDS: [Kind; 3] = [
    Kind {
        name: "mlx5",
        max_qp_wr: 32768,
        sends: 8192,
        max_cqe: 4_194_303,
        max_mr: 16_777_216,
        resizes: true,
    },
    Kind { name: "mlx4", max_qp_wr: 16351, sends: 16351, max_cqe: 4_194_303, max_mr: 524_032, resizes: true },
    Kind {
        name: "bnxt_re",
        max_qp_wr: 4351,
        sends: 4351,
        max_cqe: 8_388_607,
        max_mr: i64::MAX,
        resizes: false,
    },
];

fn kind() -> Option<&'static Kind> {
    let name = std::env::var("LIKE_AS").ok()?;
    let found = KINDS.iter().find(|kind| kind.name == name);
    Some(found.unwrap_or_else(|| panic!("LIKE_AS is {name:?}, and no kind of NIC that is known here")))
}

/// What an argument says of the device that a call is about.
trait Argument: Copy {
    fn context(self) -> Option<*mut ibv_context> {
        None
    }
    fn device(self) -> Option<CString> {
        self.context().map(name_of)
    }
}

impl Argument for *mut ibv_context {
    fn context(self) -> Option<*mut ibv_context> {
        Some(self)
    }
}

impl Argument for *mut ibv_device {
    fn device(self) -> Option<CString> {
        Some(device_name(self))
    }
}

macro_rules! made_from_a_context {
    ($($type:ty),*) => {$(
        impl Argument for *mut $type {
            fn context(self) -> Option<*mut ibv_context> {
                // SAFETY: the caller's object, which begins with its context.
                (!self.is_null()).then(|| unsafe { *self.cast::<*mut ibv_context>() })
            }
        }
    )*};
}
made_from_a_context!(ibv_pd, ibv_mr, ibv_comp_channel, ibv_cq, ibv_qp);

macro_rules! says_nothing {
    ($($type:ty),*) => { $(impl Argument for $type {})* };
}
says_nothing!(
    c_int,
    c_uint,
    u8,
    u64,
    usize,
    *mut c_int,
    *mut u16,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut ibv_device,
    *mut *mut ibv_cq,
    *mut ibv_device_attr,
    *mut ibv_port_attr,
    *mut ibv_async_event,
    *mut ibv_qp_init_attr,
    *mut ibv_qp_attr,
    *mut ibv_wc,
    *mut ibv_send_wr,
    *mut ibv_recv_wr,
    *mut *mut ibv_send_wr,
    *mut *mut ibv_recv_wr
);

/// What a call answers that fails.
trait Answer {
    fn failed(errno: c_int) -> Self;
}

impl<T> Answer for *mut T {
    fn failed(errno: c_int) -> Self {
        fail(errno)
    }
}

impl Answer for *const c_char {
    fn failed(errno: c_int) -> Self {
        fail::<c_char>(errno)
    }
}

impl Answer for c_int {
    fn failed(errno: c_int) -> Self {
        fail::<c_int>(errno);
        errno
    }
}

impl Answer for () {
    fn failed(_: c_int) {}
}

/// The errno with which a call is to fail, after its delay.
fn fault(call: &str, device: impl Fn() -> Option<CString>) -> Option<c_int> {
    static LINES: Mutex<Option<(Instant, Vec<String>)>> = Mutex::new(None);
    static COUNTS: Mutex<Option<HashMap<String, u64>>> = Mutex::new(None);
    let file = std::env::var_os("LIKE_FAULTS")?;
    let mut known = LINES.lock().unwrap();
    if known.as_ref().is_none_or(|(at, _)| at.elapsed() > Duration::from_millis(20)) {
        let text = std::fs::read_to_string(file).expect("LIKE_FAULTS is a file");
        *known = Some((Instant::now(), text.lines().map(str::to_owned).collect()));
    }
    let is_this = |line: &&String| {
        let of = line.split_whitespace().next().unwrap_or_default();
        let (name, on) = of.split_once('@').map_or((of, None), |(name, on)| (name, Some(on)));
        name == call && on.is_none_or(|on| device().is_some_and(|device| device.to_bytes() == on.as_bytes()))
    };
    let lines: Vec<String> = known.as_ref().unwrap().1.iter().filter(is_this).cloned().collect();
    drop(known);
    let mut errno: Option<c_int> = None;
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number =
            |at: usize| words[at].parse::<u64>().unwrap_or_else(|_| panic!("LIKE_FAULTS has {line:?}"));
        match words[1..] {
            ["delay", _] => std::thread::sleep(Duration::from_millis(number(2))),
            ["fail", _] => errno = Some(number(2) as c_int),
            ["fail", _, "after", _] => {
                let mut counts = COUNTS.lock().unwrap();
                let made = counts.get_or_insert_default().entry(line.clone()).or_default();
                *made += 1;
                errno = (*made > number(4)).then(|| number(2) as c_int).or(errno);
            }
            _ => panic!("LIKE_FAULTS has {line:?}"),
        }
    }
    if let Some(errno) = errno {
        log(format!("{call} fails with {errno}"));
    }
    errno
}

fn fail<T>(errno: c_int) -> *mut T {
    // SAFETY: the thread's own errno.
    unsafe { *__errno_location() = errno };
    std::ptr::null_mut()
}

/// One write a line: several processes share the file.
fn log(line: String) {
    let Ok(file) = std::env::var("LIKE_LOG") else { return };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(&file);
    file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        .expect("LIKE_LOG can be written");
}

/// Functions that go on to the real one, after `$around` has had a look, and may answer itself.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $(, $around:expr)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            static REAL: OnceLock<usize> = OnceLock::new();
            type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
            // SAFETY: the function of this name has this type.
            let on: Function = unsafe {
                std::mem::transmute::<usize, Function>(*REAL.get_or_init(|| real(stringify!($name)) as usize))
            };
            // SAFETY: the arguments are the caller's, as are their guarantees.
            let go_on = || unsafe { on($($argument),*) };
            let device = || [None, $(Argument::device($argument)),*].into_iter().flatten().next();
            if let Some(errno) = fault(stringify!($name), device) {
                return Answer::failed(errno);
            }
            functions!(@ go_on, ($($argument),*) $(, $around)?)
        }
    )*};
    (@ $go_on:ident, ($($argument:ident),*)) => { $go_on() };
    (@ $go_on:ident, ($($argument:ident),*), $around:expr) => { $around($go_on, ($($argument,)*)) };
}

functions! {
    ibv_fork_init() -> c_int;
    ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(list: *mut *mut ibv_device);
    ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    ibv_open_device(device: *mut ibv_device) -> *mut ibv_context, open_device;
    ibv_close_device(context: *mut ibv_context) -> c_int, close_device;
    ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int, query_device;
    ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int, query_port;
    ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int, query_pkey;
    ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int, get_async_event;
    ibv_ack_async_event(event: *mut ibv_async_event), ack_async_event;
    ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, alloc_pd;
    ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    ibv_reg_mr(pd: *mut ibv_pd, start: *mut c_void, bytes: usize, access: c_int) -> *mut ibv_mr, reg_mr;
    ibv_reg_mr_iova2(pd: *mut ibv_pd, start: *mut c_void, bytes: usize, iova: u64, access: c_uint) -> *mut ibv_mr, reg_mr_iova2;
    ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, bytes: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr, reg_dmabuf_mr;
    ibv_dereg_mr(mr: *mut ibv_mr) -> c_int, dereg_mr;
    ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    ibv_create_cq(context: *mut ibv_context, entries: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq, create_cq;
    ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int, resize_cq;
    ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
    ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, create_qp;
    ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int, modify_qp;
    ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
}

/// The driver's functions of the data path, which are in a context's table.
macro_rules! data_path {
    ($($field:ident as $name:ident: fn($($argument:ident: $type:ty),*), $failed:expr;)*) => {
        mod instead {
            use super::*;
            $(
                pub static $field: OnceLock<unsafe extern "C" fn($($type),*) -> c_int> = OnceLock::new();
                pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                    let device = || [None, $(Argument::device($argument)),*].into_iter().flatten().next();
                    match fault(stringify!($name), device) {
                        Some(errno) => $failed(errno),
                        // SAFETY: the driver's own, with the caller's arguments.
                        None => unsafe { $field.get().unwrap()($($argument),*) },
                    }
                }
            )*
        }

        /// Has calls of the data path fail, too. All devices have one driver.
        fn intercept(ops: &mut ibv_context_ops) {
            $(
                if let Some(own) = ops.$field.replace(instead::$name) {
                    instead::$field.get_or_init(|| own);
                }
            )*
        }
    };
}
data_path! {
    poll_cq as ibv_poll_cq: fn(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc), |errno: c_int| -errno;
    req_notify_cq as ibv_req_notify_cq: fn(cq: *mut ibv_cq, solicited_only: c_int), |errno: c_int| errno;
    post_send as ibv_post_send: fn(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr), |errno: c_int| errno;
    post_recv as ibv_post_recv: fn(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr), |errno: c_int| errno;
}

fn open_device(go_on: impl Fn() -> *mut ibv_context, (device,): (*mut ibv_device,)) -> *mut ibv_context {
    let name = device.device().unwrap();
    let context = go_on();
    if !context.is_null() && std::env::var_os("LIKE_FAULTS").is_some() {
        // SAFETY: a context that nobody else has yet.
        intercept(unsafe { &mut (*context).ops });
    }
    let has_pipe = std::env::var("LIKE_EVENTS_OF").map_or(true, |of| of.as_bytes() == name.as_bytes());
    if let (false, Some(pipe)) = (context.is_null(), std::env::var_os("LIKE_EVENTS").filter(|_| has_pipe)) {
        // Both directions, so that it has no end.
        let pipe = std::fs::OpenOptions::new().read(true).write(true).open(pipe);
        let pipe = pipe.expect("LIKE_EVENTS is a named pipe").into_raw_fd();
        // SAFETY: a context that nobody else has yet.
        let real = unsafe { std::mem::replace(&mut (*context).async_fd, pipe) };
        EVENTS.lock().unwrap().push((context as usize, real, pipe));
    }
    context
}

/// Contexts whose events come from a pipe: the descriptors of the real events, and of the pipe.
static EVENTS: Mutex<Vec<(usize, c_int, c_int)>> = Mutex::new(Vec::new());

/// Contexts whose device failed.
static FAILED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Devices whose port is down.
static DOWN: Mutex<Vec<CString>> = Mutex::new(Vec::new());

fn name_of(context: *mut ibv_context) -> CString {
    // SAFETY: the caller's open context, which has a device.
    device_name(unsafe { (*context)._device })
}

/// By the real function: this one may be asked for while a call of another is looked at.
fn device_name(device: *mut ibv_device) -> CString {
    type Function = unsafe extern "C" fn(*mut ibv_device) -> *const c_char;
    // SAFETY: the function of this name has this type.
    let of = unsafe { std::mem::transmute::<*mut c_void, Function>(real("ibv_get_device_name")) };
    // SAFETY: the caller's device, of a list that is not freed, or of an open context.
    unsafe { CStr::from_ptr(of(device)) }.to_owned()
}

fn has_failed(context: *mut ibv_context) -> bool {
    FAILED.lock().unwrap().contains(&(context as usize))
}

fn alloc_pd(go_on: impl Fn() -> *mut ibv_pd, (context,): (*mut ibv_context,)) -> *mut ibv_pd {
    if has_failed(context) { fail(EIO) } else { go_on() }
}

fn events_of(context: *mut ibv_context) -> Option<(c_int, c_int)> {
    let events = EVENTS.lock().unwrap();
    events.iter().find(|(of, ..)| *of == context as usize).map(|&(_, real, pipe)| (real, pipe))
}

/// Queues are made with the descriptor of the real events.
fn with_real_events<T>(context: *mut ibv_context, make: impl Fn() -> T) -> T {
    let Some((real, pipe)) = events_of(context) else { return make() };
    // SAFETY: the caller's open context, whose events others read by `get_async_event`.
    unsafe { (*context).async_fd = real };
    let made = make();
    // SAFETY: as above.
    unsafe { (*context).async_fd = pipe };
    made
}

fn close_device(go_on: impl Fn() -> c_int, (context,): (*mut ibv_context,)) -> c_int {
    FAILED.lock().unwrap().retain(|&failed| failed != context as usize);
    if let Some((real, _)) = events_of(context) {
        EVENTS.lock().unwrap().retain(|(of, ..)| *of != context as usize);
        // SAFETY: the caller's open context.
        unsafe { (*context).async_fd = real };
    }
    go_on()
}

/// Of several who wait for the events of a pipe, one has each.
fn get_async_event(
    go_on: impl Fn() -> c_int,
    (context, event): (*mut ibv_context, *mut ibv_async_event),
) -> c_int {
    let Some((_, pipe)) = events_of(context) else { return go_on() };
    let mut kind = [0];
    // SAFETY: the pipe is never closed.
    let mut pipe = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(pipe) });
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

/// Events of a pipe are about a port or a device, which need no acknowledgement.
fn ack_async_event(go_on: impl Fn(), (event,): (*mut ibv_async_event,)) {
    // SAFETY: the caller's structure.
    if unsafe { (*event).event_type } < IBV_EVENT_DEVICE_FATAL {
        go_on();
    }
}

fn query_device(go_on: impl Fn() -> c_int, (_, attr): (*mut ibv_context, *mut ibv_device_attr)) -> c_int {
    let answer = go_on();
    // SAFETY: the caller's structure, which is filled in now.
    let attr = unsafe { &mut *attr };
    if let Some(kind) = kind() {
        // A queue that soft-RoCE does not make would be its fault, not that kind's.
        (attr.max_qp_wr, attr.max_cqe) = (kind.max_qp_wr as c_int, kind.max_cqe.min(attr.max_cqe));
    }
    answer
}

/// The exported function fills an older, shorter structure, which ends with the flags' byte.
fn query_port(
    go_on: impl Fn() -> c_int,
    (context, _, attr): (*mut ibv_context, u8, *mut ibv_port_attr),
) -> c_int {
    let answer = go_on();
    if DOWN.lock().unwrap().contains(&name_of(context)) {
        // SAFETY: the caller's structure, which has this field.
        unsafe { (*attr).state = IBV_PORT_DOWN };
    }
    let name = name_of(context);
    if let Some(made_up) = infiniband().iter().find(|port| port.device.as_bytes() == name.as_bytes()) {
        // SAFETY: the caller's structure, which has these fields.
        let attr = unsafe { &mut *attr };
        attr.lid = made_up.lid;
        attr.flags &= !IBV_QPF_GRH_REQUIRED; // which ports of RoCE say
    }
    if setting("LIKE_GRH").is_some() {
        // SAFETY: the caller's structure, which has this field.
        unsafe { (*attr).flags |= IBV_QPF_GRH_REQUIRED };
    }
    if let Some(keys) = partition_keys() {
        // SAFETY: the caller's structure, which has this field.
        unsafe { (*attr).pkey_tbl_len = keys.len() as u16 };
    }
    answer
}

fn partition_keys() -> Option<Vec<u16>> {
    let text = std::env::var("LIKE_PKEYS").ok()?;
    let key = |key: &str| u16::from_str_radix(key, 16).unwrap_or_else(|_| panic!("LIKE_PKEYS has {key:?}"));
    Some(text.split(',').map(key).collect())
}

/// The key is in the order of the network.
fn query_pkey(
    go_on: impl Fn() -> c_int,
    (_, _, index, key): (*mut ibv_context, u8, c_int, *mut u16),
) -> c_int {
    let Some(keys) = partition_keys() else { return go_on() };
    let Some(made_up) = keys.get(index as usize) else { return -1 };
    // SAFETY: the caller's integer.
    unsafe { *key = made_up.to_be() };
    0
}

static REGIONS: AtomicI64 = AtomicI64::new(0);

fn reg_mr(
    go_on: impl Fn() -> *mut ibv_mr,
    (pd, _, bytes, access): (*mut ibv_pd, *mut c_void, usize, c_int),
) -> *mut ibv_mr {
    log(format!("region of={:?} bytes={bytes} access={access}", pd.device().unwrap()));
    let most = setting("LIKE_MAX_MR").or(kind().map(|kind| kind.max_mr));
    if most.is_some_and(|most| REGIONS.load(Relaxed) >= most) {
        return fail(ENOMEM);
    }
    REGIONS.fetch_add(1, Relaxed);
    let region = go_on();
    if region.is_null() {
        REGIONS.fetch_sub(1, Relaxed);
    }
    region
}

fn reg_mr_iova2(
    go_on: impl Fn() -> *mut ibv_mr,
    (pd, start, bytes, _, access): (*mut ibv_pd, *mut c_void, usize, u64, c_uint),
) -> *mut ibv_mr {
    reg_mr(go_on, (pd, start, bytes, access as c_int))
}

/// Regions in dma-bufs: where each dma-buf is mapped, and its size.
static DMA_BUFS: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());

/// As Linux's `ib_uverbs` and mlx5 do, by a mapping of the whole dma-buf. Some that export dma-bufs map them from the start only.
fn reg_dmabuf_mr(
    _: impl Fn() -> *mut ibv_mr,
    (pd, offset, bytes, iova, fd, access): (*mut ibv_pd, u64, usize, u64, c_int, c_int),
) -> *mut ibv_mr {
    // SAFETY: the caller's domain, which begins with its context.
    let device = name_of(unsafe { *pd.cast::<*mut ibv_context>() });
    log(format!("dma-buf of={device:?} offset={offset} bytes={bytes} iova={iova} access={access}"));
    if offset % PAGE != iova % PAGE {
        return fail(EINVAL);
    }
    if fd < 0 {
        return fail(EBADF);
    }
    // SAFETY: the caller's descriptor, which is not closed here.
    let mut file = ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) });
    let Ok(size) = file.seek(SeekFrom::End(0)) else { return fail(EBADF) };
    if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
        return fail(EINVAL);
    }
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let start = unsafe { mmap(std::ptr::null_mut(), size as usize, PROT_READ_WRITE, MAP_SHARED, fd, 0) };
    if start as isize == -1 {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's domain, and a range of the mapping, which stays until the region is gone.
    let made = unsafe {
        ibv_reg_mr_iova2(pd, start.wrapping_byte_add(offset as usize), bytes, iova, access as c_uint)
    };
    if made.is_null() {
        // SAFETY: mapped above, and nobody else has it.
        unsafe { munmap(start, size as usize) };
    } else {
        DMA_BUFS.lock().unwrap().push((made as usize, start as usize, size as usize));
    }
    made
}

fn dereg_mr(go_on: impl Fn() -> c_int, (mr,): (*mut ibv_mr,)) -> c_int {
    REGIONS.fetch_sub(1, Relaxed);
    let mut mapped = DMA_BUFS.lock().unwrap();
    let place = mapped.iter().position(|&(of, ..)| of == mr as usize);
    let mapped = place.map(|place| mapped.swap_remove(place));
    let answer = go_on();
    if let Some((_, start, size)) = mapped {
        // SAFETY: mapped for this region, which is gone.
        unsafe { munmap(start as *mut c_void, size) };
    }
    answer
}

fn create_cq(
    go_on: impl Fn() -> *mut ibv_cq,
    (context, entries, _, _, vector): (*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int),
) -> *mut ibv_cq {
    // SAFETY: the caller's open context.
    log(format!("queue vector={vector} of {}", unsafe { (*context).num_comp_vectors }));
    if has_failed(context) {
        return fail(EIO);
    }
    if kind().is_some_and(|kind| entries > kind.max_cqe) {
        fail(EINVAL)
    } else {
        with_real_events(context, go_on)
    }
}

fn resize_cq(go_on: impl Fn() -> c_int, (_, entries): (*mut ibv_cq, c_int)) -> c_int {
    log(format!("resize entries={entries}"));
    match kind() {
        Some(kind) if !kind.resizes => EOPNOTSUPP,
        Some(kind) if entries > kind.max_cqe => EINVAL,
        _ => go_on(),
    }
}

fn create_qp(
    go_on: impl Fn() -> *mut ibv_qp,
    (pd, init): (*mut ibv_pd, *mut ibv_qp_init_attr),
) -> *mut ibv_qp {
    // SAFETY: the caller's structure.
    let ibv_qp_cap { max_send_wr, max_recv_wr, .. } = unsafe { &(*init).cap };
    let too_many = kind().is_some_and(|kind| *max_send_wr > kind.sends || *max_recv_wr > kind.max_qp_wr);
    log(format!(
        "make max_send_wr={max_send_wr} max_recv_wr={max_recv_wr}{}",
        if too_many { " refused" } else { "" }
    ));
    let context = pd.context().unwrap();
    if too_many { fail(EINVAL) } else { with_real_events(context, go_on) }
}

fn modify_qp(go_on: impl Fn() -> c_int, (qp, attr, mask): (*mut ibv_qp, *mut ibv_qp_attr, c_int)) -> c_int {
    // SAFETY: the caller's structures.
    let (number, attr) = unsafe { ((*qp).qp_num, &mut *attr) };
    let mut line = format!("modify qp={number}");
    let path = &attr.ah_attr;
    let fields: [(c_uint, &str, u32); 18] = [
        (IBV_QP_STATE, "state", attr.qp_state),
        (IBV_QP_ACCESS_FLAGS, "access", attr.qp_access_flags),
        (IBV_QP_PKEY_INDEX, "pkey_index", attr.pkey_index.into()),
        (IBV_QP_PORT, "port", attr.port_num.into()),
        (IBV_QP_AV, "global", path.is_global.into()),
        (IBV_QP_AV, "dlid", path.dlid.into()),
        (IBV_QP_AV, "sl", path.sl.into()),
        (IBV_QP_AV, "sgid_index", path.grh.sgid_index.into()),
        (IBV_QP_AV, "hop_limit", path.grh.hop_limit.into()),
        (IBV_QP_AV, "traffic_class", path.grh.traffic_class.into()),
        (IBV_QP_PATH_MTU, "path_mtu", attr.path_mtu),
        (IBV_QP_TIMEOUT, "timeout", attr.timeout.into()),
        (IBV_QP_RETRY_CNT, "retries", attr.retry_cnt.into()),
        (IBV_QP_RNR_RETRY, "rnr_retries", attr.rnr_retry.into()),
        (IBV_QP_MIN_RNR_TIMER, "rnr_timer", attr.min_rnr_timer.into()),
        (IBV_QP_MAX_QP_RD_ATOMIC, "reads", attr.max_rd_atomic.into()),
        (IBV_QP_MAX_DEST_RD_ATOMIC, "reads_of_peer", attr.max_dest_rd_atomic.into()),
        (IBV_QP_DEST_QPN, "peer", attr.dest_qp_num),
    ];
    for (bit, name, value) in fields {
        if mask as c_uint & bit != 0 {
            let _ = write!(line, " {name}={value}");
        }
    }
    let dgid = Ipv6Addr::from(path.grh.dgid.raw);
    if mask as c_uint & IBV_QP_AV != 0 && path.is_global != 0 {
        let _ = write!(line, " dgid={dgid}");
    }
    log(line);
    let (said, key) = (std::mem::take(&mut attr.ah_attr), attr.pkey_index);
    attr.ah_attr = really(qp, &said, dgid);
    if partition_keys().is_some() {
        attr.pkey_index = 0;
    }
    let answer = go_on();
    (attr.ah_attr, attr.pkey_index) = (said, key);
    answer
}

/// A port of `LIKE_INFINIBAND`.
struct Infiniband {
    device: String,
    lid: u16,
    gid: Ipv6Addr,
    index: u8,
    real: Ipv6Addr,
}

fn infiniband() -> Vec<Infiniband> {
    let Some(file) = std::env::var_os("LIKE_INFINIBAND") else { return Vec::new() };
    let text = std::fs::read_to_string(file).expect("LIKE_INFINIBAND is a file");
    let port = |line: &str| -> Option<Infiniband> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[device, lid, gid, index, real] = &words[..] else { return None };
        let (lid, gid, index, real) =
            (lid.parse().ok()?, gid.parse().ok()?, index.parse().ok()?, real.parse().ok()?);
        Some(Infiniband { device: device.into(), lid, gid, index, real })
    };
    text.lines().map(|line| port(line).unwrap_or_else(|| panic!("LIKE_INFINIBAND has {line:?}"))).collect()
}

/// The path of RoCE that stands for one of InfiniBand; any other as it is.
fn really(qp: *mut ibv_qp, said: &ibv_ah_attr, dgid: Ipv6Addr) -> ibv_ah_attr {
    let copy = || ibv_ah_attr {
        grh: ibv_global_route { dgid: ibv_gid { raw: said.grh.dgid.raw }, ..said.grh },
        ..*said
    };
    let ports = infiniband();
    let name = qp.device().unwrap();
    let own = ports.iter().find(|port| port.device.as_bytes() == name.as_bytes());
    let is_it =
        |port: &&Infiniband| if said.is_global != 0 { port.gid == dgid } else { port.lid == said.dlid };
    let (Some(own), Some(peer)) = (own, ports.iter().find(is_it)) else { return copy() };
    let mut real = copy();
    (real.is_global, real.dlid) = (1, 0);
    (real.grh.dgid.raw, real.grh.sgid_index, real.grh.hop_limit) = (peer.real.octets(), own.index, 64);
    real
}
