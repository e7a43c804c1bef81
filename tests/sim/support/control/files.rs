//! The files and clients of a job at a simulated hub. The coordinator decides when the parts of a snapshot are a
//! complete state, and whether it is written or given to a client. The test has the values of the parts, and writes
//! them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use coordinator::input::{AskForWritten, BeginFile, EndFile, HasFiles, WantState};
use coordinator::{AskedId, CutAt, Event, Files, FollowId, NoState, Parts, Use, WantId};
use pbox_core::control::{CheckpointReply, WholeRounds, WrittenReply};
use pbox_core::{Occasion, Round, Selection, Taken};

use super::{Command, Control};
use crate::counts::count;
use crate::hubs::HubMessage;

/// The longest time for which hub 0 waits for another hub's answer about its part.
const WAIT: Duration = Duration::from_millis(30);

/// The files and clients of one hub.
#[derive(Debug, Default)]
pub struct FilesHere {
    /// The parts of snapshots that cores have: each entry is a snapshot and the number of a core.
    parts: Vec<(Occasion, usize)>,
    /// The complete snapshots that must be written, in the order in which they became complete.
    due: Vec<(Occasion, Round)>,
    /// The requests for the state without an answer, each with its purpose and its deadline.
    wants: HashMap<WantId, (Use, Instant)>,
    /// The rounds that clients have named.
    named: HashMap<WantId, Round>,
    /// The client that has a copy of the state.
    reading: Option<WantId>,
    /// The checkpoints that lack the part of a hub, each with the reason.
    pub not_whole: Vec<(Round, String)>,
    /// The questions of hub 0 about this hub's parts that have no answer yet.
    asked: HashMap<AskedId, FollowId>,
    /// The latest round for which hub 0 knows that all hubs have written the state before it.
    pub whole: Option<Round>,
}

impl FilesHere {
    /// Forgets the files in progress, because the job has failed.
    pub(super) fn end(&mut self) {
        *self = FilesHere { whole: self.whole, ..FilesHere::default() };
    }

    /// Whether a client waits for a state.
    pub fn are_wanted(&self) -> bool {
        !self.wants.is_empty()
    }
}

/// Returns the files of a job that a hub knows when the job begins. Hub 0 knows the files of all hubs, and any other
/// hub knows its own files.
pub fn known_to(hub: u32, files: &Files) -> Files {
    let known = files.of_hubs().filter(|(of, _)| hub == 0 || *of == hub);
    Files::new(known.map(|(of, rounds)| (of, rounds.to_vec())))
}

impl Control {
    /// Asks for the job's state within a time limit. For a file, all hubs write their parts at a cut that hub 0 leads.
    /// A copy has only this hub's part, and needs only a cut of this hub. In a job of one hub, file and copy need the
    /// same kind of cut.
    pub fn want(&mut self, purpose: Use, limit: Duration) {
        let all = purpose == Use::File || self.job().hubs.share.is_whole();
        let at = if all { CutAt::AllHubs } else { CutAt::ThisHub };
        self.want_at(purpose, at, limit, |_, _| {});
    }

    /// Asks this hub for a copy of these tensors before a named round. The job may have passed this round, or may never
    /// reach it.
    pub fn want_before(&mut self, round: Round, selection: Selection, limit: Duration) {
        self.want_at(Use::Client(selection), CutAt::Before(round), limit, |control, want| {
            control.files.named.insert(want, round);
        });
    }

    /// Asks for the state at a cut. `note` gets the number of the request before the hub can answer it.
    pub(super) fn want_at(
        &mut self,
        purpose: Use,
        at: CutAt,
        limit: Duration,
        note: impl FnOnce(&mut Self, WantId),
    ) {
        let (want, effects) =
            self.ask(WantState { job: self.id, purpose, at, limit }).expect("the job goes on");
        self.files.wants.insert(want, (purpose, self.now + limit));
        note(self, want);
        tell!(self, "{want:?} for {purpose:?} at {at:?} within {limit:?}");
        self.carry_out_all(effects);
    }

    /// Whether this hub has chunks.
    pub fn has_chunks(&self) -> bool {
        self.job().spec.made.owners > 0
    }

    /// Notes that the client with a copy of the state has read it, if there is such a client.
    pub fn end_read(&mut self) {
        if let Some(want) = self.files.reading.take() {
            self.reports.push_back(Event::Read(want));
        }
    }

    /// Notes the result of a request for the state.
    pub(super) fn wanted(&mut self, want: WantId, written: Result<CheckpointReply, NoState>) {
        if self.failed.is_some() {
            return; // nobody waits any more
        }
        let (purpose, until) = self.files.wants.remove(&want).expect("it has no answer");
        self.saved_for_stop(want, written.is_ok());
        match written {
            Ok(reply) => {
                assert_eq!(purpose, Use::File);
                count("files wanted", 1);
                self.files.whole = self.files.whole.max(Some(reply.round));
            }
            Err(NoState::Before(why)) => {
                assert!(self.files.named[&want] < why.front(), "{why}");
                count("rounds passed before they were read", 1);
            }
            Err(NoState::Other(why)) if self.now >= until => {
                count("states wanted for too long", 1);
                tell!(self, "too late: {why}");
            }
            Err(why) => {
                let (is_early, why) = (["in time", "another client", "not written yet"], why.to_string());
                let is_early = is_early.iter().any(|words| why.contains(words));
                // An early error is right if another hub's part can never arrive.
                assert!(!is_early || why.starts_with("hub "), "there is time left: {why}");
            }
        }
        if purpose != Use::File {
            self.reports.push_back(Event::Read(want));
        }
    }

    /// Notes that a core has its part of a snapshot, or cannot have it.
    pub(super) fn taken(&mut self, core: usize, taken: &Taken) {
        let &Taken { occasion, before, through, ref part } = taken;
        if part.is_ok() {
            self.files.parts.push((occasion, core));
        }
        let refused = part.as_ref().err().cloned();
        self.reports.push_back(Event::Taken { core, occasion, before, through, refused });
    }

    pub(super) fn snapshot_over(&mut self, occasion: Occasion, before: Round, parts: Parts) {
        match parts {
            Parts::Write => return self.files.due.push((occasion, before)),
            Parts::Give(want) => {
                let (purpose, _) = self.files.wants.remove(&want).expect("it has no answer");
                assert_eq!(purpose, Use::Client(occasion.selection()));
                count("weights read alone", usize::from(occasion.selection() != Selection::All));
                if let Some(named) = self.files.named.remove(&want) {
                    assert_eq!(before, named, "the state is before the round that the reader named");
                    count("states read before a round", 1);
                }
                let former = self.files.reading.replace(want);
                assert!(former.is_none(), "one client reads at a time");
                count("states read", 1);
            }
            Parts::Drop => count("snapshots that were none", 1),
            Parts::Skip(_) => {}
        }
        self.give_back(occasion);
    }

    /// Gives the memory of a snapshot's parts back to the cores.
    fn give_back(&mut self, occasion: Occasion) {
        for (_, core) in self.files.parts.extract_if(.., |(of, _)| *of == occasion) {
            self.commands[core].push_back(Command::GiveBack);
        }
    }

    /// Whether a file is to be written.
    pub fn has_file(&self) -> bool {
        !self.files.due.is_empty()
    }

    /// Writes the next file, unless the coordinator no longer allows it. `write` gets the rounds of complete
    /// checkpoints, and returns the rounds of the hub's files.
    pub fn write(&mut self, write: impl FnOnce(Occasion, Round, &WholeRounds) -> Result<Vec<Round>, String>) {
        let (occasion, before) = self.files.due.remove(0);
        assert_eq!(occasion.selection(), Selection::All, "a job continues from a file");
        let Ok(begun) = self.ask(BeginFile { job: self.id, before }) else { return };
        let share = self.job().hubs.share;
        let written = begun.and_then(|whole| write(occasion, before, &whole)).map(|rounds| {
            if !share.is_whole() {
                self.ask(HasFiles { job: self.id, hub: share.hub, rounds });
            }
            CheckpointReply { round: before, bytes: 1, milliseconds: 1, error_before: None }
        });
        tell!(self, "the state before round {} is written: {}", before.0, written.is_ok());
        if written.is_ok() && share.is_whole() {
            self.files.whole = self.files.whole.max(Some(before));
        }
        self.give_back(occasion);
        let end = EndFile { job: self.id, occasion, before, written };
        let (_, effects) = self.ask(end).expect("the job goes on");
        self.carry_out_all(effects);
    }

    /// Takes hub 0's question about this hub's part of a checkpoint. The answer follows as soon as the part is written,
    /// or has failed.
    pub fn part_asked(&mut self, follow: FollowId, before: Round, whole: WholeRounds) {
        let ask = AskForWritten { job: self.id, before, whole, wait: WAIT };
        let (asked, effects) = self.ask(ask).expect("the job goes on");
        self.files.asked.insert(asked, follow);
        self.carry_out_all(effects);
    }

    pub(super) fn answers_part(&mut self, asked: AskedId, WrittenReply { rounds, part }: WrittenReply) {
        if self.failed.is_some() {
            return;
        }
        let follow = self.files.asked.remove(&asked).expect("it has no answer");
        let hub = self.job().hubs.share.hub;
        self.messages.push(HubMessage::Part(follow, hub, Ok((rounds, part))));
    }

    /// Notes, at hub 0, the latest state that all hubs have, according to their reports of their files.
    pub(super) fn note_whole(&mut self) {
        let whole = self.job().hubs.whole.rounds.last().copied();
        self.files.whole = self.files.whole.max(whole);
    }
}
