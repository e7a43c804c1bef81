//! Digests of the members' weights, which show whether all have the same. A member sends one every few rounds, if its program asks
//! for that. A hub below others sends that of its workers on.

use std::collections::{BTreeMap, VecDeque};

use pbox_core::Round;

/// Rounds of which some digests are there. Members of a job in step are at most two rounds apart.
const OPEN: usize = 4;

/// The digests that have come.
#[derive(Debug, Default)]
pub struct Digests {
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

    /// Takes in the digest of a member's weights before a round. Returns whether all these members are known to have the same
    /// weights. `who` names the members in words.
    ///
    /// # Errors
    /// When they have not, in words.
    pub(crate) fn compare(
        &mut self,
        (rank, round, digest): (u32, Round, u64),
        members: &[u32],
        who: &str,
    ) -> Result<bool, String> {
        let Some(digests) = self.take(rank, round, digest, members) else { return Ok(false) };
        let mut ranks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        digests.into_iter().for_each(|(rank, digest)| ranks.entry(digest).or_default().push(rank));
        if ranks.len() == 1 {
            self.equal = Some(round);
            return Ok(true);
        }
        let mut ranks: Vec<Vec<u32>> = ranks.into_values().collect();
        ranks.sort_by_key(|ranks| std::cmp::Reverse(ranks.len()));
        let equal = ranks.iter().map(|ranks| format!("{ranks:?}")).collect::<Vec<_>>().join(" and of ");
        Err(format!(
            "weights differ before round {}: those of {who} {equal} are not the same (compare_every); a network, memory or a \
             program has altered them on some machine: look at these, and go on from a checkpoint before that round",
            round.0
        ))
    }
}
