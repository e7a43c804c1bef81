//! Facts from /proc, /sys and the limits of this process. Only this file reads them, so the judgements can be
//! tested with made-up facts.

use std::fs::read_to_string;

use rustix::process::{Resource, Rlimit, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use topology::cpulist;

/// The facts about locked memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memlock {
    /// RLIMIT_MEMLOCK; `None` means no limit.
    pub limit: Option<u64>,
    /// The value to which this process may raise the limit.
    pub hard: Option<u64>,
    /// Whether CAP_IPC_LOCK is effective.
    pub capable: bool,
    /// Whether the capabilities are those of the machine's first user namespace. Drivers ignore the
    /// capabilities of any other user namespace.
    pub first_namespace: bool,
}

impl Memlock {
    pub fn read() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Memlock);
        let map = read_to_string("/proc/self/uid_map").unwrap_or_default();
        Memlock {
            limit: current,
            hard: maximum,
            capable: capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK)),
            first_namespace: map.split_whitespace().eq(["0", "0", "4294967295"]),
        }
    }
}

/// The facts about huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HugePages {
    /// The setting for shared memory: the word that its file has in brackets. `None` if the kernel has no
    /// such setting.
    pub shared: Option<String>,
    /// The setting for private memory.
    pub private: Option<String>,
    /// Whether a window gets huge pages.
    pub windows: bool,
}

impl HugePages {
    pub fn read() -> Self {
        let chosen = |path: &str| chosen(&read_to_string(path).ok()?);
        HugePages {
            shared: chosen(fabric::SHARED_HUGE_PAGES),
            private: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            windows: fabric::shared_huge_pages(),
        }
    }
}

/// Returns the word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// The facts about NUMA balancing, with which the kernel moves pages between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Balancing {
    /// The setting `kernel.numa_balancing`. `None` if the kernel has no such setting.
    pub setting: Option<String>,
    /// Whether memory of this program has a NUMA policy. If it has, the kernel does not move the program's
    /// pages.
    pub has_policy: bool,
}

impl Balancing {
    pub fn read() -> Self {
        let setting = read_to_string("/proc/sys/kernel/numa_balancing").ok();
        let _memory = fabric::Slab::zeroed("the doctor's memory", 1);
        let maps = read_to_string("/proc/self/numa_maps").unwrap_or_default();
        Balancing { setting: setting.map(|text| text.trim().to_owned()), has_policy: has_local(&maps) }
    }
}

/// Whether a mapping in numa_maps has the policy that the hub gives its memory.
fn has_local(maps: &str) -> bool {
    maps.lines().any(|line| line.split(' ').nth(1) == Some("local"))
}

/// The other threads that may run on each cpu, and the governors of the cpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus {
    pub online: Vec<u32>,
    /// The cpus in the cpuset and affinity of this process.
    pub allowed: Vec<u32>,
    /// The cpus without other work: isolcpus, or an isolated cpuset.
    pub isolated: Vec<u32>,
    /// The cpus without a periodic tick.
    pub tickless: Vec<u32>,
    /// The governor of each cpu, if sysfs has it.
    pub governors: Vec<(u32, String)>,
}

impl Cpus {
    /// Reads the facts. `allowed` comes from the topology.
    pub fn read(allowed: Vec<u32>) -> Self {
        let list = |path: &str| read_to_string(path).ok().and_then(|text| cpulist::parse(&text));
        let online = list("/sys/devices/system/cpu/online").unwrap_or_else(|| allowed.clone());
        let mut isolated = list("/sys/devices/system/cpu/isolated").unwrap_or_default();
        isolated.extend(list("/sys/fs/cgroup/cpuset.cpus.isolated").unwrap_or_default());
        isolated.sort_unstable();
        isolated.dedup();
        let governor = |&cpu: &u32| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
            Some((cpu, read_to_string(path).ok()?.trim().to_owned()))
        };
        let governors = online.iter().filter_map(governor).collect();
        let tickless = list("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
        Cpus { online, allowed, isolated, tickless, governors }
    }
}

/// RDMA according to the kernel, independent of libibverbs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelRdma {
    /// The devices, by name.
    pub devices: Vec<String>,
    /// Whether programs can use the devices: ib_uverbs is loaded.
    pub for_programs: bool,
}

impl KernelRdma {
    pub fn read() -> Self {
        let names = |path| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            let mut names: Vec<String> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort_unstable();
            names
        };
        let verbs = names("/sys/class/infiniband_verbs");
        KernelRdma {
            devices: names("/sys/class/infiniband"),
            for_programs: verbs.iter().any(|name| name.starts_with("uverbs")),
        }
    }
}

/// Returns the mapped files whose paths contain this text.
pub(crate) fn loaded(of: &str) -> Vec<String> {
    loaded_in(&read_to_string("/proc/self/maps").unwrap_or_default(), of)
}

fn loaded_in(maps: &str, of: &str) -> Vec<String> {
    let mut found = Vec::new();
    for path in maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])) {
        if path.contains(of) && !found.iter().any(|known| known == path) {
            found.push(path.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_seen_in_the_list_of_mappings() {
        let list = "564417cfb000 default file=/local/head mapped=2 N0=2\n7f0000000000 local anon=1 N0=1\n";
        assert!(has_local(list) && !has_local(list.lines().next().unwrap()));
        let status = read_to_string("/proc/self/status").unwrap();
        // Checks nothing under a filter of system calls, as in a container, because the filter may refuse the
        // policy.
        if status.contains("Seccomp:\t0") && std::path::Path::new("/proc/self/numa_maps").exists() {
            assert!(Balancing::read().has_policy);
        }
    }

    #[test]
    fn the_kernels_words_are_read() {
        assert_eq!(chosen("always within_size advise [never] deny force\n").as_deref(), Some("never"));
        assert_eq!(chosen("garbage"), None);
    }

    #[test]
    fn a_library_is_named_once() {
        let maps = "7f0-7f1 r-xp 0 fe:00 1 /usr/lib/libibverbs.so.1.14\n7f1-7f2 r--p 0 fe:00 1 /usr/lib/libibverbs.so.1.14\n7f3-7f4 r--p 0 fe:00 2 /usr/lib/libibverbs/librxe-rdmav34.so\n7ff-800 rw-p 0 00:00 0 [stack]\n";
        assert_eq!(loaded_in(maps, "/libibverbs.so"), ["/usr/lib/libibverbs.so.1.14"]);
        assert_eq!(loaded_in(maps, "libmlx5"), [""; 0]);
    }
}
