//! The identity of this machine, by which two processes know whether they run on the same machine.

/// Returns the running kernel's name for this boot, or an empty string if the kernel does not give it. Two
/// processes with the same name run on the same kernel, though containers may separate them.
pub fn machine() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
