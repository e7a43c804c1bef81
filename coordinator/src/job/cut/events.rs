//! The events of a cut: somebody asks for it, a step is done, hub 0 releases the job, the job fails, time passes.

use std::time::{Duration, Instant};

use pbox_core::Round;
use pbox_core::control::ReleaseRequest;

use super::{Cut, CutId, Cuts, NotCut, NotReleased, Purpose, Step, Stepped, WaitsFor};
use crate::hubs::StaleCut;
use crate::job::{Effect, Job};

impl Job {
    /// Begins a cut, as soon as the cuts before are over. Returns its number, too.
    pub(crate) fn cut(&mut self, purpose: Purpose, now: Instant) -> (CutId, Vec<Effect>) {
        self.cuts.last += 1;
        let id = CutId(self.cuts.last);
        self.cuts.waiting.push_back((id, purpose));
        (id, self.next_cut(now))
    }

    /// Notes that hub 0 releases the job.
    ///
    /// # Errors
    /// When the job is not held by the cut, or the cut cannot be where hub 0 says.
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
    pub(crate) fn stepped(&mut self, id: CutId, stepped: Stepped, now: Instant) -> Vec<Effect> {
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
    pub(crate) fn end_cuts(&mut self) -> Vec<Effect> {
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

    /// Returns what follows when hub 0 holds the job for longer than any cut takes.
    pub(crate) fn held_too_long(&self, limit: Duration, now: Instant) -> Option<Effect> {
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
