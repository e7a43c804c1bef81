//! TLS on the control port, if the hub has a certificate. Whether a connection uses TLS is determined once, before its
//! first request.

use std::io;
use std::sync::{Arc, RwLock};

use authority::TlsError;
use axum::Router;
use pbox_core::control::RefusalCode;
use rustix::net::{Shutdown, shutdown};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::registry::{Because, Refusal};
use crate::settings::HubSettings;

/// The first byte of every TLS connection, and of no HTTP request.
const HANDSHAKE: u8 = 0x16;

/// A connection, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The encryption of connections, if there is one.
#[derive(Debug)]
pub(crate) struct Encryption {
    /// The settings, to read the certificate again.
    settings: HubSettings,
    /// The settings of TLS; `None` if the hub has no certificate.
    config: Option<RwLock<Arc<ServerConfig>>>,
}

impl Encryption {
    /// Reads the certificate and the key of a hub with these settings.
    ///
    /// # Errors
    /// Returns an error if the certificate or the key cannot be used.
    pub fn new(settings: &HubSettings) -> Result<Self, TlsError> {
        let config = read(settings)?.map(RwLock::new);
        if config.is_none() && !settings.listen.ip().is_loopback() {
            tracing::info!("the control port is not encrypted; --tls-cert and --tls-key encrypt it");
        }
        Ok(Encryption { settings: settings.clone(), config })
    }

    /// Whether clients must use TLS with these settings.
    ///
    /// # Errors
    /// Returns an error if the certificate or the key cannot be used.
    pub fn is_possible(settings: &HubSettings) -> Result<bool, TlsError> {
        Ok(read(settings)?.is_some())
    }

    /// Whether clients must use TLS.
    pub fn is_on(&self) -> bool {
        self.config.is_some()
    }

    /// Reads certificate and key again. Open connections keep the old certificate.
    ///
    /// # Errors
    /// Returns an error if the new certificate and key cannot be used; the old certificate and key remain in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        if let (Some(config), Some(read)) = (&self.config, read(&self.settings)?) {
            *config.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = read;
        }
        Ok(())
    }

    /// Makes a connection ready for requests. Returns it with the service that answers them.
    pub(super) async fn open(
        &self,
        stream: TcpStream,
        router: Router,
    ) -> io::Result<(Box<dyn Stream>, Router)> {
        let Some(config) = &self.config else { return Ok((Box::new(stream), router)) };
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            return Ok((Box::new(stream), Router::new().fallback(async || wants_tls())));
        }
        let config = Arc::clone(&config.read().unwrap_or_else(|poisoned| poisoned.into_inner()));
        match TlsAcceptor::from(config).accept(stream).into_fallible().await {
            Ok(stream) => Ok((Box::new(stream), router)),
            Err((error, refused)) => {
                // The client may have sent a request already. If the hub closed the connection with the
                // request unread, TCP would reset it, and the client could lose the alert that gives the
                // reason.
                shutdown(&refused, Shutdown::Write)?;
                read_to_end(&refused).await?;
                Err(error)
            }
        }
    }
}

async fn read_to_end(stream: &TcpStream) -> io::Result<()> {
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0; 1024]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn wants_tls() -> Refusal {
    RefusalCode::TlsWanted.because("the hub speaks only TLS, and this request was not encrypted: set \
         PHUB_TLS_FINGERPRINT to the fingerprint that the hub's log shows, or PHUB_TLS_CA to a file with the hub's \
         certificate; with curl ask https:// with --cacert",
    )
}

fn read(settings: &HubSettings) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    let HubSettings { tls_cert: Some(certificate), tls_key: Some(key), tls_client_ca, .. } = settings else {
        return Ok(None);
    };
    let (config, fingerprint) = authority::serve(certificate, key, tls_client_ca.as_deref())?;
    let wants_certificates = tls_client_ca.is_some();
    tracing::info!(fingerprint, wants_certificates, "the control port speaks TLS");
    Ok(Some(config))
}
