//! The check of a file before a command reads it.

use std::path::Path;

use anyhow::Context;

/// Checks that the file is not a FIFO: opening a FIFO would wait for its writer, which may never come. The pipe of a shell,
/// as in `/dev/stdin` or `<(command)`, is open already, and has no path in a directory.
///
/// # Errors
/// Returns an error if the file is a FIFO. A missing file is left to the command, whose error says what the file is for.
pub fn check_no_fifo(path: &Path) -> anyhow::Result<()> {
    authority::check_no_fifo(path).with_context(|| {
        format!("{}: expected a file or a pipe, as `<(command)` or /dev/stdin", path.display())
    })
}
