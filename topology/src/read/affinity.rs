//! The cpus on which this process may run, read from `/proc/self/status`.
//!
//! The mask is read as text, because the system call would need `unsafe`. The file shows the mask of the main
//! thread, even if the calling thread is already pinned to one cpu. This module must not depend on the rest
//! of the machine.

use crate::cpulist;
use std::path::Path;

/// Returns the cpus of the affinity mask. Returns `None` and adds a note if the file `status` or its line for the mask
/// cannot be read.
pub(crate) fn allowed_cpus(status: &Path, notes: &mut Vec<String>) -> Option<Vec<u32>> {
    let text = match std::fs::read_to_string(status) {
        Ok(text) => text,
        Err(error) => {
            notes.push(format!(
                "The affinity mask is unknown ({}: {error}): all cpus count as allowed.",
                status.display()
            ));
            return None;
        }
    };
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(cpulist::parse);
    if list.is_none() {
        notes.push(format!(
            "The affinity mask is unknown ({} has no readable Cpus_allowed_list): all cpus count as allowed.",
            status.display()
        ));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_list_and_survives_its_absence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let mut notes = Vec::new();
        std::fs::write(&path, "Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1,4\n").unwrap();
        assert_eq!(allowed_cpus(&path, &mut notes), Some(vec![0, 1, 4]));
        assert!(notes.is_empty());
        std::fs::write(&path, "Cpus_allowed_list:\tgarbage\n").unwrap();
        assert_eq!(allowed_cpus(&path, &mut notes), None);
        assert_eq!(allowed_cpus(&dir.path().join("absent"), &mut notes), None);
        assert_eq!(notes.len(), 2);
    }
}
