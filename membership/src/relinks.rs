//! Links of a member that are lost while the hubs live, as with a NIC: when others are made, and when the member gives up. The
//! same for a worker and for a hub below others.
//!
//! ```text
//!   lost --> made --> answers come, or the links hold: all is well
//!    ^ |       +----> lost again, and no answer for `limit` --> gives up
//!    | v
//!    +-- not made: tries again after PAUSE, for `limit` --> gives up
//! ```
//!
//! Without I/O: time comes in.

use std::time::{Duration, Instant};

use crate::data_path::Way;

/// The pause before the next try: nothing tells when a path is open, or when a program listens.
pub const PAUSE: Duration = Duration::from_millis(100);

/// Why a try failed.
#[derive(Debug)]
pub enum Again<E> {
    /// Another try may succeed.
    Later(E),
    /// None will.
    Never(E),
}

impl<E> From<E> for Again<E> {
    fn from(error: E) -> Self {
        Again::Later(error)
    }
}

/// The links of a member that were lost, and made again. Each `limit` is how long the member tries, and for how long its links
/// may bring no answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relinks {
    times: u32,
    /// Since when there are no links.
    lost: Option<Instant>,
    /// The time at which links were made last.
    made: Option<Instant>,
    /// Since when no answer has come that was awaited, and what had come before.
    in_vain: Option<(Instant, u64)>,
}

impl Relinks {
    /// How often links were made again.
    pub fn times(&self) -> u32 {
        self.times
    }

    /// Notes that the links are lost, also after a try that failed. `came` counts everything that they brought, and the links before
    /// them; `is_awaited` says whether an answer is missing.
    pub fn lost(&mut self, now: Instant, came: u64, is_awaited: bool, limit: Duration) {
        self.lost.get_or_insert(now);
        let held = self.made.take().is_some_and(|made| now.saturating_duration_since(made) >= limit);
        if held || !is_awaited || self.in_vain.is_none_or(|(_, before)| came > before) {
            self.in_vain = is_awaited.then_some((now, came));
        }
    }

    /// Notes that links are there again.
    pub fn made(&mut self, now: Instant) {
        (self.times, self.lost, self.made) = (self.times + 1, None, Some(now));
    }

    /// Forgets the loss of links to a hub that was lost itself, and came back: the links to it are new.
    pub fn forget(&mut self) {
        *self = Relinks { times: self.times, ..Relinks::default() };
    }

    /// Checks that another try makes sense.
    ///
    /// # Errors
    /// When links could not be made for the limit, or were lost again and again in it without any answer, in words.
    pub fn may_try(&self, now: Instant, limit: Duration) -> Result<(), String> {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= limit;
        let seconds = limit.as_secs_f64();
        match (self.lost, self.in_vain) {
            (Some(since), _) if is_over(since) => Err(format!("not within {seconds} s")),
            (_, Some((since, _))) if is_over(since) => {
                Err(format!("those before have brought no answer for {seconds} s"))
            }
            _ => Ok(()),
        }
    }
}

/// Says in the log that a member's links are made again, to each of these hubs.
pub fn say_made<'a>(job: &str, hubs: impl IntoIterator<Item = &'a str>, ways: &[Way], lost: &str) {
    for (hub, way) in hubs.into_iter().zip(ways) {
        let Way { transport, reason, .. } = way;
        let paths = way.spoken_paths();
        tracing::warn!(job, hub, %transport, paths, "{lost}; the links are made again: {reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Links, and a clock that counts seconds.
    fn links() -> (Relinks, impl Fn(u64) -> Instant) {
        let begun = Instant::now();
        (Relinks::default(), move |seconds| begun + Duration::from_secs(seconds))
    }

    #[test]
    fn links_that_cannot_be_made_are_tried_for_the_limit() {
        let (mut links, at) = links();
        for second in 0..60 {
            links.lost(at(second), 10, false, LIMIT);
            assert_eq!(links.may_try(at(second), LIMIT), Ok(()));
        }
        assert_eq!(links.may_try(at(60), LIMIT), Err("not within 60 s".into()));
        links.made(at(60));
        assert_eq!((links.may_try(at(500), LIMIT), links.times()), (Ok(()), 1));
    }

    #[test]
    fn a_hub_that_came_back_begins_anew() {
        let (mut links, at) = links();
        links.lost(at(0), 10, true, LIMIT);
        links.made(at(1));
        links.lost(at(2), 10, true, LIMIT);
        links.forget(); // the hub is lost, too, and is back a while later
        links.lost(at(500), 10, true, LIMIT);
        assert_eq!((links.may_try(at(501), LIMIT), links.times()), (Ok(()), 1));
    }

    #[test]
    fn links_that_bring_nothing_are_not_made_for_ever() {
        let (mut links, at) = links();
        for second in (0..60).step_by(10) {
            links.lost(at(second), 10, true, LIMIT);
            assert_eq!(links.may_try(at(second), LIMIT), Ok(()), "at {second}");
            links.made(at(second));
        }
        links.lost(at(60), 10, true, LIMIT);
        let why = links.may_try(at(60), LIMIT).unwrap_err();
        assert_eq!(why, "those before have brought no answer for 60 s");
    }

    #[test]
    fn an_answer_begins_anew() {
        let (mut links, at) = links();
        for (second, came) in [(0, 10), (50, 11), (100, 12)] {
            links.lost(at(second), came, true, LIMIT);
            assert_eq!(links.may_try(at(second), LIMIT), Ok(()));
            links.made(at(second));
        }
        assert_eq!(links.times(), 3);
    }

    /// Another worker may be at its evaluation: nobody gets an answer then, and nothing is wrong with links that are there.
    #[test]
    fn links_that_hold_may_wait_for_an_answer() {
        let (mut links, at) = links();
        for second in [0, 61, 122] {
            links.lost(at(second), 10, true, LIMIT);
            assert_eq!(links.may_try(at(second), LIMIT), Ok(()), "at {second}");
            links.made(at(second + 1));
        }
    }

    #[test]
    fn nothing_is_in_vain_while_nothing_is_awaited() {
        let (mut links, at) = links();
        for second in (0..300).step_by(20) {
            links.lost(at(second), 10, false, LIMIT);
            assert_eq!(links.may_try(at(second), LIMIT), Ok(()), "at {second}");
            links.made(at(second));
        }
    }
}
