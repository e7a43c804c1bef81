//! Batches of layers: which weights are pulled together, so that pulling overlaps the forward pass (iBatch).
//!
//! Pure functions of a profile. Knows neither keys nor links nor clocks.
//!
//! ```text
//!   pulls    [Ts| batch 1 ][Ts| batch 2      ][Ts| batch 3 ]        back to back
//!   forward               [ batch 1 ]         [ batch 2    ][ batch 3 ]
//!                                                  after its own pull and the batch before
//! ```

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// How the layers of a model are put in batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batching {
    /// The batches of the shortest makespan, by dynamic programming.
    Optimum,
    /// The better of the paper's two greedy algorithms.
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

/// What one layer takes; seconds, or any other unit as long as it is one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerCost {
    /// To pull its weights, without the start-up.
    pub transfer: f64,
    /// To compute it forward.
    pub forward: f64,
}

/// What pulling and computing a model forward takes. All times are 0 or above.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Of each pull, however much it brings.
    pub start_up: f64,
    /// In the order of the forward pass.
    pub layers: Vec<LayerCost>,
}

/// When the parts of a plan begin and end; each batch with its pull's end, and the beginning of its computing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// By batch: its weights are there.
    pub there: Vec<f64>,
    /// By batch: its first layer begins.
    pub begun: Vec<f64>,
    /// The last layer begins.
    pub last_begun: f64,
    /// From the first pull's beginning to the end of the last layer.
    pub makespan: f64,
    /// Of it, while the model was both pulled and computed.
    pub overlap: f64,
}

impl Batching {
    /// All of them.
    pub const ALL: [Batching; 4] = [Batching::Optimum, Batching::Greedy, Batching::Layer, Batching::All];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Batching::Optimum => "ibatch",
            Batching::Greedy => "greedy",
            Batching::Layer => "layer",
            Batching::All => "all",
        }
    }

    /// Whether its batches depend on a profile.
    pub fn needs_profile(self) -> bool {
        matches!(self, Batching::Optimum | Batching::Greedy)
    }

    /// The batches: ranges of layers, one after the other, none of them empty.
    pub fn batches(self, profile: &Profile) -> Vec<Range<usize>> {
        let layers = profile.layers.len();
        match self {
            _ if layers == 0 => Vec::new(),
            Batching::Greedy if layers > 1 => super::greedy::better(profile),
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

impl Timeline {
    /// Of these batches, which are all layers in order.
    pub fn new(profile: &Profile, batches: &[Range<usize>]) -> Self {
        let mut timeline = Timeline::default();
        let (mut there, mut computed) = (0.0, 0.0);
        for batch in batches {
            let layers = &profile.layers[batch.clone()];
            there += profile.start_up + layers.iter().map(|layer| layer.transfer).sum::<f64>();
            let begun = f64::max(there, computed);
            computed = begun + layers.iter().map(|layer| layer.forward).sum::<f64>();
            timeline.there.push(there);
            timeline.begun.push(begun);
        }
        let forward: f64 = profile.layers.iter().map(|layer| layer.forward).sum();
        timeline.makespan = computed;
        timeline.last_begun = computed - profile.layers.last().map_or(0.0, |layer| layer.forward);
        // Pulls run from the beginning without a break; what is computed after their end overlaps nothing.
        timeline.overlap = f64::max(0.0, there + forward - computed);
        timeline
    }
}

/// Sums over the first so many layers.
pub(super) struct Sums {
    pub start_up: f64,
    pub transfer: Vec<f64>,
    pub forward: Vec<f64>,
}

impl Sums {
    pub fn new(profile: &Profile) -> Self {
        let sums = |of: fn(&LayerCost) -> f64| {
            let running = profile.layers.iter().scan(0.0, |sum, layer| {
                *sum += of(layer);
                Some(*sum)
            });
            std::iter::once(0.0).chain(running).collect()
        };
        let (transfer, forward) = (sums(|layer| layer.transfer), sums(|layer| layer.forward));
        Sums { start_up: profile.start_up, transfer, forward }
    }

    /// To pull these layers as one batch.
    pub fn pull(&self, layers: Range<usize>) -> f64 {
        self.start_up + self.transfer[layers.end] - self.transfer[layers.start]
    }

    pub fn forward(&self, layers: Range<usize>) -> f64 {
        self.forward[layers.end] - self.forward[layers.start]
    }
}

/// How long computing stands still, and the first layer of the last batch that it comes from.
type Idle = (f64, usize);

/// The shortest makespan, and of equal ones that of the fewest batches.
///
/// With `k` batches of the first `l` layers, the last one from layer `j` on, computing stands still for
///
/// ```text
///   idle(k, l) = min over j of max(idle(k - 1, j), k * start_up + transfer(0..l) - forward(0..j))
/// ```
///
/// and the makespan is that and the whole of forward. The second term falls as `j` grows, so that `j` goes down from
/// `l - 1` until that term alone is too long.
fn optimum(profile: &Profile) -> Vec<Range<usize>> {
    let layers = profile.layers.len();
    let sums = Sums::new(profile);
    // Row k - 1 has idle(k, l).
    let mut rows: Vec<Vec<Idle>> = Vec::new();
    let (mut best, mut best_k) = (f64::INFINITY, 0);
    for k in 1..=layers {
        let pulls = k as f64 * sums.start_up;
        // More batches only begin their last one later.
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

/// idle(k, l), from the row of `k - 1`.
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
