//! The state that rank 0 offers to a new job. The job waits until the state has arrived.

use pbox_core::{NumbersByRound, Round};

use super::{Arrival, Job, Life, News, Ranks, Standing, StateOffer};

impl Job {
    /// Notes that rank 0 offers a state, with the number of steps of each key. Returns whether the job has no state of its
    /// own, and so waits for the offered state.
    ///
    /// # Errors
    /// Returns the reason, in words, if it is too late for an offer.
    pub(crate) fn note_state_offered(&mut self, steps: Vec<Option<u32>>) -> Result<bool, String> {
        let standing = self.members.standing(0);
        let may_begin = matches!(standing, Some(Standing::Connecting { is_ready: true, .. }));
        let (first_round, who) = (self.first_round, self.spec.spoken(0));
        let Some(gathering) = self.life.gathering_mut().filter(|_| first_round == Round(0)) else {
            return Ok(false);
        };
        if gathering.offer != StateOffer::None || may_begin {
            return Err(format!(
                "{who} offers a state too late: a worker may offer one state, after its join and before it connects \
                 to the data path; a hub below other hubs may offer one state before it is ready"
            ));
        }
        gathering.offer = StateOffer::Made;
        gathering.offered_steps = steps;
        Ok(true)
    }

    /// Notes that the state has arrived completely. At a hub without hubs above, `restored` has the state's round and
    /// hyperparameters. Otherwise the hubs above say with which round the job begins.
    pub(crate) fn begin_with(&mut self, restored: Option<(Round, NumbersByRound)>) -> Arrival {
        if let Some(gathering) = self.life.gathering_mut() {
            (gathering.offer, gathering.offered_steps) = (StateOffer::None, Vec::new());
        }
        if let Some((round, numbers)) = restored {
            (self.first_round, self.numbers) = (round, numbers);
        }
        self.life.gathered(&self.members, &mut self.news)
    }
}

impl Life {
    /// Returns the number of steps of each key in the state that rank 0 brings, if rank 0 reports the number.
    pub fn offered_steps(&self) -> Vec<Option<u32>> {
        self.gathering().map_or_else(Vec::new, |gathering| gathering.offered_steps.clone())
    }

    /// Notes whether the state before this round is wanted, and how many bytes it must have.
    pub(crate) fn note_state_wanted(
        &mut self,
        (before, bytes): (Round, Option<u64>),
        members: &Ranks,
        news: &mut News,
    ) -> Arrival {
        if let Some(gathering) = self.gathering_mut() {
            gathering.offer = bytes.map_or(StateOffer::None, |bytes| StateOffer::Wanted(before, bytes));
        }
        self.arrived(0, members, news)
    }

    /// Notes that the first bytes of the state arrive. Returns the state's round and its length in bytes, but only at
    /// the first call.
    pub(crate) fn note_state_arriving(&mut self) -> Option<(Round, u64)> {
        let gathering = self.gathering_mut()?;
        let StateOffer::Wanted(before, bytes) = gathering.offer else { return None };
        gathering.offer = StateOffer::Arriving;
        Some((before, bytes))
    }
}
