//! The built-in traces: the networks that the papers use, on the GPU that P3's paper uses.
//!
//! The shares of the layers in a trace come from the network's real shapes and the device's roofline. The
//! length of a trace, as samples per second, is a figure in this file, with its source. A roofline only says
//! what a device could do at best, so the length needs a measurement. `docs/compute.md` has the table. This
//! module must not depend on a job.

mod device;
mod maps;
mod network;
mod sockeye;

use device::P4000;
use network::{LayerWork, convolutions};
use pbox_core::{Key, models};

use super::trace::{Layer, Trace};

/// The names of all built-in traces. A model has the same name as its trace.
pub const BUILT_IN: [&str; 7] =
    ["resnet50", "inception3", "vgg16", "vgg19", "vgg19-22k", "googlenet", "sockeye"];

/// The number of samples in a worker's batch: the default of P3's artifact for each of its models.
const BATCH: u32 = 32;

/// The factor from the forward time to the backward time. The backward pass computes two gradients, of a layer's inputs
/// and of its weights. Each takes as much time as the forward pass.
const BACKWARD: f64 = 2.0;

/// A function from a model's keys to the work of its layers.
type Layers = fn(&[Key]) -> Vec<LayerWork>;

/// A network on a GPU.
pub(super) struct Network {
    /// The work of its layers.
    pub work: Layers,
    /// The number of samples per second of one worker that never waits.
    pub samples_per_s: f64,
}

pub(super) fn network(name: &str) -> Option<Network> {
    // These figures were measured on one Tesla P100 with a batch of 32 (TensorFlow's published benchmarks of
    // May 2017): 195 images per second for ResNet-50, 128 for Inception-v3, 144 for VGG-16. They are halved,
    // because the P4000 has half of the P100's FLOP/s. P3's section 5.3 shows ResNet-50 at full speed down to
    // 4 Gb/s, which allows at most 104 images per second. There, each of four machines has a hub and a
    // worker. So 3/4 of the model are sent as gradients and 3/4 as weights, which is 153 MB in 307 ms.
    const RESNET50: f64 = 97.5;
    const INCEPTION3: f64 = 64.0;
    const VGG16: f64 = 72.0;
    // The other networks have no measurement of their own. VGG-19 and its wider variant are assumed to reach
    // the same part of their rooflines as VGG-16, and GoogLeNet the same as Inception-v3. A test checks this.
    const VGG19: f64 = 57.5;
    const VGG19_22K: f64 = 57.0;
    const GOOGLENET: f64 = 261.0;
    // P3's section 5.4 shows Sockeye at 4 Gb/s. The bytes, counted as for ResNet-50, are 166 MB and take 333
    // ms.
    const SOCKEYE: f64 = 96.0;
    let (work, samples_per_s): (Layers, f64) = match name {
        "resnet50" => (|keys| convolutions(keys, maps::resnet50), RESNET50),
        "inception3" => (|keys| convolutions(keys, maps::inception3), INCEPTION3),
        "vgg16" => (|keys| convolutions(keys, maps::vgg16), VGG16),
        "vgg19" => (|keys| convolutions(keys, maps::vgg19), VGG19),
        "vgg19-22k" => (|keys| convolutions(keys, maps::vgg19), VGG19_22K),
        "googlenet" => (|keys| convolutions(keys, maps::googlenet), GOOGLENET),
        "sockeye" => (sockeye::layers, SOCKEYE),
        _ => return None,
    };
    Some(Network { work, samples_per_s })
}

/// Returns the trace of this name.
pub fn built_in(name: &str) -> Option<Trace> {
    let Network { work, samples_per_s } = network(name)?;
    let model = models::model(name).expect("every built-in trace is of a built-in model");
    let work = work(&model.keys);
    let scale = 1e6 * f64::from(BATCH) / samples_per_s / at_best(&work);
    let layer = |work: LayerWork| {
        let forward_us = P4000.seconds(&work, BATCH) * scale;
        Layer { name: work.name, keys: work.keys, forward_us, backward_us: BACKWARD * forward_us }
    };
    Some(Trace { name: name.to_owned(), batch: BATCH, layers: work.into_iter().map(layer).collect() })
}

/// Returns the seconds of an iteration if the device reaches its peak rates.
pub(super) fn at_best(work: &[LayerWork]) -> f64 {
    (1.0 + BACKWARD) * work.iter().map(|work| P4000.seconds(work, BATCH)).sum::<f64>()
}
