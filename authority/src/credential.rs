//! The credential that a process shows to hubs, and the places where it is found.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::own_file;
use crate::secret::{Secret, Secrets, WeakSecret};
use crate::token::{NotAToken, Right, Token};

/// The environment variables with a secret or a token, and with the path of a file that has one.
const TEXT: &str = "PHUB_TOKEN";
const FILE: &str = "PHUB_TOKEN_FILE";

/// A credential that a process shows to hubs: a token, or the cluster's secret, from which it derives tokens.
#[derive(Clone)]
pub struct Credential {
    holds: Holds,
    /// The place where the credential was found, for errors.
    source: String,
}

#[derive(Clone)]
enum Holds {
    Secrets(Secrets),
    Token(Token),
}

/// An error: no usable credential for hubs was found.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CredentialError {
    #[error("{place}: {error}")]
    Weak { place: String, error: WeakSecret },
    #[error("{place}: {error}")]
    NotAToken { place: String, error: NotAToken },
    #[error("the secret in {}: {error}", .path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("cannot make the file {} for this user's secret: {error}", .path.display())]
    Unmade { path: PathBuf, error: io::Error },
    #[error(
        "the secret in {}: other users may read the file (mode {mode:o}); change the secret, and `chmod 600` the file",
        .path.display()
    )]
    Open { path: PathBuf, mode: u32 },
    #[error(
        "there is no secret: PHUB_TOKEN and PHUB_TOKEN_FILE are not set, and neither HOME nor XDG_CONFIG_HOME says where this user's file is; set one of the four variables"
    )]
    Nowhere,
    #[error(
        "{place} is a token, which gives only one right; a hub needs the secret from which tokens are made"
    )]
    OnlyToken { place: String },
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.source)
    }
}

impl Credential {
    /// Finds the credential of this process: in the environment variable `PHUB_TOKEN`, or in the file that
    /// `PHUB_TOKEN_FILE` names. If neither variable is set, the credential is in this user's file
    /// (`~/.config/phub/secret`), which is created if it is missing.
    ///
    /// # Errors
    /// Returns an error if no credential is found, or if it is malformed.
    pub fn find() -> Result<Self, CredentialError> {
        // An empty variable counts as not set.
        if let Some(text) = std::env::var(TEXT).ok().filter(|text| !text.is_empty()) {
            return Self::parse(&text, TEXT);
        }
        if let Some(path) = std::env::var_os(FILE).filter(|path| !path.is_empty()) {
            return Self::read(Path::new(&path));
        }
        let path = own_file::path().ok_or(CredentialError::Nowhere)?;
        Self::parse(&own_file::read(&path)?, &format!("the file {}", path.display()))
    }

    /// Does the same as [`find`](Self::find), for a process that a hub may serve without a credential. Returns `None` where
    /// this user cannot have a file.
    ///
    /// # Errors
    /// Returns an error if a credential is found and is malformed.
    pub fn find_if_any() -> Result<Option<Self>, CredentialError> {
        match Self::find() {
            Err(CredentialError::Nowhere | CredentialError::Unmade { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Reads the credential in a file: a secret, several secrets, or a token.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or has no valid credential.
    pub fn read(path: &Path) -> Result<Self, CredentialError> {
        let text = own_file::text(path)
            .map_err(|error| CredentialError::Unreadable { path: path.to_owned(), error })?;
        Self::parse(&text, &format!("the file {}", path.display()))
    }

    /// Parses a secret or a token that was found at `place`.
    ///
    /// # Errors
    /// Returns an error if the text is neither.
    pub fn parse(text: &str, place: &str) -> Result<Self, CredentialError> {
        let place = || place.to_owned();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text); // a byte order mark, which some editors put before text
        let holds = if text.starts_with(Token::BEGIN) {
            let token = text.trim().parse();
            Holds::Token(token.map_err(|error| CredentialError::NotAToken { place: place(), error })?)
        } else {
            let secrets = Secrets::from_lines(text);
            Holds::Secrets(secrets.map_err(|error| CredentialError::Weak { place: place(), error })?)
        };
        Ok(Credential { holds, source: place() })
    }

    /// Returns the place where the credential was found, such as "the file /home/ann/.config/phub/secret".
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the token to show with a request that needs this right to this job.
    pub fn token(&self, right: Right, job: &str) -> Token {
        match &self.holds {
            Holds::Secrets(secrets) => secrets.first().token(right, job),
            Holds::Token(token) => token.clone(),
        }
    }

    /// Returns the secrets of the credential.
    ///
    /// # Errors
    /// Returns an error if the credential is a token.
    pub fn secrets(&self) -> Result<&Secrets, CredentialError> {
        match &self.holds {
            Holds::Secrets(secrets) => Ok(secrets),
            Holds::Token(_) => Err(CredentialError::OnlyToken { place: self.source.clone() }),
        }
    }
}

impl From<Secret> for Credential {
    fn from(secret: Secret) -> Self {
        Credential { holds: Holds::Secrets(secret.into()), source: "a secret of this process".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_gives_every_token_and_a_token_itself() {
        let secret = Secret::random().unwrap();
        let all = Credential::parse(&format!("{}\n", secret.reveal()), "a test").unwrap();
        let token = all.token(Right::Join, "job");
        assert_eq!(token, secret.token(Right::Join, "job"));
        let one = Credential::parse(&format!("{token}\n"), "a test").unwrap();
        assert_eq!(one.token(Right::Operate, "other"), token);
        assert!(all.secrets().is_ok());
        let error = one.secrets().unwrap_err().to_string();
        assert!(
            error.contains("a test") && error.contains("the secret from which tokens are made"),
            "{error}"
        );
        assert!(!format!("{all:?} {one:?}").contains(secret.reveal()));
    }

    /// Checks all forms in which people and their editors write the file of a secret.
    #[test]
    fn a_file_that_an_editor_has_touched_holds_the_same_secret() {
        let own = Credential::parse("0123456789abcdef", "a test").unwrap().token(Right::Join, "job");
        for text in ["0123456789abcdef\r\n", "\u{feff}0123456789abcdef\n", "\n  0123456789abcdef \n\n"] {
            assert_eq!(Credential::parse(text, "a test").unwrap().token(Right::Join, "job"), own, "{text:?}");
        }
        for (text, word) in [
            ("\"0123456789abcdef\"\n", "quotation marks: remove the quotation marks"),
            ("PHUB_TOKEN=0123456789abcdef\n", "write only the secret after the equals sign"),
        ] {
            let error = Credential::parse(text, "the file x").unwrap_err().to_string();
            assert!(error.contains("the file x") && error.contains(word), "{error}");
            assert!(!error.contains("0123456789"), "{error}");
        }
    }

    #[test]
    fn what_is_of_no_use_is_an_error_that_names_its_place() {
        for (text, word) in [("1234", "16 or more"), ("phub-join", "phub-RIGHT.JOB.PROOF")] {
            let error = Credential::parse(text, "PHUB_TOKEN").unwrap_err().to_string();
            assert!(error.contains("PHUB_TOKEN") && error.contains(word), "{error}");
            assert!(!error.contains(text), "a secret with a mistake is a secret: {error}");
        }
        let error = Credential::read(Path::new("/nowhere/secret")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/secret"), "{error}");
    }
}
