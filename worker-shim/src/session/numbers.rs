//! The numbers of the job's optimizer, which a worker may change between rounds.
//!
//! On the caller's thread. The hubs make the change, all cores from the same round on.

use membership::MemberError;
use pbox_core::control::{LearningRateRequest, OptimizerRequest};
use pbox_core::{KeyId, Multipliers, Numbers, Optimizer, Round};

use super::error::SessionError;
use super::session::Session;

impl Session {
    /// Changes the learning rate from the next round on, for all workers: the short form of
    /// [`set_optimizer`](Self::set_optimizer), with the same rules.
    pub fn set_learning_rate(&mut self, learning_rate: f32) -> Result<(), SessionError> {
        self.config.terms.check_learning_rate(learning_rate)?;
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

    /// Changes all numbers of the optimizer from the next round on, for all workers: those of `optimizer`, which is of the job's
    /// kind, and each key's multipliers of learning rate and weight decay, in the order of the keys. Without multipliers these
    /// stay as they are. Called between rounds; every worker may call it with the same values. With SSP and ASP the hub steps a
    /// push by the numbers of its own round: workers that are ahead have used the former ones.
    ///
    /// # Errors
    /// When the optimizer is of another kind, when a number is out of its range, when there are multipliers and not a pair for
    /// each key; and while a key is under way.
    pub fn set_optimizer(
        &mut self,
        optimizer: Optimizer,
        multipliers: Option<Vec<Multipliers>>,
    ) -> Result<(), SessionError> {
        self.set_optimizer_and_reset(optimizer, multipliers, &[])
    }

    /// Does the same, and has the optimizer state of some keys set to zero before the next round, as if they had made no step.
    /// Their weights stay.
    ///
    /// # Errors
    /// As for [`set_optimizer`](Self::set_optimizer); with SSP and ASP, where a key has no border between two rounds; and when a
    /// key does not exist.
    pub fn set_optimizer_and_reset(
        &mut self,
        optimizer: Optimizer,
        multipliers: Option<Vec<Multipliers>>,
        reset: &[KeyId],
    ) -> Result<(), SessionError> {
        let numbers = Numbers { optimizer, multipliers: multipliers.as_deref().map(Into::into) };
        self.config.terms.check_numbers(&numbers)?;
        self.exchange.check_quiet("changing the optimizer's numbers")?;
        let former = self.numbers.take().and_then(|former| former.multipliers);
        let kept = numbers.multipliers.clone().or(former);
        self.numbers = Some(Numbers { optimizer, multipliers: kept });
        self.ask(|session| session.tell_numbers(&numbers, session.next_round(), reset))
    }

    /// Tells hubs that came back what this worker has set: their numbers are those of a checkpoint.
    pub(super) fn tell_numbers_again(&self) -> Result<(), SessionError> {
        match &self.numbers {
            Some(numbers) => Ok(self.tell_numbers(numbers, self.first, &[])?),
            None => Ok(()),
        }
    }

    fn tell_numbers(&self, numbers: &Numbers, from_round: Round, reset: &[KeyId]) -> Result<(), MemberError> {
        self.hubs.iter().try_for_each(|hub| {
            let (token, optimizer) = (hub.token.clone(), numbers.optimizer);
            let keys = numbers.multipliers.as_deref().map(<[_]>::to_vec);
            let reset = reset.iter().map(|key| key.0).collect();
            let request = OptimizerRequest { token, optimizer, keys, from_round, reset };
            hub.post("optimizer", "change the optimizer's numbers", &request).map(|_: serde_json::Value| ())
        })
    }
}
