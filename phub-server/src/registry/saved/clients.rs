//! Copies of a job's state for the clients that wait for it. [`copies`](super::copies) has a diagram.

use std::sync::{Arc, PoisonError};

use coordinator::{Event, Hub, JobEnded, Memory, Use};
use hub_threads::Command;
use pbox_core::control::RefusalCode;
use pbox_core::{JobId, Selection, SnapshotPart};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::collected::{Checkpoints, Met, ROUND_LIMIT, ended};
use super::copies::{AtEnd, Copied, StateFile, What};
use super::deltas::Rows;
use super::for_readers::ForReaders;
use super::send::{PIECE_BYTES, no_state};
use super::snapshot::{Wanted, met};
use crate::checkpoint::Image;
use crate::registry::{Because, Refusal, Registry, on_thread};

impl Registry {
    /// Returns a copy of the state of a job.
    pub(super) async fn copy(self: &Arc<Self>, name: &str, id: JobId, what: What) -> Copied {
        let copied = self.copy_with_others(name, id, what)?;
        copied.await.unwrap_or_else(|_| Err(no_state(name, &ended(JobEnded))))
    }

    /// Makes this client wait together with the clients that want the same state. If there is no such client, asks for
    /// the state.
    fn copy_with_others(
        self: &Arc<Self>,
        name: &str,
        id: JobId,
        what: What,
    ) -> Result<oneshot::Receiver<Copied>, Refusal> {
        let ended = |why| no_state(name, &ended(why));
        // The kernel's answer may take milliseconds, so it is read without the lock.
        let memory = self.memory();
        let mut inner = self.lock();
        let (state, job) = inner.running(id).map_err(ended)?;
        let mut others = job.checkpoints.copies.waiting.iter_mut();
        let (client, copied) = oneshot::channel();
        let same = others.find(|(want, (of, _))| *of == what && state.checkpoints.may_share(**want));
        if let Some((_, (_, clients))) = same {
            clients.push(client);
            return Ok(copied);
        }
        let needed = bytes_of(state, what.selection);
        // A checkpoint that is due may take the memory that the cores keep.
        let kept = if self.checkpoint_every.is_none() { job.checkpoints.copies.kept } else { 0 };
        check_memory((needed, kept), inner.hub(), memory)
            .map_err(|why| RefusalCode::NoMemory.because(format!("job {name:?}: {why}")))?;
        let wanted = self.want(&mut inner, id, Use::Client(what.selection), what.at, ROUND_LIMIT);
        let (want, wanted) = wanted.map_err(ended)?;
        let (_, job) = inner.running(id).map_err(ended)?;
        let copies = &mut job.checkpoints.copies;
        copies.waiting.insert(want, (what.clone(), vec![client]));
        (copies.kept, copies.kept_memory) = (0, ForReaders::default());
        let what = (what, self.for_readers.beside(needed));
        let (registry, name) = (Arc::clone(self), name.to_owned());
        let me = self.me.clone();
        let turn = AtEnd::new(move || {
            if let Some(registry) = me.upgrade() {
                registry.happens(&mut registry.lock(), id, Event::Read(want));
            }
        });
        self.runtime.spawn(async move {
            registry.make_room(id);
            let made = Arc::clone(&registry);
            let made = tokio::spawn(async move { made.make_copy(&name, what, turn, wanted).await }).await;
            let made = made.unwrap_or_else(|_| Err(Refusal::internal()));
            let clients = registry.of_job(id, |_, job| {
                let copies = &mut job.checkpoints.copies;
                if let Ok(file) = &made {
                    copies.newest = Arc::downgrade(file);
                }
                copies.waiting.remove(&want)
            });
            registry.make_room(id);
            // The lock must not be held here: a copy that no client takes is dropped, and the drop takes the lock.
            for client in clients.ok().flatten().into_iter().flat_map(|(_, clients)| clients) {
                let _ = client.send(made.clone());
            }
        });
        Ok(copied)
    }

    /// Waits for the wanted state, and makes a copy of it.
    async fn make_copy(
        self: Arc<Self>,
        name: &str,
        (what, memory): (What, ForReaders),
        turn: AtEnd,
        wanted: Wanted,
    ) -> Copied {
        let conflict = |why: String| RefusalCode::NoState.because(format!("job {name:?}: {why}"));
        let met = met(wanted).await.map_err(|why| no_state(name, &why))?;
        let Met::State(mut collected) = met else { unreachable!("no file was wanted") };
        let taken = Instant::now();
        let (job, snapshot) = self.snapshot(&mut collected).map_err(conflict)?;
        let (What { share, run, dtype, .. }, id, before) = (what, collected.job, collected.before);
        let cores = collected.go_on();
        let reads = self.of_job(id, |_, job| Arc::clone(&job.checkpoints.reads));
        let file = on_thread("phub-state", move || {
            Image::new(&job, snapshot, (share, run), dtype, PIECE_BYTES / size_of::<f32>())
        });
        let file = file.await?.map_err(|why| conflict(why.to_string()))?;
        reads.into_iter().for_each(|reads| reads.copied(before));
        let me = self.me.clone();
        let gone = move |parts| {
            if let Some(registry) = me.upgrade() {
                registry.copy_is_gone(id, &cores, parts);
            }
        };
        Ok(Arc::new(StateFile::new((file, memory), (before, taken), turn, Box::new(gone))))
    }

    /// Takes back the memory of a copy that no client still needs. If clients read the job's state repeatedly, the
    /// cores keep the memory of their parts.
    fn copy_is_gone(&self, id: JobId, cores: &[usize], parts: Vec<SnapshotPart>) {
        let bytes = parts.iter().map(|part| size_of_val(part.values.as_slice()) as u64).sum();
        let memory = self.for_readers.beside(bytes);
        let keeps = self.of_job(id, |_, job| {
            let Checkpoints { copies, reads, .. } = &mut job.checkpoints;
            let is_followed = reads.is_followed(Instant::now());
            copies.kept = if is_followed { bytes } else { 0 };
            let is_counted = is_followed && self.checkpoint_every.is_none();
            copies.kept_memory = self.for_readers.beside(if is_counted { bytes } else { 0 });
            is_followed
        });
        if keeps.unwrap_or(false) {
            for (&core, SnapshotPart { values, .. }) in cores.iter().zip(parts) {
                self.cores[core].tell(Command::Keep { job: id, values: Some(values) });
            }
        } else {
            // The kernel needs seconds to take tens of GiB back, and this thread may be the control thread.
            self.runtime.spawn(on_thread("phub-free", move || drop((parts, memory))));
        }
        self.make_room(id);
    }

    /// Releases the memory that the cores keep for the next copies of a job, if no client follows the job at this time. Releases the
    /// job's deltas if no client has read for an hour.
    pub(in crate::registry) fn release_kept(&self, id: JobId, now: Instant) {
        let released = self.of_job(id, |_, job| {
            let Checkpoints { copies, reads, .. } = &mut job.checkpoints;
            if !reads.is_read(now) {
                copies.rows = Rows::default();
            }
            let releases = !reads.is_followed(now) && copies.kept > 0;
            if releases {
                (copies.kept, copies.kept_memory) = (0, ForReaders::default());
            }
            releases
        });
        if released.unwrap_or(false) {
            self.cores.iter().for_each(|core| core.tell(Command::Keep { job: id, values: None }));
        }
    }

    /// Makes room for a new copy, if clients wait for a copy. If there is no older copy, the newest copy becomes the
    /// older copy, and the waiting clients have their turn. If there is an older copy, its readers must read faster
    /// from now on. The caller must not hold the lock.
    fn make_room(&self, id: JobId) {
        let read = self.of_job(id, |_, job| {
            let copies = &mut job.checkpoints.copies;
            // The two files are returned and not dropped here: dropping a file takes the lock, which is held here.
            let newest = if copies.waiting.is_empty() { None } else { copies.newest.upgrade() }?;
            let older = copies.older.upgrade();
            if older.is_none() {
                copies.older = std::mem::take(&mut copies.newest);
            }
            Some((newest, older))
        });
        match read {
            Ok(Some((_, Some(older)))) => drop(older.is_in_the_way.send_replace(true)),
            Ok(Some((newest, None))) => {
                let turn = newest.turn.lock().unwrap_or_else(PoisonError::into_inner).take();
                drop(turn);
            }
            Ok(None) | Err(_) => {}
        }
    }
}

/// Returns the bytes of these tensors at this hub, as f32.
pub(super) fn bytes_of(state: &coordinator::Job, selection: Selection) -> u64 {
    let elements: usize = state.hubs.pieces.iter().map(|piece| piece.elements.len()).sum();
    let tensors = state.spec.terms.tensors().selected(selection).count();
    (elements * tensors * size_of::<f32>()) as u64
}

/// Checks that a copy of a state has memory. The cores may keep memory for the copy. All other memory for the copy must
/// not be promised to a job. `memory` is `None` if the kernel does not say how much there is.
fn check_memory((needed, kept): (u64, u64), hub: &Hub, memory: Option<Memory>) -> Result<(), String> {
    if needed <= kept {
        return Ok(());
    }
    hub.check_room(needed, memory).map_err(|why| {
        format!(
            "a copy of its state needs {why}; free memory, or try again when other readers have their copies"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pbox_core::Round;

    use super::*;
    use crate::registry::saved::Reader;
    use crate::registry::test_bed;

    #[test]
    fn the_memory_for_copies_is_released_when_no_client_follows_the_job() {
        let (registry, mut core) = test_bed::registry();
        test_bed::runtime().block_on(registry.join("job".into(), test_bed::request())).unwrap();
        core.obey();
        let (id, begun) = (JobId(0), Instant::now());
        let kept = |minutes: u64| {
            registry.release_kept(id, begun + Duration::from_secs(60 * minutes));
            let kept = registry.of_job(id, |_, job| job.checkpoints.copies.kept).unwrap();
            assert_eq!(registry.for_readers.all(), kept);
            kept
        };
        registry
            .of_job(id, |_, job| {
                let memory = registry.for_readers.beside(64);
                (job.checkpoints.copies.kept, job.checkpoints.copies.kept_memory) = (64, memory);
                let reader = Reader { address: [127, 0, 0, 1].into(), process: None };
                (0..2).for_each(|round| job.checkpoints.reads.got(reader, Round(round), begun));
            })
            .unwrap();
        assert_eq!([0, 59, 61].map(kept), [64, 64, 0]);
        core.obey();
    }

    /// Formerly, a copy took the memory that was promised to the links of a job's workers.
    #[test]
    fn a_copy_is_in_memory_that_is_kept_or_promised_to_no_job() {
        let (registry, _core) = test_bed::registry();
        test_bed::runtime().block_on(registry.join("job".into(), test_bed::request())).unwrap();
        let inner = registry.lock();
        let (promised, words) = (inner.hub().promised(), "and this machine has few".to_owned());
        let memory = |room| Some(Memory { room, words: words.clone(), used: 0 });
        for (needed, kept, memory) in [
            (8, 0, memory(promised + 8)),
            (8, 8, memory(0)),
            (8, 0, None),
            (0, 0, memory(0)),
            (8, 4, memory(promised + 9)),
        ] {
            assert_eq!(check_memory((needed, kept), inner.hub(), memory), Ok(()));
        }
        let why = check_memory((9, 4), inner.hub(), memory(promised + 8)).unwrap_err();
        assert!(why.contains("needs 9 bytes of memory, and this machine has few, of which"), "{why}");
    }
}
