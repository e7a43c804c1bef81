//! The name of a file with one hub's part of a job over several hubs.
//!
//! ```text
//!   train@120.hub0of2.safetensors      job "train", the state before round 120, hub 0 of 2
//! ```
//!
//! A job's name never has an `@`, so no job's own file has such a name. This module has plain functions, and
//! must not depend on files.

use pbox_core::control::check_job_name;
use pbox_core::{Round, Share};

/// The facts in the name of a part's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartName {
    pub job: String,
    pub round: Round,
    pub hub: u32,
    pub hubs: u32,
}

impl PartName {
    pub fn new(job: &str, round: Round, share: Share) -> Self {
        PartName { job: job.to_owned(), round, hub: share.hub, hubs: share.hubs }
    }

    /// Parses a file's name; returns `None` if it is not the name of a part.
    pub fn parse(file: &str) -> Option<Self> {
        let (job, rest) = file.strip_suffix(".safetensors")?.split_once('@')?;
        let (round, hub) = rest.split_once(".hub")?;
        let (hub, hubs) = hub.split_once("of")?;
        let number = |text: &str| text.parse::<u32>().ok();
        let name = PartName {
            job: job.to_owned(),
            round: Round(number(round)?),
            hub: number(hub)?,
            hubs: number(hubs)?,
        };
        // A number with another spelling, for example with leading zeros, is not accepted.
        (check_job_name(job).is_ok() && name.file() == file).then_some(name)
    }

    /// Returns the file's name.
    pub fn file(&self) -> String {
        let PartName { job, round, hub, hubs } = self;
        format!("{job}@{}.hub{hub}of{hubs}.safetensors", round.0)
    }

    /// Whether the file is a part of this share.
    pub fn is_of(&self, share: Share) -> bool {
        (self.hub, self.hubs) == (share.hub, share.hubs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_and_no_other_is_a_parts() {
        let share = Share { hub: 1, hubs: 3, ..Share::WHOLE };
        let name = PartName::new("a.b_c", Round(120), share);
        assert_eq!(name.file(), "a.b_c@120.hub1of3.safetensors");
        assert_eq!(PartName::parse(&name.file()), Some(name));
        for other in [
            "a.safetensors",
            "a@120.hub1of3",
            "a@0120.hub1of3.safetensors",
            "a@+1.hub1of3.safetensors",
            "a@x.hub1of3.safetensors",
            "a@1.hub1.safetensors",
            "@1.hub1of3.safetensors",
            "a/b@1.hub1of3.safetensors",
        ] {
            assert_eq!(PartName::parse(other), None, "{other}");
        }
    }
}
