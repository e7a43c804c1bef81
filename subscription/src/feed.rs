//! The feeds of weights: from a job's hubs, or from a directory of versions. The subscription's thread makes one try
//! at a time.

use std::num::NonZeroU32;
use std::path::Path;

use versions::{Origin, Reader, VersionError, VersionId};

use crate::each_rounds::EachRounds;
use crate::error::{NoWeights, SubscriptionError};
use crate::source::{Fetched, Source};
use crate::subscription::{Version, Wanted};

/// The source of a job's weights: its hubs, or a directory of versions.
#[derive(Debug)]
pub(crate) enum Feed {
    Hubs(HubFeed),
    Directory(DirectoryFeed),
}

/// The hubs of a job, and what this reader knows about the job.
#[derive(Debug)]
pub(crate) struct HubFeed {
    source: Source,
    /// The wanted rounds, and their distance. `None` if the newest weights are wanted.
    rounds: Option<(EachRounds, NonZeroU32)>,
    /// The version that was last returned, and the digest of its weights. The digest is needed, because the same round
    /// may have other weights later: the job may continue from a checkpoint, or be a new job of the same name.
    last: Option<(Origin, String)>,
    /// Whether the job has been seen at its hub, and the hub has always answered since. If the job is
    /// then missing, it has ended.
    is_known: bool,
}

/// A directory of versions, and the reader's place in it.
#[derive(Debug)]
pub(crate) struct DirectoryFeed {
    reader: Reader,
    wanted: Wanted,
    /// The newest version that was looked at.
    last: Option<VersionId>,
    /// The version that was last returned.
    shown: Option<VersionId>,
}

/// The result of one try.
#[derive(Debug)]
pub(crate) enum Step {
    Version(Version),
    /// There is no newer version. The text describes the last version.
    Unchanged(String),
    /// There is no version now. The text is the reason.
    RetryLater(String),
    /// There is no version. The text is the reason. The next try is due at once.
    RetryNow(String),
    End,
    Fault(SubscriptionError),
}

impl Feed {
    pub fn to_hubs(source: Source, wanted: Wanted) -> Self {
        let rounds = match wanted {
            Wanted::Newest { .. } => None,
            Wanted::Each(each) => Some((EachRounds::new(each), each)),
        };
        Feed::Hubs(HubFeed { source, rounds, last: None, is_known: false })
    }

    pub fn to_directory(directory: &Path, wanted: Wanted) -> Self {
        Feed::Directory(DirectoryFeed { reader: Reader::new(directory), wanted, last: None, shown: None })
    }

    /// Forgets the last version.
    pub fn forget(&mut self) {
        match self {
            Feed::Hubs(hubs) => hubs.last = None,
            Feed::Directory(directory) => (directory.last, directory.shown) = (None, None),
        }
    }

    /// Tries once.
    pub fn step(&mut self) -> Step {
        match self {
            Feed::Hubs(hubs) => hubs.step(),
            Feed::Directory(directory) => directory.step(),
        }
    }
}

impl HubFeed {
    fn step(&mut self) -> Step {
        let fetched = match &mut self.rounds {
            Some((rounds, _)) => self.source.fetch_next(rounds),
            None => self.source.fetch().map(|(origin, weights)| Fetched::Weights(origin, weights)),
        };
        match fetched {
            Ok(Fetched::Weights(origin, weights)) => {
                self.is_known = true;
                let now = (origin.clone(), weights.digest());
                if self.last.as_ref() == Some(&now) {
                    return Step::Unchanged(format!("the job is still before round {}", origin.round));
                }
                let skipped = self.skipped(origin.round);
                self.last = Some(now);
                Step::Version(Version { origin, id: None, skipped, weights })
            }
            Ok(Fetched::Ahead) => {
                self.is_known = true;
                Step::RetryLater("the next wanted round is too far ahead of the job".to_owned())
            }
            Ok(Fetched::Passed(passed)) => {
                self.is_known = true;
                // The next try is due at once. If it were later, the next wanted round might pass, too.
                Step::RetryNow(passed.to_string())
            }
            Err(NoWeights::NoJob(_)) if self.is_known => Step::End,
            Err(NoWeights::Away(why)) => {
                // From now on, a missing job does not mean that the job has ended: a hub that returns has no job until its
                // workers have joined again.
                self.is_known = false;
                Step::RetryLater(why)
            }
            Err(NoWeights::NotYet(why) | NoWeights::NoJob(why)) => Step::RetryLater(why),
            Err(NoWeights::Lost(why)) => Step::Fault(SubscriptionError::Lost(why)),
            Err(NoWeights::Never(error)) => Step::Fault(SubscriptionError::Source(error)),
        }
    }

    /// Returns the number of wanted rounds between the last version and this round.
    fn skipped(&self, round: u32) -> u64 {
        let (Some((_, each)), Some((last, _))) = (&self.rounds, &self.last) else { return 0 };
        (round.saturating_sub(last.round) / each.get()).saturating_sub(1).into()
    }
}

impl DirectoryFeed {
    /// Returns the newest version. If the directory was emptied and filled again, the numbers of its versions begin again. The
    /// reader then forgets the versions that it has seen.
    fn newest(&mut self) -> Result<Option<VersionId>, VersionError> {
        let mut newest = self.reader.newest()?;
        if newest < self.last {
            // The publisher may have removed the last version while this listing ran, after it had published a newer
            // version. A second listing then has the newer version.
            newest = self.reader.newest()?;
        }
        let is_older = newest.is_some() && newest < self.last;
        if is_older || (newest.is_some() && newest == self.last && self.reader.is_replaced()) {
            (self.last, self.shown) = (None, None);
        }
        Ok(newest)
    }

    fn step(&mut self) -> Step {
        let newest = self.newest();
        let next = match self.wanted {
            Wanted::Newest { .. } => newest.map(|newest| newest.filter(|id| Some(*id) > self.last)),
            Wanted::Each(each) => newest.and_then(|_| self.reader.next(self.last, each)),
        };
        let next = match next {
            Ok(Some(next)) => next,
            Ok(None) => {
                let none = |last| format!("none is newer than {last}");
                return Step::RetryLater(self.last.map_or("there is none".to_owned(), none));
            }
            Err(error) => return fault(error),
        };
        match self.reader.go_to(next) {
            Ok(at) => {
                let (origin, weights) = (at.origin.clone(), at.weights.clone());
                let between = |from: VersionId, to: VersionId| match self.wanted {
                    Wanted::Newest { .. } => to.0 - from.0,
                    Wanted::Each(each) => (to.0 - from.0) / u64::from(each.get()),
                };
                let skipped = self.shown.map_or(0, |shown| between(shown, next) - 1);
                (self.last, self.shown) = (Some(next), Some(next));
                Step::Version(Version { origin, id: Some(next), skipped, weights })
            }
            Err(error) => {
                if !error.may_pass() {
                    // The damaged version counts as seen, so the next call waits for a newer version.
                    self.last = Some(next);
                }
                fault(error)
            }
        }
    }
}

fn fault(error: VersionError) -> Step {
    match error.may_pass() {
        true => Step::RetryLater(error.to_string()),
        false => Step::Fault(error.into()),
    }
}
