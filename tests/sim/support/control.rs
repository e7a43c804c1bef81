//! The control of a simulated hub: the coordinator's job, cores that carry commands out late, and reports that come late.
//!
//! ```text
//!   event -> job -> effects -> commands, a queue for each core -> core -> reports, one queue -> event
//! ```
//!
//! The driver of a real hub does the same with threads. Both queues keep their order, and the caller decides when something
//! leaves one. After each event the control checks what must always be true; a failure prints the story so far.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::{
    Cause, CutId, Effect, Event, Grant, Hubs, Made, Purpose, Secret, Step, Stepped, Token, Tokens,
};
use fabric::any::Transport;
use fabric::{RecvWindow, Spans, sim};
use pbox_core::control::{ArrivedRequest, ReleaseRequest};
use pbox_core::{JobTerms, Notice, Numbers, NumbersByRound, Round, Share};

use crate::hubs::Letter;
use crate::simulated::JOB;

/// The last lines of a story are those that matter.
const TOLD: usize = 60;
/// The time from one step to the next.
const TICK: Duration = Duration::from_millis(1);

/// Work for a simulated core.
pub enum Command {
    /// Take a worker's link.
    Add { rank: u32, gradients: Arc<RecvWindow>, own: Option<Spans>, link: Box<sim::Endpoint> },
    /// Drop the link of a worker that makes another.
    Unlink(u32),
    /// Remove a worker.
    Remove(u32),
    /// Finish no round.
    Hold(CutId),
    /// Go on.
    Release { cut: CutId, from: Round, admitted: Arc<[u32]>, ahead: Arc<[u32]> },
}

impl fmt::Display for Command {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Add { rank, .. } => write!(out, "takes the link of worker {rank}"),
            Command::Unlink(rank) => write!(out, "drops the link of worker {rank}"),
            Command::Remove(rank) => write!(out, "removes worker {rank}"),
            Command::Hold(cut) => write!(out, "holds for {cut:?}"),
            Command::Release { cut, from, admitted, .. } => {
                write!(out, "goes on after {cut:?}, with {admitted:?} from round {}", from.0)
            }
        }
    }
}

/// The control of a hub with one job.
pub struct Control {
    /// The job.
    pub job: coordinator::Job,
    /// What each core has been told, and has not done yet.
    commands: Vec<VecDeque<Command>>,
    /// What the cores have done, and the job has not been told yet.
    reports: VecDeque<Event>,
    /// The cores that have not answered the step of a cut yet, and the highest of the fronts.
    answers: (usize, Option<Round>),
    /// The ranks that take part since the last look, each with its first round.
    begun: Vec<(u32, Round)>,
    /// What other hubs are asked, or told.
    pub letters: Vec<Letter>,
    /// At another hub than hub 0: the cut of hub 0 that each cut here answers, and whether by its end.
    follows: HashMap<CutId, (CutId, bool)>,
    /// Why the job has failed.
    pub failed: Option<String>,
    now: Instant,
    tokens: Tokens,
    given: u128,
    story: VecDeque<String>,
}

impl Drop for Control {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last of what happened:");
            self.story.iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

impl Control {
    /// The control of a job that gathers, at the hub of this share, on this many cores.
    pub fn new(terms: &Arc<JobTerms>, cores: usize, share: Share) -> Self {
        let hubs = Hubs::new(share, Vec::new(), Secret([7; 16]), Round(0), Vec::new());
        let from = (Round(0), NumbersByRound::new(Numbers::new(terms.optimizer)));
        let (named, now) = ((JOB, "job".to_owned()), Instant::now());
        let made = Made { cores, ..Made::default() };
        Control {
            job: coordinator::Job::new(named, Arc::clone(terms), made, hubs, from, now),
            commands: (0..cores).map(|_| VecDeque::new()).collect(),
            reports: VecDeque::new(),
            answers: (0, None),
            begun: Vec::new(),
            letters: Vec::new(),
            follows: HashMap::new(),
            failed: None,
            now,
            tokens: Tokens::default(),
            given: 0,
            story: VecDeque::new(),
        }
    }

    /// Adds a line to the story.
    pub fn tell(&mut self, line: String) {
        if self.story.len() == TOLD {
            self.story.pop_front();
        }
        self.story.push_back(line);
    }

    /// Gives a worker a new token.
    fn token(&mut self, rank: u32) -> Token {
        self.given += 1;
        let token = self.given.to_be_bytes();
        self.tokens.give(token, (JOB, rank));
        token
    }

    /// Lets a worker join, and connects it. Its links come by [`add`](Self::add).
    pub fn join(&mut self, rank: u32, worker: u64) {
        assert!(self.job.member(rank).is_none(), "rank {rank} is taken");
        self.tell(format!("worker {rank} joins"));
        let token = self.token(rank);
        self.job.add_member(rank, worker, true, None, self.now);
        self.connect(rank, token);
    }

    fn connect(&mut self, rank: u32, token: Token) {
        assert_eq!(self.tokens.owner(token), Ok((JOB, rank)), "a new token serves its member");
        self.job.connect(rank, token).expect("a new token is good for a connection");
        assert!(self.job.connect(rank, token).is_err(), "a token is good for one connection");
        self.job.members[rank as usize].as_mut().expect("it has joined").transport = Some(Transport::Tcp);
    }

    /// Gives a core a worker's link.
    pub fn add(
        &mut self,
        core: usize,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: Option<Spans>,
        link: sim::Endpoint,
    ) {
        self.commands[core].push_back(Command::Add { rank, gradients, own, link: Box::new(link) });
    }

    /// Notes that a worker has died: its heartbeat ends.
    pub fn hangs_up(&mut self, rank: u32) {
        self.reports.push_back(Event::HungUp(rank));
    }

    /// A worker that lives gives its links up, and asks for others.
    pub fn unlink(&mut self, rank: u32) {
        let lost = self.job.ask_for_links(rank, "it says so", self.now).expect("it takes part, and lives");
        lost.into_iter().for_each(|effect| self.carry_out(effect));
        self.check();
    }

    /// A worker that has asked for links connects, if all cores have dropped the former links. Returns whether it does.
    pub fn relink(&mut self, rank: u32) -> bool {
        let token = self.token(rank);
        let granted = self.job.grant_links(rank, token).expect("the job goes on");
        let Grant::Connection { former } = granted else {
            self.tokens.withdraw(token);
            return false;
        };
        former.into_iter().for_each(|former| self.tokens.withdraw(former));
        self.connect(rank, token);
        self.tell(format!("worker {rank} makes its links again"));
        true
    }

    /// Whether all cores have dropped the links of a worker that has asked for others.
    pub fn has_dropped(&mut self, rank: u32) -> bool {
        self.job.unlinked(rank).is_some_and(|unlinked| unlinked.is_dropped())
    }

    /// Loses a worker.
    pub fn lose(&mut self, rank: u32, cause: Cause, reason: &str) {
        let effects = self.job.lose(rank, cause, reason);
        self.carry_out_all(effects);
    }

    /// Cuts the job for hub 0.
    pub fn follow(&mut self, of_lead: CutId, purpose: Purpose) {
        let (cut, effects) = self.job.cut(purpose, self.now);
        self.follows.insert(cut, (of_lead, false));
        self.carry_out_all(effects);
    }

    /// Ends a cut that hub 0 leads.
    pub fn released_by_lead(&mut self, of_lead: CutId, request: ReleaseRequest) {
        match self.job.released_by_lead(request) {
            Ok((cut, effects)) => {
                self.follows.insert(cut, (of_lead, true));
                self.carry_out_all(effects);
            }
            Err(why) => self.letters.push(Letter::Released(of_lead, Err(why.to_string()))),
        }
    }

    /// Notes, as hub 0, that a hub has all links of a newcomer.
    pub fn arrived(&mut self, request: &ArrivedRequest) {
        if self.failed.is_none() {
            let effects = self.job.arrived_at(request.hub, request.worker, self.now);
            self.carry_out_all(effects);
        }
    }

    fn carry_out_all(&mut self, effects: Vec<Effect>) {
        effects.into_iter().for_each(|effect| self.carry_out(effect));
        self.check();
    }

    /// Notes what a core has said by itself.
    pub fn hear(&mut self, notice: &Notice) {
        if let Notice::WorkerGone { rank, reason, by_itself, .. } = notice {
            let (rank, reason, by_itself) = (*rank, reason.clone(), *by_itself);
            self.reports.push_back(Event::LinkEnded { rank, reason, by_itself });
        }
    }

    /// Returns a core's next command.
    pub fn next_command(&mut self, core: usize) -> Option<Command> {
        let command = self.commands[core].pop_front()?;
        self.tell(format!("core {core} {command}"));
        Some(command)
    }

    /// Notes that a core has carried a command out.
    pub fn report(&mut self, event: Event) {
        self.reports.push_back(event);
    }

    /// Notes a core's answer to the step of a cut. The last one ends the step.
    pub fn answer(&mut self, cut: CutId, front: Option<Option<Round>>) {
        let (left, highest) = &mut self.answers;
        *left -= 1;
        *highest = front.flatten().max(*highest);
        if *left == 0 {
            let stepped = if front.is_some() { Stepped::Held(*highest) } else { Stepped::Released };
            self.reports.push_back(Event::Cut(cut, stepped));
        }
    }

    /// Takes in the next report. Returns whether there was one.
    pub fn work(&mut self) -> bool {
        self.now += TICK;
        let Some(event) = self.reports.pop_front() else { return false };
        self.tell(format!("{event:?}"));
        let effects = self.job.handle(event, self.now);
        self.carry_out_all(effects);
        self.job.news.take();
        true
    }

    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        !self.reports.is_empty() || self.commands.iter().any(|commands| !commands.is_empty())
    }

    /// Returns the ranks that take part since the last call, each with its first round.
    pub fn begun(&mut self) -> Vec<(u32, Round)> {
        std::mem::take(&mut self.begun)
    }

    fn command(&mut self, command: impl Fn() -> Command) {
        self.commands.iter_mut().for_each(|commands| commands.push_back(command()));
    }

    fn carry_out(&mut self, effect: Effect) {
        self.tell(format!("  {effect:?}"));
        match effect {
            Effect::Cut(cut, Step::HoldOthers(request)) => self.letters.push(Letter::Hold(cut, request)),
            Effect::Cut(cut, Step::ReleaseOthers(request)) => {
                self.letters.push(Letter::Release(cut, request))
            }
            Effect::CutHeld(cut, front) => {
                let (of_lead, _) = self.follows[&cut];
                self.letters.push(Letter::Held(of_lead, Ok(front)));
            }
            Effect::CutOver(cut, over) => match self.follows.remove(&cut) {
                None => {}
                Some((of_lead, true)) => {
                    let over = over.map(drop).map_err(|why| why.to_string());
                    self.letters.push(Letter::Released(of_lead, over));
                }
                Some((of_lead, false)) => {
                    let over = over.map(Some).map_err(|why| why.to_string());
                    self.letters.push(Letter::Held(of_lead, over));
                }
            },
            Effect::TellArrived(request) => self.letters.push(Letter::Arrived(request)),
            Effect::TellLost(worker, reason) => self.letters.push(Letter::Lost(worker, reason)),
            Effect::Cut(cut, step) => {
                assert_eq!(self.answers.0, 0, "one step at a time");
                self.answers = (self.commands.len(), None);
                match step {
                    Step::Hold => self.command(|| Command::Hold(cut)),
                    Step::Release { from, admitted, ahead } => self.command(|| {
                        let (admitted, ahead) = (Arc::clone(&admitted), Arc::clone(&ahead));
                        Command::Release { cut, from, admitted, ahead }
                    }),
                    step => panic!("no simulated job has such a step: {step:?}"),
                }
            }
            Effect::TookPart(ranks, _) => {
                let members = &self.job.news.now().members;
                let began = members.iter().filter(|member| ranks.contains(&member.rank));
                self.begun.extend(began.map(|member| (member.rank, member.from)));
            }
            Effect::DropLinks(rank, token) => {
                token.into_iter().for_each(|token| self.tokens.withdraw(token));
                self.command(|| Command::Unlink(rank));
            }
            Effect::RemoveWorker(rank) => self.command(|| Command::Remove(rank)),
            Effect::Forget(rank, why) => self.tokens.lost((JOB, rank), &why, self.now),
            Effect::Fail(reason, _) => self.fails(reason),
            Effect::Relinked(_) | Effect::Lost { .. } | Effect::Wake => {}
            effect => panic!("no simulated job has such an effect: {effect:?}"),
        }
    }

    fn fails(&mut self, reason: String) {
        let effects = self.job.fail(&reason, false, self.now);
        self.failed = Some(reason);
        effects.into_iter().for_each(|effect| self.carry_out(effect));
    }

    /// Checks what must always be true.
    fn check(&self) {
        if self.failed.is_some() {
            return;
        }
        let members = &self.job.news.now().members;
        for rank in 0..self.job.terms.workers {
            let owners = members.iter().filter(|member| member.rank == rank).count();
            assert!(owners <= 1, "rank {rank} has one owner");
            match self.job.member(rank) {
                None => {
                    assert_eq!(owners, 0, "rank {rank} is free, and no round waits for it");
                    let is_of_rank = |command: &Command| match command {
                        Command::Add { rank: of, .. } => *of == rank,
                        Command::Unlink(of) | Command::Remove(of) => *of == rank,
                        Command::Hold(_) | Command::Release { .. } => false,
                    };
                    let has_work = |commands: &VecDeque<_>| commands.iter().any(is_of_rank);
                    assert!(
                        !self.commands.iter().any(has_work),
                        "rank {rank} is free, and no core has its worker"
                    );
                }
                Some(member) => {
                    let waits = member.standing.waits_for_cut(self.commands.len()) && !self.job.gathers();
                    // Of several hubs, the newcomer may not be at all of them yet.
                    let waits = waits && self.job.hubs.share.is_whole();
                    assert!(!waits || self.is_busy(), "worker {rank} waits for a cut, and there is none");
                    assert!(owners == 1 || !self.job.takes_part(rank), "worker {rank} takes part");
                }
            }
        }
    }
}
