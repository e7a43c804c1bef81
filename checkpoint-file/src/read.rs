//! Reads a checkpoint.
//!
//! The bytes are not trusted. The structure is checked against the file's length before memory is allocated for the
//! values. No value is returned before the digest is checked. The memory needed is the length of the file, and a small
//! multiple of its header while the header is read.
//!
//! Plain functions, for any thread. This module must not depend on directories.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use fabric::Slab;
use pbox_core::manifest::{ManifestError, from_safetensors, header_bytes};
use pbox_core::{Dtype, ExactSum, Key, NormMean, Optimizer, Round, Tensors};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::Xxh3;
use zerocopy::IntoBytes;

use crate::PIECE_BYTES;
use crate::decoded::{Base, Decoded};
use crate::delta::DeltaApplier;
use crate::error::{DecodeError, excerpt};
use crate::format::{
    DIGEST_AT, DIGEST_BYTES, FORMAT, GroupsFrom, Metadata, NO_DIGEST, NumbersFrom, PREFIX_BYTES, START,
    digest_text, is_state,
};

/// The place of a file's values.
#[derive(Debug)]
pub enum ValuesFrom {
    /// The file, behind the header.
    File,
    /// Memory. The file is only the header.
    Memory(Slab),
    /// The values of an older file, and the number of deltas that this file has behind its header.
    Deltas(Base, usize),
}

/// Reads a checkpoint of `file_bytes` bytes. Checks everything that does not depend on its job: structure,
/// version, metadata, digest.
pub fn decode(file: impl Read, file_bytes: u64) -> Result<Decoded, DecodeError> {
    decode_as(file, file_bytes, Dtype::F32, ValuesFrom::File)
}

/// Reads the answer of a hub that was asked for values of this type, with the checks of [`decode`]. A hub answers with
/// f32 if a value would become infinite. `file_bytes` is the length of the file together with all values, also if
/// `values` are not in the file.
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
        let reason = format!("the last version has {old} bytes of values, and the new version has {new}");
        return Err(DecodeError::Delta { reason });
    }
    let mut slab = Slab::zeroed("a version of weights", floats)?;
    slab.as_mut_slice().copy_from_slice(base.as_slice());
    let values = &mut slab.as_mut_slice().as_mut_bytes()[..bytes];
    DeltaApplier::new(count, dtype)?.apply(file, values, |block| hash.update(block))?;
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

/// Reads the sum of the squared gradients of the previous round.
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
