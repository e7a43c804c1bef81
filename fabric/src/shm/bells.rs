//! The bells of a link: the one at which a port sleeps, and that of the peer, which the port rings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::cells::{Bell, Words};
use super::datagram::{self, Name, Receiver, Senders};
use super::futex;
use crate::plan::PortId;
use crate::port_state::Ring;
use crate::ring::AtomicU32;
use crate::ring::bell::{self, Place};

/// What a port sleeps at.
#[derive(Debug)]
pub(super) struct OwnBell {
    word: Bell,
    receiver: Receiver,
    /// Ends a sleep at descriptors, from this process.
    beside: OnceLock<Waker>,
}

impl OwnBell {
    pub fn new(word: Bell, receiver: Receiver) -> Self {
        OwnBell { word, receiver, beside: OnceLock::new() }
    }

    pub fn asleep(&self) -> &AtomicU32 {
        self.word.asleep()
    }

    /// Readable when a peer rang for a port that sleeps at descriptors.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    pub fn quieten(&self) {
        self.receiver.quieten();
    }

    /// The port sleeps at descriptors, and this waker ends such a sleep. Panics when there is one already.
    pub fn set_beside(&self, waker: Waker) {
        self.beside.set(waker).expect("a port sleeps beside one other port");
    }
}

impl Ring for OwnBell {
    /// Does not ask the word whether anybody sleeps, nor where: a peer that was killed between clearing the word and
    /// waking the sleeper, or a hostile peer, leaves a sleeper behind a clear word. This is rare enough to pay
    /// for the system calls each time.
    fn ring(&self) {
        bell::published();
        bell::awake(self.asleep());
        futex::wake(self.asleep());
        if let Some(waker) = self.beside.get() {
            waker.wake_by_ref();
        }
    }
}

/// The bells of a peer's ports.
#[derive(Debug)]
pub(super) struct PeerBells {
    words: Arc<Words>,
    senders: Senders,
}

impl PeerBells {
    /// Those of a peer with so many ports; what it handed over is checked.
    pub fn open(
        whose: &'static str,
        name: Name,
        ports: usize,
        words: OwnedFd,
        senders: Vec<OwnedFd>,
    ) -> Result<Self, String> {
        let words = Words::open(whose, words, Bell::bytes(ports))?;
        Ok(PeerBells { words, senders: Senders::open(whose, name, ports, senders)? })
    }

    /// The bell of a port. Panics when the peer has no such port.
    pub fn of(&self, port: PortId) -> PeerBell {
        let waker = Box::new(self.senders.waker(port.index()));
        PeerBell { word: Bell::new(&self.words, port.index()), waker }
    }
}

/// The bell of a port that a link leads to.
#[derive(Debug)]
pub(super) struct PeerBell {
    pub word: Bell,
    waker: Box<datagram::Waker>,
}

impl PeerBell {
    /// Wakes the port where it sleeps, if nobody else does.
    pub fn ring(&self) {
        let asleep = self.word.asleep();
        match bell::claim_wake(asleep) {
            Some(Place::Futex) => futex::wake(asleep),
            Some(Place::Descriptors) => self.waker.wake(),
            None => {}
        }
    }
}
