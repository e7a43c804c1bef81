//! The loans of a hub: memory that readers lend, through shared memory on one machine, or by RDMA.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fabric::any::Group;
use fabric::loan::{Loan, rdma, shm};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::for_readers::ForReaders;

/// The most loans by RDMA at the same time. Each has a [ring](rdma::RING) at this end.
const MOST_BY_RDMA: usize = 64;
/// The most ports that are kept for later loans. Opening the NICs takes longer than many a transfer.
const MOST_PORTS: usize = 8;

/// Memory that a reader offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// The token of the loan.
    pub token: [u8; 16],
    /// The address at which the reader waits for a handshake over RDMA. The IP address is the one from which the reader asks,
    /// so that a reader cannot make the hub connect to another machine.
    pub rdma: Option<SocketAddr>,
}

/// The loans of a hub.
#[derive(Debug)]
pub(crate) struct Loans {
    /// A permit for each further loan by RDMA.
    permits: Arc<Semaphore>,
    /// The ports of earlier loans by RDMA.
    ports: Mutex<Vec<rdma::LoanPort>>,
    /// The number of ports that were made.
    made: AtomicUsize,
}

impl Default for Loans {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(MOST_BY_RDMA));
        Loans { permits, ports: Mutex::default(), made: 0.into() }
    }
}

/// A loan, and what it takes at this hub until it ends.
#[derive(Debug)]
pub(super) struct Counted {
    pub loan: Loan,
    /// The permit of a loan by RDMA.
    _permit: Option<OwnedSemaphorePermit>,
    /// The count of the ring's memory.
    _ring: ForReaders,
}

impl Loans {
    /// Borrows `bytes` bytes, which a reader allocates within `limit`: through shared memory, or else by RDMA.
    pub(super) fn take(
        &self,
        offer: Offer,
        (bytes, limit): (u64, Duration),
        group: &Group,
        memory: &ForReaders,
    ) -> Result<Counted, String> {
        let here = shm::Loan::take(offer.token, bytes, limit);
        let (Err(_), Some(address), Some(nics)) = (&here, offer.rdma, group.rdma()) else {
            let loan = Loan::Shm(here.map_err(|error| error.to_string())?);
            return Ok(Counted { loan, _permit: None, _ring: memory.beside(0) });
        };
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit =
            permit.map_err(|_| format!("{MOST_BY_RDMA} readers already read by RDMA, the maximum"))?;
        let _ring = memory.beside(rdma::RING as u64);
        let kept = self.ports.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let make = || rdma::LoanPort::beside(nics, self.made.fetch_add(1, Relaxed));
        let port = kept.map_or_else(make, Ok).map_err(|error| error.to_string())?;
        let loan = rdma::Loan::take(port, address, offer.token, bytes, limit);
        Ok(Counted {
            loan: Loan::Rdma(Box::new(loan.map_err(|error| error.to_string())?)),
            _permit: Some(permit),
            _ring,
        })
    }

    /// Keeps a port for the next loan.
    pub(super) fn keep(&self, port: rdma::LoanPort) {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        if ports.len() < MOST_PORTS {
            ports.push(port);
        }
    }
}
