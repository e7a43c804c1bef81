//! The locked memory that the job needs, and huge pages. This module judges facts that other modules read.

use crate::doctor::check::Check;
use crate::doctor::facts::{HugePages, Memlock};
use crate::doctor::job::Job;

/// Judges whether the kernel lets the hub register the job's windows. `window_bytes` has the bytes of one
/// window of a worker (all its gradients, or all its weights), added over all NICs.
pub(crate) fn memlock(job: &Job, nics: usize, window_bytes: u64, facts: &Memlock) -> Check {
    const NAME: &str = "memlock";
    let Memlock { limit, hard, capable, first_namespace } = facts;
    if nics == 0 {
        return Check::note(NAME, "nothing is locked without RDMA");
    }
    let needed = job.registered_bytes(window_bytes);
    let sum = format!(
        "{} with {} workers registers {needed} bytes (for each worker, on {nics} NICs together: {window_bytes} bytes of gradients and as many bytes of weights)",
        job.name, job.workers
    );
    let Some(limit) = *limit else {
        return Check::pass(NAME, format!("{sum}; RLIMIT_MEMLOCK is unlimited"));
    };
    if *capable && *first_namespace {
        return Check::pass(
            NAME,
            format!("{sum}; with CAP_IPC_LOCK, RLIMIT_MEMLOCK ({limit} bytes) does not count"),
        );
    }
    if limit >= needed {
        return Check::pass(NAME, format!("{sum}; RLIMIT_MEMLOCK is {limit} bytes"));
    }
    let hard = hard.map_or("no hard limit".to_owned(), |hard| format!("hard limit {hard}"));
    let capability = if *capable {
        "; CAP_IPC_LOCK of a container's own user namespace does not count"
    } else {
        "; no CAP_IPC_LOCK"
    };
    let seen = format!("{sum}; RLIMIT_MEMLOCK is {limit} bytes ({hard}){capability}");
    Check::fail(
        NAME,
        seen,
        "ulimit -l unlimited in the shell (beyond a hard limit: memlock in /etc/security/limits.conf)\n\
         LimitMEMLOCK=infinity in a systemd unit\n\
         docker run --ulimit memlock=-1 in a container\n\
         the capability: setcap cap_ipc_lock=ep on the program, docker run --cap-add IPC_LOCK",
    )
}

/// Judges the huge pages of windows, with a warning at worst. `nodes` has the node of each lane of the hub.
pub(crate) fn window_pages(job: &Job, nodes: &[u32], facts: &HugePages) -> Check {
    const NAME: &str = "huge pages of windows";
    let setting = facts.shared.as_deref().unwrap_or("not there");
    let (bytes, huge) = job.huge_bytes(nodes);
    let of_nodes = match nodes.iter().all(|node| *node == nodes[0]) {
        true => String::new(),
        false => {
            let name = &job.name;
            format!(
                "; {huge} of {bytes} bytes of each window of {name} get huge pages: the neighbouring chunks there are on one NUMA node"
            )
        }
    };
    let on = ["always", "within_size", "advise", "force"].contains(&setting);
    match (on, facts.windows) {
        (true, _) => Check::pass(NAME, format!("given (shmem_enabled is {setting}){of_nodes}")),
        (false, true) => Check::pass(
            NAME,
            format!("made by MADV_COLLAPSE (shmem_enabled is {setting}, which does not matter){of_nodes}"),
        ),
        (false, false) => Check::warn(
            NAME,
            format!(
                "none: shmem_enabled is {setting}, and MADV_COLLAPSE (Linux 6.1) makes none here; the hub is some percent slower"
            ),
            format!("as root: echo advise > {}", fabric::SHARED_HUGE_PAGES),
        ),
    }
}

/// Judges the huge pages of the hub's own memory: weights in f32, and optimizer state.
pub(crate) fn private_pages(facts: &HugePages) -> Check {
    const NAME: &str = "huge pages of the hub";
    match facts.private.as_deref() {
        Some(setting @ ("always" | "madvise")) => {
            Check::pass(NAME, format!("given (transparent_hugepage is {setting})"))
        }
        setting => Check::warn(
            NAME,
            format!(
                "none: transparent_hugepage is {}; the hub is some percent slower",
                setting.unwrap_or("not there")
            ),
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::check::Verdict;
    use pbox_core::Key;

    const JOB_BYTES: u64 = 4 * 2 * 1000;

    fn job() -> Job {
        Job::new("small".into(), vec![Key::f32("a", [1])], 4).unwrap()
    }

    fn judge(limit: Option<u64>, capable: bool, first_namespace: bool) -> Check {
        memlock(&job(), 2, 1000, &Memlock { limit, hard: limit, capable, first_namespace })
    }

    #[test]
    fn a_limit_is_held_against_what_the_job_registers() {
        assert_eq!(judge(Some(JOB_BYTES), false, true).verdict, Verdict::Pass);
        assert_eq!(judge(None, false, true).verdict, Verdict::Pass);
        let short = judge(Some(JOB_BYTES - 1), false, true);
        assert_eq!(short.verdict, Verdict::Fail);
        for word in ["registers 8000 bytes", "RLIMIT_MEMLOCK is 7999 bytes", "no CAP_IPC_LOCK"] {
            assert!(short.seen.contains(word), "{short:?} lacks {word:?}");
        }
        for word in ["ulimit -l unlimited", "LimitMEMLOCK=infinity", "--ulimit memlock=-1", "IPC_LOCK"] {
            assert!(short.fix.as_ref().unwrap().contains(word), "{short:?} lacks {word:?}");
        }
    }

    #[test]
    fn a_capability_counts_where_it_is_the_machines() {
        assert_eq!(judge(Some(0), true, true).verdict, Verdict::Pass);
        let rootless = judge(Some(0), true, false);
        assert_eq!(rootless.verdict, Verdict::Fail);
        assert!(rootless.seen.contains("user namespace does not count"), "{rootless:?}");
    }

    #[test]
    fn without_rdma_nothing_is_locked() {
        let none = Memlock { limit: Some(0), hard: Some(0), capable: false, first_namespace: true };
        assert_eq!(memlock(&job(), 0, 0, &none).verdict, Verdict::Note);
    }

    #[test]
    fn huge_pages_are_warned_of_at_most() {
        let pages = |shared: Option<&str>, windows, private: Option<&str>| {
            let facts =
                HugePages { shared: shared.map(Into::into), private: private.map(Into::into), windows };
            (window_pages(&job(), &[0, 0], &facts).verdict, private_pages(&facts).verdict)
        };
        assert_eq!(pages(Some("advise"), true, Some("madvise")), (Verdict::Pass, Verdict::Pass));
        assert_eq!(pages(Some("never"), true, Some("always")), (Verdict::Pass, Verdict::Pass));
        assert_eq!(pages(Some("never"), false, Some("never")), (Verdict::Warn, Verdict::Warn));
        assert_eq!(pages(None, false, None), (Verdict::Warn, Verdict::Warn));
        let facts = HugePages { shared: Some("never".into()), private: None, windows: true };
        let seen = |nodes: [u32; 2]| window_pages(&job(), &nodes, &facts).seen;
        assert!(seen([0, 1]).contains("; 0 of 64 bytes of each window of small"), "{}", seen([0, 1]));
        assert!(!seen([1, 1]).contains("bytes"), "{}", seen([1, 1]));
        let facts = HugePages { shared: Some("never".into()), private: None, windows: false };
        assert!(window_pages(&job(), &[0, 0], &facts).fix.unwrap().contains("echo advise > /sys/kernel/mm"));
    }
}
