//! A libibverbs that stands before the real one and behaves like hardware that soft-RoCE is not: it has limits, it fails, it
//! takes its time, and it logs what queue pairs are asked for. All else goes to the real one.
//!
//! On the `unsafe` list. `binary.sh` builds it as `libibverbs.so.1`; a check puts its folder into LD_LIBRARY_PATH. Any thread.
//!
//! | variable | what the library then does |
//! | --- | --- |
//! | `LIKE_MAX_SEND_WR`, `LIKE_MAX_RECV_WR` | EINVAL for a queue pair with more, whatever the device says of itself |
//! | `LIKE_MAX_QP_WR`, `LIKE_MAX_CQE` | the device says this of itself, and larger ones are EINVAL |
//! | `LIKE_RESIZE_CQ` | `ibv_resize_cq` fails with this errno |
//! | `LIKE_MAX_MR` | ENOMEM for more memory regions at a time |
//! | `LIKE_REG_MR_MS` | each `ibv_reg_mr` takes so many milliseconds longer |
//! | `LIKE_REG_DMABUF_MR` | `ibv_reg_dmabuf_mr` fails with this errno |
//! | `LIKE_CLOSED` | the device of this name does not open: EACCES |
//! | `LIKE_ILL` | a file: devices whose names are in it do not open now: EIO |
//! | `LIKE_GRH` | ports say that a GRH is required |
//! | `LIKE_EVENTS` | a named pipe: each byte that is written into it is an event of port 1, by its number in ibv_event_type; there are no others. After DEVICE_FATAL nothing can be made on the context that read it: EIO. From PORT_ERR to PORT_ACTIVE the port says that it is down |
//! | `LIKE_EVENTS_OF` | the pipe is for the device of this name alone; the others have their own events |
//! | `LIKE_LOG` | a file that gets a line for each queue pair made, each change of one, and each range of a dma-buf that is registered |
//!
//! Drivers of hardware take dma-bufs, which soft-RoCE's does not: here `ibv_reg_dmabuf_mr` maps the dma-buf, and has the mapping
//! registered.

#![allow(non_camel_case_types, non_snake_case, dead_code, clippy::missing_safety_doc)]

#[path = "../../fabric/src/verbs/handles/ffi.rs"]
mod ffi;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use ffi::*;

const EIO: c_int = 5;
const EACCES: c_int = 13;
const ENOMEM: c_int = 12;
const EINVAL: c_int = 22;
const EBADF: c_int = 9;
const PAGE: u64 = 4096;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
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

fn exceeds(seen: impl Into<i64>, limits: &[&str]) -> bool {
    let seen = seen.into();
    limits.iter().filter_map(|name| setting(name)).any(|most| seen > most)
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
    ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int, get_async_event;
    ibv_ack_async_event(event: *mut ibv_async_event), ack_async_event;
    ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, alloc_pd;
    ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    ibv_reg_mr(pd: *mut ibv_pd, start: *mut c_void, bytes: usize, access: c_int) -> *mut ibv_mr, reg_mr;
    ibv_reg_mr_iova2(pd: *mut ibv_pd, start: *mut c_void, bytes: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
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

fn open_device(go_on: impl Fn() -> *mut ibv_context, (device,): (*mut ibv_device,)) -> *mut ibv_context {
    // SAFETY: the caller's device, of a list that is not freed.
    let name = unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
    if std::env::var("LIKE_CLOSED").is_ok_and(|closed| closed.as_bytes() == name.to_bytes()) {
        return fail(EACCES);
    }
    let name = name.to_string_lossy();
    let ill =
        std::env::var_os("LIKE_ILL").map(|file| std::fs::read_to_string(file).expect("LIKE_ILL is a file"));
    if ill.is_some_and(|ill| ill.split_whitespace().any(|ill| ill == name)) {
        return fail(EIO);
    }
    let context = go_on();
    let has_pipe = std::env::var("LIKE_EVENTS_OF").map_or(true, |of| of == name);
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
    // SAFETY: the caller's open context, whose device has a name.
    unsafe { CStr::from_ptr(ibv_get_device_name((*context)._device)) }.to_owned()
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
    for (name, field) in [("LIKE_MAX_QP_WR", &mut attr.max_qp_wr), ("LIKE_MAX_CQE", &mut attr.max_cqe)] {
        *field = setting(name).map_or(*field, |most| most as c_int);
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
    if setting("LIKE_GRH").is_some() {
        // SAFETY: the caller's structure, which has this field.
        unsafe { (*attr).flags |= IBV_QPF_GRH_REQUIRED };
    }
    answer
}

static REGIONS: AtomicI64 = AtomicI64::new(0);

fn reg_mr(go_on: impl Fn() -> *mut ibv_mr, _: (*mut ibv_pd, *mut c_void, usize, c_int)) -> *mut ibv_mr {
    if let Some(delay) = setting("LIKE_REG_MR_MS") {
        std::thread::sleep(Duration::from_millis(delay as u64));
    }
    if exceeds(REGIONS.fetch_add(1, Relaxed) + 1, &["LIKE_MAX_MR"]) {
        REGIONS.fetch_sub(1, Relaxed);
        return fail(ENOMEM);
    }
    go_on()
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
    if let Some(errno) = setting("LIKE_REG_DMABUF_MR") {
        return fail(errno as c_int);
    }
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
        REGIONS.fetch_add(1, Relaxed);
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
    if exceeds(entries, &["LIKE_MAX_CQE"]) { fail(EINVAL) } else { with_real_events(context, go_on) }
}

fn resize_cq(go_on: impl Fn() -> c_int, (_, entries): (*mut ibv_cq, c_int)) -> c_int {
    if let Some(errno) = setting("LIKE_RESIZE_CQ") {
        return errno as c_int;
    }
    if exceeds(entries, &["LIKE_MAX_CQE"]) { EINVAL } else { go_on() }
}

fn create_qp(
    go_on: impl Fn() -> *mut ibv_qp,
    (pd, init): (*mut ibv_pd, *mut ibv_qp_init_attr),
) -> *mut ibv_qp {
    // SAFETY: the caller's structure.
    let ibv_qp_cap { max_send_wr, max_recv_wr, .. } = unsafe { &(*init).cap };
    let too_many = exceeds(*max_send_wr, &["LIKE_MAX_SEND_WR", "LIKE_MAX_QP_WR"])
        || exceeds(*max_recv_wr, &["LIKE_MAX_RECV_WR", "LIKE_MAX_QP_WR"]);
    log(format!(
        "make max_send_wr={max_send_wr} max_recv_wr={max_recv_wr}{}",
        if too_many { " refused" } else { "" }
    ));
    // SAFETY: the caller's domain, which begins with its context.
    let context = unsafe { *pd.cast::<*mut ibv_context>() };
    if too_many { fail(EINVAL) } else { with_real_events(context, go_on) }
}

fn modify_qp(go_on: impl Fn() -> c_int, (qp, attr, mask): (*mut ibv_qp, *mut ibv_qp_attr, c_int)) -> c_int {
    // SAFETY: the caller's structures.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
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
    log(line);
    go_on()
}
