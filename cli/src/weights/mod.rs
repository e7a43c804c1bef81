//! `phub-server publish`, `pull` and `versions`: a job's weights for programs that do not train.
//!
//! ```text
//!   hubs --GET state--> Source --Weights--> Publisher --> DIR/weight_v000001/ ...    publish
//!                         |____ Weights --> FILE                                     pull
//!   DIR --> Reader --> list, verify, FILE                                           versions
//! ```

mod publish;
mod pull;
mod source;
mod stored;

pub(crate) use publish::PublishArgs;
pub(crate) use pull::PullArgs;
pub(crate) use stored::VersionsArgs;

/// Returns bytes as people read them.
fn spoken(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
