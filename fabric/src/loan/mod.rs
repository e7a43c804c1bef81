//! Memory that a reader of a job's weights lends to a hub. The hub writes the weights into it: through shared memory on one
//! machine, or by RDMA.
//!
//! The token of a loan goes from the reader to the hub over the control port. A process without the token gets nothing. The
//! reader allocates the memory, so it counts as the reader's. A hub that cannot take a loan sends the weights through the control
//! port.

#[allow(unsafe_code)]
pub mod rdma;
pub mod shm;

use std::io;
use std::time::Instant;

use crate::any::Transport;
use crate::memory::{Slab, WindowError};
use crate::shm::waking::Name;

/// Memory that a reader has lent.
#[derive(Debug)]
pub enum Lent {
    /// A file in memory, which the hub writes.
    Shm(shm::Lent),
    /// The values that have arrived by RDMA.
    Rdma(rdma::Lent),
}

impl Lent {
    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Lent::Shm(lent) => lent.bytes(),
            Lent::Rdma(lent) => lent.bytes(),
        }
    }

    /// Returns the memory, which nobody else can change any more. The hub must have written all bytes.
    ///
    /// # Errors
    /// Returns an error if another process can still write the memory, or if it cannot be mapped.
    pub fn seal(self) -> Result<Slab, WindowError> {
        match self {
            Lent::Shm(lent) => lent.seal(),
            Lent::Rdma(lent) => Ok(lent.into_slab()),
        }
    }
}

/// Memory that a hub has borrowed.
#[derive(Debug)]
pub enum Loan {
    /// A file in the memory of this machine.
    Shm(shm::Loan),
    /// Memory that a NIC reaches.
    Rdma(Box<rdma::Loan>),
}

impl Loan {
    /// Returns the transport of the bytes.
    pub fn transport(&self) -> Transport {
        match self {
            Loan::Shm(_) => Transport::Shm,
            Loan::Rdma(_) => Transport::Verbs,
        }
    }

    /// Returns the number of bytes that are borrowed.
    pub fn bytes(&self) -> u64 {
        match self {
            Loan::Shm(loan) => loan.bytes(),
            Loan::Rdma(loan) => loan.bytes(),
        }
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// Returns an error if there is no room for the bytes, or if they cannot be written. Also returns an error if the reader
    /// takes them too slowly for `deadline`.
    pub fn write(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        let (more, room) = (bytes.len() as u64, self.room());
        if more > room {
            return Err(io::Error::other(format!(
                "{more} bytes do not fit into the {room} bytes that are left"
            )));
        }
        match self {
            Loan::Shm(loan) => loan.write(bytes),
            Loan::Rdma(loan) => loan.write(bytes, deadline),
        }
    }

    /// Waits until the reader has all bytes that were written. By RDMA, returns the port for the next loan.
    ///
    /// # Errors
    /// Returns an error if the reader takes the bytes too slowly for `deadline`, or is gone.
    pub fn finish(self, deadline: Instant) -> io::Result<Option<rdma::LoanPort>> {
        match self {
            Loan::Shm(_) => Ok(None),
            Loan::Rdma(loan) => loan.finish(deadline).map(Some),
        }
    }

    /// Returns the number of bytes that are not written yet.
    fn room(&self) -> u64 {
        match self {
            Loan::Shm(loan) => loan.room(),
            Loan::Rdma(loan) => loan.room(),
        }
    }
}

/// Returns a new token, which only the reader and the hub should know.
///
/// # Errors
/// Returns an error if the kernel has no random bytes.
pub fn token() -> io::Result<[u8; 16]> {
    Ok(Name::random()?.0)
}
