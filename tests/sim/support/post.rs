//! The letters between the hubs of a job. They are late and come in any order. A test can also have them lost
//! or given up.
//!
//! ```text
//!   ask --letter--> other hub --answer--> ask      each hub answers once; later answers are ignored
//!    |     lost        | late       | lost
//!    +--- given up: the ask has no answer of this hub ---
//! ```
//!
//! A hub makes each request once, over a new connection, and waits for the answer for a limited time. The other
//! hub may still carry out a request that was given up. It may also get this request after the next one.

use coordinator::{CutId, Event, FollowId, Stepped};
use pbox_core::Round;

use crate::counts::count;
use crate::hubs::Letter;
use crate::trouble::Dice;

/// The answer of a hub to a step of a cut: the round that the hub's chunks have reached, or nothing.
type Answer = Result<Option<Round>, String>;

/// A letter on its way.
#[derive(Debug)]
struct Sent {
    from: usize,
    to: usize,
    letter: Letter,
    /// Whether the sender has given it up. Such a letter comes much later.
    is_late: bool,
}

/// The step of a cut that hub 0 waits for. The other hubs must take it.
#[derive(Debug)]
struct Ask {
    cut: CutId,
    /// Whether the hubs release the job. Otherwise they hold it.
    releases: bool,
    /// The answers, by hub, without that of hub 0.
    answers: Vec<Option<Answer>>,
}

/// The letters of a job, and the faults in their delivery.
#[derive(Debug, Default)]
pub struct Post {
    sent: Vec<Sent>,
    asks: Vec<Ask>,
    /// The average number of steps from one given-up request to the next.
    pub gives_up_one_in: Option<u64>,
    /// The average number of steps from one lost question for a part of a checkpoint, or lost answer, to the
    /// next.
    pub loses_parts_one_in: Option<u64>,
}

impl Post {
    /// Whether letters or requests are on their way.
    pub fn is_busy(&self) -> bool {
        !self.sent.is_empty() || !self.asks.is_empty()
    }

    /// Takes a letter of a hub, and addresses it to the hubs that must get it.
    pub fn take(&mut self, from: usize, letter: Letter, hubs: usize) {
        let to = match letter {
            Letter::Hold(..) | Letter::Release(..) => {
                let asks = letter.asks().into_iter();
                self.asks.extend(asks.map(|(cut, releases)| Ask {
                    cut,
                    releases,
                    answers: vec![None; hubs - 1],
                }));
                1..hubs
            }
            Letter::Lost(..) | Letter::Failed(..) if from == 0 => 1..hubs,
            Letter::Ended(hub, _) => hub..hub + 1,
            Letter::HasPart(_, hub, ..) => hub as usize..hub as usize + 1,
            _ => 0..1,
        };
        self.sent.extend(to.map(|to| Sent { from, to, letter: letter.clone(), is_late: false }));
    }

    /// Returns the letters that arrive now, each with its hubs.
    pub fn due(&mut self, mut is_due: impl FnMut() -> bool) -> Vec<(usize, usize, Letter)> {
        let due = self.sent.extract_if(.., |sent| is_due() && (!sent.is_late || is_due() && is_due()));
        due.map(|Sent { from, to, letter, .. }| (from, to, letter)).collect()
    }

    /// Notes a hub's answer. Returns the event for hub 0, if it has all answers.
    pub fn answered(&mut self, hub: usize, cut: CutId, releases: bool, answer: Answer) -> Option<Event> {
        let is_of = |ask: &Ask| ask.cut == cut && ask.releases == releases;
        let place = self.asks.iter().position(is_of)?; // otherwise the answer is too late
        self.asks[place].answers[hub - 1].get_or_insert(answer);
        if self.asks[place].answers.contains(&None) {
            return None;
        }
        let mut answers = self.asks.remove(place).answers.into_iter().flatten();
        Some(Event::Cut(
            cut,
            match releases {
                true => Stepped::OthersReleased(answers.try_for_each(|answer| answer.map(drop))),
                false => Stepped::OthersHeld(answers.collect()),
            },
        ))
    }

    /// Loses a question for a part of a checkpoint, or its answer, if the dice say so. Returns the question
    /// without an answer.
    pub fn loses_part(&mut self, dice: &mut Dice) -> Option<(FollowId, u32)> {
        let one_in = self.loses_parts_one_in?;
        let of_part = |sent: &Sent| match sent.letter {
            Letter::HasPart(follow, hub, ..) | Letter::Part(follow, hub, _) => Some((follow, hub)),
            _ => None,
        };
        let place = self.sent.iter().position(|sent| of_part(sent).is_some() && dice.below(one_in) == 0)?;
        count("parts without an answer", 1);
        of_part(&self.sent.remove(place))
    }

    /// Gives up a request, if the dice say so. The request may be lost or arrive later. Returns the event for
    /// hub 0, or the hub and the letter for it.
    pub fn trouble(&mut self, dice: &mut Dice) -> (Option<Event>, Option<(usize, Letter)>) {
        if self.gives_up_one_in.is_none_or(|one_in| dice.below(one_in) > 0) {
            return (None, None);
        }
        let (which, is_lost) = (dice.below(1 << 20) as usize, dice.below(2) == 0);
        if let Some(ask) = self.asks.get(which % (self.asks.len() + 1)) {
            let (cut, releases) = (ask.cut, ask.releases);
            let silent = ask.answers.iter().position(Option::is_none).expect("else it is over") + 1;
            let is_of = |sent: &Sent| sent.to == silent && sent.letter.asks() == Some((cut, releases));
            self.sent.retain(|sent| !is_lost || !is_of(sent));
            self.sent.iter_mut().filter(|sent| is_of(sent)).for_each(|sent| sent.is_late = true);
            count("requests of hubs given up", 1);
            return (self.answered(silent, cut, releases, Err("no answer came".to_owned())), None);
        }
        let is_told =
            |sent: &Sent| matches!(sent.letter, Letter::Arrived(_) | Letter::Lost(..) | Letter::Failed(..));
        let Some(place) = self.sent.iter().position(is_told) else { return (None, None) };
        let Sent { from, letter, .. } = &self.sent[place];
        let given_up = Some((*from, letter.clone()));
        count("requests of hubs given up", 1);
        match is_lost {
            true => _ = self.sent.remove(place),
            false => self.sent[place].is_late = true,
        }
        (None, given_up)
    }
}
