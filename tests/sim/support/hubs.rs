//! The hubs of one job: the control of each, and the requests between them, which come late and in any order.

use std::collections::HashMap;
use std::sync::Arc;

use coordinator::{CutId, Event, Purpose, Stepped};
use pbox_core::control::{ArrivedRequest, HoldRequest, ReleaseRequest};
use pbox_core::{JobTerms, Round, Share};

use crate::control::Control;
use crate::simulated::JOB;
use crate::trouble::Dice;

/// A request to another hub, or its answer.
#[derive(Clone, Debug)]
pub enum Letter {
    /// Hub 0 holds the job for its cut.
    Hold(CutId, HoldRequest),
    /// Hub 0 releases the job.
    Release(CutId, ReleaseRequest),
    /// The other hub holds the job, or does not.
    Held(CutId, Result<Option<Round>, String>),
    /// The other hub has released the job, or has not.
    Released(CutId, Result<(), String>),
    /// A hub has all links of a newcomer.
    Arrived(ArrivedRequest),
    /// A hub has lost a worker, and goes on.
    Lost(u64, String),
}

/// The hubs of a job.
pub struct Hubs {
    /// The control of each.
    pub hubs: Vec<Control>,
    /// The letters that are under way, each with the hub that gets it.
    letters: Vec<(usize, Letter)>,
    /// The answers of the other hubs to a step of a cut.
    answers: HashMap<CutId, Vec<Result<Option<Round>, String>>>,
    /// The workers that have joined.
    workers: u64,
}

impl Hubs {
    /// The hubs of a job that gathers, each with this many cores.
    pub fn new(terms: &Arc<JobTerms>, cores: usize) -> Self {
        let hub =
            |hub| Control::new((JOB, "the job".to_owned()), terms, Share::of_hub(terms, hub), cores, false);
        let hubs = (0..terms.hubs).map(hub).collect();
        Hubs { hubs, letters: Vec::new(), answers: HashMap::new(), workers: 0 }
    }

    /// Hub 0.
    pub fn lead(&mut self) -> &mut Control {
        &mut self.hubs[0]
    }

    /// Lets a worker join at all hubs.
    pub fn join(&mut self, rank: u32) {
        self.workers += 1;
        self.hubs.iter_mut().for_each(|hub| hub.join_as(rank, self.workers));
    }

    /// Whether a rank is free at all hubs.
    pub fn is_free(&self, rank: u32) -> bool {
        self.hubs.iter().all(|hub| hub.job().member(rank).is_none())
    }

    /// Whether a worker takes part at all hubs.
    pub fn takes_part(&self, rank: u32) -> bool {
        self.hubs.iter().all(|hub| hub.job().takes_part(rank))
    }

    /// A worker that has asked all hubs for links connects, if all cores have dropped the former links. Returns whether it does.
    pub fn relink(&mut self, rank: u32) -> bool {
        let are_dropped = self.hubs.iter_mut().all(|hub| hub.has_dropped(rank));
        are_dropped && self.hubs.iter_mut().all(|hub| hub.relink(rank))
    }

    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        !self.letters.is_empty() || self.hubs.iter().any(Control::is_busy)
    }

    /// Every control takes in its next report, and every letter is delivered; or some of them, as the dice say.
    pub fn work(&mut self, mut dice: Option<&mut Dice>) {
        let mut is_due = |one_in: u64| dice.as_deref_mut().is_none_or(|dice| dice.below(one_in) == 0);
        for hub in &mut self.hubs {
            if is_due(2) {
                hub.work();
            }
        }
        self.post();
        let letters = std::mem::take(&mut self.letters);
        let (due, later): (Vec<_>, Vec<_>) = letters.into_iter().partition(|_| is_due(4));
        self.letters = later;
        for (to, letter) in due {
            self.deliver(to, letter);
            self.post();
        }
    }

    /// Takes the letters that the hubs have written.
    fn post(&mut self) {
        let others = self.hubs.len();
        for from in 0..others {
            for letter in std::mem::take(&mut self.hubs[from].letters) {
                match letter {
                    Letter::Hold(cut, _) | Letter::Release(cut, _) => {
                        self.answers.insert(cut, Vec::new());
                        self.letters.extend((1..others).map(|to| (to, letter.clone())));
                    }
                    Letter::Lost(..) if from == 0 => {
                        self.letters.extend((1..others).map(|to| (to, letter.clone())));
                    }
                    _ => self.letters.push((0, letter)),
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, letter: Letter) {
        let others = self.hubs.len() - 1;
        let hub = &mut self.hubs[to];
        hub.tell(format!("gets {letter:?}"));
        let ended = || Err("the job ended meanwhile".to_owned());
        match letter {
            Letter::Hold(cut, _) if hub.failed.is_some() => hub.letters.push(Letter::Held(cut, ended())),
            Letter::Release(cut, _) if hub.failed.is_some() => {
                hub.letters.push(Letter::Released(cut, ended().map(|_: Option<Round>| ())));
            }
            Letter::Hold(cut, request) => hub.follow(cut, Purpose::Follow(request.cut)),
            Letter::Release(cut, request) => hub.released_by_lead(cut, request),
            Letter::Held(cut, front) => {
                let answers = self.answers.entry(cut).or_default();
                answers.push(front);
                if answers.len() == others {
                    let fronts = std::mem::take(answers).into_iter().collect();
                    hub.report(Event::Cut(cut, Stepped::OthersHeld(fronts)));
                }
            }
            Letter::Released(cut, released) => {
                let answers = self.answers.entry(cut).or_default();
                answers.push(released.map(|()| None));
                if answers.len() == others {
                    let released =
                        std::mem::take(answers).into_iter().try_for_each(|answer| answer.map(drop));
                    hub.report(Event::Cut(cut, Stepped::OthersReleased(released)));
                }
            }
            Letter::Arrived(request) => hub.arrived(&request),
            Letter::Lost(worker, reason) => {
                if let Some(rank) = hub.job().rank(worker) {
                    hub.lose(rank, &reason);
                }
            }
        }
    }
}
