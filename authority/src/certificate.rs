//! Certificates and keys in files, and a hub's TLS settings.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};

use crate::digits::hex;
use crate::file::read_file;

/// The longest file with certificates or a key that is read, in bytes. The certificates that Debian trusts have 0.2 MB.
const FILE_BYTES: u64 = 16 << 20;

/// An error: certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TlsError {
    #[error("{}: {error}; expected {expected} in PEM", .path.display())]
    Unreadable { path: PathBuf, expected: &'static str, error: pem::Error },
    #[error("{} has no certificate; expected one or more in PEM", .path.display())]
    Empty { path: PathBuf },
    #[error(
        "the certificate {} and the key {} cannot be used: {error}; expected a pair, as `phub-server certificate` makes",
        .certificate.display(), .key.display()
    )]
    Pair { certificate: PathBuf, key: PathBuf, error: rustls::Error },
    #[error("the certificates {}: {error}", .path.display())]
    Authority { path: PathBuf, error: String },
    #[error(
        "PHUB_TLS_FINGERPRINT is {seen:?}; expected the SHA-256 of a certificate in 64 hexadecimal digits, or several with commas between them"
    )]
    Fingerprint { seen: String },
    #[error("PHUB_TLS_CA and PHUB_TLS_FINGERPRINT are both set; set one of them")]
    Both,
    #[error("only one of PHUB_TLS_CERT and PHUB_TLS_KEY is set; set both, or neither")]
    Half,
    #[error("TLS: {0}")]
    Setting(#[from] rustls::Error),
    #[error("TLS: {0}")]
    System(#[from] io::Error),
}

/// Returns the library of ciphers that all TLS connections use.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns the SHA-256 of a certificate, in hexadecimal digits.
pub fn fingerprint(certificate: &CertificateDer) -> String {
    hex(&Sha256::digest(certificate))
}

/// A certificate with its chain, and its key.
#[derive(Debug)]
pub(crate) struct Pair {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Pair {
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = certificates(certificate)?;
        let read = read_file(key, FILE_BYTES).map_err(pem::Error::Io);
        let read = read.and_then(|bytes| PrivateKeyDer::from_pem_slice(&bytes));
        let unreadable = |error| TlsError::Unreadable {
            path: key.to_owned(),
            expected: "the key of a certificate",
            error,
        };
        Ok(Pair { chain, key: read.map_err(unreadable)? })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable =
        |error| TlsError::Unreadable { path: path.to_owned(), expected: "one or more certificates", error };
    let bytes = read_file(path, FILE_BYTES).map_err(|error| unreadable(pem::Error::Io(error)))?;
    let read: Vec<_> =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(unreadable)?;
    if read.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(read) }
}

/// Returns the certificates of a file as roots: TLS trusts each of them, and each certificate that one of them has signed.
pub(crate) fn roots(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsError::Authority { path: path.to_owned(), error: error.to_string() })?;
    }
    Ok(Arc::new(roots))
}

/// Returns the hub's TLS settings, and the fingerprint of its certificate. The settings have the hub's certificate and key.
/// If the hub asks clients for certificates, the settings also have the accepted certificates.
///
/// # Errors
/// Returns an error if a file cannot be read, or if certificate and key do not belong together.
pub fn serve(
    certificate: &Path,
    key: &Path,
    clients: Option<&Path>,
) -> Result<(Arc<ServerConfig>, String), TlsError> {
    let Pair { chain, key: secret } = Pair::read(certificate, key)?;
    let shown = fingerprint(&chain[0]);
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots(path)?, provider()).build();
            let unusable = |error: rustls::server::VerifierBuilderError| TlsError::Authority {
                path: path.to_owned(),
                error: error.to_string(),
            };
            builder.with_client_cert_verifier(verifier.map_err(unusable)?)
        }
    };
    let config = builder.with_single_cert(chain, secret).map_err(|error| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        error,
    })?;
    Ok((Arc::new(config), shown))
}
