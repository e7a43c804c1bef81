//! Rights: who may ask a hub for something, and who is a hub.
//!
//! ```text
//!   secret of the cluster --HMAC-SHA256--> token of a right and a job --HMAC-SHA256--> proof of one request
//! ```
//!
//! The owner of the secret may do everything. The owner of a token may do what the token names. A request carries a proof,
//! and neither a token nor the secret. A reader of the request, or the server, can repeat that request and nothing else.
//!
//! This crate must never know what requests are about, nor hubs, nor jobs.

#![forbid(unsafe_code)]

mod certificate;
mod credential;
mod digits;
mod own_file;
mod proof;
mod secret;
mod token;
mod trust;

pub use certificate::{TlsError, fingerprint, serve};
pub use credential::{Credential, CredentialError};
pub use digits::{hex, unhex};
pub use own_file::directory as own_directory;
pub use proof::{BodyDigest, Proof};
pub use secret::{Secret, Secrets, WeakSecret, random};
pub use token::{ALL_JOBS, NotAToken, Right, SUMS, Token};
pub use trust::{Trust, explain};
