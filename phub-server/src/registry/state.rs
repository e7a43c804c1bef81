//! A job's state through the control port: rank 0 brings it before the job begins, and clients get it while the job runs.
//!
//! ```text
//!   join, state_before 91 --> the job waits --> the values --> cores --> the job begins with round 91
//!   GET state --> hold, cut --> cores copy chunk by chunk --> parts --> a checkpoint file, piece by piece
//! ```
//!
//! A state that rank 0 brought is like a state from a checkpoint: workers that come later see no difference.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use fabric::Slab;
use http_body_util::channel::{Channel, Sender};
use pbox_core::control::StateReply;
use pbox_core::{JobId, Piece, Restored, RestoredKey, Round};
use tokio::runtime::Handle;
use zerocopy::IntoBytes;

use super::checkpoint::ROUND_LIMIT;
use super::job::{Arrival, Job};
use super::{Refusal, Registry, on_thread};
use crate::checkpoint::{Image, check_keys};

/// Pieces of a state on their way to a client, beside the piece that is being made.
const PIECES: usize = 1;
/// The slowest client, on average: while it reads, the job's next checkpoint has no memory.
const SENT_BYTES_PER_S: u64 = 1 << 20;
/// What a client may take longer.
const GRACE_S: u64 = 30;

/// A state on its way in.
#[derive(Debug)]
pub(crate) struct Coming {
    job: JobId,
    before: Round,
    values: Slab,
    filled: usize,
}

impl Coming {
    /// The length that it must have.
    pub fn bytes(&self) -> usize {
        size_of_val(self.values.as_slice())
    }

    /// Appends the next part. All parts together are at most [`bytes`](Self::bytes) long.
    pub fn append(&mut self, part: &[u8]) {
        // f32 of this machine's order, which is the windows' and the file's: little endian.
        let values = self.values.as_mut_slice().as_mut_bytes();
        values[self.filled..][..part.len()].copy_from_slice(part);
        self.filled += part.len();
    }
}

/// A state with its values in the order of a checkpoint.
fn restored(job: &Job, before: Round, values: Slab) -> Restored {
    let (pieces, optimizer) = (&job.hubs.pieces, &job.terms.optimizer);
    let all: usize = pieces.iter().map(|piece| piece.elements.len()).sum();
    let mut keys = vec![RestoredKey { elements: 0..0, starts: Vec::new() }; job.terms.keys.len()];
    let mut begin = 0;
    for Piece { key, elements, .. } in pieces {
        let tensors = 0..optimizer.saved_per_element();
        let starts = tensors.map(|tensor| tensor * all + begin).collect();
        begin += elements.len();
        keys[key.index()] = RestoredKey { elements: elements.clone(), starts };
    }
    let rates = vec![(Round(0), optimizer.learning_rate())];
    Restored::new(before, rates, values, keys)
}

/// A checkpoint file on its way to a client.
#[derive(Debug)]
pub(crate) struct Sent {
    pub bytes: u64,
    /// Ends before its time if the file cannot be sent.
    pub pieces: Channel<Bytes>,
}

impl Registry {
    /// Makes room for the state that a worker brings, if its job waits for a state.
    pub fn state_comes(&self, name: &str, token: &str) -> Result<Coming, Refusal> {
        let (id, before, bytes) = {
            let mut inner = self.lock();
            let (job, rank) = inner.member(name, token)?;
            let awaited = if rank == 0 { job.state_comes() } else { None };
            let (before, bytes) = awaited.ok_or_else(|| {
                Refusal::Conflict(format!(
                    "job {name:?} waits for no state of worker {rank}: rank 0 offers one in its join, and brings it \
                     once, where the answer has state_bytes"
                ))
            })?;
            (job.id, before, bytes)
        };
        let no_room = |why: String| Refusal::Exhausted(format!("job {name:?}: no room for its state: {why}"));
        let available = fabric::available_bytes().unwrap_or(u64::MAX);
        if bytes > available {
            return Err(no_room(format!("it has {bytes} bytes, this machine has {available} available")));
        }
        let values = Slab::zeroed("a state", bytes as usize / size_of::<f32>());
        let values = values.map_err(|error| no_room(error.to_string()))?;
        Ok(Coming { job: id, before, values, filled: 0 })
    }

    /// The state is complete: the job begins with it when all its workers are here.
    pub fn begin_with(self: &Arc<Self>, coming: Coming) -> Result<StateReply, Refusal> {
        let (seen, expected) = (coming.filled, coming.bytes());
        if seen != expected {
            return Err(Refusal::Bad(format!(
                "the state has {seen} bytes, expected {expected}: f32 of all keys' weights in the order of the join, then \
                 of their first optimizer state, then of their second; join again to bring it"
            )));
        }
        let Coming { job: id, before: round, values, .. } = coming;
        let arrival = self.of_job(id, |job| {
            tracing::info!(job = job.name, round = round.0, "begins with the state that worker 0 brought");
            let restored = Arc::new(restored(job, round, values));
            let (of_cores, layout) = (Arc::clone(&restored), Arc::clone(job.wire.layout()));
            self.command(job, move |thread| thread.core.restore(id, &layout, &of_cores));
            job.begin_with(&restored)
        });
        if let Arrival::Complete(ranks) = arrival? {
            self.admit(id, ranks);
        }
        Ok(StateReply { round })
    }

    /// A job's state as a checkpoint file: as it is before the round that is furthest ahead.
    pub async fn state(self: &Arc<Self>, name: &str) -> Result<Sent, Refusal> {
        let conflict = |why: String| Refusal::Conflict(format!("job {name:?}: {why}"));
        let id = self.lock().named(name)?;
        let can_have = self.of_job(id, |job| {
            let (share, optimizer) = (job.hubs.share, &job.terms.optimizer);
            if !share.is_whole() {
                return Err(format!("{share}: no hub of several has all of a job's state"));
            }
            if !optimizer.keeps_weights() {
                return Err(format!(
                    "its optimizer, {}, keeps no weights: its workers have them",
                    optimizer.name()
                ));
            }
            check_keys(job.wire.layout().keys(), optimizer).map_err(|error| error.to_string())
        });
        can_have?.map_err(conflict)?;
        let mut collected = self.collect(id, ROUND_LIMIT).await.map_err(conflict)?;
        let (name, snapshot) = self.snapshot(&mut collected).map_err(conflict)?;
        let (sink, pieces) = Channel::new(PIECES);
        let sink = Sink { pieces: sink, runtime: self.runtime.clone(), begun: Instant::now(), sent: 0 };
        let job = name.clone();
        // On a thread of its own, because a job may have a million keys.
        let image = on_thread("phub-state", move || Image::new(&job, snapshot)).await;
        let image = image.map_err(Refusal::Exhausted)?;
        let mut image = image.map_err(|error| conflict(error.to_string()))?;
        let bytes = image.bytes();
        let send = move || {
            match image.write_to(sink) {
                Ok(()) => tracing::info!(job = name, bytes, "state sent"),
                Err(error) => tracing::warn!(job = name, %error, "state not sent"),
            }
            collected.give_back(image.into_snapshot());
        };
        // The thread waits for the client.
        tokio::spawn(on_thread("phub-state", send));
        Ok(Sent { bytes, pieces })
    }
}

/// Takes the pieces, for the client.
struct Sink {
    pieces: Sender<Bytes>,
    runtime: Handle,
    begun: Instant,
    sent: u64,
}

impl Write for Sink {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.begun.elapsed().as_secs() > GRACE_S + self.sent / SENT_BYTES_PER_S {
            let slow = format!("the client takes less than {SENT_BYTES_PER_S} bytes a second");
            return Err(io::Error::new(io::ErrorKind::TimedOut, slow));
        }
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client is gone");
        self.runtime.block_on(self.pieces.send_data(Bytes::copy_from_slice(piece))).map_err(gone)?;
        self.sent += piece.len() as u64;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
