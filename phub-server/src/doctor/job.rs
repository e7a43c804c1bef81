//! The doctor's job: the size of its windows, and the memory that a hub registers for them. Pure.

use pbox_core::{DEFAULT_CHUNK_BYTES, Key, Layout, LayoutError};

/// The job that memory, cpus and descriptors must suffice for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub name: String,
    pub workers: u32,
    /// Bytes of one copy of the gradients, and of the weights. Whole pages, as the kernel pins them.
    pub window_bytes: u64,
}

impl Job {
    pub fn new(name: String, keys: Vec<Key>, workers: u32) -> Result<Self, LayoutError> {
        let layout = Layout::new(keys, DEFAULT_CHUNK_BYTES)?;
        let window_bytes = layout.window_bytes().next_multiple_of(rustix::param::page_size());
        Ok(Job { name, workers, window_bytes: window_bytes as u64 })
    }

    /// The bytes that the hub registers, as the kernel counts them. A connection has its own protection domain on each NIC,
    /// in which the worker's gradients and the weights are registered once (decision 12).
    pub fn registered_bytes(&self, nics: usize) -> u64 {
        const WINDOWS: u64 = 2;
        let connections = u64::from(self.workers).saturating_mul(nics as u64);
        connections.saturating_mul(WINDOWS).saturating_mul(self.window_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_and_nic_registers_both_windows() {
        let job = Job::new("two".into(), vec![Key::f32("a", [1024]), Key::f32("b", [1])], 3).unwrap();
        let page = rustix::param::page_size() as u64;
        assert_eq!(job.window_bytes, (4096 + 4_u64).next_multiple_of(page));
        assert_eq!(job.registered_bytes(4), 3 * 4 * 2 * job.window_bytes);
        assert_eq!(job.registered_bytes(0), 0);
    }
}
