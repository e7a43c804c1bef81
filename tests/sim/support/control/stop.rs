//! The stop of a simulated hub. The coordinator decides what is saved, and when the job fails. As at real hubs, the hub
//! that stops asks hub 0 to end the job at a cut.

use std::collections::HashMap;
use std::time::Duration;

use coordinator::input::{BeginStop, SavedAtStop, Stop, Sweep};
use coordinator::{Blame, CutAt, SAVED_WITHIN, StopStep, Use, WantId};

use super::Control;
use crate::hubs::HubMessage;

/// The reason that members get.
const REASON: &str = "the hub is stopping";

/// The state of a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stopping {
    /// The hub does not stop in order.
    #[default]
    Not,
    /// The job is being saved.
    Saves,
    /// The saving is over, and the job fails. The flag says whether the job was saved.
    Saved(bool),
    /// The time is over, and nobody waits for the state any more.
    TooLate,
}

/// The stop of a hub.
#[derive(Debug, Default)]
pub struct StopHere {
    /// The state.
    pub state: Stopping,
    /// The time for the round in flight.
    limit: Duration,
    /// The requests of hub 0 for a last state, each with the number of the hub that stops.
    wants: HashMap<WantId, usize>,
}

impl Control {
    /// Orders this hub to stop, even if it already stops. The round in flight may still take the time `limit`.
    pub fn begins_to_stop(&mut self, limit: Duration) {
        self.stopping.limit = limit;
        let steps = self.ask(BeginStop { reason: REASON.to_owned(), has_files: true });
        self.take_steps(steps);
    }

    /// Ends the job at once because its hub stops.
    pub fn stops(&mut self) {
        let steps = self.ask(Stop { reason: REASON.to_owned() });
        self.stopping.state = Stopping::Not; // in any state
        self.take_steps(steps);
    }

    /// Whether nobody may join.
    pub fn is_closed(&self) -> bool {
        self.hub.end().is_closed()
    }

    /// Lets more time pass than a stop may take. Living members report that they live.
    pub fn stop_takes_too_long(&mut self, lives: impl Fn(u32) -> bool) {
        self.now += 2 * SAVED_WITHIN;
        self.send_heartbeats(lives);
        let steps = self.ask(Sweep).stop;
        assert!(matches!(steps[..], [StopStep::TooLate(_), StopStep::Fail(..)]), "{steps:?}");
        self.stopping.state = Stopping::TooLate;
        self.take_steps(steps);
    }

    fn take_steps(&mut self, steps: Vec<StopStep>) {
        for step in steps {
            tell!(self, "{step:?}");
            match step {
                StopStep::Save { .. } => {
                    assert_eq!(self.stopping.state, Stopping::Not, "one stop at a time");
                    self.stopping.state = Stopping::Saves;
                    let share = self.job().hubs.share;
                    match share.hub {
                        0 => self.ends_at_cut(0, self.stopping.limit),
                        hub => self.messages.push(HubMessage::End(hub as usize, self.stopping.limit)),
                    }
                }
                StopStep::TooLate(_) => {}
                StopStep::Fail(_, reason) => {
                    assert_ne!(self.stopping.state, Stopping::Saves, "it waits until the job is saved");
                    self.fails(reason, Blame::Hub);
                }
            }
        }
    }

    /// Makes all hubs of the job write the last state, at the request of the hub `hub`, which stops. Only hub 0 does
    /// this.
    pub fn ends_at_cut(&mut self, hub: usize, limit: Duration) {
        let note = |control: &mut Self, want| _ = control.stopping.wants.insert(want, hub);
        self.want_at(Use::File, CutAt::LastRound, limit, note);
    }

    /// Answers the hub that stops whether the last state is saved. Only hub 0 does this.
    pub(super) fn saved_for_stop(&mut self, want: WantId, is_saved: bool) {
        match self.stopping.wants.remove(&want) {
            None => {}
            Some(0) => self.answered_at_stop(is_saved),
            Some(hub) => self.messages.push(HubMessage::Ended(hub, is_saved)),
        }
    }

    /// Notes that the job is saved, or cannot be saved.
    pub fn answered_at_stop(&mut self, is_saved: bool) {
        if self.stopping.state == Stopping::Saves {
            self.stopping.state = Stopping::Saved(is_saved);
        }
        let steps = self.ask(SavedAtStop { job: self.id, is_saved });
        self.take_steps(steps);
    }

    /// Answers all clients that wait for the state of a failed job.
    pub(super) fn ends_without_state(&mut self) {
        for want in Vec::from_iter(self.stopping.wants.keys().copied()) {
            self.saved_for_stop(want, false);
        }
        if self.stopping.state == Stopping::Saves {
            self.answered_at_stop(false);
        }
    }
}
