//! Deltas between the states that a job's readers got. A reader that has one of these states gets only the differences.
//!
//! ```text
//!   state of round 10 --delta--> 14 --delta--> 20, whose values are here
//!          ^-- a reader that has it gets both deltas
//! ```
//!
//! A job has one row of deltas for each kind of state that readers want. The row exists from the first reader that
//! wants deltas until no reader has read for an hour. The memory of a row has a bound: the values of the newest state,
//! and as many bytes of deltas. So deltas are never longer than the state.
//!
//! A lock belongs to each row, because a delta is made without the registry's lock. This module must not depend on clients.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use checkpoint_file::{DIGEST_BYTES, Delta, MAX_DELTAS};
use fabric::Slab;
use pbox_core::{Dtype, Round, Selection};
use zerocopy::IntoBytes;

use super::copies::StateFile;
use super::for_readers::ForReaders;

/// The digest of a state's file.
pub(crate) type FileDigest = [u8; DIGEST_BYTES];

/// A row of a job, which begins with the first state that a reader gets.
pub(super) type JobRow = Arc<Mutex<Option<Row>>>;

/// The rows of a job, each with its kind of state.
#[derive(Debug, Default)]
pub(crate) struct Rows(Vec<((Selection, Dtype), JobRow)>);

impl Drop for Rows {
    /// Releases the memory on another thread. The kernel needs seconds for tens of GiB, and this thread may hold the registry's lock.
    fn drop(&mut self) {
        let rows = std::mem::take(&mut self.0);
        if !rows.is_empty() {
            // If there is no thread, the memory is released here.
            let _ = std::thread::Builder::new().name("phub-free".into()).spawn(move || drop(rows));
        }
    }
}

impl Rows {
    /// Returns the row of a kind of state.
    pub fn of(&mut self, selection: Selection, dtype: Dtype) -> JobRow {
        let of = (selection, dtype);
        let found = self.0.iter().find(|(other, _)| *other == of).map(|(_, row)| Arc::clone(row));
        found.unwrap_or_else(|| {
            let row = Arc::default();
            self.0.push((of, Arc::clone(&row)));
            row
        })
    }
}

/// A row of deltas, and the values to which it leads.
#[derive(Debug)]
pub(crate) struct Row {
    newest: FileDigest,
    before: Round,
    dtype: Dtype,
    /// The number of bytes of the values.
    bytes: usize,
    values: Slab,
    /// The memory of the values, and the deltas' highest possible memory.
    _memory: ForReaders,
    /// The deltas, the newest last. Each has the digest of the state that it starts from.
    deltas: VecDeque<(FileDigest, Arc<Delta>)>,
}

impl Row {
    /// Adds the delta to this state, unless the row already has this state or a newer state. Returns the deltas that
    /// lead from `base` to this state, the oldest first. `None` if there are no such deltas. Without `has_room`, no new
    /// row begins.
    ///
    /// # Errors
    /// Returns an error if there is no memory. The row is then empty.
    pub fn deltas(
        row: &mut Option<Self>,
        file: &StateFile,
        base: Option<FileDigest>,
        has_room: bool,
    ) -> io::Result<Option<Vec<Arc<Delta>>>> {
        *row = match row.take() {
            Some(row) if row.newest == file.image.digest() || file.before < row.before => Some(row),
            Some(mut row)
                if (row.dtype, row.bytes) == (file.image.dtype(), file.image.value_bytes() as usize) =>
            {
                row.add(file)?;
                Some(row)
            }
            _ if has_room => Some(Row::new(file)?),
            _ => None,
        };
        Ok(row.as_ref().and_then(|row| row.between(base?, file.image.digest())))
    }

    /// Creates a row without deltas.
    fn new(file: &StateFile) -> io::Result<Self> {
        let image = &file.image;
        let bytes = image.value_bytes() as usize;
        let mut values =
            Slab::zeroed("the base of deltas", bytes.div_ceil(size_of::<f32>())).map_err(io::Error::other)?;
        let mut rest = values.as_mut_slice().as_mut_bytes();
        for range in image.ranges() {
            let elements = image.values(&range);
            let (here, later) = rest.split_at_mut(elements.len());
            here.copy_from_slice(elements);
            rest = later;
        }
        let (newest, before, dtype) = (image.digest(), file.before, image.dtype());
        let memory = file.memory.beside(2 * bytes as u64);
        Ok(Row { newest, before, dtype, bytes, values, _memory: memory, deltas: VecDeque::new() })
    }

    fn add(&mut self, file: &StateFile) -> io::Result<()> {
        let values = &mut self.values.as_mut_slice().as_mut_bytes()[..self.bytes];
        let ranges: Vec<_> = file.image.ranges().collect();
        let new = ranges.iter().map(|range| file.image.values(range));
        let delta = Delta::advance(values, new, self.dtype)?;
        let from = std::mem::replace(&mut self.newest, file.image.digest());
        self.before = file.before;
        match delta {
            Some(delta) => self.deltas.push_back((from, Arc::new(delta))),
            // The state's values are shorter than its delta.
            None => self.deltas.clear(),
        }
        let bytes = |deltas: &VecDeque<(FileDigest, Arc<Delta>)>| -> usize {
            deltas.iter().map(|(_, delta)| delta.bytes()).sum()
        };
        while self.deltas.len() > MAX_DELTAS || bytes(&self.deltas) > self.bytes {
            self.deltas.pop_front();
        }
        Ok(())
    }

    fn between(&self, base: FileDigest, state: FileDigest) -> Option<Vec<Arc<Delta>>> {
        if self.newest != state {
            return None;
        }
        let first = match self.deltas.iter().position(|(from, _)| *from == base) {
            None if base == state => self.deltas.len(),
            first => first?,
        };
        Some(self.deltas.range(first..).map(|(_, delta)| Arc::clone(delta)).collect())
    }
}
