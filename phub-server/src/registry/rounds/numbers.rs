//! The hyperparameters of a job's optimizer that its workers change while it runs. The hyperparameters are
//! learning rate, weight decay, momentum, betas, epsilon, the multipliers of each key, and the hyperparameters
//! of groups of keys.
//!
//! ```text
//!   request --> checked against the terms --> this hub's cores, all from the same round on --> the answer
//!                  |                                  the job's list, for its checkpoints
//!                  V if hubs are above
//!               the hubs above
//! ```

use std::sync::Arc;

use coordinator::Change;
use coordinator::input::{ChangeNumbers, ForgetNumbers};
use hub_threads::Command;
use pbox_core::control::{LearningRateRequest, OptimizerRequest};
use pbox_core::{KeyId, Numbers, Round};

use crate::registry::rounds::waits::answers;
use crate::registry::{Refusal, Registry, on_thread};

impl Registry {
    /// Returns the number of a job's keys; 0 if the hub has no such job.
    pub fn keys_of(&self, job: &str) -> usize {
        let inner = self.lock();
        inner.hub().named(job).map_or(0, |job| job.spec.terms.keys.len())
    }

    /// Changes a job's learning rate. Returns when every core has the new rate.
    pub async fn set_learning_rate(&self, job: &str, request: LearningRateRequest) -> Result<(), Refusal> {
        let LearningRateRequest { token, learning_rate, from_round } = request;
        self.set_numbers(job, &token, from_round, Change::Rate(learning_rate), Vec::new()).await
    }

    /// Changes the hyperparameters of a job's optimizer. Returns when every core has the change.
    pub async fn set_optimizer(&self, job: &str, request: OptimizerRequest) -> Result<(), Refusal> {
        let OptimizerRequest { token, optimizer, keys: multipliers, groups, from_round, reset } = request;
        let (seen, most) = (reset.len(), self.keys_of(job));
        if seen > most {
            return Err(Refusal::bad(format!(
                "reset: names {seen} keys, and the job has {most}: name each key at most once"
            )));
        }
        let mut reset = Vec::from_iter(reset.into_iter().map(KeyId));
        reset.sort_unstable();
        let numbers = Numbers { optimizer, multipliers, groups };
        self.set_numbers(job, &token, from_round, Change::All(numbers), reset).await
    }

    async fn set_numbers(
        &self,
        job: &str,
        token: &str,
        from: Round,
        change: Change,
        reset: Vec<KeyId>,
    ) -> Result<(), Refusal> {
        let (id, above, asked) = {
            let mut inner = self.lock();
            let (member, _) = inner.member(job, token)?;
            let request =
                ChangeNumbers { job: member.job, change: change.clone(), from, reset: reset.clone() };
            let numbers = inner.ask(request).map_err(Refusal::bad)?;
            let (_, (_, job)) = inner.member(job, token)?;
            let above = job.above.clone();
            let asked = match above {
                Some(_) => Vec::new(),
                None => {
                    let Numbers { optimizer, multipliers, groups } = &numbers;
                    let multipliers = if multipliers.is_some() { "set" } else { "those of the join" };
                    tracing::info!(
                        job = job.name,
                        rank = member.rank,
                        from_round = from.0,
                        multipliers,
                        groups = groups.as_ref().map_or(0, |groups| groups.optimizers.len()),
                        ?optimizer,
                        "the optimizer's hyperparameters change"
                    );
                    let reset: Arc<[KeyId]> = reset.clone().into();
                    let change = |reply| {
                        let (numbers, reset) = (numbers.clone(), Arc::clone(&reset));
                        Command::SetNumbers { job: job.id, from, numbers, reset, reply }
                    };
                    self.ask_cores(&job.cores.numbers, change)
                }
            };
            (job.id, above, asked)
        };
        if let Some(above) = above {
            let changed = on_thread("phub-above", move || above.set_numbers(&change, from, &reset)).await;
            return self.passed_on(id, changed);
        }
        if let Some(oldest) = answers(asked).await?.into_iter().flatten().min() {
            // `ask` has no effect if the job has ended meanwhile.
            self.lock().ask(ForgetNumbers { job: id, oldest: oldest.min(from) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::test_bed;

    #[test]
    fn no_key_is_reset_twice() {
        let (registry, mut core) = test_bed::registry();
        test_bed::runtime().block_on(async {
            let token = registry.join("job".into(), test_bed::request()).await.unwrap().token;
            core.obey();
            let optimizer = test_bed::request().terms.optimizer;
            let reset = vec![0; 8_000_000]; // the most that a body may have
            let keys = reset.into_iter().map(KeyId);
            let request = OptimizerRequest::new(token, Numbers::new(optimizer), Round(1), keys);
            let refused = registry.set_optimizer("job", request).await.unwrap_err();
            assert!(refused.why.contains("names 8000000 keys, and the job has 1"));
        });
    }
}
