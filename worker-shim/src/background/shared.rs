//! What callers and the session's thread share: keys to push, calls to make, and the state of each key. The callers'
//! functions are in `callers`, the thread's are here.
//!
//! One lock, held briefly: nobody waits for the network, the hub or a caller under it. The notes of each key are bounded,
//! and each call has a caller that waits for it.

mod callers;

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use pbox_core::{KeyId, Round};

use super::notes::{Note, Notes};
use crate::session::{Session, SessionConfig, SessionError};

/// A call for the session's thread to make. It returns a function that tells the caller, to be called when the new
/// states of the keys are published.
pub(super) type Call = Box<dyn FnOnce(&mut Session) -> Box<dyn FnOnce()> + Send>;

/// How a session is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// By leaving, when no key is under way any more.
    Leave,
    /// Soon: by leaving if no key is under way, else without leaving.
    Drop,
}

/// What the thread takes from the callers at once.
#[derive(Default)]
pub(super) struct Orders {
    pub notes: Vec<Note>,
    pub calls: Vec<Call>,
    pub ending: Option<Ending>,
    /// Keys that callers wait for, and since when.
    pub awaited: Vec<(KeyId, Instant)>,
}

#[derive(Default)]
struct State {
    notes: Notes,
    calls: Vec<Call>,
    ending: Option<Ending>,
    /// Keys that are queued or under way.
    open: Vec<bool>,
    /// By key that callers wait for.
    waiting: HashMap<KeyId, Waiting>,
    next_round: Round,
    has_weights: bool,
    waker: Option<Waker>,
    /// `Some` when the session is over, with the error that ended it, if any.
    over: Option<Option<Arc<SessionError>>>,
}

struct Waiting {
    callers: u32,
    /// When the first of them began to wait.
    since: Instant,
    /// Why the key cannot come, until something more is pushed.
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
        let names: Vec<String> = config.terms.keys.iter().map(|key| key.name.clone()).collect();
        let notes = match config.pull {
            None => Notes::of_pushes(),
            Some(_) => Notes::of_times(names.len()),
        };
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
    pub fn set_waker(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    /// Takes what callers want now.
    pub fn take_orders(&self) -> Orders {
        let mut state = self.lock();
        Orders {
            notes: state.notes.take(),
            calls: std::mem::take(&mut state.calls),
            ending: state.ending,
            awaited: state.waiting.iter().map(|(&key, waiting)| (key, waiting.since)).collect(),
        }
    }

    /// Whether the callers want the join to end.
    pub fn is_given_up(&self) -> bool {
        self.lock().ending.is_some()
    }

    /// Publishes the states of the keys after a change.
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

    /// Tells callers that wait for a key that it cannot come, unless something was pushed meanwhile.
    pub fn tell_cannot_come(&self, key: KeyId, why: SessionError) {
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
    pub fn tell_ended(&self, error: Option<SessionError>) {
        let mut state = self.lock();
        state.over = Some(error.map(Arc::new));
        // The drop of a call tells its caller that the session is over.
        state.calls.clear();
        drop(state);
        self.changed.notify_all();
    }
}
