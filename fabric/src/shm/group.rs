//! A group: the ports of one process or one hub, their bells, and the watch over their connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Wake;

use super::cells::{Bell, Words};
use super::futex;
use super::port::Port;
use crate::connection::Alarm;
use crate::ring::bell;
use crate::watch::Watch;

/// What a port shares with the other threads of its process.
#[derive(Debug)]
pub(super) struct PortState {
    pub bell: Bell,
    /// Somebody woke the port's waker since it last slept.
    pub woken: AtomicBool,
    /// Counts connections of this port that ended.
    pub deaths: AtomicU32,
}

impl PortState {
    /// Wakes the port if it sleeps; the caller has stored its reason before. It does not ask the
    /// word whether anybody sleeps: a peer that was killed between clearing the word and waking the
    /// sleeper, or a hostile one, leaves a sleeper behind a clear word. This is rare enough to pay
    /// for a system call each time.
    pub fn ring(&self) {
        bell::published();
        bell::awake(self.bell.asleep());
        futex::wake(self.bell.asleep());
    }
}

impl Alarm for PortState {
    fn ended(&self) {
        self.deaths.fetch_add(1, Ordering::Release); // [death]
        self.ring();
    }
}

impl Wake for PortState {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release); // [woken]
        self.ring();
    }
}

/// The ports of one end, as the handshake sees them. A connection has one link for each pair of
/// ports of both ends.
#[derive(Debug)]
pub struct Group {
    pub(super) bells: Arc<Words>,
    pub(super) ports: Vec<Arc<PortState>>,
    pub(crate) watch: Watch,
}

/// Makes `ports` ports that connect together: one a core at the hub, one at a worker.
///
/// # Errors
/// When memory, file descriptors or threads run out.
pub fn group(ports: usize) -> std::io::Result<(Arc<Group>, Vec<Port>)> {
    assert!(ports > 0, "a group has at least one port");
    let bells = Words::new("bells", Bell::bytes(ports)).map_err(std::io::Error::other)?;
    let states: Vec<_> = (0..ports)
        .map(|index| {
            Arc::new(PortState {
                bell: Bell::new(&bells, index),
                woken: AtomicBool::new(false),
                deaths: AtomicU32::new(0),
            })
        })
        .collect();
    let group = Arc::new(Group { bells, ports: states, watch: Watch::start()? });
    let ports = group.ports.iter().map(|state| Port::new(Arc::clone(&group), Arc::clone(state))).collect();
    Ok((group, ports))
}
