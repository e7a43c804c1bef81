//! The way of a cut from step to step.
//!
//! ```text
//!   next -> hold -> held here -> held everywhere -> snapshot -> release of other hubs -> release here -> over -> next
//! ```
//!
//! Owned by the job. Every method takes the cut, and gives it back unless the cut is over.

use std::sync::Arc;
use std::time::Instant;

use pbox_core::Round;
use pbox_core::control::{HoldRequest, ReleaseRequest};

use super::{Cut, CutAt, NotCut, Purpose, Step, WaitsFor};
use crate::job::{Blame, Cause, Effect, Job};

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

    pub(super) fn waits(&mut self, waits_for: WaitsFor, step: Step) -> Vec<Effect> {
        self.waits_for = waits_for;
        vec![Effect::Cut(self.id, step)]
    }
}

impl Job {
    pub(super) fn goes_on_with(&mut self, cut: Cut, effects: Vec<Effect>) -> Vec<Effect> {
        self.cuts.now = Some(cut);
        effects
    }

    /// Begins the next cut that waits, if none is under way.
    pub(super) fn next_cut(&mut self, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.cuts.now.is_none()
            && let Some((id, purpose)) = self.cuts.waiting.pop_front()
        {
            if let Purpose::Follow(cut) = purpose
                && let Err(stale) = self.hubs.hold(cut)
            {
                effects.push(Effect::CutOver(id, Err(stale.into())));
                continue;
            }
            let begins = self.gathers() && matches!(purpose, Purpose::Admit(_));
            let (waits_for, step) = match begins && self.spec.made.is_below {
                true => (WaitsFor::Above, Step::BeginAbove),
                false => (WaitsFor::Hold, Step::Hold),
            };
            effects.push(Effect::Cut(id, step));
            self.cuts.now = Some(Cut {
                id,
                purpose,
                waits_for,
                begins,
                front: None,
                others: None,
                before: Round(0),
                since: now,
                release: None,
                failed: None,
                unreleased: None,
            });
        }
        effects
    }

    /// All cores of this hub hold the job.
    pub(super) fn held(&mut self, mut cut: Cut, front: Option<Round>, now: Instant) -> Vec<Effect> {
        cut.front = front;
        match cut.purpose {
            Purpose::Follow(_) => {
                self.hubs.front = front;
                (cut.waits_for, cut.since) = (WaitsFor::Lead, now);
                match cut.release {
                    None => {
                        let held = vec![Effect::CutHeld(cut.id, front)];
                        self.goes_on_with(cut, held)
                    }
                    // Hub 0 waits for the end alone.
                    Some(_) => {
                        cut.before = front.unwrap_or_default();
                        self.release(cut)
                    }
                }
            }
            // All hubs begin with the same round, and no worker pushes before it takes part at all hubs.
            Purpose::Admit(_) if cut.begins => self.held_everywhere(cut),
            Purpose::Snapshot(CutAt::ThisHub) => self.held_everywhere(cut),
            _ if self.hubs.share.is_whole() => self.held_everywhere(cut),
            _ => {
                let (number, secret) = (self.hubs.next_cut(), self.hubs.secret.show());
                cut.others = Some(number);
                let request = HoldRequest { secret, cut: number };
                let effects = cut.waits(WaitsFor::Others, Step::HoldOthers(request));
                self.goes_on_with(cut, effects)
            }
        }
    }

    /// All hubs that the cut is for hold the job.
    pub(super) fn held_everywhere(&mut self, mut cut: Cut) -> Vec<Effect> {
        match cut.purpose {
            // Of several hubs each would need the lines of all: their workers step on, as if the hub were killed after the cut.
            Purpose::Snapshot(CutAt::LastRound) if self.hubs.share.is_whole() => {
                let effects = cut.waits(WaitsFor::Lines, Step::Lines);
                self.goes_on_with(cut, effects)
            }
            Purpose::Snapshot(_) => self.take_snapshot(cut, [].into()),
            Purpose::Admit(_) | Purpose::Follow(_) => {
                cut.before = cut.front.unwrap_or(self.first_round).max(self.first_round);
                self.release(cut)
            }
        }
    }

    /// Has the cores take a snapshot, if the cut is for one.
    pub(super) fn take_snapshot(&mut self, mut cut: Cut, lines: Arc<[Option<Round>]>) -> Vec<Effect> {
        if let Purpose::Snapshot(_) = cut.purpose {
            cut.before = lines.iter().flatten().min().copied().or(cut.front).unwrap_or_default();
            if cut.before == Round(0) {
                cut.failed = Some(NotCut::NoWeights);
                return self.release(cut);
            }
        }
        match cut.snapshot() {
            // A worker that has pushed the next round makes this push again when the job goes on.
            (_, true) => {
                let effects = cut.waits(WaitsFor::End, Step::EndBefore(cut.before, lines));
                self.goes_on_with(cut, effects)
            }
            _ => self.end_with_snapshot(cut),
        }
    }

    pub(super) fn end_with_snapshot(&mut self, cut: Cut) -> Vec<Effect> {
        let is_awaited = !matches!(cut.purpose, Purpose::Follow(_));
        let takes = cut.snapshot().0.then(|| self.begin_snapshot(cut.before, is_awaited));
        let takes = takes.map(|occasion| Effect::Cut(cut.id, Step::TakeSnapshot(occasion, cut.before)));
        takes.into_iter().chain(self.release(cut)).collect()
    }

    pub(super) fn release(&mut self, mut cut: Cut) -> Vec<Effect> {
        let Some(request) = self.release_of_others(&cut) else { return self.release_here(cut) };
        let effects = cut.waits(WaitsFor::OthersRelease, Step::ReleaseOthers(request));
        self.goes_on_with(cut, effects)
    }

    pub(super) fn release_of_others(&self, cut: &Cut) -> Option<ReleaseRequest> {
        let (number, secret, (snapshot, ends)) = (cut.others?, self.hubs.secret.show(), cut.snapshot());
        let admitted = self.admitted(cut).iter().filter_map(|&rank| self.worker(rank)).collect();
        Some(ReleaseRequest { secret, cut: number, from: cut.before, admitted, snapshot, ends })
    }

    pub(super) fn release_here(&mut self, mut cut: Cut) -> Vec<Effect> {
        let (from, ahead) = (cut.before, self.ahead().into());
        let admitted = self.admitted(&cut);
        let effects = cut.waits(WaitsFor::Release, Step::Release { from, admitted, ahead });
        self.goes_on_with(cut, effects)
    }

    /// Returns the ranks that take part from the cut on.
    pub(super) fn admitted(&self, cut: &Cut) -> Arc<[u32]> {
        let workers = match (&cut.purpose, &cut.release) {
            (Purpose::Admit(workers), _) if cut.failed.is_none() => workers,
            (Purpose::Follow(_), Some(release)) => &release.admitted[..],
            _ => &[],
        };
        workers.iter().filter_map(|&worker| self.rank(worker)).collect()
    }

    /// The cut is over. The next one begins.
    pub(super) fn over(&mut self, cut: Cut, failed: Option<NotCut>, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(why) = cut.unreleased {
            // The workers would wait for each other.
            let reason = format!("a cut did not end: {why}");
            return vec![Effect::CutOver(cut.id, Err(NotCut::Hub(why))), Effect::Fail(reason, Blame::Hub)];
        }
        match (failed, &cut.purpose) {
            (Some(why), Purpose::Admit(workers)) => {
                let why = |rank| format!("worker {rank} could not be let in: {why}");
                let ranks = workers.iter().filter_map(|&worker| self.rank(worker));
                let lost = ranks.map(|rank| (rank, Cause::Other, why(rank))).collect();
                effects.extend(self.lose_all(lost));
                if matches!(effects.last(), Some(Effect::Fail(..))) {
                    return effects; // which ends all cuts
                }
            }
            (Some(why), _) => effects.push(Effect::CutOver(cut.id, Err(why))),
            (None, _) => {
                let ranks = self.admitted(&cut);
                if !ranks.is_empty() {
                    self.take_part(&ranks, cut.before);
                    effects.push(Effect::TookPart(ranks, cut.before));
                }
                effects.push(Effect::CutOver(cut.id, Ok(cut.before)));
            }
        }
        effects.extend(self.next_cut(now));
        effects
    }
}
