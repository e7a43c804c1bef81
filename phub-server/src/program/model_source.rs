//! `--model` and `--manifest`: the keys of a job, for the programs that need a model.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use pbox_core::Key;
use pbox_core::manifest::{self, ManifestError};
use pbox_core::models;

/// A model by name, or by a file.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(multiple = false)]
pub struct ModelSource {
    /// Use a published network as the model: resnet50, vgg16, vgg19, vgg19-22k, inception3, googlenet, sockeye.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,

    /// Use the tensors of a safetensors file as the model, in the order of their bytes. Only the file's header is read.
    #[arg(long, value_name = "FILE.safetensors")]
    pub manifest: Option<PathBuf>,
}

impl ModelSource {
    /// Whether the user named a model.
    pub fn is_given(&self) -> bool {
        self.model.is_some() || self.manifest.is_some()
    }

    /// Returns the model's name for people, and its keys; `None` if neither setting was given.
    pub fn keys(&self) -> anyhow::Result<Option<(String, Vec<Key>)>> {
        match self {
            ModelSource { manifest: Some(path), .. } => {
                let keys = read_manifest(path)?;
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Ok(Some((name, keys)))
            }
            ModelSource { model: Some(name), .. } => {
                let model = models::model(name)?;
                Ok(Some((model.name.to_owned(), model.keys)))
            }
            _ => Ok(None),
        }
    }

    /// Works like [`keys`](Self::keys), with a default model.
    pub fn keys_or(&self, default: &str) -> anyhow::Result<(String, Vec<Key>)> {
        match self.keys()? {
            Some(found) => Ok(found),
            None => Ok((default.to_owned(), models::model(default)?.keys)),
        }
    }
}

/// Reads only the header of a safetensors file: the values may be many GiB.
fn read_manifest(path: &Path) -> anyhow::Result<Vec<Key>> {
    let at = path.display();
    let read = |error: std::io::Error| {
        anyhow!("cannot read {at}: {error}; give a .safetensors file that you may read")
    };
    let lies = |error: ManifestError| anyhow!("{at}: {error}");
    // Opening a FIFO would wait for its writer. The length of a file is known before it is read.
    if !path.metadata().map_err(read)?.is_file() {
        return Err(anyhow!("{at} is not a file; give a .safetensors file that you may read"));
    }
    let mut file = File::open(path).map_err(read)?;
    let file_bytes = file.metadata().map_err(read)?.len();
    let mut header = Vec::with_capacity(8);
    (&mut file).take(8).read_to_end(&mut header).map_err(read)?;
    if let Some(&first8) = header.first_chunk() {
        let needed = manifest::header_bytes(first8, file_bytes).map_err(lies)?;
        (&mut file).take(needed.saturating_sub(8)).read_to_end(&mut header).map_err(read)?;
    }
    manifest::from_safetensors(&header, file_bytes).map_err(lies)
}
