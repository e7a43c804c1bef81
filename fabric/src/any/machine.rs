//! Which machine this is, so that two processes know whether they share one.

/// The running kernel's own name for this boot; empty where it does not say. Two processes with the same name
/// have the same kernel, though containers may keep them apart.
pub fn machine() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
