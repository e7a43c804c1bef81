//! Cuts: a running job is stopped between two rounds, for new members and for snapshots.
//!
//! | a cut | its steps |
//! | --- | --- |
//! | lets all members of a job begin | the hubs above begin, if there are any; hold; release |
//! | lets a newcomer take part | hold; the other hubs hold; the other hubs are released; release |
//! | takes a snapshot | the same, and the cores take the snapshot before a release |
//! | takes a snapshot of this hub alone | hold; the cores take it; release |
//! | is led by hub 0 | hold; wait until hub 0 releases; the cores take a snapshot, if hub 0 says so; release |
//!
//! ```text
//!   hold ----> every core: finish no round, say which are in flight
//!        <---- fronts: chunk a is in round 7, chunk b in round 8: the cut is before round 8
//!   release -> every core: admitted workers take part from round 8 on, and get the weights of round 7:
//!              the chunks that have them are sent now, the rest when they do; likewise a snapshot
//! ```
//!
//! There is one cut at a time, and the next one waits. A hold lasts as long as two messages to each core, and two to each hub.
//! No hold waits for a worker.

mod flow;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pbox_core::Round;
use pbox_core::control::{HoldRequest, ReleaseRequest};

use super::{Effect, Job};
use crate::hubs::StaleCut;

/// The number of a cut at this hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CutId(u64);

/// The reason for a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// These ranks take part from the cut on.
    Admit(Arc<[u32]>),
    /// The cores take a snapshot.
    Snapshot(CutAt),
    /// Hub 0 cuts the job, by this number of its own.
    Follow(u64),
}

/// The place of a cut for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutAt {
    /// At all hubs of the job before the same round: hub 0 leads.
    AllHubs,
    /// At this hub, before its own round. The other hubs are not told.
    ThisHub,
    /// At all hubs of the job, which is about to end. Its workers make no round beyond the cut, because the round would be lost.
    LastRound,
}

/// A step of a cut, which the driver takes. The driver answers each but the snapshot with what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take part at the hubs above.
    BeginAbove,
    /// Have all cores begin with the round of the hubs above.
    BeginBelow(Round),
    /// Hold the job on all cores.
    Hold,
    /// Have the other hubs hold the job.
    HoldOthers(HoldRequest),
    /// Ask all cores how far each worker has come.
    Lines,
    /// Let no chunk go further than this round, or than these lines.
    EndBefore(Round, Arc<[Option<Round>]>),
    /// Have all cores take a snapshot before this round.
    TakeSnapshot(Round),
    /// Have the other hubs release the job.
    ReleaseOthers(ReleaseRequest),
    /// Release the job on all cores.
    Release {
        /// The round that admitted ranks begin with.
        from: Round,
        /// The admitted ranks.
        admitted: Arc<[u32]>,
        /// The rounds that each rank is ahead by.
        ahead: Arc<[u32]>,
    },
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// The hubs above have begun with this round. There may be none.
    Above(Result<Option<Round>, String>),
    /// All cores begin with the round of the hubs above.
    Below,
    /// All cores hold the job. Their chunks have come to this round, if they have chunks.
    Held(Option<Round>),
    /// The other hubs hold the job, with the round that the chunks of each have come to.
    OthersHeld(Result<Vec<Option<Round>>, String>),
    /// Each worker has come to this line.
    Lines(Arc<[Option<Round>]>),
    /// No chunk goes further.
    Ends,
    /// The other hubs have released the job.
    OthersReleased(Result<(), String>),
    /// All cores have released the job.
    Released,
}

/// The reason why a cut is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCut {
    /// There is no state for a snapshot.
    #[error("its state cannot be had: it has no weights yet, because no round is over")]
    NoWeights,
    /// Hub 0 has ended the cut already.
    #[error(transparent)]
    Stale(#[from] StaleCut),
    /// Another hub did not take its part.
    #[error("{0}")]
    Hub(String),
}

/// The reason why hub 0 cannot release a job here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReleased {
    /// The job is not held by the cut.
    #[error(transparent)]
    Stale(#[from] StaleCut),
    /// The cut cannot be where hub 0 says.
    #[error("{0}")]
    Wrong(String),
}

/// The cuts of a job.
#[derive(Debug, Default)]
pub struct Cuts {
    last: u64,
    waiting: VecDeque<(CutId, Purpose)>,
    now: Option<Cut>,
}

/// The cut that is under way.
#[derive(Debug)]
struct Cut {
    id: CutId,
    purpose: Purpose,
    waits_for: WaitsFor,
    /// Whether the job begins with the cut.
    begins: bool,
    /// The round that the furthest chunk has come to.
    front: Option<Round>,
    /// The number by which other hubs hold the job.
    others: Option<u64>,
    /// The cut is before this round, once that is decided.
    before: Round,
    /// At another hub than hub 0: the time of the hold.
    since: Instant,
    /// At another hub than hub 0: the release by hub 0.
    release: Option<ReleaseRequest>,
    /// Why the cut changes nothing.
    failed: Option<NotCut>,
    /// Why another hub may hold the job for ever.
    unreleased: Option<String>,
}

/// The result that a cut waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    Above,
    Below,
    Hold,
    Others,
    /// Hub 0 releases the job.
    Lead,
    Lines,
    End,
    OthersRelease,
    Release,
}

impl Cut {
    /// Whether the cut ends with a snapshot, and whether the job ends there.
    fn snapshot(&self) -> (bool, bool) {
        match (&self.purpose, &self.release) {
            _ if self.failed.is_some() => (false, false),
            (Purpose::Admit(_), _) | (Purpose::Follow(_), None) => (false, false),
            (Purpose::Snapshot(at), _) => (true, *at == CutAt::LastRound),
            (Purpose::Follow(_), Some(release)) => (release.snapshot, release.ends),
        }
    }

    fn waits(&mut self, waits_for: WaitsFor, step: Step) -> Vec<Effect> {
        self.waits_for = waits_for;
        vec![Effect::Cut(self.id, step)]
    }
}

impl Job {
    /// Begins a cut, as soon as the cuts before are over. Returns its number, too.
    pub fn cut(&mut self, purpose: Purpose, now: Instant) -> (CutId, Vec<Effect>) {
        self.cuts.last += 1;
        let id = CutId(self.cuts.last);
        self.cuts.waiting.push_back((id, purpose));
        (id, self.next_cut(now))
    }

    /// Notes that hub 0 releases the job.
    ///
    /// # Errors
    /// When the job is not held by the cut, or the cut cannot be where hub 0 says.
    pub fn released_by_lead(&mut self, request: ReleaseRequest) -> Result<(CutId, Vec<Effect>), NotReleased> {
        let asked = request.cut;
        let follows = |cut: &mut Cut| cut.purpose == Purpose::Follow(asked) && cut.release.is_none();
        let Some(mut cut) = self.cuts.now.take_if(follows) else {
            self.hubs.held.release(asked)?;
            return Err(StaleCut { asked, last: asked }.into());
        };
        let (id, is_held) = (cut.id, cut.waits_for == WaitsFor::Lead);
        // Hub 0 did not wait for the hold, and then asks for nothing more.
        let may = if is_held {
            self.hubs.check_release(&request)
        } else if request.asks_for_nothing() {
            Ok(())
        } else {
            Err(format!("cut {asked} does not hold the job yet"))
        };
        if let Err(why) = may {
            // A wrong request ends nothing, and hub 0 may still send a right one.
            self.cuts.now = Some(cut);
            return Err(NotReleased::Wrong(why));
        }
        self.hubs.held.release(asked)?;
        cut.before = request.from;
        cut.release = Some(request);
        let effects = match is_held {
            true => self.take_snapshot(cut, [].into()),
            false => self.goes_on_with(cut, Vec::new()),
        };
        Ok((id, effects))
    }

    /// Notes what came of a step of a cut. The result of another step than the cut waits for changes nothing.
    pub(super) fn stepped(&mut self, id: CutId, stepped: Stepped, now: Instant) -> Vec<Effect> {
        let Some(mut cut) = self.cuts.now.take_if(|cut| cut.id == id) else { return Vec::new() };
        match (cut.waits_for, stepped) {
            (WaitsFor::Above, Stepped::Above(Err(why))) => self.over(cut, Some(NotCut::Hub(why)), now),
            (WaitsFor::Above, Stepped::Above(Ok(None))) => {
                let effects = cut.waits(WaitsFor::Hold, Step::Hold);
                self.goes_on_with(cut, effects)
            }
            (WaitsFor::Above, Stepped::Above(Ok(Some(first)))) => {
                cut.before = first;
                let effects = cut.waits(WaitsFor::Below, Step::BeginBelow(first));
                self.goes_on_with(cut, effects)
            }
            (WaitsFor::Below, Stepped::Below) => {
                self.first_round = cut.before;
                let effects = cut.waits(WaitsFor::Hold, Step::Hold);
                self.goes_on_with(cut, effects)
            }
            (WaitsFor::Hold, Stepped::Held(front)) => self.held(cut, front, now),
            (WaitsFor::Others, Stepped::OthersHeld(fronts)) => {
                let all = |fronts: Vec<_>| highest(fronts.into_iter().chain([cut.front]));
                match fronts.and_then(all) {
                    Ok(front) => {
                        cut.front = front;
                        self.held_everywhere(cut)
                    }
                    Err(why) => {
                        // The hub that did not answer may hold the job all the same, and is released with the rest.
                        (cut.failed, cut.before) = (Some(NotCut::Hub(why)), cut.front.unwrap_or_default());
                        self.release(cut)
                    }
                }
            }
            (WaitsFor::Lines, Stepped::Lines(lines)) => self.take_snapshot(cut, lines),
            (WaitsFor::End, Stepped::Ends) => self.end_with_snapshot(cut),
            (WaitsFor::OthersRelease, Stepped::OthersReleased(released)) => {
                // A hub that did not hold may not answer now either.
                cut.unreleased = released.err().filter(|_| !matches!(cut.failed, Some(NotCut::Hub(_))));
                self.release_here(cut)
            }
            (WaitsFor::Release, Stepped::Released) => {
                let failed = cut.failed.take();
                self.over(cut, failed, now)
            }
            _ => self.goes_on_with(cut, Vec::new()),
        }
    }

    /// Ends all cuts of a job that has failed. The other hubs that hold the job for one are released.
    pub(super) fn end_cuts(&mut self) -> Vec<Effect> {
        let Cuts { waiting, now, .. } = &mut self.cuts;
        waiting.clear();
        let Some(mut cut) = now.take() else { return Vec::new() };
        let are_held =
            cut.others.is_some() && !matches!(cut.waits_for, WaitsFor::OthersRelease | WaitsFor::Release);
        if !are_held {
            return Vec::new();
        }
        cut.before = cut.front.unwrap_or_default();
        cut.failed = Some(NotCut::Hub("the job ended meanwhile".into()));
        Vec::from_iter(
            self.release_of_others(&cut).map(|request| Effect::Cut(cut.id, Step::ReleaseOthers(request))),
        )
    }

    /// Returns for how long hub 0 holds the job beyond the time in which it ends each cut.
    pub(super) fn held_too_long(&self, limit: Duration, now: Instant) -> Option<Effect> {
        let cut = self.cuts.now.as_ref().filter(|cut| cut.waits_for == WaitsFor::Lead)?;
        // Hub 0 asks all hubs to hold and then to release, and waits for each answer at most this long.
        let limit = 3 * limit;
        (now - cut.since > limit).then_some(Effect::HeldTooLong(limit))
    }
}

/// Returns the highest round of the chunks of all hubs.
fn highest(fronts: impl Iterator<Item = Option<Round>> + Clone) -> Result<Option<Round>, String> {
    let (lowest, highest) = (fronts.clone().flatten().min(), fronts.flatten().max());
    match lowest.zip(highest) {
        Some((lowest, highest)) if !highest.is_near(lowest) => Err(format!(
            "one hub's chunks are in round {}, another's in round {}: those of all hubs are at most {} rounds apart",
            lowest.0,
            highest.0,
            Round::APART
        )),
        _ => Ok(highest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hubs_whose_chunks_are_far_apart_are_not_believed() {
        let highest = |fronts: &[Option<u32>]| highest(fronts.iter().map(|front| front.map(Round)));
        assert_eq!(highest(&[Some(7), None, Some(8)]), Ok(Some(Round(8))));
        assert_eq!(highest(&[None]), Ok(None));
        assert!(highest(&[Some(7), Some(72)]).unwrap_err().contains("round 7, another's in round 72"));
    }
}
