//! One sysfs file: its text, or why not.
//!
//! Must not know what any file means.

use super::SysfsError;
use crate::cpulist;
use std::path::{Path, PathBuf};

/// Attributes are one page at most; what is longer is not one.
const SEEN_CHARS: usize = 40;

/// The file's text without its newline.
pub fn text(path: &Path) -> Result<String, SysfsError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
        Err(source) => Err(SysfsError::Unreadable { path: path.to_owned(), source }),
    }
}

/// The file's text, if it can be read at all.
pub fn text_if_any(path: &Path) -> Option<String> {
    text(path).ok()
}

/// The file's list of cpu or node numbers.
pub fn list(path: &Path) -> Result<Vec<u32>, SysfsError> {
    let text = text(path)?;
    cpulist::parse(&text).ok_or_else(|| garbage(path, "a list of numbers, as 0-3,8", &text))
}

/// The file's whole number.
pub fn integer(path: &Path) -> Result<i64, SysfsError> {
    let text = text(path)?;
    text.parse().map_err(|_| garbage(path, "a whole number", &text))
}

/// Names in a directory, sorted; empty if there is no such directory.
pub fn names(directory: &Path) -> Result<Vec<String>, SysfsError> {
    let unreadable = |source| SysfsError::Unreadable { path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned());
    }
    names.sort_by(|a, b| crate::host::natural_order(a, b));
    Ok(names)
}

/// Where a link leads; `None` if there is none or it leads nowhere.
pub fn resolved(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

pub fn garbage(path: &Path, expected: &'static str, seen: &str) -> SysfsError {
    let seen = seen.chars().take(SEEN_CHARS).collect();
    SysfsError::Garbage { path: path.to_owned(), expected, seen }
}
