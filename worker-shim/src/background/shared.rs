//! The state that callers and the session's thread share: notes, calls to make, and the state of each key.
//! Callers push, ask, wait and call on any thread.
//!
//! There is one lock, held briefly. No thread waits for the network, the hub or a caller while it holds the lock;
//! waiting callers release it. The memory is bounded: each key has a limited number of notes, and each call has a
//! caller that waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use pbox_core::{KeyId, Round};

use super::notes::{Note, Notes};
use super::order::{Order, Push};
use super::{ASK, BackgroundError};
use crate::exchange::{ExchangeError, Traffic};
use crate::session::{
    Pushed, Session, SessionConfig, SessionError, Stopwatch, Timeline, Times, Who, gradients_only,
};

/// A call that the session's thread makes. It returns a function that notifies the caller. The thread calls
/// that function after it has published the new states of the keys.
pub(super) type Call = Box<dyn FnOnce(&mut Session) -> Box<dyn FnOnce()> + Send>;

/// The ways in which a session ends. A later variant overrides an earlier variant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// The session leaves as soon as no key is in flight.
    Leave,
    /// The session ends soon. It leaves if no key is in flight; otherwise it ends without leaving.
    Drop,
    /// The session ends now: this worker fails, and the hub notifies the other workers of the reason.
    Fail(Arc<str>),
}

/// The callers' orders, which the session's thread takes all at once.
#[derive(Default)]
pub(super) struct Orders {
    pub notes: Vec<Note>,
    pub calls: Vec<Call>,
    pub ending: Option<Ending>,
    /// The keys for which callers wait, each with the time when the first caller began to wait.
    pub awaited: Vec<(KeyId, Instant)>,
}

struct State {
    notes: Notes,
    calls: Vec<Call>,
    ending: Option<Ending>,
    /// Whether each key is queued or in flight, by key.
    open: Vec<bool>,
    order: Order,
    /// Whether the last answer of each key left its weights unchanged, by key.
    left_alone: Vec<bool>,
    /// The waits of callers, by key.
    waiting: HashMap<KeyId, Waiting>,
    next_round: Round,
    traffic: Traffic,
    /// The stopwatch of the callers.
    stopwatch: Stopwatch,
    has_weights: bool,
    waker: Option<Waker>,
    /// Whether the thread was already woken since it last took orders. Then it need not be woken again.
    is_woken: bool,
    /// The end of the session; `None` while it runs. The inner value is the error that ended the session, if an error
    /// did.
    over: Option<Option<Arc<SessionError>>>,
    /// Whether a caller knows that the session has ended without an error.
    is_end_known: bool,
}

struct Waiting {
    callers: u32,
    /// The time when the first caller began to wait.
    since: Instant,
    /// The error for the callers, if the key cannot arrive before another key is pushed.
    cannot_arrive: Option<Arc<SessionError>>,
}

pub(super) struct Shared {
    job: String,
    names: Vec<String>,
    /// The reason why the job takes gradients only; `None` if it takes other contents, too.
    gradients_only: Option<&'static str>,
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
        let state = State {
            notes,
            calls: Vec::new(),
            ending: None,
            open: vec![false; names.len()],
            order: Order::new(names.len()),
            left_alone: vec![false; names.len()],
            waiting: HashMap::new(),
            next_round: Round(0),
            traffic: Traffic::default(),
            stopwatch: Stopwatch::begin(Round(0), Traffic::default()),
            has_weights: false,
            waker: None,
            is_woken: false,
            is_end_known: false,
            over: None,
        };
        let job = config.job.clone();
        let gradients_only = gradients_only(&config.terms.level);
        Shared { job, names, gradients_only, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn job(&self) -> &str {
        &self.job
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Replaces the waker, which ends the sleep of the thread.
    pub fn set_waker(&self, waker: Waker) {
        let mut state = self.lock();
        if state.is_woken {
            waker.wake_by_ref(); // the wake-up by the former waker may be lost
        }
        state.waker = Some(waker);
    }

    /// Takes the callers' orders.
    pub fn take_orders(&self) -> Orders {
        let mut state = self.lock();
        state.is_woken = false;
        Orders {
            notes: state.notes.take(),
            calls: std::mem::take(&mut state.calls),
            ending: state.ending.clone(),
            awaited: state.waiting.iter().map(|(&key, waiting)| (key, waiting.since)).collect(),
        }
    }

    /// Records the callers' pushes and waits in this timeline from now on.
    pub fn show(&self, timeline: Timeline) {
        self.lock().stopwatch.show(timeline, Who::Callers);
    }

    /// Whether the callers want the join to end.
    pub fn is_given_up(&self) -> bool {
        self.lock().ending.is_some()
    }

    /// Publishes the states of all keys, if anything may have changed.
    pub fn publish_all(&self, session: &Session) {
        self.lock().next_round = session.next_round();
        self.publish(session, &Vec::from_iter(session.keys()));
    }

    /// Publishes the states of the `changed` keys only. In a model with many keys, this saves the time for the
    /// unchanged keys.
    pub fn publish(&self, session: &Session, changed: &[KeyId]) {
        let mut state = self.lock();
        let State { open, order, left_alone, notes, next_round, .. } = &mut *state;
        for &key in changed {
            open[key.index()] = !session.has_answer(key);
            order.set(key, Push { round: session.round(key), awaits: session.awaited_before(key) });
            left_alone[key.index()] = session.was_left_alone(key).unwrap_or(false);
            *next_round = session.round(key).max(*next_round);
        }
        for key in notes.pushes() {
            open[key.index()] = true;
        }
        (state.traffic, state.has_weights) = (session.traffic(), session.has_weights());
        drop(state);
        self.changed.notify_all();
    }

    /// Notifies callers that wait for a key that the key cannot arrive. Does nothing if a new push has been noted
    /// meanwhile.
    pub fn notify_cannot_arrive(&self, key: KeyId, why: SessionError) {
        let mut state = self.lock();
        let State { notes, waiting, .. } = &mut *state;
        let waiting = waiting.get_mut(&key).filter(|_| notes.pushes().next().is_none());
        if let Some(waiting) = waiting {
            waiting.cannot_arrive = Some(Arc::new(why));
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Notes that the session is over, and wakes all callers.
    pub fn tell_ended(&self, error: Option<SessionError>) {
        let timeline = self.lock().stopwatch.hide();
        drop(timeline); // its file must exist before callers notice the end
        let mut state = self.lock();
        state.over = Some(error.map(Arc::new));
        state.waker = None; // it keeps descriptors of the links open
        // Dropping a call notifies its caller that the session is over.
        state.calls.clear();
        drop(state);
        self.changed.notify_all();
    }
}

/// The methods for callers.
impl Shared {
    /// Notes a push of each key, and wakes the thread once. If a key is refused, the keys before it are
    /// pushed.
    pub fn push(&self, keys: &[KeyId], what: Pushed) -> Result<(), BackgroundError> {
        let mut state = self.lock_alive()?;
        let mut timed = Vec::new();
        let noted = keys.iter().try_for_each(|&key| {
            let round = state.next_round;
            timed.extend(state.stopwatch.push_begins(key, round));
            self.note_push(&mut state, key, what)
        });
        self.wake(state);
        if !timed.is_empty() {
            let mut state = self.lock();
            timed.into_iter().for_each(|push| state.stopwatch.push_ends(push));
        }
        noted.map_err(Into::into)
    }

    fn note_push(&self, state: &mut State, key: KeyId, what: Pushed) -> Result<(), SessionError> {
        let open = is_open(state, key)?;
        if !state.has_weights {
            return Err(SessionError::NoWeights);
        }
        if open {
            return Err(self.under_way(state, key, "pushing it again"));
        }
        if let (Pushed::Nothing | Pushed::Weights, Some(why)) = (what, self.gradients_only) {
            let (key, pushed) = (self.names[key.index()].clone(), what.name());
            return Err(ExchangeError::OnlyGradients { key, pushed, why }.into());
        }
        state.order.check(key, &state.open, &self.names)?;
        state.open[key.index()] = true;
        state.notes.pushed(key, what);
        state.waiting.values_mut().for_each(|waiting| waiting.cannot_arrive = None);
        Ok(())
    }

    pub fn send_ahead(&self, keys: &[KeyId]) -> Result<(), BackgroundError> {
        let mut state = self.lock_alive()?;
        let noted = keys.iter().try_for_each(|&key| match is_open(&state, key)? {
            true => Err(self.under_way(&state, key, "sending its gradient ahead")),
            false => {
                state.notes.ahead(key);
                Ok(())
            }
        });
        self.wake(state);
        noted.map_err(Into::into)
    }

    fn under_way(&self, state: &State, key: KeyId, doing: &'static str) -> SessionError {
        let (key, round) = (self.names[key.index()].clone(), state.next_round.0);
        ExchangeError::UnderWay { key, round, doing }.into()
    }

    pub fn was_left_alone(&self, key: KeyId) -> Result<bool, BackgroundError> {
        let (state, open) = self.look(key)?;
        Ok(!open && state.left_alone[key.index()])
    }

    pub fn is_ready(&self, key: KeyId) -> Result<bool, BackgroundError> {
        let (mut state, open) = self.look(key)?;
        state.notes.asked(key);
        if open {
            self.wake(state);
        } else {
            state.notes.used(key);
        }
        Ok(!open)
    }

    pub fn are_ready(&self, keys: &[KeyId]) -> Result<Vec<bool>, BackgroundError> {
        let state = self.lock_alive()?;
        Ok(keys.iter().map(|&key| is_open(&state, key).map(|open| !open)).collect::<Result<_, _>>()?)
    }

    /// Waits for a key whose weights the caller uses next.
    pub fn wait(&self, key: KeyId, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        let (mut state, open) = self.look(key)?;
        state.notes.asked(key);
        if open {
            state = self.wait_for(state, key, interrupted)?;
        }
        state.notes.used(key);
        Ok(())
    }

    /// Waits for a key whose weights the caller does not use next.
    pub fn settle(&self, key: KeyId, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        let (state, open) = self.look(key)?;
        if open { self.wait_for(state, key, interrupted).map(drop) } else { Ok(()) }
    }

    /// Waits for a key that is queued or in flight.
    fn wait_for<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        key: KeyId,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<MutexGuard<'a, State>, BackgroundError> {
        let none = || Waiting { callers: 0, since: Instant::now(), cannot_arrive: None };
        state.waiting.entry(key).or_insert_with(none).callers += 1;
        state.stopwatch.wait_begins();
        if let Some(waker) = to_wake(&mut state) {
            waker.wake();
        }
        let mut asked = Instant::now();
        let outcome = loop {
            let stop;
            (state, stop) = self.sleep(state, &mut asked, interrupted);
            if !state.open[key.index()] {
                break Ok(());
            }
            if state.over.is_some() {
                break Err(self.over(&state));
            }
            if let Some(error) = state.waiting.get(&key).and_then(|waiting| waiting.cannot_arrive.clone()) {
                break Err(BackgroundError::Session(error));
            }
            if stop {
                let what = format!("key {:?}", self.names[key.index()]);
                break Err(BackgroundError::Interrupted { what });
            }
        };
        match state.waiting.get_mut(&key) {
            Some(waiting) if waiting.callers > 1 => waiting.callers -= 1,
            _ => drop(state.waiting.remove(&key)),
        }
        state.stopwatch.wait_ends();
        outcome.map(|()| state)
    }

    pub fn call(&self, call: Call) -> Result<(), BackgroundError> {
        let mut state = self.lock_alive()?;
        state.calls.push(call);
        self.wake(state);
        Ok(())
    }

    /// Returns the callers' times since the last [`restart`](Self::restart). Callers always sleep while they wait, so
    /// the whole waiting time counts as sleep.
    pub fn times(&self) -> Times {
        let state = self.lock();
        let times = state.stopwatch.times(state.next_round, state.traffic);
        Times { asleep: times.waiting, ..times }
    }

    /// Restarts the times, because the weights have arrived.
    pub fn restart(&self) {
        let mut state = self.lock();
        let State { stopwatch, next_round, traffic, .. } = &mut *state;
        stopwatch.restart(*next_round, *traffic);
    }

    pub fn next_round(&self) -> Round {
        self.lock().next_round
    }

    /// Tells the thread to end. A drop overrides an earlier leave, and a failure overrides both. In all other cases the
    /// first call decides.
    pub fn end(&self, ending: Ending) {
        let mut state = self.lock();
        if !matches!(state.ending, Some(Ending::Fail(_))) {
            state.ending = state.ending.take().max(Some(ending));
            state.is_woken = false; // a thread that is reconnecting may have consumed the last wake-up without taking orders
        }
        self.wake(state);
    }

    /// Whether the thread has ended, or is about to end.
    pub fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    /// Whether a caller has called `leave`, and was interrupted before it knew the result. Then no caller knows whether
    /// the session has left.
    pub fn is_leaving(&self) -> bool {
        let state = self.lock();
        !state.is_end_known && state.ending == Some(Ending::Leave)
    }

    pub fn wait_for_end(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        let mut state = self.lock();
        let (mut stop, mut asked) = (false, Instant::now());
        loop {
            match &state.over {
                Some(None) => {
                    state.is_end_known = true;
                    return Ok(());
                }
                Some(Some(_)) => return Err(self.over(&state)),
                None if stop => {
                    let what = "the hub's answer to the leave".into();
                    return Err(BackgroundError::Interrupted { what });
                }
                None => (state, stop) = self.sleep(state, &mut asked, interrupted),
            }
        }
    }

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

    /// Returns the state, and whether a key is queued or in flight.
    fn look(&self, key: KeyId) -> Result<(MutexGuard<'_, State>, bool), BackgroundError> {
        let state = self.lock_alive()?;
        let open = is_open(&state, key)?;
        Ok((state, open))
    }

    /// Waits until the shared state has changed. At intervals of `ASK`, also asks whether the caller was interrupted,
    /// even if other keys arrive all the time. `asked` is the time when it last asked.
    fn sleep<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        asked: &mut Instant,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> (MutexGuard<'a, State>, bool) {
        let left = ASK.saturating_sub(asked.elapsed());
        let (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner());
        if asked.elapsed() < ASK {
            return (state, false);
        }
        *asked = Instant::now();
        drop(state);
        let stop = interrupted();
        (self.lock(), stop)
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waker = to_wake(&mut state);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Returns the waker of the thread. Returns `None` if the thread was woken since it last took orders.
fn to_wake(state: &mut State) -> Option<Waker> {
    let was_woken = std::mem::replace(&mut state.is_woken, true);
    state.waker.clone().filter(|_| !was_woken)
}

fn is_open(state: &State, key: KeyId) -> Result<bool, SessionError> {
    let keys = state.open.len();
    let open = state.open.get(key.index()).copied();
    open.ok_or(SessionError::from(ExchangeError::NoSuchKey { key: key.0, keys }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use pbox_core::{Key, Optimizer};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_thread_is_woken_once_until_it_takes_orders_and_again_where_its_waker_is_another() {
        let keys = vec![Key::f32("first", [1]), Key::f32("second", [1])];
        let shared = Shared::new(&SessionConfig::new("", "", 0, 1, keys, Optimizer::Average));
        let [wakes, others] = [(); 2].map(|()| Arc::new(Wakes::default()));
        let count = |wakes: &Wakes| wakes.0.load(Ordering::Relaxed);
        shared.set_waker(Waker::from(Arc::clone(&wakes)));
        for turn in 1..3 {
            shared.send_ahead(&[KeyId(0)]).unwrap();
            shared.send_ahead(&[KeyId(1)]).unwrap();
            assert_eq!(count(&wakes), turn);
            if turn == 1 {
                assert_eq!(shared.take_orders().notes.len(), 2);
            }
        }
        shared.set_waker(Waker::from(Arc::clone(&others)));
        assert_eq!((count(&wakes), count(&others)), (2, 1), "what the old links were told is lost");
    }
}
