//! The hubs that a process trusts, by their certificates, and the certificate that the process shows to hubs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
};

use crate::certificate::{Pair, TlsError, fingerprint, provider, roots};

/// The environment variables with the certificates to trust, and with the certificate to show.
const AUTHORITY: &str = "PHUB_TLS_CA";
const FINGERPRINT: &str = "PHUB_TLS_FINGERPRINT";
const CERTIFICATE: &str = "PHUB_TLS_CERT";
const KEY: &str = "PHUB_TLS_KEY";

/// The hubs that a process trusts. A process that has a trust uses TLS with every hub.
#[derive(Clone)]
pub struct Trust {
    config: Arc<ClientConfig>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust(...)")
    }
}

impl Trust {
    /// Finds the trust in the environment: a file of certificates in `PHUB_TLS_CA`, or fingerprints in
    /// `PHUB_TLS_FINGERPRINT`. `None` if neither is set: then this process uses no TLS. If a hub asks for a
    /// certificate, this process shows the certificate in `PHUB_TLS_CERT`, and signs with the key in `PHUB_TLS_KEY`.
    ///
    /// # Errors
    /// Returns an error if the environment's values cannot be used.
    pub fn find() -> Result<Option<Self>, TlsError> {
        // An empty variable counts as not set.
        let path = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let prints = std::env::var(FINGERPRINT).ok().filter(|prints| !prints.is_empty());
        let whom: Arc<dyn ServerCertVerifier> = match (path(AUTHORITY), prints) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err(TlsError::Both),
            (Some(path), None) => by_authority(&path)?,
            (None, Some(prints)) => Arc::new(Known::parse(&prints)?),
        };
        let shown = match (path(CERTIFICATE), path(KEY)) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((Pair::read(&certificate, &key)?, certificate, key)),
            _ => return Err(TlsError::Half),
        };
        let builder =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = builder.dangerous().with_custom_certificate_verifier(whom);
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some((pair, certificate, key)) => builder
                .with_client_auth_cert(pair.chain, pair.key)
                .map_err(|error| TlsError::Pair { certificate, key, error })?,
        };
        Ok(Some(Trust { config: Arc::new(config) }))
    }

    /// Returns the settings for the TLS library.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

fn by_authority(path: &Path) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(path)?, provider()).build();
    let unusable = |error: rustls::server::VerifierBuilderError| TlsError::Authority {
        path: path.to_owned(),
        error: error.to_string(),
    };
    Ok(verifier.map_err(unusable)?)
}

/// Describes why a TLS connection failed, if `error` comes from TLS.
pub fn explain(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidMessage(_) => format!(
            "the hub does not speak TLS; start the hub with --tls-cert and --tls-key, or unset {AUTHORITY} and \
             {FINGERPRINT} in this process"
        ),
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the hub's certificate has expired; replace the certificate, and send the hub SIGHUP".into()
        }
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!(
                "the hub's certificate is not from an authority in {AUTHORITY}; check the hub's address, \
                 and that {AUTHORITY} has the certificate's authority"
            )
        }
        Error::InvalidCertificate(
            error @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
        ) => format!(
            "{error}; reach the hub by a name in its certificate, or trust the certificate by {FINGERPRINT}"
        ),
        Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError
            | AlertDescription::CertificateExpired,
        ) => format!(
            "the hub accepts only clients with a certificate that its --tls-client-ca has signed ({error}); set \
             {CERTIFICATE} and {KEY}"
        ),
        Error::General(why) => why.clone(),
        other => other.to_string(),
    })
}

/// The check of certificates by their fingerprints. Names and times in the certificates do not matter.
#[derive(Debug)]
struct Known {
    prints: Vec<String>,
    provider: Arc<CryptoProvider>,
}

impl Known {
    fn parse(text: &str) -> Result<Self, TlsError> {
        let plain = |print: &str| print.trim().replace(':', "").to_ascii_lowercase();
        let prints: Vec<String> = text.split(',').map(plain).collect();
        let is_print =
            |print: &String| print.len() == 64 && print.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !prints.iter().all(is_print) {
            return Err(TlsError::Fingerprint { seen: text.to_owned() });
        }
        Ok(Known { prints, provider: provider() })
    }
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let seen = fingerprint(certificate);
        if self.prints.contains(&seen) {
            return Ok(ServerCertVerified::assertion());
        }
        let expected = self.prints.join(" or ");
        Err(Error::General(format!(
            "the hub's certificate has the fingerprint {seen}, and {FINGERPRINT} of this process is {expected}; check \
             the hub's address, and that the hub's log shows the same fingerprint"
        )))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_with_and_without_colons() {
        let colons = ["AB"; 32].join(":");
        let known = Known::parse(&format!("{colons}, {}", "0".repeat(64))).unwrap();
        assert_eq!(known.prints, ["ab".repeat(32), "0".repeat(64)]);
        for wrong in ["", "ab", &"g".repeat(64), &"0".repeat(65)] {
            let error = Known::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
    }
}
