//! Work for a core that its own thread should not do, because rounds would wait: touching and freeing memory.
//! The threads that do this work run on the core's NUMA node, because a page lies on the node where it is
//! touched first. They have a lower priority than the core's thread.

use fabric::{Ranges, Span};
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The niceness of threads near a core. If a core's thread is always busy, threads with this niceness get a
/// quarter of the cpu. With a smaller part, a worker would wait so long for its window that the hub would
/// count the worker as dead.
const NICE: i32 = 5;

/// Lowers the priority of the calling thread from now on.
pub fn give_way() {
    // A thread may always raise its niceness.
    let _ = setpriority_process(None, NICE);
}

/// The state of a thread that touches memory for one core after another.
pub struct Near {
    /// The cpus on which the thread may run.
    allowed: Option<CpuSet>,
}

impl Near {
    /// Lowers the priority of the calling thread from now on. Notes the cpus on which the thread may run.
    pub fn begin() -> Self {
        give_way();
        Near { allowed: sched_getaffinity(None).ok() }
    }

    /// Moves the thread to the node of a core's cpu. If the kernel does not report the node, the thread stays
    /// on its cpus.
    pub fn go_to(&self, cpu: u32) {
        let Some(allowed) = &self.allowed else { return };
        let mut set = CpuSet::new();
        for cpu in of_node(cpu).into_iter().filter(|&cpu| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu)) {
            set.set(cpu);
        }
        if set.count() > 0 {
            let _ = sched_setaffinity(None, &set);
        }
    }

    /// Makes the pages of a new window huge, in ranges that each belong to one node. `cores` has each core's
    /// cpu, and its byte ranges in the window. `collapse` is a method of the window: it takes the ranges of
    /// each node, and a function that moves this thread to a node.
    pub fn huge_pages(
        &self,
        cores: impl IntoIterator<Item = (u32, Vec<Span>)>,
        collapse: impl FnOnce(&[Ranges], &mut dyn FnMut(usize)) -> usize,
    ) {
        let (cpus, ranges): (Vec<u32>, Vec<Ranges>) = by_node(cores, of_node).into_iter().unzip();
        let bytes = collapse(&ranges, &mut |node| self.go_to(cpus[node]));
        tracing::debug!(bytes, nodes = cpus.len(), "huge pages of a window");
    }
}

/// Returns the ranges of each node, and one cpu of the node. `node` returns the node of a cpu.
fn by_node<N: PartialEq>(
    cores: impl IntoIterator<Item = (u32, Vec<Span>)>,
    node: impl Fn(u32) -> N,
) -> Vec<(u32, Ranges)> {
    let mut nodes: Vec<(N, u32, Vec<Span>)> = Vec::new();
    for (cpu, spans) in cores {
        let of = node(cpu);
        match nodes.iter_mut().find(|(known, ..)| *known == of) {
            Some((_, _, known)) => known.extend(spans),
            None => nodes.push((of, cpu, spans)),
        }
    }
    nodes.into_iter().map(|(_, cpu, spans)| (cpu, spans.into_iter().collect())).collect()
}

fn of_node(cpu: u32) -> Vec<usize> {
    let Ok(entries) = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")) else {
        return Vec::new();
    };
    let is_node = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("node");
    let node = entries.flatten().find(is_node).map(|entry| entry.path().join("cpulist"));
    cpus(&node.and_then(|list| std::fs::read_to_string(list).ok()).unwrap_or_default())
}

/// Parses the kernel's list of cpus, like 0-3,8.
fn cpus(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_node_are_one_range_whatever_their_cores() {
        let spans = |offsets: &[usize]| offsets.iter().map(|&offset| Span { offset, bytes: 4096 }).collect();
        let cores = [(0, spans(&[0, 16384])), (4, spans(&[8192])), (1, spans(&[4096])), (5, spans(&[12288]))];
        let [(first, left), (second, right)] = &by_node(cores, |cpu| cpu / 4)[..] else {
            panic!("two nodes")
        };
        let ranges =
            |ranges: &Ranges| ranges.iter().map(|range| (range.offset, range.bytes)).collect::<Vec<_>>();
        assert_eq!((*first, ranges(left)), (0, vec![(0, 8192), (16384, 4096)]));
        assert_eq!((*second, ranges(right)), (4, vec![(8192, 8192)]));
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(cpus("").is_empty());
    }

    #[test]
    fn the_thread_stays_on_cpus_that_it_may_use() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let near = Near::begin();
            for cpu in 0..4 {
                near.go_to(cpu);
                let now = sched_getaffinity(None).unwrap();
                assert!(now.count() > 0);
                assert!((0..CpuSet::MAX_CPU).all(|cpu| !now.is_set(cpu) || before.is_set(cpu)));
            }
        })
        .join()
        .unwrap();
    }
}
