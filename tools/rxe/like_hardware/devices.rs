//! Devices and their ports.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::OpenOptions;
use std::mem::{replace, transmute};
use std::os::fd::IntoRawFd as _;

use crate::events::{DOWN, EVENTS, FAILED, events_of, has_failed};
use crate::ffi::*;
use crate::functions::{Argument as _, intercept};
use crate::infiniband::infiniband;
use crate::kinds::kind;
use crate::real::real;
use crate::{EIO, fail, setting};

pub fn open_device(go_on: impl Fn() -> *mut ibv_context, (device,): (*mut ibv_device,)) -> *mut ibv_context {
    let name = device.device().unwrap();
    let context = go_on();
    if !context.is_null() && std::env::var_os("LIKE_FAULTS").is_some() {
        // SAFETY: the context is new, and nobody else has it yet.
        intercept(unsafe { &mut (*context).ops });
    }
    let has_pipe = std::env::var("LIKE_EVENTS_OF").map_or(true, |of| of.as_bytes() == name.as_bytes());
    if let (false, Some(pipe)) = (context.is_null(), std::env::var_os("LIKE_EVENTS").filter(|_| has_pipe)) {
        // The pipe is opened in both directions, so that a read never sees its end.
        let pipe = OpenOptions::new().read(true).write(true).open(pipe);
        let pipe = pipe.expect("LIKE_EVENTS is a named pipe").into_raw_fd();
        // SAFETY: the context is new, and nobody else has it yet.
        let real = unsafe { replace(&mut (*context).async_fd, pipe) };
        EVENTS.lock().unwrap().push((context as usize, real, pipe));
    }
    context
}

pub fn close_device(go_on: impl Fn() -> c_int, (context,): (*mut ibv_context,)) -> c_int {
    FAILED.lock().unwrap().retain(|&failed| failed != context as usize);
    if let Some((real, _)) = events_of(context) {
        EVENTS.lock().unwrap().retain(|(of, ..)| *of != context as usize);
        // SAFETY: the caller's open context.
        unsafe { (*context).async_fd = real };
    }
    go_on()
}

pub fn alloc_pd(go_on: impl Fn() -> *mut ibv_pd, (context,): (*mut ibv_context,)) -> *mut ibv_pd {
    if has_failed(context) { fail(EIO) } else { go_on() }
}

pub fn name_of(context: *mut ibv_context) -> CString {
    // SAFETY: the caller's context is open, and has a device.
    device_name(unsafe { (*context)._device })
}

/// Returns a device's name by the real function. This library may be handling another call now, and a call of the
/// exported function would count, too.
pub fn device_name(device: *mut ibv_device) -> CString {
    type Function = unsafe extern "C" fn(*mut ibv_device) -> *const c_char;
    // SAFETY: the function of this name has this type.
    let of = unsafe { transmute::<*mut c_void, Function>(real("ibv_get_device_name")) };
    // SAFETY: the caller's device belongs to a list that is not freed, or to an open context.
    unsafe { CStr::from_ptr(of(device)) }.to_owned()
}

pub fn query_device(go_on: impl Fn() -> c_int, (_, attr): (*mut ibv_context, *mut ibv_device_attr)) -> c_int {
    let answer = go_on();
    // SAFETY: `attr` is the caller's structure, which is filled in now.
    let attr = unsafe { &mut *attr };
    if let Some(kind) = kind() {
        // The device must not report deeper completion queues than soft-RoCE can make. Otherwise a test would fail by
        // soft-RoCE's limit, and not by the limit of the imitated kind.
        (attr.max_qp_wr, attr.max_cqe) = (kind.max_qp_wr as c_int, kind.max_cqe.min(attr.max_cqe));
    }
    answer
}

/// Changes the port's attributes. The real function fills an older, shorter structure, which ends with the flags' byte.
pub fn query_port(
    go_on: impl Fn() -> c_int,
    (context, _, attr): (*mut ibv_context, u8, *mut ibv_port_attr),
) -> c_int {
    let answer = go_on();
    if DOWN.lock().unwrap().contains(&name_of(context)) {
        // SAFETY: `attr` is the caller's structure, which has this field.
        unsafe { (*attr).state = IBV_PORT_DOWN };
    }
    let name = name_of(context);
    if let Some(made_up) = infiniband().iter().find(|port| port.device.as_bytes() == name.as_bytes()) {
        // SAFETY: `attr` is the caller's structure, which has these fields.
        let attr = unsafe { &mut *attr };
        attr.lid = made_up.lid;
        attr.flags &= !IBV_QPF_GRH_REQUIRED; // which ports of RoCE say
    }
    if setting("LIKE_GRH").is_some() {
        // SAFETY: `attr` is the caller's structure, which has this field.
        unsafe { (*attr).flags |= IBV_QPF_GRH_REQUIRED };
    }
    if let Some(keys) = partition_keys() {
        // SAFETY: `attr` is the caller's structure, which has this field.
        unsafe { (*attr).pkey_tbl_len = keys.len() as u16 };
    }
    answer
}

pub fn partition_keys() -> Option<Vec<u16>> {
    let text = std::env::var("LIKE_PKEYS").ok()?;
    let key = |key: &str| u16::from_str_radix(key, 16).unwrap_or_else(|_| panic!("LIKE_PKEYS has {key:?}"));
    Some(text.split(',').map(key).collect())
}

/// Returns a key of the table, in network byte order.
pub fn query_pkey(
    go_on: impl Fn() -> c_int,
    (_, _, index, key): (*mut ibv_context, u8, c_int, *mut u16),
) -> c_int {
    let Some(keys) = partition_keys() else { return go_on() };
    let Some(made_up) = keys.get(index as usize) else { return -1 };
    // SAFETY: the caller's integer.
    unsafe { *key = made_up.to_be() };
    0
}
