//! The functions of libibverbs, and the work of each before it calls the real one.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

use crate::devices::*;
use crate::events::*;
use crate::fail;
use crate::faults::fault;
use crate::ffi::*;
use crate::memory::*;
use crate::queues::*;
use crate::real::real;

/// An argument of a libibverbs call. Some arguments tell the device that the call is about.
pub trait Argument: Copy {
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
                // SAFETY: `self` is the caller's object, which begins with its context.
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

/// The result of a call that fails.
pub trait Answer {
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

/// Functions that call the real function. `$around`, if there is one, is called first, and may answer instead of the real
/// function.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $(, $around:expr)?;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            static REAL: OnceLock<usize> = OnceLock::new();
            type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
            // SAFETY: the function of this name has this type.
            let on: Function = unsafe {
                transmute::<usize, Function>(*REAL.get_or_init(|| real(stringify!($name)) as usize))
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
    ibv_is_fork_initialized() -> c_int;
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
                        // SAFETY: the function is the driver's own, and the arguments are the caller's.
                        None => unsafe { $field.get().unwrap()($($argument),*) },
                    }
                }
            )*
        }

        /// Replaces the driver's functions of the data path, so that their calls can fail as well. All devices share
        /// one driver, so its functions are stored only once.
        pub fn intercept(ops: &mut ibv_context_ops) {
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
