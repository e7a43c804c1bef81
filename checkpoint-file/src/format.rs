//! The contents of a checkpoint file, their order and their names.
//!
//! ```text
//!   byte 0     8                          35                 67                        64 * k
//!   | n, u64   | {"__metadata__":{"digest":"  | 32 hex digits | ","phub_checkpoint":... | f32 ...
//!                                                                     padded by blanks    |
//!                weights of key 0, 1, ...; first state of key 0, 1, ...; second state ... -+
//! ```
//!
//! The digest has a fixed position, so that it can be written last, and be replaced by zeros when it is
//! computed.
//!
//! Plain functions, for any thread. This module must not depend on files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use pbox_core::manifest::{self, MAX_HEADER_BYTES, ManifestError};
use pbox_core::{
    Dtype, Groups, Key, KeyId, Multipliers as KeyMultipliers, Numbers, Optimizer, Piece, Round, Share,
    Snapshot, Tensor, Tensors,
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::error::UnusableKeys;

/// The version of the format. A reader refuses every other version.
pub(crate) const FORMAT: u32 = 1;

/// The beginning of the header of every checkpoint.
pub(crate) const START: &str = "{\"__metadata__\":{\"digest\":\"";

/// The number of bytes before the header, which contain its length.
pub(crate) const PREFIX_BYTES: usize = 8;

/// The position of the digest in the file.
pub const DIGEST_AT: usize = PREFIX_BYTES + START.len();
const _: () = assert!(DIGEST_AT == 35, "docs/formats.md says so");

/// The digest's length: 128 bits in hexadecimal digits.
pub const DIGEST_BYTES: usize = 32;

/// The digits that are in the place of the digest while the digest is computed.
pub(crate) const NO_DIGEST: [u8; DIGEST_BYTES] = [b'0'; DIGEST_BYTES];

/// The prefix of the names of state tensors.
const STATE_PREFIX: &str = "optimizer/";

/// Whether a tensor of this name is state: of the optimizer, or the average of the weights.
pub fn is_state(name: &str) -> bool {
    name.starts_with(STATE_PREFIX)
}

/// The alignment of the values: a cache line, for readers that map the file.
const DATA_ALIGN: usize = 64;

/// Returns the digest as text.
pub fn digest_text(hash: &Xxh3) -> String {
    format!("{:032x}", hash.digest128())
}

/// The multipliers of learning rate and weight decay, for the keys that have multipliers other than one.
pub(crate) type Multipliers = BTreeMap<String, [f32; 2]>;

/// Returns the multipliers of `keys` that differ from one.
pub(crate) fn multipliers(keys: &[Key]) -> Multipliers {
    let with = keys.iter().filter(|key| (key.lr_mult, key.wd_mult) != (1.0, 1.0));
    with.map(|key| (key.name.clone(), [key.lr_mult, key.wd_mult])).collect()
}

/// The optimizer's hyperparameters from a round on: the first round, the optimizer, and the multipliers of keys.
/// Without multipliers, the multipliers in the job's terms hold.
pub(crate) type NumbersFrom = (Round, Optimizer, Option<Multipliers>);

/// The parameter groups from a round on: the first round, the groups' optimizers, and each key's group,
/// numbered from 1.
pub(crate) type GroupsFrom = (Round, Vec<Optimizer>, BTreeMap<String, u8>);

/// Returns the optimizer's hyperparameters, if they do not follow from the job's terms and its learning rates.
fn optimizers(snapshot: &Snapshot) -> Option<Vec<NumbersFrom>> {
    let (of_terms, keys) = (snapshot.optimizer(), snapshot.layout().keys());
    let is_told = |(_, numbers): &(Round, Numbers)| {
        let rate = numbers.optimizer.learning_rate();
        numbers.multipliers.is_none()
            && numbers.groups.is_none()
            && numbers.optimizer == of_terms.with_learning_rate(rate)
    };
    let named = |of_keys: &[KeyMultipliers]| -> Multipliers {
        let with = keys.iter().zip(of_keys).filter(|(_, multipliers)| **multipliers != [1.0, 1.0]);
        with.map(|(key, &multipliers)| (key.name.clone(), multipliers)).collect()
    };
    let of = |(from, numbers): &(Round, Numbers)| {
        (*from, numbers.optimizer, numbers.multipliers.as_deref().map(named))
    };
    (!snapshot.numbers().iter().all(is_told)).then(|| snapshot.numbers().iter().map(of).collect())
}

/// Returns the parameter groups of a job, if it has groups.
fn groups(snapshot: &Snapshot) -> Option<Vec<GroupsFrom>> {
    let keys = snapshot.layout().keys();
    let of = |(from, numbers): &(Round, Numbers)| {
        let Groups { optimizers, of_keys } = numbers.groups.as_deref()?;
        let named = keys.iter().zip(of_keys).filter(|&(_, &group)| group > 0);
        Some((*from, optimizers.clone(), named.map(|(key, &group)| (key.name.clone(), group)).collect()))
    };
    let groups: Vec<GroupsFrom> = snapshot.numbers().iter().filter_map(of).collect();
    (!groups.is_empty()).then_some(groups)
}

/// Returns the numbers of steps of the keys that have not made exactly one step per round after the
/// broadcast.
fn steps(snapshot: &Snapshot) -> Option<BTreeMap<String, u32>> {
    if !snapshot.optimizer().keeps_weights() {
        return None;
    }
    let keys = snapshot.layout().keys();
    let of = snapshot.pieces().iter().map(|piece| (&keys[piece.key.index()].name, snapshot.steps(piece)));
    let apart: BTreeMap<String, u32> = of
        .filter(|&(_, steps)| steps != steps_of_rounds(snapshot.round()))
        .map(|(name, steps)| (name.clone(), steps))
        .collect();
    (!apart.is_empty()).then_some(apart)
}

/// Returns the number of steps of a key that steps in each round after the broadcast.
pub(crate) fn steps_of_rounds(before: Round) -> u32 {
    before.0.saturating_sub(1)
}

/// The file's `__metadata__`, an object of strings: everything that a job needs to continue, except its
/// tensors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Metadata {
    pub digest: String,
    pub phub_checkpoint: String,
    pub job: String,
    /// The round with which the job continues.
    pub round: String,
    /// JSON, as in a join.
    pub optimizer: String,
    /// JSON: the decay of the average of weights, if the job keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<String>,
    /// JSON, the words of an exact sum: the sum of the squares of this hub's mean gradients in the previous round.
    /// Present only if the job's next steps depend on the norm of that round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_squares: Option<String>,
    /// JSON, `[mean, norms]`: the running mean of the norms of accepted rounds and their number, if the job skips
    /// spikes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm_mean: Option<String>,
    /// JSON, `[[first round, rate], ...]`: the learning rates of `optimizers`, for readers that are older than the
    /// field `optimizers`.
    pub learning_rates: String,
    /// JSON, `[[first round, optimizer, {"key": [lr_mult, wd_mult], ...}], ...]`, if workers have set more than learning rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizers: Option<String>,
    /// JSON, `[[first round, [optimizer, ...], {"key": number of its group, from 1, ...}], ...]`, if some keys have
    /// other hyperparameters than `optimizers` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<String>,
    /// JSON, `{"key": steps, ...}`, for the keys that have not made exactly one step per round after the broadcast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<String>,
    /// JSON, `{"key": [lr_mult, wd_mult], ...}`.
    pub multipliers: String,
    /// JSON: the share of the hub that owns this part, in a job over several hubs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// JSON, `{"key": [extent, ...], ...}`: the shapes of the keys of which this hub has a part, for readers without the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shapes: Option<String>,
    /// The name that distinguishes this job from other jobs of the same name, in a part that is sent. A reader compares
    /// the names in the parts of several hubs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The reason why the job ended, for people. Present only in the last state of a job that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The program that wrote the file, for people.
    pub program: String,
}

impl Metadata {
    fn of(job: &str, snapshot: &Snapshot, share: Share, run: Option<String>) -> Self {
        let rate = |(from, numbers): &(Round, Numbers)| (*from, numbers.optimizer.learning_rate());
        let rates: Vec<(Round, f32)> = snapshot.numbers().iter().map(rate).collect();
        Metadata {
            digest: String::from_utf8_lossy(&NO_DIGEST).into_owned(),
            phub_checkpoint: FORMAT.to_string(),
            job: job.to_owned(),
            round: snapshot.round().0.to_string(),
            optimizer: json(snapshot.optimizer()),
            ema: snapshot.tensors().ema().as_ref().map(json),
            last_squares: snapshot.last_squares().map(|squares| json(&squares.to_words())),
            norm_mean: snapshot.norm_mean().as_ref().map(json),
            learning_rates: json(&rates),
            optimizers: optimizers(snapshot).as_ref().map(json),
            groups: groups(snapshot).as_ref().map(json),
            // The keys that are in the file.
            steps: steps(snapshot).filter(|_| snapshot.selection().has(Tensor::Weights)).as_ref().map(json),
            multipliers: json(&multipliers(snapshot.layout().keys())),
            share: FileShare::new(share, snapshot.layout().keys(), snapshot.pieces()).as_ref().map(json),
            shapes: shapes(share, snapshot).as_ref().map(json),
            run,
            ended: snapshot.ended().map(str::to_owned),
            program: concat!("phub-server ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// The hub of a part in a job over several hubs, as the file names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileShare {
    /// The number of the hub, from 0.
    pub hub: u32,
    /// The number of hubs.
    pub hubs: u32,
    /// The piece of each key that the hub owns: the index of its first element, and of the element after its last.
    pub pieces: BTreeMap<String, [usize; 2]>,
}

impl FileShare {
    /// Creates the description of a share; `None` for a whole job.
    pub fn new(share: Share, keys: &[Key], pieces: &[Piece]) -> Option<Self> {
        let parts = pieces.iter().filter(|piece| !is_whole(piece, keys));
        let pieces = parts.map(|Piece { key, elements, .. }| {
            (keys[key.index()].name.clone(), [elements.start, elements.end])
        });
        let whose = FileShare { hub: share.hub, hubs: share.hubs, pieces: pieces.collect() };
        (!share.is_whole()).then_some(whose)
    }
}

/// The shapes of keys, by name.
pub(crate) type Shapes = BTreeMap<String, Vec<u64>>;

/// Returns the shapes of the keys that a hub has a part of, in a job over several hubs.
fn shapes(share: Share, snapshot: &Snapshot) -> Option<Shapes> {
    let keys = snapshot.layout().keys();
    let parts = snapshot.pieces().iter().filter(|piece| !is_whole(piece, keys));
    let of = parts.map(|piece| &keys[piece.key.index()]).map(|key| (key.name.clone(), key.shape.clone()));
    (!share.is_whole()).then(|| of.collect())
}

fn is_whole(piece: &Piece, keys: &[Key]) -> bool {
    keys[piece.key.index()].elements() == Some(piece.elements.len() as u64)
}

/// Writes a value as the JSON of the control port.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("settings are plain data")
}

/// One tensor of a checkpoint.
#[derive(Debug)]
pub struct Entry {
    /// The job's key.
    pub key: KeyId,
    /// The range of the key's elements that are in this tensor.
    pub elements: Range<usize>,
    /// The index of the key among the hub's pieces.
    pub piece: usize,
    /// The weights, or one of the optimizer's states.
    pub tensor: Tensor,
    /// Name and shape in the file.
    pub shown: Key,
}

/// Checks that a model's keys can be saved. If the keys cannot be saved, a job with checkpoints fails at its
/// join, and not only when the first checkpoint is due.
///
/// # Errors
/// Returns an error if a file cannot hold the keys.
pub fn check_keys(keys: &[Key], tensors: &Tensors) -> Result<(), UnusableKeys> {
    entries(keys, tensors, whole(keys)).map(drop)
}

/// Returns all elements of each key.
pub fn whole(keys: &[Key]) -> impl Iterator<Item = (KeyId, Range<usize>)> + Clone {
    let elements = |key: &Key| 0..key.elements().unwrap_or(0) as usize;
    (0..).map(KeyId).zip(keys).map(move |(id, key)| (id, elements(key)))
}

/// Returns the key of a piece, and the elements of the piece.
pub fn of_piece(Piece { key, elements, .. }: &Piece) -> (KeyId, Range<usize>) {
    (*key, elements.clone())
}

/// Returns all tensors of a checkpoint with these pieces of keys, in the order of the file.
///
/// # Errors
/// Returns an error if a file cannot hold the keys.
pub fn entries(
    keys: &[Key],
    tensors: &Tensors,
    pieces: impl Iterator<Item = (KeyId, Range<usize>)> + Clone,
) -> Result<Vec<Entry>, UnusableKeys> {
    for key in keys {
        if key.name == "__metadata__" || is_state(&key.name) {
            return Err(UnusableKeys::Reserved { name: key.name.clone() });
        }
    }
    let names: Vec<&str> = tensors.state_names().collect();
    let entries: Vec<Entry> = tensors
        .all()
        .flat_map(|tensor| pieces.clone().enumerate().map(move |(piece, of)| (tensor, piece, of)))
        .map(|(tensor, piece, (id, elements))| {
            let key = &keys[id.index()];
            let name = match tensor {
                Tensor::Weights => key.name.clone(),
                Tensor::State(which) => {
                    format!("{STATE_PREFIX}{}/{}", names[which], key.name)
                }
            };
            let is_whole = key.elements() == Some(elements.len() as u64);
            let shape = if is_whole { key.shape.clone() } else { vec![elements.len() as u64] };
            Entry { key: id, elements, piece, tensor, shown: Key::f32(name, shape) }
        })
        .collect();
    // The reader makes the same check, so every file that passes it here can be read back.
    let shown: Vec<Key> = entries.iter().map(|entry| entry.shown.clone()).collect();
    match manifest::check(&shown) {
        // A hub without weights writes a file without tensors, from which a job takes the round to continue with.
        Err(ManifestError::NoKeys) if !tensors.optimizer().keeps_weights() => {}
        checked => checked.map_err(|error| UnusableKeys::Manifest { error })?,
    }
    Ok(entries)
}

/// A file that will be written: everything except its values and its digest.
#[derive(Debug)]
pub struct Plan {
    /// The beginning of the file, up to the first value, with zeros for the digest.
    pub header: Vec<u8>,
    /// The tensors that follow the header.
    pub entries: Vec<Entry>,
    /// Length of the whole file.
    pub file_bytes: u64,
}

impl Plan {
    /// Plans the file of the snapshot's tensors, with values of this type.
    ///
    /// # Errors
    /// Returns an error if a file cannot hold the keys.
    pub fn new(
        job: &str,
        snapshot: &Snapshot,
        share: Share,
        run: Option<String>,
        dtype: Dtype,
    ) -> Result<Self, UnusableKeys> {
        let pieces = snapshot.pieces().iter().map(of_piece);
        let mut entries = entries(snapshot.layout().keys(), snapshot.tensors(), pieces)?;
        entries.retain(|entry| snapshot.selection().has(entry.tensor));
        let mut text = format!("{{\"__metadata__\":{}", json(&Metadata::of(job, snapshot, share, run)));
        let mut end = 0;
        let named = dtype.name().to_uppercase();
        for Entry { shown, elements, .. } in &entries {
            let begin = end;
            end += (dtype.bytes() * elements.len()) as u64;
            let (name, shape) = (json(&shown.name), json(&shown.shape));
            write!(
                text,
                ",{name}:{{\"dtype\":\"{named}\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}"
            )
            .expect("a string takes everything");
        }
        text.push('}');
        let bytes = (PREFIX_BYTES + text.len()).next_multiple_of(DATA_ALIGN);
        text.extend(std::iter::repeat_n(' ', bytes - PREFIX_BYTES - text.len()));
        if text.len() as u64 > MAX_HEADER_BYTES {
            return Err(UnusableKeys::Header { bytes: text.len() });
        }
        let header = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        debug_assert_eq!(header[DIGEST_AT..][..DIGEST_BYTES], NO_DIGEST);
        Ok(Plan { file_bytes: header.len() as u64 + end, header, entries })
    }
}
