//! The journal of a thread's changes to files, and the files that a loss of power leaves.
//!
//! | changed since the last sync | after a loss of power |
//! | --- | --- |
//! | contents of a file | as synced, as changed, cut short, or with blocks of zeros |
//! | names in a directory | as after some of the changes; if a change of a name is there, all earlier changes of this name are there, too |
//! | the directory itself | present, with files as above; gone, if its parent was not synced |
//!
//! A rename is one change of two names, as on every journaling file system. On ext4 and XFS the order is kept: if
//! a change of a name is on the disk, all earlier changes are, too. The sync of a file does not sync its name.
//!
//! Must not depend on checkpoints.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The length of a block that a loss of power sets to zero. It is short because the files of tests are short.
const BLOCK: usize = 64;

/// A change that is about to be made. Only `Make` is noted after the change.
pub(crate) enum Change<'a> {
    MakeDir(&'a Path),
    SyncDir(&'a Path),
    Make(&'a Path, &'a File),
    Reserve(&'a File, u64),
    Append(&'a File, &'a [u8]),
    WriteAt(&'a File, &'a [u8], u64),
    Sync(&'a File),
    Rename(&'a Path, &'a Path),
    Link(&'a Path, &'a Path),
    Remove(&'a Path),
}

/// Faults for the next changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trouble {
    /// The number of the change before which the process dies. The next change has number 0.
    pub death: Option<u64>,
    /// The change with this number fails.
    pub failure: Option<u64>,
    /// The disk is full for this many changes.
    pub full: u32,
}

/// The way in which a hub ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The process is killed. The kernel still has all changes, and they reach the disk.
    Kill,
    /// The disk has all synced changes, and some of the changes that are not synced.
    PowerLoss,
}

#[derive(Clone, Debug, Default)]
struct Contents {
    synced: Vec<u8>,
    now: Vec<u8>,
    /// The end of the file, where the next bytes are appended.
    end: usize,
}

type Names = BTreeMap<String, usize>;

/// A change of names in one directory.
#[derive(Clone, Debug)]
enum Naming {
    Add(String, usize),
    Rename(String, String),
    Remove(String),
}

impl Naming {
    fn concerns(&self, other: &Naming) -> bool {
        fn names(naming: &Naming) -> [&str; 2] {
            match naming {
                Naming::Add(name, _) | Naming::Remove(name) => [name, name],
                Naming::Rename(from, to) => [from, to],
            }
        }
        names(self).iter().any(|name| names(other).contains(name))
    }

    fn apply(&self, names: &mut Names) {
        match self {
            Naming::Add(name, file) => drop(names.insert(name.clone(), *file)),
            Naming::Remove(name) => drop(names.remove(name)),
            Naming::Rename(from, to) => {
                let file = names.remove(from);
                names.extend(file.map(|file| (to.clone(), file)));
            }
        }
    }
}

#[derive(Debug, Default)]
struct Directory {
    /// Whether the directory's own name is on the disk.
    is_synced: bool,
    names: Names,
    synced: Names,
    since: Vec<Naming>,
    files: Vec<Contents>,
}

impl Directory {
    fn changes(&mut self, naming: Naming) {
        naming.apply(&mut self.names);
        self.since.push(naming);
    }

    /// Returns the files that are on the disk after a loss of power.
    fn after_power_loss(&self, dice: &mut Dice) -> BTreeMap<String, Vec<u8>> {
        let kept = dice.below(4);
        let first = dice.below(self.since.len() as u64 + 1);
        let mut lost: Vec<&Naming> = Vec::new();
        let mut names = self.synced.clone();
        for (naming, number) in self.since.iter().zip(0..) {
            let is_kept = match kept {
                0 => true,
                1 => number < first, // as on ext4 and XFS
                _ => dice.below(2) == 0,
            };
            if is_kept && !lost.iter().any(|lost| lost.concerns(naming)) {
                naming.apply(&mut names);
            } else {
                lost.push(naming);
            }
        }
        names.into_iter().map(|(name, file)| (name, self.files[file].after_power_loss(dice))).collect()
    }
}

impl Contents {
    fn after_power_loss(&self, dice: &mut Dice) -> Vec<u8> {
        if self.synced == self.now {
            return self.now.clone();
        }
        match dice.below(3) {
            0 => self.synced.clone(),
            1 => self.now.clone(),
            _ => torn(&self.now, dice),
        }
    }
}

/// Returns the bytes, cut short or with blocks of zeros.
fn torn(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if dice.below(3) == 0 {
        bytes.truncate(dice.below(bytes.len() as u64) as usize);
    } else {
        let zeroed = dice.below(bytes.len().div_ceil(BLOCK) as u64) as usize;
        for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
            if number == zeroed || dice.below(4) == 0 {
                block.fill(0);
            }
        }
    }
    bytes
}

#[derive(Debug, Default)]
struct Journal {
    directories: BTreeMap<PathBuf, Directory>,
    /// The directory and number of each file of the journal, by inode.
    made: HashMap<u64, (PathBuf, usize)>,
    has_links: bool,
    trouble: Trouble,
    is_dead: bool,
    story: Vec<String>,
}

thread_local! {
    static JOURNAL: RefCell<Option<Journal>> = const { RefCell::new(None) };
}

fn with<T>(act: impl FnOnce(&mut Journal) -> T) -> T {
    JOURNAL.with_borrow_mut(|journal| act(journal.as_mut().expect("a journal was begun")))
}

/// A guard: while it exists, the changes of this thread are noted. If the thread panics, the journal is
/// printed.
pub(super) struct Noting;

/// Begins a journal. Without `has_links` the file system has no hard links.
pub(super) fn begin(has_links: bool) -> Noting {
    JOURNAL.set(Some(Journal { has_links, ..Journal::default() }));
    Noting
}

impl Drop for Noting {
    fn drop(&mut self) {
        let journal = JOURNAL.take().expect("a journal was begun");
        if std::thread::panicking() {
            eprintln!("{}", journal.story.join("\n"));
        }
    }
}

/// Adds a line to the story that a panic prints.
pub(super) fn tell(line: String) {
    with(|journal| journal.story.push(line));
}

/// Runs `act` with faults. Returns `None` if the process dies meanwhile.
pub(super) fn in_trouble<T>(trouble: Trouble, act: impl FnOnce() -> T) -> Option<T> {
    with(|journal| journal.trouble = trouble);
    let result = act();
    with(|journal| {
        journal.trouble = Trouble::default();
        (!std::mem::take(&mut journal.is_dead)).then_some(result)
    })
}

/// Notes a change. The caller then makes the change, unless this function returns an error.
pub(crate) fn note(change: Change<'_>) -> io::Result<()> {
    JOURNAL.with_borrow_mut(|journal| journal.as_mut().map_or(Ok(()), |journal| Ok(journal.note(change)?)))
}

fn is_now(count: &mut Option<u64>) -> bool {
    let now = *count == Some(0);
    *count = count.and_then(|count| count.checked_sub(1));
    now
}

impl Journal {
    fn note(&mut self, change: Change<'_>) -> Result<(), Errno> {
        if self.is_dead || is_now(&mut self.trouble.death) {
            self.is_dead = true;
            return Err(Errno::IO);
        }
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let needs_room = matches!(change, Change::Reserve(..) | Change::Append(..));
        let failed = match change {
            Change::Link(..) if !self.has_links => Some(Errno::PERM),
            _ if needs_room && self.trouble.full > 0 => {
                self.trouble.full -= 1;
                Some(Errno::NOSPC)
            }
            // The file exists already.
            Change::Make(..) => None,
            _ => is_now(&mut self.trouble.failure).then_some(Errno::IO),
        };
        let of = |path: &Path| format!("{}/{}", path.parent().map_or(String::new(), name), name(path));
        let outcome = failed.map_or(String::new(), |errno| format!(": {errno}"));
        self.story.push(match change {
            Change::Append(_, bytes) => format!("    Append {}{outcome}", bytes.len()),
            Change::WriteAt(_, bytes, at) => format!("    WriteAt {at}, {}{outcome}", bytes.len()),
            Change::Rename(from, to) => format!("    Rename {} {}{outcome}", of(from), name(to)),
            Change::Link(file, to) => format!("    Link {} {}{outcome}", of(file), name(to)),
            Change::Make(path, _) => format!("    Make {}", of(path)),
            Change::Reserve(_, bytes) => format!("    Reserve {bytes}{outcome}"),
            Change::Sync(_) => format!("    Sync{outcome}"),
            Change::MakeDir(path) => format!("    MakeDir {}{outcome}", of(path)),
            Change::SyncDir(path) => format!("    SyncDir {}{outcome}", of(path)),
            Change::Remove(path) => format!("    Remove {}{outcome}", of(path)),
        });
        if let Some(errno) = failed {
            return Err(errno);
        }
        match change {
            Change::MakeDir(path) => drop(self.directories.entry(path.to_owned()).or_default()),
            Change::SyncDir(path) => {
                if let Some(directory) = self.directories.get_mut(path) {
                    directory.synced = directory.names.clone();
                    directory.since.clear();
                }
                let within = self.directories.iter_mut().filter(|(name, _)| name.parent() == Some(path));
                within.for_each(|(_, directory)| directory.is_synced = true);
            }
            Change::Make(path, file) => {
                let directory = self.directory(path);
                directory.files.push(Contents::default());
                let number = directory.files.len() - 1;
                directory.changes(Naming::Add(name(path), number));
                let parent = path.parent().expect("a directory").to_owned();
                self.made.insert(inode(file), (parent, number));
            }
            Change::Reserve(file, bytes) => {
                let contents = self.contents(file);
                contents.now.resize(contents.now.len().max(bytes as usize), 0);
            }
            Change::Append(file, bytes) => {
                let contents = self.contents(file);
                let at = contents.end;
                contents.end += bytes.len();
                contents.write(at, bytes);
            }
            Change::WriteAt(file, bytes, at) => self.contents(file).write(at as usize, bytes),
            Change::Sync(file) => {
                let contents = self.contents(file);
                contents.synced = contents.now.clone();
            }
            Change::Rename(from, to) => {
                self.directory(from).changes(Naming::Rename(name(from), name(to)));
            }
            Change::Link(file, to) => {
                let directory = self.directory(file);
                let number = directory.names[&name(file)];
                directory.changes(Naming::Add(name(to), number));
            }
            // If the name does not exist, the kernel returns the error itself.
            Change::Remove(path) => {
                let directory = self.directory(path);
                if directory.names.contains_key(&name(path)) {
                    directory.changes(Naming::Remove(name(path)));
                }
            }
        }
        Ok(())
    }

    fn directory(&mut self, file: &Path) -> &mut Directory {
        let parent = file.parent().expect("a directory");
        self.directories.get_mut(parent).expect("made by the hub")
    }

    fn contents(&mut self, file: &File) -> &mut Contents {
        let (directory, number) = &self.made[&inode(file)];
        let directory = self.directories.get_mut(directory).expect("made by the hub");
        &mut directory.files[*number]
    }
}

impl Contents {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.now.resize(self.now.len().max(at + bytes.len()), 0);
        self.now[at..][..bytes.len()].copy_from_slice(bytes);
    }
}

fn inode(file: &File) -> u64 {
    file.metadata().expect("an open file").ino()
}

/// Ends the hub of a directory. Leaves the directory in the state in which the next hub finds it.
pub(super) fn end(dir: &Path, end: End, dice: &mut Dice) {
    with(|journal| {
        let Some(directory) = journal.directories.get_mut(dir) else { return };
        if end == End::PowerLoss {
            if !directory.is_synced && dice.below(2) == 0 {
                journal.directories.remove(dir);
                journal.story.push(format!("{} is gone", dir.display()));
                return std::fs::remove_dir_all(dir).unwrap();
            }
            let left = directory.after_power_loss(dice);
            journal.story.push(format!("{} has {:?}", dir.display(), Vec::from_iter(left.keys())));
            *directory = of_files(left);
        }
        directory.bring_to(dir);
    });
}

/// Damages one of the files whose names `may` accepts, and returns its name.
pub(super) fn damage(dir: &Path, dice: &mut Dice, may: impl Fn(&str) -> bool) -> Option<String> {
    with(|journal| {
        let directory = journal.directories.get_mut(dir)?;
        let names: Vec<String> = directory.names.keys().filter(|name| may(name)).cloned().collect();
        let name = names.get(dice.below(names.len() as u64) as usize)?;
        let number = directory.names[name];
        let contents = &mut directory.files[number];
        contents.now = torn(&contents.now, dice);
        contents.synced = contents.now.clone();
        directory.bring_to(dir);
        journal.story.push(format!("{name} of {} is damaged", dir.display()));
        Some(name.clone())
    })
}

/// Removes all files whose names `may` accepts, as an administrator may do.
pub(super) fn take_away(dir: &Path, may: impl Fn(&str) -> bool) {
    with(|journal| {
        let Some(directory) = journal.directories.get_mut(dir) else { return };
        let left = directory.names.iter().filter(|(name, _)| !may(name));
        *directory =
            of_files(left.map(|(name, file)| (name.clone(), directory.files[*file].now.clone())).collect());
        directory.bring_to(dir);
    });
}

/// Returns a directory with these files, all on the disk.
fn of_files(files: BTreeMap<String, Vec<u8>>) -> Directory {
    let names: Names = files.keys().cloned().zip(0..).collect();
    let of = |now: Vec<u8>| Contents { synced: now.clone(), end: now.len(), now };
    Directory {
        is_synced: true,
        synced: names.clone(),
        names,
        since: Vec::new(),
        files: files.into_values().map(of).collect(),
    }
}

impl Directory {
    /// Makes the real directory equal to this directory.
    fn bring_to(&self, dir: &Path) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != super::super::lock::LOCK {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
        for (name, file) in &self.names {
            std::fs::write(dir.join(name), &self.files[*file].now).unwrap();
        }
    }
}

/// The dice of a story: SplitMix64.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).checked_rem(limit).unwrap_or(0)
    }

    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns the numbers below `count` in any order.
    pub(super) fn order(&mut self, count: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..count).collect();
        (1..count).for_each(|last| numbers.swap(last, self.below(last as u64 + 1) as usize));
        numbers
    }
}
