//! The probe's settings.

mod compute;
mod pull;

use std::path::PathBuf;
use std::time::Duration;

use compute::ComputeArgs;
use fabric::IdlePolicy;
use fabric::any::Transport;
use fabric::tcp::Congestion;
use fabric::verbs::{NicList, RailMap};
use pbox_core::Credit;
use pbox_core::control::Mesh;
use pbox_core::{
    Ablate, Compression, Consistency, Dtype, JobTerms, Key, LevelTerms, MAX_WORKERS, Members, Optimizer,
    Schedule, default_chunk_bytes,
};
use phub_server::program::ModelSource;
use phub_server::{CoreSelection, HubSettings, IdleChoice, PathArgs};
use pull::PullArgs;
use worker_shim::{NicSettings, SessionConfig, WeightsMode};

use super::trace::part;
use crate::child::ChildRole;
use crate::compute::{BUILT_IN, ComputePlan};

/// The headings of the help, in order. Flags without a heading come first: they are the flags to change in a first run.
const JOB: &str = "What the hub and the workers do";
const ORDER: &str = "In what order bytes are sent";
const COMPUTE: &str = "When computing takes time";
const MACHINE: &str = "On what it runs";
const ELSEWHERE: &str = "With a hub that runs elsewhere";

/// Measure how fast a hub and its workers exchange a model on this machine, when computing takes no time.
///
/// Without --hub, the probe starts a hub and its workers as processes. In the same run it measures the machine's limit: the
/// same kernels over private memory on the same cores, without exchange. The probe checks every result against the exact sum.
/// With --compute, workers imitate the time that computing takes.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "phub-probe", version)]
pub struct Args {
    /// Number of worker processes.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WORKERS)))]
    pub workers: u32,

    /// The model.
    #[command(flatten)]
    pub source: ModelSource,

    /// Number of measured rounds. Two rounds before them are not measured.
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,

    /// Transport of gradients and weights: shared memory, RDMA, or TCP (on loopback if the probe starts hub and workers).
    /// Default: the best that is available.
    #[arg(long, value_name = "shm|verbs|tcp")]
    pub transport: Option<Transport>,

    /// Print one JSON object for programs, instead of a table.
    #[arg(long)]
    pub json: bool,

    /// Write a timeline of the last rounds of hubs and workers into this file. Open it in ui.perfetto.dev. Default: no
    /// timeline.
    #[arg(long, env = "PHUB_TRACE", value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Optimizer with which the hub steps; average and sum only return the mean or the sum of gradients.
    #[arg(long, default_value = "nesterov", value_name = "average|sum|sgd|momentum|dampened|nesterov|adam|adamw|amsgrad|amsgradw|lion|lars|lamb", value_parser = optimizer, help_heading = JOB)]
    pub optimizer: Optimizer,

    /// Clip the mean gradient of each round to this norm, over all keys together. Use this to see the cost of the wait for
    /// the norm. Default: no clipping.
    #[arg(long, value_name = "NORM", help_heading = JOB)]
    pub clip_norm: Option<f32>,

    /// Clip by the norm of the previous round: scale the mean gradient down by the factor by which that norm was above
    /// this limit. Default: no clipping.
    #[arg(long, value_name = "NORM", conflicts_with = "clip_norm", help_heading = JOB)]
    pub clip_norm_last: Option<f32>,

    /// Skip rounds whose mean gradient is not finite. The probe pushes only finite gradients: use this to see the cost of the
    /// wait for all gradients.
    #[arg(long, help_heading = JOB)]
    pub skip_nonfinite: bool,

    /// Skip rounds whose norm is above this many times the running mean of norms. The probe pushes no such gradient: use this
    /// to see the cost of the wait.
    #[arg(long, value_name = "TIMES", help_heading = JOB)]
    pub skip_spikes: Option<f32>,

    /// Keep a moving average of the weights at the hub, with this decay. It costs the hub 8 bytes of memory traffic for each
    /// parameter and round. Default: no average.
    #[arg(long, value_name = "DECAY", help_heading = JOB)]
    pub ema: Option<f64>,

    /// Element type of all tensors. Default: the type of the manifest's tensors, or f32 for a published network.
    #[arg(long, value_name = "f32|f16|bf16", value_parser = dtype, help_heading = JOB)]
    pub dtype: Option<Dtype>,

    /// How many rounds workers may be apart: bsp (none), ssp:S (at most S), or asp (any number). With ssp and asp each push
    /// is a separate step, and all workers push the same gradients. The probe checks that the weights are those after a
    /// number of steps that the consistency allows.
    #[arg(long, default_value_t, value_name = "bsp|ssp:S|asp", help_heading = JOB)]
    pub consistency: Consistency,

    /// Memory from which workers read weights: the hub's window (shared), or each worker's own copy (private).
    #[arg(long, default_value = "shared", value_enum, help_heading = JOB)]
    pub weights: WeightsChoice,

    /// Codec that makes gradients and weights smaller, with its settings after colons. With f16 and bf16, values have half
    /// the bytes. With qsgd:BITS:BUCKET and terngrad, values are rounded at random to levels, and are right on average. With
    /// onebit, signs and two means are sent. With topk:RATIO, randomk:RATIO and dgc:RATIO:MOMENTUM:CLIP:WARMUP_ROUNDS, a
    /// share of the values is sent, and the rest later. Results are not exact with these codecs, so the probe only checks
    /// that all workers have the same bits. With slim:ALPHA:BETA:Q:C:EXPLORER, only the most significant values and some
    /// random ones are sent, exactly. Each worker keeps the rest, and the probe checks nothing. Default: no codec.
    #[arg(long, value_name = "CODEC[:SETTING...]", help_heading = JOB)]
    pub compress: Option<Compression>,

    /// Leave out a part of the hub's work, to see its cost. With aggregate, the hub uses one gradient instead of the sum.
    /// With optimize, it sends the mean instead of stepping.
    #[arg(long, value_delimiter = ',', value_enum, value_name = "WHAT", help_heading = JOB)]
    pub ablate: Vec<AblateChoice>,

    /// Size of a chunk in bytes, a multiple of 64. Default: 32768 up to 2.1 GB of weights, more for larger models.
    #[arg(long, value_name = "BYTES", help_heading = ORDER)]
    pub chunk_bytes: Option<usize>,

    /// Order in which gradients and weights are sent. With kvstore, whole layers are sent, after a notice and a pull. With
    /// layerwise, whole layers are sent. With sliced, slices are sent as they are pushed. With p3, slices are sent, those of
    /// the first layer first. Default: sliced, or kvstore with --pull.
    #[arg(long, value_name = "kvstore|layerwise|sliced|p3", help_heading = ORDER)]
    pub schedule: Option<Schedule>,

    /// Size of a slice, the unit of the schedules sliced and p3. P3's paper uses 200000, which is 50,000 f32. Default: one
    /// chunk.
    #[arg(long, value_name = "BYTES", help_heading = ORDER)]
    pub slice_bytes: Option<usize>,

    /// The most bytes in flight on each link: a number, none, or auto (the first 32 rounds try several numbers). With fewer
    /// bytes in flight, urgent chunks overtake other chunks sooner. Default: with p3 1048576 for all links to a peer
    /// together, else none.
    #[arg(long, value_name = "none|auto|BYTES", help_heading = ORDER)]
    pub credit: Option<Credit>,

    /// Compute that takes time.
    #[command(flatten)]
    pub compute: ComputeArgs,

    /// Weights in batches.
    #[command(flatten)]
    pub pull: PullArgs,

    /// Cores of the hub: a number, or a list of cpus, for example 0,2,4-7. Default: every physical core.
    #[arg(long, value_name = "N|LIST", help_heading = MACHINE)]
    pub cores: Option<CoreSelection>,

    /// RDMA NICs of hub and workers, for example mlx5_0,mlx5_1:1@3 (after a colon the port, after an at sign the GID's
    /// index). A name selects all NICs that begin with it. With = before the list names are exact, with ^ before it the list
    /// is excluded. Default: every NIC with a link.
    #[arg(long, env = "PHUB_NICS", value_name = "LIST", help_heading = MACHINE)]
    pub nics: Option<NicList>,

    /// Pairs of NICs, in each a worker's NIC, then the hub's, for example mlx5_0=mlx5_2,mlx5_1=mlx5_3. Default: pairs by
    /// subnet, name and place.
    #[arg(long, env = "PHUB_RAILS", value_name = "OWN=HUB", help_heading = MACHINE)]
    pub rails: Option<RailMap>,

    /// TCP's congestion control at hub and workers: a name that the kernel knows, system (the kernel's default), or auto.
    #[arg(long, env = "PHUB_TCP_CONGESTION", default_value_t, value_name = "NAME|system|auto", help_heading = MACHINE)]
    pub tcp_congestion: Congestion,

    /// The path settings of RDMA packets, of hub and workers.
    #[command(flatten)]
    pub paths: PathArgs,

    /// How the hub's cores wait when nothing arrives.
    #[arg(long, default_value = "auto", value_enum, help_heading = MACHINE)]
    pub idle: IdleChoice,

    /// Whether to measure the machine's limit between the rounds. The measurement needs as much memory as hub and workers
    /// together: choose off for a model that fills the memory.
    #[arg(long, default_value = "on", value_enum, help_heading = MACHINE)]
    pub limit: LimitChoice,

    /// Number of hubs of the job, which the probe starts.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = MACHINE)]
    pub hubs: u32,

    /// Imitate this number of machines, each with --workers workers and its own hub. The probe starts all; the hubs are a
    /// mesh. Default: no mesh.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = MACHINE)]
    pub machines: Option<u32>,

    /// Run one worker at a running hub, and start no hub: the address of the hub's control port. For a job over several hubs
    /// name all addresses, with commas between them, in the same order at all workers.
    #[arg(long, value_name = "HOST:PORT", requires = "rank", help_heading = ELSEWHERE)]
    pub hub: Option<String>,

    /// Rank of this worker, from 0, with --hub.
    #[arg(long, value_name = "R", requires = "hub", help_heading = ELSEWHERE)]
    pub rank: Option<u32>,

    /// Place of this machine in a mesh, with --hub and a hub on each machine, for example 1/4@10.0.0.1:7077. The parts are
    /// this machine's number, the number of machines, and the first machine's hub. --rank and --workers then count this
    /// machine's workers.
    #[arg(long, value_name = "N/COUNT@HOST:PORT", requires = "hub", help_heading = ELSEWHERE)]
    pub mesh: Option<Mesh>,

    /// Name of the job, with --hub.
    #[arg(long, default_value = "probe", value_name = "NAME", help_heading = ELSEWHERE)]
    pub job: String,

    /// How long to wait for the other workers when the job begins.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..), help_heading = ELSEWHERE)]
    pub join_limit_s: u64,

    /// How long workers wait for a lost hub, or for lost links. Use this to see a hub return: a wait makes the measured rate
    /// useless. With 0 the job has no checkpoints.
    #[arg(long, default_value_t = 0, value_name = "SECONDS", help_heading = ELSEWHERE)]
    pub hub_wait_s: u64,

    /// The role of this process in a run; set by the probe itself.
    #[arg(long, value_enum, hide = true)]
    pub role: Option<ChildRole>,
}

/// Returns an optimizer by its name, with the usual settings for ResNet-50. Adam and its variants have
/// PyTorch's defaults.
fn optimizer(name: &str) -> Result<Optimizer, String> {
    let (learning_rate, weight_decay, momentum) = (0.1, 1e-4, 0.9);
    let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
    Ok(match name {
        "average" => Optimizer::Average,
        "sum" => Optimizer::Sum,
        "sgd" => Optimizer::Sgd { learning_rate, weight_decay },
        "momentum" => Optimizer::Momentum { learning_rate, weight_decay, momentum },
        "dampened" => Optimizer::Dampened { learning_rate, weight_decay, momentum, dampening: 0.1 },
        "nesterov" => Optimizer::Nesterov { learning_rate, weight_decay, momentum },
        "adam" => Optimizer::Adam { learning_rate: 1e-3, weight_decay: 0.0, beta1, beta2, epsilon },
        "adamw" => Optimizer::AdamW { learning_rate: 1e-3, weight_decay: 0.01, beta1, beta2, epsilon },
        "amsgrad" => Optimizer::AmsGrad { learning_rate: 1e-3, weight_decay: 0.0, beta1, beta2, epsilon },
        "amsgradw" => Optimizer::AmsGradW { learning_rate: 1e-3, weight_decay: 0.01, beta1, beta2, epsilon },
        "lion" => Optimizer::Lion { learning_rate: 1e-4, weight_decay: 1e-3, beta1, beta2: 0.99 },
        "lars" => Optimizer::Lars { learning_rate, weight_decay, momentum, trust: 1e-3 },
        "lamb" => Optimizer::Lamb { learning_rate: 1e-3, weight_decay: 0.01, beta1, beta2, epsilon: 1e-6 },
        _ => return Err(format!("expected one of {}", Optimizer::NAMES.join(", "))),
    })
}

/// Returns an element type by its name.
fn dtype(name: &str) -> Result<Dtype, String> {
    let all = [Dtype::F32, Dtype::F16, Dtype::BF16];
    all.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| "expected f32, f16 or bf16".to_owned())
}

/// The memory from which workers read weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WeightsChoice {
    /// Workers read the weights in the hub's window.
    Shared,
    /// Each worker reads its own copy.
    Private,
}

/// The choice between measuring the machine's limit and leaving it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LimitChoice {
    /// Measure the limit between the rounds, if it can be compared with the rounds.
    On,
    /// Do not measure the limit.
    Off,
}

/// The part of its work that the hub leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AblateChoice {
    /// The sum.
    Aggregate,
    /// The step.
    Optimize,
}

impl Args {
    /// Returns the model's name and keys, all of one element type. If no model is chosen, returns the model
    /// of the built-in trace, or ResNet-50.
    pub fn keys(&self) -> anyhow::Result<(String, Vec<Key>)> {
        let traced = self.compute.compute.as_deref().filter(|name| BUILT_IN.contains(name));
        let (model, mut keys) = self.source.keys_or(traced.unwrap_or("resnet50"))?;
        match self.dtype {
            Some(dtype) => keys.iter_mut().for_each(|key| key.dtype = dtype),
            None => {
                if let Some(other) = keys.iter().find(|key| key.dtype != keys[0].dtype) {
                    let name = |key: &Key| format!("{:?} in {}", key.name, key.dtype.name());
                    let file = self
                        .source
                        .manifest
                        .as_ref()
                        .map_or(model.clone(), |path| path.display().to_string());
                    anyhow::bail!(
                        "{file} has {} and {}; the probe's model has one type: choose it with --dtype",
                        name(&keys[0]),
                        name(other)
                    );
                }
            }
        }
        self.compute.shrink(&mut keys);
        Ok((model, keys))
    }

    /// Returns the trace of `--compute`.
    pub fn plan(&self) -> anyhow::Result<Option<ComputePlan>> {
        let (_, keys) = self.keys()?;
        self.compute.plan(&keys)
    }

    /// Returns the work that the hub leaves out.
    pub fn ablate(&self) -> Ablate {
        Ablate {
            aggregate: self.ablate.contains(&AblateChoice::Aggregate),
            optimize: self.ablate.contains(&AblateChoice::Optimize),
        }
    }

    /// Whether the limit is requested, and can be compared with the rounds. The comparison is impossible if the
    /// hub leaves work out, decodes, clips, averages, steps once per push, or waits for compute. The measured
    /// limit does none of that.
    pub fn has_limit(&self) -> bool {
        self.limit == LimitChoice::On
            && self.compute.compute.is_none()
            && self.compress.is_none()
            && self.ablate.is_empty()
            && self.clip_norm.or(self.clip_norm_last).is_none()
            && !self.skip_nonfinite
            && self.skip_spikes.is_none()
            && self.ema.is_none()
            && !self.optimizer.adapts_keys()
            && self.machines.is_none()
            && !self.consistency.steps_alone()
    }

    /// Returns the number of workers of this run, on all machines together.
    pub fn all_workers(&self) -> u32 {
        self.workers * self.machines.unwrap_or(1)
    }

    /// Whether all workers have the same weights after a round.
    pub fn ends_alike(&self) -> bool {
        !self.consistency.steps_alone() && !self.compress.is_some_and(|each| each.has_own_answers())
    }

    /// Returns the order in which gradients and weights are sent.
    pub fn schedule(&self) -> Schedule {
        let pulling = if self.pull.pull.is_some() { Schedule::KvStore } else { Schedule::default() };
        self.schedule.unwrap_or(pulling)
    }

    /// Returns the terms of the links between workers and hub.
    pub fn level(&self) -> LevelTerms {
        LevelTerms {
            consistency: self.consistency,
            compression: self.compress,
            schedule: self.schedule(),
            slice_bytes: self.slice_bytes,
            credit: self.credit,
            members: Members::Workers,
        }
    }

    /// Returns the terms of the job, for a model with these keys.
    pub fn terms(&self, keys: Vec<Key>) -> JobTerms {
        JobTerms {
            chunk_bytes: self.chunk_bytes.unwrap_or_else(|| default_chunk_bytes(&keys)),
            clip_norm: self.clip_norm,
            clip_norm_last: self.clip_norm_last,
            skip_nonfinite: self.skip_nonfinite,
            skip_spikes: self.skip_spikes,
            ema: self.ema,
            ablate: self.ablate(),
            split_above: self.compute.split_above(),
            level: self.level(),
            ..JobTerms::new(self.workers, keys, self.optimizer)
        }
    }

    /// Returns the session settings of a worker of this run.
    pub fn session_config(&self, keys: Vec<Key>, plan: Option<&ComputePlan>) -> SessionConfig {
        let hub = self.hub.clone().unwrap_or_default();
        let rank = self.rank.unwrap_or_default();
        let mut config = SessionConfig::new(hub, &*self.job, rank, self.workers, Vec::new(), self.optimizer);
        config.terms = self.terms(keys);
        config.pull = self.pull.pull(plan);
        config.mesh = self.mesh.clone();
        config.transport = self.transport;
        config.nics =
            NicSettings { list: self.nics.clone(), rails: self.rails.clone(), paths: self.paths.0.clone() };
        config.tcp_congestion = self.tcp_congestion.clone();
        config.join_limit = Duration::from_secs(self.join_limit_s);
        config.hub_wait = Duration::from_secs(self.hub_wait_s);
        // The run is a trial: it continues from no earlier run, and leaves nothing behind. But weights that
        // must survive a restart of the hub need a checkpoint, so such a run is no trial.
        config.trial = self.hub_wait_s == 0;
        config.trace = self.trace_part();
        config.weights = match self.weights {
            WeightsChoice::Shared => WeightsMode::Shared,
            WeightsChoice::Private => WeightsMode::Private,
        };
        // An idle worker yields, because it shares this machine with the hub's cores.
        config.idle = IdlePolicy::SHARED;
        config
    }

    /// Returns the settings of a hub that the probe starts.
    pub fn hub_settings(&self) -> HubSettings {
        HubSettings {
            cores: self.cores.clone(),
            idle: self.idle,
            transports: self.transport.map(|transport| vec![transport]),
            nics: self.nics.clone(),
            tcp_congestion: self.tcp_congestion.clone(),
            paths: self.paths.clone(),
            trace: self.trace_part(),
            ..HubSettings::default()
        }
    }

    /// Returns the path to which this process, a child of a run, writes its part of the trace.
    fn trace_part(&self) -> Option<PathBuf> {
        self.trace.as_ref().map(|path| part(path, std::process::id()))
    }

    /// Returns the name of this process in errors.
    pub fn program(&self) -> String {
        match (self.role, self.rank) {
            (Some(ChildRole::Hub), _) => "phub-probe: the hub".into(),
            (Some(ChildRole::Worker), Some(rank)) => format!("phub-probe: worker {rank}"),
            _ => "phub-probe".into(),
        }
    }

    /// Returns the command line of another process of this run.
    pub fn for_role(&self, role: &str) -> Vec<String> {
        let skip_role = std::env::args().skip(1);
        skip_role.chain(["--role".into(), role.into()]).collect()
    }
}
