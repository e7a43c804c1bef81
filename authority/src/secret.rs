//! The cluster's secret.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

use crate::digits::{hex, unhex};
use crate::proof::Proof;
use crate::token::{Right, Token};

/// The least number of characters in a secret: 16 random letters cannot be guessed.
const FEWEST: usize = 16;

/// The cluster's secret. It is never shown: neither in logs nor in errors.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// An error: the text is too easy to guess, or is not only a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the secret {seen}; expected {FEWEST} or more characters without spaces, such as `phub-server token --new` prints"
)]
pub struct WeakSecret {
    seen: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

impl Secret {
    /// Creates a secret from a text that a person chose.
    ///
    /// # Errors
    /// Returns an error if the text is too short, or has spaces.
    pub fn new(text: &str) -> Result<Self, WeakSecret> {
        let wrong = |seen: &str| Err(WeakSecret { seen: seen.to_owned() });
        // The prefix is refused. If a shell runs the line `PHUB_TOKEN=...` for a worker, the worker's secret has no
        // prefix, and would differ from the hub's secret.
        if text.starts_with("PHUB_TOKEN=") {
            return wrong(
                "begins with PHUB_TOKEN=, which is for a shell: write only the secret after the equals sign",
            );
        }
        if ['"', '\''].iter().any(|mark| text.len() > 1 && text.starts_with(*mark) && text.ends_with(*mark)) {
            return wrong("is in quotation marks: remove the quotation marks");
        }
        let characters = text.chars().take_while(|each| !each.is_whitespace()).count();
        if characters < FEWEST || characters < text.chars().count() {
            return wrong(&format!("has {characters} characters"));
        }
        Ok(Secret(text.to_owned()))
    }

    /// Returns a new random secret of 256 bits.
    ///
    /// # Errors
    /// Returns an error if the kernel gives no random bits.
    pub fn random() -> std::io::Result<Self> {
        Ok(Secret(hex(&random::<32>()?)))
    }

    /// Returns the secret itself, for storage in a file.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the token of a right to a job, or to [`ALL_JOBS`](crate::ALL_JOBS).
    pub fn token(&self, right: Right, job: &str) -> Token {
        self.token_until(right, job, None)
    }

    /// Returns the token of a right to a job. If `expires` is given, the token expires then, in seconds since 1970 began.
    pub fn token_until(&self, right: Right, job: &str, expires: Option<u64>) -> Token {
        let proof = hex(&self.mac(right, job, expires).finalize().into_bytes());
        Token { right, job: job.to_owned(), expires, proof }
    }

    /// Whether this secret made the token. The time of the comparison does not depend on the result.
    fn made(&self, token: &Token) -> bool {
        unhex::<32>(&token.proof).is_some_and(|proof| {
            self.mac(token.right, &token.job, token.expires).verify_slice(&proof).is_ok()
        })
    }

    fn mac(&self, right: Right, job: &str, expires: Option<u64>) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(self.0.as_bytes()).expect("a key may have any length");
        let about = match expires {
            None => format!("phub 1 {right} {job}"),
            Some(at) => format!("phub 2 {right} {job} {at}"),
        };
        mac.update(about.as_bytes());
        mac
    }
}

/// The secrets that a hub accepts. The first secret is used for new tokens. During a change of secrets, further secrets
/// are the new or the old secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets(Vec<Secret>);

impl From<Secret> for Secrets {
    fn from(secret: Secret) -> Self {
        Secrets(vec![secret])
    }
}

impl Secrets {
    /// Reads secrets from a text, one on each line. Ignores empty lines and lines that begin with `#`.
    ///
    /// # Errors
    /// Returns an error if there is no secret, or if one is too easy to guess.
    pub fn from_lines(text: &str) -> Result<Self, WeakSecret> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let secrets: Vec<Secret> = lines.map(Secret::new).collect::<Result<_, _>>()?;
        if secrets.is_empty() {
            Err(WeakSecret { seen: "has 0 characters".to_owned() })
        } else {
            Ok(Secrets(secrets))
        }
    }

    /// Returns the secret that is used for new tokens.
    pub fn first(&self) -> &Secret {
        &self.0[0]
    }

    /// Whether one of the secrets made the token.
    pub fn made(&self, token: &Token) -> bool {
        self.0.iter().any(|secret| secret.made(token))
    }

    /// Returns the token with which the proof of a request was made, if one of these secrets made that token.
    pub fn proved(&self, proof: &Proof, method: &str, path: &str) -> Option<Token> {
        let (right, job, expires) = proof.claim();
        let mut tokens = self.0.iter().map(|secret| secret.token_until(right, job, expires));
        tokens.find(|token| proof.is_by(token, method, path))
    }
}

/// Draws random bytes.
///
/// # Errors
/// Returns an error if the kernel gives no random bytes.
pub fn random<const BYTES: usize>() -> std::io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let drawn = getrandom(&mut bytes, GetRandomFlags::empty())?;
    assert_eq!(drawn, BYTES, "the kernel gives so few bytes at once");
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ALL_JOBS;

    const TEXT: &str = "correct-horse-battery";

    #[test]
    fn a_token_is_hmac_sha256_as_any_program_computes_it() {
        // printf 'phub 1 join resnet' | openssl dgst -sha256 -hmac correct-horse-battery
        let token = Secret::new(TEXT).unwrap().token(Right::Join, "resnet");
        assert_eq!(token.proof, "12c9c8fa914285fc15e7e88b82db4f3c6e2702708eea1cbe419d6a5271701e35");
    }

    #[test]
    fn a_time_is_part_of_what_is_proved() {
        let secret = Secret::new(TEXT).unwrap();
        // printf 'phub 2 join resnet 1800000000' | openssl dgst -sha256 -hmac correct-horse-battery
        let token = secret.token_until(Right::Join, "resnet", Some(1_800_000_000));
        assert_eq!(token.proof, "55c8850a6b8cd793e45691a30f8d9df332c943aa9ab570c2b29369e03088711f");
        assert!(secret.made(&token));
        for expires in [None, Some(1_800_000_001)] {
            assert!(!secret.made(&Token { expires, ..token.clone() }));
        }
    }

    #[test]
    fn a_proof_has_no_other_spelling() {
        let secret = Secret::new(TEXT).unwrap();
        let token = secret.token(Right::Join, "resnet");
        for proof in [token.proof.replacen("02", "+2", 1), token.proof.to_uppercase()] {
            assert_ne!(proof, token.proof);
            assert!(!secret.made(&Token { proof, ..token.clone() }));
        }
    }

    #[test]
    fn only_the_secret_that_made_a_token_accepts_it() {
        let (secret, other) = (Secret::new(TEXT).unwrap(), Secret::random().unwrap());
        let token = secret.token(Right::Read, ALL_JOBS);
        assert!(secret.made(&token));
        assert!(!other.made(&token));
        for wrong in [
            Token { right: Right::Operate, ..token.clone() },
            Token { job: "job".into(), ..token.clone() },
            Token { proof: token.proof[2..].to_owned(), ..token.clone() },
            Token { proof: String::new(), ..token.clone() },
            Token { proof: "+1".repeat(32), ..token.clone() },
        ] {
            assert!(!secret.made(&wrong), "{wrong}");
        }
    }

    #[test]
    fn a_secret_that_goes_is_accepted_beside_the_one_that_comes() {
        let (old, new) = (Secret::random().unwrap(), Secret::random().unwrap());
        let both = format!("# since today\n{}\n\n  {}  \n", new.reveal(), old.reveal());
        let both = Secrets::from_lines(&both).unwrap();
        assert_eq!(both.first(), &new);
        for secret in [&old, &new] {
            assert!(both.made(&secret.token(Right::Join, "job")));
        }
        assert!(!Secrets::from(new).made(&old.token(Right::Join, "job")));
    }

    #[test]
    fn a_secret_is_long_and_never_shown() {
        for weak in ["", "# nothing", "short", "has a space in its middle"] {
            let error = Secrets::from_lines(weak).unwrap_err().to_string();
            assert!(error.contains("16 or more"), "{error}");
        }
        let secrets = Secrets::from_lines(TEXT).unwrap();
        assert!(!format!("{secrets:?}").contains("horse"));
    }
}
