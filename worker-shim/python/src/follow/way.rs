//! The ways to get weights: from a hub's control port, or from a directory of versions. One try at a time, on
//! the follower's thread.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use membership::MemberError;
use phub_cli::weights::{NoWeights, Source};
use pyo3::PyErr;
use pyo3::prelude::*;
use versions::{Origin, Precision, Reader, VersionError, VersionId};

use super::version::Version;
use crate::errors::{ProtocolError, SettingsError, UnreachableError, of_member};
use crate::setting::{choice, credential_of};

/// The names of element types.
pub(super) const DTYPES: [(&str, Precision); 3] =
    [("f32", Precision::F32), ("bf16", Precision::Bf16), ("f16", Precision::F16)];

/// The source of a job's weights: its hubs, or a directory of versions.
pub(super) enum Way {
    Hub {
        source: Source,
        /// The version that was last returned, and the digest of its weights. A job that comes back from a checkpoint, or is
        /// made anew, may have other weights in a round that the reader has seen.
        last: Option<(Origin, String)>,
        /// Whether the job has been seen at its hub, and the hub has always answered since. If the job is
        /// then missing, it has ended.
        is_known: bool,
    },
    Directory {
        reader: Reader,
        /// The newest version that was looked at.
        last: Option<VersionId>,
        /// The version that was last returned.
        shown: Option<VersionId>,
    },
}

/// The result of one try.
pub(super) enum Step {
    Version(Version),
    /// No newer version: a description of the last one.
    Same(String),
    /// No version now, and the reason.
    Later(String),
    End,
    Fault(PyErr),
}

impl Way {
    pub fn of_hub(
        hub: &str,
        job: &str,
        (dtype, averages): (&str, bool),
        names: Vec<(String, String)>,
        (token, hub_wait): (Option<&str>, Duration),
    ) -> PyResult<Self> {
        let precision = choice("dtype", dtype, &DTYPES)?;
        let names: BTreeMap<String, String> = names.into_iter().collect();
        let source = Source::new(hub, job, credential_of(token)?, (precision, averages), names);
        let source = source.map_err(|error| SettingsError::new_err(format!("{error:#}")))?;
        let source = source.with_hub_wait(hub_wait);
        Ok(Way::Hub { source, last: None, is_known: false })
    }

    pub fn of_directory(directory: &Path) -> Self {
        Way::Directory { reader: Reader::new(directory), last: None, shown: None }
    }

    /// Tries once.
    pub fn step(&mut self) -> Step {
        match self {
            Way::Hub { source, last, is_known } => of_hub(source, last, is_known),
            Way::Directory { reader, last, shown } => of_directory(reader, last, shown),
        }
    }
}

fn of_hub(source: &mut Source, last: &mut Option<(Origin, String)>, is_known: &mut bool) -> Step {
    match source.fetch() {
        Ok((origin, weights)) => {
            *is_known = true;
            let now = (origin.clone(), weights.digest());
            if last.as_ref() == Some(&now) {
                return Step::Same(format!("the job is still before round {}", origin.round));
            }
            *last = Some(now);
            Step::Version(Version::new(origin, None, 0, weights))
        }
        Err(NoWeights::NoJob(_)) if *is_known => Step::End,
        Err(NoWeights::Away(why)) => {
            // A hub that comes back has no job until the workers have joined again.
            *is_known = false;
            Step::Later(why)
        }
        Err(NoWeights::NotYet(why) | NoWeights::NoJob(why)) => Step::Later(why),
        Err(NoWeights::Lost(why)) => Step::Fault(UnreachableError::new_err(why)),
        Err(NoWeights::Never(error)) => Step::Fault(match error.downcast_ref::<MemberError>() {
            Some(error) => of_member(error),
            None => SettingsError::new_err(format!("{error:#}")),
        }),
    }
}

fn of_directory(reader: &mut Reader, last: &mut Option<VersionId>, shown: &mut Option<VersionId>) -> Step {
    let newest = match reader.newest() {
        Ok(newest) => newest.filter(|newest| Some(*newest) > *last),
        Err(error) => return fault(&error),
    };
    let Some(newest) = newest else {
        return Step::Later(
            last.map_or("there is none".to_owned(), |last| format!("none is newer than {last}")),
        );
    };
    match reader.go_to(newest) {
        Ok(at) => {
            let (origin, weights) = (at.origin.clone(), at.weights.clone());
            let skipped = shown.map_or(0, |shown| newest.0 - shown.0 - 1);
            (*last, *shown) = (Some(newest), Some(newest));
            Step::Version(Version::new(origin, Some(newest), skipped, weights))
        }
        Err(error) => {
            if !error.may_pass() {
                // The next call waits for a newer version.
                *last = Some(newest);
            }
            fault(&error)
        }
    }
}

fn fault(error: &VersionError) -> Step {
    match error {
        error if error.may_pass() => Step::Later(error.to_string()),
        error => Step::Fault(ProtocolError::new_err(error.to_string())),
    }
}
