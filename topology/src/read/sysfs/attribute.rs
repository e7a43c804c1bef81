//! One sysfs file: its text, or the reason why it cannot be read.
//!
//! This module must not depend on what any file means.

use super::SysfsError;
use crate::cpulist;
use std::path::{Path, PathBuf};

/// The most characters of a file's text that an error quotes.
const SEEN_CHARS: usize = 40;

/// Returns the file's text without its newline.
pub fn text(path: &Path) -> Result<String, SysfsError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
        Err(source) => Err(SysfsError::Unreadable { path: path.to_owned(), source }),
    }
}

/// Returns the file's text, or `None` if it cannot be read.
pub fn text_if_readable(path: &Path) -> Option<String> {
    text(path).ok()
}

/// Returns the file's list of cpu or node numbers.
pub fn list(path: &Path) -> Result<Vec<u32>, SysfsError> {
    let text = text(path)?;
    cpulist::parse(&text).ok_or_else(|| garbage(path, "a list of numbers, such as 0-3,8", &text))
}

/// Returns the file's whole number.
pub fn integer(path: &Path) -> Result<i64, SysfsError> {
    let text = text(path)?;
    text.parse().map_err(|_| garbage(path, "a whole number", &text))
}

/// Returns the names in a directory, sorted. Returns an empty list if there is no such directory.
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

/// Returns the target of a symbolic link. Returns `None` if there is no link, or if its target does not
/// exist.
pub fn link_target(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

pub fn garbage(path: &Path, expected: &'static str, seen: &str) -> SysfsError {
    let seen = seen.chars().take(SEEN_CHARS).collect();
    SysfsError::Garbage { path: path.to_owned(), expected, seen }
}
