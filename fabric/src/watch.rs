//! The watch: one thread per group that sleeps on the sockets of all its connections. When a connection ends,
//! the watch notifies the connection's ports. So a port learns of a peer's death without a system call of its
//! own, and an idle port costs nothing. The watch also notifies a NIC's owner of the NIC's events. The watch
//! names descriptors by number, and does not depend on their owners.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// The key of the event that stops the thread. Watched descriptors have numbers from one.
const STOP: u64 = 0;

/// The owner of a descriptor that the watch sleeps on.
pub(crate) trait Watched: Send + Sync + std::fmt::Debug {
    /// Handles a descriptor that is readable or ended. The watch's thread calls this method.
    fn ready(&self);
}

/// The events that mean the end of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketEvents {
    /// Any event. The peer sends nothing after the handshake, so any event is the end.
    Any,
    /// The event that a connection is shut in both directions, no matter which end shut it.
    HangUp,
}

type Numbered = (u64, HashMap<u64, Weak<dyn Watched>>);

/// The watched owners, by number. Each owner removes itself when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Register {
    numbered: Mutex<Numbered>,
}

impl Register {
    fn lock(&self) -> std::sync::MutexGuard<'_, Numbered> {
        self.numbered.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns a number for a new owner.
    pub fn number(&self) -> u64 {
        let mut inner = self.lock();
        inner.0 += 1;
        inner.0
    }

    pub fn leave(&self, number: u64) {
        self.lock().1.remove(&number);
    }

    fn find(&self, number: u64) -> Option<Arc<dyn Watched>> {
        self.lock().1.get(&number)?.upgrade()
    }
}

#[derive(Debug)]
pub(crate) struct Watch {
    epoll: Arc<OwnedFd>,
    stop: OwnedFd,
    register: Arc<Register>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start() -> std::io::Result<Self> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&*epoll, &stop, epoll::EventData::new_u64(STOP), EventFlags::IN)?;
        let register = Arc::new(Register::default());
        let thread = {
            let (epoll, register) = (Arc::clone(&epoll), Arc::clone(&register));
            std::thread::Builder::new().name("phub-watch".into()).spawn(move || run(&epoll, &register))?
        };
        Ok(Watch { epoll, stop, register, thread: Some(thread) })
    }

    pub fn register(&self) -> &Arc<Register> {
        &self.register
    }

    /// Watches a socket until it ends or its owner is dropped.
    pub fn add_socket(
        &self,
        number: u64,
        fd: impl AsFd,
        owner: &Arc<dyn Watched>,
        events: SocketEvents,
    ) -> std::io::Result<()> {
        let events = match events {
            SocketEvents::Any => EventFlags::IN | EventFlags::RDHUP,
            SocketEvents::HangUp => EventFlags::empty(), // epoll always reports a hang-up
        };
        self.add(number, fd, owner, events | EventFlags::ONESHOT)
    }

    /// Watches a descriptor. Its owner must read all events at each call of `ready`.
    pub fn add_events(&self, number: u64, fd: impl AsFd, owner: &Arc<dyn Watched>) -> std::io::Result<()> {
        self.add(number, fd, owner, EventFlags::IN)
    }

    fn add(
        &self,
        number: u64,
        fd: impl AsFd,
        owner: &Arc<dyn Watched>,
        flags: EventFlags,
    ) -> std::io::Result<()> {
        self.register.lock().1.insert(number, Arc::downgrade(owner));
        epoll::add(&*self.epoll, fd, epoll::EventData::new_u64(number), flags)?;
        Ok(())
    }
}

fn run(epoll: &OwnedFd, register: &Register) {
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => unreachable!("epoll_wait on our own epoll: {errno}"),
        }
        for event in &events {
            match event.data.u64() {
                STOP => return,
                number => {
                    if let Some(owner) = register.find(number) {
                        owner.ready();
                    }
                }
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The watch's own thread can drop the last reference to a group, through `find`. That thread
            // cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
