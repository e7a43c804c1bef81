//! The permission to read checkpoints. By default only the hub's user may read them.
//!
//! Plain values, used on any thread.

use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

use super::disk::{self, NewFile};

/// The mode of checkpoint files, such as 600.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(u32);

impl Default for FileMode {
    /// Returns the mode with which only the hub's user reads and writes files.
    fn default() -> Self {
        FileMode(0o600)
    }
}

impl FileMode {
    /// Makes a new file for writing. It gets this mode even if the process's umask would forbid it, because
    /// the user chose the mode.
    pub(super) fn make_file(self, path: &Path) -> io::Result<NewFile> {
        let file = NewFile::make(path)?;
        if self != FileMode::default() {
            file.set_mode(self.0)?;
        }
        Ok(file)
    }

    /// Makes a directory for checkpoint files. Users who may read the files may also list it.
    pub(super) fn make_directory(self, path: &Path) -> io::Result<()> {
        disk::make_dir(path)?;
        if self != FileMode::default() {
            std::fs::set_permissions(path, PermissionsExt::from_mode(self.of_directory()))?;
        }
        Ok(())
    }

    /// Returns the mode of a directory of checkpoint files.
    pub(super) fn of_directory(self) -> u32 {
        0o700 | self.0 | (self.0 & 0o444) >> 2
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03o}", self.0)
    }
}

impl FromStr for FileMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a mode of files that the hub's user reads and writes, like 600, 640 or 660"
            )
        };
        let digits = text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|_| digits).ok_or_else(wrong)?;
        // No file may be executable, and a user who may write a file may also read it.
        let writes_alone = mode & 0o222 & !(mode >> 1 & 0o222) != 0;
        if mode & 0o600 != 0o600 || mode & !0o666 != 0 || writes_alone {
            return Err(wrong());
        }
        Ok(FileMode(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_one_of_files_that_the_hub_reads_and_writes() {
        assert_eq!("600".parse(), Ok(FileMode::default()));
        assert_eq!("0640".parse::<FileMode>().unwrap().to_string(), "640");
        assert_eq!("640".parse::<FileMode>().unwrap().of_directory(), 0o750);
        assert_eq!("664".parse::<FileMode>().unwrap().of_directory(), 0o775);
        for wrong in ["", "400", "700", "620", "1600", "+600", "rw-------", "0o600"] {
            let error = wrong.parse::<FileMode>().unwrap_err();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
