//! Reads a file that a setting names: neither a FIFO nor a file without an end holds the program up.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Checks that the file is not a FIFO: opening a FIFO waits for its other end, which may never come. A shell's pipe, as in
/// `/dev/stdin` or `<(command)`, is open already, and has no path in a directory.
///
/// # Errors
/// Returns an error if the file is a FIFO. A missing file is no error here.
pub fn check_no_fifo(path: &Path) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) && path.canonicalize().is_ok() {
        return Err(io::Error::other(
            "expected a file, found a FIFO, whose other end may never come; give a file",
        ));
    }
    Ok(())
}

/// Returns the bytes of a file with at most `most` bytes.
///
/// # Errors
/// Returns an error if the file cannot be read, is a FIFO, or has more bytes, such as `/dev/zero`.
pub fn read_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    check_no_fifo(path)?;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!(
            "expected a short file, found more than {most} bytes; give another file"
        )));
    }
    Ok(bytes)
}
