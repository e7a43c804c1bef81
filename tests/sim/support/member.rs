//! The members of a simulated job, each with the state machine that a session has. Requests may be lost, late or
//! repeated.
//!
//! ```text
//!   a link is cut -> state machine -> ask hub k -- request: late, lost or twice --> job of hub k
//!                                                <- answer, once its cores have dropped the links: late or lost -
//!                 -> drop links -> make links, unless no path is open -> go on
//! ```

use std::time::{Duration, Instant};

use membership::{Event, Failure, Limits, Member, Step};
use worker_shim::ExchangeError;

use crate::simulated::Simulated;
use crate::trouble::Dice;

/// The time from one step to the next.
const TICK: Duration = Duration::from_millis(1);
/// The time after which a request is repeated.
const RETRY: Duration = Duration::from_millis(30);
/// The longest time that a member tries.
const LIMIT: Duration = Duration::from_secs(60);

/// The effects of the network on the messages of members.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The number of requests and answers that were lost.
    pub lost: u32,
    /// The number of requests that were repeated.
    pub again: u32,
    /// The number of requests that arrived at a hub after the member no longer waited for the answer.
    pub stale: u32,
    /// The number of failed tries to make links.
    pub tries: u32,
}

/// A message between a member and a hub, with the time of its arrival.
struct Message {
    at: Instant,
    rank: u32,
    hub: usize,
    /// The number of the request.
    request: u64,
    is_answer: bool,
}

/// A request that has no answer yet.
struct Asked {
    request: u64,
    hub: usize,
    again: Instant,
}

/// A member of the job.
struct Simulation {
    machine: Member,
    asked: Option<Asked>,
    /// The numbers of the hubs that have granted new links.
    granted: Vec<usize>,
    /// The end of a pause.
    pause: Option<Instant>,
}

/// All members of a job.
pub struct Members {
    members: Vec<Simulation>,
    messages: Vec<Message>,
    /// The requests whose hubs answer as soon as their cores have dropped the links.
    waiting: Vec<Message>,
    dice: Dice,
    now: Instant,
    requests: u64,
    hubs: usize,
    pub seen: Seen,
}

impl Members {
    /// Creates the members of a job with `hubs` hubs. Each member takes part at all hubs.
    pub fn new(seed: u64, workers: u32, hubs: usize) -> Self {
        let limits = Limits { hubs, links: LIMIT, hub: LIMIT };
        let member =
            |_| Simulation { machine: Member::linked(limits), asked: None, granted: Vec::new(), pause: None };
        Members {
            members: (0..workers).map(member).collect(),
            messages: Vec::new(),
            waiting: Vec::new(),
            dice: Dice::new(seed),
            now: Instant::now(),
            requests: 0,
            hubs,
            seen: Seen::default(),
        }
    }

    /// Whether a member has links, as far as it knows.
    pub fn has_links(&self, rank: u32) -> bool {
        let Simulation { asked, pause, .. } = &self.members[rank as usize];
        asked.is_none() && pause.is_none()
    }

    /// Returns the number of times that lost links were replaced by new links.
    pub fn relinks(&self) -> u32 {
        self.members.iter().map(|member| member.machine.relinks()).sum()
    }

    /// Tells a member that its link closed.
    ///
    /// # Panics
    /// Panics on any other error.
    pub fn closed(&mut self, job: &mut Simulated, rank: u32, error: &ExchangeError) {
        assert!(matches!(error, ExchangeError::Closed { .. }), "worker {rank}: {error}");
        self.happens(job, rank, Event::LinkEnded { may_relink: true });
    }

    /// Lets the control, the cores, the members with links, and the due messages work once.
    pub fn step(&mut self, job: &mut Simulated) {
        self.now += TICK;
        job.control().expect("cores take what the control gives them");
        (0..job.cores.len()).for_each(|core| _ = job.turn_core(core));
        for rank in 0..self.members.len() as u32 {
            if self.has_links(rank)
                && let Err(error) = job.workers[rank as usize].progress()
            {
                self.closed(job, rank, &error);
            }
            let Simulation { asked, pause, .. } = &mut self.members[rank as usize];
            if pause.take_if(|until| self.now >= *until).is_some() {
                self.happens(job, rank, Event::TimePassed);
            } else if let Some(Asked { request, hub, again }) = asked
                && self.now >= *again
            {
                let (request, hub) = (*request, *hub);
                *again = self.now + RETRY;
                self.seen.again += 1;
                self.send(rank, hub, request, false);
            }
        }
        let now = self.now;
        for message in self.messages.extract_if(.., |message| message.at <= now).collect::<Vec<_>>() {
            if message.is_answer {
                self.answered(job, &message);
            } else {
                self.asks(job, message);
            }
        }
        let dropped = |message: &mut Message| job.has_dropped_links(message.rank, message.hub);
        for message in self.waiting.extract_if(.., dropped).collect::<Vec<_>>() {
            self.send(message.rank, message.hub, message.request, true);
        }
    }

    /// Delivers a request to its hub, perhaps long after it was made.
    fn asks(&mut self, job: &mut Simulated, message: Message) {
        let asked = &self.members[message.rank as usize].asked;
        if asked.as_ref().is_none_or(|asked| asked.request != message.request) {
            self.seen.stale += 1;
        }
        job.ask_for_links(message.rank, message.hub);
        self.waiting.push(message);
    }

    /// Takes an answer. Ignores the answer if the request was answered before.
    fn answered(&mut self, job: &mut Simulated, message: &Message) {
        let Simulation { asked, granted, .. } = &mut self.members[message.rank as usize];
        if asked.take_if(|asked| asked.request == message.request).is_some() {
            granted.push(message.hub);
            self.happens(job, message.rank, Event::Granted);
        }
    }

    /// Sends a message. The message may be lost or arrive late.
    fn send(&mut self, rank: u32, hub: usize, request: u64, is_answer: bool) {
        if self.dice.below(4) == 0 {
            self.seen.lost += 1;
            return;
        }
        let at = self.now + TICK * self.dice.below(50) as u32;
        self.messages.push(Message { at, rank, hub, request, is_answer });
    }

    /// Gives an event to a member's machine, and carries out the steps that follow.
    fn happens(&mut self, job: &mut Simulated, rank: u32, event: Event) {
        let mut next = self.members[rank as usize].machine.handle(event, self.now);
        while let Some(step) = next {
            let member = &mut self.members[rank as usize];
            let done = match step {
                Step::Ask(hub) => {
                    assert!(member.asked.is_none(), "worker {rank} asks one hub at a time");
                    member.granted.truncate(hub);
                    self.requests += 1;
                    member.asked = Some(Asked { request: self.requests, hub, again: self.now + RETRY });
                    self.send(rank, hub, self.requests, false);
                    return;
                }
                Step::DropLinks => {
                    let all: Vec<usize> = (0..self.hubs).collect();
                    assert_eq!(member.granted, all, "worker {rank} asks all hubs before its links end");
                    let worker = &job.workers[rank as usize];
                    let (came, is_awaited) = (worker.traffic().received, worker.first_under_way().is_some());
                    job.drop_links(rank);
                    Event::Dropped { came, is_awaited }
                }
                // The try fails, because no path is open (as the dice decide), or because a late request made a hub
                // drop the links that it had granted.
                Step::MakeLinks if self.dice.below(4) == 0 || !job.relink(rank).expect("links are made") => {
                    self.seen.tries += 1;
                    Event::Failed(Failure::Transient)
                }
                Step::MakeLinks => Event::LinksMade,
                Step::Wait(until) => {
                    member.pause = Some(until);
                    return;
                }
                Step::GoOn => return,
                step => panic!("worker {rank} makes new links, and nobody is lost: {step:?}"),
            };
            next = self.members[rank as usize].machine.handle(done, self.now);
        }
    }
}
