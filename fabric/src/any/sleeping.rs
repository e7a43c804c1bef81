//! Sleep on several transports at once. Shared memory has a bell, which a peer rings by a futex; the others have
//! descriptors. The port sleeps on its bell, and the group's watch rings it when a descriptor has something:
//! one more thread to wake than where a port has one transport alone.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::port::Port;
use crate::port::Until;
use crate::shm;
use crate::watch::{Register, Watched};

/// What rings a port's bell for the descriptors of its other transports.
#[derive(Debug)]
pub(super) struct Alarm {
    group: Arc<shm::Group>,
    ringer: Arc<Ringer>,
}

#[derive(Debug)]
struct Ringer {
    number: u64,
    register: Arc<Register>,
    waker: Waker,
}

impl Watched for Ringer {
    fn ready(&self) {
        self.waker.wake_by_ref();
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.register.leave(self.number);
    }
}

impl Alarm {
    /// An alarm for the bell behind `waker`, a port of `group`, which looks at `fd`.
    pub fn new(group: &Arc<shm::Group>, waker: Waker, fd: std::os::fd::BorrowedFd) -> std::io::Result<Self> {
        let register = Arc::clone(group.watch.register());
        let ringer = Arc::new(Ringer { number: register.number(), register, waker });
        let watched: Arc<dyn Watched> = ringer.clone();
        group.watch.add_once(ringer.number, fd, &watched)?;
        Ok(Alarm { group: Arc::clone(group), ringer })
    }

    /// The next thing that the descriptor has to say rings the bell; false where that cannot be had.
    fn set(&self, fd: std::os::fd::BorrowedFd) -> bool {
        self.group.watch.once_more(self.ringer.number, fd).is_ok()
    }
}

impl Port {
    /// Sleeps until there is something on any transport.
    pub(super) fn wait_for_all(&mut self, until: Until, timeout: Duration) {
        let Port { shm, tcp, alarm, .. } = self;
        // An alarm that cannot be set is a sleep that must not be.
        shm.wait_beside(until, timeout, || tcp.arm() || !alarm.set(tcp.fd()));
    }
}
