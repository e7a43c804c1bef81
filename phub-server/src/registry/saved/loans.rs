//! Memory that readers lend. The hub writes the values of a state there: through shared memory on one machine, or by RDMA.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fabric::any::{Group, Transport};
use fabric::loan::{Loan, rdma, shm};
use pbox_core::JobId;
use pbox_core::control::StateQuery;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::clients::bytes_of;
use super::copies::StateFile;
use super::for_readers::ForReaders;
use super::send::{Pace, selection};
use crate::registry::{NoThread, Registry, on_thread};

/// The most loans by RDMA at the same time. Each has a [ring](rdma::RING) at this end.
const MOST_BY_RDMA: usize = 64;
/// The most ports that are kept for later loans. Opening the NICs takes longer than many a transfer.
const MOST_PORTS: usize = 8;
/// The lowest permitted speed at which a client allocates the memory that it lends, and at which its NIC takes the values.
const SLOWEST_LOAN: Pace = Pace { grace: Duration::from_secs(10), bytes_per_s: 256 << 20 };

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
    loan: Loan,
    /// The permit of a loan by RDMA.
    _permit: Option<OwnedSemaphorePermit>,
    /// The count of the ring's memory.
    _ring: ForReaders,
}

/// The memory that a client lends, or the reason why there is no such memory.
pub(super) type Borrowed = JoinHandle<Result<Result<Counted, String>, NoThread>>;

impl Loans {
    /// Borrows `bytes` bytes from a reader: through shared memory, or else by RDMA.
    fn take(&self, offer: Offer, bytes: u64, group: &Group, memory: &ForReaders) -> Result<Counted, String> {
        let limit = SLOWEST_LOAN.time_for(bytes as usize);
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
    fn keep(&self, port: rdma::LoanPort) {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        if ports.len() < MOST_PORTS {
            ports.push(port);
        }
    }
}

impl Registry {
    /// Begins to borrow the memory that a client lends for the values of a state. The client allocates it while the job is still
    /// before the wanted round.
    pub(super) fn borrow(&self, id: JobId, query: StateQuery, offer: Offer) -> Option<Borrowed> {
        let elements = self.of_job(id, |state, _| {
            let selection = selection(&state.spec.terms.tensors(), query.only).ok()?;
            Some(bytes_of(state, selection) / size_of::<f32>() as u64)
        });
        let bytes = elements.ok()?? * query.dtype.bytes() as u64;
        let rdma = offer.rdma.filter(|address| self.up.peers.allows_address(address.ip()));
        let (loans, group, memory) =
            (Arc::clone(&self.loans), self.up.group.clone(), self.for_readers.beside(0));
        let take = move || loans.take(Offer { rdma, ..offer }, bytes, &group, &memory);
        Some(tokio::spawn(on_thread("phub-loan", take)))
    }

    /// Gives back memory that is not needed. The end of a link takes time, so it needs a thread.
    pub(super) fn give_back(&self, borrowed: Borrowed) {
        let loans = Arc::clone(&self.loans);
        tokio::spawn(async move {
            let Ok(Ok(Ok(counted))) = borrowed.await else { return };
            let end = move || {
                let port = counted.loan.finish(Instant::now() + SLOWEST_LOAN.grace);
                port.into_iter().flatten().for_each(|port| loans.keep(port));
            };
            let _ = on_thread("phub-loan", end).await; // without a thread, the loan ends here
        });
    }

    /// Writes the values of a file into the memory that a client lends. Returns the number of their bytes, and their transport.
    ///
    /// # Errors
    /// Returns an error if there is no memory, if the memory has another length than the values, or if the client takes the
    /// values too slowly.
    pub(super) async fn write_values(
        &self,
        file: Arc<StateFile>,
        borrowed: Borrowed,
    ) -> Result<(u64, Transport), String> {
        let mut counted = borrowed.await.map_err(|error| error.to_string())???;
        let loans = Arc::clone(&self.loans);
        let write = move || {
            let image = &file.image;
            let (bytes, room, transport) =
                (image.value_bytes(), counted.loan.bytes(), counted.loan.transport());
            if bytes != room {
                return Err(format!(
                    "the values have {bytes} bytes, and the lent memory has {room} bytes; expected the same length"
                ));
            }
            let deadline = Instant::now() + SLOWEST_LOAN.time_for(bytes as usize);
            let written =
                image.ranges().try_for_each(|range| counted.loan.write(image.values(&range), deadline));
            let port =
                written.and_then(|()| counted.loan.finish(deadline)).map_err(|error| error.to_string())?;
            port.into_iter().for_each(|port| loans.keep(port));
            Ok((bytes, transport))
        };
        on_thread("phub-loan", write).await?
    }
}
