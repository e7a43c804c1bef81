//! The last state of a job over one to three hubs. Steps are taken late. Requests and answers are late, lost, or given up.
//! Hubs fail by themselves or die, and disks fail.

use std::collections::VecDeque;

use pbox_core::control::{CheckpointReply, FailedReply, FailedRequest, LastReply, LastRequest};
use pbox_core::{Front, KeyId, Piece};
use proptest::prelude::*;

use super::*;
use crate::job::{self, LastStep, LastStepped, Saved};

const LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The job fails at a hub, without a cause from outside.
    Fail(usize),
    /// A hub takes its next step on its cores or its disk. The flag says whether the step succeeds.
    Step(usize, bool),
    /// A request or an answer is delivered. The number is its index among the messages in flight.
    Deliver(usize),
    /// A hub gives up a request. The flag says whether the request is lost.
    GiveUp(usize, bool),
    Die(usize),
    /// A time of twice the limit passes, and a hub notices this.
    Sweep(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..3_usize).prop_map(Event::Fail),
        8 => (0..3_usize, prop::bool::weighted(0.97)).prop_map(|(hub, works)| Event::Step(hub, works)),
        12 => (0..4_usize).prop_map(Event::Deliver),
        1 => (0..4_usize, any::<bool>()).prop_map(|(place, is_lost)| Event::GiveUp(place, is_lost)),
        1 => prop::bool::weighted(0.2).prop_flat_map(|dies| (0..3_usize).prop_map(move |hub| match dies {
            true => Event::Die(hub),
            false => Event::Sweep(hub),
        })),
    ]
}

/// Draws whether a hub saves, and the rounds of its chunks, if it has chunks.
fn hub() -> impl Strategy<Value = (bool, Option<(u32, u32)>)> {
    let lowest = prop_oneof![9 => 0..9_u32, 1 => 80..90_u32];
    (prop::bool::weighted(0.95), prop::option::weighted(0.9, (lowest, 0..2_u32)))
}

#[derive(Clone, Debug)]
enum Request {
    Failed(FailedRequest),
    Last(LastRequest),
}

#[derive(Clone, Debug)]
enum Reply {
    Holds(FailedReply),
    Part(LastReply),
}

/// A request to a hub, its answer, and the result that the sender has.
struct Ask {
    to: usize,
    request: Request,
    is_delivered: bool,
    answer: Option<Result<Reply, String>>,
    result: Option<Result<Reply, String>>,
}

struct Hub {
    job: Job,
    saves: bool,
    front: Option<Front>,
    steps: VecDeque<LastStep>,
    /// The requests whose answers the hub waits for.
    asks: Vec<usize>,
    /// The requests of other hubs to which this hub has not answered yet.
    asked: Vec<usize>,
    is_dead: bool,
    is_held: bool,
    /// The time since which this hub has received nothing from hub 0. Used only at hubs other than hub 0.
    silent: Instant,
    written: Option<Round>,
    over: Option<Saved>,
}

struct Hubs {
    hubs: Vec<Hub>,
    asks: Vec<Ask>,
    now: Instant,
    /// Whether something other than the job has failed.
    has_trouble: bool,
}

impl Hub {
    fn new(share: Share, saves: bool, front: Option<(u32, u32)>, saved: u32) -> Self {
        let mut job = gathering(1, OnLoss::Stop, Members::Workers, 1);
        let piece = Piece { key: KeyId(0), chunks: 0..1, elements: 0..16 };
        let files = crate::Files::new((0..share.hubs).map(|hub| (hub, vec![Round(saved)])));
        job.hubs = crate::Hubs::new(
            (share, Vec::new()),
            Vec::from_iter(front.map(|_| piece)),
            Secret([7; 16]),
            Round(0),
            files,
        );
        let last = CheckpointReply { round: Round(saved), bytes: 0, milliseconds: 0, error_before: None };
        job.checkpoints.last = Some(last).filter(|_| saved > 0);
        join(&mut job, 0);
        job.members.connect(0, crate::Token([1; 16]), "job").unwrap();
        job.let_take_part(&[0], Round(0));
        Hub {
            job,
            saves,
            front: front
                .map(|(lowest, ahead)| Front { lowest: Round(lowest), highest: Round(lowest + ahead) }),
            steps: VecDeque::new(),
            asks: Vec::new(),
            asked: Vec::new(),
            is_dead: false,
            is_held: false,
            silent: Instant::now(),
            written: None,
            over: None,
        }
    }
}

impl Hubs {
    fn happens(&mut self, event: Event) {
        let count = self.hubs.len();
        match event {
            Event::Fail(hub) if hub < count && !self.hubs[hub].is_dead => self.fail(hub, "a worker died"),
            Event::Step(hub, works) if hub < count => self.step(hub, works),
            Event::Deliver(place) => {
                let under_way = |ask: &Ask| !ask.is_delivered || ask.answer.is_some() && ask.result.is_none();
                let mut asks = (0..self.asks.len()).filter(|&ask| under_way(&self.asks[ask]));
                asks.nth(place).into_iter().for_each(|ask| self.deliver(ask));
            }
            Event::GiveUp(place, is_lost) => {
                let mut asks = (0..self.asks.len()).filter(|&ask| self.asks[ask].result.is_none());
                if let Some(ask) = asks.nth(place) {
                    self.has_trouble = true;
                    self.asks[ask].is_delivered |= is_lost;
                    self.comes(ask, Err("no answer".into()));
                }
            }
            Event::Die(hub) if hub < count => {
                self.has_trouble = true;
                self.hubs[hub].is_dead = true;
                self.hubs[hub].steps.clear();
                for ask in std::mem::take(&mut self.hubs[hub].asked) {
                    self.asks[ask].answer = Some(Err("it died".into()));
                }
            }
            Event::Sweep(hub) if hub < count => self.sweep(hub, 2 * LIMIT),
            _ => {}
        }
    }

    fn fail(&mut self, number: usize, reason: &str) {
        let (hub, now) = (&mut self.hubs[number], self.now);
        if hub.job.life.failed() {
            return;
        }
        let effects = match hub.saves {
            true => hub.job.fail_and_save((reason, Blame::Job), false, now),
            false => hub.job.fail(reason, false, now),
        };
        self.carry_out(number, effects);
    }

    fn handles(&mut self, number: usize, stepped: LastStepped) {
        let effects = self.hubs[number].job.handle(job::Event::Last(stepped), self.now);
        self.carry_out(number, effects);
    }

    fn step(&mut self, number: usize, works: bool) {
        let bytes = 1 << number;
        let hub = &mut self.hubs[number];
        let Some(step) = hub.steps.pop_front() else { return };
        self.has_trouble |= !works;
        let stepped = match step {
            LastStep::Hold => {
                assert!(!std::mem::replace(&mut hub.is_held, true), "hub {number} is held twice");
                let fronts = works.then(|| Vec::from_iter(hub.front));
                LastStepped::Held(fronts.ok_or_else(|| "a core panicked".to_owned()))
            }
            LastStep::Write(LastRequest { before, .. }) => {
                let own = hub.front.expect("it has chunks");
                assert!(hub.is_held && hub.written.is_none(), "hub {number}");
                assert!(before >= own.highest && before.is_near(own.highest), "hub {number}");
                hub.written = works.then_some(before);
                let others = self.hubs[1..].iter().filter(|other| other.front.is_some());
                let all = others.map(|other| other.written).all(|written| written == Some(before));
                assert!(number > 0 || all, "hub 0 writes a part, and another hub has none");
                let reply = CheckpointReply { round: before, bytes, milliseconds: 1, error_before: None };
                LastStepped::Written(if works { Ok(reply) } else { Err("the disk is full".into()) })
            }
            step => panic!("a step of other hubs: {step:?}"),
        };
        self.handles(number, stepped);
    }

    fn deliver(&mut self, ask: usize) {
        let Ask { to, request, is_delivered, answer, .. } = &mut self.asks[ask];
        let number = *to;
        if std::mem::replace(is_delivered, true) {
            let answer = answer.clone().expect("it is under way");
            return self.comes(ask, answer);
        }
        if self.hubs[number].is_dead {
            *answer = Some(Err("it died".into()));
            return;
        }
        let request = request.clone();
        let effects = match request {
            Request::Failed(request) => {
                self.fail(number, &request.reason);
                {
                    let job = &mut self.hubs[number].job;
                    Some(job.last.asked_to_hold(&job.hubs, self.now))
                }
            }
            Request::Last(request) => {
                let job = &mut self.hubs[number].job;
                job.last.asked_for_part(&job.hubs, request)
            }
        };
        match effects {
            Some(effects) => {
                self.hubs[number].asked.push(ask);
                self.carry_out(number, effects);
            }
            None => self.asks[ask].answer = Some(Err("it is not here".into())),
        }
    }

    /// Gives an answer to the hub that asked, or ends its wait. The hub continues once it has all answers.
    fn comes(&mut self, ask: usize, result: Result<Reply, String>) {
        if self.asks[ask].result.is_some() {
            return;
        }
        self.asks[ask].result = Some(result);
        let asks = |hub: &Hub| hub.asks.contains(&ask);
        let number = self.hubs.iter().position(asks).expect("somebody has asked");
        let results: Option<Vec<_>> =
            self.hubs[number].asks.iter().map(|&ask| self.asks[ask].result.clone()).collect();
        if let Some(results) = results.filter(|_| !self.hubs[number].is_dead) {
            let is_last = matches!(self.asks[ask].request, Request::Last(_));
            self.have_come(number, is_last, results);
        }
    }

    fn have_come(&mut self, number: usize, is_last: bool, results: Vec<Result<Reply, String>>) {
        let holds = |reply| if let Reply::Holds(holds) = reply { holds } else { panic!("{reply:?}") };
        let part = |reply| if let Reply::Part(part) = reply { part } else { panic!("{reply:?}") };
        let results = results.into_iter();
        let stepped = match (is_last, number) {
            (true, _) => LastStepped::OthersWritten(results.map(|reply| reply.map(part)).collect()),
            (false, 0) => LastStepped::OthersTold(results.map(|reply| reply.map(holds)).collect()),
            (false, _) => LastStepped::LeadTold(results.map(|reply| reply.map(holds)).next().unwrap()),
        };
        self.handles(number, stepped);
    }

    fn ask(&mut self, number: usize, to: impl IntoIterator<Item = usize>, request: &Request) {
        self.hubs[number].asks.clear();
        for to in to {
            self.hubs[number].asks.push(self.asks.len());
            let request = request.clone();
            self.asks.push(Ask { to, request, is_delivered: false, answer: None, result: None });
        }
    }

    fn answer(&mut self, number: usize, is_last: bool, answer: &Result<Reply, String>) {
        let asks = &mut self.asks;
        self.hubs[number].asked.retain(|&ask| {
            let is_answered = matches!(asks[ask].request, Request::Last(_)) == is_last;
            if is_answered {
                asks[ask].answer = Some(answer.clone());
            }
            !is_answered
        });
    }

    fn carry_out(&mut self, number: usize, effects: Vec<Effect>) {
        let count = self.hubs.len();
        for effect in effects {
            let hub = &mut self.hubs[number];
            match effect {
                Effect::Last(LastStep::TellOthers(request)) => {
                    self.ask(number, 1..count, &Request::Failed(request));
                }
                Effect::Last(LastStep::TellLead(request)) => self.ask(number, [0], &Request::Failed(request)),
                Effect::Last(LastStep::HaveWritten(hubs, request)) => {
                    let nobody = hubs.is_empty();
                    self.ask(number, hubs.into_iter().map(|hub| hub as usize), &Request::Last(request));
                    if nobody {
                        self.have_come(number, true, Vec::new());
                    }
                }
                Effect::Last(step) => hub.steps.push_back(step),
                Effect::Holds(holds) => {
                    assert!(!holds.saves || hub.saves && hub.over.is_none(), "hub {number} holds nothing");
                    assert!(!holds.saves || number == 0 || hub.is_held, "hub {number} does not hold yet");
                    hub.silent = self.now;
                    self.answer(number, false, &Ok(Reply::Holds(holds)));
                }
                Effect::HasPart(part) => {
                    let bytes = part.as_ref().map_or(0, |part| part.bytes);
                    assert_eq!(number > 0 && bytes > 0, number > 0 && hub.written.is_some(), "hub {number}");
                    self.answer(number, true, &part.map(Reply::Part));
                }
                Effect::LastOver(saved) => {
                    assert_eq!(hub.over.replace(saved), None, "hub {number} ends twice");
                    hub.is_held = false;
                }
                effect => panic!("no such effect: {effect:?}"),
            }
        }
    }

    fn sweep(&mut self, number: usize, time: Duration) {
        self.now += time;
        let (hub, now) = (&mut self.hubs[number], self.now);
        if hub.is_dead || !hub.job.life.failed() {
            return;
        }
        let effects = hub.job.handle(job::Event::Swept(LIMIT), now);
        assert!(effects.is_empty() || now - hub.silent > 3 * LIMIT, "hub {number} does not wait");
        self.has_trouble |= !effects.is_empty();
        self.carry_out(number, effects);
    }

    /// Ends everything that is in progress, and then lets time pass.
    fn settle(&mut self) {
        for _ in 0..100 {
            self.happens(Event::Deliver(0));
            (0..3).for_each(|hub| self.happens(Event::Step(hub, true)));
        }
        let had_trouble = self.has_trouble;
        for hub in 0..self.hubs.len() {
            self.sweep(hub, 3 * LIMIT + Duration::from_secs(1));
        }
        assert_eq!(self.has_trouble, had_trouble, "a hub waits though nothing is lost");
        (0..100).for_each(|_| self.happens(Event::Deliver(0)));
    }

    /// Checks that all hubs have saved the state, if nothing went wrong.
    fn check_all_saved(&self, saved: u32) {
        let fronts = || self.hubs.iter().filter_map(|hub| hub.front);
        let (lowest, highest) =
            (fronts().map(|front| front.lowest).min(), fronts().map(|front| front.highest).max());
        let Some((lowest, highest)) = lowest.zip(highest) else { return };
        if !fronts().all(|front| highest.is_near(front.highest)) {
            return;
        }
        let before = (lowest > Round(0) && highest > Round(saved)).then_some(highest);
        for (number, hub) in self.hubs.iter().enumerate() {
            assert_eq!(hub.written, before.filter(|_| hub.front.is_some()), "hub {number}");
            assert!(matches!(hub.over, Some(Ok(_))), "hub {number}: {:?}", hub.over);
        }
        if let Some(Ok(Some(reply))) = &self.hubs[0].over {
            let written = self.hubs.iter().enumerate().filter(|(_, hub)| hub.written.is_some());
            assert_eq!(reply.bytes, written.map(|(number, _)| 1 << number).sum::<u64>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn all_hubs_save_one_round_and_every_wait_ends(
        of_hubs in proptest::collection::vec(hub(), 1..4),
        saved in 0..9_u32,
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let count = of_hubs.len() as u32;
        let share = |hub| Share { hub, hubs: count, ..Share::WHOLE };
        let hub = |(number, (saves, front))| Hub::new(share(number), saves, front, saved);
        let all_save = of_hubs.iter().all(|(saves, _)| *saves);
        let hubs = (0..).zip(of_hubs).map(hub).collect();
        let mut hubs = Hubs { hubs, asks: Vec::new(), now: Instant::now(), has_trouble: false };
        events.into_iter().for_each(|event| hubs.happens(event));
        hubs.settle();
        for (number, hub) in hubs.hubs.iter().enumerate().filter(|(_, hub)| !hub.is_dead) {
            prop_assert!(!hub.job.last.is_being_saved() && !hub.is_held, "hub {} keeps the name", number);
            prop_assert_eq!(hub.over.is_some(), hub.saves && hub.job.life.failed(), "hub {}", number);
            prop_assert!(hub.asked.is_empty(), "hub {} does not answer", number);
        }
        let written: Vec<Round> = hubs.hubs.iter().filter_map(|hub| hub.written).collect();
        prop_assert!(written.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", written);
        if all_save && !hubs.has_trouble && hubs.hubs.iter().any(|hub| hub.job.life.failed()) {
            hubs.check_all_saved(saved);
        }
    }
}
