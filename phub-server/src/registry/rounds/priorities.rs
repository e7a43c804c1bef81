//! The order in which a member needs its keys, if this order differs from the order of the job.
//!
//! ```text
//!   request --> this hub's cores: the answers to the member, and the sums to hubs above --> the answer
//!                  V if hubs are above
//!               the hubs above: the answers to this hub
//! ```

use std::sync::Arc;

use hub_threads::Command;
use pbox_core::control::PrioritiesRequest;

use crate::registry::rounds::waits::answers;
use crate::registry::{Refusal, Registry, on_thread};

impl Registry {
    /// Sets the order of the answers to a member. Returns when every core has the order.
    pub async fn set_priorities(&self, job: &str, request: PrioritiesRequest) -> Result<(), Refusal> {
        let PrioritiesRequest { token, keys } = request;
        let priorities: Arc<[u32]> = keys.into();
        let (id, above, asked) = {
            let mut inner = self.lock();
            let (member, (state, job)) = inner.member(job, &token)?;
            let (seen, expected) = (priorities.len(), state.spec.terms.keys.len());
            if seen != expected {
                return Err(Refusal::bad(format!(
                    "priorities: {seen} numbers; expected one for each of the {expected} keys of job {:?}",
                    job.name
                )));
            }
            let (id, rank) = (member.job, member.rank);
            let asked = self.ask_cores(&job.cores.numbers, |reply| Command::SetPriorities {
                job: id,
                rank,
                priorities: Arc::clone(&priorities),
                reply,
            });
            (id, job.above.clone(), asked)
        };
        answers(asked).await?;
        let Some(above) = above else { return Ok(()) };
        let passed = on_thread("phub-above", move || above.set_priorities(&priorities)).await;
        self.passed_on(id, passed)
    }
}
