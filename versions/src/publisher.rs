//! The one program that writes a directory of versions.
//!
//! ```text
//!   1 whole   2 delta   3 delta   4 whole   5 delta   6 delta       whole_each: 3
//!   '--- removed together ----'   '- kept while one of its deltas is kept -'
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::Read;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use safetensors::Dtype;

use crate::delta::{Encoding, checksum, encode};
use crate::disk::{self, Draft};
use crate::error::VersionError;
use crate::index::{About, Base, INDEX, Index, Origin, VersionId};
use crate::reader::{At, Reader, readable};
use crate::shard::{self, Stored};
use crate::weights::Weights;
use crate::work::on_all_cores;

/// The name of the lock file in the directory.
const LOCK: &str = ".phub-publisher";

/// The name of the file with the job's name. It is written before the first version.
const JOB: &str = ".phub-job";

/// The limit on the bytes that are read from the file with the job's name.
const JOB_BYTES: u64 = 4096;

/// The settings of a publisher.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The number of versions from one whole version, which has all values, to the next. A new reader applies
    /// fewer deltas than this number.
    pub whole_each: NonZeroU32,
    /// The number of newest versions that are kept, with the versions on which they build.
    pub keep: NonZeroU32,
    /// The files that are copied into each whole version. An engine reads its model's configuration from the directory of
    /// the weights.
    pub also: Vec<PathBuf>,
    /// The form of deltas.
    pub deltas: Deltas,
    /// The length limit of a file, in bytes. A single tensor may be longer.
    pub file_bytes: u64,
}

/// The form of the deltas of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deltas {
    /// Always XOR.
    Xor,
    /// Always changed bytes with their positions.
    Overwrite,
    /// The form that makes the shorter delta. Each version is compressed twice.
    Smaller,
}

impl Deltas {
    /// All forms with their names.
    pub const NAMED: [(&str, Deltas); 3] =
        [("xor", Deltas::Xor), ("overwrite", Deltas::Overwrite), ("smaller", Deltas::Smaller)];

    fn encodings(self) -> &'static [Encoding] {
        match self {
            Deltas::Xor => &[Encoding::Xor],
            Deltas::Overwrite => &[Encoding::Overwrite],
            Deltas::Smaller => &Encoding::ALL,
        }
    }
}

impl FromStr for Deltas {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::NAMED.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, deltas)| deltas).ok_or_else(|| format!("{text:?}: expected xor, overwrite or smaller"))
    }
}

impl Default for Rules {
    fn default() -> Self {
        let number = |number| NonZeroU32::new(number).expect("the constant is not zero");
        Rules {
            whole_each: number(16),
            keep: number(8),
            also: Vec::new(),
            deltas: Deltas::Xor,
            file_bytes: 4 << 30,
        }
    }
}

/// Checks the files that whole versions get a copy of.
fn check_also(also: &[PathBuf]) -> Result<(), VersionError> {
    let mut names = BTreeSet::new();
    for path in also {
        let (name, _) = open_also(path)?;
        if !names.insert(name) {
            let why = "another file has this name, too; give each file another name";
            return Err(VersionError::Also { path: path.clone(), why });
        }
    }
    Ok(())
}

/// Opens a file that is copied into the directory of each whole version (not of deltas). Returns the name of the copies.
fn open_also(path: &Path) -> Result<(&str, File), VersionError> {
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.ends_with(".safetensors"));
    let wrong = |why| VersionError::Also { path: path.to_owned(), why };
    let name = name.ok_or_else(|| wrong("expected a UTF-8 name that does not end in .safetensors"))?;
    let doing = "opening a file to copy into the directory of each whole version";
    // The file is checked before it is opened, because opening a FIFO would wait for a writer.
    if !path.metadata().map_err(VersionError::disk(path, doing))?.is_file() {
        return Err(wrong("expected a file, and neither a directory nor a pipe"));
    }
    Ok((name, File::open(path).map_err(VersionError::disk(path, doing))?))
}

/// The publisher of a directory. A second publisher cannot open the same directory.
#[derive(Debug)]
pub struct Publisher {
    dir: PathBuf,
    rules: Rules,
    /// The job whose versions are in the directory, if there is one.
    job: Option<String>,
    /// The number of the newest version; 0 if there is none.
    newest: VersionId,
    /// The newest version, on which the next delta builds.
    last: Option<At>,
    /// The number of versions since the last whole one.
    deltas: u32,
    /// The reason why the newest version cannot be read.
    unreadable: Option<VersionError>,
    /// Whether this publisher made the directory.
    made_dir: bool,
    /// The file of the lock. It is in the directory, unless another program has removed it.
    lock: File,
}

/// Removes the directory if this publisher made it and published no version.
impl Drop for Publisher {
    fn drop(&mut self) {
        if self.made_dir && self.newest == VersionId(0) && self.job.is_none() && self.has_lock() {
            let _ = std::fs::remove_file(self.dir.join(LOCK));
            let _ = std::fs::remove_dir(&self.dir); // if it is empty
        }
    }
}

/// The result of publishing a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The version.
    pub id: VersionId,
    /// Whether the version is whole.
    pub is_whole: bool,
    /// The number of tensors in which a bit changed. In a whole version, the number of all tensors.
    pub tensors: usize,
    /// The length of the written files without the index, in bytes.
    pub bytes: u64,
    /// The number of versions that were removed.
    pub removed: usize,
    /// The faults after readers could see the version: its name was not synced to disk, or an old version was not removed.
    pub warnings: Vec<String>,
}

impl Publisher {
    /// Opens a directory, or creates it, and continues the numbers of its versions.
    ///
    /// # Errors
    /// Returns an error if another program publishes in the directory, or if the directory cannot be read or written.
    /// Returns an error if a file to copy cannot be read, or if two such files have one name.
    pub fn open(dir: &Path, rules: Rules) -> Result<Self, VersionError> {
        check_also(&rules.also)?;
        let made_dir = !dir.exists();
        std::fs::create_dir_all(dir).map_err(VersionError::disk(dir, "making it"))?;
        let lock = lock(dir)?;
        disk::sweep(dir)?;
        let newest = disk::versions(dir)?.last().copied();
        let mut publisher = Publisher {
            dir: dir.to_owned(),
            rules,
            job: job_of(dir)?,
            newest: newest.unwrap_or(VersionId(0)),
            last: None,
            deltas: 0,
            unreadable: None,
            made_dir,
            lock,
        };
        if let Some(newest) = newest {
            let mut reader = Reader::new(dir);
            match reader.go_to(newest) {
                Ok(at) => publisher.last = Some(at.clone()),
                Err(error) => publisher.unreadable = Some(error),
            }
            let all = readable(dir)?;
            publisher.deltas = all.iter().rev().take_while(|version| version.base.is_some()).count() as u32;
        }
        Ok(publisher)
    }

    /// Returns why the newest version could not be read when the directory was opened. In that case, the next version is
    /// whole: it has all values.
    pub fn unreadable(&self) -> Option<&VersionError> {
        self.unreadable.as_ref()
    }

    /// Whether the newest version has these weights, from this job and round.
    pub fn has(&self, origin: &Origin, weights: &Weights) -> bool {
        self.last.as_ref().is_some_and(|at| at.origin == *origin && at.weights == *weights)
    }

    /// Returns the job and the round of the newest version.
    pub fn last(&self) -> Option<&Origin> {
        self.last.as_ref().map(|at| &at.origin)
    }

    /// Checks that the directory belongs to this job, or to no job yet.
    ///
    /// # Errors
    /// Returns an error if it belongs to another job.
    pub fn check_job(&self, job: &str) -> Result<(), VersionError> {
        match self.job.as_deref() {
            Some(theirs) if theirs != job => {
                let (ours, theirs) = (job.to_owned(), theirs.to_owned());
                Err(VersionError::OtherJob { path: self.dir.clone(), ours, theirs })
            }
            _ => Ok(()),
        }
    }

    /// Whether the lock's file is still in the directory. Another program may have removed it.
    fn has_lock(&self) -> bool {
        let of = |file: Metadata| (file.dev(), file.ino());
        let there = self.dir.join(LOCK).metadata().map(of);
        matches!((there, self.lock.metadata().map(of)), (Ok(there), Ok(own)) if there == own)
    }

    /// Takes the lock again if another program has removed the directory or the lock's file. Another publisher may have used
    /// the directory since then, so the next version is whole.
    fn keep_lock(&mut self) -> Result<(), VersionError> {
        if self.has_lock() {
            return Ok(());
        }
        self.lock = lock(&self.dir)?;
        self.job = job_of(&self.dir)?;
        self.last = None;
        Ok(())
    }

    /// Writes the job's name into the directory, before its first version.
    fn keep_job(&mut self, job: &str) -> Result<(), VersionError> {
        let path = self.dir.join(JOB);
        if !path.exists() {
            disk::write_locked(&path, job.as_bytes(), "writing the name of the job")?;
        }
        self.job = Some(job.to_owned());
        Ok(())
    }

    /// Publishes weights as the next version, and removes old versions. An old version that cannot be removed is no error: the
    /// next call tries again.
    ///
    /// # Errors
    /// Returns an error if the directory belongs to another job, or cannot be written. Then there is no new version, and
    /// the caller may retry.
    pub fn publish(&mut self, origin: Origin, weights: Weights) -> Result<Published, VersionError> {
        self.keep_lock()?;
        self.check_job(&origin.job)?;
        self.keep_job(&origin.job)?;
        let there = disk::versions(&self.dir)?.last().copied();
        self.newest = self.newest.max(there.unwrap_or(self.newest));
        let id = VersionId(self.newest.0 + 1);
        // Another program may have removed the last version. Then no delta can build on it.
        let is_base = |last: &&At| there == Some(last.id) && last.weights.is_like(&weights);
        let base =
            self.last.as_ref().filter(is_base).filter(|_| self.deltas + 1 < self.rules.whole_each.get());
        let changes = base.map(|last| self.changes(last, &weights)).transpose()?;
        // If all bits have changed, whole weights may be shorter than the changes.
        let changes = changes.filter(|changes| changes.bytes() < weights.bytes().max(1));
        let about = About {
            id,
            base: changes
                .as_ref()
                .zip(base)
                .map(|(changes, last)| Base { id: last.id, encoding: changes.encoding }),
            origin,
        };
        let checksums = weights.checksums();
        let digest = weights.digest_of(&checksums);
        let stored = changes.as_ref().map_or_else(|| weights.stored(&checksums), Changes::stored);
        let unsynced = self.write(&about, digest, &stored)?;
        let (tensors, bytes) = (stored.len(), stored.iter().map(|stored| stored.bytes.len() as u64).sum());
        let is_whole = changes.is_none();
        drop(stored);
        drop(changes);
        self.newest = id;
        self.deltas = if is_whole { 0 } else { self.deltas + 1 };
        self.last = Some(At { id, origin: about.origin, weights });
        self.unreadable = None;
        let (removed, left) = self.remove_old();
        let warnings = unsynced.into_iter().chain(left).map(|error| error.to_string()).collect();
        Ok(Published { id, is_whole, tensors, bytes, removed, warnings })
    }

    /// Returns the changes from the last version, in the form that the rules ask for.
    fn changes<'a>(&self, last: &At, weights: &'a Weights) -> Result<Changes<'a>, VersionError> {
        let mut shortest: Option<Changes<'a>> = None;
        let too_long = |encoding: Encoding| {
            weights.0.iter().find(move |(_, tensor)| !encoding.fits(tensor.bytes.len() as u64))
        };
        for &encoding in self.rules.deltas.encodings() {
            if let Some((tensor, of)) = too_long(encoding) {
                if shortest.is_some() {
                    continue;
                }
                let (path, tensor, bytes) = (self.dir.clone(), tensor.clone(), of.bytes.len() as u64);
                return Err(VersionError::TooLong { path, tensor, bytes });
            }
            let changes = Changes::between(encoding, &last.weights, weights);
            let changes = changes.map_err(VersionError::disk(&self.dir, "compressing a delta"))?;
            if shortest.as_ref().is_none_or(|other| changes.bytes() < other.bytes()) {
                shortest = Some(changes);
            }
        }
        Ok(shortest.expect("there is an encoding"))
    }

    /// Writes a version. Returns an error if readers can see the version, and its name was not synced to disk.
    fn write(
        &self,
        about: &About,
        digest: String,
        tensors: &[Stored<'_>],
    ) -> Result<Option<VersionError>, VersionError> {
        let draft = Draft::make(&self.dir, about.id)?;
        let files = split(tensors, self.rules.file_bytes);
        let mut map = BTreeMap::new();
        for (at, of_file) in files.iter().enumerate() {
            let name = format!("model-{:05}-of-{:05}.safetensors", at + 1, files.len());
            draft.add(&name, |out| shard::write(out, about.base.is_none(), of_file))?;
            map.extend(of_file.iter().map(|stored| (stored.name.to_owned(), name.clone())));
        }
        if about.base.is_none() {
            self.copy_also(&draft)?;
        }
        draft.add(INDEX, |out| std::io::Write::write_all(out, &Index::new(about, digest, map).to_json()))?;
        draft.show(&self.dir, about.id)
    }

    fn copy_also(&self, draft: &Draft) -> Result<(), VersionError> {
        for path in &self.rules.also {
            let (name, mut from) = open_also(path)?;
            draft.add(name, |out| std::io::copy(&mut from, out).map(drop))?;
        }
        Ok(())
    }

    /// Removes the versions on which no kept version builds, the newest of them first. If a kill interrupts the removal, the
    /// remaining versions still begin with a whole version. Returns the number of removed versions, and the error of a
    /// version that could not be removed.
    fn remove_old(&self) -> (usize, Option<VersionError>) {
        let all = match readable(&self.dir) {
            Ok(all) if all.is_empty() => return (0, None),
            Ok(all) => all,
            Err(error) => return (0, Some(error)),
        };
        let oldest_kept = all.len().saturating_sub(self.rules.keep.get() as usize);
        let first = all[..=oldest_kept.min(all.len() - 1)].iter().rposition(|version| version.base.is_none());
        let old = &all[..first.unwrap_or(0)];
        for (removed, version) in old.iter().rev().enumerate() {
            if let Err(error) = disk::remove(&self.dir, version.id) {
                return (removed, Some(error));
            }
        }
        (old.len(), None)
    }
}

/// Takes the lock of a directory. The system releases the lock when the file is closed.
fn lock(dir: &Path) -> Result<File, VersionError> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(VersionError::disk(&path, "opening the publisher's lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(VersionError::InUse { path: dir.to_owned() }),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(VersionError::disk(&path, "taking the publisher's lock")(error))
        }
    }
}

/// Returns the job whose versions are in a directory, from the file with its name. In an older directory without this file,
/// the versions name the job.
fn job_of(dir: &Path) -> Result<Option<String>, VersionError> {
    let path = dir.join(JOB);
    let doing = "reading the name of the job whose versions these are";
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let all = disk::versions(dir)?;
            let mut known =
                all.iter().rev().filter_map(|&id| Index::read(&disk::of_version(dir, id), id).ok());
            return Ok(known.next().map(|(_, about)| about.origin.job));
        }
        Err(error) => return Err(VersionError::disk(&path, doing)(error)),
    };
    let mut job = String::new();
    file.take(JOB_BYTES).read_to_string(&mut job).map_err(VersionError::disk(&path, doing))?;
    // An editor, or `echo`, ends the file with a line break.
    match job.trim_end() {
        "" => Err(VersionError::NoJob { path }),
        job => Ok(Some(job.to_owned())),
    }
}

/// Splits tensors into files of at most `file_bytes`, in order.
fn split<'a, 'b>(tensors: &'b [Stored<'a>], file_bytes: u64) -> Vec<&'b [Stored<'a>]> {
    let mut files = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for (at, stored) in tensors.iter().enumerate() {
        let more = stored.bytes.len() as u64;
        if at > begin && bytes + more > file_bytes {
            files.push(&tensors[begin..at]);
            (begin, bytes) = (at, 0);
        }
        bytes += more;
    }
    if begin < tensors.len() {
        files.push(&tensors[begin..]);
    }
    files
}

/// The tensors that changed. Each has its name, its frame, and the checksum of its new values.
#[derive(Debug)]
struct Changes<'a> {
    encoding: Encoding,
    tensors: Vec<(&'a str, Vec<u8>, String)>,
}

impl<'a> Changes<'a> {
    /// Compares weights that have the same tensors, types and shapes.
    fn between(encoding: Encoding, old: &Weights, new: &'a Weights) -> std::io::Result<Self> {
        let pairs: Vec<_> = old.0.values().zip(&new.0).collect();
        let all = on_all_cores(&pairs, |(old, (name, new))| {
            let frame = encode(encoding, &old.bytes, &new.bytes)?;
            std::io::Result::Ok(frame.map(|frame| (name.as_str(), frame, checksum(&new.bytes))))
        });
        let tensors = all.into_iter().filter_map(Result::transpose).collect::<std::io::Result<_>>()?;
        Ok(Changes { encoding, tensors })
    }

    fn bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, frame, _)| frame.len() as u64).sum()
    }

    fn stored(&self) -> Vec<Stored<'_>> {
        let all = self.tensors.iter();
        all.map(|(name, frame, checksum)| {
            let shape = vec![frame.len()];
            Stored { name, dtype: Dtype::U8, shape, bytes: frame, checksum }
        })
        .collect()
    }
}
