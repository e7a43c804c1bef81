//! Readers of a directory. A reader has the weights of one version, and applies deltas to reach another version.
//!
//! ```text
//!   version 8, a delta --> its base 7, a delta --> its base 6: a whole version, or the reader's own
//!   then 6, 7, 8 in this order; each tensor is compared with its checksum
//! ```

use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::delta::{apply, checksum};
use crate::disk::{of_version, versions};
use crate::error::VersionError;
use crate::index::{About, INDEX, Index, Origin, VersionId};
use crate::shard;
use crate::weights::{Tensor, Weights};

/// A reader of a directory.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    /// The version that the reader has, and the version's index at the time of reading.
    own: Option<(At, Index)>,
}

/// The weights of a version, with their origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The version.
    pub id: VersionId,
    /// The job and the round from which the version comes.
    pub origin: Origin,
    /// All weights of the version.
    pub weights: Weights,
}

/// A version in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The version.
    pub id: VersionId,
    /// The version on which the delta builds. `None` for a whole version.
    pub base: Option<VersionId>,
    /// The job and the round from which the version comes.
    pub origin: Origin,
    /// The number of tensors in the version's files. In a delta, only the tensors that changed.
    pub tensors: usize,
    /// The length of the version's files, in bytes.
    pub bytes: u64,
}

/// Lists the versions of a directory, in order. Leaves out versions without an index, see [`without_index`].
///
/// # Errors
/// Returns an error if the directory or an index cannot be read.
pub fn list(dir: &Path) -> Result<Vec<Listed>, VersionError> {
    versions(dir)?.into_iter().filter(|&id| has_index(dir, id)).map(|id| listed(dir, id)).collect()
}

/// Returns an error for each version of a directory that has no index: the version is being written, or its publisher ended
/// early. The publishers of other programs write into the directory that readers see, and write the index last. A file that has
/// the name of a version also counts as a version without an index.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn without_index(dir: &Path) -> Result<Vec<VersionError>, VersionError> {
    let without = versions(dir)?.into_iter().filter(|&id| !has_index(dir, id));
    let fault = |path: PathBuf| match path.is_file() {
        true => VersionError::NotADirectory { path },
        false => VersionError::NoIndex { path },
    };
    Ok(without.map(|id| fault(of_version(dir, id))).collect())
}

/// Whether a version has an index. Returns true if the directory cannot be read: the reader then gets the reason from a
/// later call.
fn has_index(dir: &Path, id: VersionId) -> bool {
    let there = of_version(dir, id).join(INDEX).try_exists();
    there.unwrap_or_else(|error| error.kind() != ErrorKind::NotADirectory)
}

/// Lists the versions whose index can be read. Other versions must not be removed.
pub(crate) fn readable(dir: &Path) -> Result<Vec<Listed>, VersionError> {
    Ok(versions(dir)?.into_iter().filter_map(|id| listed(dir, id).ok()).collect())
}

fn listed(dir: &Path, id: VersionId) -> Result<Listed, VersionError> {
    let path = of_version(dir, id);
    let (index, About { id, base, origin }) = Index::read(&path, id)?;
    let mut bytes = 0;
    for file in index.files().into_keys() {
        let path = path.join(file);
        let about = path.metadata().map_err(VersionError::disk(&path, "looking at a file of a version"))?;
        bytes += about.len();
    }
    Ok(Listed { id, base: base.map(|base| base.id), origin, tensors: index.weight_map.len(), bytes })
}

impl Reader {
    /// Creates a reader of a directory. It has no version yet.
    pub fn new(dir: &Path) -> Self {
        Reader { dir: dir.to_owned(), own: None }
    }

    /// Returns the version that the reader has.
    pub fn at(&self) -> Option<&At> {
        self.own.as_ref().map(|(at, _)| at)
    }

    /// Returns the newest version of the directory that has an index, if there is one.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be listed.
    pub fn newest(&self) -> Result<Option<VersionId>, VersionError> {
        Ok(versions(&self.dir)?.into_iter().rfind(|&id| has_index(&self.dir, id)))
    }

    /// Whether the directory has another version with the number of the reader's own version, because the directory was
    /// emptied and filled again.
    pub fn is_replaced(&self) -> bool {
        self.own.as_ref().is_some_and(|(at, own)| {
            Index::read(&of_version(&self.dir, at.id), at.id).is_ok_and(|(index, _)| index != *own)
        })
    }

    /// Returns the oldest version after `last` that has an index and whose number is a multiple of `each`, if there is one.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be listed.
    pub fn next(&self, last: Option<VersionId>, each: NonZeroU32) -> Result<Option<VersionId>, VersionError> {
        let is_wanted = |id: &VersionId| Some(*id) > last && id.0.is_multiple_of(u64::from(each.get()));
        Ok(versions(&self.dir)?.into_iter().filter(is_wanted).find(|&id| has_index(&self.dir, id)))
    }

    /// Moves to a version. Starts from the reader's own version if deltas lead from there to the new version, and otherwise
    /// from a whole version.
    ///
    /// # Errors
    /// Returns an error if the version, or a version on which it builds, is gone, cannot be read, or is damaged. Then the
    /// reader has no version.
    pub fn go_to(&mut self, id: VersionId) -> Result<&At, VersionError> {
        let there = versions(&self.dir)?;
        if there.binary_search(&id).is_err() {
            let there = match (there.first(), there.last()) {
                (Some(first), Some(last)) => format!("{first} to {last}"),
                _ => return Err(VersionError::Empty { path: self.dir.clone() }),
            };
            return Err(VersionError::NoSuchVersion { path: self.dir.clone(), version: id, there });
        }
        let mut from = self.own.take();
        let mut steps = Vec::new();
        let mut next = id;
        loop {
            let (index, about) = match Index::read(&of_version(&self.dir, next), next) {
                Err(VersionError::Disk { error, .. })
                    if error.kind() == std::io::ErrorKind::NotFound && next != id =>
                {
                    let path = self.dir.clone();
                    return Err(VersionError::BaseGone { path, version: id, base: next });
                }
                read => read?,
            };
            if from.as_ref().is_some_and(|(at, _)| at.id == next) {
                // If the directory was emptied and filled again, this number belongs to another version, with
                // another index.
                from = from.filter(|(_, own)| *own == index);
                if from.is_some() {
                    break;
                }
            }
            let base = about.base;
            steps.push((index, about));
            let Some(base) = base else { break };
            next = base.id;
        }
        let (mut weights, mut last) = from
            .map_or_else(|| (Weights::default(), None), |(at, index)| (at.weights, Some((at.origin, index))));
        for (index, about) in steps.into_iter().rev() {
            self.step(&index, &about, &mut weights)?;
            last = Some((about.origin, index));
        }
        let (origin, index) = last.expect("a whole version, or the reader's own");
        // A delta has no checksums of the tensors that did not change.
        if let Some(expected) = index.digest() {
            let (seen, expected) = (weights.digest(), expected.to_owned());
            if seen != expected {
                let path = of_version(&self.dir, id);
                return Err(VersionError::Digest { path, version: id, expected, seen });
            }
        }
        let (at, _) = self.own.insert((At { id, origin, weights }, index));
        Ok(at)
    }

    /// Changes `weights` from the weights of a delta's base to the weights of the delta's version.
    fn step(&self, index: &Index, about: &About, weights: &mut Weights) -> Result<(), VersionError> {
        let dir = of_version(&self.dir, about.id);
        if about.base.is_none() {
            *weights = Weights::default();
        }
        for (file, names) in index.files() {
            let path = dir.join(file);
            shard::read(&path, about.base.is_none(), &names, |stored| {
                let faulty = |why: String| VersionError::faulty(&path, "a tensor of a version", why);
                let name = stored.name.to_owned();
                let seen = match about.base {
                    None => {
                        let seen = checksum(stored.bytes);
                        let tensor = Tensor {
                            dtype: stored.dtype,
                            shape: stored.shape,
                            bytes: stored.bytes.to_vec().into(),
                        };
                        if weights.0.insert(name.clone(), tensor).is_some() {
                            return Err(faulty(format!("tensor {name:?} occurs twice")));
                        }
                        seen
                    }
                    Some(base) => {
                        let tensor = weights.0.get_mut(&name);
                        let tensor = tensor.ok_or_else(|| {
                            faulty(format!(
                                "tensor {name:?} of a delta: its base, version {}, has no such tensor",
                                base.id
                            ))
                        })?;
                        if stored.dtype != Dtype::U8 {
                            return Err(faulty(format!(
                                "tensor {name:?} of a delta has type {:?}; expected U8",
                                stored.dtype
                            )));
                        }
                        // A tensor that only this reader has is changed in place.
                        let mut bytes = Vec::from(std::mem::take(&mut tensor.bytes));
                        let applied = apply(base.encoding, stored.bytes, &mut bytes);
                        tensor.bytes = bytes.into();
                        applied.map_err(|error| faulty(format!("the frame of {name:?}: {error}")))?
                    }
                };
                if seen != stored.checksum {
                    let (path, version, expected) = (path.clone(), about.id, stored.checksum.to_owned());
                    return Err(VersionError::Checksum { path, version, tensor: name, expected, seen });
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}
