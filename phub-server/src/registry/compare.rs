//! Comparisons of the members' weights, which [`coordinator`] makes: a job whose members differ fails. A hub below others sends the
//! digest of its workers on.

use coordinator::Compared;
use pbox_core::control::CompareRequest;

use super::{Refusal, Registry, on_thread};

impl Registry {
    /// Compares a member's weights with those of the others. The job fails if they differ.
    pub async fn compare(&self, job: &str, request: CompareRequest) -> Result<(), Refusal> {
        let CompareRequest { token, round, digest, written } = request;
        let compared = Compared { round, written };
        let (id, above) = {
            let mut inner = self.lock();
            let (job, rank) = inner.member(job, &token)?;
            if !job.runs() {
                return Ok(()); // its news say why
            }
            let (id, compared) = (job.id, job.compare(rank, compared, digest));
            let above = match compared {
                Ok(true) => job.above.clone(),
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
