//! A session on a thread of its own: the exchange continues while its callers compute.
//!
//! The background session is for callers that cannot drive a session themselves, such as Python and C. One thread owns
//! the [`Session`]. A [`Background`] is the handle, and any thread may use it. A push leaves a note for the session's
//! thread, and wakes the thread. A waiting caller sleeps until its key's answer has arrived.
//!
//! ```text
//!   callers                          session's thread
//!   push(key) ---> notes        ---> session.push
//!   with(f)   ---> calls        ---> f(&mut session)
//!   wait(key) <--- key states   <--- answers
//!             ---> notes        ---> times of the forward pass, for the planner
//! ```
//!
//! Must not depend on tensors' types, or on what its callers compute.

mod notes;
mod order;
mod shared;
mod thread;

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric::Idle;
use membership::Way;
use pbox_core::control::CheckpointReply;
use pbox_core::{KeyId, Layout, Round};

use crate::exchange::Windows;
use crate::session::{Pushed, Session, SessionConfig, SessionError, State, Times};
use shared::{Ending, Shared};

/// The interval at which a waiting caller checks whether it was interrupted. It is so short that a person who presses
/// Ctrl-C notices no delay.
const ASK: Duration = Duration::from_millis(100);

/// The longest time for which an interrupted join waits until its thread has left the job.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// The reason why a call of a background session failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackgroundError {
    /// An error of the session. If the error has ended the session, every later call returns the same error.
    #[error(transparent)]
    Session(Arc<SessionError>),
    /// The caller was interrupted while it waited.
    #[error("interrupted while waiting for {what}")]
    Interrupted {
        /// A description of what the caller waited for.
        what: String,
    },
    /// The session has left its job.
    #[error("job {job:?}: this session has left the job; join again for a new session")]
    Left {
        /// The job.
        job: String,
    },
    /// The caller is a child of `fork`. Its copy of the session has no thread.
    #[error(
        "job {job:?}: this session belongs to process {owner}, and the caller is its child {here}: fork copies no threads; use the session in the parent only, or join in the child"
    )]
    OtherProcess {
        /// The job.
        job: String,
        /// The process that joined.
        owner: u32,
        /// The process that calls.
        here: u32,
    },
}

impl From<SessionError> for BackgroundError {
    fn from(error: SessionError) -> Self {
        BackgroundError::Session(Arc::new(error))
    }
}

/// The addresses of a key in this process's memory. They are valid while the session's [`Memory`] is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyMemory {
    /// The address of the gradient. The caller may write it while the key is not in flight. `None` if the
    /// gradient is in a dma-buf.
    pub gradient: Option<usize>,
    /// The address of the weights. The caller may read them while the key is not in flight. With
    /// [`WeightsMode::Shared`](crate::WeightsMode::Shared) the pages may be read-only.
    pub weights: usize,
    /// The length in bytes of the gradient, and also of the weights.
    pub bytes: usize,
}

/// The windows of a background session: gradients and weights. They stay mapped while this value exists, even after
/// the session.
#[derive(Debug, Default)]
pub struct Memory {
    /// The windows, once the session has ended. Until then the session owns them.
    parked: Mutex<Option<Windows>>,
}

/// A session on a thread of its own. Dropping the handle ends the thread and leaves the job. If keys are still in flight
/// after one second, the worker ends without leaving. The other workers then count this worker as lost.
#[derive(Debug)]
pub struct Background {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    memory: Arc<Memory>,
    joined: Joined,
    rank: u32,
    owner: u32,
}

/// The hub addresses, the job and the rank for which a join asks.
type Asked = (String, String, u32);

/// The interrupted joins of this process. The weak reference is valid while the thread of the join still runs.
static EARLIER: Mutex<Vec<(Asked, Weak<Shared>)>> = Mutex::new(Vec::new());

fn earlier() -> MutexGuard<'static, Vec<(Asked, Weak<Shared>)>> {
    EARLIER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until interrupted joins of the same rank have released the rank, at most for `limit`. The thread of such a
/// join may still wait for its hub's reply. Until it has got the reply and has left, the hub holds the rank.
fn wait_for_earlier(
    asked: &Asked,
    limit: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> Result<(), BackgroundError> {
    let until = Instant::now() + limit;
    let same = |earlier: &[(Asked, Weak<Shared>)]| {
        earlier.iter().filter(|(of, _)| of == asked).find_map(|(_, shared)| shared.upgrade())
    };
    loop {
        earlier().retain(|(_, shared)| shared.strong_count() > 0);
        let found = same(&earlier());
        let Some(shared) = found.filter(|shared| !shared.is_over()) else { return Ok(()) };
        let mut stop = false;
        let _ = shared.wait_for_end(&mut || {
            stop = interrupted();
            stop || Instant::now() > until
        });
        if stop {
            return Err(BackgroundError::Interrupted { what: "an earlier join of this rank to end".into() });
        }
        if Instant::now() > until {
            return Ok(()); // the hub's answer to the join says what is wrong
        }
    }
}

/// The data that the thread returns after its join.
#[derive(Debug)]
struct Joined {
    keys: Vec<KeyMemory>,
    layout: Arc<Layout>,
    ways: Vec<Way>,
}

impl Background {
    /// Joins a job like [`Session::join`]. In this call and in the calls below, `interrupted` is called ten times a second.
    /// When `interrupted` returns true, the call ends.
    pub fn join(
        config: SessionConfig,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Self, BackgroundError> {
        Self::join_with(config, None, interrupted)
    }

    /// Joins like [`join`](Self::join), but rank 0 may bring a state, as in [`Session::join_with`].
    pub fn join_with(
        config: SessionConfig,
        state: Option<State>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Self, BackgroundError> {
        let asked = (config.hub.clone(), config.job.clone(), config.rank);
        wait_for_earlier(&asked, config.join_limit, interrupted)?;
        let (shared, rank) = (Arc::new(Shared::new(&config)), config.rank);
        let memory = Arc::new(Memory::default());
        let (send, answer) = sync_channel(1);
        let thread = {
            let (shared, memory) = (Arc::clone(&shared), Arc::clone(&memory));
            let named = std::thread::Builder::new().name("phub-session".into());
            named
                .spawn(move || thread::run(config, state, &shared, &memory, send))
                .map_err(SessionError::from)?
        };
        let (joined, waker) = match receive(&answer, interrupted) {
            Ok(joined) => joined,
            Err(NoAnswer::Ended) => {
                let _ = thread.join();
                return Err(shared.why_ended());
            }
            Err(NoAnswer::Interrupted) => {
                // The thread notices soon that it must end, and leaves, so that the rank is free for the next join. If
                // the hub's reply to the join takes longer, this call does not wait for the thread.
                shared.end(Ending::Drop);
                let since = Instant::now();
                let _ = shared.wait_for_end(&mut || since.elapsed() > LEAVE_LIMIT);
                earlier().push((asked, Arc::downgrade(&shared)));
                return Err(BackgroundError::Interrupted { what: "the other workers".into() });
            }
        };
        shared.set_waker(waker);
        shared.restart();
        let (thread, owner) = (Mutex::new(Some(thread)), std::process::id());
        Ok(Background { shared, thread, memory, joined, rank, owner })
    }

    /// Sends a key's gradient like [`Session::push`], and returns at once.
    pub fn push(&self, key: KeyId) -> Result<(), BackgroundError> {
        self.push_as(&[key], Pushed::Gradient)
    }

    /// Pushes keys like [`Session::push_as`], and returns at once.
    ///
    /// # Errors
    /// Returns the error of the first key that is refused. The keys before it are pushed.
    pub fn push_as(&self, keys: &[KeyId], what: Pushed) -> Result<(), BackgroundError> {
        self.shared()?.push(keys, what)
    }

    /// Sends the gradients of keys before their pushes like [`Session::send_ahead`], and returns at once. If a gradient
    /// is written again after this call, its push must be [`Pushed::Rewritten`].
    pub fn send_ahead(&self, keys: &[KeyId]) -> Result<(), BackgroundError> {
        self.shared()?.send_ahead(keys)
    }

    /// Whether the key's last answer left its weights unchanged, like [`Session::was_left_alone`]. False
    /// while the key is in flight.
    pub fn was_left_alone(&self, key: KeyId) -> Result<bool, BackgroundError> {
        self.shared()?.was_left_alone(key)
    }

    /// Waits until the key's answer has arrived. If weights are pulled in batches, the planner learns the times of
    /// the forward pass from these waits, and from [`is_ready`](Self::is_ready).
    ///
    /// Returns the session's errors. Returns [`ExchangeError::Unpushed`](crate::ExchangeError::Unpushed) if
    /// the key cannot arrive before another key is pushed; this error does not end the session.
    pub fn wait(&self, key: KeyId, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        self.shared()?.wait(key, interrupted)
    }

    /// Waits until every key's answer has arrived. The planner of pulls does not count this wait as a forward pass.
    pub fn wait_all(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        (0..self.keys().len() as u32).try_for_each(|key| self.settle(KeyId(key), interrupted))
    }

    /// Waits until the key's answer has arrived. Like [`wait_all`](Self::wait_all), it does not count as a forward
    /// pass. Meant for a caller that does not use the key's weights next.
    pub fn settle(&self, key: KeyId, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        self.shared()?.settle(key, interrupted)
    }

    /// Whether the key's answer had arrived when the session's thread last checked. Also makes the thread check again,
    /// for the next call.
    pub fn is_ready(&self, key: KeyId) -> Result<bool, BackgroundError> {
        self.shared()?.is_ready(key)
    }

    /// Whether each key's answer had arrived when the session's thread last checked. The planner of pulls does not
    /// count this call as a forward pass, and the thread does not check again.
    pub fn are_ready(&self, keys: &[KeyId]) -> Result<Vec<bool>, BackgroundError> {
        self.shared()?.are_ready(keys)
    }

    /// Gives every worker the weights that rank 0 has written into its gradients, like
    /// [`Session::broadcast_written`].
    pub fn broadcast_written(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        self.with(Session::begin_broadcast, interrupted)??;
        self.wait_all(interrupted)?;
        self.shared.restart();
        Ok(())
    }

    /// Makes the hub write a checkpoint, like [`Session::checkpoint`].
    pub fn checkpoint(
        &self,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<CheckpointReply, BackgroundError> {
        self.wait_all(interrupted)?;
        Ok(self.with(Session::checkpoint, interrupted)??)
    }

    /// Calls `f` with the session, on the session's thread. The exchange stops while `f` runs, so calls that wait for
    /// answers have methods of their own. All other calls of a session are made through this method, for example
    /// [`Session::set_optimizer`].
    pub fn with<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Session) -> R + Send + 'static,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<R, BackgroundError> {
        let (sender, answer) = sync_channel(1);
        self.shared()?.call(Box::new(move |session| {
            let answer = f(session);
            // If the caller was interrupted, nobody receives the answer. This is no error.
            Box::new(move || drop(sender.send(answer)))
        }))?;
        match receive(&answer, interrupted) {
            Ok(answer) => Ok(answer),
            Err(NoAnswer::Ended) => {
                // The call was not made, or it panicked. In both cases the thread is ending.
                self.shared.wait_for_end(interrupted)?;
                Err(self.shared.why_ended())
            }
            Err(NoAnswer::Interrupted) => {
                Err(BackgroundError::Interrupted { what: "the session's thread".into() })
            }
        }
    }

    /// Waits for all keys in flight, and leaves the job. After an interrupt, the caller may call this again,
    /// or drop the session.
    pub fn leave(&self, interrupted: &mut dyn FnMut() -> bool) -> Result<(), BackgroundError> {
        if !self.shared()?.is_leaving() {
            self.wait_all(interrupted)?;
            tracing::info!(job = self.shared.job(), rank = self.rank, "{}", self.times());
            self.shared.end(Ending::Leave);
        }
        self.shared.wait_for_end(interrupted)
    }

    /// Ends the session like a drop, and waits for its thread. In a child of `fork` it does nothing.
    pub fn close(&self) {
        self.close_by(Ending::Drop);
    }

    /// Ends the session because its caller fails, like [`Session::fail`], and waits for its thread. In a
    /// child of `fork`, or if the session is over, it does nothing.
    pub fn close_because(&self, why: &str) {
        self.close_by(Ending::Fail(why.into()));
    }

    fn close_by(&self, ending: Ending) {
        if std::process::id() != self.owner {
            // A child of `fork` does not have the session's thread. It must not lock `thread` either: another
            // thread may have held the lock at the `fork`.
            return;
        }
        let thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(thread) = thread {
            self.shared.end(ending);
            let _ = thread.join();
        }
    }

    /// Returns the first round for which no key has its answer, like [`Session::next_round`].
    pub fn next_round(&self) -> Round {
        self.shared.next_round()
    }

    /// Returns the callers' times, like [`Session::times`], even after the session is over. Waiting counts as sleeping,
    /// and while several callers wait, the time counts once. The time of a push is only the time to note it for the
    /// session's thread. The work of that thread is in none of the times.
    pub fn times(&self) -> Times {
        self.shared.times()
    }

    /// Returns the addresses of each key in memory. The addresses are valid while [`memory`](Self::memory) is
    /// held.
    pub fn keys(&self) -> &[KeyMemory] {
        &self.joined.keys
    }

    /// Returns the owner of the windows, which keeps them mapped.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the layout of the job.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.joined.layout
    }

    /// Returns the transport to each hub, and the reason for the choice.
    pub fn ways(&self) -> &[Way] {
        &self.joined.ways
    }

    /// Returns the state that this handle shares with the session's thread. Returns an error if that thread
    /// is in another process.
    fn shared(&self) -> Result<&Shared, BackgroundError> {
        let here = std::process::id();
        if here == self.owner {
            return Ok(&self.shared);
        }
        Err(BackgroundError::OtherProcess { job: self.shared.job().to_owned(), owner: self.owner, here })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if std::process::id() != self.owner {
            // The thread of this handle is in another process, and cannot be joined here.
            return std::mem::forget(self.thread.get_mut().map(Option::take));
        }
        self.close();
    }
}

/// The reason why no answer came from the session's thread.
enum NoAnswer {
    Ended,
    Interrupted,
}

fn receive<T>(answer: &Receiver<T>, interrupted: &mut dyn FnMut() -> bool) -> Result<T, NoAnswer> {
    loop {
        match answer.recv_timeout(ASK) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Disconnected) => return Err(NoAnswer::Ended),
            Err(RecvTimeoutError::Timeout) if interrupted() => return Err(NoAnswer::Interrupted),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
