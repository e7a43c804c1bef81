//! The last state of a failed job at a simulated hub. The coordinator decides on the steps. As at real hubs, the cores
//! pause the job, and other hubs are asked. The test writes this hub's part.

use coordinator::input::{AskForPart, AskToHold, Release};
use coordinator::{Blame, Event, LastStep, LastStepped, Saved};
use pbox_core::control::{CheckpointReply, FailedReply, FailedRequest, LastReply, LastRequest, WholeRounds};
use pbox_core::{Front, Round, SnapshotPart};

use super::{Command, Control, LIMIT};
use crate::counts::count;
use crate::hubs::HubMessage;

/// A core's part of the last state, or the reason why there is none.
type PartHere = Result<SnapshotPart, String>;

/// The last state at one hub.
#[derive(Debug, Default)]
pub struct LastHere {
    /// The number of cores that have not yet answered the step in progress.
    answers: usize,
    /// The rounds of the chunks, for each core that has paused the job and has chunks.
    fronts: Vec<Front>,
    /// Whether all cores hold the job.
    is_held: bool,
    parts: Vec<PartHere>,
    /// The decision of hub 0 about the last state, until this hub has written its part.
    writes: Option<LastRequest>,
    /// The hubs that have asked whether this hub still has the job, and have no answer yet.
    asked: Vec<usize>,
    /// Whether hub 0 waits for the result of this hub's part.
    is_part_asked: bool,
    /// The round before which this hub has written its part.
    pub written: Option<Round>,
    /// The result.
    pub over: Option<Saved>,
    /// Whether something other than the job has failed, so that the state is possibly not saved: a hub, a disk
    /// or a request.
    pub has_trouble: bool,
}

impl Control {
    /// Whether the last state of the failed job is being saved.
    pub fn saves_last(&self) -> bool {
        self.failed.is_some() && !self.is_dead && self.job().is_kept()
    }

    /// Takes a step of saving the last state.
    pub(super) fn last_step(&mut self, step: LastStep) {
        match step {
            LastStep::Hold => {
                self.last.answers = self.commands.len();
                self.command(|| Command::LastHold);
            }
            LastStep::TellOthers(request) | LastStep::TellLead(request) => {
                self.messages.push(HubMessage::Failing(request));
            }
            LastStep::HaveWritten(hubs, _) if hubs.is_empty() => {
                self.report(Event::Last(LastStepped::OthersWritten(Vec::new())));
            }
            LastStep::HaveWritten(hubs, request) => self.messages.push(HubMessage::Save(hubs, request)),
            LastStep::Write(request) => {
                let before = request.before;
                (self.last.writes, self.last.answers) = (Some(request), self.commands.len());
                self.command(|| Command::LastState(before));
            }
        }
    }

    /// Notes that a core has paused the failed job.
    pub(super) fn note_last_held(&mut self, front: Option<Front>) {
        self.last.fronts.extend(front);
        self.last.answers -= 1;
        if self.last.answers == 0 {
            self.last.is_held = true;
            let fronts = self.last.fronts.clone();
            self.report(Event::Last(LastStepped::Held(Ok(fronts))));
        }
    }

    pub(super) fn note_last_part(&mut self, part: Option<PartHere>) {
        self.last.parts.extend(part);
        self.last.answers -= 1;
    }

    /// Returns the parts of the last state that must be written. Also returns the lowest round of this hub's chunks
    /// when the job was paused, and the round of the state, which is the state before this round.
    pub fn last_due(&self) -> Option<(&[PartHere], Round, Round)> {
        let request = self.last.writes.as_ref().filter(|_| self.last.answers == 0)?;
        let lowest = self.last.fronts.iter().map(|front| front.lowest).min()?;
        Some((&self.last.parts, lowest, request.before))
    }

    /// Writes the parts of the last state that are due.
    pub fn write_last(
        &mut self,
        write: impl FnOnce(Round, &[SnapshotPart], &WholeRounds) -> Result<(), String>,
    ) {
        let Some(LastRequest { before, whole, .. }) = self.last.writes.take() else { return };
        let parts = std::mem::take(&mut self.last.parts).into_iter().collect::<Result<Vec<_>, _>>();
        let written = parts.and_then(|parts| write(before, &parts, &whole));
        tell!(self, "the last state before round {} is written: {written:?}", before.0);
        self.last.written = written.is_ok().then_some(before);
        self.last.has_trouble |= written.is_err();
        let reply = CheckpointReply { round: before, bytes: 1, milliseconds: 1, error_before: None };
        self.report(Event::Last(LastStepped::Written(written.map(|()| reply))));
    }

    /// Notes that the job has failed at another hub. Answers that hub whether this hub still has the job.
    pub fn failed_elsewhere(&mut self, from: usize, request: &FailedRequest) {
        let blame = if request.hub_stops { Blame::Hub } else { Blame::Job };
        self.fails(request.reason.clone(), blame);
        self.last.asked.push(from);
        let effects = self.ask(AskToHold { job: self.id });
        self.carry_out_all(effects);
    }

    /// Notes the decision of hub 0 about the last state.
    pub fn part_of_last_asked(&mut self, request: LastRequest) {
        match self.ask(AskForPart { job: self.id, request }) {
            Some(effects) => {
                self.last.is_part_asked = true;
                self.carry_out_all(effects);
            }
            None => self.messages.push(HubMessage::Saved(Err("it is not here any more".to_owned()))),
        }
    }

    /// Answers the hubs that have asked whether this hub still has the job.
    pub(super) fn tells_holds(&mut self, holds: &FailedReply) {
        let is_held = self.job().hubs.leads() || self.last.is_held && self.last.over.is_none();
        assert!(is_held || !holds.saves, "a hub that holds nothing has no state");
        for to in std::mem::take(&mut self.last.asked) {
            self.messages.push(HubMessage::Holds(to, Ok(holds.clone())));
        }
    }

    /// Answers hub 0, if it waits for the result of this hub's part.
    pub(super) fn tells_part(&mut self, part: Result<LastReply, String>) {
        let has_part = part.as_ref().is_ok_and(|part| part.bytes > 0);
        assert_eq!(has_part, self.last.written.is_some(), "hub 0 hears of a part that is written: {part:?}");
        if std::mem::take(&mut self.last.is_part_asked) {
            self.messages.push(HubMessage::Saved(part));
        }
    }

    /// Notes the result, ends the job on all cores, and frees its name.
    pub(super) fn last_is_over(&mut self, saved: Saved) {
        if let Ok(Some(reply)) = &saved {
            count("last states saved", 1);
            let is_lead = self.job().hubs.leads();
            self.files.whole = self.files.whole.max(Some(reply.round).filter(|_| is_lead));
        }
        assert!(self.last.over.replace(saved).is_none(), "the last state ends once");
        self.ask(Release { name: self.name.clone() });
        self.command(|| Command::End);
    }

    /// Ends everything that this hub does for the last state, because the hub dies.
    pub(super) fn last_dies(&mut self) {
        self.last.has_trouble = true;
        let died = || "it died".to_owned();
        let asked = std::mem::take(&mut self.last.asked).into_iter();
        self.messages.extend(asked.map(|to| HubMessage::Holds(to, Err(died()))));
        if std::mem::take(&mut self.last.is_part_asked) {
            self.messages.push(HubMessage::Saved(Err(died())));
        }
        if self.saves_last() {
            self.end();
            self.command(|| Command::End);
        }
    }

    /// Lets so much time pass that this hub no longer waits for the decision of hub 0.
    pub fn waits_long_for_lead(&mut self) {
        if self.saves_last() && self.last.over.is_none() {
            self.now += 4 * LIMIT;
            let effects = self.ask(coordinator::input::Happened { job: self.id, event: Event::Swept(LIMIT) });
            self.last.has_trouble |= !effects.is_empty();
            self.carry_out_all(effects);
        }
    }
}
