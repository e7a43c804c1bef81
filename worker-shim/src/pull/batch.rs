//! Batches of layers: the layers whose weights are pulled together, so that pulling overlaps the forward pass
//! (iBatch).
//!
//! Pure functions of a profile. They do not depend on keys, links or clocks.
//!
//! ```text
//!   pulls    [Ts| batch 1 ][Ts| batch 2      ][Ts| batch 3 ]        back to back
//!   forward               [ batch 1 ]         [ batch 2    ][ batch 3 ]
//!                                                  a batch begins after its own pull and after the previous batch
//! ```

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::greedy;
use super::timeline::Sums;
pub use super::timeline::{LayerCost, Profile, Timeline};

/// The rule that divides the layers of a model into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batching {
    /// The batches with the shortest makespan, by dynamic programming.
    Optimum,
    /// The better of the two greedy algorithms of iBatch's paper.
    Greedy,
    /// Each layer by itself.
    Layer,
    /// All layers at once: the classic loop of a parameter server.
    All,
}

/// A text that names no batching.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("batches {seen:?}: expected ibatch, greedy, layer or all")]
pub struct NotABatching {
    seen: String,
}

impl Batching {
    /// All kinds of batches.
    pub const ALL: [Batching; 4] = [Batching::Optimum, Batching::Greedy, Batching::Layer, Batching::All];

    /// Returns the name of the rule.
    pub fn name(self) -> &'static str {
        match self {
            Batching::Optimum => "ibatch",
            Batching::Greedy => "greedy",
            Batching::Layer => "layer",
            Batching::All => "all",
        }
    }

    /// Whether the batches depend on a profile.
    pub fn needs_profile(self) -> bool {
        matches!(self, Batching::Optimum | Batching::Greedy)
    }

    /// Returns the batches: consecutive ranges of layers, which are not empty.
    pub fn batches(self, profile: &Profile) -> Vec<Range<usize>> {
        let layers = profile.layers.len();
        match self {
            _ if layers == 0 => Vec::new(),
            Batching::Greedy if layers > 1 => greedy::better(profile),
            Batching::Optimum => optimum(profile),
            Batching::Layer => (0..layers).map(|layer| layer..layer + 1).collect(),
            Batching::Greedy | Batching::All => std::iter::once(0..layers).collect(),
        }
    }
}

impl fmt::Display for Batching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Batching {
    type Err = NotABatching;

    fn from_str(text: &str) -> Result<Self, NotABatching> {
        let found = Batching::ALL.into_iter().find(|batching| batching.name() == text);
        found.ok_or_else(|| NotABatching { seen: text.to_owned() })
    }
}

/// The total time for which computing stands still, and the first layer of the last batch.
type Idle = (f64, usize);

/// Returns the batches with the shortest makespan. If several choices are equal, returns the choice with the fewest
/// batches.
///
/// Let the first `l` layers have `k` batches, and the last batch begin with layer `j`. Then computing stands
/// still for
///
/// ```text
///   idle(k, l) = min over j of max(idle(k - 1, j), k * start_up + transfer(0..l) - forward(0..j))
/// ```
///
/// and the makespan is that time plus the whole forward pass. The second term falls as `j` grows. So `j` goes down
/// from `l - 1`, and the search stops when the second term alone is too long.
fn optimum(profile: &Profile) -> Vec<Range<usize>> {
    let layers = profile.layers.len();
    let sums = Sums::new(profile);
    // Row `k - 1` has `idle(k, l)` for each `l`.
    let mut rows: Vec<Vec<Idle>> = Vec::new();
    let (mut best, mut best_k) = (f64::INFINITY, 0);
    for k in 1..=layers {
        let pulls = k as f64 * sums.start_up;
        // Even a last batch of one layer would begin too late, and with more batches it would begin even later.
        if pulls + sums.transfer[layers] - sums.forward[layers - 1] >= best {
            break;
        }
        let row: Vec<Idle> = match rows.last() {
            None => sums.transfer.iter().map(|transfer| (pulls + transfer, 0)).collect(),
            Some(before) => (0..=layers).map(|l| least_idle(&sums, k, l, before)).collect(),
        };
        if row[layers].0 < best {
            (best, best_k) = (row[layers].0, k);
        }
        rows.push(row);
    }
    let mut batches = Vec::with_capacity(best_k);
    let mut end = layers;
    for row in rows[..best_k].iter().rev() {
        let begin = row[end].1;
        batches.push(begin..end);
        end = begin;
    }
    batches.reverse();
    batches
}

/// Computes `idle(k, l)` from the row of `k - 1`.
fn least_idle(sums: &Sums, k: usize, l: usize, before: &[Idle]) -> Idle {
    let there = k as f64 * sums.start_up + sums.transfer[l];
    let mut least = (f64::INFINITY, 0);
    for j in (k - 1..l).rev() {
        let waits = there - sums.forward[j];
        if waits >= least.0 {
            break;
        }
        let idle = f64::max(before[j].0, waits);
        if idle < least.0 {
            least = (idle, j);
        }
    }
    least
}

#[cfg(test)]
mod tests;
