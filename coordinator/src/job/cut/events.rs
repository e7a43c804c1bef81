//! The events of a cut: its request, the results of its steps, its release by hub 0, and a timeout. A cut is a pause between
//! two rounds.

use std::time::{Duration, Instant};

use pbox_core::Round;
use pbox_core::control::ReleaseRequest;

use super::flow::Moved;
use super::{Cut, CutId, Cuts, NotCut, NotReleased, Purpose, Step, Stepped, WaitsFor};
use crate::hubs::StaleCut;
use crate::job::{Effect, Job};

impl Job {
    /// Begins a cut, or lets it wait for earlier cuts. Also returns the cut's number.
    pub(crate) fn cut(&mut self, purpose: Purpose, now: Instant) -> (CutId, Vec<Effect>) {
        self.cuts.last += 1;
        let id = CutId(self.cuts.last);
        self.cuts.waiting.push_back((id, purpose));
        (id, self.cuts.next((&self.spec, &self.life), &mut self.hubs, now))
    }

    /// Notes that hub 0 releases the job.
    ///
    /// # Errors
    /// Returns an error if the cut is not in progress, or if hub 0's round for the cut is impossible.
    pub(crate) fn released_by_lead(
        &mut self,
        request: ReleaseRequest,
    ) -> Result<(CutId, Vec<Effect>), NotReleased> {
        let asked = request.cut;
        let follows = |cut: &mut Cut| cut.purpose == Purpose::Follow(asked) && cut.release.is_none();
        let Some(mut cut) = self.cuts.now.take_if(follows) else {
            self.hubs.held.release(asked)?;
            return Err(StaleCut { asked, last: asked }.into());
        };
        let (id, is_held) = (cut.id, cut.waits_for == WaitsFor::Lead);
        // The release may arrive before this hub has paused the job. Such a release must ask for no snapshot, no end and no
        // new worker.
        let may = if is_held {
            self.hubs.check_release(&request)
        } else if request.asks_for_nothing() {
            Ok(())
        } else {
            Err(format!("cut {asked} has not stopped the job's rounds yet"))
        };
        if let Err(why) = may {
            // A wrong release does not end the cut: hub 0 may still send a valid release.
            self.cuts.now = Some(cut);
            return Err(NotReleased::Wrong(why));
        }
        self.hubs.held.release(asked)?;
        cut.before = request.from;
        cut.release = Some(request);
        let cut = Moved { job: self, cut };
        let effects = match is_held {
            true => cut.take_snapshot([].into()),
            false => cut.stays(),
        };
        Ok((id, effects))
    }

    /// Notes the result of a step of a cut. Ignores a result for which the cut does not wait.
    pub(crate) fn stepped(&mut self, id: CutId, stepped: Stepped, now: Instant) -> Vec<Effect> {
        let Some(cut) = self.cuts.now.take_if(|cut| cut.id == id) else { return Vec::new() };
        let mut moved = Moved { job: self, cut };
        let cut = &mut moved.cut;
        match (cut.waits_for, stepped) {
            (WaitsFor::Above, Stepped::Above(Err(why))) => moved.over(Some(NotCut::Hub(why)), now),
            (WaitsFor::Above, Stepped::Above(Ok(None))) => moved.waits(WaitsFor::Hold, Step::Hold),
            (WaitsFor::Above, Stepped::Above(Ok(Some(first)))) => {
                cut.before = first;
                moved.waits(WaitsFor::Below, Step::BeginBelow(first))
            }
            (WaitsFor::Below, Stepped::Below) => {
                moved.job.first_round = cut.before;
                moved.waits(WaitsFor::Hold, Step::Hold)
            }
            (WaitsFor::Hold, Stepped::Held(front)) => moved.held(front, now),
            (WaitsFor::Others, Stepped::OthersHeld(fronts)) => {
                let all = |fronts: Vec<_>| highest(fronts.into_iter().chain([cut.front]));
                match fronts.and_then(all) {
                    Ok(front) => {
                        cut.front = front;
                        moved.held_everywhere()
                    }
                    Err(why) => {
                        // A hub that did not answer may have paused the job. So the release is sent to that hub, too.
                        (cut.failed, cut.before) = (Some(NotCut::Hub(why)), cut.front.unwrap_or_default());
                        moved.release()
                    }
                }
            }
            (WaitsFor::Lines, Stepped::Lines(lines)) => moved.take_snapshot(lines),
            (WaitsFor::End, Stepped::Ends) => moved.end_with_snapshot(),
            (WaitsFor::OthersRelease, Stepped::OthersReleased(released)) => {
                // A hub that did not answer the request to pause perhaps does not answer the release either. In this case,
                // the missing answer to the release does not fail the job.
                cut.unreleased = released.err().filter(|_| !matches!(cut.failed, Some(NotCut::Hub(_))));
                moved.release_here()
            }
            (WaitsFor::Release, Stepped::Released) => {
                let failed = cut.failed.take();
                moved.over(failed, now)
            }
            _ => moved.stays(),
        }
    }
}

impl Cuts {
    /// Returns an effect if hub 0 has kept the job paused for longer than a cut can take.
    pub(in crate::job) fn held_too_long(&self, limit: Duration, now: Instant) -> Option<Effect> {
        let cut = self.now.as_ref().filter(|cut| cut.waits_for == WaitsFor::Lead)?;
        // In a cut, hub 0 asks all hubs to pause and later to release. Hub 0 waits for each answer at most `limit`.
        let limit = 3 * limit;
        (now - cut.since > limit).then_some(Effect::HeldTooLong(limit))
    }

    /// Restarts the timeout of the wait for hub 0's release, because this hub itself was suspended.
    pub(crate) fn stood_still(&mut self, now: Instant) {
        self.now.iter_mut().for_each(|cut| cut.since = now);
    }
}

/// Returns the highest round of the chunks of all hubs. Fails if the hubs' rounds are too far apart.
fn highest(fronts: impl Iterator<Item = Option<Round>> + Clone) -> Result<Option<Round>, String> {
    let (lowest, highest) = (fronts.clone().flatten().min(), fronts.flatten().max());
    match lowest.zip(highest) {
        Some((lowest, highest)) if !highest.is_near(lowest) => Err(format!(
            "the chunks of one hub are in round {}, and the chunks of another hub are in round {}: the \
             chunks of all hubs must be at most {} rounds apart",
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
        assert!(
            highest(&[Some(7), Some(72)])
                .unwrap_err()
                .contains("in round 7, and the chunks of another hub are in round 72")
        );
    }
}
