//! The state machine of a job's member, from its join to its end: its state, and its next step. Workers use it, and so do
//! hubs below other hubs.
//!
//! In each state except `Linked` and `Over`, the driver carries out one step. The end of this step is the next event.
//!
//! | state | event | next state | step |
//! | --- | --- | --- | --- |
//! | `Joining` | the member takes part | `CatchingUp` | receive the first weights |
//! | `CatchingUp` | the weights have arrived | `Linked` | continue |
//! | `Joining`, `CatchingUp` | a link ended | `Explaining` | ask the hubs why |
//! | `Linked` | a link ended, and the hubs wait for new links | `Asking` hub 0 | ask hub 0 for new links |
//! | `Linked` | a link ended, and the hubs do not wait | `Explaining` | ask the hubs why |
//! | `Asking` hub k | hub k waits for new links | `Asking` hub k + 1 | ask hub k + 1 |
//! | `Asking` the last hub | the last hub waits, too | `Dropping` | drop the old links |
//! | `Dropping` | the old links are dropped, and answers had arrived in time | `Making` | make new links |
//! | `Making` | the new links are made | `Linked` | continue |
//! | `Asking`, `Dropping`, `Making` | the step failed, and may be retried | `Pausing` | wait |
//! | `Pausing` | the pause is over | `Asking` hub 0 | ask hub 0 for new links |
//! | all states with lost links | the step failed permanently, or for too long | `Explaining` | ask the hubs why |
//! | `Explaining`, `Linked` | a hub is lost, and the member waits for hubs | `Telling` | notify the job's other hubs |
//! | `Explaining`, `Linked` | the membership ended in another way | `Over` | give up |
//! | `Telling` | the hubs are notified | `Rejoining` | join again |
//! | `Rejoining` | the member takes part | `Recovering` | continue from the hub's weights |
//! | `Recovering` | the weights have arrived | `Linked` | continue |
//! | `Recovering` | a hub is lost again | `Telling`, then `Away` | notify the job's other hubs |
//! | `Rejoining`, `Recovering` | the step failed, and may be retried | `Away` | wait |
//! | `Away` | the pause is over | `Rejoining` | join again |
//! | all states with a lost hub | the step failed permanently, or for too long | `Over` | give up |
//!
//! Every other event changes nothing, because the current step fails by itself if its hub has ended. A member that leaves needs
//! no state: its program drops the state machine. No I/O, no clock, no threads: time is an argument. Must not depend on errors,
//! hubs' addresses, or the content of links.

use std::fmt;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// The pause before the member tries again to join. The member must poll, because no event reports that a path works again, or
/// that a hub listens.
const PAUSE: Duration = Duration::from_millis(100);

/// A member of a job.
#[derive(Clone, Debug)]
pub struct Member {
    limits: Limits,
    state: State,
    relinks: u32,
    /// The time since which an answer is missing, and the number of answers at that time.
    unanswered: Option<(Instant, u64)>,
}

/// The number of a member's hubs, and the time limits after a loss.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of the job's hubs.
    pub hubs: usize,
    /// The time limit for making new links, and for links that bring no answer.
    pub links: Duration,
    /// The time limit for the return of a lost hub. With zero, the loss of a hub ends the membership.
    pub hub: Duration,
}

/// An event of a member: something happened, or its step has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All hubs let the member take part.
    TakesPart,
    /// The member has the weights with which it begins or continues.
    CaughtUp,
    /// A link ended.
    LinkEnded {
        /// Whether the hubs wait for new links of this member, according to the news.
        may_relink: bool,
    },
    /// The hub that was asked waits for new links.
    Granted,
    /// The old links are dropped.
    Dropped {
        /// The number of answers that arrived over these links and all earlier links. A part of an answer counts, too.
        came: u64,
        /// Whether an answer is missing.
        is_awaited: bool,
    },
    /// The new links are made.
    LinksMade,
    /// The step failed.
    Failed(Failure),
    /// The news or an answer of a hub ends the membership.
    Ended(End),
    /// The job's other hubs have been notified.
    Told,
    /// The pause is over.
    TimePassed,
    /// The member's own program no longer waits.
    CallerGaveUp,
}

/// The kind of a step's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The step may be retried.
    Transient,
    /// No retry can succeed.
    Permanent,
    /// A hub of the job was lost during the step.
    HubLost,
}

/// The way in which a membership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A hub of the job is lost, or stops.
    HubLost,
    /// The job is over for this member.
    JobOver,
}

/// A step of a member, which its driver carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Receive the weights with which the member begins or continues.
    CatchUp,
    /// Ask the hub of this number for new links.
    Ask(usize),
    /// Drop the links. The hubs have already granted new links. So no hub concludes from the end of the old links on shared
    /// memory that the member died.
    DropLinks,
    /// Make links to all hubs, and send again all pushes that have no answer.
    MakeLinks,
    /// Wait until this time, or until the member's program gives up.
    Wait(Instant),
    /// Ask the hubs why a link ended. If there is a reason, also report to the hubs that this member does not
    /// reconnect. Until this report, other members wait for this member.
    Explain(Option<Over>),
    /// Notify the job's other hubs that one hub is lost.
    TellLoss,
    /// Join again, at all hubs that answer before this time.
    Join(Instant),
    /// Continue.
    GoOn,
    /// Give up.
    GiveUp(Option<Over>),
}

/// The reason why a member no longer tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The member has tried for this time.
    Limit(Duration),
    /// Links were lost again and again for this time, and no answer arrived.
    NoAnswer(Duration),
    /// The member's own program no longer waits.
    CallerGaveUp,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Joining,
    CatchingUp,
    /// The member has links to all hubs. If these links have replaced lost links, `made` is the time of the
    /// replacement.
    Linked {
        made: Option<Instant>,
    },
    /// Links have been lost since this time, and the hubs are alive.
    Unlinked {
        since: Instant,
        stage: Relink,
    },
    /// A link ended, and the member does not know the reason yet.
    Explaining {
        may_return: bool,
    },
    /// A hub has been lost since this time.
    HubLost {
        since: Instant,
        stage: Return,
    },
    Over,
}

/// The stages of a reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relink {
    Asking { hub: usize },
    Dropping,
    Making,
    Pausing,
}

/// The stages of a return to a lost hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Return {
    Telling { again: bool },
    Rejoining,
    Recovering,
    Away,
}

impl Member {
    /// Creates a member that is joining.
    pub fn new(limits: Limits) -> Self {
        Member { limits, state: State::Joining, relinks: 0, unanswered: None }
    }

    /// Creates a member that takes part.
    pub fn linked(limits: Limits) -> Self {
        Member { state: State::Linked { made: None }, ..Member::new(limits) }
    }

    /// Returns the number of times that links were replaced.
    pub fn relinks(&self) -> u32 {
        self.relinks
    }

    /// Whether the membership would survive the loss of a hub now.
    pub fn waits_for_hubs(&self) -> bool {
        let may = matches!(
            self.state,
            State::Linked { .. } | State::Unlinked { .. } | State::Explaining { may_return: true }
        );
        may && !self.limits.hub.is_zero()
    }

    /// Handles an event. Returns the next step, or `None` if the current step continues.
    pub fn handle(&mut self, event: Event, now: Instant) -> Option<Step> {
        match self.state {
            State::Joining | State::CatchingUp => self.begin(event),
            State::Linked { made } => self.lose(made, event, now),
            State::Unlinked { since, stage } => self.relink(since, stage, event, now),
            State::Explaining { may_return } => match event {
                Event::Ended(end) => self.end(end, may_return, now),
                _ => None,
            },
            State::HubLost { since, stage } => self.come_back(since, stage, event, now),
            State::Over => None,
        }
    }

    fn enter(&mut self, state: State, step: Step) -> Option<Step> {
        self.state = state;
        Some(step)
    }

    fn begin(&mut self, event: Event) -> Option<Step> {
        match (self.state, event) {
            (State::Joining, Event::TakesPart) => self.enter(State::CatchingUp, Step::CatchUp),
            (State::CatchingUp, Event::CaughtUp) => self.enter(State::Linked { made: None }, Step::GoOn),
            (_, Event::LinkEnded { .. }) => {
                self.enter(State::Explaining { may_return: false }, Step::Explain(None))
            }
            (_, Event::Ended(_) | Event::Failed(_) | Event::CallerGaveUp) => {
                self.enter(State::Over, Step::GiveUp(None))
            }
            _ => None,
        }
    }

    fn lose(&mut self, made: Option<Instant>, event: Event, now: Instant) -> Option<Step> {
        match event {
            Event::LinkEnded { may_relink } if may_relink && !self.limits.links.is_zero() => {
                // If the links lasted long enough, the time without an answer starts again. The answer may be missing because
                // another member is evaluating its model.
                if made.is_some_and(|made| is_over(made, self.limits.links, now)) {
                    self.unanswered = None;
                }
                self.ask(now, 0)
            }
            Event::LinkEnded { .. } => self.explain(None),
            Event::Ended(end) => self.end(end, true, now),
            _ => None,
        }
    }

    fn relink(&mut self, since: Instant, stage: Relink, event: Event, now: Instant) -> Option<Step> {
        match (stage, event) {
            (Relink::Asking { hub }, Event::Granted) if hub + 1 < self.limits.hubs => {
                self.ask(since, hub + 1)
            }
            (Relink::Asking { .. }, Event::Granted) => {
                self.enter(State::Unlinked { since, stage: Relink::Dropping }, Step::DropLinks)
            }
            (Relink::Dropping, Event::Dropped { came, is_awaited }) => {
                if !is_awaited || self.unanswered.is_none_or(|(_, before)| came > before) {
                    self.unanswered = is_awaited.then_some((now, came));
                }
                match self.no_answer(now) {
                    Some(over) => self.explain(Some(over)),
                    None => self.enter(State::Unlinked { since, stage: Relink::Making }, Step::MakeLinks),
                }
            }
            (Relink::Making, Event::LinksMade) => {
                self.relinks += 1;
                self.enter(State::Linked { made: Some(now) }, Step::GoOn)
            }
            (Relink::Pausing, Event::TimePassed) => self.ask(since, 0),
            (Relink::Pausing, Event::CallerGaveUp) => self.explain(Some(Over::CallerGaveUp)),
            (Relink::Pausing, _) => None,
            (_, Event::Failed(Failure::Transient)) => {
                let limit = self.limits.links;
                let over = is_over(since, limit, now).then_some(Over::Limit(limit)).or(self.no_answer(now));
                match over {
                    Some(over) => self.explain(Some(over)),
                    None => {
                        self.enter(State::Unlinked { since, stage: Relink::Pausing }, Step::Wait(now + PAUSE))
                    }
                }
            }
            (_, Event::Failed(_)) => self.explain(None),
            _ => None,
        }
    }

    fn come_back(&mut self, since: Instant, stage: Return, event: Event, now: Instant) -> Option<Step> {
        let at = |stage| State::HubLost { since, stage };
        let limit = self.limits.hub;
        let again = |member: &mut Self| {
            if is_over(since, limit, now) {
                return member.enter(State::Over, Step::GiveUp(Some(Over::Limit(limit))));
            }
            member.enter(at(Return::Away), Step::Wait(now + PAUSE))
        };
        match (stage, event) {
            (Return::Telling { again: false }, Event::Told) | (Return::Away, Event::TimePassed) => {
                self.enter(at(Return::Rejoining), Step::Join(since + limit))
            }
            (Return::Telling { again: true }, Event::Told) => again(self),
            (Return::Rejoining, Event::TakesPart) => self.enter(at(Return::Recovering), Step::CatchUp),
            (Return::Recovering, Event::CaughtUp) => {
                // The hub has returned: the earlier time without an answer no longer counts.
                self.unanswered = None;
                self.enter(State::Linked { made: None }, Step::GoOn)
            }
            (Return::Rejoining | Return::Recovering, Event::Failed(Failure::Permanent)) => {
                self.enter(State::Over, Step::GiveUp(None))
            }
            // The living hubs have admitted the member again, and would wait for its new links. So these hubs must be
            // notified again.
            (Return::Recovering, Event::Failed(Failure::HubLost)) => {
                self.enter(at(Return::Telling { again: true }), Step::TellLoss)
            }
            (Return::Rejoining | Return::Recovering, Event::Failed(_)) => again(self),
            (Return::Away, Event::CallerGaveUp) => {
                self.enter(State::Over, Step::GiveUp(Some(Over::CallerGaveUp)))
            }
            _ => None,
        }
    }

    fn ask(&mut self, since: Instant, hub: usize) -> Option<Step> {
        self.enter(State::Unlinked { since, stage: Relink::Asking { hub } }, Step::Ask(hub))
    }

    fn explain(&mut self, over: Option<Over>) -> Option<Step> {
        self.enter(State::Explaining { may_return: true }, Step::Explain(over))
    }

    fn end(&mut self, end: End, may_return: bool, now: Instant) -> Option<Step> {
        if end == End::HubLost && may_return && !self.limits.hub.is_zero() {
            let stage = Return::Telling { again: false };
            return self.enter(State::HubLost { since: now, stage }, Step::TellLoss);
        }
        self.enter(State::Over, Step::GiveUp(None))
    }

    fn no_answer(&self, now: Instant) -> Option<Over> {
        let (since, _) = self.unanswered?;
        is_over(since, self.limits.links, now).then_some(Over::NoAnswer(self.limits.links))
    }
}

impl fmt::Display for Over {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Over::Limit(limit) => write!(out, "not within {} s", limit.as_secs_f64()),
            Over::NoAnswer(limit) => {
                write!(out, "no answer arrived over the old links for {} s", limit.as_secs_f64())
            }
            Over::CallerGaveUp => out.write_str("its own program no longer waits"),
        }
    }
}

fn is_over(since: Instant, limit: Duration, now: Instant) -> bool {
    now.saturating_duration_since(since) >= limit
}
