//! The watch: one thread per group that sleeps on the sockets of all its connections, and tells
//! the ports when one of them ends. So a port learns of a peer's death without a system call of
//! its own, and an idle port costs nothing.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::connection::Connection;

/// Key of the event that stops the thread; connections are numbered from one.
const STOP: u64 = 0;

/// Connections by number; shared with the connections, which leave when they are dropped.
#[derive(Debug, Default)]
pub(super) struct Register {
    connections: Mutex<(u64, HashMap<u64, Weak<Connection>>)>,
}

impl Register {
    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, HashMap<u64, Weak<Connection>>)> {
        self.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A number for a connection that is being made.
    pub fn number(&self) -> u64 {
        let mut inner = self.lock();
        inner.0 += 1;
        inner.0
    }

    pub fn leave(&self, number: u64) {
        self.lock().1.remove(&number);
    }

    fn find(&self, number: u64) -> Option<Arc<Connection>> {
        self.lock().1.get(&number)?.upgrade()
    }
}

#[derive(Debug)]
pub(super) struct Watch {
    epoll: Arc<OwnedFd>,
    stop: OwnedFd,
    register: Arc<Register>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start() -> std::io::Result<Self> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&*epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
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

    /// Watches a connection until it ends or is dropped.
    pub fn add(&self, connection: &Arc<Connection>) -> std::io::Result<()> {
        self.register.lock().1.insert(connection.number, Arc::downgrade(connection));
        // Nothing is sent after the handshake: whatever the socket has to say is the end.
        epoll::add(
            &*self.epoll,
            &connection.socket,
            epoll::EventData::new_u64(connection.number),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT,
        )?;
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
                    if let Some(connection) = register.find(number) {
                        connection.died();
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
            // The last reference to a group can be dropped by the watch itself, through `find`.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
