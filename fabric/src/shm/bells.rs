//! The bells of a link, which are words that say whether a port sleeps: the port's own bell, and the peer's,
//! which the port rings.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::cells::{Bell, Words};
use super::{futex, waking};
use crate::plan::PortId;
use crate::port_state::Ring;
use crate::ring::AtomicU32;
use crate::ring::bell::{self, Place};

/// The bell at which a port sleeps.
#[derive(Debug)]
pub(super) struct OwnBell {
    word: Bell,
    /// The waker by which this process wakes the port, if the port sleeps at descriptors.
    beside: OnceLock<Waker>,
}

impl OwnBell {
    pub fn new(word: Bell) -> Self {
        OwnBell { word, beside: OnceLock::new() }
    }

    pub fn asleep(&self) -> &AtomicU32 {
        self.word.asleep()
    }

    /// Sets the waker of a port that sleeps at descriptors. Panics if there is one already.
    pub fn set_beside(&self, waker: Waker) {
        self.beside.set(waker).expect("a port sleeps beside one other port");
    }
}

impl Ring for OwnBell {
    /// Wakes the port without checking whether the port sleeps, or where, because the word may be wrong. If a
    /// peer was killed between clearing the word and waking the port, the port still sleeps. A hostile peer
    /// can cause the same sleep. The call is rare, so the additional system calls do not matter.
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
pub(super) struct PeerBells(Arc<Words>);

impl PeerBells {
    /// Maps the bells of a peer with `ports` ports, and checks the descriptor that the peer handed over.
    pub fn open(whose: &'static str, ports: usize, words: OwnedFd) -> Result<Self, String> {
        Ok(PeerBells(Words::open(whose, words, Bell::bytes(ports))?))
    }

    /// Returns the bell of a port. `waker` wakes the port if it sleeps at descriptors. Panics if the peer has
    /// no such port.
    pub fn of(&self, port: PortId, waker: waking::Waker) -> PeerBell {
        PeerBell { word: Bell::new(&self.0, port.index()), waker: Box::new(waker) }
    }
}

/// The bell of a port at the other end of a link.
#[derive(Debug)]
pub(super) struct PeerBell {
    pub word: Bell,
    waker: Box<waking::Waker>,
}

impl PeerBell {
    /// Wakes the port at its place of sleep, if it sleeps and no other thread is already waking it.
    pub fn ring(&self) {
        let asleep = self.word.asleep();
        match bell::claim_wake(asleep) {
            Some(Place::Futex) => futex::wake(asleep),
            Some(Place::Descriptors) => self.waker.wake(),
            None => {}
        }
    }
}
