//! The memory that this process may still use: the minimum of the machine's available memory and of what the
//! limit of each control group leaves.
//!
//! A control group (cgroup) is a directory. Its limit holds for all processes in the directory and below it.
//! So the limits of the groups above this process's group count, too:
//!
//! ```text
//!   version 2   memory.max, memory.high     less memory.current
//!   version 1   memory.limit_in_bytes       less memory.usage_in_bytes
//! ```
//!
//! Pages of files that the kernel would drop first (`inactive_file`) count as free, as they do in the
//! machine's `MemAvailable`.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::Amount;

/// The memory that this process may still use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRoom {
    /// The number of bytes.
    pub bytes: u64,
    /// The bound that leaves this number of bytes.
    pub bound: MemoryBound,
}

/// The bounds of a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    /// The machine's available memory.
    Machine,
    /// The limit of a control group.
    Group {
        /// The file with the limit.
        file: PathBuf,
        /// The limit.
        limit: u64,
    },
}

impl fmt::Display for MemoryRoom {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bound {
            MemoryBound::Machine => write!(out, "this machine has {} available", Amount(self.bytes)),
            MemoryBound::Group { file, limit } => write!(
                out,
                "the control group's limit of {} ({}) leaves {}",
                Amount(*limit),
                file.display(),
                Amount(self.bytes)
            ),
        }
    }
}

/// Returns the memory that this process may still use, with its bound. Returns `None` if the kernel does not
/// report it.
pub fn memory_room() -> Option<MemoryRoom> {
    room_in(Path::new("/"))
}

/// Returns the number of bytes that this process may still use. Returns `None` if the kernel does not report
/// it.
pub fn available_bytes() -> Option<u64> {
    memory_room().map(|room| room.bytes)
}

/// Works like [`memory_room`], with the files below `root`.
fn room_in(root: &Path) -> Option<MemoryRoom> {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = number_of(&text("proc/meminfo"), "MemAvailable:");
    let machine = machine.map(|kib| MemoryRoom { bytes: kib * 1024, bound: MemoryBound::Machine });
    let groups = groups(&text("proc/self/cgroup"), &text("proc/self/mountinfo"));
    let groups = groups.iter().flat_map(|group| limits(root, group));
    machine.into_iter().chain(groups).min_by_key(|room| room.bytes)
}

/// Returns the directories of the control groups that may limit this process's memory: its own groups, and
/// all visible groups above them.
fn groups(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    for mount in mountinfo.lines() {
        // A line has the form: 36 35 0:31 ROOT POINT options ... - TYPE source OPTIONS
        let Some((of_mount, of_system)) = mount.split_once(" - ") else { continue };
        let mut fields = of_mount.split(' ').skip(3);
        let (Some(top), Some(point)) = (fields.next(), fields.next()) else { continue };
        let mut system = of_system.split(' ');
        let is_named = |list: &str| list.split(',').any(|name| name == "memory");
        let controllers = match system.next() {
            Some("cgroup2") => "",
            Some("cgroup") if system.nth(1).is_some_and(is_named) => "memory",
            _ => continue,
        };
        // A line has the form 4:memory:PATH in version 1, and 0::PATH in version 2.
        let of_this = |line: &&str| {
            let named = line.split(':').nth(1).unwrap_or_default();
            if controllers.is_empty() { named.is_empty() } else { is_named(named) }
        };
        let Some(line) = cgroup.lines().find(of_this) else { continue };
        let path = Path::new(line.splitn(3, ':').nth(2).unwrap_or("/"));
        // In a container, the mount may show the container's own group as its top, and not the path in /proc.
        let below = path.strip_prefix(top).unwrap_or(Path::new(""));
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        let below = if is_plain { below } else { Path::new("") };
        let group = Path::new(point).join(below);
        groups.extend(group.ancestors().take_while(|group| group.starts_with(point)).map(PathBuf::from));
    }
    groups
}

/// Returns the memory that each limit of a group leaves.
fn limits<'a>(root: &'a Path, group: &'a Path) -> impl Iterator<Item = MemoryRoom> + 'a {
    let read = move |name: &str| {
        let directory = root.join(group.strip_prefix("/").unwrap_or(group));
        std::fs::read_to_string(directory.join(name)).ok()
    };
    let number = move |name: &str| read(name)?.trim().parse::<u64>().ok(); // "max" means no limit
    let used = move |name: &str| {
        let stat = read("memory.stat").unwrap_or_default();
        let cache = number_of(&stat, "total_inactive_file").or(number_of(&stat, "inactive_file"));
        Some(number(name)?.saturating_sub(cache.unwrap_or(0)))
    };
    let files = [
        ("memory.max", "memory.current"),
        ("memory.high", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ];
    files.into_iter().filter_map(move |(file, usage)| {
        let limit = number(file)?;
        let bytes = limit.saturating_sub(used(usage)?);
        Some(MemoryRoom { bytes, bound: MemoryBound::Group { file: group.join(file), limit } })
    })
}

/// Returns the number after a name at the start of a line.
fn number_of(text: &str, name: &str) -> Option<u64> {
    let fields = |line: &'_ str| line.split_ascii_whitespace().next() == Some(name);
    text.lines().find(|line| fields(line))?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns a tree of files with these contents, on a machine with 8 GiB available.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for &(path, text) in
            [("proc/meminfo", "MemFree: 5 kB\nMemAvailable:    8388608 kB\n")].iter().chain(files)
        {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn group(file: &str, limit: u64) -> MemoryBound {
        MemoryBound::Group { file: file.into(), limit }
    }

    const V2: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

    #[test]
    fn without_a_group_the_machine_is_the_bound() {
        let root = tree(&[]);
        assert_eq!(room_in(root.path()), Some(MemoryRoom { bytes: 8 << 30, bound: MemoryBound::Machine }));
        let groups_without_a_limit = [
            ("proc/self/cgroup", "0::/user/hub\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/user/hub/memory.max", "max\n"),
            ("sys/fs/cgroup/user/hub/memory.current", "4096\n"),
        ];
        assert_eq!(room_in(tree(&groups_without_a_limit).path()).unwrap().bound, MemoryBound::Machine);
        assert_eq!(room_in(&root.path().join("nothing")), None);
    }

    #[test]
    fn the_tightest_of_all_groups_above_is_the_bound() {
        let mut files = vec![
            ("proc/self/cgroup", "0::/user/hub\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/user/hub/memory.max", "2147483648"),
            ("sys/fs/cgroup/user/hub/memory.high", "max"),
            ("sys/fs/cgroup/user/hub/memory.current", "104857600"),
            ("sys/fs/cgroup/user/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/user/memory.current", "629145600\n"),
            ("sys/fs/cgroup/user/memory.stat", "anon 9\ninactive_file 104857600\nactive_file 7\n"),
        ];
        let room = room_in(tree(&files).path()).unwrap();
        let of_the_parent = group("/sys/fs/cgroup/user/memory.max", 1 << 30);
        assert_eq!(room, MemoryRoom { bytes: 1024 * MIB - 600 * MIB + 100 * MIB, bound: of_the_parent });
        files[3].1 = "209715200";
        let room = room_in(tree(&files).path()).unwrap();
        let of_its_own = group("/sys/fs/cgroup/user/hub/memory.high", 200 * MIB);
        assert_eq!(room, MemoryRoom { bytes: 100 * MIB, bound: of_its_own });
        let said = room.to_string();
        assert!(
            said.contains("0.21 GB") && said.contains("memory.high") && said.contains("leaves 0.10 GB"),
            "{said}"
        );
    }

    #[test]
    fn version_1_has_its_own_files_and_mounts() {
        let mounts = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("proc/self/cgroup", "5:cpu:/other\n4:memory:/jobs/hub\n0::/\n"),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "1"),
            ("sys/fs/cgroup/memory/jobs/hub/memory.limit_in_bytes", "1073741824"),
            ("sys/fs/cgroup/memory/jobs/hub/memory.usage_in_bytes", "1073741000"),
            ("sys/fs/cgroup/memory/jobs/hub/memory.stat", "inactive_file 1\ntotal_inactive_file 176\n"),
        ];
        let bound = group("/sys/fs/cgroup/memory/jobs/hub/memory.limit_in_bytes", 1 << 30);
        assert_eq!(room_in(tree(&files).path()), Some(MemoryRoom { bytes: 1000, bound }));
    }

    /// A container mounts its own group. /proc may show the group's path on the host, or a path outside the
    /// container.
    #[test]
    fn a_container_sees_its_group_at_the_mount() {
        let bind = "30 24 0:26 /pod/7 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        for (path, mounts) in [("/pod/7", bind), ("/../../pod/7", V2), ("/elsewhere", bind)] {
            let files = [
                ("proc/self/cgroup", &*format!("0::{path}\n")),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory.max", "1000"),
                ("sys/fs/cgroup/memory.current", "2000"),
            ];
            let bound = group("/sys/fs/cgroup/memory.max", 1000);
            assert_eq!(room_in(tree(&files).path()), Some(MemoryRoom { bytes: 0, bound }), "{path}");
        }
    }
}
