//! The directory of checkpoints. The check does not lock it, because a hub may use it.

use std::path::Path;

use rustix::fs::{Access, access};

use crate::doctor::check::Check;

const NAME: &str = "checkpoints";

/// Whether a hub could write there.
pub(crate) fn directory(dir: &Path) -> Check {
    // A hub makes the directory itself, but not its parents.
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (place, will) = if dir.exists() { (dir, "is there") } else { (parent, "will be made") };
    if !place.is_dir() {
        let seen = format!("{} is no directory", place.display());
        return Check::fail(NAME, seen, format!("mkdir -p {}, or another --checkpoints", dir.display()));
    }
    match access(place, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Check::pass(NAME, format!("{} {will} and can be written", dir.display())),
        Err(errno) => Check::fail(
            NAME,
            format!("{} cannot be written: {}", place.display(), std::io::Error::from(errno)),
            format!("chown or chmod {} for the hub's user, or another --checkpoints", place.display()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    #[test]
    fn a_directory_or_its_parent_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(directory(dir.path()).verdict, Verdict::Pass);
        assert!(directory(&dir.path().join("new")).seen.contains("will be made"));
        assert_eq!(directory(&dir.path().join("new/below")).verdict, Verdict::Fail);
        assert_eq!(directory(Path::new("new-in-the-working-directory")).verdict, Verdict::Pass);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(directory(&file).fix.unwrap().contains("mkdir -p"));
        assert!(!dir.path().join("new").exists(), "looking makes nothing");
    }
}
