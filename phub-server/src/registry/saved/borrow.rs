//! The memory of a client that wants a state: borrowed before the state exists, written, and given back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::any::Transport;
use pbox_core::JobId;
use pbox_core::control::StateQuery;
use tokio::task::JoinHandle;

use super::clients::bytes_of;
use super::copies::StateFile;
use super::loans::{Counted, Offer};
use super::send::{Pace, selection};
use crate::registry::{NoThread, Registry, on_thread};

/// The lowest permitted speed at which a client allocates the memory that it lends, and at which its NIC takes the values.
const SLOWEST_LOAN: Pace = Pace { grace: Duration::from_secs(10), bytes_per_s: 256 << 20 };

/// The memory that a client lends, or the reason why there is no such memory.
pub(super) type Borrowed = JoinHandle<Result<Result<Counted, String>, NoThread>>;

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
        let limit = SLOWEST_LOAN.time_for(bytes as usize);
        let take = move || loans.take(Offer { rdma, ..offer }, (bytes, limit), &group, &memory);
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
    /// Returns an error if there is no memory, or if it has another length than the values. Also returns an error if the
    /// client takes the values too slowly.
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
