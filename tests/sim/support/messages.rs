//! The messages between the hubs of a job. A message is a request or an answer. Messages are late and arrive in any order.
//! A test can also lose messages, or make their sender give up.
//!
//! ```text
//!   ask --message--> other hub --answer--> ask      each hub answers once; later answers are ignored
//!    |     lost         | late       | lost
//!    +--- given up: the ask has no answer of this hub ---
//! ```
//!
//! A hub makes each request once, over a new connection, and waits for the answer for a limited time. If it gives up,
//! the other hub may still carry out the request. The request may even arrive after the next request.

use coordinator::{CutId, Event, FollowId, LastStepped, Stepped};
use pbox_core::Round;
use pbox_core::control::{FailedReply, LastReply};

use crate::counts::count;
use crate::hubs::HubMessage;
use crate::trouble::Dice;

/// A question of a hub, which waits for the answers of other hubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Hub 0: pause the job for a cut.
    Hold(CutId),
    /// Hub 0: release the job after a cut.
    Release(CutId),
    /// The hub of this number: do you still have the job, which has failed?
    Holds(usize),
    /// Hub 0: save your part of the last state.
    Save,
}

impl Question {
    /// Returns the number of the hub that asks.
    fn asker(self) -> usize {
        if let Question::Holds(from) = self { from } else { 0 }
    }
}

/// The content of an answer.
#[derive(Clone, Debug)]
pub enum Said {
    /// The round that the hub's chunks have reached, if it has chunks.
    Front(Option<Round>),
    /// The job is released.
    Done,
    /// Whether the hub still has the job.
    Holds(FailedReply),
    /// The hub's part of the last state.
    Part(LastReply),
}

impl Said {
    fn front(self) -> Option<Round> {
        if let Said::Front(front) = self { front } else { panic!("not a front: {self:?}") }
    }

    fn holds(self) -> FailedReply {
        if let Said::Holds(holds) = self { holds } else { panic!("not of a failed job: {self:?}") }
    }

    fn part(self) -> LastReply {
        if let Said::Part(part) = self { part } else { panic!("not a part: {self:?}") }
    }
}

type Answer = Result<Said, String>;
/// Something for a hub, with the number of the hub, if there is something.
type OfHub<T> = Option<(usize, T)>;

/// A message on its way.
#[derive(Debug)]
struct Sent {
    from: usize,
    to: usize,
    message: HubMessage,
    /// Whether the sender has given up waiting for the answer to the message. The message then arrives much later.
    is_late: bool,
}

/// A question for which a hub waits.
#[derive(Debug)]
struct Ask {
    question: Question,
    /// The asked hubs, each with its answer.
    answers: Vec<(usize, Option<Answer>)>,
}

/// The messages of a job, and the faults in their delivery.
#[derive(Debug, Default)]
pub struct Messages {
    sent: Vec<Sent>,
    asks: Vec<Ask>,
    /// The average number of steps between two requests that are given up.
    pub gives_up_one_in: Option<u64>,
    /// The average number of steps between two losses of a question about a part of a checkpoint, or of its
    /// answer.
    pub loses_parts_one_in: Option<u64>,
    /// Whether a question about a last state was given up, or asked twice.
    pub has_disturbed_last: bool,
}

impl Messages {
    /// Whether messages or requests are in flight.
    pub fn is_busy(&self) -> bool {
        !self.sent.is_empty() || !self.asks.is_empty()
    }

    /// Whether no message is on its way.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Takes a message from a hub, and sends it to the hubs that must get it.
    pub fn take(&mut self, from: usize, message: HubMessage, hubs: usize) {
        let to = match &message {
            HubMessage::Hold(..) | HubMessage::Release(..) => Vec::from_iter(1..hubs),
            HubMessage::Lost(..) | HubMessage::Failed(..) | HubMessage::Failing(_) if from == 0 => {
                Vec::from_iter(1..hubs)
            }
            HubMessage::Ended(hub, _) | HubMessage::Holds(hub, _) => vec![*hub],
            HubMessage::HasPart(_, hub, ..) => vec![*hub as usize],
            HubMessage::Save(hubs, _) => hubs.iter().map(|&hub| hub as usize).collect(),
            _ => vec![0],
        };
        if let Some(question) = message.asks(from) {
            self.asks.push(Ask { question, answers: to.iter().map(|&hub| (hub, None)).collect() });
        }
        let sent = |to| Sent { from, to, message: message.clone(), is_late: false };
        self.sent.extend(to.into_iter().map(sent));
    }

    /// Returns the messages that arrive now, each with its sender and its receiver.
    pub fn due(&mut self, mut is_due: impl FnMut() -> bool) -> Vec<(usize, usize, HubMessage)> {
        let due = self.sent.extract_if(.., |sent| is_due() && (!sent.is_late || is_due() && is_due()));
        due.map(|Sent { from, to, message, .. }| (from, to, message)).collect()
    }

    /// Notes a hub's answer. Returns the event for the hub that asks, if it has all answers.
    pub fn answered(&mut self, hub: usize, question: Question, answer: Answer) -> Option<Event> {
        let is_of = |ask: &Ask| ask.question == question;
        let place = self.asks.iter().position(is_of)?; // otherwise the answer is too late
        let answers = &mut self.asks[place].answers;
        answers.iter_mut().find(|(of, _)| *of == hub)?.1.get_or_insert(answer);
        if answers.iter().any(|(_, answer)| answer.is_none()) {
            return None;
        }
        let mut answers = self.asks.remove(place).answers.into_iter().filter_map(|(_, answer)| answer);
        Some(match question {
            Question::Hold(cut) => {
                let fronts = answers.map(|answer| answer.map(Said::front)).collect();
                Event::Cut(cut, Stepped::OthersHeld(fronts))
            }
            Question::Release(cut) => {
                Event::Cut(cut, Stepped::OthersReleased(answers.try_for_each(|answer| answer.map(drop))))
            }
            Question::Holds(asker) => {
                let mut holds = answers.map(|answer| answer.map(Said::holds));
                Event::Last(match asker {
                    0 => LastStepped::OthersTold(holds.collect()),
                    _ => LastStepped::LeadTold(holds.next().expect("hub 0 is asked")),
                })
            }
            Question::Save => {
                let parts = answers.map(|answer| answer.map(Said::part)).collect();
                Event::Last(LastStepped::OthersWritten(parts))
            }
        })
    }

    /// Loses a question about a part of a checkpoint, or its answer, if the dice say so. Returns the question, which
    /// now gets no answer.
    pub fn loses_part(&mut self, dice: &mut Dice) -> Option<(FollowId, u32)> {
        let one_in = self.loses_parts_one_in?;
        let of_part = |sent: &Sent| match sent.message {
            HubMessage::HasPart(follow, hub, ..) | HubMessage::Part(follow, hub, _) => Some((follow, hub)),
            _ => None,
        };
        let place = self.sent.iter().position(|sent| of_part(sent).is_some() && dice.below(one_in) == 0)?;
        count("parts without an answer", 1);
        of_part(&self.sent.remove(place))
    }

    /// Makes the sender of a request give up, if the dice say so. The request is lost or arrives later. Returns the
    /// event for the sender, or the sender with its message.
    pub fn trouble(&mut self, dice: &mut Dice) -> (OfHub<Event>, OfHub<HubMessage>) {
        if self.gives_up_one_in.is_none_or(|one_in| dice.below(one_in) > 0) {
            return (None, None);
        }
        let is_of_last = |sent: &&Sent| {
            !sent.is_late && matches!(sent.message, HubMessage::Failing(_) | HubMessage::Save(..))
        };
        if dice.below(4) == 0
            && let Some(Sent { from, to, message, .. }) = self.sent.iter().find(is_of_last)
        {
            let again = Sent { from: *from, to: *to, message: message.clone(), is_late: true };
            self.has_disturbed_last = true;
            self.sent.push(again);
        }
        let (which, is_lost) = (dice.below(1 << 20) as usize, dice.below(2) == 0);
        if let Some(ask) = self.asks.get(which % (self.asks.len() + 1)) {
            let question = ask.question;
            self.has_disturbed_last |= matches!(question, Question::Holds(_) | Question::Save);
            let silent = ask.answers.iter().find(|(_, answer)| answer.is_none()).expect("else it is over").0;
            let is_of = |sent: &Sent| sent.to == silent && sent.message.asks(sent.from) == Some(question);
            self.sent.retain(|sent| !is_lost || !is_of(sent));
            self.sent.iter_mut().filter(|sent| is_of(sent)).for_each(|sent| sent.is_late = true);
            count("requests of hubs given up", 1);
            let event = self.answered(silent, question, Err("no answer came".to_owned()));
            return (event.map(|event| (question.asker(), event)), None);
        }
        let is_told = |sent: &Sent| {
            matches!(sent.message, HubMessage::Arrived(_) | HubMessage::Lost(..) | HubMessage::Failed(..))
        };
        let Some(place) = self.sent.iter().position(is_told) else { return (None, None) };
        let Sent { from, message, .. } = &self.sent[place];
        let given_up = Some((*from, message.clone()));
        count("requests of hubs given up", 1);
        match is_lost {
            true => _ = self.sent.remove(place),
            false => self.sent[place].is_late = true,
        }
        (None, given_up)
    }
}
