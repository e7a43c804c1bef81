//! How many files a hub may have open: every worker holds some of its descriptors, and a shell's soft limit is
//! often 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than this nobody needs.
const REASONABLE: u64 = 65_536;

/// As many as the process may have without asking, within reason.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = attainable(current, maximum);
    if current.is_some_and(|current| current < wanted)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
    {
        tracing::warn!(%error, ?current, wanted, "cannot raise the number of open files (ulimit -n)");
    }
}

/// What a hub has after that; no limit is none.
pub(crate) fn attainable(limit: Option<u64>, hard: Option<u64>) -> u64 {
    let raised = hard.map_or(REASONABLE, |hard| hard.min(REASONABLE));
    limit.map_or(u64::MAX, |limit| limit.max(raised))
}
