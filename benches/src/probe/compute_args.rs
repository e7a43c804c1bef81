//! The probe's settings for compute that takes time.

use pbox_core::{Key, SPLIT_ABOVE};

use crate::compute::{Plan, Trace, TraceError, trace};

/// How workers compute.
#[derive(Clone, Debug, clap::Args)]
pub struct ComputeArgs {
    /// Compute takes time, as a trace says: of resnet50, inception3, vgg16, vgg19, vgg19-22k, googlenet or sockeye on P3's
    /// GPU, or a file of your own (docs/compute.md). Forward, each layer waits for its weights and then for its
    /// time; backward, for its time, and then pushes its gradients. The model is the trace's unless chosen.
    #[arg(long, value_name = "TRACE|FILE")]
    pub compute: Option<String>,

    /// Multiplies the trace's times: 2 is a GPU half as fast.
    #[arg(long, default_value_t = 1.0, value_name = "X", requires = "compute", value_parser = above_zero)]
    #[arg(allow_negative_numbers = true)]
    pub time_scale: f64,

    /// What each worker's link carries of the model, each way, to compare with the bound: computing and link as busy as
    /// they can be, each layer after its weights.
    #[arg(long, value_name = "GBPS", requires = "compute", value_parser = above_zero)]
    #[arg(allow_negative_numbers = true)]
    pub bandwidth_gbps: Option<f64>,

    /// Every tensor is an Nth of its size, for links as much slower than those that are imitated.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "compute")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub shrink: u64,

    /// Exchanges with nothing computed, before the iterations, that overlap is compared with.
    #[arg(long, default_value_t = 5, value_name = "N", requires = "compute")]
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
    /// The model's keys, shrunk.
    pub(super) fn shrink(&self, keys: &mut [Key]) {
        for key in keys.iter_mut().filter(|_| self.shrink > 1) {
            let elements = key.elements();
            key.shape =
                elements.map_or_else(|| key.shape.clone(), |elements| vec![elements.div_ceil(self.shrink)]);
        }
    }

    /// What the baseline splits over several hubs, shrunk like the tensors.
    pub(super) fn split_above(&self) -> u64 {
        SPLIT_ABOVE / self.shrink
    }

    /// The plan for a job of these keys, where there is a trace.
    pub(super) fn plan(&self, keys: &[Key]) -> Result<Option<Plan>, TraceError> {
        let trace: Option<Trace> = self.compute.as_deref().map(trace).transpose()?;
        trace.map(|trace| trace.plan(keys, self.time_scale)).transpose()
    }
}
