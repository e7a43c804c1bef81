//! The callers' part: they push, ask, wait and call, on any thread.
//!
//! Under the lock it must wait only for the thread's signal that something has changed.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use pbox_core::{KeyId, Round};

use super::{Call, Ending, Shared, State, Waiting};
use crate::background::{ASK, BackgroundError};
use crate::exchange::ExchangeError;
use crate::session::{Session, SessionError};

impl Shared {
    pub fn push(&self, key: KeyId) -> Result<(), BackgroundError> {
        let mut state = self.lock_alive()?;
        let open = self.open(&state, key)?;
        let refuse = |error: SessionError| Err(error.into());
        if !state.has_weights {
            return refuse(Session::no_weights(&self.hub));
        }
        if open {
            let (key, round) = (self.names[key.index()].clone(), state.next_round.0);
            return refuse(ExchangeError::UnderWay { key, round, doing: "pushing it again" }.into());
        }
        state.open[key.index()] = true;
        state.notes.pushed(key);
        state.waiting.values_mut().for_each(|waiting| waiting.in_vain = None);
        self.wake(state);
        Ok(())
    }

    pub fn is_ready(&self, key: KeyId) -> Result<bool, BackgroundError> {
        let mut state = self.lock_alive()?;
        let open = self.open(&state, key)?;
        state.notes.asked(key);
        match open {
            true => self.wake(state),
            false => state.notes.used(key),
        }
        Ok(!open)
    }

    /// Waits for a key whose weights the caller is about to use.
    pub fn wait(&self, key: KeyId, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        let mut state = self.lock_alive()?;
        let open = self.open(&state, key)?;
        state.notes.asked(key);
        if open {
            let outcome;
            (state, outcome) = self.wait_for(state, key, interrupted);
            outcome?;
        }
        state.notes.used(key);
        Ok(())
    }

    /// Waits for a key whose weights the caller does not use next.
    pub fn settle(&self, key: KeyId, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        let state = self.lock_alive()?;
        match self.open(&state, key)? {
            true => self.wait_for(state, key, interrupted).1,
            false => Ok(()),
        }
    }

    /// Waits for a key that is open.
    fn wait_for<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        key: KeyId,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> (MutexGuard<'a, State>, Result<(), BackgroundError>) {
        let none = || Waiting { callers: 0, since: Instant::now(), in_vain: None };
        state.waiting.entry(key).or_insert_with(none).callers += 1;
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
        let outcome = loop {
            let timed_out;
            (state, timed_out) = self.sleep(state);
            if !state.open[key.index()] {
                break Ok(());
            }
            if state.over.is_some() {
                break Err(self.over(&state));
            }
            if let Some(error) = state.waiting.get(&key).and_then(|waiting| waiting.in_vain.clone()) {
                break Err(BackgroundError::Session(error));
            }
            if timed_out {
                drop(state);
                let stop = interrupted();
                state = self.lock();
                if stop {
                    break Err(BackgroundError::Interrupted {
                        what: format!("key {:?}", self.names[key.index()]),
                    });
                }
            }
        };
        match state.waiting.get_mut(&key) {
            Some(waiting) if waiting.callers > 1 => waiting.callers -= 1,
            _ => drop(state.waiting.remove(&key)),
        }
        (state, outcome)
    }

    pub fn call(&self, call: Call) -> Result<(), BackgroundError> {
        let mut state = self.lock_alive()?;
        state.calls.push(call);
        self.wake(state);
        Ok(())
    }

    pub fn next_round(&self) -> Round {
        self.lock().next_round
    }

    /// Tells the thread to end. The first call counts, except that a drop overrides a leave.
    pub fn end(&self, ending: Ending) {
        let mut state = self.lock();
        if state.ending != Some(Ending::Drop) {
            state.ending = Some(ending);
        }
        self.wake(state);
    }

    pub fn wait_for_end(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        let mut state = self.lock();
        loop {
            match &state.over {
                Some(None) => return Ok(()),
                Some(Some(_)) => return Err(self.over(&state)),
                None => {}
            }
            let timed_out;
            (state, timed_out) = self.sleep(state);
            if timed_out {
                drop(state);
                if interrupted() {
                    return Err(BackgroundError::Interrupted {
                        what: "the hub's answer to the leave".into(),
                    });
                }
                state = self.lock();
            }
        }
    }

    /// Why the session is over.
    pub fn why_ended(&self) -> BackgroundError {
        self.over(&self.lock())
    }

    fn over(&self, state: &State) -> BackgroundError {
        match &state.over {
            Some(Some(error)) => BackgroundError::Session(Arc::clone(error)),
            _ => BackgroundError::Left { job: self.job.clone() },
        }
    }

    fn lock_alive(&self) -> Result<MutexGuard<'_, State>, BackgroundError> {
        let state = self.lock();
        match state.over.is_some() || state.ending.is_some() {
            true => Err(self.over(&state)),
            false => Ok(state),
        }
    }

    fn open(&self, state: &State, key: KeyId) -> Result<bool, BackgroundError> {
        let keys = state.open.len();
        let open = state.open.get(key.index()).copied();
        open.ok_or_else(|| SessionError::from(ExchangeError::NoSuchKey { key: key.0, keys }).into())
    }

    fn sleep<'a>(&'a self, state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let (state, slept) = self.changed.wait_timeout(state, ASK).unwrap_or_else(|e| e.into_inner());
        (state, slept.timed_out())
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        let waker = state.waker.clone();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
