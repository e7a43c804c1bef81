//! The events of a job that no request causes, and their effects.
//!
//! | event | from | effects |
//! | --- | --- | --- |
//! | a core has a member's link | that core | the arrival |
//! | a core has removed a member, or dropped lost links | that core | requests that wait for a change of the job check its state again |
//! | a member's link has ended | a core | all cores drop the member's links, or the member is lost |
//! | a member's heartbeat has ended | the control port | the member is lost, if it has no links |
//! | time passes | the sweep | silent members, and dead members without links, are lost; waits for hub 0 and for states end at their limits |
//! | a step of a cut is done | the driver | the cut's next step, see [`cut`](super::cut) |
//! | a core has a part of a snapshot, or none | that core | after the last core's answer, the snapshot is complete or has failed |
//! | the memory for a core's part is free again | that core | requests for the state that wait for this memory try again |
//! | another hub reports its part of a checkpoint | the driver | hub 0 asks again, or the checkpoint is complete or has failed |
//! | a client has read the state | the driver | the next client gets the state |
//! | a step of saving the last state is done | the driver | the next step, see [`last`](super::last) |
//!
//! Requests of members have their own methods, which return answers. A check of the rounds, and a loss that another party has
//! noticed, have their own methods, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pbox_core::control::{
    ArrivedRequest, CheckpointReply, FailedReply, LastReply, PartState, WholeRounds, WrittenReply,
};
use pbox_core::{Occasion, Round};
use serde::{Deserialize, Serialize};

use super::checkpoints::TakenBy;
use super::cut::{CutId, NotCut, Step, Stepped};
use super::last::{LastStep, LastStepped, Saved};
use super::parts::{AskedId, FollowId};
use super::wants::{NoState, Parts, Saving, WantId};
use super::{Job, Member, Standing};
use crate::tokens::Token;

/// An event of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Event {
    /// A core has a member's link.
    Attached(u32),
    /// A core has removed a member.
    Removed(u32),
    /// A core has dropped the lost links of this member.
    Dropped(u32),
    /// A member's link has ended.
    LinkEnded {
        /// The member.
        rank: u32,
        /// The reason.
        reason: String,
        /// Whether the link ended by itself, so that the member may reconnect.
        by_itself: bool,
    },
    /// A member's heartbeat request ended before this hub answered it.
    HungUp(u32),
    /// Time has passed. A member may be silent for at most this duration.
    Swept(Duration),
    /// A step of a cut is done.
    Cut(CutId, Stepped),
    /// A core has taken its part of a snapshot, or has no part.
    Taken {
        /// The core.
        core: usize,
        /// The reason for the snapshot.
        occasion: Occasion,
        /// The first round after the state in the part.
        before: Round,
        /// The last round of a range, if the core has no part for any due snapshot of the range.
        through: Option<Round>,
        /// The reason why the core has no part.
        refused: Option<String>,
    },
    /// The memory for a core's part of a snapshot is free again.
    Freed(usize),
    /// Another hub has reported its part of a checkpoint, or the request to that hub has failed.
    Part {
        /// The checkpoint.
        follow: FollowId,
        /// The hub.
        hub: u32,
        /// The rounds of the hub's files, and the state of its part.
        said: Result<(Vec<Round>, PartState), String>,
    },
    /// A client has read the state that it asked for, or has given up.
    Read(WantId),
    /// A step of saving the last state is done.
    Last(LastStepped),
}

/// An effect of an event, which the owner of the job carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The driver must carry out a step of a cut.
    Cut(CutId, Step),
    /// The job is paused at this hub for a cut of hub 0. The round is the furthest chunk's round; `None` without chunks.
    CutHeld(CutId, Option<Round>),
    /// A cut is over. The result is the round before which the job was cut, or the reason for a failure.
    CutOver(CutId, Result<Round, NotCut>),
    /// Hub 0 has kept the job paused for longer than this time, and may be gone.
    HeldTooLong(Duration),
    /// Ranks take part from this round on.
    TookPart(Arc<[u32]>, Round),
    /// Hub 0 must be notified that this hub has all links of a newcomer.
    TellArrived(ArrivedRequest),
    /// A member has reconnected.
    Relinked(u32),
    /// All cores must drop a member's links. A connection by this token, which may be in progress, is lost, too.
    DropLinks(u32, Option<Token>),
    /// A member is lost: the hub counts the loss, and writes it to the log.
    Lost {
        /// The member.
        rank: u32,
        /// The cause.
        cause: Cause,
        /// The reason.
        reason: String,
        /// Whether the job continues without the member.
        goes_on: bool,
    },
    /// All cores must remove a member.
    RemoveWorker(u32),
    /// The other hubs of the job must be notified that a worker is lost for this reason. The number names the worker at all
    /// hubs.
    TellLost(u64, String),
    /// The tokens of a lost member are no longer valid. A request with such a token is answered with this reason.
    Forget(u32, String),
    /// The set of workers that delay the rounds has changed, and may now be empty. The log reports the change.
    HeldUp,
    /// The job fails.
    Fail(String, Blame),
    /// Every core has answered for a snapshot before a round. [`Parts`] says how the driver uses the parts.
    Snapshot(Occasion, Round, Parts),
    /// Hub 0 must ask another hub for its part of a checkpoint before a round.
    FollowPart {
        /// The checkpoint.
        follow: FollowId,
        /// The hub.
        hub: u32,
        /// The round.
        before: Round,
        /// The rounds of complete checkpoints.
        whole: WholeRounds,
    },
    /// The answer to hub 0's question about this hub's part.
    Part(AskedId, WrittenReply),
    /// A checkpoint before this round is not complete, because a hub has no part of this checkpoint. The log reports
    /// the reason.
    NotWhole(Round, String),
    /// A request for the state ends: with a file, or with the reason why there is no file.
    Wanted(WantId, Result<CheckpointReply, NoState>),
    /// Requests that wait for a change of the job must check its state again.
    Wake,
    /// The driver must carry out a step of saving the last state.
    Last(LastStep),
    /// The answer to other hubs that have asked whether this hub still has the failed job.
    Holds(FailedReply),
    /// The answer to hub 0, if hub 0 has asked: the result of this hub's part of the last state.
    HasPart(Result<LastReply, String>),
    /// The last state is saved or not. All cores remove the failed job, and its name is free.
    LastOver(Saved),
}

/// The reason why a member is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Cause {
    /// The link ended.
    Link,
    /// The heartbeats stopped.
    Silent,
    /// The member delayed a round for too long.
    Late,
    /// The member has reported that it lost a hub of the job.
    HubLost,
    /// Another cause: another hub lost the member, the member gave up, or the hub could not admit the member.
    Other,
}

/// The party that caused the failure of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Blame {
    /// The job itself, or one of its workers.
    Job,
    /// A hub of the job, which stops or is lost. Workers may wait until the hub returns.
    Hub,
}

impl Job {
    /// Handles an event. Returns the effects, in order.
    pub(crate) fn handle(&mut self, event: Event, now: Instant) -> Vec<Effect> {
        match event {
            Event::Attached(rank) => {
                let arrival = self.attached(rank);
                self.follows(arrival, now)
            }
            Event::Cut(cut, stepped) => self.stepped(cut, stepped, now),
            Event::Last(stepped) => self.last.stepped(&self.hubs, stepped, now),
            Event::Taken { core, occasion, before, through, refused } => {
                Saving { job: self, now }.note_taken(TakenBy { core, occasion, before, through, refused })
            }
            Event::Freed(core) => Saving { job: self, now }.note_freed(core),
            Event::Part { follow, hub, said } => Saving { job: self, now }.note_part(follow, hub, said),
            Event::Read(want) => Saving { job: self, now }.end_read(want),
            Event::Removed(rank) => {
                self.note_removed(rank);
                vec![Effect::Wake]
            }
            Event::Dropped(rank) => {
                self.members.standing(rank).into_iter().for_each(Standing::note_dropped);
                vec![Effect::Wake]
            }
            Event::LinkEnded { rank, reason, by_itself } => {
                let why = format!("{} is gone: {reason}", self.spec.spoken(rank));
                let waits = self.members.get(rank).is_some_and(Member::waits_for_links);
                match by_itself && waits && self.life.runs() {
                    // The member has already lost its links: each core reports the end of an old link, so this report
                    // is ignored. The worker itself watches its new links.
                    true if self.members.unlinked(rank).is_some() => Vec::new(),
                    true => vec![self.members.unlink(rank, &why, now)],
                    false => self.lose(rank, Cause::Link, &why),
                }
            }
            Event::HungUp(rank) => {
                let why = self.members.get_mut(rank).and_then(|member| member.note_hang_up(now));
                if self.members.get(rank).is_some_and(Member::has_not_connected) && !self.life.failed() {
                    // If the member is alive, its next heartbeat may have arrived before this report. The news makes a
                    // living member send another heartbeat, which proves that it is alive.
                    self.news.tell(&self.life, |_| {});
                }
                why.map_or_else(Vec::new, |why| self.lose(rank, Cause::Link, &why))
            }
            Event::Swept(limit) if self.life.failed() => self.last.overdue(&self.hubs, limit, now),
            Event::Swept(limit) => {
                let dead = self.members.unlinked_dead(&self.life, &mut self.news, now).into_iter();
                let dead = dead.map(|(rank, why)| (rank, Cause::Link, why));
                let lost = silent(self, limit, now).chain(dead).chain(unconnected_dead(self, now)).collect();
                let mut effects = self.lose_all(lost);
                effects.extend(self.cuts.held_too_long(limit, now));
                effects.extend(Saving { job: self, now }.time_passes());
                effects
            }
        }
    }
}

/// Returns the members that have been silent for longer than the limit, each with the cause and the reason.
fn silent(job: &Job, limit: Duration, now: Instant) -> impl Iterator<Item = (u32, Cause, String)> {
    let silence = move |(rank, member): (u32, &Member)| {
        let silence = Some(now - member.last_heartbeat).filter(|&silence| silence > limit)?;
        let reason = format!(
            "{} was silent for {:.1} s, the limit is {:.1} s: the process hangs, was stopped, or was cut off",
            job.spec.spoken(rank),
            silence.as_secs_f64(),
            limit.as_secs_f64()
        );
        Some((rank, Cause::Silent, reason))
    };
    job.members.present().filter_map(silence)
}

/// Returns the members that died before they connected, each with the cause and the reason.
fn unconnected_dead(job: &Job, now: Instant) -> impl Iterator<Item = (u32, Cause, String)> {
    let dead = job.members.present().filter(move |(_, member)| member.is_dead_before_links(now));
    dead.map(|(rank, _)| {
        let who = job.spec.spoken(rank);
        (
            rank,
            Cause::Link,
            format!("{who} is gone: its heartbeat ended before it connected to the data path"),
        )
    })
}
