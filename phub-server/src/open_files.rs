//! The limit on a hub's open files. Every worker needs some descriptors, and a shell's soft limit is often 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that is asked for: 4096 workers with a TCP connection for each of 253 cores.
const REASONABLE: u64 = 1 << 20;

/// The files that joins and requests need for a moment.
const RESERVE: u64 = 16;

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

/// Returns the number of files that a hub needs for each worker whose links are TCP: two connections to the control port, and a
/// link for each core. On shared memory a worker needs four files more, and with RDMA only the two connections.
pub fn of_a_worker(cores: u64) -> u64 {
    2 + cores
}

/// Checks that this process may have `needed` more files than the `open` ones. Returns the limit if the process may not.
pub(crate) fn check(open: u64, needed: u64) -> Result<(), u64> {
    match getrlimit(Resource::Nofile).current {
        Some(limit) if open.saturating_add(needed).saturating_add(RESERVE) > limit => Err(limit),
        _ => Ok(()),
    }
}

/// Returns the number of open files of this process; `None` without /proc.
pub(crate) fn open() -> Option<u64> {
    let listed = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(listed.saturating_sub(1)) // the listing itself has a descriptor
}
