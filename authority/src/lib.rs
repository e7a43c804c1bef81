//! Who may ask a hub for what, and who is a hub.
//!
//! ```text
//!   secret of the cluster --HMAC-SHA256--> token of a right and a job --in a request--> hub: the same, compared
//! ```
//!
//! Whoever has the secret may do everything. Whoever has a token may do what the token names. A request carries a token and
//! never the secret, so that whoever reads one request on the wire learns one job's token.
//!
//! This crate must never know requests, hubs, or jobs.

#![forbid(unsafe_code)]

mod certificate;
mod credential;
mod own_file;
mod secret;
mod token;
mod trust;

pub use certificate::{TlsError, fingerprint, serve};
pub use credential::{Credential, CredentialError};
pub use own_file::directory as own_directory;
pub use secret::{Secret, Secrets, WeakSecret};
pub use token::{ALL_JOBS, NotAToken, Right, Token};
pub use trust::{Trust, explain};
