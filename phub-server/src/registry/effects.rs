//! Events and effects. A report of a core is an event of its job, and the registry carries out the effects of
//! events in order.

use std::sync::Arc;

use coordinator::input::Happened;
use coordinator::{Blame, Effect, Event};
use hub_threads::{Command, Report};
use pbox_core::JobId;

use super::hubs::held_too_long;
use super::{Inner, Registry};
use crate::registry::members::loss::say_lost;
use crate::registry::rounds::late::say_held_up;
use crate::registry::saved::collected::Met;

impl Registry {
    /// Handles a report of a core's thread.
    pub fn report(self: &Arc<Self>, report: Report) {
        let mut inner = self.lock();
        match report {
            Report::Attached { job, rank } => self.happens(&mut inner, job, Event::Attached(rank)),
            Report::Removed { job, rank } => self.happens(&mut inner, job, Event::Removed(rank)),
            Report::Unlinked { job, rank } => self.happens(&mut inner, job, Event::Dropped(rank)),
            Report::WorkerGone { job, rank, reason, by_itself } => {
                // A hub that stops does not wait until a worker has made new links.
                let by_itself = by_itself && !inner.hub().end().stops();
                self.happens(&mut inner, job, Event::LinkEnded { rank, reason, by_itself });
            }
            Report::UnlinkedAbove { job, answers } => {
                if let Some((_, job)) = inner.job(job) {
                    job.relinks_above.core_unlinked(answers);
                    self.freed.notify_waiters();
                }
            }
            Report::Snapshot { job, core, taken } => {
                self.taken(&mut inner, job, core, *taken);
            }
            Report::Freed { job, core } => self.happens(&mut inner, job, Event::Freed(core)),
            Report::Skipped { job, chunks } => {
                if let Some((_, job)) = inner.job(job) {
                    let why = "all workers that could push some of the rounds have left or are lost";
                    tracing::warn!(job = job.name, chunks, why, "chunks skip rounds, and keep their weights");
                }
            }
            Report::AboveGone { job, reason } => {
                drop(inner);
                self.lost_above(job, reason);
            }
            Report::JobFailed { job, reason } => self.fail(&mut inner, job, &reason),
            Report::CorePanicked { cpu } => {
                drop(inner);
                // The chunks of this core have lost their thread, so the hub stops.
                let reason = format!(
                    "the hub's core thread on cpu {cpu} panicked (the hub's log says why); restart the hub"
                );
                tracing::error!(reason, "the hub stops");
                self.stop(&reason);
            }
        }
    }

    /// Passes an event of a job to the coordinator, and carries out the event's effects.
    pub(super) fn happens(&self, inner: &mut Inner, id: JobId, event: Event) {
        let effects = inner.ask(Happened { job: id, event });
        self.carry_out(inner, id, effects);
    }

    /// Carries out the effects of a job, in order.
    pub(super) fn carry_out(&self, inner: &mut Inner, id: JobId, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            let Some((state, job)) = inner.job(id) else { return };
            match effect {
                Effect::Cut(cut, step) => self.step(job, cut, step),
                Effect::CutHeld(cut, front) => job.wait_for_cuts.tell(&cut, Ok(front)),
                Effect::CutOver(cut, over) => job.wait_for_cuts.tell(&cut, over.map(Some)),
                Effect::HeldTooLong(limit) => {
                    let reason = held_too_long(job, limit);
                    self.fail_by(inner, id, &reason, Blame::Hub);
                }
                Effect::TookPart(ranks, from) => {
                    let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
                    tracing::info!(
                        job = job.name,
                        ranks = ranks.join(","),
                        from = from.0,
                        "workers take part"
                    );
                }
                Effect::TellArrived(request) => self.tell_arrived(job, request),
                Effect::Relinked(rank) => {
                    tracing::info!(job = job.name, rank, "worker reconnected");
                }
                Effect::DropLinks(rank, _) => self.drop_links(state, job, rank),
                Effect::Lost { rank, reason, goes_on, .. } => say_lost(state, rank, &reason, goes_on),
                Effect::RemoveWorker(rank) => self.command(job, || Command::RemoveWorker { job: id, rank }),
                Effect::TellLost(worker, reason) => self.tell_lost(job, worker, &reason),
                Effect::Forget(..) => {} // the coordinator itself has invalidated the member's tokens
                Effect::HeldUp => say_held_up(state),
                Effect::Fail(reason, blame) => self.fail_by(inner, id, &reason, blame),
                Effect::Snapshot(occasion, before, parts) => {
                    self.snapshot_over(job, (occasion, before), parts);
                }
                Effect::FollowPart { follow, hub, before, whole } => {
                    self.follow_part(job, (follow, hub), (before, whole));
                }
                Effect::Part(asked, reply) => job.checkpoints.asked.tell(&asked, reply),
                Effect::NotWhole(round, why) => {
                    tracing::warn!(
                        job = job.name,
                        round = round.0,
                        why,
                        "checkpoint is incomplete: not all hubs wrote their part"
                    );
                }
                Effect::Wanted(want, written) => {
                    job.checkpoints.wanted.tell(&want, written.map(Met::Written));
                }
                Effect::Wake => self.freed.notify_waiters(),
                Effect::Last(step) => self.last_step(state, job, step),
                Effect::Holds(holds) => job.wait_for_last.tell_holds(&holds),
                Effect::HasPart(part) => job.wait_for_last.tell_part(part),
                Effect::LastOver(saved) => self.last_is_over(job, saved),
            }
        }
    }
}
