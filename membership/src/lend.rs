//! The loan of this process's memory to a hub, while a request to the hub runs.
//!
//! ```text
//!   request, with the token ---> hub ---> lender on this machine, or lender by RDMA
//!   answer <-------------------- hub <--- memory
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

use authority::{Trust, hex};
use fabric::loan::rdma::{self, LoanPort};
use fabric::loan::{self, Lent, shm};
use pbox_core::control::{MEMORY_HEADER, MEMORY_PORT_HEADER};

use crate::data_path::loan_port;
use crate::named::{LOOKUP_LIMIT, Named, look_up};

/// A header of a request.
pub(crate) type Header = (&'static str, String);

/// The number of requests in a row after which a process offers no memory by RDMA for some time, if the hub never borrows it. A
/// firewall may drop the hub's packets, and each request then waits for the hub's timeout.
const TRIES: u32 = 3;
/// The time after which a process offers memory again.
const PAUSE: Duration = Duration::from_secs(300);

/// The NICs by which a process lends memory to one hub.
#[derive(Debug)]
pub struct LoanNics {
    /// The port over the NICs. `None` if this process does not use RDMA.
    port: Option<LoanPort>,
    /// The number of requests since the hub last borrowed memory.
    failures: u32,
    /// The time until which no memory is offered.
    paused_until: Option<Instant>,
    /// The last failure at this end.
    failure: Option<String>,
}

impl LoanNics {
    /// Opens this machine's NICs for the hub at this address, by the environment's settings. `number` is the hub's number among
    /// a reader's hubs: the loans to different hubs begin with different NICs. No memory is lent by RDMA if this machine cannot
    /// use RDMA, if requests use TLS, because RDMA is not encrypted, or if the hub is here, and so shares memory.
    pub fn open(hub: &str, number: u32) -> Self {
        let port = match Trust::find() {
            Ok(None) if is_here(hub) => Err("the hub is on this machine".to_owned()),
            Ok(None) => loan_port(number),
            _ => Err("RDMA is not encrypted, and requests to the hub are".to_owned()),
        };
        let say = |why: &String| tracing::info!(why, "the hub has RDMA, but this process reads without it");
        LoanNics { port: port.inspect_err(say).ok(), failures: 0, paused_until: None, failure: None }
    }

    /// Whether memory may be offered now.
    fn may_offer(&self) -> bool {
        self.port.is_some() && self.paused_until.is_none_or(|until| until <= Instant::now())
    }

    /// Notes whether the hub has borrowed memory for a request that offered it.
    pub(crate) fn note(&mut self, is_lent: bool) {
        if !self.may_offer() {
            return;
        }
        self.failures = if is_lent { 0 } else { self.failures + 1 };
        if self.failures == TRIES {
            (self.failures, self.paused_until) = (0, Some(Instant::now() + PAUSE));
            let why = self.failure.as_deref().unwrap_or("the hub's log at level debug has the reason");
            tracing::info!(
                why,
                "the hub has RDMA, but did not write into this process's memory {TRIES} times in a row: \
                 this process reads over TCP for {PAUSE:?}"
            );
        }
    }
}

/// Whether a hub's address is an address of this machine, in this network namespace.
fn is_here(hub: &str) -> bool {
    // No packet is sent: the kernel only says from which of its addresses it would send.
    let sender = |address: &SocketAddr| {
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(address).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let found = look_up(hub, &Named::Here, LOOKUP_LIMIT).unwrap_or_default();
    found.iter().any(|address| address.ip().is_loopback() || sender(address) == Some(address.ip()))
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
    let nics = nics.filter(|nics| nics.may_offer());
    let (port, failure) = nics.map(|nics| (nics.port.as_mut(), &mut nics.failure)).unzip();
    let by_rdma = port.flatten().and_then(|port| Some((rdma::Lender::new(port, token).ok()?, port)));
    let (by_rdma, port) = by_rdma.unzip();
    scope(|scope| {
        let mut headers: Vec<Header> = Vec::new();
        let thread_here = here.as_ref().and_then(|lender| {
            spawn(scope, || Ok(lender.lend(most).map_err(|error| error.to_string())?.map(Lent::Shm)))
        });
        let thread_by_rdma = by_rdma.as_ref().zip(port).and_then(|(lender, port)| {
            let thread = spawn(scope, || {
                Ok(lender.lend(port, most).map_err(|error| error.to_string())?.map(Lent::Rdma))
            })?;
            headers.push((MEMORY_PORT_HEADER, lender.tcp_port().to_string()));
            Some(thread)
        });
        if thread_here.is_some() || thread_by_rdma.is_some() {
            headers.push((MEMORY_HEADER, hex(&token)));
        }
        let answer = request(&headers);
        here.iter().for_each(shm::Lender::stop);
        by_rdma.iter().for_each(rdma::Lender::stop);
        let lent_here = thread_here.and_then(|thread| lent(thread).ok()?);
        let lent_by_rdma = thread_by_rdma.and_then(|thread| {
            let lent = lent(thread);
            failure.into_iter().for_each(|failure| *failure = lent.as_ref().err().cloned());
            lent.ok()?
        });
        // The hub may have asked for shared memory first, and could not use it.
        (answer, lent_by_rdma.or(lent_here))
    })
}

/// A thread that lends memory.
type Lending<'scope> = ScopedJoinHandle<'scope, Result<Option<Lent>, String>>;

/// Starts a thread that lends memory. Returns `None` if there are too many threads.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    lend: impl FnOnce() -> Result<Option<Lent>, String> + Send + 'scope,
) -> Option<Lending<'scope>> {
    Builder::new().name("phub-lender".into()).spawn_scoped(scope, lend).ok()
}

/// Waits for a thread that lends memory. Without memory, the hub sends the bytes through the control port.
fn lent(thread: Lending) -> Result<Option<Lent>, String> {
    let say = |why: &String| {
        tracing::debug!(why, "the hub does not write into this process's memory, but sends the bytes")
    };
    thread.join().expect("a lender does not panic").inspect_err(say)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_of_this_machine_is_known_by_its_address() {
        for here in ["127.0.0.1:7077", "localhost:7077", "127.9.9.9:1"] {
            assert!(is_here(here), "{here}");
        }
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:1").is_ok() {
            let own = SocketAddr::new(socket.local_addr().unwrap().ip(), 7077).to_string();
            assert!(is_here(&own), "{own}");
        }
        for elsewhere in ["192.0.2.1:7077", "[2001:db8::1]:7077", "no-such-host.invalid:7077", "no address"] {
            assert!(!is_here(elsewhere), "{elsewhere}");
        }
    }
}
