//! Reads a checkpoint, and checks whether it belongs to a job.
//!
//! The bytes come from outside. The structure is checked against the file's length before memory is allocated
//! for the values. No value is returned before the digest is checked. The memory needed is the length of the
//! file, and a small multiple of its header while the header is read.
//!
//! The thread that loads owns a checkpoint. This module must not depend on directories.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use fabric::Slab;
use pbox_core::manifest::{ManifestError, from_safetensors, header_bytes};
use pbox_core::{
    Dtype, ExactSum, Groups, Key, NormMean, Numbers, Optimizer, Restored, RestoredKey, Round, Tensors,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

use crate::PIECE_BYTES;
use crate::delta::Applied;
use crate::error::{DecodeError, Mismatch, excerpt};
use crate::format::{
    DIGEST_AT, DIGEST_BYTES, Entry, FORMAT, FileShare, GroupsFrom, Metadata, Multipliers, NO_DIGEST,
    NumbersFrom, PREFIX_BYTES, START, Shapes, digest_text, is_state, json, multipliers, steps_of_rounds,
};

/// A valid checkpoint of any job, or the weights of a job in 16 bits.
#[derive(Debug)]
pub struct Decoded {
    round: Round,
    kept: Tensors,
    /// The optimizer's hyperparameters, each with its first round. The rounds ascend, and there is at least one.
    numbers: Vec<NumbersFrom>,
    groups: Vec<GroupsFrom>,
    /// The numbers of steps of the keys that have not made one step per round.
    steps: BTreeMap<String, u32>,
    multipliers: Multipliers,
    /// The sum of squares of the gradients of the previous round, if the file has it.
    last_squares: Option<ExactSum>,
    /// The mean of the gradient's norms so far. If the file has no such mean, the mean of no norms.
    norm_mean: NormMean,
    share: Option<FileShare>,
    shapes: Shapes,
    run: Option<String>,
    /// The tensors, in the order of their values in the file. All have one element type.
    tensors: Vec<Key>,
    /// The file's digest, which no other file has.
    digest: String,
    /// The file's values, as bytes.
    values: Arc<Slab>,
}

/// The values of a file, to which the differences from this file to a newer one can be applied.
#[derive(Clone, Debug)]
pub struct Base {
    digest: String,
    values: Arc<Slab>,
}

impl Base {
    /// Returns the digest of the file.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// The place of a file's values.
#[derive(Debug)]
pub enum ValuesFrom {
    /// The file, behind the header.
    File,
    /// Memory. The file is only the header.
    Memory(Slab),
    /// The values of an older file. This number of deltas is in the file, behind the header.
    Deltas(Base, usize),
}

/// The bytes of a file's values.
struct Values(Arc<Slab>);

impl AsRef<[u8]> for Values {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice().as_bytes()
    }
}

/// Reads a checkpoint of `file_bytes` bytes. Checks everything that does not depend on its job: structure,
/// version, metadata, digest.
pub fn decode(file: impl Read, file_bytes: u64) -> Result<Decoded, DecodeError> {
    decode_as(file, file_bytes, Dtype::F32, ValuesFrom::File)
}

/// Reads the answer of a hub that was asked for values of this type, with the checks of [`decode`]. A hub answers with f32 if
/// a value would become infinite. `file_bytes` is the length of the file with all values, wherever they are.
pub fn decode_as(
    mut file: impl Read,
    file_bytes: u64,
    dtype: Dtype,
    values: ValuesFrom,
) -> Result<Decoded, DecodeError> {
    let mut header = read_header(&mut file, file_bytes)?;
    let metadata = match metadata(&header) {
        Err(version @ DecodeError::Version { .. }) => {
            return Err(newer_or_damaged(version, header, file, file_bytes));
        }
        metadata => metadata?,
    };
    let tensors = match from_safetensors(&header, file_bytes) {
        // A hub without weights writes a file without tensors. The digest shows that nothing is missing.
        Err(ManifestError::NoKeys) => Vec::new(),
        tensors => tensors?,
    };
    let of_file = tensors.iter().find(|tensor| tensor.dtype == dtype).map_or(Dtype::F32, |_| dtype);
    if let Some(Key { name, dtype, .. }) = tensors.iter().find(|tensor| tensor.dtype != of_file) {
        let (seen, expected) = (dtype.name(), of_file.name());
        return Err(DecodeError::Dtype { name: name.clone(), seen, expected });
    }

    let mut hash = begin_digest(&mut header);
    let value_bytes = file_bytes - header.len() as u64;
    drop(header);
    let values = Arc::new(match values {
        ValuesFrom::Memory(values) => with_bytes(values, value_bytes, file_bytes, &mut hash)?,
        ValuesFrom::File => read_values(file, value_bytes, file_bytes, &mut hash)?,
        ValuesFrom::Deltas(base, count) => {
            read_deltas(file, (&base.values, count), (value_bytes, of_file), &mut hash)?
        }
    });
    compare(&metadata.digest, &hash)?;

    let optimizer = optimizer(&metadata.optimizer)?;
    let numbers = numbers(&metadata, &optimizer)?;
    let ema = metadata.ema.as_deref().map(|seen| parse("ema", seen)).transpose()?;
    Ok(Decoded {
        round: round(&metadata.round)?,
        kept: Tensors::from(optimizer).with_ema(ema),
        groups: groups(&metadata, &numbers)?,
        numbers,
        steps: steps(&metadata, &tensors)?,
        last_squares: last_squares(&metadata)?,
        norm_mean: norm_mean(&metadata)?,
        multipliers: parse("multipliers", &metadata.multipliers)?,
        share: metadata.share.as_deref().map(|seen| parse("share", seen)).transpose()?,
        shapes: metadata.shapes.as_deref().map(|seen| parse("shapes", seen)).transpose()?.unwrap_or_default(),
        run: metadata.run,
        tensors,
        digest: metadata.digest,
        values,
    })
}

/// Reads a checkpoint like [`decode`], and checks that it is undamaged. Keeps nothing in memory.
pub fn check_digest(mut file: impl Read, file_bytes: u64) -> Result<(), DecodeError> {
    let header = read_header(&mut file, file_bytes)?;
    match metadata(&header) {
        Err(version @ DecodeError::Version { .. }) => {
            Err(newer_or_damaged(version, header, file, file_bytes))
        }
        metadata => compare_rest(&metadata?.digest, header, file, file_bytes),
    }
}

/// Returns the error for a file with another version. Either the version is newer, or one of its digits is damaged;
/// the digest shows which. Every version has the same digest at the same position.
fn newer_or_damaged(version: DecodeError, header: Vec<u8>, file: impl Read, file_bytes: u64) -> DecodeError {
    let written = header.get(DIGEST_AT..DIGEST_AT + DIGEST_BYTES).unwrap_or_default();
    let written = String::from_utf8_lossy(written).into_owned();
    compare_rest(&written, header, file, file_bytes).err().unwrap_or(version)
}

/// Reads the file after its header. Compares the digest of all bytes with the digest in the file.
fn compare_rest(
    written: &str,
    mut header: Vec<u8>,
    mut file: impl Read,
    file_bytes: u64,
) -> Result<(), DecodeError> {
    if header.len() < DIGEST_AT + DIGEST_BYTES {
        return Err(DecodeError::Ended { seen: header.len() as u64, expected: file_bytes });
    }
    let mut hash = begin_digest(&mut header);
    let (mut seen, mut piece) = (header.len() as u64, vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                hash.update(&piece[..read]);
                seen += read as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    if seen != file_bytes {
        return Err(DecodeError::Ended { seen, expected: file_bytes });
    }
    compare(written, &hash)
}

/// Begins the digest of a file with its header, in which [`NO_DIGEST`] replaces the digest.
fn begin_digest(header: &mut [u8]) -> Xxh3 {
    let mut hash = Xxh3::new();
    header[DIGEST_AT..][..DIGEST_BYTES].copy_from_slice(&NO_DIGEST);
    hash.update(header);
    hash
}

fn compare(written: &str, hash: &Xxh3) -> Result<(), DecodeError> {
    match digest_text(hash) {
        computed if written == computed => Ok(()),
        computed => Err(DecodeError::Digest { written: excerpt(written), computed }),
    }
}

/// The facts at the beginning of a checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The name of the job that wrote the file.
    pub job: String,
    /// The round before which the state is.
    pub round: Round,
    /// The reason why the job ended, if the file has the last state of a failed job.
    pub ended: Option<String>,
}

/// Reads only the beginning of a checkpoint file. The rest of the file may be damaged.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not the beginning of a checkpoint.
pub fn about(path: &Path) -> Result<About, DecodeError> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let Metadata { job, round, ended, .. } = metadata(&read_header(&mut file, bytes)?)?;
    Ok(About { job, round: Round(number("round", &round)?), ended })
}

/// Returns the beginning of the file, up to the first value.
fn read_header(file: &mut impl Read, file_bytes: u64) -> Result<Vec<u8>, DecodeError> {
    let mut header = Vec::new();
    file.take(PREFIX_BYTES as u64).read_to_end(&mut header)?;
    let Some(&first8) = header.first_chunk() else {
        return Err(
            ManifestError::HeaderIncomplete { needed: PREFIX_BYTES as u64, seen: header.len() }.into()
        );
    };
    let end = header_bytes(first8, file_bytes)?;
    file.take(end - PREFIX_BYTES as u64).read_to_end(&mut header)?;
    if (header.len() as u64) < end {
        return Err(DecodeError::Ended { seen: header.len() as u64, expected: file_bytes });
    }
    if !header[PREFIX_BYTES..].starts_with(START.as_bytes()) {
        let seen = &header[PREFIX_BYTES..header.len().min(2 * DIGEST_AT)];
        return Err(DecodeError::Foreign { seen: excerpt(&String::from_utf8_lossy(seen)) });
    }
    Ok(header)
}

/// Returns the metadata of a file of this version.
fn metadata(header: &[u8]) -> Result<Metadata, DecodeError> {
    #[derive(Deserialize)]
    struct Header<M> {
        #[serde(rename = "__metadata__")]
        metadata: M,
    }
    /// The fields that every version has.
    #[derive(Deserialize)]
    struct Version {
        phub_checkpoint: String,
        #[serde(default)]
        program: String,
    }
    let bytes = &header[PREFIX_BYTES..];
    let Header { metadata: Version { phub_checkpoint: seen, program } } = header_json(bytes)?;
    if seen != FORMAT.to_string() {
        return Err(DecodeError::Version { seen: excerpt(&seen), program: excerpt(&program) });
    }
    let Header { metadata } = header_json::<Header<Metadata>>(bytes)?;
    if header.get(DIGEST_AT..DIGEST_AT + DIGEST_BYTES) != Some(metadata.digest.as_bytes()) {
        let (field, seen) = ("digest", excerpt(&metadata.digest));
        return Err(DecodeError::Metadata { field, seen, reason: "expected 32 hexadecimal digits".into() });
    }
    Ok(metadata)
}

fn header_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let faulty =
        |error: serde_json::Error| ManifestError::HeaderNotJson { reason: excerpt(&error.to_string()) };
    Ok(serde_json::from_slice(bytes).map_err(faulty)?)
}

/// Adds the bytes of values to the digest.
fn with_bytes(values: Slab, value_bytes: u64, file_bytes: u64, hash: &mut Xxh3) -> Result<Slab, DecodeError> {
    let room = size_of_val(values.as_slice()) as u64;
    let Some(bytes) = values.as_slice().as_bytes().get(..value_bytes as usize) else {
        return Err(DecodeError::Ended { seen: file_bytes - value_bytes + room, expected: file_bytes });
    };
    hash.update(bytes);
    Ok(values)
}

/// Returns all values of the file, in its order.
fn read_values(
    mut file: impl Read,
    value_bytes: u64,
    file_bytes: u64,
    hash: &mut Xxh3,
) -> Result<Slab, DecodeError> {
    // The header was checked against the file's length, so the number of values is whole, and no value is missing.
    let bytes = usize::try_from(value_bytes).expect("a 64-bit machine");
    let mut slab = Slab::zeroed("a checkpoint", bytes.div_ceil(size_of::<f32>()))?;
    let mut left = value_bytes;
    // The file, this machine, and the windows (the memory of links) have little-endian f32. So no
    // value is converted.
    for piece in slab.as_mut_slice().as_mut_bytes()[..bytes].chunks_mut(PIECE_BYTES) {
        file.read_exact(piece).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => DecodeError::Ended { seen: file_bytes - left, expected: file_bytes },
            _ => DecodeError::Read(error),
        })?;
        hash.update(piece);
        left -= piece.len() as u64;
    }
    Ok(slab)
}

/// Returns the values of an older file, after all deltas of the file were applied.
fn read_deltas(
    file: impl Read,
    (base, count): (&Slab, usize),
    (value_bytes, dtype): (u64, Dtype),
    hash: &mut Xxh3,
) -> Result<Slab, DecodeError> {
    let bytes = usize::try_from(value_bytes).expect("a 64-bit machine");
    let floats = bytes.div_ceil(size_of::<f32>());
    if base.as_slice().len() != floats {
        let (old, new) = (size_of_val(base.as_slice()), floats * size_of::<f32>());
        let reason = format!("the values took {old} bytes, and the new ones take {new}");
        return Err(DecodeError::Delta { reason });
    }
    let mut slab = Slab::zeroed("a version of weights", floats)?;
    slab.as_mut_slice().copy_from_slice(base.as_slice());
    let values = &mut slab.as_mut_slice().as_mut_bytes()[..bytes];
    Applied::new(count, dtype)?.apply(file, values, |block| hash.update(block))?;
    Ok(slab)
}

fn faulty(field: &'static str, seen: &str, reason: impl ToString) -> DecodeError {
    DecodeError::Metadata { field, seen: excerpt(seen), reason: excerpt(&reason.to_string()) }
}

fn number<T: FromStr<Err: ToString>>(field: &'static str, seen: &str) -> Result<T, DecodeError> {
    seen.parse().map_err(|error: T::Err| faulty(field, seen, error))
}

fn parse<T: DeserializeOwned>(field: &'static str, seen: &str) -> Result<T, DecodeError> {
    serde_json::from_str(seen).map_err(|error| faulty(field, seen, error))
}

fn optimizer(seen: &str) -> Result<Optimizer, DecodeError> {
    let optimizer: Optimizer = parse("optimizer", seen)?;
    optimizer.check().map_err(|error| faulty("optimizer", seen, error))?;
    Ok(optimizer)
}

fn round(seen: &str) -> Result<Round, DecodeError> {
    let round = Round(number("round", seen)?);
    let last = Round::LIMIT;
    (round < last)
        .then_some(round)
        .ok_or_else(|| faulty("round", seen, format!("a job ends before round {}", last.0)))
}

fn learning_rates(metadata: &Metadata) -> Result<Vec<(Round, f32)>, DecodeError> {
    let (field, seen) = ("learning_rates", metadata.learning_rates.as_str());
    let rates: Vec<(Round, f32)> = parse(field, seen)?;
    let ascending = rates.is_sorted_by(|(a, _), (b, _)| a < b);
    if rates.is_empty() || !ascending || rates.iter().any(|(_, rate)| !(rate.is_finite() && *rate >= 0.0)) {
        return Err(faulty(
            field,
            seen,
            "expected [round, rate] at least once, rounds ascending, rates finite and at least 0",
        ));
    }
    Ok(rates)
}

/// Returns the optimizer's hyperparameters by round. A file has only learning rates if an older program wrote it, or
/// if the job set no other hyperparameters.
fn numbers(metadata: &Metadata, of_terms: &Optimizer) -> Result<Vec<NumbersFrom>, DecodeError> {
    let rates = learning_rates(metadata)?;
    let (field, Some(seen)) = ("optimizers", metadata.optimizers.as_deref()) else {
        let of_rate = |(from, rate)| (from, of_terms.with_learning_rate(rate), None);
        return Ok(rates.into_iter().map(of_rate).collect());
    };
    let numbers: Vec<NumbersFrom> = parse(field, seen)?;
    if numbers.is_empty() || !numbers.is_sorted_by(|(a, ..), (b, ..)| a < b) {
        let expected = "expected [round, optimizer, multipliers] at least once, rounds ascending";
        return Err(faulty(field, seen, expected));
    }
    Ok(numbers)
}

/// Returns the groups by round. Each of the rounds must also be a round of `numbers`.
fn groups(metadata: &Metadata, numbers: &[NumbersFrom]) -> Result<Vec<GroupsFrom>, DecodeError> {
    let (field, Some(seen)) = ("groups", metadata.groups.as_deref()) else { return Ok(Vec::new()) };
    let groups: Vec<GroupsFrom> = parse(field, seen)?;
    match groups.iter().find(|(of, ..)| !numbers.iter().any(|(from, ..)| from == of)) {
        Some((round, ..)) => {
            Err(faulty(field, seen, format!("the file has no hyperparameters from round {} on", round.0)))
        }
        None => Ok(groups),
    }
}

/// Returns the numbers of steps in the file. Each key with a number must be in the file, too.
fn steps(metadata: &Metadata, tensors: &[Key]) -> Result<BTreeMap<String, u32>, DecodeError> {
    let (field, Some(seen)) = ("steps", metadata.steps.as_deref()) else { return Ok(BTreeMap::new()) };
    let steps: BTreeMap<String, u32> = parse(field, seen)?;
    let keys: HashSet<&str> =
        tensors.iter().map(|tensor| tensor.name.as_str()).filter(|name| !is_state(name)).collect();
    match steps.keys().find(|name| !keys.contains(name.as_str())) {
        Some(name) => Err(faulty(field, seen, format!("the file has no key {name:?}"))),
        None => Ok(steps),
    }
}

/// Reads the sum of squares of the gradients of the previous round.
fn last_squares(metadata: &Metadata) -> Result<Option<ExactSum>, DecodeError> {
    let (field, Some(seen)) = ("last_squares", metadata.last_squares.as_deref()) else { return Ok(None) };
    let squares = ExactSum::of_words(&parse(field, seen)?);
    squares.map(Some).ok_or_else(|| faulty(field, seen, "expected the numbers of an exact sum of squares"))
}

/// Reads the mean of the gradient's norms so far.
fn norm_mean(metadata: &Metadata) -> Result<NormMean, DecodeError> {
    let (field, Some(seen)) = ("norm_mean", metadata.norm_mean.as_deref()) else {
        return Ok(NormMean::default());
    };
    let (mean, norms) = parse(field, seen)?;
    NormMean::new(mean, norms).ok_or_else(|| {
        faulty(field, seen, "expected a finite mean of at least 0, and the number of its norms")
    })
}

/// Describes a share in few words.
fn shown(share: &Option<FileShare>) -> String {
    share.as_ref().map_or("the file of a job with one hub".to_owned(), |FileShare { hub, hubs, pieces }| {
        format!("the part of hub {hub} of {hubs}, with pieces of {} keys", pieces.len())
    })
}

impl Decoded {
    /// Returns the round before which the state is.
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

    /// Returns the name that tells this job from other jobs of the same name. Only a part that a hub has sent
    /// has such a name.
    pub fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// Returns the range of a key's elements in the file, if the file has a part of the key. Also returns the
    /// key's shape; older programs wrote none.
    pub fn piece_of(&self, key: &str) -> Option<(Range<usize>, Option<&[u64]>)> {
        let [begin, end] = *self.share.as_ref()?.pieces.get(key)?;
        Some((begin..end, self.shapes.get(key).map(Vec::as_slice)))
    }

    /// Returns the values of each f32 tensor. These are all tensors of a file that [`decode`] has read.
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
