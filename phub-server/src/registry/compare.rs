//! Whether all members of a job have the same weights: each sends a digest of them every so many rounds, and of those that it
//! writes itself, if its program asks for that. A hub below others sends the digest of its workers on.
//!
//! Under the registry's lock.

use std::collections::{BTreeMap, VecDeque};

use pbox_core::control::CompareRequest;
use pbox_core::{Members, Round};

use super::job::Job;
use super::{Refusal, Registry, on_thread};

/// The most comparisons for which some digests are missing: two a round. Members of a job in step are at most two rounds apart.
const OPEN: usize = 8;

/// The weights that a digest is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compared {
    pub round: Round,
    /// Whether the members write these weights in the round. Else they have them before it.
    pub written: bool,
}

/// The digests that have come.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    open: VecDeque<(Compared, BTreeMap<u32, u64>)>,
    /// The last round before which all members had the same weights.
    pub equal: Option<Round>,
}

impl Digests {
    /// Takes a member's digest in. Returns those of all these members, by rank, once they are there.
    fn take(
        &mut self,
        rank: u32,
        compared: Compared,
        digest: u64,
        members: &[u32],
    ) -> Option<BTreeMap<u32, u64>> {
        let at = self.open.iter().position(|open| open.0 == compared).unwrap_or_else(|| {
            self.open.truncate(OPEN - 1);
            self.open.push_front((compared, BTreeMap::new()));
            0
        });
        let digests = &mut self.open[at].1;
        digests.insert(rank, digest);
        let is_whole = members.iter().all(|rank| digests.contains_key(rank));
        if is_whole { self.open.remove(at).map(|open| open.1) } else { None }
    }
}

impl Job {
    /// A member has, or writes, weights with this digest. Returns whether all members are known to have the same.
    ///
    /// # Errors
    /// When they have not, in words.
    fn compare(&mut self, rank: u32, compared: Compared, digest: u64) -> Result<bool, String> {
        let members: Vec<u32> = (0..self.terms.workers).filter(|&rank| self.has(rank)).collect();
        let Some(digests) = self.digests.take(rank, compared, digest, &members) else { return Ok(false) };
        let mut ranks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        digests.into_iter().for_each(|(rank, digest)| ranks.entry(digest).or_default().push(rank));
        if ranks.len() == 1 {
            if !compared.written {
                self.digests.equal = Some(compared.round);
            }
            return Ok(true);
        }
        let mut ranks: Vec<Vec<u32>> = ranks.into_values().collect();
        ranks.sort_by_key(|ranks| (std::cmp::Reverse(ranks.len()), ranks[0]));
        let who = match self.terms.level.members {
            Members::Workers => "workers",
            Members::Hubs | Members::Mesh => "machines",
        };
        let equal: Vec<String> = ranks.iter().map(|ranks| format!("{ranks:?}")).collect();
        let round = compared.round.0;
        Err(match compared.written {
            false => format!(
                "weights differ before round {round}: those of {who} {} are not the same (compare_every); a network, memory or a \
                 program has altered them on some machine: look at these, and go on from a checkpoint before that round",
                equal.join(" and of ")
            ),
            true => format!(
                "{who} {} wrote different weights in round {round} (compare_every); write the same on all, or leave compare_every \
                 out: those of rank 0 count then",
                equal.join(" and ")
            ),
        })
    }
}

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
