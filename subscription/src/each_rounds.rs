//! The rounds of a job before which a reader wants versions of the weights: the multiples of a number.
//!
//! A hub makes one copy of the state at a time. While a reader waits for a future round, the next copy is reserved for
//! this reader, and other readers wait. So a publisher asks for the weights before a round only when the job is near
//! this round.

use std::fmt;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use pbox_core::Round;

/// The time within which the job must be expected to reach a wanted round, before a hub is asked for this round. The
/// reader's view is coarse, because a hub looks at its jobs' rounds only every few seconds.
const NEAR: Duration = Duration::from_secs(4);

/// The highest value of [`EachRounds::lead`]: half of the distance (1024 rounds) for which a hub accepts a request.
const MOST_AHEAD: u32 = 512;

/// The multiples of a number of rounds, and the progress of the job towards the next multiple.
#[derive(Debug)]
pub struct EachRounds {
    each: NonZeroU32,
    /// The lowest round that is wanted.
    from: Round,
    /// The next multiple for the reader. For each earlier multiple, the reader has got the weights, or was notified
    /// that the multiple has passed. `None` before the job is seen.
    due: Option<Round>,
    /// The round in which a hub has last seen the job.
    seen: Option<Round>,
    /// The furthest known round of the job, and the time at which the reader learned it.
    known: Option<(Round, Instant)>,
    /// The round of the job some seconds earlier, and the time at which the reader learned it. The speed is measured
    /// from this round on.
    former: Option<(Round, Instant)>,
    /// The speed of the job, in rounds per second.
    pace: f64,
    /// The minimum distance from the job's round to the next wanted round, after the job has passed a wanted round. The
    /// distance doubles each time the job passes such a round.
    lead: u32,
}

/// Multiples that have passed or are too near. The reader does not get the weights before these rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The first multiple.
    pub first: Round,
    /// The last multiple.
    pub last: Round,
    /// The round that the job has reached.
    pub front: Round,
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Passed { first, last, front } = self;
        write!(f, "round {} has passed: the job is in round {}", first.0, front.0)?;
        if first == last {
            return Ok(());
        }
        write!(f, "; rounds {} to {} get no version", first.0, last.0)
    }
}

/// The next thing to do for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask for the weights before this round, which is near.
    Ask(Round),
    /// Call again later: this round is not near.
    Later(Round),
    /// Report the multiples that have passed since the last call, and call again.
    Passed(Passed),
}

impl EachRounds {
    /// Creates the multiples of `each`.
    pub fn new(each: NonZeroU32) -> Self {
        let (from, lead) = (Round(0), 2);
        EachRounds { each, from, due: None, seen: None, known: None, former: None, pace: 0.0, lead }
    }

    /// Returns the next thing to do. `seen` is the round in which the hub has last seen the job. If `seen` is `None`,
    /// returns a request at once: the hub's answer then says that the job is missing.
    pub(crate) fn next(&mut self, seen: Option<Round>, now: Instant) -> Next {
        let Some(seen) = seen else { return Next::Ask(self.multiple(self.from)) };
        if self.seen.is_some_and(|former| seen < former) {
            // A new job has begun under the same name, before the reader saw that the former job had ended.
            self.forget();
        }
        self.seen = Some(seen);
        self.note_seen(seen, now);
        let before = self.multiple(self.from.max(seen));
        let (known, since) = self.known.unwrap_or((seen, now));
        if let Some(passed) = self.move_to(before, known) {
            return Next::Passed(passed);
        }
        let passed = now.duration_since(since).as_secs_f64() + NEAR.as_secs_f64();
        match f64::from(known.0) + 1.0 + self.pace * passed >= f64::from(before.0) {
            true => Next::Ask(before),
            false => Next::Later(before),
        }
    }

    /// Makes `before` the next multiple for the reader. Returns the multiples before it that the reader does not get.
    fn move_to(&mut self, before: Round, front: Round) -> Option<Passed> {
        let first = self.due.replace(before).filter(|due| *due < before)?;
        Some(Passed { first, last: Round(before.0 - self.each.get()), front })
    }

    /// Notes that the weights before a wanted round have arrived.
    pub(crate) fn note_arrived(&mut self, before: Round, now: Instant) {
        self.note_seen(before, now);
        self.from = Round(before.0.saturating_add(1));
        self.due = Some(self.multiple(self.from));
    }

    /// Notes the hub's answer that the job has passed the wanted round `before`. Returns the multiples that the reader
    /// does not get.
    pub(crate) fn note_passed(&mut self, before: Round, front: Round, now: Instant) -> Passed {
        self.note_seen(front, now);
        self.lead = (2 * self.lead).min(MOST_AHEAD);
        self.from = Round(front.0.saturating_add(self.lead));
        self.due = Some(before);
        let alone = Passed { first: before, last: before, front };
        self.move_to(self.multiple(self.from), front).unwrap_or(alone)
    }

    /// Forgets the job's progress, because a job that returns may be in an earlier round. The next multiple is kept: if
    /// the job returns in a later round, the multiples in between have passed.
    pub(crate) fn forget(&mut self) {
        *self = EachRounds { due: self.due, ..EachRounds::new(self.each) };
    }

    fn note_seen(&mut self, round: Round, now: Instant) {
        if self.known.is_some_and(|(known, _)| round <= known) {
            return;
        }
        self.known = Some((round, now));
        let (former, since) = *self.former.get_or_insert((round, now));
        let passed = now.duration_since(since);
        if passed >= NEAR {
            self.pace = f64::from(round.0 - former.0) / passed.as_secs_f64();
            self.former = self.known;
        }
    }

    /// Returns the first multiple that is at least `round`, and not 0: before round 0 there are no weights.
    fn multiple(&self, round: Round) -> Round {
        let each = self.each.get();
        Round(round.0.max(1).div_ceil(each).saturating_mul(each))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(rounds: u32) -> EachRounds {
        EachRounds::new(NonZeroU32::new(rounds).unwrap())
    }

    #[test]
    fn multiples_begin_after_the_broadcast_and_end_with_the_rounds() {
        let of = |rounds, round| each(rounds).multiple(Round(round)).0;
        assert_eq!([0, 1, 10, 11, 20].map(|round| of(10, round)), [10, 10, 10, 20, 20]);
        assert_eq!([of(1, 0), of(1, 7), of(u32::MAX, 1), of(7, u32::MAX)], [1, 7, u32::MAX, u32::MAX]);
    }

    #[test]
    fn a_hub_is_asked_when_the_job_is_near() {
        let (mut rounds, begun) = (each(100), Instant::now());
        let sees = |rounds: &mut EachRounds, round, seconds| match rounds
            .next(Some(Round(round)), begun + Duration::from_secs(seconds))
        {
            Next::Ask(before) => (before.0, true),
            Next::Later(before) => (before.0, false),
            Next::Passed(passed) => panic!("{passed}"),
        };
        assert_eq!(sees(&mut rounds, 0, 0), (100, false), "its pace is not known");
        assert_eq!(sees(&mut rounds, 20, 10), (100, false), "two rounds a second");
        assert_eq!(sees(&mut rounds, 20, 20), (100, false), "the hub has not looked again");
        assert_eq!(sees(&mut rounds, 20, 46), (100, true));
        rounds.note_arrived(Round(100), begun + Duration::from_secs(50));
        assert_eq!(sees(&mut rounds, 98, 50), (200, false), "the hub's look was before");
        rounds.note_passed(Round(200), Round(305), begun);
        assert_eq!(sees(&mut rounds, 98, 50).0, 400);
        for (before, front, next) in [(400, 397, 500), (500, 494, 600), (500, 560, 600), (600, 597, 700)] {
            rounds.note_passed(Round(before), Round(front), begun);
            assert_eq!(sees(&mut rounds, front, 50).0, next, "far enough ahead of round {front}");
        }
        rounds.forget();
        assert_eq!(sees(&mut rounds, 99, 60), (100, true), "the job is back, in an earlier round");
        rounds.forget();
        assert_eq!(rounds.next(None, begun), Next::Ask(Round(100)), "the hub says that it has no such job");
        rounds.note_arrived(Round(400), begun);
        assert_eq!(sees(&mut rounds, 450, 70).0, 500);
        rounds.note_arrived(Round(500), begun);
        assert_eq!(sees(&mut rounds, 450, 70).0, 600);
        assert_eq!(sees(&mut rounds, 8, 71), (100, false), "a new job has begun under the same name");
    }

    #[test]
    fn multiples_that_a_fast_job_passes_between_two_looks_are_named_once() {
        let (mut rounds, begun) = (each(100), Instant::now());
        let next = |rounds: &mut EachRounds, round| rounds.next(Some(Round(round)), begun);
        let passed =
            |first, last, front| Passed { first: Round(first), last: Round(last), front: Round(front) };
        assert_eq!(next(&mut rounds, 130), Next::Later(Round(200)), "the reader begins in round 130");
        assert_eq!(next(&mut rounds, 450), Next::Passed(passed(200, 400, 450)));
        assert_eq!(next(&mut rounds, 450), Next::Later(Round(500)), "named once");
        assert_eq!(next(&mut rounds, 550), Next::Passed(passed(500, 500, 550)));
        rounds.note_arrived(Round(600), begun);
        assert_eq!(next(&mut rounds, 699), Next::Ask(Round(700)));
        assert_eq!(
            rounds.note_passed(Round(700), Round(797), begun),
            passed(700, 800, 797),
            "round 800 is too near"
        );
        assert_eq!(next(&mut rounds, 797), Next::Later(Round(900)));
        rounds.forget();
        assert_eq!(next(&mut rounds, 1010), Next::Passed(passed(900, 1000, 1010)), "the hub was away");
        rounds.forget();
        assert_eq!(next(&mut rounds, 310), Next::Later(Round(400)), "the job is back, in an earlier round");
        let words = [passed(200, 200, 201), passed(200, 400, 450)].map(|passed| passed.to_string());
        assert_eq!(
            words,
            [
                "round 200 has passed: the job is in round 201",
                "round 200 has passed: the job is in round 450; rounds 200 to 400 get no version"
            ]
        );
    }
}
