//! What is in a checkpoint file, in which order, and under which names.
//!
//! ```text
//!   byte 0     8                          35                 67                        64 * k
//!   | n, u64   | {"__metadata__":{"digest":"  | 32 hex digits | ","phub_checkpoint":... | f32 ...
//!                                                                     padded by blanks    |
//!                weights of key 0, 1, ...; first state of key 0, 1, ...; second state ... -+
//! ```
//!
//! The digest stands at a fixed place, so that it can be written last and left out when it is checked.
//!
//! Plain functions; any thread. Must not know files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pbox_core::manifest::{self, MAX_HEADER_BYTES};
use pbox_core::{Key, KeyId, Optimizer, Round, Snapshot, Tensor, state_names};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::error::UnusableKeys;

/// Version of the format. A reader takes no other.
pub(super) const FORMAT: u32 = 1;

/// How the header of every checkpoint begins.
pub(super) const START: &str = "{\"__metadata__\":{\"digest\":\"";

/// Bytes before the header: its length.
pub(super) const PREFIX_BYTES: usize = 8;

/// Where the digest stands in the file.
pub(super) const DIGEST_AT: usize = PREFIX_BYTES + START.len();
const _: () = assert!(DIGEST_AT == 35, "docs/formats.md says so");

/// The digest's length: 128 bits in hexadecimal digits.
pub(super) const DIGEST_BYTES: usize = 32;

/// What stands for the digest while it is computed.
pub(super) const NO_DIGEST: [u8; DIGEST_BYTES] = [b'0'; DIGEST_BYTES];

/// Tensors whose name begins so are optimizer state.
const STATE_PREFIX: &str = "optimizer/";

/// The values start on a cache line, for readers that map the file.
const DATA_ALIGN: usize = 64;

/// The digest of a file, as it stands there.
pub(super) fn digest_text(hash: &Xxh3) -> String {
    format!("{:032x}", hash.digest128())
}

/// Learning rate and weight decay multipliers of the keys that have some.
pub(super) type Multipliers = BTreeMap<String, [f32; 2]>;

/// The multipliers of `keys` that are not one.
pub(super) fn multipliers(keys: &[Key]) -> Multipliers {
    let with = keys.iter().filter(|key| (key.lr_mult, key.wd_mult) != (1.0, 1.0));
    with.map(|key| (key.name.clone(), [key.lr_mult, key.wd_mult])).collect()
}

/// The file's `__metadata__`, an object of strings: what a job goes on with, beside its tensors.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Metadata {
    pub digest: String,
    pub phub_checkpoint: String,
    pub job: String,
    /// The next round.
    pub round: String,
    /// JSON, as in a join.
    pub optimizer: String,
    /// JSON, `[[first round, rate], ...]`.
    pub learning_rates: String,
    /// JSON, `{"key": [lr_mult, wd_mult], ...}`.
    pub multipliers: String,
    /// The program that wrote the file, for people.
    pub program: String,
}

impl Metadata {
    fn of(job: &str, snapshot: &Snapshot) -> Self {
        let rates: Vec<(Round, f32)> = snapshot.learning_rates().to_vec();
        Metadata {
            digest: String::from_utf8_lossy(&NO_DIGEST).into_owned(),
            phub_checkpoint: FORMAT.to_string(),
            job: job.to_owned(),
            round: snapshot.round().0.to_string(),
            optimizer: json(snapshot.optimizer()),
            learning_rates: json(&rates),
            multipliers: json(&multipliers(snapshot.layout().keys())),
            program: concat!("phub-server ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// As the JSON of the control port.
pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("settings are plain data")
}

/// One tensor of a checkpoint.
#[derive(Debug)]
pub(super) struct Entry {
    /// The job's key, and which of its tensors.
    pub key: KeyId,
    pub tensor: Tensor,
    /// Name and shape in the file.
    pub shown: Key,
}

/// Whether a model's keys can be saved: a job that asks for checkpoints is better refused when it joins
/// than when the first one is due.
pub fn check_keys(keys: &[Key], optimizer: &Optimizer) -> Result<(), UnusableKeys> {
    entries(keys, optimizer).map(drop)
}

/// All tensors of a job's checkpoint, in the order of the file.
pub(super) fn entries(keys: &[Key], optimizer: &Optimizer) -> Result<Vec<Entry>, UnusableKeys> {
    for key in keys {
        if key.name == "__metadata__" || key.name.starts_with(STATE_PREFIX) {
            return Err(UnusableKeys::Reserved { name: key.name.clone() });
        }
    }
    let entries: Vec<Entry> = Tensor::all(optimizer)
        .flat_map(|tensor| keys.iter().zip(0..).map(move |(key, id)| (tensor, key, KeyId(id))))
        .map(|(tensor, key, id)| {
            let name = match tensor {
                Tensor::Weights => key.name.clone(),
                Tensor::State(which) => {
                    format!("{STATE_PREFIX}{}/{}", state_names(optimizer)[which], key.name)
                }
            };
            Entry { key: id, tensor, shown: Key::f32(name, key.shape.clone()) }
        })
        .collect();
    // The reader's own limits: what is written can be read back.
    let shown: Vec<Key> = entries.iter().map(|entry| entry.shown.clone()).collect();
    manifest::check(&shown).map_err(|error| UnusableKeys::Manifest { error })?;
    Ok(entries)
}

/// A file that is about to be written: all but its values and its digest.
#[derive(Debug)]
pub(super) struct Plan {
    /// The file's beginning, up to the first value; [`NO_DIGEST`] in the place of the digest.
    pub header: Vec<u8>,
    /// What follows.
    pub entries: Vec<Entry>,
    /// Length of the whole file.
    pub file_bytes: u64,
}

impl Plan {
    pub fn new(job: &str, snapshot: &Snapshot) -> Result<Self, UnusableKeys> {
        let entries = entries(snapshot.layout().keys(), snapshot.optimizer())?;
        let mut text = format!("{{\"__metadata__\":{}", json(&Metadata::of(job, snapshot)));
        let mut end = 0;
        for Entry { shown, .. } in &entries {
            let begin = end;
            end += shown.bytes().expect("checked with the manifest");
            let (name, shape) = (json(&shown.name), json(&shown.shape));
            write!(text, ",{name}:{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}")
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
