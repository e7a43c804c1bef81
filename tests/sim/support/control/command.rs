//! The commands for simulated cores. Each core has a queue, and the caller decides when a core carries out its
//! next command.

use std::fmt;
use std::sync::Arc;

use coordinator::{CutId, Event, Stepped};
use fabric::{RecvWindow, SpanError, Spans, sim};
use pbox_core::{Core, Layout, LevelTerms, Notice, Occasion, Restored, Round, later_lines};

use super::Control;

/// A link to a hub above, and the window that the hub above writes into, if there is one.
pub type LinkAbove = (sim::Endpoint, Option<Arc<RecvWindow>>);

/// A command for a simulated core.
pub(super) enum Command {
    /// Take a worker's link.
    Add { rank: u32, gradients: Arc<RecvWindow>, own: Option<Spans>, link: Box<sim::Endpoint> },
    /// Drop the link of a worker that makes a new link.
    Unlink(u32),
    /// Remove a worker.
    Remove(u32),
    /// Take the links to hubs above.
    AddAbove(LevelTerms, Vec<LinkAbove>),
    /// Drop the links to hubs above.
    UnlinkAbove,
    /// Begin with a state that rank 0 has brought.
    Restore(Arc<Layout>, Arc<Restored>),
    /// Begin with the round of the hubs above.
    BeginBelow(CutId, Round),
    /// Finish no round.
    Hold(CutId),
    /// Report how far each worker that steps alone (SSP, ASP) has come.
    Lines(CutId),
    /// Let no chunk go further than this round. If workers step alone, let no worker go further than its own round in
    /// the list.
    EndBefore(CutId, Round, Arc<[Option<Round>]>),
    /// Take a snapshot before a round.
    Snapshot(Occasion, Round),
    /// Become ready for the next snapshot. The core does not get the memory of the previous snapshot back.
    GiveBack,
    /// Measure the bytes that have crossed the links.
    Measure,
    /// Continue.
    Release { cut: CutId, from: Round, admitted: Arc<[u32]>, ahead: Arc<[u32]> },
    /// Pause the failed job, whose last state is being saved.
    LastHold,
    /// Report this core's part of the last state.
    LastState(Round),
    /// Forget the job, which has failed.
    End,
}

impl fmt::Display for Command {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Add { rank, .. } => write!(out, "takes the link of worker {rank}"),
            Command::Unlink(rank) => write!(out, "drops the link of worker {rank}"),
            Command::Remove(rank) => write!(out, "removes worker {rank}"),
            Command::AddAbove(_, links) => write!(out, "takes {} links to hubs above", links.len()),
            Command::UnlinkAbove => write!(out, "drops the links to hubs above"),
            Command::Restore(_, state) => {
                write!(out, "begins with the state before round {}", state.round().0)
            }
            Command::BeginBelow(_, first) => write!(out, "begins with round {}", first.0),
            Command::Hold(cut) => write!(out, "holds for {cut:?}"),
            Command::Lines(cut) => write!(out, "says its lines for {cut:?}"),
            Command::EndBefore(_, before, lines) => {
                write!(out, "goes no further than round {}, or than {lines:?}", before.0)
            }
            Command::GiveBack => write!(out, "may take the next snapshot"),
            Command::Measure => write!(out, "measures its links"),
            Command::Snapshot(_, before) => write!(out, "takes a snapshot before round {}", before.0),
            Command::Release { cut, from, admitted, .. } => {
                write!(out, "goes on after {cut:?}, with {admitted:?} from round {}", from.0)
            }
            Command::LastHold => write!(out, "holds the failed job"),
            Command::LastState(before) => write!(out, "gives its last state before round {}", before.0),
            Command::End => write!(out, "forgets the job"),
        }
    }
}

impl Control {
    /// Gives a core a worker's link.
    pub fn add(
        &mut self,
        core: usize,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: Option<Spans>,
        link: sim::Endpoint,
    ) {
        self.commands[core].push_back(Command::Add { rank, gradients, own, link: Box::new(link) });
    }

    /// Gives a core links to hubs above.
    pub fn add_above(&mut self, core: usize, level: LevelTerms, links: Vec<LinkAbove>) {
        self.unlinked_above = None;
        self.commands[core].push_back(Command::AddAbove(level, links));
    }

    /// Makes all cores drop the links to hubs above.
    pub fn unlink_above(&mut self) {
        self.command(|| Command::UnlinkAbove);
    }

    /// Lets a core carry out its next command. A core that has ended does nothing.
    ///
    /// # Errors
    /// Returns an error if a window lacks chunks.
    pub fn obey(
        &mut self,
        place: usize,
        core: Option<&mut Core<sim::Port>>,
        notices: &mut Vec<Notice>,
    ) -> Result<(), SpanError> {
        let (Some(command), Some(core)) = (self.commands[place].pop_front(), core) else { return Ok(()) };
        tell!(self, "core {place} {command}");
        let (job, known) = (self.id, notices.len());
        let done = match command {
            Command::Add { rank, gradients, own, link } => {
                drop(core.add_worker(job, rank, gradients, own, *link)?);
                Some(Event::Attached(rank))
            }
            Command::Unlink(rank) => {
                drop(core.unlink_worker(job, rank));
                Some(Event::Dropped(rank))
            }
            Command::Remove(rank) => {
                drop(core.remove_worker(job, rank, notices));
                Some(Event::Removed(rank))
            }
            Command::AddAbove(level, links) => {
                core.add_above(job, &level, links, notices)?;
                None
            }
            Command::UnlinkAbove => {
                drop(core.unlink_above(job));
                *self.unlinked_above.as_mut().expect("they are lost") -= 1;
                None
            }
            Command::Restore(layout, state) => {
                core.restore(job, &layout, &state);
                None
            }
            Command::BeginBelow(cut, first) => {
                core.begin_below(job, first);
                self.answer(cut, Stepped::Below)
            }
            Command::Snapshot(occasion, before) => {
                core.take_snapshot(job, occasion, before, notices);
                None
            }
            Command::GiveBack => {
                core.give_back(job, None);
                Some(Event::Freed(place))
            }
            Command::LastHold => {
                self.note_last_held(core.hold(job));
                None
            }
            Command::LastState(before) => {
                self.note_last_part(core.last_state(job, before));
                None
            }
            Command::Measure => {
                self.measured(place, core);
                None
            }
            Command::Hold(cut) => {
                let front = core.hold(job).map(|front| front.highest);
                self.answer(cut, Stepped::Held(front))
            }
            Command::Lines(cut) => {
                let lines = core.lines(job).into();
                self.answer(cut, Stepped::Lines(lines))
            }
            Command::EndBefore(cut, before, lines) => {
                core.end_before(job, before, &lines);
                self.answer(cut, Stepped::Ends)
            }
            Command::End => {
                drop(core.remove_job(job));
                None
            }
            Command::Release { cut, from, admitted, ahead } => {
                if !ahead.is_empty() {
                    core.begin_ahead(job, &ahead);
                }
                core.release(job, from, &admitted, notices);
                self.answer(cut, Stepped::Released)
            }
        };
        notices[known..].iter().for_each(|notice| self.handle_notice(place, notice));
        self.reports.extend(done);
        Ok(())
    }

    /// Notes a core's answer to the step of a cut. After the last core's answer, returns the event that the step is
    /// done.
    fn answer(&mut self, cut: CutId, mut stepped: Stepped) -> Option<Event> {
        let (highest, furthest) = &mut self.fronts;
        self.answers -= 1;
        match &mut stepped {
            Stepped::Held(front) => {
                *highest = (*highest).max(*front);
                *front = *highest;
            }
            Stepped::Lines(lines) => {
                *furthest = later_lines(std::mem::take(furthest), lines.to_vec());
                *lines = furthest.as_slice().into();
            }
            _ => {}
        }
        (self.answers == 0).then_some(Event::Cut(cut, stepped))
    }

    pub(super) fn command(&mut self, command: impl Fn() -> Command) {
        self.commands.iter_mut().for_each(|commands| commands.push_back(command()));
    }
}
