//! Comparisons of the members' weights. The [`coordinator`] compares, and a job fails if its members differ. If the
//! workers of a hub below other hubs agree, that hub sends their digest to the hubs above.

use coordinator::Compared;
use coordinator::input::Compare;
use pbox_core::control::CompareRequest;

use crate::registry::{Refusal, Registry, on_thread};

impl Registry {
    /// Compares a member's weights with the weights of the other members. The job fails if they differ.
    pub async fn compare(&self, job: &str, request: CompareRequest) -> Result<(), Refusal> {
        let CompareRequest { token, round, digest, written } = request;
        let compared = Compared { round, written };
        let (id, above) = {
            let mut inner = self.lock();
            let (member, (state, job)) = inner.member(job, &token)?;
            if !state.life.runs() {
                return Ok(()); // the news of the job give the reason
            }
            let (id, above) = (state.spec.id, job.above.clone());
            let above = match inner.ask(Compare { member, compared, digest }) {
                Ok(true) => above,
                Ok(false) => None,
                Err(reason) => {
                    self.fail(&mut inner, id, &reason);
                    None
                }
            };
            (id, above)
        };
        let Some(above) = above else { return Ok(()) };
        let told = on_thread("phub-above", move || above.compare(compared, digest)).await;
        self.passed_on(id, told)
    }
}
