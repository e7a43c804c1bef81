//! A job's state through the control port, which clients get while the job runs.
//!
//! ```text
//!   GET state --> hold, cut --> cores copy chunk by chunk --> parts --> copy --> a checkpoint file, piece by piece
//!                                                               |__ the cores have their memory back
//! ```
//!
//! A client may be slow, and a checkpoint must not wait for it: the client's copy is not the cores' memory. There is one
//! copy for each job.

use std::io::{self, Write};
use std::sync::{Arc, Weak};
use std::time::Instant;

use authority::hex;
use axum::body::Bytes;
use coordinator::{CutAt, Event, NoState, NotBefore, Secret, Use, WantId};
use pbox_core::control::{Only, RefusalCode, StateQuery};
use pbox_core::{JobId, Snapshot, Tensor, Tensors};
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;

use super::collected::{Met, ROUND_LIMIT};
use super::snapshot::met;
use crate::checkpoint::{Image, check_keys};
use crate::pieces::Pieces;
use crate::registry::above::name_above;
use crate::registry::job::Job;
use crate::registry::{Because, Refusal, Registry, on_thread};

/// Pieces of a state on their way to a client, besides the piece that is being made.
const PIECES: usize = 1;
/// The slowest client, on average: while it reads, it holds a copy of the state, and the next client waits.
const SENT_BYTES_PER_S: u64 = 1 << 20;
/// The length of the name by which readers distinguish jobs with the same name.
const RUN_BYTES: usize = 16;
/// The extra time for a slow client.
const GRACE_S: u64 = 30;

/// A checkpoint file on its way to a client.
#[derive(Debug)]
pub(crate) struct Sent {
    pub bytes: u64,
    /// The pieces. They end early if the file cannot be sent.
    pub pieces: Pieces,
}

impl Registry {
    /// Returns a job's state as a checkpoint file, before the round that the query names. If the query
    /// names no round, the file has the state before the round that the furthest chunk has reached. In a job over several hubs,
    /// returns this hub's part; nothing if this hub has no part. `only` in the query leaves out the rest.
    pub async fn state(self: &Arc<Self>, name: &str, query: StateQuery) -> Result<Option<Sent>, Refusal> {
        let conflict = |why: String| RefusalCode::NoState.because(format!("job {name:?}: {why}"));
        let id = self.lock().hub().id(name)?;
        let can_have = self.of_job(id, |state, job| {
            check_has_state(state, job)?;
            let run = (!state.hubs.share.is_whole()).then(|| run(&state.hubs.secret));
            Ok((state.hubs.share, run, !state.hubs.pieces.is_empty(), state.spec.terms.tensors()))
        });
        let (share, run, has_part, tensors) = can_have?.map_err(conflict)?;
        let kept = kept(&tensors, query.only)
            .map_err(|why| RefusalCode::BadRequest.because(format!("job {name:?}: {why}")))?;
        if !has_part {
            return Ok(None);
        }
        // No cut over several hubs: the client compares the rounds of their parts.
        let at = match query.before {
            Some(round) => CutAt::Before(round),
            None if share.is_whole() => CutAt::AllHubs,
            None => CutAt::ThisHub,
        };
        let wanted = self.want(id, Use::Client, at, ROUND_LIMIT);
        let (want, wanted) = wanted.map_err(|ended| conflict(ended.into()))?;
        let turn = Turn { registry: self.me.clone(), job: id, want };
        let met = met(wanted).await.map_err(|why| no_state(name, &why))?;
        let Met::State(mut collected) = met else { unreachable!("no file was wanted") };
        let (job, snapshot) = self.snapshot(&mut collected).map_err(conflict)?;
        let copied = on_thread("phub-state", move || {
            let copied = copy_of(&snapshot, kept);
            collected.give_back(snapshot);
            copied
        });
        let exhausted = |why: String| {
            RefusalCode::NoMemory.because(format!("job {name:?}: its state cannot be sent: {why}"))
        };
        let (name, snapshot) = (job, copied.await?.map_err(exhausted)?);
        let (sink, pieces) = Pieces::new(PIECES);
        let mut sink = Sink {
            pieces: sink,
            runtime: self.runtime.clone(),
            begun: Instant::now(),
            sent: 0,
            last: Bytes::new(),
        };
        let job = name.clone();
        // The image has a separate thread, because a job may have a quarter of a million keys.
        let image = on_thread("phub-state", move || Image::new(&job, snapshot, share, run)).await;
        let mut image = image?.map_err(|error| conflict(error.to_string()))?;
        let bytes = image.bytes();
        let send = move || {
            let sent = image.write_to(&mut sink);
            // First the memory is freed, then it is the next client's turn.
            drop((image, turn));
            match sent.and_then(|()| sink.send_last()) {
                Ok(()) => tracing::info!(job = name, bytes, "state sent"),
                Err(error) => tracing::warn!(job = name, %error, "state not sent"),
            }
        };
        // The thread waits for the client.
        tokio::spawn(on_thread("phub-state", send));
        Ok(Some(Sent { bytes, pieces }))
    }
}

/// Returns the name by which readers distinguish this job from others with the same name. It is the same at all hubs, and
/// no secret.
fn run(secret: &Secret) -> String {
    hex(&Sha256::digest(secret.0)[..RUN_BYTES])
}

/// Refuses a state that a job does not have.
fn no_state(job: &str, why: &NoState) -> Refusal {
    let (code, round) = match why {
        NoState::Before(why @ NotBefore::Passed { .. }) => (RefusalCode::RoundPassed, Some(why.front())),
        NoState::Before(why @ NotBefore::TooFar { .. }) => (RefusalCode::RoundFar, Some(why.front())),
        NoState::NoWeights | NoState::Other(_) => (RefusalCode::NoState, None),
    };
    Refusal { round, ..code.because(format!("job {job:?}: {why}")) }
}

/// Returns the tensors that a client gets.
fn kept(tensors: &Tensors, only: Option<Only>) -> Result<Vec<Tensor>, String> {
    match only {
        None => Ok(tensors.all().collect()),
        Some(Only::Weights) => Ok(vec![Tensor::Weights]),
        Some(Only::Averages) => {
            let averages = tensors.averages().map(|averages| vec![averages]);
            averages.ok_or_else(|| "it keeps no averages of its weights; start it with `ema`".into())
        }
    }
}

/// Copies what a client gets.
fn copy_of(snapshot: &Snapshot, kept: Vec<Tensor>) -> Result<Snapshot, String> {
    let bytes = snapshot.bytes_of_tensor() * kept.len() as u64;
    let available = fabric::available_bytes().unwrap_or(u64::MAX);
    if available < bytes {
        return Err(format!("a copy needs {bytes} bytes of memory, this machine has {available} available"));
    }
    snapshot.copy_of(kept).map_err(|error| error.to_string())
}

/// Checks that the state of a job is at this hub, and can be in a file.
fn check_has_state(state: &coordinator::Job, job: &Job) -> Result<(), String> {
    let optimizer = &state.spec.terms.optimizer;
    if let Some(above) = &job.above {
        return Err(format!(
            "its state is at the hubs above, not at this hub: get the state of job {:?} from {}",
            name_above(&job.name),
            above.addresses().join(", ")
        ));
    }
    if !optimizer.keeps_weights() {
        return Err(format!("its optimizer, {}, keeps no weights: its workers have them", optimizer.name()));
    }
    check_keys(job.wire.layout().keys(), &state.spec.terms.tensors()).map_err(|error| error.to_string())
}

/// A client's turn to read the state of a job. It begins with the client's want, and ends when this is dropped. A thread
/// that has the registry's lock must not drop it.
struct Turn {
    registry: Weak<Registry>,
    job: JobId,
    want: WantId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            registry.happens(&mut registry.lock(), self.job, Event::Read(self.want));
        }
    }
}

/// The sink that takes the pieces, for the client.
struct Sink {
    pieces: Sender<Bytes>,
    runtime: Handle,
    begun: Instant,
    sent: u64,
    /// The last piece, which has not been sent yet.
    last: Bytes,
}

impl Sink {
    fn send_last(&mut self) -> io::Result<()> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client is gone");
        self.runtime.block_on(self.pieces.send(std::mem::take(&mut self.last))).map_err(gone)
    }
}

impl Write for Sink {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.begun.elapsed().as_secs() > GRACE_S + self.sent / SENT_BYTES_PER_S {
            let slow = format!("the client takes less than {SENT_BYTES_PER_S} bytes a second");
            return Err(io::Error::new(io::ErrorKind::TimedOut, slow));
        }
        if !self.last.is_empty() {
            self.send_last()?;
        }
        self.last = Bytes::copy_from_slice(piece);
        self.sent += piece.len() as u64;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
