//! Digests of the members' weights, which show whether all members have the same weights. Every few rounds a member sends
//! the digest of the weights that it has. If its program asks for it, a member also sends the digest of the weights that it
//! writes itself. A hub below other hubs passes on the digest of its workers.

use std::collections::{BTreeMap, VecDeque};

use pbox_core::Round;
use serde::{Deserialize, Serialize};

/// The most comparisons in which digests are missing: two for each round. Members of a job in step are at most two rounds
/// apart.
const OPEN: usize = 8;

/// The weights that a digest is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// The round.
    pub round: Round,
    /// Whether the members write the compared weights in the round. Otherwise they have the weights before it.
    pub written: bool,
}

/// The digests that have come.
#[derive(Debug, Default)]
pub struct Digests {
    open: VecDeque<(Compared, BTreeMap<u32, u64>)>,
    /// The last round before which all members had the same weights.
    pub equal: Option<Round>,
}

impl Digests {
    /// Records a member's digest. Returns the digests of all members of the comparison, by rank, once all have arrived.
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

    /// Records the digest of weights that a member has or writes. Returns whether all members of the comparison are known to
    /// have the same weights. `who` names the members in words.
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
                "weights differ before round {round}: those of {who} {} are not the same (compare_every); a network, memory or a \
                 program has altered them on some machine: look at these, and continue from a checkpoint before that round",
                equal.join(" and of ")
            ),
            true => format!(
                "{who} {} wrote different weights in round {round} (compare_every); write the same weights on \
                 all, or leave compare_every out: then the weights of rank 0 count",
                equal.join(" and ")
            ),
        })
    }
}
