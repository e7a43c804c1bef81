//! The jobs that have checkpoints, and which of them are the oldest. Each run without a chosen name is a separate job, and
//! most of these jobs are never continued.
//!
//! Shared by the threads that save and load. Must not depend on which jobs the hub has now.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use checkpoint_file::about;
use pbox_core::control::check_job_name;

use super::disk;
use super::error::CheckpointError;
use super::part_name::PartName;
use super::store::CheckpointStore;

/// A job that has files in the directory.
#[derive(Debug)]
pub struct SavedJob {
    /// The name.
    pub name: String,
    /// The files: the newest checkpoint, older checkpoints, and files that were renamed because they were
    /// damaged or not finite.
    files: Vec<PathBuf>,
}

impl CheckpointStore {
    /// Returns the jobs whose files may be removed, and the number of jobs to remove. The job that was saved
    /// longest ago comes first; then come the jobs in `ended`, in this order. A job over several hubs is left out, because the parts of all its hubs are
    /// needed. A file that no hub wrote is left out, too.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub fn old_jobs(&self, ended: &[String]) -> Result<(Vec<SavedJob>, usize), CheckpointError> {
        let Some(most) = self.jobs else { return Ok((Vec::new(), 0)) };
        let found = self.by_job().map_err(|error| self.failed("looking for files of old jobs", error))?;
        let mut jobs = Vec::new();
        for (name, files) in found {
            let newest = self.file(&format!("{name}.safetensors"));
            let saved = newest.metadata().and_then(|file| file.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            let is_whole = files.iter().all(|file| PartName::parse(&file_name(file)).is_none());
            if is_whole && about(&newest).is_ok_and(|about| about.job == name) {
                jobs.push((saved, SavedJob { name, files }));
            }
        }
        let ended = |job: &SavedJob| ended.iter().position(|name| *name == job.name);
        jobs.sort_by_key(|(saved, job)| (ended(job), *saved));
        let too_many = jobs.len().saturating_sub(most.get() as usize);
        Ok((jobs.into_iter().map(|(_, job)| job).collect(), too_many))
    }

    /// Removes all files of a job that is not running. The newest file is removed last, after the removal of
    /// the other files is on the disk. So after a crash in between, the job never continues from an older
    /// state.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed.
    pub fn remove_job(&self, SavedJob { name, files }: SavedJob) -> Result<(), CheckpointError> {
        self.keep_lock()?;
        let (newest, older): (Vec<PathBuf>, Vec<PathBuf>) =
            files.into_iter().partition(|file| file_name(file) == format!("{name}.safetensors"));
        let remove = |files: Vec<PathBuf>| {
            files.iter().try_for_each(|file| match disk::remove(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            })
        };
        let removed = remove(older).and_then(|()| disk::sync_dir(&self.dir)).and_then(|()| remove(newest));
        removed.map_err(|error| self.failed("removing files of an old job", error))
    }

    /// Returns, by job, all files of the directory that are named like checkpoints.
    fn by_job(&self) -> io::Result<HashMap<String, Vec<PathBuf>>> {
        let mut jobs: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(stem) = name.strip_suffix(".safetensors") else { continue };
            let job = stem.split_once('@').map_or(stem, |(job, _)| job);
            if check_job_name(job).is_ok() && entry.file_type()?.is_file() {
                jobs.entry(job.to_owned()).or_default().push(entry.path());
            }
        }
        Ok(jobs)
    }
}

fn file_name(path: &std::path::Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
