//! The state that rank 0 brings before a job begins, and the hyperparameters that workers change while it runs.

use std::sync::Arc;

use coordinator::Change;
use coordinator::input::{BeginWith, ChangeNumbers, Comes, ForgetNumbers, Offer, Wanted};
use pbox_core::{Core, JobId, Layout, Restored, Round};

use super::{Command, Control};

/// The length of each state that rank 0 brings, in bytes.
const BYTES: u64 = 1000;

impl Control {
    /// Lets rank 0 bring a state to the job. The job must be gathering its members, and have no state.
    pub fn will_bring(&mut self, layout: &Arc<Layout>, state: &Arc<Restored>) {
        self.brings = Some((Arc::clone(layout), Arc::clone(state)));
    }

    /// Takes the offer of rank 0, which has joined, and the first bytes of its state.
    pub(super) fn take_offer(&mut self) {
        let (job, offer) = (self.id, Offer { job: self.id, steps: Vec::new() });
        let before = self.brings.as_ref().expect("rank 0 has a state").1.round();
        assert_eq!(self.ask(offer.clone()), Ok(true), "the job has no state");
        assert!(self.ask(offer).is_err(), "rank 0 offers one state");
        let effects = self.ask(Wanted { job, before, bytes: Some(BYTES) }).expect("it gathers");
        self.carry_out_all(effects);
        assert_eq!(self.ask(Comes { job }), Some((before, BYTES)));
        assert_eq!(self.ask(Comes { job }), None, "the state comes once");
    }

    /// Begins with the state that rank 0 has brought, if it brings one.
    pub(super) fn begins_with_brought(&mut self) {
        let Some((layout, state)) = self.brings.take() else { return };
        assert!(self.job().life.gathers(), "the job waits for the state");
        self.command(|| Command::Restore(Arc::clone(&layout), Arc::clone(&state)));
        let restored = Some((state.round(), state.numbers()));
        let effects = self.ask(BeginWith { job: self.id, restored }).expect("it gathers");
        self.carry_out_all(effects);
    }

    /// Asks a hub below other hubs to change the learning rate from a round on. Checks that this hub's own
    /// hyperparameters stay, because the hubs above keep the hyperparameters.
    pub fn passes_rate(&mut self, rate: f32, from: Round) {
        let change = ChangeNumbers { job: self.id, change: Change::Rate(rate), from, reset: Vec::new() };
        let former = self.job().numbers.clone();
        self.ask(change).expect("the rate is possible");
        assert_eq!(self.job().numbers, former, "the hubs above keep the numbers");
    }

    /// Changes the learning rate from a round on, on all cores of this hub.
    pub fn changes_rate<'hub>(
        &mut self,
        rate: f32,
        from: Round,
        cores: impl Iterator<Item = &'hub mut Core<fabric::sim::Port>>,
    ) {
        let job: JobId = self.id;
        let change = ChangeNumbers { job, change: Change::Rate(rate), from, reset: Vec::new() };
        let numbers = self.ask(change).expect("the rate is possible");
        let oldest = cores.filter_map(|core| core.set_numbers(job, from, &numbers)).min();
        oldest.into_iter().for_each(|oldest| self.ask(ForgetNumbers { job, oldest }));
    }
}
