//! The heartbeat. For each hub of a member, one thread keeps a request open. The request proves that the member is alive.
//! The reply brings news, and wakes the member's port if the port sleeps.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use pbox_core::control::{HeartbeatReply, HeartbeatRequest, JobState, Latest};

use crate::control::Control;
use crate::error::MemberError;
use crate::failure::{Cause, Failure, RETRY};

/// The delay beyond a request's timeout after which this process counts as suspended.
const STOOD_STILL: Duration = Duration::from_secs(1);

/// The last answer of one hub to a heartbeat, or the loss of the hub.
#[derive(Debug)]
pub(crate) struct News {
    /// The last reply of the hub.
    pub reply: HeartbeatReply,
    /// The last error, if the hub is lost.
    pub lost: Option<String>,
}

#[derive(Debug)]
struct Shared {
    news: Mutex<News>,
    changed: Condvar,
    /// The worker that delays this member's rounds, if the member is a hub. The next requests report this worker.
    latest: Mutex<Option<Latest>>,
    /// The waker of the member's port, once the member has a port. Every change of the news wakes the port.
    waker: Mutex<Option<Waker>>,
}

/// The member's end of the heartbeat's thread. The thread ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
    /// A sender that stops the thread when it is dropped.
    _stop: Sender<()>,
}

/// The state of the heartbeat's thread.
struct Beat {
    control: Control,
    token: String,
    /// The time for which the hub tolerates a member's silence.
    limit: Duration,
    /// The `version` of the last reply.
    seen: u64,
    /// The time of the hub's last reply.
    last_reply: Instant,
    /// The number of requests since the last reply.
    tries: u32,
    shared: Arc<Shared>,
}

impl Heartbeat {
    /// Starts the thread for a member with this token. `limit` is the time for which the hub tolerates silence.
    pub fn start(control: &Control, token: &str, limit: Duration) -> std::io::Result<Self> {
        let state = JobState::Gathering { missing: Vec::new(), machines: Vec::new() };
        let reply = HeartbeatReply {
            version: 0,
            state,
            members: Vec::new(),
            left: Vec::new(),
            held_up_by: Vec::new(),
            reached: None,
            lost: 0,
            refused: None,
        };
        let news = Mutex::new(News { reply, lost: None });
        let (changed, latest, waker) = (Condvar::new(), Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared { news, changed, latest, waker });
        let (stop, stopped) = channel();
        let mut beat = Beat {
            // The hub holds a heartbeat for a third of the limit. If no reply has come after two thirds, there is still
            // time for a retry.
            control: control.within(limit * 2 / 3),
            token: token.to_owned(),
            limit,
            seen: 0,
            last_reply: Instant::now(),
            tries: 0,
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new().name("phub-heartbeat".into()).spawn(move || {
            while let Some(pause) = beat.ask() {
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
            }
        })?;
        Ok(Heartbeat { shared, _stop: stop })
    }

    /// Sets the waker of the member's port. Every later change of the news wakes the port.
    pub fn wake(&self, waker: Waker) {
        waker.wake_by_ref(); // there may be news
        *self.shared.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Sets the worker that delays this member's rounds. The next requests report this worker to the hub.
    pub fn say_latest(&self, latest: Option<Latest>) {
        *self.shared.latest.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = latest;
    }

    /// Returns the latest news.
    pub fn news(&self) -> MutexGuard<'_, News> {
        self.shared.lock()
    }

    /// Waits until `find` returns something for the news, at most until `deadline`.
    pub fn wait_for<T>(&self, deadline: Instant, find: impl Fn(&News) -> Option<T>) -> Option<T> {
        let mut news = self.shared.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let found = find(&news);
            if found.is_some() || left.is_zero() {
                return found;
            }
            news = self.shared.changed.wait_timeout(news, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}

impl Beat {
    /// Makes one request. Returns the pause before the next request; `None` if there will be no more news.
    fn ask(&mut self) -> Option<Duration> {
        let latest = self.shared.latest.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let (asked, request) =
            (Instant::now(), HeartbeatRequest { token: self.token.clone(), seen: self.seen, latest });
        self.tries = self.tries.saturating_add(1);
        match self.control.post("heartbeat", "hear a heartbeat", &request) {
            Ok(reply) => {
                (self.last_reply, self.tries) = (Instant::now(), 0);
                self.take(reply)
            }
            // Only a refusal by the hub itself ends the membership at once. An error page of a proxy or a missing
            // answer does not end it.
            Err(Failure { cause: Cause::Refused | Cause::Gone, error }) => self.lost(error),
            // This process itself was suspended, so the hub may have answered. The hub's silence is measured from now on.
            Err(_) if asked.elapsed() > self.control.timeout + STOOD_STILL => {
                self.last_reply = Instant::now();
                Some(RETRY)
            }
            // A hub may have been suspended for up to `limit`, and then answers. So the hub counts as lost only after twice
            // this time.
            Err(failure) if self.tries > 1 && self.last_reply.elapsed() > 2 * self.limit => {
                self.lost(failure.error)
            }
            Err(_) => Some(RETRY),
        }
    }

    fn take(&mut self, reply: HeartbeatReply) -> Option<Duration> {
        let failed = matches!(reply.state, JobState::Failed { .. });
        if reply.version != self.seen {
            self.seen = reply.version;
            for late in &reply.held_up_by {
                tracing::warn!(job = self.control.job, hub = self.control.hub, "{late}");
            }
            self.shared.publish(|news| news.reply = reply);
        } else {
            self.shared.lock().reply = reply; // only the times of late members have changed: nobody is woken
        }
        // If the job has failed, this thread makes no next request. A hub that stops then has no request to wait for.
        (!failed).then_some(Duration::ZERO)
    }

    fn lost(&self, error: MemberError) -> Option<Duration> {
        let error = error.after(self.tries, self.last_reply.elapsed());
        self.shared.publish(|news| news.lost = Some(error.to_string()));
        None
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn publish(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.lock());
        self.changed.notify_all();
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }
}
