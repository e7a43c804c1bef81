//! Proofs: with a proof, the holder of a token shows for one request that it has the token, without showing the token.
//!
//! ```text
//!   token's own proof --HMAC-SHA256 over method, path, digest of the body, nonce--> proof of one request
//! ```
//!
//! The receiver of a proof can repeat this request, but cannot make another request.

use std::fmt;
use std::io;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::digits::{hex, unhex};
use crate::secret::random;
use crate::token::{NotAToken, Right, Token};

/// The length of a nonce, in bytes.
const NONCE_BYTES: usize = 8;

/// The SHA-256 of a request's body, which may arrive in parts.
#[derive(Clone, Default)]
pub struct BodyDigest(Sha256);

impl fmt::Debug for BodyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyDigest")
    }
}

impl BodyDigest {
    /// Adds the next part of the body.
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    fn in_digits(self) -> String {
        hex(&self.0.finalize())
    }
}

/// A proof that the sender of one request has a token. Its text is `RIGHT.JOB.NONCE.DIGEST.PROOF`. If the token expires,
/// `RIGHT@SECONDS` stands for the right and the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    right: Right,
    expires: Option<u64>,
    job: String,
    nonce: String,
    digest: String,
    proof: String,
}

impl Token {
    /// Creates the proof of a request with this method, path (with its query) and body.
    ///
    /// # Errors
    /// Returns an error if the kernel gives no random bits.
    pub fn prove(&self, method: &str, path: &str, body: &[u8]) -> io::Result<Proof> {
        let mut digest = BodyDigest::default();
        digest.update(body);
        let (digest, nonce) = (digest.in_digits(), hex(&random::<NONCE_BYTES>()?));
        let proof = hex(&mac(self, method, path, &digest, &nonce).finalize().into_bytes());
        let Token { right, expires, ref job, .. } = *self;
        Ok(Proof { right, expires, job: job.clone(), nonce, digest, proof })
    }
}

impl Proof {
    /// Returns what the proof claims: a right, a job, and the time at which the token expires.
    pub(crate) fn claim(&self) -> (Right, &str, Option<u64>) {
        (self.right, &self.job, self.expires)
    }

    /// Whether the owner of this token made the proof. The time of the comparison does not depend on the result.
    pub(crate) fn is_by(&self, token: &Token, method: &str, path: &str) -> bool {
        let mac = || mac(token, method, path, &self.digest, &self.nonce);
        unhex::<32>(&self.proof).is_some_and(|proof| mac().verify_slice(&proof).is_ok())
    }

    /// Whether the proof was made for a request with this body.
    pub fn is_about(&self, body: BodyDigest) -> bool {
        self.digest == body.in_digits()
    }
}

fn mac(token: &Token, method: &str, path: &str, digest: &str, nonce: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::new_from_slice(token.proof.as_bytes()).expect("a key may have any length");
    mac.update(format!("phub 3 {method} {path} {digest} {nonce}").as_bytes());
    mac
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proof { right, expires, job, nonce, digest, proof } = self;
        let until = expires.map_or(String::new(), |at| format!("@{at}"));
        write!(f, "{right}{until}.{job}.{nonce}.{digest}.{proof}")
    }
}

impl FromStr for Proof {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let parts = || {
            let (right, rest) = text.split_once('.')?;
            let (right, expires) = Token::right_of(right)?;
            // The text is split from its end, because the name of a job may have dots.
            let mut parts = rest.rsplitn(4, '.').map(str::to_owned);
            let (proof, digest, nonce) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Proof { right, expires, job: parts.next()?, nonce, digest, proof })
        };
        parts().ok_or(NotAToken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Secret, Secrets};

    const PATH: &str = "/v1/jobs/a.b/join";

    fn proved(secret: &Secret, proof: &Proof, method: &str, path: &str) -> bool {
        Secrets::from(secret.clone()).proved(proof, method, path).is_some()
    }

    fn body(bytes: &[u8]) -> BodyDigest {
        let mut digest = BodyDigest::default();
        bytes.chunks(2).for_each(|part| digest.update(part));
        digest
    }

    #[test]
    fn a_proof_is_hmac_sha256_as_any_program_computes_it() {
        // T=$(printf 'phub 1 join resnet' | openssl dgst -sha256 -hmac correct-horse-battery | sed 's/.* //')
        // D=$(printf '{}' | openssl dgst -sha256 | sed 's/.* //')
        // printf "phub 3 POST /v1/jobs/resnet/join $D 0011223344556677" | openssl dgst -sha256 -hmac $T
        let token = Secret::new("correct-horse-battery").unwrap().token(Right::Join, "resnet");
        let digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        let made = mac(&token, "POST", "/v1/jobs/resnet/join", digest, "0011223344556677");
        assert_eq!(
            hex(&made.finalize().into_bytes()),
            "51c5246bdf3bf9092ae08f3a893af4b51acc08c77e4802cc58d16217f35883a7"
        );
        assert_eq!(token.prove("POST", "/", b"{}").unwrap().digest, digest);
    }

    #[test]
    fn a_proof_is_of_one_request_and_shows_no_token() {
        let secret = Secret::random().unwrap();
        let token = secret.token(Right::Join, "a.b");
        let proof = token.prove("POST", PATH, b"{}").unwrap();
        assert_eq!(proof.to_string().parse(), Ok(proof.clone()));
        assert!(!proof.to_string().contains(&token.proof));
        assert!(proved(&secret, &proof, "POST", PATH));
        assert!(!proved(&secret, &proof, "GET", PATH));
        assert!(!proved(&secret, &proof, "POST", "/v1/jobs/a.b/meet"));
        assert!(!proved(&Secret::random().unwrap(), &proof, "POST", PATH));
        assert!(proof.is_about(body(b"{}")) && !proof.is_about(body(b"{\"rank\":1}")));
        for wrong in [
            Proof { right: Right::Operate, ..proof.clone() },
            Proof { job: "*".into(), ..proof.clone() },
            Proof { expires: Some(u64::MAX), ..proof.clone() },
            Proof { digest: "0".repeat(64), ..proof.clone() },
            Proof { nonce: String::new(), ..proof.clone() },
            Proof { proof: String::new(), ..proof.clone() },
        ] {
            assert!(!proved(&secret, &wrong, "POST", PATH), "{wrong}");
        }
        assert_ne!(token.prove("POST", PATH, b"{}").unwrap(), proof, "each has a nonce of its own");
    }

    #[test]
    fn what_is_no_proof_is_refused() {
        for wrong in ["", "join", "join.job", "join.job.00.11", "eat.job.00.11.22", "join@x.job.00.11.22"] {
            assert_eq!(wrong.parse::<Proof>(), Err(NotAToken), "{wrong:?}");
        }
    }
}
