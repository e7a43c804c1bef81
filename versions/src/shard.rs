//! One safetensors file of a version.
//!
//! A file of a whole version has the tensors themselves, and in its metadata their checksums, under `checksum/NAME`. A file of a
//! delta has one zstd frame for each tensor: its compressed change. The metadata has the checksum of the new tensor, under the
//! tensor's name. SGLang expects this form of a delta.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};

use crate::error::VersionError;

/// The prefix of checksums in the metadata of a whole version's file, which has other metadata, too.
const CHECKSUM: &str = "checksum/";

/// A tensor in a file.
#[derive(Debug)]
pub(crate) struct Stored<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: &'a [u8],
    /// The checksum of the tensor's values in this version.
    pub checksum: &'a str,
}

/// Writes a file with these tensors, for a whole version or for a delta.
pub(crate) fn write(mut to: impl Write, is_whole: bool, tensors: &[Stored<'_>]) -> io::Result<()> {
    let mut metadata = BTreeMap::new();
    if is_whole {
        // Readers for PyTorch require this entry.
        metadata.insert("format".to_owned(), "pt".to_owned());
    }
    let prefix = if is_whole { CHECKSUM } else { "" };
    metadata.extend(tensors.iter().map(|of| (format!("{prefix}{}", of.name), of.checksum.to_owned())));
    let mut end = 0;
    let infos = tensors.iter().map(|of| {
        let begin = end;
        end += of.bytes.len();
        (
            of.name.to_owned(),
            TensorInfo { dtype: of.dtype, shape: of.shape.clone(), data_offsets: (begin, end) },
        )
    });
    let header =
        Metadata::new(Some(metadata.into_iter().collect()), infos.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    to.write_all(&(header.len() as u64).to_le_bytes())?;
    to.write_all(&header)?;
    tensors.iter().try_for_each(|of| to.write_all(of.bytes))
}

/// Reads a file of a version. `names` are the file's tensors in the index. Calls `take` for each tensor.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a safetensors file, or has other tensors. Also returns the errors of
/// `take`.
pub(crate) fn read(
    path: &Path,
    is_whole: bool,
    names: &[&str],
    mut take: impl FnMut(Stored<'_>) -> Result<(), VersionError>,
) -> Result<(), VersionError> {
    let what = "a file of a version";
    let bytes = std::fs::read(path).map_err(VersionError::disk(path, "reading a file of a version"))?;
    let faulty = |why: String| VersionError::faulty(path, what, why);
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| faulty(error.to_string()))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| faulty(error.to_string()))?;
    let (there, expected): (BTreeSet<&str>, BTreeSet<&str>) =
        (tensors.names().into_iter().collect(), names.iter().copied().collect());
    if let Some(name) = there.symmetric_difference(&expected).next() {
        return Err(faulty(format!("tensor {name:?} is missing in the file or in the index")));
    }
    let prefix = if is_whole { CHECKSUM } else { "" };
    let metadata = header.metadata().clone().unwrap_or_default();
    for (name, tensor) in tensors.iter() {
        let checksum = metadata.get(&format!("{prefix}{name}"));
        let checksum = checksum.ok_or_else(|| faulty(format!("tensor {name:?} has no checksum")))?;
        let (dtype, shape, bytes) = (tensor.dtype(), tensor.shape().to_vec(), tensor.data());
        take(Stored { name, dtype, shape, bytes, checksum })?;
    }
    Ok(())
}
