//! Numbers of a job's optimizer that its workers change while it runs: learning rate, weight decay, momentum, betas, epsilon,
//! and the multipliers of each key.
//!
//! ```text
//!   request --> checked against the terms --> this hub's cores, each from the same round on --> the answer
//!                  |                                  the job's list, for its checkpoints
//!                  V below others
//!               the hubs above
//! ```

use std::sync::Arc;

use pbox_core::control::{LearningRateRequest, OptimizerRequest};
use pbox_core::{Consistency, JobTerms, KeyId, Multipliers, Numbers, NumbersByRound, Optimizer, Round};

use super::cut::answers;
use super::{Refusal, Registry, on_thread};
use crate::cores::Command;

/// Rounds behind the slowest chunk whose numbers a job's list keeps. A checkpoint that is being put together needs the numbers of
/// its own round, and says so if they are gone.
const KEPT_ROUNDS: u32 = 1024;

/// The largest list of a job with few keys, by [`NumbersByRound::size`]. A member may name any round, so the list has a bound.
const MOST: usize = 1 << 22;

/// Checks that a job's list has room for one more change.
fn check_room(list: &NumbersByRound, keys: usize) -> Result<(), String> {
    let (size, most) = (list.size() + 64 + 2 * keys, MOST.max(16 * keys));
    if size > most {
        return Err(format!(
            "the job would hold {size} numbers of rounds that are not over; expected at most {most}: change numbers from the next round on alone"
        ));
    }
    Ok(())
}

/// A change that a worker asks for.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The learning rate alone.
    Rate(f32),
    /// All numbers, and the multipliers of each key if they are given.
    All(Optimizer, Option<Arc<[Multipliers]>>),
}

impl Change {
    /// Returns the numbers that follow those of a round.
    fn after(&self, former: &Numbers) -> Numbers {
        match self {
            Change::Rate(rate) => former.with_learning_rate(*rate),
            Change::All(optimizer, multipliers) => former.with(*optimizer, multipliers.clone()),
        }
    }
}

impl Registry {
    /// How many keys a job has; 0 for a job that is not here.
    pub fn keys_of(&self, job: &str) -> usize {
        let inner = self.lock();
        inner.named(job).map_or(0, |job| job.terms.keys.len())
    }

    /// Changes a job's learning rate. Returns when every core has the new rate.
    pub async fn set_learning_rate(&self, job: &str, request: LearningRateRequest) -> Result<(), Refusal> {
        let LearningRateRequest { token, learning_rate, from_round } = request;
        self.set_numbers(job, &token, from_round, Change::Rate(learning_rate), Vec::new()).await
    }

    /// Changes the numbers of a job's optimizer. Returns when every core has them.
    pub async fn set_optimizer(&self, job: &str, request: OptimizerRequest) -> Result<(), Refusal> {
        let OptimizerRequest { token, optimizer, keys, from_round, reset } = request;
        let (seen, most) = (reset.len(), self.keys_of(job));
        if seen > most {
            return Err(Refusal::bad(format!("reset: {seen} keys of {most}: each key once at most")));
        }
        let mut reset = Vec::from_iter(reset.into_iter().map(KeyId));
        reset.sort_unstable();
        self.set_numbers(job, &token, from_round, Change::All(optimizer, keys.map(Into::into)), reset).await
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
            let (job, rank) = inner.member(job, token)?;
            let numbers = change.after(job.numbers.at(from));
            job.terms.check_numbers(&numbers).map_err(Refusal::bad)?;
            check_room(&job.numbers, job.terms.keys.len()).map_err(Refusal::bad)?;
            check_reset(&job.terms, &reset).map_err(Refusal::bad)?;
            let above = job.above.clone();
            let asked = match above {
                Some(_) => Vec::new(),
                None => {
                    let Numbers { optimizer, multipliers } = &numbers;
                    let multipliers = if multipliers.is_some() { "set" } else { "those of the join" };
                    tracing::info!(
                        job = job.name,
                        rank,
                        from_round = from.0,
                        multipliers,
                        ?optimizer,
                        "the optimizer's numbers change"
                    );
                    job.numbers.change(from, numbers.clone());
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
            // A job that has ended needs none.
            let _ = self.of_job(id, |job| {
                let kept = if job.numbers.size() > MOST / 2 { 0 } else { KEPT_ROUNDS };
                job.numbers.forget_before(Round(oldest.min(from).0.saturating_sub(kept)));
            });
        }
        Ok(())
    }
}

/// Whether the optimizer state of these keys can be set to zero.
fn check_reset(terms: &JobTerms, reset: &[KeyId]) -> Result<(), String> {
    let keys = terms.keys.len();
    if let Some(key) = reset.iter().find(|key| key.index() >= keys) {
        return Err(format!(
            "reset: key {} of {keys}: keys are numbered from 0 in the order of the join",
            key.0
        ));
    }
    if !reset.is_empty() && terms.level.consistency != Consistency::Bsp {
        return Err(format!(
            "reset: with consistency {} a key has no border between two rounds of all workers; use bsp",
            terms.level.consistency
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::test_bed;

    #[test]
    fn a_list_takes_no_more_changes_than_its_bound() {
        let numbers = Numbers::new(Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 });
        let mut list = NumbersByRound::new(numbers.clone());
        let mut rounds = (1..).map(Round);
        while check_room(&list, 1 << 20).is_ok() {
            let table: Arc<[Multipliers]> = vec![[1.0, 1.0]; 1 << 20].into();
            list.change(rounds.next().unwrap(), numbers.with(numbers.optimizer, Some(table)));
        }
        assert_eq!(rounds.next(), Some(Round(8)), "seven tables of a million keys");
        let error = check_room(&list, 1 << 20).unwrap_err();
        assert!(error.contains("expected at most 16777216"), "{error}");
    }

    #[test]
    fn no_key_is_reset_twice() {
        let (registry, mut core) = test_bed::registry();
        test_bed::runtime().block_on(async {
            let token = registry.join("job".into(), test_bed::request()).await.unwrap().token;
            core.obey();
            let optimizer = test_bed::request().terms.optimizer;
            let reset = vec![0; 8_000_000]; // as many as a body may have
            let request = OptimizerRequest { token, optimizer, keys: None, from_round: Round(1), reset };
            let refused = registry.set_optimizer("job", request).await.unwrap_err();
            assert!(refused.why.contains("8000000 keys of 1"));
        });
    }
}
