//! Whether all members of a job have the same weights: each sends a digest of them every so many rounds, if its program
//! asks for that. A hub below others sends that of its workers on.
//!
//! Under the registry's lock.

use std::collections::{BTreeMap, VecDeque};

use pbox_core::control::CompareRequest;
use pbox_core::{Members, Round};

use super::job::Job;
use super::{Refusal, Registry, on_thread};

/// Rounds of which some digests are there. Members of a job in step are at most two rounds apart.
const OPEN: usize = 4;

/// The digests that have come.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    open: VecDeque<(Round, BTreeMap<u32, u64>)>,
    /// The last round before which all members had the same weights.
    pub equal: Option<Round>,
}

impl Digests {
    /// Takes a member's digest in. Returns those of all these members, by rank, once they are there.
    fn take(&mut self, rank: u32, round: Round, digest: u64, members: &[u32]) -> Option<BTreeMap<u32, u64>> {
        let at = self.open.iter().position(|open| open.0 == round).unwrap_or_else(|| {
            self.open.truncate(OPEN - 1);
            self.open.push_front((round, BTreeMap::new()));
            0
        });
        let digests = &mut self.open[at].1;
        digests.insert(rank, digest);
        let is_whole = members.iter().all(|rank| digests.contains_key(rank));
        if is_whole { self.open.remove(at).map(|open| open.1) } else { None }
    }
}

impl Job {
    /// A member has weights with this digest before a round. Returns whether all members are known to have the same.
    ///
    /// # Errors
    /// When they have not, in words.
    fn compare(&mut self, rank: u32, round: Round, digest: u64) -> Result<bool, String> {
        let members: Vec<u32> = (0..self.terms.workers).filter(|&rank| self.has(rank)).collect();
        let Some(digests) = self.digests.take(rank, round, digest, &members) else { return Ok(false) };
        let mut ranks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        digests.into_iter().for_each(|(rank, digest)| ranks.entry(digest).or_default().push(rank));
        if ranks.len() == 1 {
            self.digests.equal = Some(round);
            return Ok(true);
        }
        let mut ranks: Vec<Vec<u32>> = ranks.into_values().collect();
        ranks.sort_by_key(|ranks| std::cmp::Reverse(ranks.len()));
        let who = match self.terms.level.members {
            Members::Workers => "workers",
            Members::Hubs | Members::Mesh => "machines",
        };
        let equal = ranks.iter().map(|ranks| format!("{ranks:?}")).collect::<Vec<_>>().join(" and of ");
        Err(format!(
            "weights differ before round {}: those of {who} {equal} are not the same (compare_every); a network, memory or a \
             program has altered them on some machine: look at these, and go on from a checkpoint before that round",
            round.0
        ))
    }
}

impl Registry {
    /// Compares a member's weights with those of the others. The job fails if they differ.
    pub async fn compare(&self, job: &str, request: CompareRequest) -> Result<(), Refusal> {
        let CompareRequest { token, round, digest } = request;
        let (id, above) = {
            let mut inner = self.lock();
            let (job, rank) = inner.member(job, &token)?;
            if !job.runs() {
                return Ok(()); // its news say why
            }
            let (id, compared) = (job.id, job.compare(rank, round, digest));
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
        let told = on_thread("phub-above", move || above.compare(round, digest)).await;
        self.passed_on(id, told)
    }
}
