//! A job: its terms, its members, and the news that its workers wait for.
//!
//! Plain state: decides nothing about cores and connections.
//!
//! | file | what it does |
//! | --- | --- |
//! | here | what a job has, and looks at it |
//! | `spec` | has what a job is from its beginning |
//! | `life` | has the states of a job |
//! | `members` | has its members: how they come, live, are late, and go |
//! | `cut` | stops the job between two rounds |
//! | `event` | takes in what comes by itself, and says what follows |
//! | `checkpoints` | collects the parts of snapshots, and knows what became of the files |
//! | `offered` | has the state that rank 0 brings |
//! | `numbers` | has the numbers of the optimizer |
//! | `last` | has the last state saved |
//! | `news` | has the news that members hear |

mod checkpoints;
mod cut;
mod event;
mod last;
mod life;
mod members;
mod news;
mod numbers;
mod offered;
mod spec;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use pbox_core::control::{HeartbeatReply, Member as Taking, MemberReply, Mesh, RefusalCode, reason};
use pbox_core::{JobId, JobTerms, Members, NumbersByRound, OnLoss, Piece, Round};

pub use checkpoints::Checkpoints;
use cut::Cuts;
pub use cut::{CutAt, CutId, NotCut, NotReleased, Purpose, Step, Stepped};
pub use event::{Blame, Cause, Effect, Event};
use last::Last;
pub use last::{LastStep, LastStepped, Saved, Saves};
use life::{Gathering, Life};
pub use members::{Arrival, Grant, LateLimits, Leave, Member, Standing, TOLD_EVERY};
pub use news::News;
pub use numbers::Change;
pub use spec::{JobSpec, Made};

use crate::asker::Asker;
use crate::digests::Digests;
use crate::hubs::Hubs;
use crate::join::{Differs, Join};
use crate::links::by_nic;
use crate::progress::Progress;
use crate::refused::Refused;

/// The keys of a job, in its terms, and the pieces of them that its hub owns.
pub type Model = (Arc<JobTerms>, Vec<Piece>);

/// One job.
#[derive(Debug)]
pub struct Job {
    pub(crate) spec: JobSpec,
    life: Life,
    cuts: Cuts,
    pub(crate) checkpoints: Checkpoints,
    /// Its last state, while that is saved.
    last: Option<Last>,
    /// Its members, by rank.
    pub(crate) members: Vec<Option<Member>>,
    /// The round that it began with.
    first_round: Round,
    pub(crate) numbers: NumbersByRound,
    pub(crate) hubs: Hubs,
    /// How far it was at the last look.
    pub(crate) progress: Progress,
    /// Whether all members have the same weights.
    digests: Digests,
    /// The news that its members hear.
    news: News,
}

impl Job {
    /// Begins the life of a job. `from` is the round that it begins with, and the numbers by then.
    pub(crate) fn new(spec: JobSpec, hubs: Hubs, from: (Round, NumbersByRound), now: Instant) -> Self {
        let workers = spec.terms.workers;
        let life = Life::new(workers);
        Job {
            spec,
            members: (0..workers).map(|_| None).collect(),
            news: News::new(life.state()),
            life,
            cuts: Cuts::default(),
            checkpoints: Checkpoints::default(),
            last: None,
            first_round: from.0,
            numbers: from.1,
            hubs,
            progress: Progress::new(now),
            digests: Digests::default(),
        }
    }

    /// Returns its number at this hub.
    pub fn id(&self) -> JobId {
        self.spec.id
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the terms of the first worker. All workers must ask for the same.
    pub fn terms(&self) -> &Arc<JobTerms> {
        &self.spec.terms
    }

    /// Returns the decisions of the time when it was made.
    pub fn made(&self) -> &Made {
        &self.spec.made
    }

    /// Returns its hubs.
    pub fn hubs(&self) -> &Hubs {
        &self.hubs
    }

    /// Returns the optimizer's numbers, as the workers have set them.
    pub fn numbers(&self) -> &NumbersByRound {
        &self.numbers
    }

    /// Returns the news that its members hear.
    pub fn news(&self) -> &HeartbeatReply {
        self.news.now()
    }

    /// Returns the number of changes of its news, also of those that members hear of later.
    pub fn edition(&self) -> u64 {
        self.news.edition()
    }

    /// Returns the round at the last look.
    pub fn round(&self) -> Round {
        self.progress.round()
    }

    /// Returns the last round before which all members had the same weights.
    pub fn equal_before(&self) -> Option<Round> {
        self.digests.equal
    }

    /// Checks that a worker may join.
    pub(crate) fn admits(&self, join: &Join) -> Result<(), Refused> {
        self.check_terms(join).map_err(|why| Refused::new(RefusalCode::TermsDiffer, why))?;
        let (JobSpec { name, terms, .. }, rank) = (&self.spec, join.rank);
        match self.members[rank as usize] {
            Some(_) => Err(Refused::new(
                RefusalCode::RankTaken,
                format!(
                    "rank {rank} of job {name:?} is taken (after a crash, until the hub notices that the former worker is gone: try again); give each worker its own rank from 0 to {}, or use another job name",
                    terms.workers - 1
                ),
            )),
            None => Ok(()),
        }
    }

    /// Checks that a worker asks for what the job is. The error says what differs.
    fn check_terms(&self, join: &Join) -> Result<(), String> {
        let (JobSpec { name, .. }, Hubs { share, .. }) = (&self.spec, &self.hubs);
        let (rank, (hub, hubs)) = (join.rank, join.hub);
        if hub != share.hub {
            return Err(format!(
                "job {name:?} has this hub as {share}, worker {rank} asks for hub {hub} of {hubs}; all workers of a job must \
                 name its hubs in the same order, or use another job name"
            ));
        }
        match &join.differs {
            None => {}
            Some(Differs::Keys(theirs)) => {
                return Err(format!(
                    "manifests differ in job {name:?}: {theirs}; all workers must build the same model (worker {rank})"
                ));
            }
            Some(Differs::Term { what, ours, theirs }) => {
                return Err(format!(
                    "job {name:?} has {what} {ours}, worker {rank} asks for {theirs}; all workers of a job must ask \
                     for the same, or use another job name"
                ));
            }
        }
        if join.mesh != self.spec.made.mesh {
            let spoken = |mesh: &Option<Mesh>| {
                mesh.as_ref().map_or("no mesh".to_owned(), |mesh| format!("the mesh {mesh}"))
            };
            return Err(format!(
                "job {name:?} has {} at this hub, worker {rank} asks for {}; all workers of a machine must ask for the same",
                spoken(&self.spec.made.mesh),
                spoken(&join.mesh)
            ));
        }
        if join.trial != self.spec.made.trial {
            let spoken = |is_trial: bool| if is_trial { "a trial" } else { "no trial" };
            return Err(format!(
                "job {name:?} is {}, worker {rank} asks for {}; use another job name",
                spoken(self.spec.made.trial),
                spoken(join.trial)
            ));
        }
        Ok(())
    }

    /// Whether the rank is taken now, in a job that would go on without its worker.
    pub(crate) fn may_become_free(&self, rank: u32) -> bool {
        let taken = self.members.get(rank as usize).is_some_and(Option::is_some);
        taken && self.goes_on() && self.runs()
    }

    /// Notes that a worker has joined.
    pub(crate) fn add_member(
        &mut self,
        rank: u32,
        worker: u64,
        relinks: bool,
        from: Option<Asker>,
        now: Instant,
    ) {
        let is_ready = self.spec.terms.level.members == Members::Workers;
        self.members[rank as usize] = Some(Member {
            standing: Standing::Joined { is_ready },
            from,
            heard: now,
            latest: None,
            transport: None,
            links: Vec::new(),
            worker,
            relinks: relinks && self.spec.made.mesh.is_none(),
            hung_up: false,
        });
    }

    /// Returns the member of a rank, if it has one.
    pub fn member(&self, rank: u32) -> Option<&Member> {
        self.members.get(rank as usize)?.as_ref()
    }

    /// Returns the state of the member of a rank, if it has one.
    pub(crate) fn standing(&mut self, rank: u32) -> Option<&mut Standing> {
        self.members.get_mut(rank as usize)?.as_mut().map(|member| &mut member.standing)
    }

    /// Names a member, in words.
    pub fn spoken(&self, rank: u32) -> String {
        match self.spec.terms.level.members {
            Members::Workers => format!("worker {rank}"),
            Members::Hubs | Members::Mesh => format!("the hub of machine {rank}"),
        }
    }

    /// Returns what names a rank's worker at all hubs of the job.
    pub(crate) fn worker(&self, rank: u32) -> Option<u64> {
        self.members[rank as usize].as_ref().map(|member| member.worker)
    }

    /// Returns the rank of a worker that is named so, as long as it is a member.
    pub fn rank(&self, worker: u64) -> Option<u32> {
        (0..self.spec.terms.workers).find(|&rank| self.worker(rank) == Some(worker) && self.has(rank))
    }

    /// Lets these workers take part from round `from` on, unless they were lost meanwhile.
    pub(crate) fn take_part(&mut self, ranks: &[u32], from: Round) {
        let (mut here, ahead) = (Vec::new(), self.ahead());
        for &rank in ranks {
            let from = Round(from.0.saturating_add(ahead.get(rank as usize).copied().unwrap_or(0)));
            if self.standing(rank).is_some_and(Standing::take_part) {
                here.push(Taking { rank, from });
            }
        }
        let (first, former) = (self.first_round, std::mem::replace(&mut self.life, Life::Running));
        self.tell(|news| {
            if let Life::Gathering(Gathering { reached, .. }) = former {
                // Where workers step alone, each is as far ahead as it was.
                let slowest = reached.into_iter().flatten().min().filter(|_| !ahead.is_empty());
                let reached = slowest.or(news.reached);
                news.lost = reached.map_or(0, |reached| reached.0.saturating_sub(first.0));
            }
            news.refused = None;
            news.members.extend(here);
            news.members.sort_by_key(|member| member.rank);
        });
    }

    /// Whether the running job goes on without lost workers.
    pub fn goes_on(&self) -> bool {
        self.spec.terms.on_loss == OnLoss::Continue
    }

    /// Whether the worker is a member that has not left.
    pub fn has(&self, rank: u32) -> bool {
        self.member(rank).is_some_and(|member| member.standing.is_member())
    }

    /// Whether a worker other than `rank` takes part.
    pub fn has_others(&self, rank: u32) -> bool {
        (0..self.spec.terms.workers).any(|other| other != rank && self.takes_part(other))
    }

    /// Whether a worker takes part, with or without links.
    pub fn takes_part(&self, rank: u32) -> bool {
        self.member(rank).is_some_and(|member| member.standing.takes_part())
    }

    /// Notes that a join was refused. If others gather, they hear of it, since they wait for that worker.
    pub(crate) fn refused(&mut self, rank: u32, from: Option<&Asker>, why: &str) {
        if self.gathers() {
            let at = from.map(|from| format!(" at {from}")).unwrap_or_default();
            self.tell(|news| news.refused = Some(format!("rank {rank}{at}: {}", reason(why))));
        }
    }

    /// Describes the members that have not left.
    pub fn describe_members(&self, now: Instant) -> Vec<MemberReply> {
        let describe = |(rank, member): (u32, &Member)| MemberReply {
            rank,
            silent_ms: (now - member.heard).as_millis() as u64,
            address: member.from.as_ref().map(|from| from.address.to_string()),
            host: member.from.as_ref().and_then(|from| from.host.as_deref().map(str::to_owned)),
            transport: member.transport.map(|transport| transport.to_string()),
            links: by_nic(&member.links),
            latest: member.latest.clone(),
        };
        let ranks = (0u32..).zip(&self.members).filter(|&(rank, _)| self.has(rank));
        ranks.filter_map(|(rank, member)| Some(describe((rank, member.as_ref()?)))).collect()
    }
}
