//! What callers and the session's thread share: keys to push, calls to make, and how each key is. What callers do
//! with it is in `callers`, what the thread does is here.
//!
//! One lock, held for moments only: nobody waits for the network, the hub or a caller under it. The
//! notes of each key are bounded, and each call has a caller that waits for it.

mod callers;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use pbox_core::{KeyId, Round};

use super::notes::{Note, Notes};
use crate::session::{Session, SessionConfig, SessionError};

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
    pub notes: Vec<Note>,
    pub calls: Vec<Call>,
    pub ending: Option<Ending>,
    /// Keys that somebody waits for, and since when.
    pub awaited: Vec<(KeyId, Instant)>,
}

#[derive(Default)]
struct State {
    notes: Notes,
    calls: Vec<Call>,
    ending: Option<Ending>,
    /// Keys that are queued or under way.
    open: Vec<bool>,
    /// By key that somebody waits for.
    waiting: HashMap<KeyId, Waiting>,
    next_round: Round,
    has_weights: bool,
    waker: Option<Waker>,
    /// The session is over; why, when it was not by leaving.
    over: Option<Option<Arc<SessionError>>>,
}

struct Waiting {
    callers: u32,
    /// When the first of them came.
    since: Instant,
    /// Why it cannot come, as long as nothing more is pushed.
    in_vain: Option<Arc<SessionError>>,
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
        let notes = Notes::new(names.len(), config.pull.is_some());
        let state = State { notes, open: vec![false; names.len()], ..State::default() };
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

    /// What callers want now.
    pub fn take(&self) -> Orders {
        let mut state = self.lock();
        Orders {
            notes: state.notes.take(),
            calls: std::mem::take(&mut state.calls),
            ending: state.ending,
            awaited: state.waiting.iter().map(|(&key, waiting)| (key, waiting.since)).collect(),
        }
    }

    /// Whether the callers want the join to be given up.
    pub fn is_given_up(&self) -> bool {
        self.lock().ending.is_some()
    }

    /// How the keys are now that something has happened.
    pub fn publish(&self, session: &Session) {
        let mut state = self.lock();
        let State { open, notes, .. } = &mut *state;
        for (key, open) in session.keys().zip(open.iter_mut()) {
            *open = !session.has_answer(key);
        }
        for key in notes.pushes() {
            open[key.index()] = true;
        }
        state.next_round = session.next_round();
        state.has_weights = session.has_weights();
        drop(state);
        self.changed.notify_all();
    }

    /// Tells those who wait for a key that it cannot come, unless something was pushed meanwhile.
    pub fn cannot_come(&self, key: KeyId, why: SessionError) {
        let mut state = self.lock();
        let State { notes, waiting, .. } = &mut *state;
        let waiting = waiting.get_mut(&key).filter(|_| notes.pushes().next().is_none());
        if let Some(waiting) = waiting {
            waiting.in_vain = Some(Arc::new(why));
            drop(state);
            self.changed.notify_all();
        }
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
