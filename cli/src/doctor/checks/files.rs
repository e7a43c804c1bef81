//! Open files: whether the limit is enough for the job's workers. This module judges facts that other modules read.

use phub_server::open_files;
use rustix::process::Rlimit;

use crate::doctor::check::Check;

/// Judges whether the hub has enough descriptors for this number of workers. `cores` is the hub's number of
/// core threads.
pub(crate) fn open_files(workers: u32, cores: usize, limit: &Rlimit) -> Check {
    const NAME: &str = "open files";
    let needed = needed(workers, cores);
    let attainable = open_files::attainable(limit);
    let have = if attainable == u64::MAX { "any number".to_owned() } else { format!("{attainable}") };
    let seen = format!("{workers} workers need up to {needed} descriptors, and the hub's limit is {have}");
    if attainable >= needed {
        return Check::pass(NAME, seen);
    }
    Check::fail(
        NAME,
        seen,
        format!(
            "ulimit -n {needed} (beyond the hard limit: LimitNOFILE={needed} in a systemd unit, docker run --ulimit nofile={needed})"
        ),
    )
}

/// Returns an upper bound of the descriptors. The figures were counted in running hubs. An idle hub with two cores has
/// 28 descriptors. A hub with eight cores and RDMA on four NICs has 68. Handshakes and requests need some more
/// descriptors for a moment.
fn needed(workers: u32, cores: usize) -> u64 {
    let cores = cores as u64;
    let on_shared_memory = open_files::of_a_worker(cores) + 4;
    32 + 8 * cores + u64::from(workers) * on_shared_memory
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;

    #[test]
    fn a_soft_limit_is_raised_and_a_hard_one_is_not() {
        let judge = |workers, limit, hard| open_files(workers, 20, &Rlimit { current: limit, maximum: hard });
        assert_eq!(judge(4, Some(64), Some(4096)).verdict, Verdict::Pass);
        assert_eq!(judge(4, None, None).verdict, Verdict::Pass);
        let short = judge(1000, Some(1024), Some(4096));
        assert_eq!(short.verdict, Verdict::Fail);
        let needed = needed(1000, 20).to_string();
        assert!(short.seen.contains(&needed) && short.seen.contains("limit is 4096"), "{short:?}");
        assert!(short.fix.unwrap().contains(&format!("ulimit -n {needed}")));
    }
}
