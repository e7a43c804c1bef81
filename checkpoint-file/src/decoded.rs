//! A checkpoint in memory, and whether it belongs to a job.
//!
//! The thread that loads owns a checkpoint. This module must not depend on the bytes of a file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use fabric::Slab;
use pbox_core::{
    Dtype, ExactSum, Groups, Key, NormMean, Numbers, Optimizer, Restored, RestoredKey, Round, Tensors,
};
use zerocopy::IntoBytes;

use crate::error::Mismatch;
use crate::format::{
    Entry, FileShare, GroupsFrom, Multipliers, NumbersFrom, Shapes, json, multipliers, steps_of_rounds,
};

/// A valid checkpoint of any job, or the weights of a job in 16 bits.
#[derive(Debug)]
pub struct Decoded {
    pub(crate) round: Round,
    pub(crate) kept: Tensors,
    /// The optimizer's hyperparameters, each with its first round. The rounds ascend, and there is at least one.
    pub(crate) numbers: Vec<NumbersFrom>,
    pub(crate) groups: Vec<GroupsFrom>,
    /// The numbers of steps of the keys that have not made one step per round.
    pub(crate) steps: BTreeMap<String, u32>,
    pub(crate) multipliers: Multipliers,
    /// The sum of the squared gradients of the previous round, if the file has it.
    pub(crate) last_squares: Option<ExactSum>,
    /// The mean of the gradient's norms so far. If the file has no such mean, this is a mean without norms.
    pub(crate) norm_mean: NormMean,
    pub(crate) share: Option<FileShare>,
    pub(crate) shapes: Shapes,
    pub(crate) run: Option<String>,
    /// The tensors, in the order of their values in the file. All have one element type.
    pub(crate) tensors: Vec<Key>,
    /// The file's digest, which no other file has.
    pub(crate) digest: String,
    /// The file's values, as bytes.
    pub(crate) values: Arc<Slab>,
}

/// The values of a file, to which the differences from this file to a newer one can be applied.
#[derive(Clone, Debug)]
pub struct Base {
    pub(crate) digest: String,
    pub(crate) values: Arc<Slab>,
}

impl Base {
    /// Returns the digest of the file.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// The bytes of a file's values.
struct Values(Arc<Slab>);

impl AsRef<[u8]> for Values {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice().as_bytes()
    }
}

/// Describes a share in few words.
fn shown(share: &Option<FileShare>) -> String {
    share.as_ref().map_or("the file of a job with one hub".to_owned(), |FileShare { hub, hubs, pieces }| {
        format!("the part of hub {hub} of {hubs}, with pieces of {} keys", pieces.len())
    })
}

impl Decoded {
    /// Returns the round before which the job had this state.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Returns the optimizer that made the state.
    pub fn optimizer(&self) -> &Optimizer {
        self.kept.optimizer()
    }

    /// Returns the values, as the base of deltas.
    pub fn base(&self) -> Base {
        Base { digest: self.digest.clone(), values: Arc::clone(&self.values) }
    }

    /// Describes which hub's part the file is; `None` for a whole job.
    pub fn part(&self) -> Option<String> {
        self.share.as_ref().map(|share| format!("hub {}'s part of {}", share.hub, share.hubs))
    }

    /// Returns the number of the part's hub, and the number of hubs; `None` for a whole job.
    pub fn place(&self) -> Option<(u32, u32)> {
        self.share.as_ref().map(|share| (share.hub, share.hubs))
    }

    /// Returns the name that distinguishes this job from other jobs of the same name. Only a part that a hub has sent
    /// has such a name.
    pub fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// Returns the range of a key's elements in the file, if the file has a part of the key. Also returns the key's
    /// shape, unless an older program wrote the file.
    pub fn piece_of(&self, key: &str) -> Option<(Range<usize>, Option<&[u64]>)> {
        let [begin, end] = *self.share.as_ref()?.pieces.get(key)?;
        Some((begin..end, self.shapes.get(key).map(Vec::as_slice)))
    }

    /// Returns the values of each f32 tensor. In a file that [`decode`](crate::decode) has read, all tensors are f32.
    pub fn tensors(&self) -> impl Iterator<Item = (&Key, &[f32])> {
        let mut rest = self.values.as_slice();
        self.tensors.iter().filter(|tensor| tensor.dtype == Dtype::F32).map(move |tensor| {
            let elements = tensor.elements().expect("checked with the header") as usize;
            let (values, others) = rest.split_at(elements);
            rest = others;
            (tensor, values)
        })
    }

    /// Returns the elements of each tensor, without a copy: little endian, of the tensor's type.
    pub fn elements(&self) -> impl Iterator<Item = (&Key, Bytes)> {
        let mut rest = Bytes::from_owner(Values(Arc::clone(&self.values)));
        self.tensors.iter().map(move |tensor| {
            let bytes = tensor.bytes().expect("checked with the header") as usize;
            (tensor, rest.split_to(bytes))
        })
    }

    /// Returns the job state in a checkpoint with these tensors.
    ///
    /// # Panics
    /// Panics if [elements](Self::elements) of the file are still in use.
    pub fn restore(
        self,
        keys: &[Key],
        tensors: &Tensors,
        entries: &[Entry],
        share: Option<FileShare>,
    ) -> Result<Restored, Mismatch> {
        if self.share != share {
            return Err(Mismatch::Share { file: shown(&self.share), job: shown(&share) });
        }
        let optimizer = tensors.optimizer();
        if self.kept.optimizer() != optimizer {
            return Err(Mismatch::Optimizer { file: json(self.kept.optimizer()), job: json(optimizer) });
        }
        if self.kept.ema() != tensors.ema() {
            let named = |ema: Option<f64>| ema.map_or("none".to_owned(), |decay| decay.to_string());
            return Err(Mismatch::Ema { file: named(self.kept.ema()), job: named(tensors.ema()) });
        }
        let starts = self.starts(keys.len(), entries)?;
        self.check_multipliers(keys)?;
        let (numbers, steps) = (self.numbers(keys, optimizer)?, self.steps(keys));
        let values = Arc::into_inner(self.values).expect("the elements are not in use");
        Ok(Restored::new(self.round, numbers, values, starts)
            .with_steps(steps)
            .with_last_squares(self.last_squares)
            .with_norm_mean(self.norm_mean))
    }

    /// Returns the number of steps of each key, if the file has such numbers.
    fn steps(&self, keys: &[Key]) -> Vec<Option<u32>> {
        if self.steps.is_empty() {
            return Vec::new();
        }
        let of = |key: &Key| self.steps.get(&key.name).copied().unwrap_or(steps_of_rounds(self.round));
        keys.iter().map(|key| Some(of(key))).collect()
    }

    /// Returns the optimizer's hyperparameters by round, for a job with these keys.
    fn numbers(&self, keys: &[Key], of_job: &Optimizer) -> Result<Vec<(Round, Numbers)>, Mismatch> {
        let names: HashSet<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        let of = |(from, optimizer, multipliers): &NumbersFrom| {
            let named = multipliers.iter().flatten().find(|(name, _)| !names.contains(name.as_str()));
            if let Some((name, &file)) = named {
                return Err(Mismatch::Multipliers { name: name.clone(), file, job: [1.0, 1.0] });
            }
            let by_key = |of: &Multipliers| {
                keys.iter().map(|key| of.get(&key.name).copied().unwrap_or([1.0, 1.0])).collect()
            };
            let groups = self.groups.iter().find(|(round, ..)| round == from);
            let mut in_groups = groups.iter().flat_map(|(.., of)| of.keys());
            if let Some(name) = in_groups.find(|name| !names.contains(name.as_str())) {
                return Err(Mismatch::Group { name: name.clone() });
            }
            let groups = groups.map(|(_, optimizers, of)| {
                let of_keys = keys.iter().map(|key| of.get(&key.name).copied().unwrap_or(0)).collect();
                Groups { optimizers: optimizers.clone(), of_keys }.into()
            });
            let multipliers = multipliers.as_ref().map(by_key);
            let numbers = Numbers { optimizer: *optimizer, multipliers, groups };
            numbers.check(of_job, keys).map_err(|error| Mismatch::Numbers { round: from.0, error })?;
            Ok((*from, numbers))
        };
        self.numbers.iter().map(of).collect()
    }

    /// Returns, for each key, the indices of the values at which its tensors begin. The file must have exactly
    /// the job's tensors.
    fn starts(&self, keys: usize, entries: &[Entry]) -> Result<Vec<RestoredKey>, Mismatch> {
        let elements = |key: &Key| key.elements().expect("checked with the header") as usize;
        let mut found = HashMap::with_capacity(self.tensors.len());
        let mut start = 0;
        for tensor in &self.tensors {
            found.insert(tensor.name.as_str(), (start, tensor));
            start += elements(tensor);
        }
        let mut keys = vec![RestoredKey { elements: 0..0, starts: Vec::new() }; keys];
        for Entry { key, elements, shown, .. } in entries {
            let Some(&(start, tensor)) = found.get(shown.name.as_str()) else {
                return Err(Mismatch::Missing { name: shown.name.clone() });
            };
            if tensor.shape != shown.shape {
                let (file, job) = (tensor.shape.clone(), shown.shape.clone());
                return Err(Mismatch::Shape { name: shown.name.clone(), file, job });
            }
            // The entries are the weights of all keys, then the first state of all keys, and so on.
            let key = &mut keys[key.index()];
            key.elements = elements.clone();
            key.starts.push(start);
        }
        if self.tensors.len() != entries.len() {
            return Err(Mismatch::Count { file: self.tensors.len(), job: entries.len() });
        }
        Ok(keys)
    }

    fn check_multipliers(&self, keys: &[Key]) -> Result<(), Mismatch> {
        let (file, job) = (&self.multipliers, &multipliers(keys));
        let of = |from: &Multipliers, name: &str| from.get(name).copied().unwrap_or([1.0, 1.0]);
        for name in file.keys().chain(job.keys()) {
            let (file, job) = (of(file, name), of(job, name));
            if file != job {
                return Err(Mismatch::Multipliers { name: name.clone(), file, job });
            }
        }
        Ok(())
    }
}
