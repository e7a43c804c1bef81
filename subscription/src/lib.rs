//! Subscriptions to a job's weights, for programs that do not train: version after version, from the job's hubs or from a directory
//! that `phub-server publish` writes.
//!
//! ```text
//!   Subscription::next_version --> thread: Feed --> Source --GET state--> hubs        all weights of one round
//!                                            '----> versions::Reader --> directory    whole, or by deltas
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `subscription.rs` | a subscription: waits, timeouts, the thread that reads |
//! | `feed.rs` | one try to get the next version |
//! | `source.rs` | a job's weights at its hubs, in a type and under names |
//! | `names.rs` | a mapping from keys to names and types of tensors |
//! | `tensors.rs` | the tensors of the keys: renamed, cut and joined |
//! | `hubs.rs` | one round of all hubs of a job |
//! | `whole.rs` | whole keys from the parts of several hubs |
//! | `each_rounds.rs` | the wanted rounds, if each k-th round is wanted |
//! | `error.rs` | the reasons why there is no version |
//!
//! A reader pushes nothing and has no rank, so no worker waits for it. This crate must not depend on sessions of workers, or on
//! how a hub works.

#![forbid(unsafe_code)]

mod each_rounds;
mod error;
mod feed;
mod hubs;
mod names;
mod source;
mod subscription;
mod tensors;
mod whole;

pub use authority::Credential;
pub use each_rounds::{EachRounds, Passed};
pub use error::{Misfit, NoWeights, SourceError, SubscriptionError, Unfit};
pub use names::{Names, NamesError};
pub use source::{Fetched, HUB_WAIT, Source, SourceSettings};
pub use subscription::{Subscription, Version, Wanted};
pub use versions::{NoPrecision, Origin, Precision, VersionError, VersionId, Weights};
