//! A job: its terms, its members, and the news that its workers wait for.
//!
//! Owned by the registry, under its lock. Decides nothing about cores and connections. `arriving` has how members come to take part,
//! `leaving` how they and the job end, `offered` the state that rank 0 brings, `reached` how far members were before they lost their hub.

mod arriving;
mod leaving;
mod offered;
mod reached;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use fabric::any::Transport;
use fabric::{PlannedLink, SendWindow};
use pbox_core::control::{
    HeartbeatReply, JobReply, JobState, JoinRequest, Late, Latest, Member as Taking, MemberReply, Mesh,
    RefusalCode, reason,
};
use pbox_core::job::Difference;
use pbox_core::{
    JobId, JobTerms, Members, Numbers, NumbersByRound, OnLoss, Placement, Restored, Round, Wire,
};
use tokio::sync::watch;

pub(crate) use arriving::Arrival;

use super::above::{JoinedAbove, RelinksAbove};
use super::compare::Digests;
use super::hubs::Hubs;
use super::late::Progress;
use super::links::{MemberLink, by_nic};
use super::pace::{LastRounds, not_finite, verdict};
use super::relink::Unlinked;
use super::saved::checkpoint::Checkpoints;
use super::{Because, Refusal};
use crate::asker::Asker;

/// A worker that joined.
#[derive(Debug)]
pub(crate) struct Member {
    /// The number of cores that have its link. For a member that is going: of cores that have not let go of it yet.
    pub(super) cores: usize,
    /// The one who joined.
    pub(super) from: Option<Asker>,
    /// When its last heartbeat came.
    pub heard: Instant,
    /// Of a hub below: which of its own workers is late, as it said last.
    pub latest: Option<Latest>,
    /// The transport of its links, once it has some.
    pub transport: Option<Transport>,
    /// Its links, one for each core of the job.
    pub links: Vec<MemberLink>,
    /// Names it at all hubs of the job.
    worker: u64,
    /// Of a hub below: whether all its own members are there. A worker is always ready.
    ready: bool,
    pub(super) standing: Standing,
    /// Whether it makes its links again when they are lost.
    pub(super) relinks: bool,
    /// Its last heartbeat ended without an answer.
    pub hung_up: bool,
    /// Its links are lost, and it may make others.
    pub(super) unlinked: Option<Unlinked>,
    /// Of the connection by which it made its links again, or makes them.
    pub(super) token: Option<[u8; 16]>,
}

/// How a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Joined.
    Joined,
    /// Has connected to the data path, and does not take part yet.
    Coming,
    /// Takes part.
    Here,
    /// Left in good order, in a job that does not continue without its ranks.
    Left,
    /// Lost or left, and the job goes on. The rank is free when all cores have let go of the member.
    Going,
}

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
    pub failed_at: Option<Instant>,
    /// The round that it began with.
    pub first_round: Round,
    /// By rank, until the job begins: the round that a worker of this hub had reached when it lost a hub.
    reached: Vec<Option<Round>>,
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
    brought: offered::Brought,
    /// How many steps each key has made in the state that rank 0 brings, if it says so.
    pub brought_steps: Vec<Option<u32>>,
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
        let state = JobState::Gathering { missing: (0..workers).collect(), machines: Vec::new() };
        let news = HeartbeatReply {
            version: 1,
            state,
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
            terms,
            promised: 0,
            owner: None,
            trial: false,
            model: (wire.layout().keys().len(), wire.layout().model_bytes()),
            wire,
            cores,
            weights: Some(weights),
            members: (0..workers).map(|_| None).collect(),
            failed_at: None,
            first_round: restored.map_or(Round(0), Restored::round),
            reached: vec![None; workers as usize],
            cutting: Arc::default(),
            numbers,
            checkpoints: Checkpoints::default(),
            hubs,
            above: None,
            relinks_above: RelinksAbove::default(),
            mesh: None,
            brought: offered::Brought::Nothing,
            brought_steps: Vec::new(),
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
        taken && self.goes_on() && self.state() == JobState::Running
    }

    /// A worker has joined.
    pub fn add_member(&mut self, rank: u32, worker: u64, relinks: bool, from: Option<Asker>) {
        self.members[rank as usize] = Some(Member {
            cores: 0,
            from,
            heard: Instant::now(),
            latest: None,
            transport: None,
            links: Vec::new(),
            worker,
            ready: self.terms.level.members == Members::Workers,
            standing: Standing::Joined,
            relinks: relinks && self.mesh.is_none(),
            hung_up: false,
            unlinked: None,
            token: None,
        });
    }

    pub(super) fn member(&self, rank: u32) -> Option<&Member> {
        self.members.get(rank as usize)?.as_ref()
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
            if let Some(member) = &mut self.members[rank as usize]
                && member.standing == Standing::Coming
            {
                member.standing = Standing::Here;
                here.push(Taking { rank, from });
            }
        }
        let begins = self.state() != JobState::Running;
        // Where workers step alone, each is as far ahead as it was.
        let slowest = self.reached.iter().flatten().min().copied().filter(|_| !ahead.is_empty());
        self.reached.fill(None);
        let first = self.first_round;
        self.publish(|news| {
            if begins {
                let reached = slowest.or(news.reached);
                news.lost = reached.map_or(0, |reached| reached.0.saturating_sub(first.0));
            }
            (news.state, news.refused) = (JobState::Running, None);
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
        self.stands(rank, &[Standing::Joined, Standing::Coming, Standing::Here])
    }

    /// Whether a worker other than `rank` takes part.
    pub fn has_others(&self, rank: u32) -> bool {
        (0..self.terms.workers).any(|other| other != rank && self.stands(other, &[Standing::Here]))
    }

    pub(super) fn stands(&self, rank: u32, standings: &[Standing]) -> bool {
        self.members[rank as usize].as_ref().is_some_and(|member| standings.contains(&member.standing))
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
        if matches!(self.state(), JobState::Gathering { .. }) {
            let at = from.map(|from| format!(" at {from}")).unwrap_or_default();
            self.publish(|news| news.refused = Some(format!("rank {rank}{at}: {}", reason(why))));
        }
    }

    pub fn failed(&self) -> bool {
        self.failed_at.is_some()
    }

    pub fn state(&self) -> JobState {
        self.news.borrow().state.clone()
    }

    pub(super) fn publish(&self, change: impl FnOnce(&mut HeartbeatReply)) {
        self.news.send_modify(|news| {
            change(news);
            news.version += 1;
        });
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
