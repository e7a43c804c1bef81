//! Checkpoints of a job over several hubs: the parts of this hub, one file for each round.
//!
//! A round is *whole* when every hub of the job has its part of the round. A single hub cannot know whether a round is whole.
//! So a hub keeps each part until it is notified that the part is no longer needed.
//!
//! Shared by the threads that save and load. Must not depend on other hubs.

use std::fs::File;
use std::path::PathBuf;

use checkpoint_file::check_digest;
use pbox_core::{Key, Piece, Restored, Round, Share, Tensors};

use super::disk;
use super::error::CheckpointError;
use super::generations::damaged_name;
use super::part_name::PartName;
use super::store::CheckpointStore;

/// The job and the share that a part belongs to.
#[derive(Clone, Copy, Debug)]
pub struct PartOf<'a> {
    /// The job's name.
    pub job: &'a str,
    /// The number of this hub among the job's hubs.
    pub share: Share,
    /// The piece of each key that the hub owns.
    pub pieces: &'a [Piece],
}

impl CheckpointStore {
    /// Returns the rounds of the parts, ascending. Returns no rounds for a job over one hub, which has no parts.
    ///
    /// # Errors
    /// Returns an error if the directory has checkpoints of the job for another share. Without the error, the job
    /// would begin anew without a warning.
    pub fn rounds(&self, job: &str, share: Share) -> Result<Vec<Round>, CheckpointError> {
        let own = self.path(job)?;
        if !share.is_whole() && (own.exists() || !self.generations(job)?.is_empty()) {
            return Err(CheckpointError::OtherShape { path: own, share });
        }
        let parts = self.parts(job)?;
        if let Some(other) = parts.iter().find(|part| share.is_whole() || !part.is_of(share)) {
            return Err(CheckpointError::OtherShape { path: self.file(&other.file()), share });
        }
        let mut rounds: Vec<Round> = parts.into_iter().map(|part| part.round).collect();
        rounds.sort_unstable();
        Ok(rounds)
    }

    /// Loads this hub's part of a round that [`rounds`](Self::rounds) returned.
    pub fn load_part(
        &self,
        part: PartOf<'_>,
        round: Round,
        keys: &[Key],
        tensors: &Tensors,
    ) -> Result<Restored, CheckpointError> {
        let path = self.file_of(part.job, part.share, round)?;
        let restored = self.load_file(path.clone(), part.job, keys, tensors, Some(part))?;
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let restored =
            restored.ok_or_else(|| CheckpointError::Read { path: path.clone(), error: missing() })?;
        match restored.round() {
            seen if seen == round => Ok(restored),
            seen => Err(CheckpointError::PartRound { path, seen, expected: round }),
        }
    }

    /// Reads the part of a round, and returns a description of its damage, if it is damaged. Keeps nothing in
    /// memory. Other faults are left to [`load_part`](Self::load_part).
    pub fn damage(&self, job: &str, share: Share, round: Round) -> Result<Option<String>, CheckpointError> {
        let path = self.file_of(job, share, round)?;
        let checked = match std::fs::metadata(&path) {
            Ok(found) if !found.is_file() => return Ok(Some(CheckpointError::NotAFile { path }.to_string())),
            Ok(found) => File::open(&path).map(|file| check_digest(file, found.len())),
            Err(error) => Err(error),
        };
        match checked {
            Ok(Ok(())) => Ok(None),
            Ok(Err(error)) => {
                let error = CheckpointError::Decode { path, error };
                Ok(error.is_damage().then(|| error.to_string()))
            }
            Err(error) => Ok(Some(CheckpointError::Read { path, error }.to_string())),
        }
    }

    /// Renames the damaged parts of rounds after `round`. The job continues from `round`, and will write the later rounds
    /// again.
    pub fn put_parts_aside(&self, job: &str, share: Share, round: Round) -> Result<(), CheckpointError> {
        for later in self.rounds(job, share)?.into_iter().filter(|&later| later > round) {
            if let Some(why) = self.damage(job, share, later)? {
                let aside = self.file(&damaged_name(job, share));
                disk::rename(&self.file_of(job, share, later)?, &aside)
                    .map_err(|error| self.failed("giving a damaged part another name", error))?;
                tracing::warn!(job, why, "a damaged checkpoint is {} now", aside.display());
            }
        }
        Ok(())
    }

    /// Returns the path of a job's file or, if the job is over several hubs, of this share's part of the round.
    pub(super) fn file_of(&self, job: &str, share: Share, round: Round) -> Result<PathBuf, CheckpointError> {
        let whole = self.path(job)?; // checks the name
        Ok(if share.is_whole() { whole } else { self.file(&PartName::new(job, round, share).file()) })
    }

    /// Removes the parts of all rounds that `keep` rejects, and returns the rounds that are left, ascending.
    /// If the latest part is removed, the job repeats its rounds and writes that round again. So the removal is on the disk
    /// when this function returns. Otherwise an old part could reappear after a crash, and complete a round with the new parts
    /// of other hubs.
    pub fn keep_parts(
        &self,
        job: &str,
        share: Share,
        keep: impl Fn(Round) -> bool,
    ) -> Result<Vec<Round>, CheckpointError> {
        let rounds = self.rounds(job, share)?;
        let (kept, gone): (Vec<Round>, Vec<Round>) = rounds.into_iter().partition(|&round| keep(round));
        let goes_back = gone.last() > kept.last();
        for round in gone {
            let path = self.file_of(job, share, round)?;
            disk::remove(&path).map_err(|error| self.failed("removing a part that is not needed", error))?;
            tracing::debug!(job, round = round.0, "removed {}", path.display());
        }
        if goes_back {
            let synced = disk::sync_dir(&self.dir);
            synced.map_err(|error| {
                self.failed("syncing the removal of later parts to the disk (fsync)", error)
            })?;
        }
        Ok(kept)
    }

    fn parts(&self, job: &str) -> Result<Vec<PartName>, CheckpointError> {
        let entries = std::fs::read_dir(&self.dir).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
        let entries = entries.map_err(|error| self.failed("looking for parts of checkpoints", error))?;
        let parts = entries.iter().filter_map(|entry| PartName::parse(entry.file_name().to_str()?));
        Ok(parts.filter(|part| part.job == job).collect())
    }
}
