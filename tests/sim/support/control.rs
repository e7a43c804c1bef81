//! The control of a job at a simulated hub. It has the coordinator's job, cores that carry out commands late, and
//! late reports. A cut is a pause of the job between two rounds.
//!
//! ```text
//!   event -> job -> effects -> commands, a queue for each core -> core -> reports, one queue -> event
//! ```
//!
//! The driver of a real hub does the same with threads. Both queues keep their order, and the caller decides
//! when something leaves a queue. After each event the control checks the invariants. If one seed is
//! replayed, the control prints a line for each event.

/// Prints a line about an event, if one seed is replayed.
macro_rules! tell {
    ($control:expr, $($words:tt)*) => {
        if $control.is_told {
            eprintln!("{}, hub {}: {}", $control.name, $control.job().hubs.share.hub, format_args!($($words)*));
        }
    };
}
pub(crate) use tell;

mod blame;
mod brought;
mod command;
mod crossed;
mod ends;
mod files;
mod last;
mod make;
mod stop;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::input::{
    Arrived, AskForLinks, Attach, Connect, CountJoin, Disconnect, GrantLinks, Happened, HeldByLead, Lose,
    MachinesReached, MissMachines, Ready, ReleasedByLead,
};
use coordinator::{
    Blame, Cause, CutId, Effect, Event, Files, Hub, Join, Made, MemberOf, Secret, Step, Stepped, Token,
};
use fabric::any::Transport;
use pbox_core::control::{
    ArrivedRequest, HeartbeatReply, JobState, JoinRequest, Member, Pass, ReleaseRequest,
};
use pbox_core::{JobId, JobTerms, Layout, Notice, Numbers, NumbersByRound, Restored, Round, Share};

use crate::counts::count;
use crate::hubs::HubMessage;
pub use blame::Harm;
use command::Command;
pub use command::LinkAbove;
use crossed::CrossedHere;
pub use files::{FilesHere, known_to};
pub use last::LastHere;
use make::{ask, hub_of};
pub use stop::{StopHere, Stopping};

/// The secret of the job.
const SECRET: Secret = Secret([7; 16]);
/// The time that passes in each step.
const TICK: Duration = Duration::from_millis(1);
/// The number of steps between two checks for silent members.
const SWEPT_EVERY: u32 = 16;
/// The longest time for which members and hubs may be silent.
const LIMIT: Duration = Duration::from_secs(10);

/// The control of a job at a hub.
pub struct Control {
    /// The hub, whose only job this is.
    hub: Hub,
    id: JobId,
    pub name: String,
    /// The commands that each core has received and not yet carried out.
    commands: Vec<VecDeque<Command>>,
    /// The reports of the cores that the job has not yet taken in.
    reports: VecDeque<Event>,
    /// The number of cores that have not yet answered the step of a cut.
    answers: usize,
    /// The cores' answers to the step of a cut: the highest round of any chunk, and the furthest round of each worker
    /// that steps alone.
    fronts: (Option<Round>, Vec<Option<Round>>),
    /// The state that rank 0 brings, and its layout, until the job begins with this state.
    brings: Option<(Arc<Layout>, Arc<Restored>)>,
    /// The ranks that have begun to take part since the last call of `begun`, each with its first round.
    begun: Vec<(u32, Round)>,
    /// The requests and messages to other hubs.
    pub messages: Vec<HubMessage>,
    /// The cuts of this hub, each with the cut of hub 0 that it follows, and whether hub 0 has released it. Empty at
    /// hub 0.
    follows: HashMap<CutId, (CutId, bool)>,
    /// The snapshots and checkpoint files.
    pub files: FilesHere,
    /// The stop of the hub.
    pub stopping: StopHere,
    /// The last state of the job, once it has failed.
    pub last: LastHere,
    /// Whether the hub saves the last state of a failed job.
    pub saves: bool,
    /// The bytes that have crossed the links of members.
    crossed: CrossedHere,
    /// The cut after which the members begin, while it waits for the hubs above.
    waits_above: Option<CutId>,
    /// The number of cores whose links to the hubs above are lost; `None` if no links are lost.
    unlinked_above: Option<usize>,
    pub failed: Option<String>,
    /// Whether cores forget a failed job, as the cores of a real hub do. If not, the caller can look at the failed
    /// job's state on the cores.
    pub forgets: bool,
    /// Whether the hub checks from time to time for silent members, as a real hub does. If not, only the caller starts
    /// such a check.
    pub is_swept: bool,
    is_dead: bool,
    now: Instant,
    ticks: u32,
    /// Whether each event is printed as it happens, because one seed is replayed.
    pub is_told: bool,
    /// The tokens that the hub has given, each with its rank.
    given: Vec<(Token, u32)>,
    /// The rounds that members had reached when they lost their hubs, by rank.
    reached: Vec<Option<Round>>,
    /// The harms that the test has done to the member of each rank, by rank.
    harms: Vec<Vec<Harm>>,
    /// The reason for the last loss of a member.
    lost: Option<String>,
    /// The news that members have got.
    last_news: HeartbeatReply,
    /// The number of times that waiting members were woken to look again.
    pub wakes: u64,
}

impl Control {
    /// Creates the control of a job that gathers its members, at the hub of this share, on `cores` cores. `owners` has
    /// the number of shards that own chunks, by hub.
    pub fn with_owners(
        named: (JobId, String),
        terms: &Arc<JobTerms>,
        share: Share,
        (cores, is_below): (usize, bool),
        owners: &[usize],
    ) -> Self {
        let made = Made { cores, is_below, owners: owners[share.hub as usize], ..Made::default() };
        let owners = Vec::from_iter((0..).zip(owners).filter(|(_, shards)| **shards > 0).map(|(hub, _)| hub));
        let files = Files::new(owners.iter().map(|&hub| (hub, Vec::new())));
        let now = Instant::now();
        let begun = (Round(0), NumbersByRound::new(Numbers::new(terms.optimizer)));
        let hub = hub_of(named.clone(), terms, share, made, (begun, &files), now);
        let (id, name) = named;
        Control {
            last_news: hub.job(id).expect("it begins").news.now().clone(),
            hub,
            id,
            name,
            commands: (0..cores).map(|_| VecDeque::new()).collect(),
            reports: VecDeque::new(),
            answers: 0,
            fronts: Default::default(),
            brings: None,
            begun: Vec::new(),
            messages: Vec::new(),
            follows: HashMap::new(),
            files: FilesHere::default(),
            stopping: StopHere::default(),
            last: LastHere::default(),
            saves: false,
            crossed: CrossedHere::default(),
            waits_above: None,
            unlinked_above: None,
            failed: None,
            forgets: false,
            is_swept: false,
            is_dead: false,
            now,
            ticks: 0,
            is_told: std::env::var_os("PHUB_SIM_SEED").is_some(),
            given: Vec::new(),
            reached: vec![None; terms.workers as usize],
            harms: vec![Vec::new(); terms.workers as usize],
            lost: None,
            wakes: 0,
        }
    }

    /// Returns the job.
    pub fn job(&self) -> &coordinator::Job {
        self.hub.job(self.id).expect("no job ends here")
    }

    fn ask<R: coordinator::Request>(&mut self, request: R) -> R::Answer {
        ask(&mut self.hub, request, self.now)
    }

    fn member(&self, rank: u32) -> MemberOf {
        MemberOf { job: self.id, rank }
    }

    /// Returns a new token for a worker.
    fn token(&mut self, rank: u32) -> Token {
        let token = Token((1 + self.given.len() as u128).to_be_bytes());
        self.given.push((token, rank));
        token
    }

    /// Lets a member join, and connects it. Call [`add`](Self::add) to make its links.
    pub fn join(&mut self, rank: u32) {
        self.join_as(rank, 1 + self.given.len() as u64);
    }

    /// Lets a worker join. The worker has the number `worker` at all hubs.
    pub fn join_as(&mut self, rank: u32, worker: u64) {
        assert!(self.job().members.get(rank).is_none(), "rank {rank} is taken");
        tell!(self, "{} joins", self.job().spec.spoken(rank));
        if self.job().life.gathers() && self.job().members.present().next().is_some() {
            self.joins_in_vain(rank);
        }
        for (token, _) in self.given.iter().filter(|(_, of)| *of == rank) {
            assert!(
                self.hub.tokens().owner(*token).is_err(),
                "a token of a former worker serves the next one"
            );
        }
        self.harms[rank as usize].clear();
        let token = self.token(rank);
        self.ask(self.join_of(rank, worker, token)).expect("its rank is free");
        self.ask(CountJoin { name: self.name.clone(), rank, from: None, refused: None });
        if rank == 0 && self.brings.is_some() {
            self.take_offer();
        }
        self.connect(rank, token);
    }

    /// Returns a worker's request to join. The worker has the number `worker` at all hubs.
    fn join_of(&self, rank: u32, worker: u64, token: Token) -> Join {
        let job = self.job();
        let request = JoinRequest { relinks: true, ..JoinRequest::new(rank, (*job.spec.terms).clone()) };
        let first_round = job.hubs.first_round;
        let pass = Pass { secret: SECRET.show(), worker, first_round, checkpoints: false };
        let share = job.hubs.share;
        let (hub, lead) = ((share.hub, share.hubs), Some(("hub 0".to_owned(), Some(pass))));
        let reached = self.reached[rank as usize];
        Join { hub, lead, reached, ..Join::new(&self.name, &request, token) }
    }

    fn connect(&mut self, rank: u32, token: Token) {
        assert_eq!(self.hub.tokens().owner(token), Ok((self.id, rank)), "a new token serves its member");
        let member = self.member(rank);
        self.ask(Connect { member, token }).expect("a new token is good for a connection");
        if self.given.len().is_multiple_of(4) {
            // The first connection fails, and the member tries another transport.
            self.ask(Disconnect { member });
            self.ask(Connect { member, token }).expect("the token is valid again");
        }
        assert!(self.ask(Connect { member, token }).is_err(), "a token is valid for one connection");
        let nics = vec!["nic0".to_owned(); self.commands.len()];
        self.ask(Attach { member, transport: Transport::Tcp.to_string(), nics });
        self.note_new_links(rank);
    }

    /// Notes that the links to hubs above are lost, and that new links will follow.
    pub fn loses_above(&mut self) {
        self.unlinked_above = Some(self.commands.len());
    }

    pub fn is_unlinked_above(&self) -> bool {
        self.unlinked_above == Some(0)
    }

    /// Whether all members have joined, and this hub only waits until the hubs above let it take part.
    pub fn waits_above(&self) -> bool {
        self.waits_above.is_some()
    }

    /// Notes that the hubs above let this hub take part from a round on. `reached` is the furthest round that a worker
    /// of any machine had reached when it lost a hub.
    pub fn begins_above(&mut self, first: Round, reached: Option<Round>) {
        if let Some(round) = reached {
            self.ask(MachinesReached { job: self.id, round }).expect("it goes on");
        }
        let cut = self.waits_above.take().expect("it waits");
        self.reports.push_back(Event::Cut(cut, Stepped::Above(Ok(Some(first)))));
    }

    /// Notes that all members of a hub below have joined, and the furthest round that they had reached when they lost a
    /// hub. Returns the round from which the hub takes part, if it takes part.
    pub fn ready(&mut self, rank: u32, reached: Option<Round>) -> Option<Round> {
        let ready = Ready { member: self.member(rank), reached };
        let effects = self.ask(ready).expect("no member is too far from others");
        self.carry_out_all(effects);
        self.first_round(rank)
    }

    /// Notes which machines are missing at the hubs above. `above` is the job's state in the news of the hubs
    /// above.
    pub fn misses_machines(&mut self, above: &JobState) {
        let machines = match above {
            JobState::Gathering { missing, .. } => missing.clone(),
            _ => Vec::new(),
        };
        self.ask(MissMachines { job: self.id, machines: machines.clone() }).expect("it goes on");
        self.publish();
        let expected = JobState::Gathering { missing: Vec::new(), machines };
        assert_eq!(self.last_news.state, expected, "the members wait for these machines");
    }

    /// Returns the round from which a member takes part, if it takes part.
    pub fn first_round(&self, rank: u32) -> Option<Round> {
        let member = self.job().news.now().members.iter().find(|member| member.rank == rank)?;
        Some(member.from)
    }

    /// Notes that a member has died for this reason, so that its heartbeat ends.
    pub fn hang_up(&mut self, rank: u32, why: Harm) {
        self.harms(rank, why);
        self.reports.push_back(Event::HungUp(rank));
    }

    /// Unlinks a living member, which then asks for new links.
    pub fn unlink(&mut self, rank: u32) {
        self.harms(rank, Harm::Cut);
        let asks = AskForLinks { member: self.member(rank), why: "it says so".to_owned() };
        let lost = self.ask(asks).expect("it takes part, and lives");
        self.carry_out_all(lost);
    }

    /// Connects a member that has asked for links, if all cores have dropped the old links.
    pub fn relink(&mut self, rank: u32) -> bool {
        // Sometimes the answer is lost, and the member repeats the request.
        let asks = if self.given.len().is_multiple_of(3) { 2 } else { 1 };
        let tokens = Vec::from_iter((0..asks).map(|_| self.token(rank)));
        for &token in &tokens {
            if !self.ask(GrantLinks { member: self.member(rank), token }).expect("the job goes on") {
                return false;
            }
        }
        self.connect(rank, tokens[asks - 1]);
        let owner = Ok((self.id, rank));
        let its = self.given.iter().filter(|(token, _)| self.hub.tokens().owner(*token) == owner);
        assert_eq!(its.count(), 2, "rank {rank} has the token of its join and that of its links");
        tell!(self, "{} makes new links", self.job().spec.spoken(rank));
        true
    }

    /// Whether all cores have dropped the links of a worker that has asked for new links.
    pub fn has_dropped(&self, rank: u32) -> bool {
        self.job().members.get(rank).is_some_and(|member| member.standing.has_dropped())
    }

    /// Loses a member.
    pub fn lose(&mut self, rank: u32, reason: &str) {
        self.loses(rank, Cause::Other, reason);
    }

    fn loses(&mut self, rank: u32, cause: Cause, reason: &str) {
        self.harms(rank, Harm::Reported(reason.to_owned()));
        let effects = self.ask(Lose { member: self.member(rank), cause, reason: reason.to_owned() });
        self.carry_out_all(effects);
    }

    /// Begins a cut of the job at the request of hub 0. `cut` is the number that hub 0 gave the cut.
    pub fn follow(&mut self, of_lead: CutId, cut: u64) {
        let (cut, effects) = self.ask(HeldByLead { job: self.id, cut }).expect("the job goes on");
        self.follows.insert(cut, (of_lead, false));
        self.carry_out_all(effects);
    }

    /// Ends a cut that hub 0 leads.
    pub fn released_by_lead(&mut self, of_lead: CutId, request: ReleaseRequest) {
        match self.ask(ReleasedByLead { job: self.id, request }).expect("the job goes on") {
            Ok((cut, effects)) => {
                if let Some((of_lead, false)) = self.follows.insert(cut, (of_lead, true)) {
                    // The hold may have its answer already.
                    self.messages.push(HubMessage::Held(of_lead, Err("it is released".to_owned())));
                }
                self.carry_out_all(effects);
            }
            Err(why) => self.messages.push(HubMessage::Released(of_lead, Err(why.to_string()))),
        }
    }

    /// Notes, at hub 0, that a hub has all links of a worker that joins.
    pub fn arrived(&mut self, request: &ArrivedRequest) {
        if self.failed.is_none() {
            let arrived = Arrived { job: self.id, hub: request.hub, worker: request.worker };
            let effects = self.ask(arrived).expect("the job goes on");
            self.carry_out_all(effects);
        }
    }

    fn carry_out_all(&mut self, effects: Vec<Effect>) {
        effects.into_iter().for_each(|effect| self.carry_out(effect));
        self.publish();
        self.note_whole();
        self.check();
    }

    /// Notes a core's report.
    pub fn handle_notice(&mut self, core: usize, notice: &Notice) {
        match notice {
            Notice::WorkerGone { rank, reason, by_itself, .. } => {
                let (rank, reason, by_itself) = (*rank, reason.clone(), *by_itself);
                if !by_itself {
                    self.harms(rank, Harm::BreaksProtocol);
                }
                self.reports.push_back(Event::LinkEnded { rank, reason, by_itself });
            }
            // The links are lost already, so their ends are no news.
            Notice::AboveGone { .. } if self.unlinked_above.is_some() => {}
            Notice::AboveGone { reason, .. } => self.fails(reason.clone(), Blame::Hub),
            Notice::JobFailed { reason, .. } => self.fails(reason.clone(), Blame::Job),
            Notice::Snapshot { taken, .. } => self.taken(core, taken),
            Notice::Skipped { .. } => {}
        }
    }

    /// Queues an event. The job takes it in after the earlier events.
    pub fn report(&mut self, event: Event) {
        self.reports.push_back(event);
    }

    /// Takes in the next report. Returns whether there was a report.
    pub fn work(&mut self) -> bool {
        self.now += TICK;
        self.ticks += 1;
        if self.is_swept && self.ticks.is_multiple_of(SWEPT_EVERY) && self.failed.is_none() {
            self.reports.push_back(Event::Swept(LIMIT));
        }
        let Some(event) = self.reports.pop_front() else {
            self.begins_with_brought();
            return false;
        };
        if !matches!(event, Event::Swept(_)) {
            tell!(self, "{event:?}");
        }
        let effects = self.ask(Happened { job: self.id, event });
        self.carry_out_all(effects);
        true
    }

    /// Publishes the news, if their version has changed. Notes which members have begun to take part.
    fn publish(&mut self) {
        let news = self.job().news.now();
        if news.version == self.last_news.version {
            return;
        }
        let news = news.clone();
        let former = std::mem::replace(&mut self.last_news, news);
        let is_new = |member: &&Member| !former.members.contains(member);
        self.begun
            .extend(self.last_news.members.iter().filter(is_new).map(|member| (member.rank, member.from)));
    }

    /// Returns the news that members have got.
    pub fn last_news(&self) -> &HeartbeatReply {
        &self.last_news
    }

    /// Whether commands or reports are in flight, or a state is being brought or saved.
    pub fn is_busy(&self) -> bool {
        self.brings.is_some() || self.saves_last() || self.has_work()
    }

    /// Whether commands or reports are in flight.
    pub fn has_work(&self) -> bool {
        !self.reports.is_empty() || self.commands.iter().any(|commands| !commands.is_empty())
    }

    /// Forgets the messages in flight, because the job has ended.
    pub fn end(&mut self) {
        self.commands.iter_mut().for_each(VecDeque::clear);
        self.reports.clear();
        self.waits_above = None;
    }

    /// Returns the ranks that have begun to take part since the last call, each with its first round.
    pub fn begun(&mut self) -> Vec<(u32, Round)> {
        std::mem::take(&mut self.begun)
    }

    fn carry_out(&mut self, effect: Effect) {
        tell!(self, "  {effect:?}");
        match effect {
            Effect::Cut(cut, Step::HoldOthers(request)) => self.messages.push(HubMessage::Hold(cut, request)),
            Effect::Cut(cut, Step::ReleaseOthers(request)) => {
                self.messages.push(HubMessage::Release(cut, request))
            }
            Effect::CutHeld(cut, front) => {
                let (of_lead, _) = self.follows[&cut];
                self.messages.push(HubMessage::Held(of_lead, Ok(front)));
            }
            Effect::CutOver(cut, over) => match self.follows.remove(&cut) {
                None => {}
                Some((of_lead, true)) => {
                    let over = over.map(drop).map_err(|why| why.to_string());
                    self.messages.push(HubMessage::Released(of_lead, over));
                }
                Some((of_lead, false)) => {
                    let over = over.map(Some).map_err(|why| why.to_string());
                    self.messages.push(HubMessage::Held(of_lead, over));
                }
            },
            Effect::TellArrived(request) => self.messages.push(HubMessage::Arrived(request)),
            Effect::TellLost(worker, reason) => self.messages.push(HubMessage::Lost(worker, reason)),
            Effect::Cut(_, Step::TakeSnapshot(occasion, before)) => {
                self.command(|| Command::Snapshot(occasion, before));
            }
            Effect::Snapshot(occasion, before, parts) => self.snapshot_over(occasion, before, parts),
            Effect::FollowPart { follow, hub, before, whole } => {
                self.messages.push(HubMessage::HasPart(follow, hub, before, whole));
            }
            Effect::Part(asked, reply) => self.answers_part(asked, reply),
            Effect::NotWhole(round, why) => {
                count("checkpoints not whole", 1);
                self.files.not_whole.push((round, why));
            }
            Effect::Wanted(want, written) => self.wanted(want, written),
            Effect::Cut(cut, Step::BeginAbove) => self.waits_above = Some(cut),
            Effect::Cut(cut, step) => {
                assert_eq!(self.answers, 0, "one step at a time");
                (self.answers, self.fronts) = (self.commands.len(), Default::default());
                match step {
                    Step::BeginBelow(first) => self.command(|| Command::BeginBelow(cut, first)),
                    Step::Hold => self.command(|| Command::Hold(cut)),
                    Step::Lines => self.command(|| Command::Lines(cut)),
                    Step::EndBefore(before, lines) => {
                        self.command(|| Command::EndBefore(cut, before, Arc::clone(&lines)));
                    }
                    Step::Release { from, admitted, ahead } => self.command(|| {
                        let (admitted, ahead) = (Arc::clone(&admitted), Arc::clone(&ahead));
                        Command::Release { cut, from, admitted, ahead }
                    }),
                    step => panic!("no simulated job has such a step: {step:?}"),
                }
            }
            Effect::DropLinks(rank, _) => self.command(|| Command::Unlink(rank)),
            Effect::RemoveWorker(rank) => self.command(|| Command::Remove(rank)),
            Effect::Lost { rank, cause, reason, .. } => self.check_lost(rank, cause, &reason),
            Effect::Fail(reason, blame) => {
                self.check_fails(&reason);
                self.fails(reason, blame);
            }
            Effect::HeldTooLong(limit) => {
                self.fails(format!("hub 0 holds the job for more than {limit:?}"), Blame::Hub);
            }
            Effect::Wake => self.wakes += 1,
            Effect::Last(step) => self.last_step(step),
            Effect::Holds(holds) => self.tells_holds(&holds),
            Effect::HasPart(part) => self.tells_part(part),
            Effect::LastOver(saved) => self.last_is_over(saved),
            Effect::TookPart(..) | Effect::Relinked(_) | Effect::Forget(..) => {}
            effect => panic!("no simulated job has such an effect: {effect:?}"),
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        if self.failed.is_some() {
            return;
        }
        let members = &self.job().news.now().members;
        for rank in 0..self.job().spec.terms.workers {
            let owners = members.iter().filter(|member| member.rank == rank).count();
            assert!(owners <= 1, "rank {rank} has one owner");
            match self.job().members.get(rank) {
                None => {
                    assert_eq!(owners, 0, "rank {rank} is free, and no round waits for it");
                    let is_of_rank = |command: &Command| match command {
                        Command::Add { rank: of, .. } => *of == rank,
                        Command::Unlink(of) | Command::Remove(of) => *of == rank,
                        _ => false,
                    };
                    let has_work = |commands: &VecDeque<_>| commands.iter().any(is_of_rank);
                    assert!(
                        !self.commands.iter().any(has_work),
                        "rank {rank} is free, and no core has its worker"
                    );
                }
                Some(member) => {
                    let waits =
                        member.standing.waits_for_cut(self.commands.len()) && !self.job().life.gathers();
                    // With several hubs, a worker that joins may wait because it has not joined all hubs yet.
                    let waits = waits && self.job().hubs.share.is_whole();
                    // Nobody begins to take part in a job that ends.
                    let waits = waits && !self.is_closed();
                    assert!(!waits || self.is_busy(), "worker {rank} waits for a cut, and there is none");
                    assert!(owners == 1 || !self.job().members.takes_part(rank), "worker {rank} takes part");
                }
            }
        }
    }
}
