//! Recent refusals, and the clients that were refused: for people who ask why a worker does not join. Memory
//! and log are bounded, because anybody can cause a refusal.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pbox_core::control::RefusalReply;

use crate::log_limiter::LogLimiter;
use coordinator::Asker;

/// The number of refusals that are kept. Equal refusals count once.
const KEPT: usize = 16;
/// The number of letters that are kept of a reason. [`JOB_LETTERS`] is the number for a job's name.
const WHY_LETTERS: usize = 300;
const JOB_LETTERS: usize = 100;

/// The refusals of a hub.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// The refusals that are kept, the newest first.
    kept: Mutex<VecDeque<Refused>>,
    said: LogLimiter,
}

#[derive(Debug)]
struct Refused {
    at: Instant,
    times: u64,
    who: Option<Asker>,
    job: Option<String>,
    why: String,
}

impl Refusals {
    /// Adds a refusal. The log reports refusals from time to time.
    pub fn add(&self, who: Option<&Asker>, job: Option<&str>, why: &str) {
        let who = who.cloned();
        let (job, why) = (job.map(|job| cut(job, JOB_LETTERS)), cut(why, WHY_LETTERS));
        if let Some(times) = self.said.count() {
            let from = who.as_ref().map_or_else(|| "nowhere".to_owned(), Asker::to_string);
            tracing::warn!(from, job, times, why, "refused");
        }
        let mut kept = self.lock();
        let is_same = |one: &Refused| one.who == who && one.job == job && one.why == why;
        let before = kept.iter().position(is_same).and_then(|at| kept.remove(at)).map_or(0, |one| one.times);
        kept.push_front(Refused { at: Instant::now(), times: before + 1, who, job, why });
        kept.truncate(KEPT);
    }

    /// Returns the refusals that a client may see: all kept refusals, or only the refusals of jobs that `sees` allows.
    pub fn replies(&self, sees: impl Fn(Option<&str>) -> bool) -> Vec<RefusalReply> {
        let kept = self.lock();
        let seen = kept.iter().filter(|one| sees(one.job.as_deref()));
        let reply = |one: &Refused| RefusalReply {
            ago_s: one.at.elapsed().as_secs(),
            times: one.times,
            address: one.who.as_ref().map(|who| who.address.to_string()),
            host: one.who.as_ref().and_then(|who| who.host.as_deref().map(str::to_owned)),
            job: one.job.clone(),
            why: one.why.clone(),
        };
        seen.map(reply).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Refused>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the first letters of a text.
fn cut(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn a_flood_is_bounded_and_the_same_counts_once() {
        let refusals = Refusals::default();
        let who = |last: u8| {
            let address = IpAddr::from([10, 0, 0, last]);
            Asker { counted: address, address, host: None }
        };
        for _ in 0..1000 {
            refusals.add(Some(&who(1)), Some("job"), "rank 0 is taken");
        }
        let seen = refusals.replies(|_| true);
        assert_eq!((seen.len(), seen[0].times, seen[0].address.as_deref()), (1, 1000, Some("10.0.0.1")));
        for last in 0..=255 {
            refusals.add(Some(&who(last)), None, &"x".repeat(10_000));
        }
        let seen = refusals.replies(|_| true);
        assert_eq!(seen.len(), KEPT);
        assert_eq!(seen[0].address.as_deref(), Some("10.0.0.255"), "the newest first");
        assert!(seen[0].why.len() < WHY_LETTERS + 10);
        assert_eq!(
            refusals.replies(|job| job.is_some()).len(),
            0,
            "what names no job is for those who see all"
        );
    }
}
