//! The limit on a hub's open files. Every worker needs some descriptors, and a shell's soft limit is often 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that is asked for. No hub needs more files.
const REASONABLE: u64 = 65_536;

/// Raises the limit as far as the process may without privileges, up to a reasonable number.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let (current, wanted) = (limit.current, attainable(&limit));
    if current.is_some_and(|current| current < wanted)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit })
    {
        tracing::warn!(%error, current, wanted, "cannot raise the limit on open files; raise it by ulimit -n before the start");
    }
}

/// Returns the limit that [`raise_open_files`] reaches. A system without a limit counts as the largest
/// number.
pub fn attainable(limit: &Rlimit) -> u64 {
    let raised = limit.maximum.map_or(REASONABLE, |hard| hard.min(REASONABLE));
    limit.current.map_or(u64::MAX, |limit| limit.max(raised))
}

/// Returns the limit that counts now; `None` if there is none.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns the number of open files of this process; `None` without /proc.
pub(crate) fn open() -> Option<u64> {
    let listed = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(listed.saturating_sub(1)) // the listing itself has a descriptor
}
