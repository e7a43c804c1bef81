//! Rights: who may send which requests to a hub, and who is a hub.
//!
//! ```text
//!   secret of the cluster --HMAC-SHA256--> token of a right and a job --HMAC-SHA256--> proof of one request
//! ```
//!
//! The owner of the secret may do everything. The owner of a token may do what the token says. A request carries a
//! proof, but neither a token nor the secret. The server, or someone who reads the request, can repeat this request,
//! but cannot make another request.
//!
//! This crate must never depend on the content of requests, nor hubs, nor jobs.

#![forbid(unsafe_code)]

mod certificate;
mod credential;
mod digits;
mod file;
mod own_file;
mod proof;
mod secret;
mod token;
mod trust;

pub use certificate::{TlsError, fingerprint, serve};
pub use credential::{Credential, CredentialError};
pub use digits::{hex, unhex};
pub use file::{check_no_fifo, read_file};
pub use own_file::directory as own_directory;
pub use proof::{BodyDigest, Proof};
pub use secret::{Secret, Secrets, WeakSecret, random};
pub use token::{ABOVE_SUFFIX, ALL_JOBS, NotAToken, Right, Token};
pub use trust::{Trust, explain};
