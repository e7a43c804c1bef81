//! The generations of a job's checkpoint: the newest file has the job's name, and the names of older files
//! have their round.
//!
//! ```text
//!   train.safetensors               the newest
//!   train@110.safetensors           the previous checkpoint; --checkpoint-keep counts the newest and the older checkpoints together
//!   train@100.safetensors
//!   train@damaged.safetensors       the last newest file that turned out to be damaged
//!   train@not-finite.safetensors    the last state with NaN or infinity, which replaced nothing
//! ```
//!
//! A job's name never has an `@`. So no job continues from the two files with a word after the `@`, and no job's own
//! file has such a name.
//!
//! Shared by the threads that save and load. Must not depend on the values in a file.

use std::io;
use std::path::{Path, PathBuf};

use checkpoint_file::about;
use pbox_core::control::check_job_name;
use pbox_core::{Key, Restored, Round, Share, Tensors};

use super::disk;
use super::error::CheckpointError;
use super::part_name::PartName;
use super::store::CheckpointStore;

/// A job's state from its checkpoint.
#[derive(Debug)]
pub struct Loaded {
    /// The state.
    pub restored: Restored,
    /// The reason, if the state does not come from the newest file.
    pub warning: Option<String>,
}

/// Parses the name of an older generation of a job. Returns its round.
pub(super) fn generation(job: &str, file: &str) -> Option<Round> {
    let round = file.strip_prefix(job)?.strip_prefix('@')?.strip_suffix(".safetensors")?;
    let round = Round(round.parse().ok()?);
    // A number with another spelling, for example with leading zeros, is not accepted.
    (generation_name(job, round) == file).then_some(round)
}

fn generation_name(job: &str, round: Round) -> String {
    format!("{job}@{}.safetensors", round.0)
}

/// Returns the file name for a state of a job, or of a share, that contains NaN or infinity.
pub(super) fn not_finite_name(job: &str, share: Share) -> String {
    aside_name(job, "not-finite", share)
}

/// Returns the file name for the last damaged checkpoint of a job, or the last damaged part of a share.
pub(super) fn damaged_name(job: &str, share: Share) -> String {
    aside_name(job, "damaged", share)
}

fn aside_name(job: &str, why: &str, share: Share) -> String {
    match share.is_whole() {
        true => format!("{job}@{why}.safetensors"),
        false => format!("{job}@{why}.hub{}of{}.safetensors", share.hub, share.hubs),
    }
}

/// Returns the job in the name of a checkpoint file, and the round if the name has one. Returns `None` if no
/// job continues from a file of this name.
pub fn named(file: &str) -> Option<(String, Option<Round>)> {
    if let Some(part) = PartName::parse(file) {
        return Some((part.job, Some(part.round)));
    }
    let name = file.strip_suffix(".safetensors")?;
    let (job, round) = match name.split_once('@') {
        None => (name, None),
        Some((job, _)) => (job, Some(generation(job, file)?)),
    };
    check_job_name(job).is_ok().then(|| (job.to_owned(), round))
}

impl CheckpointStore {
    /// Returns the job's checkpoint; `None` if the job has no checkpoint. If the newest file is missing or damaged, the
    /// job continues from an older generation. If every generation is damaged, this returns an error, so that no job
    /// begins from zero silently. Keys that cannot be saved are an error, too.
    pub fn load(
        &self,
        job: &str,
        keys: &[Key],
        tensors: &Tensors,
    ) -> Result<Option<Loaded>, CheckpointError> {
        let newest = self.path(job)?;
        self.rounds(job, Share::WHOLE)?;
        let damage = match self.load_file(newest.clone(), job, keys, tensors, None) {
            Ok(Some(restored)) => return Ok(Some(Loaded { restored, warning: None })),
            Ok(None) => None,
            Err(error) if error.is_damage() => Some(error),
            Err(error) => return Err(error),
        };
        let mut damage_of_older = None;
        for round in self.generations(job)?.into_iter().rev() {
            let path = self.file(&generation_name(job, round));
            let restored = match self.load_file(path.clone(), job, keys, tensors, None) {
                Ok(Some(restored)) => restored,
                Ok(None) => continue,
                Err(error) if error.is_damage() => {
                    tracing::warn!(job, %error, "an older checkpoint is damaged, too");
                    damage_of_older.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let why = match damage {
                None => format!("there is no {}", newest.display()),
                Some(error) => self.put_aside(job, &newest, &error),
            };
            let path = path.display();
            let warning = format!("the job continues from the previous checkpoint, {path}: {why}");
            return Ok(Some(Loaded { restored, warning: Some(warning) }));
        }
        damage.or(damage_of_older).map_or(Ok(None), Err)
    }

    /// Renames a damaged newest file, so that it never counts as an older generation. Returns the error and the
    /// new name, for the log.
    fn put_aside(&self, job: &str, newest: &Path, error: &CheckpointError) -> String {
        let aside = self.file(&damaged_name(job, Share::WHOLE));
        match disk::rename(newest, &aside) {
            Ok(()) => format!("{error} (the file is {} now)", aside.display()),
            Err(failed) => format!("{error} (renaming the file to {} failed: {failed})", aside.display()),
        }
    }

    /// Returns the rounds of a job's older generations, ascending.
    pub(super) fn generations(&self, job: &str) -> Result<Vec<Round>, CheckpointError> {
        let failed = |error| self.failed("looking for older checkpoints", error);
        let mut rounds = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            rounds.extend(name.to_str().and_then(|name| generation(job, name)));
        }
        rounds.sort_unstable();
        Ok(rounds)
    }

    /// Gives the newest file a second name, which has its round. The next file, with the state before round `next`,
    /// then replaces the first name. So the job has a newest file at any time.
    pub(super) fn keep_newest(&self, job: &str, newest: &Path, next: Round) -> io::Result<()> {
        if self.keep.get() == 1 || !newest.is_file() {
            return Ok(());
        }
        // A file with an unreadable header gets no second name: its round is unknown, so the job could not continue
        // from it.
        let Ok(round) = about(newest).map(|about| about.round) else { return Ok(()) };
        if round == next {
            return Ok(());
        }
        let kept: PathBuf = self.file(&generation_name(job, round));
        match disk::remove(&kept) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // On a file system without hard links, the file is renamed. If the hub is killed right afterwards, no file has
        // the job's name, and only generations are left.
        disk::link(newest, &kept).or_else(|_| disk::rename(newest, &kept))
    }

    /// Removes one file of a job to make room for the state before `round`. Files from which no job continues are removed
    /// first, then files of rounds after `round`, which the job repeats, and then the oldest generations. The newest
    /// readable generation is kept. Returns whether a file was removed.
    pub(super) fn make_room(&self, job: &str, share: Share, round: Round) -> io::Result<bool> {
        let mut names = vec![damaged_name(job, share), not_finite_name(job, share)];
        if share.is_whole() {
            let rounds = self.generations(job).map_err(io::Error::other)?;
            let (past, mut older): (Vec<Round>, Vec<Round>) =
                rounds.into_iter().partition(|&kept| kept > round);
            let has_newest = self.path(job).is_ok_and(|newest| about(&newest).is_ok());
            if !has_newest {
                older.pop();
            }
            names.extend(past.into_iter().chain(older).map(|round| generation_name(job, round)));
        }
        for path in names.iter().map(|name| self.file(name)) {
            match disk::remove(&path) {
                Ok(()) => {
                    if let Some(times) = self.made_room.count() {
                        tracing::warn!(
                            job,
                            times,
                            "no room for a new checkpoint: {} is removed",
                            path.display()
                        );
                    }
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Removes the generations that are no longer needed. Of the generations before `round`, keeps the newest: one less
    /// than the number of checkpoints to keep, because the newest file counts, too. Removes the generations of `round`
    /// and later, because the job has gone back from them.
    pub(super) fn prune(&self, job: &str, round: Round) -> Result<(), CheckpointError> {
        let rounds = self.generations(job)?;
        let older = rounds.iter().filter(|&&kept| kept < round).count();
        let too_many = older.saturating_sub(self.keep.get() as usize - 1);
        for gone in rounds[..too_many].iter().chain(&rounds[older..]) {
            let path = self.file(&generation_name(job, *gone));
            disk::remove(&path).map_err(|error| self.failed("removing an old checkpoint", error))?;
            tracing::debug!(job, "removed {}", path.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_generation_or_of_none() {
        assert_eq!(generation("a.b", "a.b@120.safetensors"), Some(Round(120)));
        for other in [
            "a.b.safetensors",
            "a.b@0120.safetensors",
            "a.b@+1.safetensors",
            "a.b@not-finite.safetensors",
            "a.b@1.hub0of2.safetensors",
            "a@1.safetensors",
        ] {
            assert_eq!(generation("a.b", other), None, "{other}");
        }
        assert_eq!(named("a.safetensors"), Some(("a".into(), None)));
        assert_eq!(named("a@7.safetensors"), Some(("a".into(), Some(Round(7)))));
        assert_eq!(named("a@7.hub0of2.safetensors"), Some(("a".into(), Some(Round(7)))));
        assert_eq!(named("a@not-finite.safetensors"), None);
        let part = Share { hub: 0, hubs: 2, ..Share::WHOLE };
        assert_eq!(named(&not_finite_name("a", part)), None);
        assert_eq!(named(&damaged_name("a", part)), None);
    }
    #[test]
    fn a_job_whose_older_generations_alone_are_left_and_are_damaged_is_not_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        std::fs::write(store.file(&generation_name("job", Round(3))), "torn").unwrap();
        let optimizer = pbox_core::Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
        assert!(store.load("job", &[Key::f32("a", [1])], &optimizer.into()).unwrap_err().is_damage());
    }

    #[test]
    fn the_only_generation_stays_where_there_is_no_room_for_another_state_of_its_round() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        for round in [3, 4] {
            std::fs::write(store.file(&generation_name("job", Round(round))), "a state").unwrap();
        }
        assert!(store.make_room("job", Share::WHOLE, Round(3)).unwrap(), "round 4 is of a past");
        assert!(!store.make_room("job", Share::WHOLE, Round(3)).unwrap());
        assert_eq!(store.generations("job").unwrap(), [Round(3)]);
    }
}
