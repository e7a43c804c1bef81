//! Tests of a member's state machine: its steps for events in any order, and the times at which it gives up.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);
const LOST: Event = Event::LinkEnded { may_relink: true };
const HUB_LOST: Event = Event::Ended(End::HubLost);

/// Events of every kind.
const ANY: [Event; 15] = [
    LOST,
    Event::LinkEnded { may_relink: false },
    HUB_LOST,
    Event::Ended(End::JobOver),
    Event::Failed(Failure::Transient),
    Event::Failed(Failure::Permanent),
    Event::Failed(Failure::HubLost),
    Event::TakesPart,
    Event::CaughtUp,
    Event::Granted,
    Event::Dropped { came: 1, is_awaited: true },
    Event::LinksMade,
    Event::Told,
    Event::TimePassed,
    Event::CallerGaveUp,
];

fn dropped(came: u64) -> Event {
    Event::Dropped { came, is_awaited: true }
}

/// Returns the event of a step's success. Without a step, returns a loss.
fn good_end(step: Option<Step>) -> Event {
    match step {
        Some(Step::CatchUp) => Event::CaughtUp,
        Some(Step::Ask(_)) => Event::Granted,
        Some(Step::DropLinks) => dropped(1),
        Some(Step::MakeLinks) => Event::LinksMade,
        Some(Step::Wait(_)) => Event::TimePassed,
        Some(Step::Explain(_)) => HUB_LOST,
        Some(Step::TellLoss) => Event::Told,
        Some(Step::Join(_)) => Event::TakesPart,
        None | Some(Step::GoOn | Step::GiveUp(_)) => LOST,
    }
}

/// Whether an event can be the end of a step.
fn ends(step: Step, event: Event) -> bool {
    match event {
        Event::Failed(_) => !matches!(step, Step::Explain(_) | Step::TellLoss | Step::Wait(_)),
        Event::Ended(_) => matches!(step, Step::Explain(_)),
        Event::CallerGaveUp => matches!(step, Step::Wait(_)),
        Event::Dropped { .. } => step == Step::DropLinks,
        event => event == good_end(Some(step)) && event != LOST,
    }
}

/// A member, its current step, and a clock.
struct Life {
    member: Member,
    limits: Limits,
    under_way: Option<Step>,
    has_joined: bool,
    is_over: bool,
    now: Instant,
    /// The time of the loss from which the member recovers.
    since: Instant,
    /// The time of the first loss of links since the member joined or returned.
    first_loss: Option<Instant>,
}

impl Life {
    fn new(limits: Limits) -> Self {
        let (now, member) = (Instant::now(), Member::new(limits));
        let under_way = Some(Step::Join(now));
        Life {
            member,
            limits,
            under_way,
            has_joined: false,
            is_over: false,
            now,
            since: now,
            first_loss: None,
        }
    }

    /// Returns a member that takes part, and that may wait for its hubs.
    fn linked(hubs: usize) -> Self {
        let mut life = Life::new(Limits { hubs, links: LIMIT, hub: LIMIT });
        life.takes([Event::TakesPart, Event::CaughtUp]);
        life
    }

    /// Handles an event, and checks the invariants.
    fn take(&mut self, event: Event) -> Option<Step> {
        let next = self.member.handle(event, self.now)?;
        assert!(!self.is_over, "{next:?} after the end");
        match self.under_way {
            Some(step) if self.has_joined => assert!(ends(step, event), "{event:?} is no end of {step:?}"),
            Some(_) => {}
            None => self.since = self.now,
        }
        match next {
            Step::Wait(until) => {
                assert!(until > self.now && until <= self.now + PAUSE, "a pause is short");
                let is_hub = matches!(self.under_way, Some(Step::Join(_) | Step::CatchUp | Step::TellLoss));
                let limit = if is_hub { self.limits.hub } else { self.limits.links };
                assert!(self.now < self.since + limit, "no pause begins behind the limit");
            }
            Step::TellLoss if event == HUB_LOST => self.since = self.now,
            Step::Ask(0) => _ = self.first_loss.get_or_insert(self.now),
            Step::Explain(Some(Over::NoAnswer(limit))) => {
                assert!(self.first_loss.is_some_and(|first| self.now >= first + limit), "{limit:?}");
            }
            Step::GoOn if event == Event::CaughtUp => (self.has_joined, self.first_loss) = (true, None),
            _ => {}
        }
        self.is_over = matches!(next, Step::GiveUp(_));
        self.under_way = (next != Step::GoOn).then_some(next);
        Some(next)
    }

    /// Handles events. Returns the step that follows the last event.
    fn takes(&mut self, events: impl IntoIterator<Item = Event>) -> Option<Step> {
        events.into_iter().map(|event| self.take(event)).last().flatten()
    }

    fn at(&mut self, begun: Instant, seconds: u64) {
        self.now = begun + Duration::from_secs(seconds);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Checks that there is at most one current step, and so at most one request to a hub. Only the end of this step
    /// begins another step. After the end of the membership nothing is tried. No pause begins after the limit.
    #[test]
    fn one_step_is_under_way_at_a_time_in_any_order_of_events(
        (hubs, links, hub) in (1..4usize, 0..4u64, 0..4u64),
        draws in vec((0..3u8, 0..ANY.len(), 0..1000u64), 1..150),
    ) {
        let limits = Limits { hubs, links: Duration::from_secs(links), hub: Duration::from_secs(hub) };
        let mut life = Life::new(limits);
        for (is_good, any, ms) in draws {
            let event = if is_good > 0 { good_end(life.under_way) } else { ANY[any] };
            life.now += Duration::from_millis(ms);
            life.take(event);
        }
    }

    /// Checks that a member that has lost a link or a hub soon continues or gives up, whatever fails and however quickly.
    #[test]
    fn every_wait_has_an_end(
        (hubs, links, hub) in (1..4usize, 1..3u64, 0..3u64),
        loss in prop_oneof![Just(LOST), Just(HUB_LOST)],
        failures in vec((0..6u8, 0..300u64), 200..400),
    ) {
        let limits = Limits { hubs, links: Duration::from_secs(links), hub: Duration::from_secs(hub) };
        let mut life = Life::new(limits);
        life.takes([Event::TakesPart, Event::CaughtUp, loss]);
        let mut steps = 0;
        let mut failures = failures.into_iter().cycle();
        while let (Some(step), false) = (life.under_way, life.is_over) {
            let (what, ms) = failures.next().unwrap();
            life.now = match step {
                Step::Wait(until) => until,
                _ => life.now + Duration::from_millis(ms),
            };
            let event = match what {
                0..3 if ends(step, Event::Failed(Failure::Transient)) => Event::Failed(Failure::Transient),
                3 if ends(step, Event::Failed(Failure::HubLost)) => Event::Failed(Failure::HubLost),
                _ => good_end(Some(step)),
            };
            life.take(event);
            steps += 1;
            // Every tenth of a second allows one pause and the steps of one try. The member first tries to get links,
            // then to return to a hub.
            prop_assert!(steps < 10 * (links + hub + 1) * (hubs as u64 + 6), "{:?}", life.member);
        }
    }
}

#[test]
fn all_hubs_are_asked_one_after_another_before_links_end() {
    let mut life = Life::linked(3);
    assert_eq!(life.take(LOST), Some(Step::Ask(0)));
    assert_eq!(life.take(LOST), None, "the other links end, too");
    assert_eq!(life.take(Event::Granted), Some(Step::Ask(1)));
    assert_eq!(life.take(HUB_LOST), None, "the request fails by itself");
    assert_eq!(life.take(Event::Granted), Some(Step::Ask(2)));
    assert_eq!(life.take(Event::Granted), Some(Step::DropLinks));
    assert_eq!(life.take(dropped(1)), Some(Step::MakeLinks));
    assert_eq!(life.take(Event::Failed(Failure::Transient)), Some(Step::Wait(life.now + PAUSE)));
    assert_eq!(life.take(Event::TimePassed), Some(Step::Ask(0)), "all hubs are asked again");
    assert_eq!(life.takes([Event::Granted; 3]), Some(Step::DropLinks));
    assert_eq!(life.takes([dropped(1), Event::LinksMade]), Some(Step::GoOn));
    assert_eq!(life.member.relinks(), 1);
}

#[test]
fn who_waits_for_no_hub_gives_up() {
    for (links, hub) in [(LIMIT, Duration::ZERO), (Duration::ZERO, Duration::ZERO)] {
        let limits = Limits { hubs: 1, links, hub };
        for (loss, explained) in [(HUB_LOST, false), (Event::LinkEnded { may_relink: false }, true)] {
            let mut member = Member::linked(limits);
            assert!(!member.waits_for_hubs());
            let mut step = member.handle(loss, Instant::now());
            if explained {
                assert_eq!(step, Some(Step::Explain(None)));
                step = member.handle(HUB_LOST, Instant::now());
            }
            assert_eq!(step, Some(Step::GiveUp(None)));
        }
        let step = Member::linked(limits).handle(LOST, Instant::now());
        assert_eq!(step == Some(Step::Ask(0)), !links.is_zero());
    }
}

#[test]
fn a_loss_in_the_first_join_ends_it() {
    let mut life = Life::new(Limits { hubs: 1, links: LIMIT, hub: LIMIT });
    assert_eq!(life.takes([Event::TakesPart, LOST]), Some(Step::Explain(None)));
    assert_eq!(life.take(HUB_LOST), Some(Step::GiveUp(None)), "though a later one would be survived");
}

#[test]
fn a_lost_hub_is_told_to_the_others_before_each_join_after_the_member_took_part() {
    let mut life = Life::linked(2);
    let until = life.now + LIMIT;
    assert_eq!(life.take(HUB_LOST), Some(Step::TellLoss));
    assert_eq!(life.take(Event::Told), Some(Step::Join(until)));
    assert!(matches!(life.take(Event::Failed(Failure::HubLost)), Some(Step::Wait(_))));
    assert_eq!(life.takes([Event::TimePassed, Event::TakesPart]), Some(Step::CatchUp));
    assert_eq!(life.take(Event::Failed(Failure::HubLost)), Some(Step::TellLoss));
    assert!(matches!(life.take(Event::Told), Some(Step::Wait(_))));
    assert_eq!(life.take(Event::TimePassed), Some(Step::Join(until)), "the same limit counts");
    life.now = until;
    let over = Over::Limit(LIMIT);
    assert_eq!(life.take(Event::Failed(Failure::Transient)), Some(Step::GiveUp(Some(over))));
}

#[test]
fn a_caller_that_gives_up_ends_a_pause() {
    let over = Some(Over::CallerGaveUp);
    let mut life = Life::linked(1);
    life.takes([LOST, Event::Failed(Failure::Transient)]);
    assert_eq!(life.take(Event::CallerGaveUp), Some(Step::Explain(over)));
    life.takes([HUB_LOST, Event::Told, Event::Failed(Failure::Transient)]);
    assert_eq!(life.take(Event::CallerGaveUp), Some(Step::GiveUp(over)));
}

/// Loses links several times, and reconnects after each loss but the last. `losses` has the time of each loss in
/// seconds, and the event that reports the number of answers. Returns the step that follows the last loss.
fn lose(life: &mut Life, losses: impl IntoIterator<Item = (u64, Event)>) -> Option<Step> {
    let begun = life.now;
    let mut last = None;
    for (second, dropped) in losses {
        life.at(begun, second);
        last = life.takes([LOST, Event::Granted, dropped]);
        if last == Some(Step::MakeLinks) {
            life.take(Event::LinksMade);
        }
    }
    last
}

#[test]
fn links_that_cannot_be_made_are_tried_for_the_limit() {
    let mut life = Life::linked(1);
    let begun = life.now;
    life.take(LOST);
    for second in 0..60 {
        life.at(begun, second);
        let step = life.takes([Event::Granted, dropped(10), Event::Failed(Failure::Transient)]);
        assert!(matches!(step, Some(Step::Wait(_))), "{step:?} at {second}");
        life.take(Event::TimePassed);
    }
    life.at(begun, 60);
    assert_eq!(life.take(Event::Failed(Failure::Transient)), Some(Step::Explain(Some(Over::Limit(LIMIT)))));
    assert_eq!(Over::Limit(LIMIT).to_string(), "not within 60 s");
}

#[test]
fn links_that_bring_nothing_are_not_made_for_ever() {
    let mut life = Life::linked(1);
    let losses = (0..=60).step_by(10).map(|second| (second, dropped(10)));
    let over = Over::NoAnswer(LIMIT);
    assert_eq!(lose(&mut life, losses), Some(Step::Explain(Some(over))));
    assert_eq!(life.member.relinks(), 6);
    assert_eq!(over.to_string(), "no answer arrived over the old links for 60 s");
}

#[test]
fn an_answer_begins_anew() {
    let mut life = Life::linked(1);
    let losses = [(0, 10), (50, 11), (100, 12)].map(|(second, came)| (second, dropped(came)));
    assert_eq!(lose(&mut life, losses), Some(Step::MakeLinks));
}

#[test]
fn links_that_hold_may_wait_for_an_answer() {
    let mut life = Life::linked(1);
    assert_eq!(lose(&mut life, [0, 61, 122].map(|second| (second, dropped(10)))), Some(Step::MakeLinks));
}

#[test]
fn nothing_is_missing_while_nothing_is_awaited() {
    let mut life = Life::linked(1);
    let quiet = Event::Dropped { came: 10, is_awaited: false };
    assert_eq!(lose(&mut life, (0..300).step_by(20).map(|second| (second, quiet))), Some(Step::MakeLinks));
}

#[test]
fn a_hub_that_came_back_begins_anew() {
    let mut life = Life::linked(1);
    let begun = life.now;
    lose(&mut life, [(0, dropped(10))]);
    life.takes([HUB_LOST, Event::Told, Event::TakesPart, Event::CaughtUp]);
    life.at(begun, 59);
    lose(&mut life, [(0, dropped(10))]);
    life.at(begun, 60);
    assert_eq!(lose(&mut life, [(0, dropped(10))]), Some(Step::MakeLinks), "only a second of new links");
}
