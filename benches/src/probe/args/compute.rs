//! The probe's settings for compute that takes time.

use pbox_core::{Key, SPLIT_ABOVE};

use super::COMPUTE;
use crate::compute::{ComputePlan, trace};

/// The settings of compute.
#[derive(Clone, Debug, clap::Args)]
pub struct ComputeArgs {
    /// Imitate computing with the times of a trace: resnet50, inception3, vgg16, vgg19, vgg19-22k, googlenet or sockeye on
    /// P3's GPU, or your own file (docs/compute.md). In the forward pass, each layer waits for its weights, and then for its
    /// time. In the backward pass, it waits for its time, and then pushes its gradients. The default model is then the
    /// trace's. Default: computing takes no time.
    #[arg(long, help_heading = COMPUTE, value_name = "TRACE|FILE")]
    pub compute: Option<String>,

    /// Multiply the trace's times by this factor: 2 imitates a GPU that is half as fast.
    #[arg(long, help_heading = COMPUTE, default_value_t = 1.0, value_name = "X", requires = "compute", value_parser = above_zero)]
    #[arg(allow_negative_numbers = true)]
    pub time_scale: f64,

    /// Rate of each worker's link in Gb/s, each way. The probe then prints the bound, the most samples a second that such
    /// links allow, but does not limit the links. Default: no bound.
    #[arg(long, help_heading = COMPUTE, value_name = "GBPS", requires = "compute", value_parser = above_zero)]
    #[arg(allow_negative_numbers = true)]
    pub bandwidth_gbps: Option<f64>,

    /// Divide the size of every tensor by N. Use this with links that are N times slower than the imitated links.
    #[arg(long, help_heading = COMPUTE, default_value_t = 1, value_name = "N", requires = "compute")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub shrink: u64,

    /// Number of exchanges without computing before the iterations. Their median time is needed to compute the overlap.
    #[arg(long, help_heading = COMPUTE, default_value_t = 5, value_name = "N", requires = "compute")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub exchanges: u32,
}

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

impl ComputeArgs {
    /// Shrinks the model's keys.
    pub fn shrink(&self, keys: &mut [Key]) {
        for key in keys.iter_mut().filter(|_| self.shrink > 1) {
            let elements = key.elements();
            key.shape =
                elements.map_or_else(|| key.shape.clone(), |elements| vec![elements.div_ceil(self.shrink)]);
        }
    }

    /// Returns the size above which the baseline splits a tensor over several hubs. It is divided by the same
    /// factor as the tensors.
    pub fn split_above(&self) -> u64 {
        SPLIT_ABOVE / self.shrink
    }

    /// Returns the plan for a job with these keys, if there is a trace.
    pub fn plan(&self, keys: &[Key]) -> anyhow::Result<Option<ComputePlan>> {
        let plan = |name| trace(name)?.plan(keys, self.time_scale);
        self.compute.as_deref().map(plan).transpose()
    }
}
