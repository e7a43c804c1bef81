//! Connections to hubs, for the HTTP library. A connection uses no proxy. It has no TLS, or it has TLS and leads to a
//! hub that this process trusts.

use std::io::{Read, Write};

use authority::Trust;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};
use ureq::{Agent, Error};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::TcpConnector;

use crate::named::{Named, look_up};

/// The limit on the addresses of a name that are tried. The HTTP library has room for no more.
const ADDRESSES: usize = 16;

/// Creates an agent with these settings. `named` says who gave the addresses. With `trust`, connections use TLS and
/// lead only to trusted hubs. Without `trust`, connections use no TLS.
pub(crate) fn agent(config: Config, trust: Option<&Trust>, named: Named) -> Agent {
    let connect = ().chain(TcpConnector::default());
    match trust {
        None => Agent::with_parts(config, connect, Names(named)),
        Some(trust) => Agent::with_parts(config, connect.chain(Encrypt(trust.clone())), Names(named)),
    }
}

/// The resolver of host names.
#[derive(Debug)]
struct Names(Named);

impl Resolver for Names {
    fn resolve(&self, uri: &Uri, _: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let address = uri.authority().map_or("", |authority| authority.as_str());
        let mut room = self.empty();
        for found in look_up(address, &self.0, *timeout.after)?.into_iter().take(ADDRESSES) {
            room.push(found);
        }
        Ok(room)
    }
}

/// The encryption of connections.
#[derive(Debug)]
struct Encrypt(Trust);

impl<In: Transport> Connector<In> for Encrypt {
    type Out = Encrypted;

    fn connect(&self, details: &ConnectionDetails, plain: Option<In>) -> Result<Option<Encrypted>, Error> {
        let plain = plain.expect("a TCP connection is made before");
        let host = details.uri.host().unwrap_or_default();
        // The host of a URI is an IPv6 address in brackets, or a name.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host)
            .map_err(|_| Error::Tls("the hub's name in its address is not a valid host name"))?;
        let wrong = |error| Error::Io(std::io::Error::other(error));
        let mut session = ClientConnection::new(self.0.config(), name).map_err(wrong)?;
        let mut socket = TransportAdapter::new(plain.boxed(), details.current_time.clone());
        socket.set_timeout(details.timeout);
        session.complete_io(&mut socket)?;
        let buffers =
            LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Encrypted { buffers, stream: StreamOwned::new(session, socket) }))
    }
}

/// An encrypted connection.
struct Encrypted {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl std::fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encrypted(...)")
    }
}

impl Transport for Encrypted {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.sock.set_timeout(timeout);
        Ok(self.stream.write_all(&self.buffers.output()[..amount])?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.sock.set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
