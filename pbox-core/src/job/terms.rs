//! The terms of a job: everything that its ends must agree on.
//!
//! A worker states them in its join, the hub keeps those of the first worker, and each later worker must state the
//! same. Sessions, shards and simulated clusters hold this struct, so a new term is written only here. Which terms
//! exclude each other is said in `refused`.

use serde::{Deserialize, Serialize};

use super::compression::{Compression, InvalidCompression};
use super::consistency::Consistency;
use super::credit::Credit;
use super::members::Members;
use super::numbers::InvalidRate;
use super::on_loss::OnLoss;
use super::refused::{self, Refused};
use super::schedule::Schedule;
use crate::kernels::{Ablate, Decay, InvalidOptimizer, Optimizer, Tensors};
use crate::layout::manifest::{self, ManifestError};
use crate::layout::{DEFAULT_CHUNK_BYTES, Key, LINES, LayoutError, default_chunk_bytes};
use crate::place::WHOLE_KEYS;

/// The most workers that a job may have.
pub const MAX_WORKERS: u32 = 1024;

/// The most hubs that a job may be spread over.
pub const MAX_HUBS: u32 = LINES;

/// The number of parameters above which a tensor is split over the servers, in the baseline of P3's paper.
pub const SPLIT_ABOVE: u64 = 1_000_000;

/// The terms that all ends of a job agree on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTerms {
    /// Number of workers, or of hubs below. Ranks are below it.
    pub workers: u32,
    /// Size of a chunk in bytes. Default: [by the size of the model](default_chunk_bytes).
    #[serde(default = "unsaid_chunk_bytes")]
    pub chunk_bytes: usize,
    /// The optimizer that the hub applies to a sum.
    pub optimizer: Optimizer,
    /// The largest norm of a round's mean gradient, over all keys together. A gradient with a larger norm is scaled down, as by
    /// `torch.nn.utils.clip_grad_norm_`. Steps then wait for the gradients of all keys. Default: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f32>,
    /// The largest norm of the round before. If that norm was larger, this round's mean gradient is scaled down by the same
    /// factor. No step waits for the gradients of other keys. The first round is not scaled. Default: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm_last: Option<f32>,
    /// Whether a round changes no weights and no state if its mean gradient has a value that is not finite. Steps then wait as
    /// with [`clip_norm`](Self::clip_norm). Default false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_nonfinite: bool,
    /// The largest norm of a round's mean gradient, as a multiple of the running mean of norms. A round above it is skipped,
    /// and so is a round that is not finite, as with [`skip_nonfinite`](Self::skip_nonfinite). Above 1. Default: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_spikes: Option<f32>,
    /// The decay `d` of an average of the weights that the hub keeps. The average begins with the first weights. After
    /// each step it is `d` of itself and `1 - d` of the new weight. Above 0 and below 1. Default: no average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
    /// Whether steps go up the gradient and not down, as with PyTorch's `maximize`. Default false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub maximize: bool,
    /// The work that the hub leaves out, for measurement. Default nothing.
    #[serde(default)]
    pub ablate: Ablate,
    /// The seed of the randomness of compression: equal seeds give equal bits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seed: u64,
    /// The fate of the job when a worker is lost, or leaves before the others. Default: the job stops.
    #[serde(default)]
    pub on_loss: OnLoss,
    /// The number of hubs over which the job is spread. Default 1.
    #[serde(default = "one_hub", skip_serializing_if = "is_one")]
    pub hubs: u32,
    /// The number of parameters above which a tensor is split over several hubs, with a schedule by layer; other
    /// tensors go whole to one hub. Default 10^6, as in the baseline of P3's paper.
    #[serde(default = "default_split", skip_serializing_if = "is_default_split")]
    pub split_above: u64,
    /// The number of each hub's cores that the job gets. Default all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Whether the hub may answer [bytes ahead](crate::Content::Ahead). A worker that sends some lets the hub write the chunk's
    /// weights from then on. This works only for bare BSP with one level, and not by layer; in other jobs it has no effect. The
    /// first worker's choice counts. The answer of a join reports it to the other workers, and those that do not want it send
    /// nothing ahead. Default false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub answers_ahead: bool,
    /// The terms of workers and their hub for the links between them.
    #[serde(default)]
    pub level: LevelTerms,
    /// The model, in the order of the forward pass.
    #[serde(deserialize_with = "manifest::read")]
    pub keys: Vec<Key>,
}

/// The terms of the two ends of one level of hubs. A flat job has one level: its workers and their hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LevelTerms {
    /// The distance that workers may be apart. Default: none (BSP). With SSP and ASP each push is a separate step,
    /// with one worker's gradient. There are as many steps a round as workers, so the learning rate is that of a batch
    /// of one worker.
    pub consistency: Consistency,
    /// The way in which gradients and weights are made smaller before they cross. Default: not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// The order in which gradients and weights leave, at both ends. Default: slices, as they are pushed.
    pub schedule: Schedule,
    /// The most bytes of a slice, the unit of the schedule: consecutive chunks of one key for one core. Default: one
    /// chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice_bytes: Option<usize>,
    /// The bytes that may be in flight on each link, each way. Default: the need of the schedule
    /// ([`Credit::default_of`]). With [`Schedule::P3`] that is 1 MiB of all links to a peer together, and at least 64
    /// KiB of each. With other schedules it is unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit: Option<Credit>,
    /// The members that push here: workers, or hubs below. Default workers.
    #[serde(skip_serializing_if = "is_default")]
    pub members: Members,
}

/// Terms that no job can have.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum InvalidTerms {
    #[error("{seen} workers: expected 1 to {MAX_WORKERS}")]
    Workers { seen: u32 },
    #[error("0 cores: a job has at least one; leave it out for all")]
    NoCores,
    #[error("{seen} hubs: expected 1 to {MAX_HUBS}")]
    Hubs { seen: u32 },
    #[error("{what} {seen}: expected a number above 0; leave it out for no bound")]
    ClipNorm { what: &'static str, seen: f32 },
    #[error(
        "skip_spikes {seen}: expected a multiple of the norm's running mean, above 1; leave it out to skip no round"
    )]
    SkipSpikes { seen: f32 },
    #[error("ema {seen}: expected a decay above 0 and below 1, also in f32; leave it out for no average")]
    Ema { seen: f64 },
    #[error("a credit of 0 bytes: a link has at least 1; leave it out for no bound")]
    NoCredit,
    #[error("optimizer: {0}")]
    Optimizer(#[from] InvalidOptimizer),
    #[error("optimizer: {0}")]
    Rate(#[from] InvalidRate),
    #[error("compression: {0}")]
    Compression(#[from] InvalidCompression),
    #[error("manifest: {0}")]
    Manifest(#[from] ManifestError),
    #[error("manifest: {0}")]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// The first difference between the terms of two ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// A term has two values.
    Term {
        /// The term's name.
        what: &'static str,
        /// The value of the first end.
        ours: String,
        /// The value of the other end.
        theirs: String,
    },
    /// The keys are not the same.
    Keys(manifest::Difference),
}

impl JobTerms {
    /// Creates terms with the default of each term that has one.
    pub fn new(workers: u32, keys: Vec<Key>, optimizer: Optimizer) -> Self {
        JobTerms {
            workers,
            chunk_bytes: default_chunk_bytes(&keys),
            optimizer,
            clip_norm: None,
            clip_norm_last: None,
            skip_nonfinite: false,
            skip_spikes: None,
            ema: None,
            maximize: false,
            ablate: Ablate::default(),
            seed: 0,
            on_loss: OnLoss::default(),
            hubs: 1,
            split_above: SPLIT_ABOVE,
            cores: None,
            answers_ahead: false,
            level: LevelTerms::default(),
            keys,
        }
    }

    /// Checks everything that can be checked without the layout of the model.
    pub fn check(&self) -> Result<(), InvalidTerms> {
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return Err(InvalidTerms::Workers { seen: self.workers });
        }
        if self.cores == Some(0) {
            return Err(InvalidTerms::NoCores);
        }
        if !(1..=MAX_HUBS).contains(&self.hubs) {
            return Err(InvalidTerms::Hubs { seen: self.hubs });
        }
        if self.level.credit == Some(Credit::Bytes(0)) {
            return Err(InvalidTerms::NoCredit);
        }
        for (what, most) in [("clip_norm", self.clip_norm), ("clip_norm_last", self.clip_norm_last)] {
            if let Some(seen) = most.filter(|seen| !(seen.is_finite() && *seen > 0.0)) {
                return Err(InvalidTerms::ClipNorm { what, seen });
            }
        }
        if let Some(seen) = self.skip_spikes.filter(|times| !(times.is_finite() && *times > 1.0)) {
            return Err(InvalidTerms::SkipSpikes { seen });
        }
        if let Some(seen) = self.ema.filter(|&ema| !Decay::is_valid(ema)) {
            return Err(InvalidTerms::Ema { seen });
        }
        self.optimizer.check()?;
        if let Some(compression) = &self.level.compression {
            compression.check()?;
        }
        refused::check(self)?;
        manifest::check(&self.keys)?;
        Ok(self.check_learning_rate(self.optimizer.learning_rate())?)
    }

    /// Whether every worker has a separate weights window.
    pub fn has_own_weights(&self) -> bool {
        let LevelTerms { consistency, compression, .. } = self.level;
        consistency.steps_alone() || compression.is_some_and(|compression| compression.has_own_answers())
    }

    /// Returns the tensors that the hub which steps keeps of each key.
    pub fn tensors(&self) -> Tensors {
        Tensors::from(self.optimizer).with_ema(self.ema)
    }

    /// Whether steps wait for the whole gradient.
    pub fn waits_for_all(&self) -> bool {
        self.clip_norm.is_some() || self.skips()
    }

    /// Whether the hubs find the norm of each round, for steps of this round or of the next.
    pub fn finds_norms(&self) -> bool {
        self.waits_for_all() || self.clip_norm_last.is_some()
    }

    /// Whether all workers skip some rounds because of their norm.
    pub fn skips(&self) -> bool {
        self.skip_nonfinite || self.skip_spikes.is_some()
    }

    /// Whether the hub that steps keeps means until the whole key, or all keys, have arrived.
    pub fn keeps_means(&self) -> bool {
        self.waits_for_all() || self.optimizer.adapts_keys()
    }

    /// Returns the number of parameters above which a tensor is split over several hubs. Steps that use the norms of a
    /// key split none, because the hubs do not exchange these norms.
    pub fn splits_above(&self) -> u64 {
        if self.optimizer.adapts_keys() { WHOLE_KEYS } else { self.split_above }
    }

    /// Whether the hub that steps [answers bytes ahead](Self::answers_ahead).
    pub fn has_answers_ahead(&self) -> bool {
        let LevelTerms { consistency, compression, schedule, members, .. } = self.level;
        let is_bare = compression.is_none() && members == Members::Workers;
        self.answers_ahead
            && !self.keeps_means()
            && self.clip_norm_last.is_none()
            && is_bare
            && consistency == Consistency::Bsp
            && !schedule.by_layer()
    }

    /// Returns the terms between workers and a hub below others, for a job with these terms. A codec, SSP and ASP
    /// are for the links between the hubs; workers share memory with their hub, and step together.
    pub fn beside(&self) -> JobTerms {
        let level = LevelTerms { compression: None, consistency: Consistency::Bsp, ..self.level };
        JobTerms { level, ..self.clone() }
    }

    /// Checks that this job can be relayed to hubs above.
    ///
    /// # Errors
    /// Returns the combination of terms that prevents it.
    pub fn check_below(&self) -> Result<(), Refused> {
        refused::check_below(self)
    }

    /// Returns the terms of this job at `hubs` hubs above, for one of `machines` hubs below them.
    ///
    /// # Errors
    /// Returns an error if the job cannot be relayed.
    pub fn above(&self, members: Members, hubs: u32, machines: u32) -> Result<JobTerms, Refused> {
        refused::check_below(self)?;
        let schedule = if self.level.schedule.pulls() { Schedule::default() } else { self.level.schedule };
        let level = LevelTerms { schedule, members, ..self.level };
        Ok(JobTerms { workers: machines, hubs, cores: None, level, ..self.clone() })
    }

    /// Returns the first term in which `theirs` differs from these.
    pub fn first_difference(&self, theirs: &JobTerms) -> Option<Difference> {
        let pairs = self.spoken().into_iter().zip(theirs.spoken());
        let differing = pairs.into_iter().find(|((_, ours), (_, theirs))| ours != theirs);
        if let Some(((what, ours), (_, theirs))) = differing {
            return Some(Difference::Term { what, ours, theirs });
        }
        manifest::first_difference(&theirs.keys, &self.keys).map(Difference::Keys)
    }

    /// Returns all terms that workers agree on, except for the keys: by name, in the words of an error.
    fn spoken(&self) -> Vec<(&'static str, String)> {
        let JobTerms {
            workers,
            chunk_bytes,
            optimizer,
            clip_norm,
            clip_norm_last,
            skip_nonfinite,
            skip_spikes,
            ema,
            maximize,
            ablate,
            seed,
            on_loss,
            hubs,
            split_above,
            cores,
            level,
            ..
        } = self;
        let LevelTerms { consistency, compression, schedule, slice_bytes, members, .. } = level;
        let or = |value: Option<String>, default: &str| value.unwrap_or_else(|| default.to_owned());
        vec![
            ("workers", workers.to_string()),
            ("chunk_bytes", chunk_bytes.to_string()),
            ("optimizer", format!("{optimizer:?}")),
            ("clip_norm", or(clip_norm.map(|most| most.to_string()), "none")),
            ("clip_norm_last", or(clip_norm_last.map(|most| most.to_string()), "none")),
            ("skip_nonfinite", skip_nonfinite.to_string()),
            ("skip_spikes", or(skip_spikes.map(|times| times.to_string()), "none")),
            ("ema", or(ema.map(|decay| decay.to_string()), "none")),
            ("maximize", maximize.to_string()),
            ("ablate", format!("{ablate:?}")),
            ("compression", or(compression.map(|compression| compression.to_string()), "none")),
            ("seed", seed.to_string()),
            ("consistency", consistency.to_string()),
            ("on_loss", format!("{on_loss:?}")),
            ("schedule", schedule.to_string()),
            ("slice_bytes", or(slice_bytes.map(|bytes| bytes.to_string()), "one chunk")),
            ("credit", level.credit().to_string()),
            ("members", format!("{members:?}")),
            ("hubs", hubs.to_string()),
            ("split_above", split_above.to_string()),
            ("cores", or(cores.map(|cores| cores.to_string()), "all")),
        ]
    }
}

impl LevelTerms {
    /// Returns the bytes that may be in flight on a link, if it is the only link to a peer.
    pub fn credit(&self) -> Credit {
        self.credit.unwrap_or_else(|| Credit::default_of(self.schedule))
    }

    /// Returns the terms of an end that has this number of links to each peer. The links share the default credit,
    /// because all of a peer's links meet in one queue of the network.
    pub fn with_links(self, links: usize) -> Self {
        let credit = match self.credit() {
            Credit::Bytes(bytes) if self.credit.is_none() => {
                Credit::Bytes((bytes / links.max(1)).max(Credit::LEAST))
            }
            credit => credit,
        };
        LevelTerms { credit: Some(credit), ..self }
    }

    /// Whether one post may carry a [group](crate::Layout::group) of small keys: bare values that leave as they come.
    pub fn posts_groups(&self) -> bool {
        self.compression.is_none() && !self.schedule.by_layer()
    }
}

fn unsaid_chunk_bytes() -> usize {
    DEFAULT_CHUNK_BYTES
}

fn one_hub() -> u32 {
    1
}

fn is_one(hubs: &u32) -> bool {
    *hubs == 1
}

fn default_split() -> u64 {
    SPLIT_ABOVE
}

fn is_default_split(split_above: &u64) -> bool {
    *split_above == SPLIT_ABOVE
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
