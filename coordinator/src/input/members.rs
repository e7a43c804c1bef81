//! Requests for members: join, connect, send a heartbeat, reconnect, leave, and be lost.

use std::time::{Duration, Instant};

use pbox_core::control::{Behind, Latest, LeftAt, Pass, RefusalCode};
use pbox_core::{JobId, Members, Round};
use serde::{Deserialize, Serialize};

use super::Request;
use crate::asker::Asker;
use crate::hub::Hub;
use crate::job::{self, Cause, Effect, Grant, MANY, REPORT_EVERY, Standing, undo_join};
use crate::join::Join;
use crate::links::MemberLink;
use crate::refused::Refused;
use crate::tokens::Token;

/// A member: its job and its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberOf {
    /// The job.
    pub job: JobId,
    /// The rank.
    pub rank: u32,
}

impl Request for Join {
    type Answer = Result<(JobId, Pass), Refused>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        hub.join(self, now)
    }
}

/// A report that the handling of a join is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountJoin {
    /// The name of the job.
    pub name: String,
    /// The rank.
    pub rank: u32,
    /// The client that sent the join.
    pub from: Option<Asker>,
    /// The reason for the refusal, if the join was refused.
    pub refused: Option<String>,
}

impl Request for CountJoin {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        let Some(why) = self.refused else { return hub.counts.joins += 1 };
        hub.counts.refused_joins += 1;
        if let Some(job) = hub.names.job(&self.name).and_then(|id| hub.job_mut(id)) {
            job.news.note_refused(&job.life, self.rank, self.from.as_ref(), &why);
        }
    }
}

/// A report that the client of a join hung up before it had the answer. Nobody knows the token, so the member will never
/// connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UndoJoin {
    /// The member.
    pub member: MemberOf,
    /// The token.
    pub token: Token,
}

impl Request for UndoJoin {
    type Answer = Vec<Effect>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Vec<Effect> {
        let MemberOf { job: id, rank } = self.member;
        if hub.tokens.owner(self.token) != Ok((id, rank)) {
            return Vec::new(); // the member was lost meanwhile
        }
        let Some(effects) = hub.job_mut(id).map(|job| undo_join(job, rank)) else { return Vec::new() };
        if !hub.job(id).is_some_and(|job| job.members.has(rank)) {
            hub.tokens.withdraw(self.token);
        }
        hub.noted(id, effects, now)
    }
}

/// A request of a member to connect to the data path. The token is valid for one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    /// The member.
    pub member: MemberOf,
    /// The token.
    pub token: Token,
}

impl Request for Connect {
    type Answer = Result<(), String>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        let MemberOf { job, rank } = self.member;
        let job = hub.job_mut(job).ok_or_else(|| "the job has ended".to_owned())?;
        job.members.connect(rank, self.token, &job.spec.name)
    }
}

/// A report that a connection of a member failed. The member may connect again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disconnect {
    /// The member.
    pub member: MemberOf,
}

impl Request for Disconnect {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        let MemberOf { job, rank } = self.member;
        let standing = hub.job_mut(job).and_then(|job| job.members.standing(rank));
        standing.into_iter().for_each(Standing::disconnect);
    }
}

/// A report that the links of a member are being handed to the cores.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The member.
    pub member: MemberOf,
    /// The name of the links' transport.
    pub transport: String,
    /// The interface or RDMA device of each link. A name is empty if the device is unknown, or if the link is on shared
    /// memory.
    pub nics: Vec<String>,
}

impl Request for Attach {
    type Answer = ();

    fn apply(self, hub: &mut Hub, _: Instant) {
        let MemberOf { job, rank } = self.member;
        let links = self.nics.into_iter().map(|nic| MemberLink { nic, crossed: None }).collect();
        if let Some(member) = hub.job_mut(job).and_then(|job| job.members.get_mut(rank)) {
            (member.transport, member.links) = (self.transport.parse().ok(), links);
        }
    }
}

/// A report that all members of a hub below have joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// The hub below.
    pub member: MemberOf,
    /// The round that the hub's members had reached when they lost a hub of the job. `None` if they lost no hub.
    pub reached: Option<Round>,
}

impl Request for Ready {
    type Answer = Result<Vec<Effect>, Refused>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let MemberOf { job: id, rank } = self.member;
        let Some(job) = hub.job_mut(id) else { return Ok(Vec::new()) };
        job.life.check_reached(rank, self.reached, &job.spec)?;
        if let Some(round) = self.reached {
            job.life.note_worker_reached(rank, round, &mut job.news);
        }
        let arrival = job.life.ready(rank, &mut job.members, &mut job.news);
        let effects = job.follows(arrival, now);
        Ok(hub.noted(id, effects, now))
    }
}

/// A heartbeat of a member. A hub also reports which of its own workers is late. The answer is the time for which this hub
/// may delay its reply while there is no news. If the hub refuses, the answer is the reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heard {
    /// The member.
    pub member: MemberOf,
    /// The late worker.
    pub latest: Option<Latest>,
}

impl Request for Heard {
    type Answer = Result<Option<Duration>, String>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let MemberOf { job, rank } = self.member;
        let Some(job) = hub.job_mut(job) else { return Ok(None) };
        let Some(member) = job.members.get_mut(rank) else { return Ok(None) };
        let is_hub = job.spec.terms.level.members != Members::Workers;
        member.note_heartbeat(self.latest, is_hub, now)?;
        Ok(is_hub.then(|| REPORT_EVERY * job.spec.terms.workers.div_ceil(MANY)))
    }
}

/// A report that a member has lost its links and asks for new links.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskForLinks {
    /// The member.
    pub member: MemberOf,
    /// The reason.
    pub why: String,
}

impl Request for AskForLinks {
    type Answer = Result<Vec<Effect>, Refused>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Self::Answer {
        let MemberOf { job: id, rank } = self.member;
        let Some(job) = hub.job_mut(id) else { return Ok(Vec::new()) };
        let effects = job.ask_for_links(rank, &self.why, now)?.into_iter().collect();
        Ok(hub.noted(id, effects, now))
    }
}

/// A request for a connection of a member that has asked for new links. The answer is whether the member may connect now.
/// It may connect once all cores have dropped the old links.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantLinks {
    /// The member.
    pub member: MemberOf,
    /// A token that no member has had.
    pub token: Token,
}

impl Request for GrantLinks {
    type Answer = Result<bool, Refused>;

    fn apply(self, hub: &mut Hub, _: Instant) -> Self::Answer {
        let MemberOf { job: id, rank } = self.member;
        let job = hub.job_mut(id).ok_or_else(|| {
            Refused::new(
                RefusalCode::JobEnded,
                "the job ended while the hub's cores dropped the old links; join again".to_owned(),
            )
        })?;
        let Grant::Connection { former } = job.members.grant_links(rank, self.token, &job.spec.name)? else {
            return Ok(false);
        };
        hub.counts.relinks += 1;
        former.into_iter().for_each(|former| hub.tokens.withdraw(former));
        hub.tokens.give(self.token, (id, rank));
        Ok(true)
    }
}

/// A request of a member to leave before a round. Afterwards the member's token is no longer valid.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    /// The member.
    pub member: MemberOf,
    /// The token.
    pub token: Option<Token>,
    /// The round.
    pub round: Round,
    /// The keys that are behind: for these keys, the member leaves at a lower round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<Behind>,
}

impl Request for Leave {
    type Answer = job::Leave;

    fn apply(self, hub: &mut Hub, now: Instant) -> job::Leave {
        let MemberOf { job, rank } = self.member;
        let Some(of) = hub.job_mut(job) else { return job::Leave::Nothing };
        let leave = of.leave(rank, LeftAt { round: self.round, behind: self.behind });
        if matches!(leave, job::Leave::Left | job::Leave::Last) {
            self.token.into_iter().for_each(|token| hub.tokens.note_left((job, rank), token, now));
        }
        leave
    }
}

/// A report that a member is lost. The job fails, or continues without the member.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lose {
    /// The member.
    pub member: MemberOf,
    /// The cause.
    pub cause: Cause,
    /// The reason.
    pub reason: String,
}

impl Request for Lose {
    type Answer = Vec<Effect>;

    fn apply(self, hub: &mut Hub, now: Instant) -> Vec<Effect> {
        let MemberOf { job: id, rank } = self.member;
        let effects = hub.job_mut(id).map_or_else(Vec::new, |job| job.lose(rank, self.cause, &self.reason));
        hub.noted(id, effects, now)
    }
}
