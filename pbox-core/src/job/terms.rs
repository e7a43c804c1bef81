//! The terms of a job: everything on which its ends must agree.
//!
//! A worker states the terms in its join. The hub keeps the terms of the first worker, and each later worker must state
//! the same terms. The worker's session, the hub's shards and simulated clusters all keep [`JobTerms`], so a new term
//! needs only a new field of this struct. `refused` says which terms exclude each other.

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

/// The limit on the workers of a job.
pub const MAX_WORKERS: u32 = 4096;

/// The limit on the hubs of a job.
pub const MAX_HUBS: u32 = LINES;

/// The number of parameters above which a tensor is split over servers, in the baseline of P3's paper.
pub const SPLIT_ABOVE: u64 = 1_000_000;

/// The terms on which all ends of a job agree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobTerms {
    /// The number of workers, or of hubs below. Ranks are below this number.
    pub workers: u32,
    /// The size of a chunk in bytes. The default depends on [the size of the model](default_chunk_bytes).
    #[serde(default = "unsaid_chunk_bytes")]
    pub chunk_bytes: usize,
    /// The optimizer that the hub applies to sums.
    pub optimizer: Optimizer,
    /// The limit on the norm of a round's mean gradient, over all keys together. A gradient with a larger norm is scaled
    /// down, as by `torch.nn.utils.clip_grad_norm_`. Steps then wait for the gradients of all keys. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f32>,
    /// The limit on the norm of the previous round's mean gradient. If the previous norm is larger, this round's mean
    /// gradient is multiplied by the limit divided by the previous norm. No step waits for the gradients of other keys.
    /// The first round is not scaled. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm_last: Option<f32>,
    /// Whether a round is skipped if its mean gradient has a value that is not finite. A skipped round changes neither
    /// weights nor optimizer state. Steps wait as with [`clip_norm`](Self::clip_norm). Default: false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub skip_nonfinite: bool,
    /// The limit on the norm of a round's mean gradient, as a multiple of the running mean of norms. A round with a larger norm
    /// is skipped, and so is a round that [`skip_nonfinite`](Self::skip_nonfinite) would skip. Must be above 1. Default: no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_spikes: Option<f32>,
    /// The decay `d` of an average of the weights that the hub keeps. The average begins with the first weights. Each step
    /// replaces it by `d` times the average plus `1 - d` times the new weight. Must be above 0 and below 1. Default: no
    /// average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
    /// Whether steps go up the gradient, as with PyTorch's `maximize`. Default: false, steps go down.
    #[serde(default, skip_serializing_if = "is_default")]
    pub maximize: bool,
    /// The work that the hub leaves out, for measurements. Default: none.
    #[serde(default)]
    pub ablate: Ablate,
    /// The interval, in rounds, at which the hub compares a digest of each worker's weights. If the digests differ,
    /// memory, a network or a program has altered weights, and the job ends. For the digest, a worker reads all its
    /// weights and sends a request. Weights that workers write themselves are compared in each round in which the
    /// workers write them. 0: never. Default: 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub compare_every: u32,
    /// The seed for the random numbers of compression. Equal seeds give equal bits.
    #[serde(default, skip_serializing_if = "is_default")]
    pub seed: u64,
    /// The effect on the job when a worker is lost, or leaves before the other workers. Default: the job fails.
    #[serde(default)]
    pub on_loss: OnLoss,
    /// The number of hubs over which the job is spread. Default 1.
    #[serde(default = "one_hub", skip_serializing_if = "is_one")]
    pub hubs: u32,
    /// The number of parameters above which a schedule by layer splits a tensor over several hubs. Smaller tensors go to
    /// one hub as a whole. Default: 10^6, as in the baseline of P3's paper.
    #[serde(default = "default_split", skip_serializing_if = "is_default_split")]
    pub split_above: u64,
    /// The number of cores that the job gets at each hub. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Whether the hub may answer [bytes ahead](crate::Content::Ahead). If a worker sends bytes ahead, the hub may overwrite
    /// the worker's weights of the chunk before the push. Jobs ignore this setting unless they use BSP, no compression, one
    /// level of hubs, and a schedule that is not by layer. The first worker decides, and the reply to a join tells the other
    /// workers. A worker that wants no early writes sends nothing ahead. Default: false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub answers_ahead: bool,
    /// The terms of workers and their hub for the links between them.
    #[serde(default)]
    pub level: LevelTerms,
    /// The model, in the order of the forward pass.
    #[serde(deserialize_with = "manifest::read")]
    pub keys: Vec<Key>,
}

/// The terms of the two ends of one level of hubs. A job without hubs below has one level: its workers and their hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LevelTerms {
    /// The number of rounds that workers may be apart. Default: none (BSP). With SSP and ASP each push is a separate
    /// step, with one worker's gradient. A round then has one step for each worker, so the learning rate must be the
    /// rate for the batch of one worker.
    pub consistency: Consistency,
    /// The compression of gradients and weights on the links. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
    /// The order in which gradients and weights are sent, at both ends. Default: slices, in the order of their pushes.
    pub schedule: Schedule,
    /// The limit on the bytes of a slice, the unit of the schedule. A slice has consecutive chunks of one key on one core.
    /// Default: one chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice_bytes: Option<usize>,
    /// The bytes that may be in flight on each link, in each direction. The default depends on the schedule
    /// ([`Credit::default_of`]). With [`Schedule::P3`] it is 1 MiB for all links to a peer together, and at least 64 KiB
    /// for each link. With other schedules there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credit: Option<Credit>,
    /// The members that push to these hubs: workers, or hubs below. Default: workers.
    #[serde(skip_serializing_if = "is_default")]
    pub members: Members,
}

/// An error: no job can have these terms.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message; the message prints the fields
pub enum InvalidTerms {
    #[error("{seen} workers: expected 1 to {MAX_WORKERS}")]
    Workers { seen: u32 },
    #[error("cores is 0: expected 1 or more; leave cores out to use all cores of each hub")]
    NoCores,
    #[error("{seen} hubs: expected 1 to {MAX_HUBS}")]
    Hubs { seen: u32 },
    #[error("{what} {seen}: expected a number above 0; leave it out for no bound")]
    ClipNorm { what: &'static str, seen: f32 },
    #[error(
        "skip_spikes {seen}: expected a number above 1; a round is skipped if its norm is above this number times the running mean of \
         norms; leave skip_spikes out to skip no round"
    )]
    SkipSpikes { seen: f32 },
    #[error("ema {seen}: expected a decay above 0 and below 1, also in f32; leave it out for no average")]
    Ema { seen: f64 },
    #[error("credit is 0 bytes: expected 1 or more; leave credit out for no bound")]
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
    /// The ends have different values of a term.
    Term {
        /// The term's name.
        what: &'static str,
        /// The value of the first end.
        ours: String,
        /// The value of the other end.
        theirs: String,
    },
    /// The ends have different keys.
    Keys(manifest::Difference),
}

impl JobTerms {
    /// Creates terms. Each term that has a default gets the default.
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
            compare_every: 0,
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

    /// Checks everything that does not depend on the layout of the model.
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

    /// Whether each worker has its own weights window.
    pub fn has_own_weights(&self) -> bool {
        let LevelTerms { consistency, compression, .. } = self.level;
        consistency.steps_alone() || compression.is_some_and(|compression| compression.has_own_answers())
    }

    /// Returns the tensors of each key that a hub keeps if it makes the steps.
    pub fn tensors(&self) -> Tensors {
        Tensors::from(self.optimizer).with_ema(self.ema)
    }

    /// Whether steps wait for the whole gradient.
    pub fn waits_for_all(&self) -> bool {
        self.clip_norm.is_some() || self.skips()
    }

    /// Whether the hubs compute the norm of each round, for steps of the same round or of the next round.
    pub fn finds_norms(&self) -> bool {
        self.waits_for_all() || self.clip_norm_last.is_some()
    }

    /// Whether some rounds are skipped at all workers because of their norm.
    pub fn skips(&self) -> bool {
        self.skip_nonfinite || self.skip_spikes.is_some()
    }

    /// Whether a hub that makes the steps keeps mean gradients until it has the mean gradients of the whole key, or of
    /// all keys.
    pub fn keeps_means(&self) -> bool {
        self.waits_for_all() || self.optimizer.adapts_keys()
    }

    /// Returns the number of parameters above which a tensor is split over several hubs. If steps use the norms of keys, no
    /// tensor is split, because hubs do not exchange these norms.
    pub fn splits_above(&self) -> u64 {
        if self.optimizer.adapts_keys() { WHOLE_KEYS } else { self.split_above }
    }

    /// Whether the hub that makes the steps [answers bytes ahead](Self::answers_ahead) in this job.
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

    /// Returns the terms between workers and their hub, if the hub is below other hubs in a job with these terms. Codec,
    /// SSP and ASP apply to the links between hubs. Workers share memory with their hub, and use BSP.
    pub fn beside(&self) -> JobTerms {
        let level = LevelTerms { compression: None, consistency: Consistency::Bsp, ..self.level };
        JobTerms { level, ..self.clone() }
    }

    /// Checks that a hub below other hubs can take part in a job with these terms.
    ///
    /// # Errors
    /// Returns the combination of terms that prevents it.
    pub fn check_below(&self) -> Result<(), Refused> {
        refused::check_below(self)
    }

    /// Returns the terms of this job at `hubs` hubs above. Each of the `machines` hubs below is a member at the hubs above.
    ///
    /// # Errors
    /// Returns an error if a hub below other hubs cannot take part in this job.
    pub fn above(&self, members: Members, hubs: u32, machines: u32) -> Result<JobTerms, Refused> {
        refused::check_below(self)?;
        let schedule = if self.level.schedule.pulls() { Schedule::default() } else { self.level.schedule };
        let level = LevelTerms { schedule, members, ..self.level };
        Ok(JobTerms { workers: machines, hubs, cores: None, level, ..self.clone() })
    }

    /// Returns the first term in which `theirs` differs from these terms.
    pub fn first_difference(&self, theirs: &JobTerms) -> Option<Difference> {
        let pairs = self.spoken().into_iter().zip(theirs.spoken());
        let differing = pairs.into_iter().find(|((_, ours), (_, theirs))| ours != theirs);
        if let Some(((what, ours), (_, theirs))) = differing {
            return Some(Difference::Term { what, ours, theirs });
        }
        manifest::first_difference(&theirs.keys, &self.keys).map(Difference::Keys)
    }

    /// Returns all terms except the keys, each with its name and its value in words.
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
            compare_every,
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
            ("compare_every", compare_every.to_string()),
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
    /// Returns the bytes that may be in flight on a link, if it is the only link to its peer.
    pub fn credit(&self) -> Credit {
        self.credit.unwrap_or_else(|| Credit::default_of(self.schedule))
    }

    /// Returns the terms of an end that has this number of links to each peer. The links share the default credit, because
    /// all links of a peer lead into one queue of the network.
    pub fn with_links(self, links: usize) -> Self {
        let credit = match self.credit() {
            Credit::Bytes(bytes) if self.credit.is_none() => {
                Credit::Bytes((bytes / links.max(1)).max(Credit::LEAST))
            }
            credit => credit,
        };
        LevelTerms { credit: Some(credit), ..self }
    }

    /// Whether one post may carry a [group](crate::Layout::group) of small keys. This needs values without compression and a
    /// schedule that is not by layer.
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
