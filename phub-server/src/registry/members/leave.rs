//! The regular leaves of workers, and the end of a job.

use std::sync::Arc;
use std::time::Duration;

use authority::unhex;
use coordinator::input::{self, End, Ended};
use coordinator::{Cause, Leave, Member, MemberOf, NoState, Token, Unserved};
use hub_threads::Command;
use membership::MemberError;
use pbox_core::control::{LeaveReply, LeaveRequest, LeftAt, reason};
use pbox_core::{Discarded, JobId, Members};

use crate::registry::above::JoinedAbove;
use crate::registry::{Inner, Refusal, Registry, on_thread};

/// The time that the end of a job waits for a round in flight. All workers have left, so a round is in
/// flight only if a worker left during it. Writing a file has no time limit.
const CHECKPOINT_AT_END: Duration = Duration::from_secs(2);

impl Registry {
    /// Lets a worker leave. When the last worker leaves, the hub writes the job's checkpoint, unless the run was a
    /// trial. If the write fails, the reply gives the reason. A worker that leaves earlier gets the reason why the
    /// previous checkpoint failed, if that checkpoint failed. A second leave changes nothing.
    pub async fn leave(self: &Arc<Self>, job: &str, request: LeaveRequest) -> Result<LeaveReply, Refusal> {
        let token = request.token.clone();
        let left = self.leave_once(job, request).await;
        let has_left = || self.lock().hub().tokens().owner_by_digits(&token) == Err(Unserved::Left);
        if left.is_err() && has_left() { Ok(LeaveReply::default()) } else { left }
    }

    async fn leave_once(
        self: &Arc<Self>,
        job: &str,
        LeaveRequest { token, round, behind, failed, hub_lost, stops, was_trial }: LeaveRequest,
    ) -> Result<LeaveReply, Refusal> {
        if let Some(why) = failed {
            return self.give_up(job, &token, (why, hub_lost, stops)).await;
        }
        let at = LeftAt { round, behind };
        let (last, mut checkpoint_error) =
            self.lock().member(job, &token).map(|(MemberOf { job: id, rank }, (state, _))| {
                // A worker leaves hub 0 first, because hub 0 makes all hubs write a checkpoint.
                let is_last = state.life.runs() && !state.members.has_others(rank);
                // A worker that leaves earlier may have ended before the last worker leaves. So the
                // earlier worker gets the error of the last attempt now.
                let checkpoints = &state.checkpoints;
                let failed = checkpoints.error.as_ref().filter(|_| !is_last && checkpoints.has_failed);
                let failed = failed.map(|why| {
                    format!(
                        "the last checkpoint failed, and the hub tries again when the last worker leaves: {why}"
                    )
                });
                (state.ends_with(rank).then_some(id), failed)
            })?;
        if let Some(id) = last.filter(|_| self.store.is_some() && !was_trial)
            && let Err(why) = self.checkpoint_job(id, CHECKPOINT_AT_END).await
        {
            tracing::warn!(job, %why, "the checkpoint at the job's end was not written");
            // If the job has no weights, nothing is lost.
            checkpoint_error = Some(why).filter(|why| *why != NoState::NoWeights).map(|why| why.to_string());
        }
        if let Some((id, above)) = self.leave_now(job, &token, at.clone())? {
            // The hubs above must get the leave before the links close: they count a link that closes without
            // a leave as a loss.
            let left = on_thread("phub-above", move || above.leave(&at)).await;
            match left.map_err(|why| std::io::Error::other(why).into()).flatten() {
                Ok(()) => {}
                Err(MemberError::CheckpointLost { why, .. }) => checkpoint_error = Some(why),
                Err(why) => {
                    tracing::warn!(job, %why, "cannot report the job's end to the hubs above");
                }
            }
            self.end(&mut self.lock(), id);
        }
        Ok(LeaveReply { checkpoint_error })
    }

    /// Handles the leave of a member that has failed, that has lost a hub, or that is a hub below and stops.
    async fn give_up(
        self: &Arc<Self>,
        job: &str,
        token: &str,
        (why, hub_lost, stops): (String, bool, bool),
    ) -> Result<LeaveReply, Refusal> {
        let (id, rank, why, ends) = {
            let mut inner = self.lock();
            let (MemberOf { job: id, rank }, (state, _)) = inner.member(job, token)?;
            let is_worker = state.spec.terms.level.members == Members::Workers;
            let words = match (is_worker, hub_lost) {
                (false, _) => format!("machine {rank}: {why}"),
                (true, true) => format!("worker {rank}: {why}"),
                (true, false) => format!("rank {rank} failed: {}", reason(&why)),
            };
            (id, rank, words, stops && !is_worker && !state.spec.goes_on())
        };
        if ends && let Err(why) = self.end_at_cut(id, &why).await {
            tracing::warn!(job, why, "the job's last round could not be completed and saved");
        }
        let cause = if hub_lost { Cause::HubLost } else { Cause::Other };
        self.lose(&mut self.lock(), id, rank, cause, &why);
        Ok(LeaveReply::default())
    }

    /// Carries a leave out. Returns the job if the worker was the last member of a job below other hubs.
    /// That job ends when this hub has left the hubs above.
    fn leave_now(
        &self,
        job: &str,
        token: &str,
        at: LeftAt,
    ) -> Result<Option<(JobId, Arc<JoinedAbove>)>, Refusal> {
        let mut inner = self.lock();
        let (member, _) = inner.member(job, token)?;
        let MemberOf { job: id, rank } = member;
        let LeftAt { round, behind } = at;
        let left = inner.ask(input::Leave { member, token: unhex(token).map(Token), round, behind });
        let is_last = match left {
            Leave::Nothing => return Ok(None),
            Leave::Refused(why) => return Err(Refusal::bad(why)),
            Leave::Fails(reason) => {
                self.fail(&mut inner, id, &reason);
                return Ok(None);
            }
            Leave::Left => false,
            Leave::Last => true,
        };
        let Some((state, job)) = inner.job(id) else { return Ok(None) };
        let from = state.members.get(rank).and_then(Member::place);
        tracing::info!(job = job.name, rank, round = round.0, from, "worker left");
        let above = job.above.take_if(|_| is_last);
        if !is_last {
            self.command(job, || Command::RemoveWorker { job: id, rank });
        } else if above.is_none() {
            self.end(&mut inner, id);
        }
        Ok(above.map(|above| (id, above)))
    }

    /// Ends a job after all workers have left.
    pub(in crate::registry) fn end(&self, inner: &mut Inner, id: JobId) {
        let ended = inner.ask(End { job: id }).zip(inner.remove(id));
        let Some((Ended(state), mut job)) = ended else { return };
        job.publish(&state);
        tracing::info!(job = job.name, "job ended: all workers left");
        self.command(&job, || Command::RemoveJob { job: id });
        let had_files = self.saves(&state);
        if had_files {
            inner.note_end(&job.name);
        }
        self.free(Discarded::of((state, job)));
        self.freed.notify_waiters();
        if let Some(registry) = self.me.upgrade().filter(|_| had_files) {
            self.runtime.spawn(on_thread("phub-checkpoint", move || registry.remove_old_jobs()));
        }
    }

    /// Removes the files of the jobs that were saved longest ago, if `--checkpoint-jobs` bounds the number of
    /// jobs. Meanwhile the name of each job is reserved, so that no job begins with files that are being
    /// removed. Jobs that ended since this hub started are newer than all other jobs, even if their files look older: the
    /// clock may have been set back.
    fn remove_old_jobs(&self) {
        let Some(store) = &self.store else { return };
        let ended = self.lock().ended().to_vec();
        let (old, mut too_many) = match store.old_jobs(&ended) {
            Ok(found) => found,
            Err(error) => {
                return tracing::warn!(%error, "cannot list the files of old jobs, so these files are kept");
            }
        };
        for job in old {
            if too_many == 0 {
                return;
            }
            let name = job.name.clone();
            let mut inner = self.lock();
            if inner.hub().end().is_closed() || !inner.hub().names().is_free(&name) {
                continue;
            }
            let _reserved = self.reserve(&mut inner, &name);
            drop(inner);
            match store.remove_job(job) {
                Ok(()) => tracing::info!(
                    job = name,
                    "removed the checkpoints of this old job: the hub keeps only the checkpoints of newer jobs (--checkpoint-jobs)"
                ),
                Err(error) => tracing::warn!(job = name, %error, "cannot remove the files of this old job"),
            }
            too_many -= 1;
        }
    }

    /// Passes memory to the thread that frees it. The control thread must not free memory, because this thread
    /// answers all heartbeats.
    pub(in crate::registry) fn free(&self, memory: Discarded) {
        let _ = self.discard.send(memory);
    }
}
