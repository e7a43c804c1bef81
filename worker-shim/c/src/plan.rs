//! The plan of a session that pulls in batches, and how well the plan predicts.

use std::ffi::c_char;

use worker_shim::PullPlan;

use crate::entry::put;
use crate::session::{PhubSession, enter_session};
use crate::status::{Failure, PhubStatus};

/// The batches of layers in which a session pulls its weights. Times are in seconds; a time that is not known is NaN.
/// `predicted` and `measured` go from the time when the first batch can be pulled to the time when the last layer can be
/// computed. For the batches "ibatch" and "greedy", the session first measures the layers' pulls and forward passes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PhubPullPlan {
    /// The number of batches. 0 if there is no plan: nothing is pulled in batches, or the layers' times are not measured yet.
    pub batches: usize,
    /// The part of a pull's time that does not depend on its bytes, as measured; NaN if the batches depend on no measurement.
    pub start_up: f64,
    /// The time that the measured times of layers predict; NaN if the batches depend on no measurement.
    pub predicted: f64,
    /// The measured time, as the mean of the rounds that used the plan; NaN before the first round.
    pub measured: f64,
    /// The number of rounds that used the plan.
    pub rounds: u32,
    /// The number of times that the session has measured its layers.
    pub profiles: u32,
}

impl PhubPullPlan {
    fn of(plan: Option<&PullPlan>) -> Self {
        let start_up = plan.and_then(|plan| plan.profile.as_ref()).map(|profile| profile.start_up);
        PhubPullPlan {
            batches: plan.map_or(0, |plan| plan.batches.len()),
            start_up: start_up.unwrap_or(f64::NAN),
            predicted: plan.and_then(|plan| plan.predicted_s).unwrap_or(f64::NAN),
            measured: plan.and_then(|plan| plan.measured_s).unwrap_or(f64::NAN),
            rounds: plan.map_or(0, |plan| plan.rounds),
            profiles: plan.map_or(0, |plan| plan.profiles),
        }
    }
}

fn planned(session: &PhubSession) -> Result<Option<PullPlan>, Failure> {
    session.call(|session| session.pull_plan().cloned())
}

/// Writes the plan of a session that pulls in batches. A plan is made, or made anew, at the first push of a round.
///
/// # Safety
/// `session` is from phub_join and not yet freed, and `plan` points to room for a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_pull_plan(session: *const PhubSession, plan: *mut PhubPullPlan) -> PhubStatus {
    let call = |session: &PhubSession| {
        let planned = planned(session)?;
        // SAFETY: the caller's promise.
        unsafe { put("plan", plan, PhubPullPlan::of(planned.as_ref())) }
    };
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, call) }
}

/// Writes the plan as text, to print: the number of layers of each batch, and the times. Works like snprintf: `text` has
/// room for `room` bytes, with the zero byte at the end, and a longer text is cut. Without a plan the text is empty.
///
/// # Safety
/// `session` is from phub_join and not yet freed, and `text` points to `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phub_pull_plan_text(
    session: *const PhubSession,
    text: *mut c_char,
    room: usize,
) -> PhubStatus {
    let call = |session: &PhubSession| {
        if text.is_null() || room == 0 {
            return Err(Failure::invalid("text is null or has no room: expected room for a text"));
        }
        let mut words = planned(session)?.map_or_else(String::new, |plan| plan.to_string()).into_bytes();
        words.truncate(room - 1); // all of it is ASCII
        words.push(0);
        // SAFETY: `text` is not null, and has `room` bytes by the caller's promise. `words` is local, with at most `room` bytes.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr().cast(), text, words.len()) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { enter_session(session, call) }
}
