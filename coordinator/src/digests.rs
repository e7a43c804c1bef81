//! Comparisons of the members' weights by digests. Every few rounds, each member sends the digest of its weights before
//! the round. Some programs also ask for a digest of the weights that a member writes to the hub in a round. Then the
//! member sends this digest, too. A hub below other hubs sends the digest that all its workers share to the hubs above.

use std::collections::{BTreeMap, VecDeque};

use pbox_core::Round;
use serde::{Deserialize, Serialize};

/// The limit on comparisons with missing digests. A round has two comparisons. Members that step together are at most two
/// rounds apart.
const OPEN: usize = 8;

/// The weights that a comparison is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// The round.
    pub round: Round,
    /// Whether the comparison is about the weights that members write to the hub in the round. Otherwise it is about
    /// the members' weights before the round.
    pub written: bool,
}

/// The comparisons of a job.
#[derive(Debug, Default)]
pub struct Digests {
    open: VecDeque<(Compared, BTreeMap<u32, u64>)>,
    /// The last round before which all members had the same weights.
    pub equal: Option<Round>,
}

impl Digests {
    /// Records a member's digest. Once the digests of all members have arrived, returns them by rank.
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

    /// Records a member's digest. Returns whether all members have the same weights in this comparison. The result is false
    /// until all digests have arrived. `who` names the members in words.
    ///
    /// # Errors
    /// Returns the difference, in words, if the weights differ.
    pub(crate) fn compare(
        &mut self,
        (rank, compared, digest): (u32, Compared, u64),
        members: &[u32],
        who: &str,
    ) -> Result<bool, String> {
        let Some(digests) = self.take(rank, compared, digest, members) else { return Ok(false) };
        let mut ranks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        digests.into_iter().for_each(|(rank, digest)| ranks.entry(digest).or_default().push(rank));
        if ranks.len() == 1 {
            if !compared.written {
                self.equal = Some(compared.round);
            }
            return Ok(true);
        }
        let mut ranks: Vec<Vec<u32>> = ranks.into_values().collect();
        ranks.sort_by_key(|ranks| (std::cmp::Reverse(ranks.len()), ranks[0]));
        let equal: Vec<String> = ranks.iter().map(|ranks| format!("{ranks:?}")).collect();
        let round = compared.round.0;
        Err(match compared.written {
            false => format!(
                "weights differ before round {round}: the weights of {who} {} are not equal (compare_every); a network, \
                 memory or a program has altered weights on some machine: look at the machines, and continue from a \
                 checkpoint before that round",
                equal.join(" and of ")
            ),
            true => format!(
                "{who} {} wrote different weights in round {round} (compare_every); write the same weights on all \
                 ranks, or leave compare_every out: then the weights of rank 0 count",
                equal.join(" and ")
            ),
        })
    }
}
