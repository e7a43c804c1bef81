//! The files of a job at a simulated hub. The coordinator says when the parts of a snapshot are a state; somebody else has their
//! values, and writes them.

use coordinator::input::{BeginFile, EndFile, HasFiles, HasWhole, LacksPart};
use coordinator::{Event, Files};
use pbox_core::control::{CheckpointReply, PartState, WholeRounds};
use pbox_core::{Occasion, Round, Taken};

use super::{Command, Control};
use crate::hubs::Letter;

/// The files of one hub.
#[derive(Debug, Default)]
pub struct FilesHere {
    /// The cores that have a part, by snapshot.
    parts: Vec<(Occasion, usize)>,
    /// The snapshots that are to be written, in the order of their ends.
    due: Vec<(Occasion, Round)>,
    /// The hubs whose parts hub 0 waits for, by round.
    others: Vec<(Round, u32)>,
    /// Hub 0 was told that all hubs have written the state before this round.
    pub whole: Option<Round>,
}

impl FilesHere {
    /// Forgets what is under way, of a job that has failed.
    pub(super) fn end(&mut self) {
        *self = FilesHere { whole: self.whole, ..FilesHere::default() };
    }
}

/// Returns what a hub knows of the files of a job that begins: hub 0 those of all hubs, another hub its own.
pub fn known_to(hub: u32, files: &Files) -> Files {
    let known = files.of_hubs().filter(|(of, _)| hub == 0 || *of == hub);
    Files::new(known.map(|(of, rounds)| (of, rounds.to_vec())))
}

impl Control {
    /// Notes that a core has its part of a snapshot, or cannot have it.
    pub(super) fn taken(&mut self, core: usize, taken: &Taken) {
        let &Taken { occasion, before, through, ref part } = taken;
        if part.is_ok() {
            self.files.parts.push((occasion, core));
        }
        let refused = part.as_ref().err().cloned();
        self.reports.push_back(Event::Taken { core, occasion, before, through, refused });
    }

    pub(super) fn snapshot_over(&mut self, occasion: Occasion, before: Round, is_whole: bool) {
        match is_whole {
            true => self.files.due.push((occasion, before)),
            false => self.give_back(occasion),
        }
    }

    /// Gives the cores the memory of their parts.
    fn give_back(&mut self, occasion: Occasion) {
        for (_, core) in self.files.parts.extract_if(.., |(of, _)| *of == occasion) {
            self.commands[core].push_back(Command::GiveBack);
        }
    }

    /// Whether a file is to be written.
    pub fn has_file(&self) -> bool {
        !self.files.due.is_empty()
    }

    /// Writes the next file, with what is known of other files; or says that it may not be written. `write` returns the rounds of
    /// the hub's files.
    pub fn write(&mut self, write: impl FnOnce(Occasion, Round, &WholeRounds) -> Result<Vec<Round>, String>) {
        let (occasion, before) = self.files.due.remove(0);
        let Ok(begun) = self.ask(BeginFile { job: self.id, before }) else { return };
        let share = self.job().hubs.share;
        let written = begun.and_then(|whole| write(occasion, before, &whole)).map(|rounds| {
            if !share.is_whole() {
                self.ask(HasFiles { job: self.id, hub: share.hub, rounds });
            }
            CheckpointReply { round: before, bytes: 1, milliseconds: 1, error_before: None }
        });
        self.tell(format!("the state before round {} is written: {}", before.0, written.is_ok()));
        let is_written = written.is_ok();
        self.give_back(occasion);
        self.ask(EndFile { job: self.id, before, written }).expect("the job goes on");
        self.wakes += 1;
        if is_written && share.hub == 0 {
            let others = Vec::from_iter(self.owners.iter().copied().filter(|&hub| hub > 0));
            self.files.others.extend(others.iter().map(|&hub| (before, hub)));
            if others.is_empty() {
                self.files.whole = Some(before);
            }
            others.into_iter().for_each(|hub| self.follow_part(hub, before));
        }
    }

    /// Asks a hub, as hub 0, for its part of a checkpoint.
    fn follow_part(&mut self, hub: u32, before: Round) {
        let whole = self.job().hubs.whole.clone();
        self.letters.push(Letter::HasPart(hub, before, whole));
    }

    /// Answers hub 0, as another hub, how its part of a checkpoint is.
    pub fn part_asked(&mut self, before: Round, whole: WholeRounds) {
        self.ask(HasWhole { job: self.id, whole });
        let hubs = &self.job().hubs;
        self.letters.push(Letter::Part(
            before,
            hubs.rounds.clone(),
            self.job().checkpoints.part_before(before),
        ));
    }

    /// Notes, as hub 0, how the part of a hub is.
    pub fn part_is(&mut self, hub: u32, before: Round, rounds: Vec<Round>, part: PartState) {
        self.ask(HasFiles { job: self.id, hub, rounds });
        match part {
            PartState::Collecting | PartState::Writing => self.follow_part(hub, before),
            PartState::Failed(why) => {
                self.files.others.retain(|(of, _)| *of != before);
                self.ask(LacksPart { job: self.id, why }).expect("the job goes on");
            }
            PartState::Written(_) => {
                let is_of = |&mut (of, other): &mut (Round, u32)| of == before && other == hub;
                let was_awaited = self.files.others.extract_if(.., is_of).count() > 0;
                if was_awaited && self.files.others.iter().all(|(of, _)| *of != before) {
                    self.files.whole = self.files.whole.max(Some(before));
                }
            }
        }
    }
}
