//! A job: its terms, its members, and the news that its workers wait for.
//!
//! Owned by the registry, under its lock. Decides nothing about cores and connections. `life` has the states of a job, `member`
//! those of a member; `arriving` has how members come to take part, `leaving` how they and the job end, `offered` the state that rank 0
//! brings, `reached` how far members were before they lost their hub.

mod arriving;
mod leaving;
mod life;
pub(super) mod member;
mod offered;
mod reached;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use fabric::{PlannedLink, SendWindow};
use pbox_core::control::{
    HeartbeatReply, JobReply, JoinRequest, Late, Member as Taking, MemberReply, Mesh, RefusalCode, reason,
};
use pbox_core::job::Difference;
use pbox_core::{
    JobId, JobTerms, Members, Numbers, NumbersByRound, OnLoss, Placement, Restored, Round, Wire,
};
use tokio::sync::watch;

pub(crate) use arriving::Arrival;
use life::{Gathering, Life};
pub(crate) use member::Member;
use member::Standing;

use super::above::{JoinedAbove, RelinksAbove};
use super::compare::Digests;
use super::hubs::Hubs;
use super::late::Progress;
use super::links::by_nic;
use super::pace::{LastRounds, not_finite, verdict};
use super::saved::checkpoint::Checkpoints;
use super::{Because, Refusal};
use crate::asker::Asker;

/// The hub's cores that own a job's chunks.
#[derive(Debug)]
pub(crate) struct Cores {
    /// Their numbers, in the order of the placement.
    pub numbers: Vec<usize>,
    /// The placement of the hub's chunks on these cores.
    pub placement: Placement,
    /// The links of each worker to them.
    pub links: Vec<PlannedLink>,
    /// How many of the cores own chunks: all, unless the job has fewer chunks than cores.
    pub owners: usize,
}

/// One job.
#[derive(Debug)]
pub(crate) struct Job {
    pub id: JobId,
    pub name: String,
    life: Life,
    /// What the first worker asked for. The others must ask for the same.
    pub terms: Arc<JobTerms>,
    pub wire: Wire,
    /// The memory that it was promised, in bytes.
    pub promised: u64,
    /// The address of the worker that made it.
    pub owner: Option<IpAddr>,
    /// Whether it neither goes on from a checkpoint nor leaves one.
    pub trial: bool,
    /// How many keys it has, and their bytes.
    model: (usize, u64),
    pub cores: Arc<Cores>,
    /// The weights: the window of all workers, or with SSP and ASP the hub's own. `None` once the job has failed.
    pub weights: Option<Arc<SendWindow>>,
    pub members: Vec<Option<Member>>,
    /// The round that it began with.
    pub first_round: Round,
    /// Held during a cut: there is one cut at a time.
    pub cutting: Arc<tokio::sync::Mutex<()>>,
    /// The optimizer's numbers, as the workers have set them.
    pub numbers: NumbersByRound,
    pub checkpoints: Checkpoints,
    pub hubs: Hubs,
    /// The hubs above, until the job fails.
    pub above: Option<Arc<JoinedAbove>>,
    /// Whether the links to them are lost, and made again.
    pub(super) relinks_above: RelinksAbove,
    /// The mesh that its workers ask for.
    pub mesh: Option<Mesh>,
    pub progress: Progress,
    pub last_rounds: LastRounds,
    pub digests: Digests,
    pub news: watch::Sender<HeartbeatReply>,
}

impl Job {
    pub fn new(
        id: JobId,
        terms: Arc<JobTerms>,
        wire: Wire,
        cores: Arc<Cores>,
        weights: Arc<SendWindow>,
        hubs: Hubs,
        restored: Option<&Restored>,
    ) -> Self {
        let workers = terms.workers;
        let at_start = || NumbersByRound::new(Numbers::new(terms.optimizer));
        let numbers = restored.map_or_else(at_start, Restored::numbers);
        let life = Life::new(workers);
        let news = HeartbeatReply {
            version: 1,
            state: life.state(),
            members: Vec::new(),
            left: Vec::new(),
            held_up_by: Vec::new(),
            reached: None,
            lost: 0,
            refused: None,
        };
        Job {
            id,
            name: hubs.peers.job.clone(),
            life,
            terms,
            promised: 0,
            owner: None,
            trial: false,
            model: (wire.layout().keys().len(), wire.layout().model_bytes()),
            wire,
            cores,
            weights: Some(weights),
            members: (0..workers).map(|_| None).collect(),
            first_round: restored.map_or(Round(0), Restored::round),
            cutting: Arc::default(),
            numbers,
            checkpoints: Checkpoints::default(),
            hubs,
            above: None,
            relinks_above: RelinksAbove::default(),
            mesh: None,
            progress: Progress::new(),
            last_rounds: LastRounds::default(),
            digests: Digests::default(),
            news: watch::Sender::new(news),
        }
    }

    /// Refuses a worker whose request does not fit. `difference` is that of its terms.
    pub fn admits(&self, request: &JoinRequest, difference: Option<&Difference>) -> Result<(), Refusal> {
        let differs = |why| RefusalCode::TermsDiffer.because(why);
        self.check_terms(request, difference).map_err(differs)?;
        let (Job { name, terms, .. }, rank) = (self, request.rank);
        match self.members[rank as usize] {
            Some(_) => Err(RefusalCode::RankTaken.because(format!(
                "rank {rank} of job {name:?} is taken (after a crash, until the hub notices that the former worker is gone: try again); give each worker its own rank from 0 to {}, or use another job name",
                terms.workers - 1
            ))),
            None => Ok(()),
        }
    }

    /// Checks that a worker asks for what the job is. The error says what differs.
    fn check_terms(&self, request: &JoinRequest, difference: Option<&Difference>) -> Result<(), String> {
        let Job { name, hubs: Hubs { share, .. }, .. } = self;
        let rank = request.rank;
        if request.hub != share.hub {
            return Err(format!(
                "job {name:?} has this hub as {share}, worker {rank} asks for hub {} of {}; all workers of a job must \
                 name its hubs in the same order, or use another job name",
                request.hub, request.terms.hubs
            ));
        }
        match difference {
            None => {}
            Some(Difference::Keys(theirs)) => {
                return Err(format!(
                    "manifests differ in job {name:?}: {theirs}; all workers must build the same model (worker {rank})"
                ));
            }
            Some(Difference::Term { what, ours, theirs }) => {
                return Err(format!(
                    "job {name:?} has {what} {ours}, worker {rank} asks for {theirs}; all workers of a job must ask \
                     for the same, or use another job name"
                ));
            }
        }
        if request.mesh != self.mesh {
            let spoken = |mesh: &Option<Mesh>| {
                mesh.as_ref().map_or("no mesh".to_owned(), |mesh| format!("the mesh {mesh}"))
            };
            return Err(format!(
                "job {name:?} has {} at this hub, worker {rank} asks for {}; all workers of a machine must ask for the same",
                spoken(&self.mesh),
                spoken(&request.mesh)
            ));
        }
        if request.trial != self.trial {
            let spoken = |is_trial: bool| if is_trial { "a trial" } else { "no trial" };
            return Err(format!(
                "job {name:?} is {}, worker {rank} asks for {}; use another job name",
                spoken(self.trial),
                spoken(request.trial)
            ));
        }
        Ok(())
    }

    /// Whether the rank is taken now, in a job that would go on without its worker.
    pub fn may_become_free(&self, rank: u32) -> bool {
        let taken = self.members.get(rank as usize).is_some_and(Option::is_some);
        taken && self.goes_on() && self.runs()
    }

    /// A worker has joined.
    pub fn add_member(&mut self, rank: u32, worker: u64, relinks: bool, from: Option<Asker>) {
        let is_ready = self.terms.level.members == Members::Workers;
        self.members[rank as usize] = Some(Member {
            standing: Standing::Joined { is_ready },
            from,
            heard: Instant::now(),
            latest: None,
            transport: None,
            links: Vec::new(),
            worker,
            relinks: relinks && self.mesh.is_none(),
            hung_up: false,
        });
    }

    pub(super) fn member(&self, rank: u32) -> Option<&Member> {
        self.members.get(rank as usize)?.as_ref()
    }

    pub(super) fn standing(&mut self, rank: u32) -> Option<&mut Standing> {
        self.members.get_mut(rank as usize)?.as_mut().map(|member| &mut member.standing)
    }

    /// A member, in words.
    pub fn spoken(&self, rank: u32) -> String {
        match self.terms.level.members {
            Members::Workers => format!("worker {rank}"),
            Members::Hubs | Members::Mesh => format!("the hub of machine {rank}"),
        }
    }

    /// Says where a member joined from, for the log.
    pub fn place(&self, rank: u32) -> Option<String> {
        self.member(rank)?.from.as_ref().map(Asker::to_string)
    }

    /// What names a rank's worker at all hubs of the job.
    pub fn worker(&self, rank: u32) -> Option<u64> {
        self.members[rank as usize].as_ref().map(|member| member.worker)
    }

    /// The rank of a worker that is named so, as long as it is a member.
    pub fn rank(&self, worker: u64) -> Option<u32> {
        (0..self.terms.workers).find(|&rank| self.worker(rank) == Some(worker) && self.has(rank))
    }

    /// These workers take part from round `from` on, unless they were lost meanwhile.
    pub fn take_part(&mut self, ranks: &[u32], from: Round) {
        let (mut here, ahead) = (Vec::new(), self.ahead());
        for &rank in ranks {
            let from = Round(from.0.saturating_add(ahead.get(rank as usize).copied().unwrap_or(0)));
            if self.standing(rank).is_some_and(Standing::take_part) {
                here.push(Taking { rank, from });
            }
        }
        let (first, former) = (self.first_round, std::mem::replace(&mut self.life, Life::Running));
        self.publish(|news| {
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
        self.terms.on_loss == OnLoss::Continue
    }

    /// Whether the worker is a member that has not left.
    pub fn has(&self, rank: u32) -> bool {
        self.member(rank).is_some_and(|member| member.standing.is_member())
    }

    /// Whether a worker other than `rank` takes part.
    pub fn has_others(&self, rank: u32) -> bool {
        (0..self.terms.workers).any(|other| other != rank && self.takes_part(other))
    }

    /// Whether a worker takes part, with or without links.
    pub(super) fn takes_part(&self, rank: u32) -> bool {
        self.member(rank).is_some_and(|member| member.standing.takes_part())
    }

    /// These workers hold the rounds up. Returns whether they are others than before: that is news.
    pub fn held_up_by(&mut self, late: Vec<Late>) -> bool {
        let who = |late: &[Late]| late.iter().map(|late| late.who.clone()).collect::<Vec<_>>();
        let is_news = who(&late) != who(&self.news.borrow().held_up_by);
        self.news.send_if_modified(|news| {
            news.held_up_by = late;
            news.version += u64::from(is_news);
            is_news
        });
        is_news
    }

    /// A join was refused, and others gather: they hear of it, since they wait for that worker.
    pub fn refused(&self, rank: u32, from: Option<&Asker>, why: &str) {
        if self.gathers() {
            let at = from.map(|from| format!(" at {from}")).unwrap_or_default();
            self.publish(|news| news.refused = Some(format!("rank {rank}{at}: {}", reason(why))));
        }
    }

    fn describe_members(&self) -> Vec<MemberReply> {
        let describe = |(rank, member): (u32, &Member)| MemberReply {
            rank,
            silent_ms: member.heard.elapsed().as_millis() as u64,
            address: member.from.as_ref().map(|from| from.address.to_string()),
            host: member.from.as_ref().and_then(|from| from.host.as_deref().map(str::to_owned)),
            transport: member.transport.map(|transport| transport.to_string()),
            links: by_nic(&member.links),
            latest: member.latest.clone(),
        };
        let ranks = (0u32..).zip(&self.members).filter(|&(rank, _)| self.has(rank));
        ranks.filter_map(|(rank, member)| Some(describe((rank, member.as_ref()?)))).collect()
    }

    pub fn describe(&self) -> JobReply {
        let (news, rounds) = (self.news.borrow(), self.last_rounds.reply());
        let round = rounds.as_ref().map_or(Round(0), |rounds| rounds.round).max(self.progress.round());
        // A checkpoint may be newer than the hub's last look.
        let saved = self.checkpoints.last.as_ref().map_or(Round(0), |checkpoint| checkpoint.round);
        let round = round.max(saved);
        let members = self.describe_members();
        let gradients = self.last_rounds.gradients();
        let mut verdict = verdict(&news.state, round, &news.held_up_by, rounds.as_ref(), &members);
        verdict += &gradients.as_ref().map_or_else(String::new, not_finite);
        JobReply {
            name: self.name.clone(),
            state: news.state.clone(),
            workers: self.terms.workers,
            members,
            round,
            equal_before: self.digests.equal,
            promised_bytes: self.promised,
            above: self.above.as_ref().map_or_else(Vec::new, |above| above.addresses()),
            keys: self.model.0,
            model_bytes: self.model.1,
            checkpoint: self.checkpoints.last.clone(),
            checkpoint_error: self.checkpoints.error.clone(),
            held_up_by: news.held_up_by.clone(),
            checkpoint_warning: self.checkpoints.warning.clone(),
            verdict,
            rounds,
            gradients,
        }
    }
}
