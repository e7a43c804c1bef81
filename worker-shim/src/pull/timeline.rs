//! The time to pull a model and compute it forward, and the times at which the parts of a plan begin and end.
//!
//! Pure arithmetic, in any unit of time.

use std::ops::Range;

/// The times of one layer, in seconds or any other unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerCost {
    /// The time to pull the layer's weights, without the start-up.
    pub transfer: f64,
    /// The time to compute the layer forward.
    pub forward: f64,
}

/// The time that it takes to pull a model and compute it forward. All times are 0 or above.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The start-up: the part of each pull's time that does not depend on its size.
    pub start_up: f64,
    /// The costs of the layers, in the order of the forward pass.
    pub layers: Vec<LayerCost>,
}

/// The times when the parts of a plan begin and end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The time when each batch's weights arrived, by batch.
    pub there: Vec<f64>,
    /// The time when each batch's first layer begins, by batch.
    pub begun: Vec<f64>,
    /// The time when the last layer begins.
    pub last_begun: f64,
    /// The time from the beginning of the first pull to the end of the last layer.
    pub makespan: f64,
    /// The part of the makespan in which layers are pulled while other layers are computed.
    pub overlap: f64,
}

impl Timeline {
    /// Creates the timeline of these batches, which together contain all layers, in order.
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
        // Pulls run without a break from the beginning. So only computing before the end of the last pull overlaps
        // pulling.
        timeline.overlap = f64::max(0.0, there + forward - computed);
        timeline
    }
}

/// The sums over the first layers: element `n` is the sum over `n` layers.
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

    /// Returns the time to pull these layers as one batch.
    pub fn pull(&self, layers: Range<usize>) -> f64 {
        self.start_up + self.transfer[layers.end] - self.transfer[layers.start]
    }

    pub fn forward(&self, layers: Range<usize>) -> f64 {
        self.forward[layers.end] - self.forward[layers.start]
    }
}
