//! The check of a file before a command reads it, and the lines of a file of any length.

use std::io::{self, BufRead, Read};
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

/// The longest line that is read. A line of a record may have a request of 64 MB with the keys of a job.
const LINE_BYTES: u64 = 256 << 20;

/// Returns the lines of a file. A file such as `/dev/zero` has a line without an end, so a longer line is an error.
pub fn lines(mut file: impl BufRead) -> impl Iterator<Item = io::Result<String>> {
    std::iter::from_fn(move || {
        let mut line = String::new();
        let read = match file.by_ref().take(LINE_BYTES).read_line(&mut line) {
            Ok(0) => return None,
            Ok(read) => read as u64,
            Err(error) => return Some(Err(error)),
        };
        let is_whole = line.ends_with('\n');
        line.truncate(line.trim_end_matches('\n').len());
        match is_whole || read < LINE_BYTES {
            true => Some(Ok(line)),
            false => {
                Some(Err(io::Error::other(format!("more than {LINE_BYTES} bytes without a line's end"))))
            }
        }
    })
}
