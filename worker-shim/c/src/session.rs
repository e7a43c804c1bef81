//! A session whose keys have numbers.

use std::ffi::{c_int, c_void};

use pbox_core::KeyId;
use worker_shim::{Background, BackgroundError, KeyMemory, Session};

use crate::config::{PhubConfig, settings};
use crate::entry::{enter, free, given, put};
use crate::status::{Failure, PhubStatus};

/// A worker's membership in a job. Several threads may use it.
pub struct PhubSession {
    background: Background,
    on_wait: OnWait,
}

/// A callback that returns whether the call that waits must end: any value except 0 ends the call.
pub type PhubInterrupted = Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>;

/// The callback of a caller, and its argument.
#[derive(Clone, Copy)]
pub(crate) struct OnWait {
    pub interrupted: PhubInterrupted,
    pub context: *mut c_void,
}

// SAFETY: the pointer is only passed to C's own function, and the functions that take it say that any thread may call it.
unsafe impl Send for OnWait {}
// SAFETY: as above.
unsafe impl Sync for OnWait {}

impl OnWait {
    /// Asks whether the wait must end.
    pub fn asks(self) -> bool {
        // SAFETY: C's promise that the function can be called with this pointer, by any thread.
        self.interrupted.is_some_and(|interrupted| unsafe { interrupted(self.context) } != 0)
    }
}

/// Runs a call from C that uses a session.
///
/// # Safety
/// `session` is null, or from phub_join and not yet freed.
pub(crate) unsafe fn enter_session(
    session: *const PhubSession,
    call: impl FnOnce(&PhubSession) -> Result<(), Failure>,
) -> PhubStatus {
    // SAFETY: the caller's promise.
    enter(|| call(unsafe { given("session", session) }?))
}

/// Runs a call from C that returns the memory of a key.
///
/// # Safety
/// See [`enter_session`]; `data` and `bytes` are null, or point to room for a result.
unsafe fn enter_memory<P>(
    session: *const PhubSession,
    key: u32,
    data: *mut P,
    bytes: *mut usize,
    address: impl FnOnce(KeyMemory) -> Option<P>,
) -> PhubStatus {
    let call = |session: &PhubSession| {
        let memory = session.memory(key)?;
        let address = address(memory).ok_or_else(|| {
            Failure::invalid(format!("key {key}: its gradient is in the memory of the setting \"dma_buf\", which has no address in this process: write it by the device"))
        })?;
        // SAFETY: the caller's promise, for both.
        unsafe {
            put("data", data, address)?;
            put("bytes", bytes, memory.bytes)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, call) }
}

impl PhubSession {
    /// Makes a call that waits.
    pub(crate) fn waiting<R>(
        &self,
        wait: impl FnOnce(&Background, &mut dyn FnMut() -> bool) -> Result<R, BackgroundError>,
    ) -> Result<R, Failure> {
        Ok(wait(&self.background, &mut || self.on_wait.asks())?)
    }

    /// Makes a call with the session, on the session's thread.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Session) -> R + Send + 'static,
    ) -> Result<R, Failure> {
        self.waiting(|background, interrupted| background.with(call, interrupted))
    }

    fn memory(&self, key: u32) -> Result<KeyMemory, Failure> {
        let keys = self.background.keys();
        let none = || {
            Failure::invalid(format!(
                "key {key} does not exist; the job has {} keys, numbered from 0",
                keys.len()
            ))
        };
        keys.get(key as usize).copied().ok_or_else(none)
    }

    fn existing(&self, key: u32) -> Result<KeyId, Failure> {
        self.memory(key).map(|_| KeyId(key))
    }
}

/// Joins a job, and waits until all its workers have joined. `interrupted` may be null. Otherwise each call of this session
/// that waits calls `interrupted` with `context` ten times a second.
///
/// # Safety
/// `config` is from phub_config_new and not yet freed. `session` points to room for a pointer. `interrupted` can be
/// called with `context` by any thread that calls the session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_join(
    session: *mut *mut PhubSession,
    config: *const PhubConfig,
    interrupted: PhubInterrupted,
    context: *mut c_void,
) -> PhubStatus {
    enter(|| {
        // SAFETY: the caller's promise.
        let config = unsafe { settings(config) }?;
        if session.is_null() {
            return Err(Failure::invalid("session is null: expected room for a result"));
        }
        let on_wait = OnWait { interrupted, context };
        let background = Background::join(config, &mut || on_wait.asks())?;
        let joined = Box::new(PhubSession { background, on_wait });
        // SAFETY: not null, and the caller's promise.
        unsafe { put("session", session, Box::into_raw(joined)) }
    })
}

/// Writes the address of a key's gradient, and its length in bytes. Fails if the setting "dma_buf" was set, because the memory
/// then has no address in this process. Write the gradient only while the key is not in flight: from its phub_wait to its next
/// phub_push. The memory is the same for the whole session.
///
/// # Safety
/// `session` is from phub_join and not yet freed; `data` and `bytes` point to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_gradient(
    session: *const PhubSession,
    key: u32,
    data: *mut *mut c_void,
    bytes: *mut usize,
) -> PhubStatus {
    // SAFETY: the caller's promise, for all three.
    unsafe {
        enter_memory(session, key, data, bytes, |memory| {
            memory.gradient.map(|address| address as *mut c_void)
        })
    }
}

/// Writes the address of a key's weights (with the optimizer "average": the mean gradient), and their length in bytes.
/// Read the weights only while the key is not in flight. The memory is the same for the whole session.
///
/// With Slim-DP (the setting "compression" is slim) a worker makes its own steps, so this memory is writable: cast the pointer.
/// While the key is not in flight, write the new weights, and add the change of each weight to its gradient. In all other jobs
/// only the hub writes the weights, and a write may end the process.
///
/// # Safety
/// `session` is from phub_join and not yet freed; `data` and `bytes` point to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_weights(
    session: *const PhubSession,
    key: u32,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> PhubStatus {
    // SAFETY: the caller's promise, for all three.
    unsafe { enter_memory(session, key, data, bytes, |memory| Some(memory.weights as *const c_void)) }
}

/// Gives every worker the weights that rank 0 has written to its gradients, and waits for them. Every worker calls this
/// function once, before its first push. It does nothing if the job had weights already when this worker joined. After a later
/// push it returns PHUB_STATUS_ORDER.
///
/// # Safety
/// `session` is from phub_join and not yet freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_broadcast(session: *const PhubSession) -> PhubStatus {
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, |session| session.waiting(Background::broadcast_written)) }
}

/// Sends a key's gradient, and returns at once. Until phub_wait, gradient and weights of the key belong to the hub. With
/// Slim-DP, push every key once a round; in any other order the push fails with PHUB_STATUS_ORDER, and the session goes on.
///
/// # Safety
/// `session` is from phub_join and not yet freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_push(session: *const PhubSession, key: u32) -> PhubStatus {
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, |session| Ok(session.background.push(session.existing(key)?)?)) }
}

/// Waits until the hub's answer for a key has arrived: the key's new weights.
///
/// # Safety
/// `session` is from phub_join and not yet freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_wait(session: *const PhubSession, key: u32) -> PhubStatus {
    let call = |session: &PhubSession| {
        let key = session.existing(key)?;
        session.waiting(|background, interrupted| background.wait(key, interrupted))
    };
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, call) }
}

/// Waits until every key's answer has arrived. With the setting "pull", the session does not count this wait as a forward
/// pass.
///
/// # Safety
/// `session` is from phub_join and not yet freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_wait_all(session: *const PhubSession) -> PhubStatus {
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, |session| session.waiting(Background::wait_all)) }
}

/// Writes whether the hub's answer for a key has arrived.
///
/// # Safety
/// `session` is from phub_join and not yet freed, and `ready` points to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_is_ready(
    session: *const PhubSession,
    key: u32,
    ready: *mut bool,
) -> PhubStatus {
    let call = |session: &PhubSession| {
        let is_ready = session.background.is_ready(session.existing(key)?)?;
        // SAFETY: the caller's promise.
        unsafe { put("ready", ready, is_ready) }
    };
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, call) }
}

/// Changes the learning rate from the next round on, for all workers. Call it between rounds; every worker may call it. Fails
/// if the job's optimizer is "average" or "sum".
///
/// # Safety
/// `session` is from phub_join and not yet freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_set_learning_rate(
    session: *const PhubSession,
    learning_rate: f32,
) -> PhubStatus {
    let call =
        |session: &PhubSession| Ok(session.call(move |session| session.set_learning_rate(learning_rate))??);
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, call) }
}

/// Waits until every key's answer has arrived, makes the hub write the job's checkpoint, and waits until it is on the disk.
///
/// # Safety
/// `session` is from phub_join and not yet freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_checkpoint(session: *const PhubSession) -> PhubStatus {
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, |session| session.waiting(Background::checkpoint).map(drop)) }
}

/// Writes the first round for which no key has its answer. Round 0 is the broadcast, if there is one.
///
/// # Safety
/// `session` is from phub_join and not yet freed, and `round` points to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_next_round(session: *const PhubSession, round: *mut u32) -> PhubStatus {
    // SAFETY: the caller's promise, for both.
    unsafe { enter_session(session, |session| put("round", round, session.background.next_round().0)) }
}

/// Writes the norm of the mean gradient of all keys before clipping, in the last round whose norm is known. Also writes that
/// round, and the number of skipped rounds. Only jobs with "clip_norm", "skip_nonfinite" or "skip_spikes" have norms. The norm
/// is NaN before the first round whose norm is known.
///
/// # Safety
/// `session` is from phub_join and not yet freed, and `norm`, `round` and `skipped` point to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_norm(
    session: *const PhubSession,
    norm: *mut f32,
    round: *mut u32,
    skipped: *mut u64,
) -> PhubStatus {
    let call = |session: &PhubSession| {
        let (last, count) = session.call(|session| (session.norm(), session.skipped()))?;
        let (of_round, value) = last.map_or((0, f32::NAN), |(round, norm)| (round.0, norm));
        // SAFETY: the caller's promise, for all three.
        unsafe {
            put("norm", norm, value)?;
            put("round", round, of_round)?;
            put("skipped", skipped, count)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, call) }
}

/// Waits for all keys that are in flight, and leaves the job. The memory of gradients and weights remains
/// until phub_session_free.
///
/// # Safety
/// `session` is from phub_join and not yet freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_leave(session: *const PhubSession) -> PhubStatus {
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, |session| session.waiting(Background::leave)) }
}

/// Frees a session and its memory; null is allowed. A session that has not left the job leaves it now. With a key in flight
/// it cannot leave, and its worker counts as lost.
///
/// # Safety
/// `session` is null, or from phub_join and not yet freed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_session_free(session: *mut PhubSession) {
    // SAFETY: the caller's promise.
    unsafe { free(session) }
}
