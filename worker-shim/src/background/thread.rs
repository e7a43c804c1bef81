//! The session's thread: takes the callers' orders, drives the exchange, and sleeps in the port until
//! something arrives or a caller wakes it. An idle thread wakes twice a second.
//!
//! Owns the session. Does not depend on its callers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::task::Waker;
use std::time::{Duration, Instant};

use pbox_core::{Element, KeyId, typed};

use super::notes::Note;
use super::shared::{Ending, Shared};
use super::{Idle, Joined, KeyMemory, Memory};
use crate::exchange::ExchangeError;
use crate::session::{Session, SessionConfig, SessionError, State};

/// The time for which a dropped session waits for keys in flight. If the other workers push the missing gradients in
/// this time, no key is in flight any more, and the session can leave.
const GRACE: Duration = Duration::from_secs(1);

/// Runs the session from its join to its end, on its own thread.
pub(super) fn run(
    config: SessionConfig,
    state: Option<State>,
    shared: &Arc<Shared>,
    memory: &Memory,
    tell: SyncSender<(Joined, Waker)>,
) {
    let idle = config.idle;
    let given_up = {
        let shared = Arc::clone(shared);
        Box::new(move || shared.is_given_up())
    };
    let joined = Session::join_unless(config, state, given_up);
    // No address of a key can be read while the key is in flight, so the thread first waits for all keys.
    let mut session = match joined.and_then(|mut session| session.wait_all().map(|()| session)) {
        Ok(session) => session,
        Err(error) => return shared.tell_ended(Some(error)),
    };
    session.timeline().into_iter().for_each(|timeline| shared.show(timeline));
    session.note_answered();
    shared.publish_all(&session);
    let outcome = addresses(&mut session).and_then(|keys| {
        let (layout, ways) = (session.layout().clone(), session.ways().to_vec());
        let _ = tell.send((Joined { keys, layout, ways }, session.waker()));
        let turns = || turns(&mut session, shared, Idle::new(idle));
        // A caller's call may panic. The panic is caught, because the windows must stay mapped.
        catch_unwind(AssertUnwindSafe(turns)).unwrap_or(Err(SessionError::Panicked))
    });
    let left = match &outcome {
        Ok(Ending::Leave) => session.send_leave(),
        Ok(Ending::Drop) if session.is_quiet() => session.send_leave(),
        Ok(Ending::Fail(why)) => {
            session.send_failed(why);
            Ok(())
        }
        _ => Ok(()),
    };
    *memory.parked.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(session.into_windows());
    shared.tell_ended(outcome.map(|_| ()).and(left).err());
}

fn addresses(session: &mut Session) -> Result<Vec<KeyMemory>, SessionError> {
    fn of<E: Element>(session: &mut Session, key: KeyId) -> Result<KeyMemory, SessionError> {
        let gradient = match session.gradient_mut::<E>(key) {
            Ok(gradient) => Some(gradient.as_mut_ptr() as usize),
            Err(SessionError::Exchange(ExchangeError::InDmaBuf { .. })) => None,
            Err(error) => return Err(error),
        };
        let weights = session.weights::<E>(key)?;
        Ok(KeyMemory { gradient, weights: weights.as_ptr() as usize, bytes: size_of_val(weights) })
    }
    let layout = Arc::clone(session.layout());
    let keys = layout.keys().iter().zip((0..).map(KeyId));
    keys.map(|(key, id)| typed!(key.dtype, E => of::<E>(session, id))).collect()
}

/// Handles orders and arrivals, turn by turn, until a caller or an error ends the session.
fn turns(session: &mut Session, shared: &Shared, mut idle: Idle) -> Result<Ending, SessionError> {
    let (mut dropped_since, mut returns, mut answered) = (None, 0, Vec::new());
    let mut has_arrivals = false;
    loop {
        let orders = shared.take_orders();
        let pushed = carry_out(session, &orders.notes)?;
        let answers: Vec<_> = orders.calls.into_iter().map(|call| call(session)).collect();
        if !answers.is_empty() {
            idle.reset();
            shared.publish_all(session);
        } else if !pushed.is_empty() {
            idle.reset();
            shared.publish(session, &pushed); // a push that is skipped is not in flight
        }
        answers.into_iter().for_each(|answer| answer());
        for &(key, _) in orders.awaited.iter().filter(|_| !has_arrivals) {
            if let Err(error) = session.check_can_come(key) {
                shared.notify_cannot_arrive(key, error.into());
            }
        }
        let times = session.returns().times + session.relinks();
        if returns != times {
            (returns, _) = (times, shared.set_waker(session.waker())); // the session has new links
            shared.publish_all(session);
        }
        match orders.ending {
            Some(ending @ Ending::Fail(_)) => return Ok(ending),
            Some(ending) if session.is_quiet() => return Ok(ending),
            Some(Ending::Drop) if dropped_since.get_or_insert_with(Instant::now).elapsed() > GRACE => {
                return Ok(Ending::Drop);
            }
            _ => {}
        }
        has_arrivals = session.turn(&mut idle, &orders.awaited)?;
        if has_arrivals {
            session.take_answered(&mut answered);
            shared.publish(session, &answered);
        }
    }
}

/// Carries out the callers' notes. Their order matters: a use of a key that is noted before a push belongs to the
/// previous round. Returns the keys that were pushed.
fn carry_out(session: &mut Session, notes: &[Note]) -> Result<Vec<KeyId>, SessionError> {
    let mut pushed = Vec::new();
    for &note in notes {
        match note {
            Note::Pushed(key, what) => {
                session.put_as(key, what)?;
                pushed.push(key);
            }
            Note::Ahead(key) => session.put_ahead(key)?,
            Note::Asked(key, at) => {
                session.pulling().into_iter().for_each(|pulling| pulling.planner.asked(key, at))
            }
            Note::Used(key, at) => {
                session.pulling().into_iter().for_each(|pulling| pulling.planner.used(key, at))
            }
        }
    }
    session.flush()?;
    Ok(pushed)
}
