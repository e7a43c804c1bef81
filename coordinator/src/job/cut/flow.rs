//! The path of a cut, which is a pause between two rounds, from step to step.
//!
//! ```text
//!   next -> hold -> held here -> held everywhere -> snapshot -> release of other hubs -> release here -> over -> next
//! ```
//!
//! Owned by the job. Every method of [`Moved`] takes the cut from the job, and gives it back unless the cut is over.

use std::sync::Arc;
use std::time::Instant;

use pbox_core::Round;
use pbox_core::control::{HoldRequest, ReleaseRequest};

use super::{Cut, CutAt, Cuts, NotBefore, NotCut, Purpose, Step, WaitsFor};
use crate::hubs::Hubs;
use crate::job::{Blame, Cause, Effect, Job, JobSpec, Life, Ranks};

impl Cut {
    /// Returns whether the cut takes a snapshot, and whether the job ends at the cut.
    fn snapshot(&self) -> (bool, bool) {
        match (&self.purpose, &self.release) {
            _ if self.failed.is_some() => (false, false),
            (Purpose::Admit(_), _) | (Purpose::Follow(_), None) => (false, false),
            (Purpose::Snapshot(at), _) => (true, *at == CutAt::LastRound),
            (Purpose::Follow(_), Some(release)) => (release.snapshot, release.ends),
        }
    }

    /// Returns the release for the other hubs, if hub 0 has asked these hubs to pause the job for this cut.
    pub(super) fn release_of_others(&self, hubs: &Hubs, members: &Ranks) -> Option<ReleaseRequest> {
        let (number, secret, (snapshot, ends)) = (self.lead_cut?, hubs.secret.show(), self.snapshot());
        let admitted = self.admitted(members).iter().filter_map(|&rank| members.worker(rank)).collect();
        Some(ReleaseRequest { secret, cut: number, from: self.before, admitted, snapshot, ends })
    }

    /// Returns the ranks that the cut admits. They take part from the cut on.
    fn admitted(&self, members: &Ranks) -> Arc<[u32]> {
        let workers = match (&self.purpose, &self.release) {
            (Purpose::Admit(workers), _) if self.failed.is_none() => workers,
            (Purpose::Follow(_), Some(release)) => &release.admitted[..],
            _ => &[],
        };
        workers.iter().filter_map(|&worker| members.rank(worker)).collect()
    }
}

impl Cuts {
    /// Begins the next waiting cut, if no cut is in progress.
    pub(super) fn next(
        &mut self,
        (spec, life): (&JobSpec, &Life),
        hubs: &mut Hubs,
        now: Instant,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.now.is_none()
            && let Some((id, purpose)) = self.waiting.pop_front()
        {
            if let Purpose::Follow(cut) = purpose
                && let Err(stale) = hubs.hold(cut)
            {
                effects.push(Effect::CutOver(id, Err(stale.into())));
                continue;
            }
            if self.are_over && matches!(purpose, Purpose::Admit(_)) {
                continue;
            }
            let begins = life.gathers() && matches!(purpose, Purpose::Admit(_));
            let (waits_for, step) = match begins && spec.made.is_below {
                true => (WaitsFor::Above, Step::BeginAbove),
                false => (WaitsFor::Hold, Step::Hold),
            };
            effects.push(Effect::Cut(id, step));
            self.now = Some(Cut {
                id,
                purpose,
                waits_for,
                begins,
                front: None,
                lead_cut: None,
                before: Round(0),
                since: now,
                release: None,
                failed: None,
                unreleased: None,
            });
        }
        effects
    }

    /// Ends all cuts of a failed job. Releases the job at other hubs that have paused it.
    pub(in crate::job) fn end(&mut self, hubs: &Hubs, members: &Ranks) -> Vec<Effect> {
        self.waiting.clear();
        let Some(mut cut) = self.now.take() else { return Vec::new() };
        let are_held =
            cut.lead_cut.is_some() && !matches!(cut.waits_for, WaitsFor::OthersRelease | WaitsFor::Release);
        if !are_held {
            return Vec::new();
        }
        cut.before = cut.front.unwrap_or_default();
        cut.failed = Some(NotCut::Hub("the job ended meanwhile".into()));
        let release = cut.release_of_others(hubs, members);
        Vec::from_iter(release.map(|request| Effect::Cut(cut.id, Step::ReleaseOthers(request))))
    }
}

/// Returns the round before which the snapshot of a cut is taken. `front` is the round of the furthest chunk.
fn place(at: CutAt, front: Round) -> Result<Round, NotCut> {
    match at {
        _ if front == Round(0) => Err(NotCut::NoWeights),
        CutAt::Before(round) => Ok(NotBefore::check(round, front).map(|()| round)?),
        CutAt::AllHubs | CutAt::ThisHub | CutAt::LastRound => Ok(front),
    }
}

/// The cut of a job, in transition to its next step.
pub(super) struct Moved<'job> {
    pub job: &'job mut Job,
    pub cut: Cut,
}

impl Moved<'_> {
    /// Leaves the cut unchanged: it continues to wait for the same result.
    pub fn stays(self) -> Vec<Effect> {
        self.goes_on_with(Vec::new())
    }

    fn goes_on_with(self, effects: Vec<Effect>) -> Vec<Effect> {
        self.job.cuts.now = Some(self.cut);
        effects
    }

    /// Begins a step. The cut then waits for the result of the step.
    pub fn waits(mut self, waits_for: WaitsFor, step: Step) -> Vec<Effect> {
        self.cut.waits_for = waits_for;
        let effects = vec![Effect::Cut(self.cut.id, step)];
        self.goes_on_with(effects)
    }

    /// Continues after all cores of this hub have paused the job.
    pub fn held(mut self, front: Option<Round>, now: Instant) -> Vec<Effect> {
        let (cut, hubs) = (&mut self.cut, &mut self.job.hubs);
        cut.front = front;
        match cut.purpose {
            Purpose::Follow(_) => {
                hubs.front = front;
                (cut.waits_for, cut.since) = (WaitsFor::Lead, now);
                match cut.release {
                    None => {
                        let held = vec![Effect::CutHeld(cut.id, front)];
                        self.goes_on_with(held)
                    }
                    // The release has already arrived: hub 0 no longer waits until this hub has paused the job.
                    Some(_) => {
                        cut.before = front.unwrap_or_default();
                        self.release()
                    }
                }
            }
            // Other hubs need not pause: all hubs begin with the same round, and no worker pushes before it takes part at
            // all hubs.
            Purpose::Admit(_) if cut.begins => self.held_everywhere(),
            Purpose::Snapshot(CutAt::ThisHub | CutAt::Before(_)) => self.held_everywhere(),
            _ if hubs.share.is_whole() => self.held_everywhere(),
            _ => {
                let (number, secret) = (hubs.next_cut(), hubs.secret.show());
                cut.lead_cut = Some(number);
                self.waits(WaitsFor::Others, Step::HoldOthers(HoldRequest { secret, cut: number }))
            }
        }
    }

    /// Continues after all hubs that take part in the cut have paused the job.
    pub fn held_everywhere(mut self) -> Vec<Effect> {
        let (cut, job) = (&mut self.cut, &self.job);
        match cut.purpose {
            // With several hubs, a hub does not know which rounds a worker has reached at the other hubs. So the workers
            // continue to step after the cut, and their later rounds are lost, as if all hubs had been killed after the cut.
            Purpose::Snapshot(CutAt::LastRound) if job.hubs.share.is_whole() => {
                self.waits(WaitsFor::Lines, Step::Lines)
            }
            Purpose::Snapshot(_) => self.take_snapshot([].into()),
            Purpose::Admit(_) | Purpose::Follow(_) => {
                cut.before = cut.front.unwrap_or(job.first_round).max(job.first_round);
                self.release()
            }
        }
    }

    /// Decides the round of the cut, if the cut is for a snapshot. Then takes the snapshot. If the job ends at the cut,
    /// first stops the chunks at this round.
    pub fn take_snapshot(mut self, lines: Arc<[Option<Round>]>) -> Vec<Effect> {
        let cut = &mut self.cut;
        if let Purpose::Snapshot(at) = cut.purpose {
            cut.before = lines.iter().flatten().min().copied().or(cut.front).unwrap_or_default();
            match place(at, cut.before) {
                Ok(before) => cut.before = before,
                Err(why) => {
                    cut.failed = Some(why);
                    return self.release();
                }
            }
        }
        match cut.snapshot() {
            // A worker that has pushed the round after the end pushes that round again when the job continues.
            (_, true) => {
                self.job.cuts.are_over = true;
                let step = Step::EndBefore(cut.before, lines);
                self.waits(WaitsFor::End, step)
            }
            _ => self.end_with_snapshot(),
        }
    }

    /// Lets the cores take the snapshot, if the cut is for a snapshot. Then releases the job.
    pub fn end_with_snapshot(mut self) -> Vec<Effect> {
        let (Moved { job, cut }, mut effects) = (&mut self, Vec::new());
        if cut.snapshot().0 {
            let want = job.checkpoints.wants.cut_for(cut.id, cut.before);
            let at = if let Purpose::Snapshot(at) = cut.purpose { Some(at) } else { None };
            let occasion = job.checkpoints.begin(cut.before, want, at);
            effects.push(Effect::Cut(cut.id, Step::TakeSnapshot(occasion, cut.before)));
        }
        effects.extend(self.release());
        effects
    }

    /// Releases the job, first at the other hubs if the job is paused there.
    pub fn release(self) -> Vec<Effect> {
        match self.cut.release_of_others(&self.job.hubs, &self.job.members) {
            Some(request) => self.waits(WaitsFor::OthersRelease, Step::ReleaseOthers(request)),
            None => self.release_here(),
        }
    }

    /// Releases the job on all cores of this hub.
    pub fn release_here(self) -> Vec<Effect> {
        let Moved { job, cut } = &self;
        let (from, ahead) = (cut.before, job.life.ahead(&job.spec, job.first_round).into());
        let admitted = cut.admitted(&job.members);
        self.waits(WaitsFor::Release, Step::Release { from, admitted, ahead })
    }

    /// Ends the cut, and begins the next waiting cut.
    pub fn over(self, failed: Option<NotCut>, now: Instant) -> Vec<Effect> {
        let (Moved { job, cut }, mut effects) = (self, Vec::new());
        if let Some(why) = cut.unreleased {
            // The job may still be paused at another hub. Then that hub's workers and the workers of this hub would
            // wait for each other, so the job fails.
            let reason = format!("a cut did not end: {why}");
            return vec![Effect::CutOver(cut.id, Err(NotCut::Hub(why))), Effect::Fail(reason, Blame::Hub)];
        }
        match (failed, &cut.purpose) {
            (Some(why), Purpose::Admit(workers)) => {
                let why = |rank| format!("{} could not be admitted: {why}", job.spec.spoken(rank));
                let ranks = workers.iter().filter_map(|&worker| job.members.rank(worker));
                let lost = ranks.map(|rank| (rank, Cause::Other, why(rank))).collect();
                effects.extend(job.lose_all(lost));
                if matches!(effects.last(), Some(Effect::Fail(..))) {
                    return effects; // the failure ends all cuts
                }
            }
            (Some(why), _) => {
                effects.extend(job.checkpoints.wants.cut_failed(cut.id, &why));
                effects.push(Effect::CutOver(cut.id, Err(why)));
            }
            (None, _) => {
                let ranks = cut.admitted(&job.members);
                if !ranks.is_empty() {
                    job.let_take_part(&ranks, cut.before);
                    effects.push(Effect::TookPart(ranks, cut.before));
                }
                effects.push(Effect::CutOver(cut.id, Ok(cut.before)));
            }
        }
        effects.extend(job.cuts.next((&job.spec, &job.life), &mut job.hubs, now));
        effects
    }
}
