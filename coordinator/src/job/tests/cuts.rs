//! Cuts of a job over two hubs: pauses between two rounds. Steps are taken late. Requests of hub 0 to the other hub are
//! delivered late, or hub 0 gives them up.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::job;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A hub begins a cut for a snapshot. A cut of hub 0 pauses both hubs, and a cut of hub 1 pauses only hub 1.
    Snapshot(usize),
    /// Hub 0 makes a cut. Rank 1 takes part from this cut on.
    Admit,
    /// A hub takes its next step. Its chunks have reached this round.
    Step(usize, u32),
    /// A request of hub 0 is delivered. The number is its index among the requests that were not delivered.
    Deliver(usize),
    /// A request of hub 0 is delivered a second time. Nobody waits for the second answer.
    Repeat(usize),
    /// The job fails at hub 0.
    Fail,
    /// Hub 0 gives up a request, which may nevertheless be delivered.
    GiveUp(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..2_usize).prop_map(Event::Snapshot),
        6 => (0..2_usize, 5..8_u32).prop_map(|(hub, front)| Event::Step(hub, front)),
        4 => (0..3_usize).prop_map(Event::Deliver),
        1 => (0..3_usize).prop_map(Event::GiveUp),
        1 => prop_oneof![9 => Just(Event::Admit), 1 => Just(Event::Fail)],
        1 => (0..8_usize).prop_map(Event::Repeat),
    ]
}

/// A request of hub 0 that was not delivered or not answered yet.
struct Ask {
    cut: CutId,
    step: Step,
    is_delivered: bool,
    is_given_up: bool,
}

/// One of the two hubs.
struct Hub {
    job: Job,
    steps: VecDeque<(CutId, Step)>,
    is_held: bool,
    /// The round that the hub's chunks had reached when the job was last paused.
    front: Round,
    failed: bool,
    /// The cuts for which a caller waits.
    waited_for: Vec<CutId>,
    /// The snapshots that were taken, each with its cut.
    taken: Vec<(CutId, Round)>,
    /// The rounds from which rank 1 takes part.
    admitted: Vec<Round>,
}

/// Both hubs.
struct Hubs {
    hubs: [Hub; 2],
    asks: Vec<Ask>,
    /// The request of hub 0 that each cut of the other hub answers.
    answers: HashMap<CutId, usize>,
    has_given_up: bool,
}

impl Hub {
    fn new(hub: u32) -> Self {
        let mut job = gathering(2, OnLoss::Continue, Members::Workers, 1);
        job.hubs = crate::Hubs::new(
            (Share { hub, hubs: 2, ..Share::WHOLE }, Vec::new()),
            Vec::new(),
            Secret([7; 16]),
            Round(0),
            crate::Files::default(),
        );
        join(&mut job, 0);
        join(&mut job, 1);
        job.members.connect(0, Token([1; 16]), "job").unwrap();
        job.let_take_part(&[0], Round(1));
        job.members.connect(1, Token([2; 16]), "job").unwrap();
        let (steps, waited_for) = (VecDeque::new(), Vec::new());
        let (taken, admitted) = (Vec::new(), Vec::new());
        Hub { job, steps, is_held: false, front: Round(0), failed: false, waited_for, taken, admitted }
    }
}

impl Hubs {
    fn happens(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Snapshot(hub) => {
                let at = if hub == 0 { CutAt::AllHubs } else { CutAt::ThisHub };
                self.cut(hub, Purpose::Snapshot(at));
            }
            Event::Admit => self.cut(0, Purpose::Admit([1].into())),
            Event::Step(hub, front) => self.step(hub, front),
            Event::Deliver(place) => {
                let mut undelivered = (0..self.asks.len()).filter(|&ask| !self.asks[ask].is_delivered);
                if let Some(ask) = undelivered.nth(place) {
                    self.deliver(ask, now);
                }
            }
            Event::Repeat(ask) => {
                let is_delivered = self.asks.get(ask).is_some_and(|ask| ask.is_delivered);
                if is_delivered && !self.hubs[1].failed {
                    let effects = self.request(ask, now).map_or_else(|_| Vec::new(), |(_, effects)| effects);
                    self.carry_out(1, effects);
                }
            }
            Event::Fail if self.hubs[0].failed => {}
            Event::Fail => self.carry_out(0, vec![Effect::Fail("it fails".into(), Blame::Job)]),
            Event::GiveUp(place) => {
                self.has_given_up = true;
                let mut waits = (0..self.asks.len()).filter(|&ask| !self.asks[ask].is_given_up);
                if let Some(ask) = waits.nth(place) {
                    self.answer(ask, Err("no answer".into()));
                }
            }
        }
    }

    fn cut(&mut self, hub: usize, purpose: Purpose) {
        if self.hubs[hub].failed {
            return;
        }
        let is_waited_for = matches!(purpose, Purpose::Snapshot(_));
        let (cut, effects) = self.hubs[hub].job.cut(purpose, Instant::now());
        self.hubs[hub].waited_for.extend(is_waited_for.then_some(cut));
        self.carry_out(hub, effects);
    }

    fn handles(&mut self, hub: usize, event: job::Event) {
        let effects = self.hubs[hub].job.handle(event, Instant::now());
        self.carry_out(hub, effects);
    }

    fn step(&mut self, number: usize, front: u32) {
        let hub = &mut self.hubs[number];
        let Some((cut, step)) = hub.steps.pop_front() else { return };
        let stepped = match step {
            Step::Hold => {
                assert!(!std::mem::replace(&mut hub.is_held, true), "hub {number} is held twice");
                hub.front = Round(front);
                Stepped::Held(Some(Round(front)))
            }
            Step::Release { .. } => {
                assert!(std::mem::replace(&mut hub.is_held, false), "hub {number} is released, and not held");
                Stepped::Released
            }
            Step::TakeSnapshot(_, before) => {
                assert!(hub.is_held, "hub {number} is held while a snapshot is taken");
                assert!(before >= hub.front, "no chunk is past a snapshot");
                return hub.taken.push((cut, before));
            }
            step => panic!("these cuts have no such step: {step:?}"),
        };
        self.handles(number, job::Event::Cut(cut, stepped));
    }

    fn deliver(&mut self, ask: usize, now: Instant) {
        self.asks[ask].is_delivered = true;
        if self.hubs[1].failed {
            return self.answer(ask, Err("the job has failed".into()));
        }
        let (cut, effects) = match self.request(ask, now) {
            Ok(asked) => asked,
            Err(why) => return self.answer(ask, Err(why.to_string())),
        };
        if let Some(hold) = self.answers.insert(cut, ask) {
            let gave_up = self.asks[hold].is_given_up || self.hubs[0].failed;
            assert!(gave_up, "hub 0 waits for a hold, or ends it");
        }
        self.carry_out(1, effects);
    }

    /// Gives a request to the other hub.
    fn request(&mut self, ask: usize, now: Instant) -> Result<(CutId, Vec<Effect>), NotReleased> {
        let job = &mut self.hubs[1].job;
        match self.asks[ask].step.clone() {
            Step::HoldOthers(request) => Ok(job.cut(Purpose::Follow(request.cut), now)),
            Step::ReleaseOthers(request) => job.released_by_lead(request),
            step => panic!("no request: {step:?}"),
        }
    }

    /// Answers a request of hub 0, unless hub 0 has given it up.
    fn answer(&mut self, ask: usize, answer: Result<Option<Round>, String>) {
        let Ask { cut, step, is_given_up, .. } = &mut self.asks[ask];
        if std::mem::replace(is_given_up, true) {
            return;
        }
        let stepped = match step {
            Step::HoldOthers(_) => Stepped::OthersHeld(answer.map(|front| vec![front])),
            _ => Stepped::OthersReleased(answer.map(drop)),
        };
        let event = job::Event::Cut(*cut, stepped);
        self.handles(0, event);
    }

    fn carry_out(&mut self, number: usize, effects: Vec<Effect>) {
        for effect in effects {
            let hub = &mut self.hubs[number];
            match effect {
                Effect::Cut(cut, step @ (Step::HoldOthers(_) | Step::ReleaseOthers(_))) => {
                    self.asks.push(Ask { cut, step, is_delivered: false, is_given_up: false });
                }
                Effect::Cut(cut, step) => hub.steps.push_back((cut, step)),
                Effect::CutHeld(cut, front) => {
                    // Nobody waits for the answer to a request that was delivered twice.
                    if let Some(ask) = self.answers.remove(&cut) {
                        let waits_for_hold = matches!(self.asks[ask].step, Step::HoldOthers(_));
                        assert!(waits_for_hold, "a release is answered at its end");
                        self.answer(ask, Ok(front));
                    }
                }
                Effect::CutOver(cut, over) => {
                    hub.waited_for.retain(|waited_for| *waited_for != cut);
                    if let Some(ask) = (number == 1).then(|| self.answers.remove(&cut)).flatten() {
                        self.answer(ask, over.map(Some).map_err(|why| why.to_string()));
                    }
                }
                Effect::TookPart(ranks, from) => {
                    assert_eq!(*ranks, [1]);
                    assert!(from >= hub.front, "no chunk is past the round of a newcomer");
                    hub.admitted.push(from);
                }
                Effect::Lost { .. } | Effect::RemoveWorker(_) | Effect::TellLost(..) => {}
                Effect::Forget(..) | Effect::Wake => {}
                Effect::Fail(reason, _) => {
                    (hub.failed, hub.waited_for) = (true, Vec::new());
                    let effects = hub.job.fail(&reason, true, Instant::now());
                    self.carry_out(number, effects);
                }
                effect => panic!("these cuts have no such effect: {effect:?}"),
            }
        }
    }

    /// Ends everything that is in progress.
    fn settle(&mut self) {
        let is_open = |ask: &Ask| !ask.is_delivered;
        while self.hubs.iter().any(|hub| !hub.steps.is_empty()) || self.asks.iter().any(is_open) {
            self.happens(Event::Deliver(0));
            self.happens(Event::Step(0, 7));
            self.happens(Event::Step(1, 7));
        }
    }
}

proptest! {
    #[test]
    fn no_job_stays_held_and_all_hubs_are_cut_at_one_round(events in proptest::collection::vec(event(), 1..120)) {
        let mut hubs = Hubs { hubs: [Hub::new(0), Hub::new(1)], asks: Vec::new(), answers: HashMap::new(), has_given_up: false };
        events.into_iter().for_each(|event| hubs.happens(event));
        hubs.settle();
        let [lead, other] = &hubs.hubs;
        prop_assert!(lead.failed || !lead.is_held, "hub 0 is held");
        if other.is_held && !other.failed {
            prop_assert!(hubs.has_given_up, "hub 0 ends what it has begun");
            // Hub 0 does not know that the job is paused at the other hub. The pause must end nevertheless.
            let limit = Duration::from_secs(1);
            let later = Instant::now() + 4 * limit;
            let overdue = hubs.hubs[1].job.cuts.held_too_long(limit, later);
            prop_assert_eq!(overdue, Some(Effect::HeldTooLong(3 * limit)));
        } else {
            prop_assert!(other.waited_for.is_empty() || other.failed, "somebody waits at the other hub");
        }
        let [lead, other] = &hubs.hubs;
        prop_assert!(lead.waited_for.is_empty(), "somebody waits at hub 0: {:?}", lead.waited_for);
        if !lead.failed && !lead.admitted.is_empty() {
            prop_assert_eq!(&lead.admitted, &other.admitted, "the newcomer takes part everywhere from one round on");
        }
        let of_lead: Vec<Round> = lead.taken.iter().map(|&(_, before)| before).collect();
        prop_assert!(lead.failed || of_lead.len() <= other.taken.len(), "each snapshot of hub 0 has its part");
    }
}
