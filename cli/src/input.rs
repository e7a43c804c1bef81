//! The check of a file before a command reads it.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::bail;

/// Checks that the file is not a FIFO: opening a FIFO would wait for its writer, which may never come. The pipe of a shell,
/// as in `/dev/stdin` or `<(command)`, is open already, and has no path in a directory.
///
/// # Errors
/// Returns an error if the file is a FIFO. A missing file is left to the command, whose error says what the file is for.
pub fn check_no_fifo(path: &Path) -> anyhow::Result<()> {
    let is_fifo = path.metadata().is_ok_and(|found| found.file_type().is_fifo());
    if is_fifo && path.canonicalize().is_ok() {
        bail!(
            "{}: expected a file, found a FIFO, whose writer may never come; give a file or a pipe, as `<(command)` or /dev/stdin",
            path.display()
        );
    }
    Ok(())
}
