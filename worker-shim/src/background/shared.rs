//! What callers and the session's thread share: keys to push, calls to make, and how each key is.
//!
//! One lock, held for moments only: nobody waits for the network, the hub or a caller under it. The
//! queue of pushes holds each key once at most, and each call has a caller that waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use pbox_core::{KeyId, Round};

use super::{ASK, BackgroundError};
use crate::config::SessionConfig;
use crate::error::SessionError;
use crate::exchange::ExchangeError;
use crate::session::Session;

/// Something for the session's thread to do with its session, and then how to tell the caller: after
/// everybody can see what it did to the keys.
pub(super) type Call = Box<dyn FnOnce(&mut Session) -> Box<dyn FnOnce()> + Send>;

/// How a session is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// By leaving, when everything that is under way has come.
    Leave,
    /// Soon: by leaving where nothing is under way, else as it stands.
    Drop,
}

/// What the thread takes from the callers in one go.
#[derive(Default)]
pub(super) struct Orders {
    pub pushes: Vec<KeyId>,
    pub calls: Vec<Call>,
    pub ending: Option<Ending>,
    /// Keys that somebody waits for, and since when.
    pub awaited: Vec<(KeyId, Instant)>,
}

#[derive(Default)]
struct State {
    pushes: Vec<KeyId>,
    calls: Vec<Call>,
    ending: Option<Ending>,
    /// Keys that are queued or under way.
    open: Vec<bool>,
    /// By key: how many wait for it, and since when the first does.
    waiting: HashMap<KeyId, (u32, Instant)>,
    next_round: Round,
    has_weights: bool,
    waker: Option<Waker>,
    /// The session is over; why, when it was not by leaving.
    over: Option<Option<Arc<SessionError>>>,
}

pub(super) struct Shared {
    hub: String,
    job: String,
    names: Vec<String>,
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("job", &self.job).finish_non_exhaustive()
    }
}

impl Shared {
    pub fn new(config: &SessionConfig) -> Self {
        let names: Vec<String> = config.keys.iter().map(|key| key.name.clone()).collect();
        let state = State { open: vec![false; names.len()], ..State::default() };
        let (hub, job) = (config.hub.clone(), config.job.clone());
        Shared { hub, job, names, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn job(&self) -> &str {
        &self.job
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// From now on `waker` ends the thread's sleep.
    pub fn woken_by(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    // ---- callers

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
        state.pushes.push(key);
        self.wake(state);
        Ok(())
    }

    pub fn is_ready(&self, key: KeyId) -> Result<bool, BackgroundError> {
        let state = self.lock_alive()?;
        let open = self.open(&state, key)?;
        if open {
            self.wake(state);
        }
        Ok(!open)
    }

    pub fn wait(&self, key: KeyId, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        let mut state = self.lock_alive()?;
        if !self.open(&state, key)? {
            return Ok(());
        }
        state.waiting.entry(key).or_insert((0, Instant::now())).0 += 1;
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
            Some((waiters, _)) if *waiters > 1 => *waiters -= 1,
            _ => drop(state.waiting.remove(&key)),
        }
        outcome
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

    /// Tells the thread to end. The first word stands, unless it was a polite one.
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

    /// Why the session is over, for those who find that it is.
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

    // ---- the session's thread

    /// What callers want now.
    pub fn take(&self) -> Orders {
        let mut state = self.lock();
        Orders {
            pushes: std::mem::take(&mut state.pushes),
            calls: std::mem::take(&mut state.calls),
            ending: state.ending,
            awaited: state.waiting.iter().map(|(&key, &(_, since))| (key, since)).collect(),
        }
    }

    /// Whether the callers want the join to be given up.
    pub fn is_given_up(&self) -> bool {
        self.lock().ending.is_some()
    }

    /// How the keys are now that something has happened.
    pub fn publish(&self, session: &Session) {
        let mut state = self.lock();
        let State { open, pushes, .. } = &mut *state;
        for (key, open) in session.keys().zip(open.iter_mut()) {
            *open = !session.has_answer(key);
        }
        for key in pushes {
            open[key.index()] = true;
        }
        state.next_round = session.next_round();
        state.has_weights = session.has_weights();
        drop(state);
        self.changed.notify_all();
    }

    /// The session is over.
    pub fn ended(&self, error: Option<SessionError>) {
        let mut state = self.lock();
        state.over = Some(error.map(Arc::new));
        // Who waits for a call hears of the end by its being dropped.
        state.calls.clear();
        drop(state);
        self.changed.notify_all();
    }
}
