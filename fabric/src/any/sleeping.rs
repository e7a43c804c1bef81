//! Sleep on several transports at once. Shared memory has a bell, which a peer rings by a futex; the other transports
//! have descriptors. The port sleeps on its bell, and the group's watch rings the bell when a descriptor is readable.
//! This wakes one thread more than a sleep on a single transport.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::port::Port;
use crate::port::Until;
use crate::watch::{Register, Watched};
use crate::{shm, tcp, verbs};

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
    /// An alarm that watches `fds` for a port of `group` and wakes the port by `waker`.
    pub fn new<'a>(
        group: &Arc<shm::Group>,
        waker: Waker,
        fds: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> std::io::Result<Self> {
        let register = Arc::clone(group.watch.register());
        let ringer = Arc::new(Ringer { number: register.number(), register, waker });
        let watched: Arc<dyn Watched> = ringer.clone();
        for fd in fds {
            group.watch.add_once(ringer.number, fd, &watched)?;
        }
        Ok(Alarm { group: Arc::clone(group), ringer })
    }

    /// Asks that the next event of one of these descriptors rings the bell. False when the kernel refuses.
    fn set<'a>(&self, mut fds: impl Iterator<Item = BorrowedFd<'a>>) -> bool {
        fds.all(|fd| self.group.watch.once_more(self.ringer.number, fd).is_ok())
    }
}

/// The descriptors of a port's other transports.
pub(super) fn fds<'a>(
    tcp: &'a tcp::Port,
    verbs: Option<&'a verbs::Port>,
) -> impl Iterator<Item = BorrowedFd<'a>> {
    std::iter::once(tcp.fd()).chain(verbs.into_iter().flat_map(verbs::Port::fds))
}

impl Port {
    /// Sleeps until there is something on any transport.
    pub(super) fn wait_for_all(&mut self, on_shm: Until, on_verbs: Until, timeout: Duration) {
        let Port { shm, tcp, verbs, alarm, .. } = self;
        shm.wait_beside(on_shm, timeout, || {
            tcp.arm()
                || verbs.as_mut().is_some_and(|port| port.arm(on_verbs))
                // Without the alarm nothing would end the sleep.
                || !alarm.set(fds(tcp, verbs.as_ref()))
        });
        if let Some(port) = verbs {
            port.slept();
        }
    }
}
