//! The loan of this process's memory to a hub, while a request to the hub runs.
//!
//! ```text
//!   request, with the token ---> hub ---> lender on this machine, or lender by RDMA
//!   answer <-------------------- hub <--- memory
//! ```

use std::io;
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

use authority::hex;
use fabric::loan::rdma::{self, LoanPort};
use fabric::loan::{self, Lent, shm};
use pbox_core::control::{MEMORY_HEADER, MEMORY_PORT_HEADER};

use crate::data_path::loan_port;

/// A header of a request.
pub(crate) type Header = (&'static str, String);

/// The number of requests in a row after which a process offers no memory by RDMA any more, if the hub never borrows it. A
/// firewall may drop the hub's packets, and each request would then wait for the hub's timeout.
const TRIES: u32 = 3;

/// The NICs by which a process lends memory to one hub.
#[derive(Debug)]
pub struct LoanNics {
    /// The port over the NICs. `None` if this process does not use RDMA.
    port: Option<LoanPort>,
    /// The number of requests since the hub last borrowed memory.
    in_vain: u32,
}

impl LoanNics {
    /// Opens this machine's NICs, by the environment's settings. `number` is the hub's number among a reader's hubs: the loans to
    /// different hubs begin with different NICs. If this machine cannot use RDMA, no memory is lent by RDMA.
    pub fn open(number: u32) -> Self {
        let port = loan_port(number);
        let say = |why: &String| tracing::info!(why, "the hub has RDMA, but this process reads without it");
        LoanNics { port: port.inspect_err(say).ok(), in_vain: 0 }
    }

    /// Notes whether the hub has borrowed memory for a request that offered it.
    pub(crate) fn note(&mut self, is_lent: bool) {
        self.in_vain = if is_lent { 0 } else { self.in_vain + 1 };
        if self.in_vain == TRIES && self.port.take().is_some() {
            tracing::info!(
                "the hub has RDMA, but did not write into this process's memory {TRIES} times in a row: this process \
                 now reads over TCP; the hub's log at level debug has the reason"
            );
        }
    }
}

/// Makes a request that offers at most `most` bytes of memory to the hub: through shared memory, and also by RDMA if there are
/// `nics`. Returns the answer, and the memory if the hub has borrowed it. If this process cannot lend memory, the request
/// offers none.
pub(crate) fn while_lending<T>(
    nics: Option<&mut LoanNics>,
    most: u64,
    request: impl FnOnce(&[Header]) -> T,
) -> (T, Option<Lent>) {
    let Ok(token) = loan::token() else { return (request(&[]), None) };
    let here = shm::Lender::new(token).ok();
    let port = nics.and_then(|nics| nics.port.as_mut());
    let by_rdma = port.and_then(|port| Some((rdma::Lender::new(port, token).ok()?, port)));
    let (by_rdma, port) = by_rdma.unzip();
    scope(|scope| {
        let mut threads: Vec<ScopedJoinHandle<Option<Lent>>> = Vec::new();
        let mut headers: Vec<Header> = Vec::new();
        if let Some(lender) = &here
            && let Ok(thread) = spawn(scope, || Ok(lender.lend(most)?.map(Lent::Shm)))
        {
            threads.push(thread);
        }
        if let (Some(lender), Some(port)) = (&by_rdma, port)
            && let Ok(thread) = spawn(scope, move || Ok(lender.lend(port, most)?.map(Lent::Rdma)))
        {
            threads.push(thread);
            headers.push((MEMORY_PORT_HEADER, lender.tcp_port().to_string()));
        }
        if !threads.is_empty() {
            headers.push((MEMORY_HEADER, hex(&token)));
        }
        let answer = request(&headers);
        here.iter().for_each(shm::Lender::stop);
        by_rdma.iter().for_each(rdma::Lender::stop);
        let lent = threads.into_iter().map(|thread| thread.join().expect("a lender does not panic"));
        // All threads have ended after this line.
        let lent: Vec<Option<Lent>> = lent.collect();
        (answer, lent.into_iter().flatten().next())
    })
}

/// Starts a thread that lends memory. Without memory, the hub sends the bytes through the control port.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    lend: impl FnOnce() -> Result<Option<Lent>, fabric::any::ConnectError> + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, Option<Lent>>> {
    Builder::new().name("phub-lender".into()).spawn_scoped(scope, || {
        lend().unwrap_or_else(|error| {
            tracing::debug!(%error, "the hub does not write into this process's memory, but sends the bytes");
            None
        })
    })
}
