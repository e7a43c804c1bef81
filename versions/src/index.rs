//! The index of a version. It has the version's kind, and the file of each tensor.
//!
//! The index is written last, in the form of the index of a sharded safetensors model. Engines need all fields of the
//! index except fields that begin with `phub_`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::delta::Encoding;
use crate::error::VersionError;

/// The name of the index in a version's directory.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The length limit of an index, in bytes. It is enough for about two million tensors.
const MAX_BYTES: u64 = 256 << 20;

/// The number of a version, from 1. Numbers only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionId(pub u64);

impl fmt::Display for VersionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:06}", self.0)
    }
}

impl FromStr for VersionId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_number =
            !text.is_empty() && text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number
            .then(|| VersionId(text.parse().expect("at most 18 digits")))
            .ok_or_else(|| format!("version {text:?}: expected at most 18 digits, like 000007"))
    }
}

/// The source of a version: the weights of a job before a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The job's name.
    pub job: String,
    /// The round before which the job had these weights.
    pub round: u32,
}

/// The index of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Index {
    metadata: Metadata,
    /// The file of each tensor. In a delta, only the tensors that changed.
    pub weight_map: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Metadata {
    version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delta_encoding: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compression_format: Option<String>,
    checksum_format: String,
    phub_job: String,
    phub_round: String,
    /// The digest of all weights of the version. Older publishers left it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    phub_digest: Option<String>,
}

/// The fields of an index, after a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub id: VersionId,
    /// The base of a delta. `None` for a whole version.
    pub base: Option<Base>,
    pub origin: Origin,
}

/// The base of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// The version on which the delta builds.
    pub id: VersionId,
    /// The form of the differences from this version.
    pub encoding: Encoding,
}

impl Index {
    /// Creates the index of a version with tensors in these files, and with this digest of all weights.
    pub fn new(about: &About, digest: String, weight_map: BTreeMap<String, String>) -> Self {
        let metadata = Metadata {
            version: about.id.to_string(),
            base_version: about.base.map(|base| base.id.to_string()),
            delta_encoding: about.base.map(|base| base.encoding.to_string()),
            compression_format: about.base.map(|_| "zstd".to_owned()),
            checksum_format: "xxh3-128".into(),
            phub_job: about.origin.job.clone(),
            phub_round: about.origin.round.to_string(),
            phub_digest: Some(digest),
        };
        Index { metadata, weight_map }
    }

    /// Reads the index of the version in `dir`. The version must have the number `id`.
    ///
    /// # Errors
    /// Returns an error if the index cannot be read, is that of another version, or has fields that no publisher writes.
    pub fn read(dir: &Path, id: VersionId) -> Result<(Self, About), VersionError> {
        let path = dir.join(INDEX);
        let file = File::open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound if dir.is_dir() => VersionError::NoIndex { path: dir.to_owned() },
            _ => VersionError::disk(&path, "opening the index of a version")(error),
        })?;
        let mut bytes = Vec::new();
        let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(VersionError::disk(&path, "reading the index of a version"))?;
        let faulty = |why: String| VersionError::faulty(&path, "the index of a version", why);
        if bytes.len() as u64 > MAX_BYTES {
            return Err(faulty(format!("expected at most {MAX_BYTES} bytes")));
        }
        let index: Index = serde_json::from_slice(&bytes).map_err(|error| faulty(error.to_string()))?;
        let about = index.about().map_err(faulty)?;
        if about.id != id {
            return Err(faulty(format!(
                "the index names version {}, but lies in the directory of version {id}",
                about.id
            )));
        }
        Ok((index, about))
    }

    fn about(&self) -> Result<About, String> {
        let Metadata {
            version,
            base_version,
            delta_encoding,
            compression_format,
            checksum_format,
            phub_job,
            phub_round,
            phub_digest: _,
        } = &self.metadata;
        let id: VersionId = version.parse()?;
        let base = base_version.as_deref().map(str::parse::<VersionId>).transpose()?;
        if base.is_some_and(|base| base >= id) {
            return Err(format!("base_version {base_version:?}: expected a version before {id}"));
        }
        let encoding = delta_encoding.as_deref().map(str::parse::<Encoding>).transpose()?;
        let is_delta = (delta_encoding.is_some(), compression_format.as_deref());
        let expected = base.map_or((false, None), |_| (true, Some("zstd")));
        if is_delta != expected || checksum_format != "xxh3-128" {
            return Err(format!(
                "delta_encoding {delta_encoding:?}, compression_format {compression_format:?} and checksum_format \
                 {checksum_format:?}: expected {}, and the checksum format xxh3-128",
                base.map_or(
                    "no encoding and no compression in a whole version",
                    |_| "xor or overwrite, and zstd, in a delta"
                )
            ));
        }
        let base = base.zip(encoding).map(|(id, encoding)| Base { id, encoding });
        let round = phub_round.parse().map_err(|_| format!("phub_round {phub_round:?}: expected a round"))?;
        if let Some(name) = self.weight_map.values().find(|name| !is_plain(name)) {
            return Err(format!(
                "file {name:?}: expected a name ending in .safetensors, without a directory"
            ));
        }
        Ok(About { id, base, origin: Origin { job: phub_job.clone(), round } })
    }

    /// Returns the content of the index's file.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("an index is plain data")
    }

    /// Returns the digest of all weights of the version. `None` if an older publisher left it out.
    pub fn digest(&self) -> Option<&str> {
        self.metadata.phub_digest.as_deref()
    }

    /// Returns the names of the tensors of each file.
    pub fn files(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, file) in &self.weight_map {
            files.entry(file).or_default().push(name);
        }
        files
    }
}

/// Whether a name is that of a file in the version's own directory.
fn is_plain(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(base: Option<u64>) -> About {
        About {
            id: VersionId(7),
            base: base.map(|id| Base { id: VersionId(id), encoding: Encoding::Xor }),
            origin: Origin { job: "resnet".into(), round: 1200 },
        }
    }

    /// Reads an index of version 7 in which `from` is replaced by `to`.
    fn read(from: &str, to: &str) -> Result<About, VersionError> {
        let map = BTreeMap::from([("w".to_owned(), "model-00001-of-00001.safetensors".to_owned())]);
        let text = String::from_utf8(Index::new(&about(Some(6)), "0f".into(), map).to_json()).unwrap();
        assert!(from.is_empty() || text.contains(from), "{text}");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(INDEX), text.replace(from, to)).unwrap();
        Index::read(dir.path(), VersionId(7)).map(|(_, about)| about)
    }

    #[test]
    fn an_index_comes_back() {
        assert_eq!(read("", "").ok(), Some(about(Some(6))));
        let base = Some(Base { id: VersionId(6), encoding: Encoding::Overwrite });
        assert_eq!(read("\"xor\"", "\"overwrite\"").ok(), Some(About { base, ..about(None) }));
    }

    #[test]
    fn fields_of_others_are_refused() {
        for (from, to, said) in [
            ("\"000006\"", "\"000007\"", "expected a version before 000007"),
            ("\"000007\"", "\"000008\"", "lies in the directory of version 000007"),
            ("\"000007\"", "\"7 \"", "expected at most 18 digits"),
            ("\"xor\"", "\"sub\"", "delta_encoding \"sub\": expected xor or overwrite"),
            (
                "\"base_version\"",
                "\"based_on\"",
                "expected no encoding and no compression in a whole version",
            ),
            ("\"zstd\"", "\"gzip\"", "compression_format"),
            ("\"xxh3-128\"", "\"adler32\"", "checksum_format"),
            ("\"1200\"", "\"-1\"", "phub_round"),
            ("\"model-00001-of-00001.safetensors\"", "\"../a.safetensors\"", "without a directory"),
            ("{", "[", "index of a version"),
        ] {
            let error = read(from, to).unwrap_err().to_string();
            assert!(error.contains(said), "{to}: {error}");
        }
    }
}
