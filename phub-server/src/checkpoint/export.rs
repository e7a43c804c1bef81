//! A trained model as a plain safetensors file, which any program can read.
//!
//! Runs on the caller's thread. Must not depend on directories of checkpoints.

use std::io::{self, Write};
use std::path::Path;

use checkpoint_file::{Decoded, is_state};
use serde_json::{Map, Value, json};
use zerocopy::IntoBytes;

use super::permission::FileMode;

/// Writes the weights of a checkpoint to a new file of this mode. With `state`, it also writes the optimizer's state.
/// Returns the number of tensors in the file.
///
/// # Errors
/// Returns an error if the file exists already, or cannot be written.
pub fn export(checkpoint: &Decoded, to: &Path, mode: FileMode, state: bool) -> io::Result<usize> {
    let chosen = || checkpoint.tensors().filter(|(tensor, _)| state || !is_state(&tensor.name));
    let mut header = Map::new();
    // Readers for PyTorch require this entry.
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut end = 0;
    for (tensor, values) in chosen() {
        let begin = end;
        end += size_of_val(values);
        let about = json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]});
        header.insert(tensor.name.clone(), about);
    }
    let tensors = header.len() - 1;
    let mut header = Value::from(header).to_string();
    // The values begin at a multiple of eight bytes.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let file = mode.make_file(to)?;
    let mut out = &file;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    chosen().try_for_each(|(_, values)| out.write_all(values.as_bytes()))?;
    file.sync()?;
    Ok(tensors)
}
