//! Sleep on several transports at once, in TCP's epoll. The epoll also watches RDMA's descriptors, and the
//! descriptors by which peers on shared memory wake the port. A port with links only on shared memory sleeps
//! on its futex, which is cheaper.

use std::time::Duration;

use super::port::Port;
use crate::port::{Port as _, Until};
use crate::{shm, tcp, verbs};

/// Prepares the port over TCP to sleep until an event of the other transports' ports, too. Called once.
pub(super) fn sleep_together(
    shm: &shm::Port,
    tcp: &tcp::Port,
    verbs: Option<&verbs::Port>,
) -> std::io::Result<()> {
    shm.sleep_beside(tcp.waker());
    verbs.map_or(Ok(()), |port| tcp.sleep_beside(port.fd()))
}

impl Port {
    /// Sleeps until there is an arrival or an event on any transport.
    pub(super) fn wait_for_all(&mut self, on_shm: Until, on_verbs: Until, timeout: Duration) {
        let Port { shm, tcp, verbs, .. } = self;
        let mut rang = false;
        shm.wait_beside(on_shm, || {
            let mut linked = verbs.as_mut().filter(|port| !port.is_bare());
            if !linked.as_mut().is_some_and(|port| port.arm(on_verbs)) {
                rang = tcp.sleep(timeout);
            }
        });
        if rang {
            shm.quieten();
        }
        if let Some(port) = verbs.as_mut().filter(|port| rang || !port.is_bare()) {
            port.slept();
        }
    }
}
