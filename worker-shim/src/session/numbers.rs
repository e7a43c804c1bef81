//! The hyperparameters of the job's optimizer, which a worker may change between rounds.
//!
//! Runs on the caller's thread. The hubs make the change, on all cores from the same round on.

use membership::MemberError;
use pbox_core::control::{LearningRateRequest, OptimizerRequest};
use pbox_core::{KeyId, Multipliers, Numbers, Optimizer, Round};

use super::config::InvalidSetting;
use super::error::SessionError;
use super::session::Session;

impl Session {
    /// Changes the learning rate from the next round on, for all workers. The rules of
    /// [`set_optimizer`](Self::set_optimizer) apply.
    ///
    /// # Errors
    /// Returns the errors of [`set_optimizer`](Self::set_optimizer). Returns an error with `average` and `sum`, because the hub
    /// makes no steps.
    pub fn set_learning_rate(&mut self, learning_rate: f32) -> Result<(), SessionError> {
        self.config.terms.check_learning_rate(learning_rate)?;
        if !self.config.terms.optimizer.keeps_weights() {
            let why = "with the optimizers average and sum the hub makes no steps; use the rate where the workers step, or begin \
                       the job with another optimizer";
            return Err(InvalidSetting::new("learning_rate", learning_rate, why).into());
        }
        self.exchange.check_quiet("changing the learning rate")?;
        let optimizer =
            self.numbers.as_ref().map_or(self.config.terms.optimizer, |numbers| numbers.optimizer);
        let former = self.numbers.take().unwrap_or_else(|| Numbers::new(optimizer));
        self.numbers = Some(former.with_learning_rate(learning_rate));
        self.ask(|session| {
            let from_round = session.next_round();
            session.hubs.iter().try_for_each(|hub| {
                let request = LearningRateRequest { token: hub.token.clone(), learning_rate, from_round };
                hub.post("learning-rate", "change the learning rate", &request).map(|_: serde_json::Value| ())
            })
        })
    }

    /// Changes all hyperparameters of the optimizer from the next round on, for all workers. `optimizer` must be of
    /// the job's kind. The multipliers of learning rate and weight decay are in the order of the keys; `None`
    /// leaves them unchanged. Call it between rounds; every worker may call it with the same values. With SSP
    /// and ASP the hub steps a push with the hyperparameters of the hub's own round. Pushes of workers that are ahead
    /// may have been stepped with the old hyperparameters.
    ///
    /// # Errors
    /// Returns an error if the optimizer is of another kind, or if a hyperparameter is out of its range. Returns an
    /// error if there are multipliers, but not a pair for each key. Returns an error while a key is in flight.
    pub fn set_optimizer(
        &mut self,
        optimizer: Optimizer,
        multipliers: Option<Vec<Multipliers>>,
    ) -> Result<(), SessionError> {
        let multipliers = multipliers.map(Into::into);
        self.set_numbers(Numbers { multipliers, ..Numbers::new(optimizer) }, &[])
    }

    /// Changes the hyperparameters like [`set_optimizer`](Self::set_optimizer), with groups of keys that have other
    /// hyperparameters. Before the next round, sets the optimizer state of the keys `reset` to zero, as if they had
    /// made no step. Their weights do not change.
    ///
    /// # Errors
    /// Returns the errors of [`set_optimizer`](Self::set_optimizer), also for each group. Returns an error for `reset`
    /// with SSP and ASP, because there a key has no moment between two rounds of all workers. Returns an error if a key
    /// or its group does not exist.
    pub fn set_numbers(&mut self, numbers: Numbers, reset: &[KeyId]) -> Result<(), SessionError> {
        self.config.terms.check_numbers(&numbers)?;
        self.exchange.check_quiet("changing the optimizer's hyperparameters")?;
        let former = self.numbers.take();
        self.numbers = Some(former.map_or(numbers.clone(), |former| former.then(numbers.clone())));
        self.ask(|session| session.tell_numbers(&numbers, session.next_round(), reset))
    }

    /// Sends the hyperparameters that this worker has set to the hubs after a restart. Restarted hubs have the
    /// hyperparameters of a checkpoint.
    pub(super) fn tell_numbers_again(&self) -> Result<(), SessionError> {
        match &self.numbers {
            Some(numbers) => Ok(self.tell_numbers(numbers, self.first, &[])?),
            None => Ok(()),
        }
    }

    fn tell_numbers(&self, numbers: &Numbers, from_round: Round, reset: &[KeyId]) -> Result<(), MemberError> {
        self.hubs.iter().try_for_each(|hub| {
            let (token, reset) = (hub.token.clone(), reset.iter().copied());
            let request = OptimizerRequest::new(token, numbers.clone(), from_round, reset);
            hub.post("optimizer", "change the optimizer's hyperparameters", &request)
                .map(|_: serde_json::Value| ())
        })
    }
}
