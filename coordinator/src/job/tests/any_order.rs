//! Jobs that continue without lost workers. Cores carry out their commands late, and events come in any order.
//!
//! If a job fails, its workers make another job.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::{Tokens, job};

const WORKERS: u32 = 3;
const CORES: usize = 2;

/// A command about a rank. A core has received the command, and has not carried it out yet.
#[derive(Clone, Copy, Debug)]
enum Command {
    Add,
    Drop,
    Remove,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A worker wants to join.
    Join(u32),
    /// The member connects with the token that it has.
    Connect(u32),
    /// A core carries out its next command, and reports.
    Core(usize),
    /// The cores take the next step of a cut.
    Cut,
    /// A link of a worker ends.
    LinkEnds(u32),
    /// A worker without links asks for new links.
    Relink(u32),
    HangsUp(u32),
    Heartbeat(u32),
    Lose(u32),
    Leave(u32),
}

fn event() -> impl Strategy<Value = Event> {
    let rank = || 0..WORKERS;
    prop_oneof![
        3 => rank().prop_map(Event::Join),
        3 => rank().prop_map(Event::Connect),
        8 => (0..CORES).prop_map(Event::Core),
        3 => Just(Event::Cut),
        2 => rank().prop_map(Event::LinkEnds),
        3 => rank().prop_map(Event::Relink),
        1 => rank().prop_map(Event::HangsUp),
        1 => rank().prop_map(Event::Heartbeat),
        1 => rank().prop_map(Event::Lose),
        1 => rank().prop_map(Event::Leave),
    ]
}

/// A hub with one job, as the job sees the hub.
struct Hub {
    job: Job,
    cores: Vec<VecDeque<(Command, u32)>>,
    /// The last token of each rank. `joined` has the token of the rank's join.
    tokens: Vec<Token>,
    joined: Vec<Token>,
    served: Tokens,
    given: u8,
    /// The steps of cuts that must be taken.
    steps: VecDeque<(CutId, Step)>,
    /// The news that the workers have.
    told: HeartbeatReply,
    edition: u64,
}

impl Hub {
    fn new() -> Self {
        let job = gathering(WORKERS, OnLoss::Continue, Members::Workers, CORES);
        let (cores, tokens) = (vec![VecDeque::new(); CORES], vec![Token([0; 16]); WORKERS as usize]);
        let (told, joined, served) = (job.news.now().clone(), tokens.clone(), Tokens::default());
        Hub { told, edition: 0, job, cores, tokens, joined, served, given: 0, steps: VecDeque::new() }
    }

    /// Returns a hub whose job is running.
    fn running() -> Self {
        let mut hub = Hub::new();
        let cores = || (0..CORES).map(Event::Core);
        let member = |rank| [Event::Join(rank), Event::Connect(rank)].into_iter().chain(cores());
        let steps = [Event::Cut, Event::Cut];
        (0..WORKERS).flat_map(member).chain(steps).for_each(|event| hub.happens(event));
        assert!(hub.job.life.runs());
        hub
    }

    fn tell(&mut self, command: Command, rank: u32) {
        self.cores.iter_mut().for_each(|core| core.push_back((command, rank)));
    }

    fn new_token(&mut self, rank: u32) -> Token {
        self.given += 1;
        let token = Token([self.given; 16]);
        self.served.give(token, (self.job.spec.id, rank));
        self.tokens[rank as usize] = token;
        token
    }

    fn happens(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Join(rank) if self.job.members.get(rank).is_none() => {
                self.joined[rank as usize] = self.new_token(rank);
                self.job.add_member(rank, u64::from(self.given), true, None, now);
            }
            Event::Connect(rank) => {
                let token = self.tokens[rank as usize];
                if self.job.members.has(rank) && self.job.members.connect(rank, token, "job").is_ok() {
                    assert!(
                        self.job.members.connect(rank, token, "job").is_err(),
                        "a token is valid for one connection"
                    );
                    self.job.members.get_mut(rank).unwrap().transport = Some(fabric::any::Transport::Tcp);
                    self.tell(Command::Add, rank);
                }
            }
            Event::Core(core) => self.obeys(core),
            Event::Cut => {
                let Some((cut, step)) = self.steps.pop_front() else { return };
                let stepped = match step {
                    Step::Hold => Stepped::Held(Some(Round(1))),
                    Step::Release { .. } => Stepped::Released,
                    step => panic!("a job of one hub has no such step: {step:?}"),
                };
                self.handles(job::Event::Cut(cut, stepped));
            }
            Event::LinkEnds(rank) => {
                let reason = "its link ended".to_owned();
                self.handles(job::Event::LinkEnded { rank, reason, by_itself: true });
            }
            Event::Relink(rank) => {
                let asked = self.job.ask_for_links(rank, "it says so", now);
                assert_eq!(
                    asked.is_ok(),
                    self.job.life.runs() && self.job.members.get(rank).is_some_and(Member::may_relink)
                );
                asked.ok().flatten().into_iter().for_each(|effect| self.carries_out(effect));
                if let Ok(Grant::Connection { former }) =
                    self.job.members.grant_links(rank, Token([self.given + 1; 16]), "job")
                {
                    former.into_iter().for_each(|former| self.served.withdraw(former));
                    self.new_token(rank);
                }
            }
            Event::HangsUp(rank) => self.handles(job::Event::HungUp(rank)),
            Event::Heartbeat(rank) => {
                let member = self.job.members.get_mut(rank).into_iter();
                member.for_each(|member| assert_eq!(member.note_heartbeat(None, false, now), Ok(())));
            }
            Event::Lose(rank) => {
                let effects = self.job.lose(rank, Cause::Other, "a test");
                effects.into_iter().for_each(|effect| self.carries_out(effect));
            }
            Event::Leave(rank) if self.job.members.has(rank) => {
                match self.job.leave(rank, LeftAt::all(Round(9))) {
                    Leave::Nothing | Leave::Refused(_) => {
                        unreachable!("the job has not failed, and no key is behind")
                    }
                    Leave::Fails(why) => self.carries_out(Effect::Fail(why, Blame::Job)),
                    Leave::Left => {
                        self.served.note_left((self.job.spec.id, rank), self.joined[rank as usize], now);
                        self.tell(Command::Remove, rank);
                    }
                    Leave::Last => {
                        assert!((0..WORKERS).all(|rank| !self.job.members.has(rank)));
                        return *self = Hub::running();
                    }
                }
            }
            Event::Join(_) | Event::Leave(_) => {}
        }
        self.publish();
        if self.job.life.failed() {
            *self = Hub::running();
        }
    }

    fn obeys(&mut self, core: usize) {
        match self.cores[core].pop_front() {
            Some((Command::Add, rank)) => self.handles(job::Event::Attached(rank)),
            Some((Command::Drop, rank)) => self.handles(job::Event::Dropped(rank)),
            Some((Command::Remove, rank)) => self.handles(job::Event::Removed(rank)),
            None => {}
        }
    }

    fn handles(&mut self, event: job::Event) {
        let effects = self.job.handle(event, Instant::now());
        effects.into_iter().for_each(|effect| self.carries_out(effect));
    }

    fn carries_out(&mut self, effect: Effect) {
        match effect {
            Effect::Cut(cut, step) => {
                self.steps.push_back((cut, step));
                assert_eq!(self.steps.len(), 1, "there is one cut at a time, and one step of it");
            }
            Effect::DropLinks(rank, token) => {
                token.into_iter().for_each(|token| self.served.withdraw(token));
                self.tell(Command::Drop, rank);
            }
            Effect::RemoveWorker(rank) => self.tell(Command::Remove, rank),
            Effect::Forget(rank, why) => {
                self.served.note_lost((self.job.spec.id, rank), &why, Instant::now())
            }
            Effect::Fail(reason, blame) => {
                let taking = (0..WORKERS).filter(|&rank| self.job.members.takes_part(rank)).count();
                assert!(!self.job.life.runs() || taking <= 1, "it goes on without lost workers");
                let effects = self.job.fail(&reason, blame == Blame::Hub, Instant::now());
                assert_eq!(effects, [], "no other hub is held");
                self.steps.clear();
            }
            Effect::Relinked(_) | Effect::Lost { .. } | Effect::TellLost(..) | Effect::Wake => {}
            Effect::TookPart(..) | Effect::CutOver(..) => {}
            effect => panic!("a job of one hub has no such effect: {effect:?}"),
        }
    }

    /// Publishes the news, as the driver does. Members see from the version that there is a change.
    fn publish(&mut self) {
        let (news, edition) = (self.job.news.now(), self.job.news.edition());
        match std::mem::replace(&mut self.edition, edition) != edition {
            true => {
                assert!(news.version >= self.told.version);
                assert!(news.version > self.told.version || news.members == self.told.members);
                self.told.clone_from(news);
            }
            false => assert_eq!(self.told, *news, "nothing is dropped"),
        }
    }

    fn check(&mut self) {
        let waits = (0..WORKERS).any(|rank| {
            self.job.members.get(rank).is_some_and(|member| member.standing.waits_for_cut(CORES))
        });
        assert!(
            !waits || self.job.life.gathers() || !self.steps.is_empty(),
            "whoever waits for a cut gets one"
        );
        for rank in 0..WORKERS {
            let is_told = self.told.members.iter().filter(|member| member.rank == rank).count();
            assert!(is_told <= 1, "rank {rank} has one owner");
            if self.job.members.get(rank).is_none() {
                assert_eq!(is_told, 0, "rank {rank} is free, and no round waits for it");
                let has_work = |core: &VecDeque<(Command, u32)>| core.iter().any(|&(_, of)| of == rank);
                assert!(!self.cores.iter().any(has_work), "rank {rank} is free, and no core has its worker");
            }
            if self.job.members.takes_part(rank) {
                assert_eq!(is_told, 1, "rank {rank} takes part");
            }
            let owner = self.served.owner(self.joined[rank as usize]);
            assert_eq!(owner.is_ok(), self.job.members.has(rank), "the token of its join serves rank {rank}");
            let serves = self.served.owner(self.tokens[rank as usize]).is_ok();
            assert!(!serves || self.job.members.has(rank), "no token serves who is gone from rank {rank}");
        }
    }
}

proptest! {
    #[test]
    fn ranks_and_news_stay_true(events in proptest::collection::vec(event(), 1..200)) {
        let mut hub = Hub::new();
        for event in events {
            hub.happens(event);
            hub.check();
        }
        // Now the cores do all their work. Then lost members are gone, and members without links may reconnect.
        for core in 0..CORES {
            while !hub.cores[core].is_empty() {
                hub.happens(Event::Core(core));
                hub.check();
            }
        }
        for rank in 0..WORKERS {
            prop_assert!(hub.job.members.has(rank) || hub.job.members.get(rank).is_none(), "rank {} is free again", rank);
            prop_assert!(hub.job.members.unlinked(rank).is_none_or(|unlinked| unlinked.is_dropped()));
        }
    }
}
