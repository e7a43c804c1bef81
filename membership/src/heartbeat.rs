//! The heartbeat: one thread for each hub of a member, which keeps a request open there. The request says that this
//! member lives. Its reply brings news, and wakes the member's port, so that nobody sleeps through them.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use pbox_core::control::{HeartbeatReply, HeartbeatRequest, JobState};

use crate::control::Control;
use crate::error::MemberError;

/// The pause before a request that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// What is known of the job.
#[derive(Debug)]
pub(crate) struct News {
    /// The last reply of the hub.
    pub reply: HeartbeatReply,
    /// The hub does not reply any more; what was seen last.
    pub lost: Option<String>,
}

#[derive(Debug)]
struct Shared {
    news: Mutex<News>,
    changed: Condvar,
}

/// The member's end of the heartbeat thread.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
    /// Dropped to stop the thread.
    _stop: Sender<()>,
}

impl Heartbeat {
    /// Starts the thread. `limit` is how long the hub may be silent.
    pub fn start(control: Control, token: String, limit: Duration, waker: Waker) -> std::io::Result<Self> {
        let state = JobState::Gathering { missing: Vec::new(), machines: Vec::new() };
        let reply = HeartbeatReply { version: 0, state, members: Vec::new(), left: Vec::new() };
        let news = News { reply, lost: None };
        let shared = Arc::new(Shared { news: Mutex::new(news), changed: Condvar::new() });
        let (stop, stopped) = channel();
        let thread_shared = Arc::clone(&shared);
        std::thread::Builder::new().name("phub-heartbeat".into()).spawn(move || {
            let mut seen = 0;
            let mut heard = Instant::now();
            let mut failures = 0u32;
            loop {
                let request = HeartbeatRequest { token: token.clone(), seen };
                let reply: Result<HeartbeatReply, _> =
                    control.post("heartbeat", "hear a heartbeat", &request);
                let pause = match reply {
                    Ok(reply) => {
                        (heard, failures) = (Instant::now(), 0);
                        let failed = matches!(reply.state, JobState::Failed { .. });
                        if reply.version != seen {
                            seen = reply.version;
                            thread_shared.publish(&waker, |news| news.reply = reply);
                        }
                        if failed {
                            // There will be no other news, and a hub that stops does not wait for this thread.
                            return;
                        }
                        Duration::ZERO
                    }
                    // The hub lives and does not know this member any more: the membership is over.
                    Err(error @ (MemberError::Refused { .. } | MemberError::Nonsense { .. })) => {
                        return thread_shared.publish(&waker, |news| news.lost = Some(error.to_string()));
                    }
                    // This process may itself have been stopped for so long: it asks once more before it blames the hub.
                    Err(error) if failures > 0 && heard.elapsed() > limit => {
                        return thread_shared.publish(&waker, |news| news.lost = Some(error.to_string()));
                    }
                    Err(_) => {
                        failures = failures.saturating_add(1);
                        RETRY
                    }
                };
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
            }
        })?;
        Ok(Heartbeat { shared, _stop: stop })
    }

    /// What is known now.
    pub fn news(&self) -> MutexGuard<'_, News> {
        self.shared.lock()
    }

    /// Waits until `find` finds something in the news, at most until `deadline`.
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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn publish(&self, waker: &Waker, change: impl FnOnce(&mut News)) {
        change(&mut self.lock());
        self.changed.notify_all();
        waker.wake_by_ref();
    }
}
