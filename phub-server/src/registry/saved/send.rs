//! A job's state through the control port, which clients get while the job runs.
//!
//! ```text
//!   GET state --> hold, cut --> cores give parts --> a checkpoint file in memory --> pieces, to each client that waited
//!                                     |__ the cores may take the next snapshot
//! ```
//!
//! A client may lend memory ([`borrow`](super::borrow)). The values are then written there, and only the file's header is sent. A client that has an older state may get the differences ([`deltas`](super::deltas)).
//!
//! Clients may be slow, and a checkpoint must not wait for them. So the cores take the next snapshot in other memory.
//! Each job has at most two files at a time. Clients that ask later share the next file ([`copies`](super::copies)).

use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use authority::hex;
use axum::body::Bytes;
use checkpoint_file::{Delta, check_keys};
use coordinator::{CutAt, JobEnded, NoState, NotBefore, Secret};
use pbox_core::control::{Only, RefusalCode, StateQuery};
use pbox_core::{JobId, Selection, Tensor, Tensors, ValueRange};
use sha2::{Digest, Sha256};
use tokio::select;
use tokio::sync::mpsc::Sender;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::copies::{StateFile, What};
use super::deltas::{FileDigest, Row};
use super::loans::Offer;
use super::reads::{Reader, Reading};
use crate::pieces::Pieces;
use crate::registry::above::name_above;
use crate::registry::job::Job;
use crate::registry::{Because, Refusal, Registry, on_thread};

/// The number of pieces that wait for a client, besides the piece that is being made.
const PIECES: usize = 1;
/// The length of a piece as f32. A client must take its pieces at a minimum speed.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// The lowest permitted speed of a client. While a client reads, a copy of the state stays in this hub's memory.
const SLOWEST: Pace = Pace { grace: Duration::from_secs(30), bytes_per_s: 1 << 20 };
/// The lowest permitted speed of a client while other clients wait until the copy is dropped.
const SLOWEST_IN_THE_WAY: Pace = Pace { grace: Duration::from_secs(10), bytes_per_s: 4 << 20 };
/// The number of bytes in the name by which readers distinguish jobs with the same name. Each byte is two hexadecimal
/// digits.
const RUN_BYTES: usize = 16;

/// The time that a client has to take its bytes: extra time, plus the time that the bytes need at the lowest permitted speed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The extra time.
    pub grace: Duration,
    pub bytes_per_s: u64,
}

impl Pace {
    pub fn time_for(self, bytes: usize) -> Duration {
        self.grace + Duration::from_secs(bytes as u64 / self.bytes_per_s)
    }

    fn too_slow(self, but: &str) -> String {
        format!("the client takes less than {} bytes a second{but}", self.bytes_per_s)
    }
}

/// A checkpoint file that is being sent to a client.
#[derive(Debug)]
pub(crate) struct Sent {
    /// The number of bytes in the pieces.
    pub bytes: u64,
    /// The values, if they are not in the pieces.
    pub instead: Option<Instead>,
    /// The pieces. They end early if the file cannot be sent.
    pub pieces: Pieces,
}

/// The form in which a client wants the values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    /// Values in the file.
    InFile,
    /// Values in the memory that the client lends.
    InMemory(Offer),
    /// Differences from the state with this digest. The client may have no state yet.
    Deltas(Option<FileDigest>),
}

/// The values, if they are sent in another form than in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instead {
    /// This number of bytes of values is in the client's memory.
    InMemory(u64),
    /// The differences from the client's state follow the header.
    Deltas {
        /// The number of deltas.
        count: usize,
        /// The length of the whole file.
        of_file: u64,
    },
}

/// The bytes behind a file's header.
enum Behind {
    Nothing,
    Values,
    Deltas(Vec<Arc<Delta>>),
}

impl Registry {
    /// Returns a job's state as a checkpoint file, before the round that the query names. If the query
    /// names no round, the file has the state before the round that the furthest chunk has reached. In a job over several hubs,
    /// returns this hub's part, or `None` if this hub has no part. `only` in the query names the tensors that the file has.
    /// `wish` is the form in which the client wants the values, if that is possible.
    /// `cut_off` closes the connection of a client that is too slow, so that the file's memory is released.
    pub async fn state(
        self: &Arc<Self>,
        name: &str,
        query: StateQuery,
        (reader, wish): (Reader, Wish),
        cut_off: impl FnOnce() + Send + 'static,
    ) -> Result<Option<Sent>, Refusal> {
        let id = self.lock().hub().id(name)?;
        let reads = self.of_job(id, |_, job| Arc::clone(&job.checkpoints.reads))?;
        let borrowed = if let Wish::InMemory(offer) = wish { self.borrow(id, query, offer) } else { None };
        let copy = self.state_for(name, id, query).await.inspect_err(|_| reads.refused());
        let copy = match copy {
            Ok(Some(copy)) => copy,
            none => {
                borrowed.into_iter().for_each(|borrowed| self.give_back(borrowed));
                return none.map(|_| None);
            }
        };
        let (sink, pieces) = Pieces::new(PIECES);
        let (all, header, taken) = (copy.image.bytes(), copy.image.header().len() as u64, copy.taken);
        let (job, reading) = (name.to_owned(), reads.begin(reader, copy.before));
        let (mut saved, mut lent) = (0, None);
        let (behind, instead) = match (wish, borrowed) {
            (_, Some(borrowed)) => match self.write_values(Arc::clone(&copy), borrowed).await {
                Ok((bytes, transport)) => {
                    reading.got(bytes as usize);
                    lent = Some(transport.name());
                    (Behind::Nothing, Some(Instead::InMemory(bytes)))
                }
                Err(why) => {
                    tracing::debug!(job, why, "the client's memory cannot be used; sending the state");
                    (Behind::Values, None)
                }
            },
            (Wish::Deltas(base), None) => match self.deltas(id, query, &copy, base).await {
                Ok(Some(deltas)) => {
                    let (count, of_file) = (deltas.len(), all);
                    saved = all - header - bytes_of_deltas(&deltas);
                    (Behind::Deltas(deltas), Some(Instead::Deltas { count, of_file }))
                }
                Ok(None) => (Behind::Values, None),
                Err(why) => {
                    tracing::warn!(job, why, "no deltas; sending the state");
                    (Behind::Values, None)
                }
            },
            (_, None) => (Behind::Values, None),
        };
        let bytes = match &behind {
            Behind::Nothing => header,
            Behind::Values => all,
            Behind::Deltas(deltas) => header + bytes_of_deltas(deltas),
        };
        tokio::spawn(async move {
            match send(copy, behind, &sink, &reading).await {
                Ok(()) => {
                    reading.got_all(taken, saved);
                    tracing::info!(job, bytes, of = all, lent, "state sent");
                }
                Err(error) => {
                    cut_off();
                    tracing::warn!(job, error, "state not sent");
                }
            }
        });
        Ok(Some(Sent { bytes, instead, pieces }))
    }

    /// Returns the differences from the state that a client has; `None` if the client needs the whole state.
    async fn deltas(
        &self,
        id: JobId,
        query: StateQuery,
        file: &Arc<StateFile>,
        base: Option<FileDigest>,
    ) -> Result<Option<Vec<Arc<Delta>>>, String> {
        let row = self.of_job(id, |state, job| {
            let selection = selection(&state.spec.terms.tensors(), query.only)?;
            Ok::<_, String>(job.checkpoints.copies.rows.of(selection, query.dtype))
        });
        let row = row.map_err(|JobEnded| "the job has ended".to_owned())??;
        // The deltas of a row are together never longer than its values.
        let (memory, needed) = (self.memory(), 2 * file.image.value_bytes());
        let has_room = self.lock().hub().check_room(needed, memory).is_ok();
        let file = Arc::clone(file);
        let make = move || {
            let mut row = row.lock().unwrap_or_else(PoisonError::into_inner);
            Row::deltas(&mut row, &file, base, has_room).map_err(|error| error.to_string())
        };
        on_thread("phub-delta", make).await.map_err(|error| error.to_string())?
    }

    /// Returns a copy of the state; nothing if this hub has no part.
    async fn state_for(
        self: &Arc<Self>,
        name: &str,
        id: JobId,
        query: StateQuery,
    ) -> Result<Option<Arc<StateFile>>, Refusal> {
        let never = |why: String| RefusalCode::NeverState.because(format!("job {name:?}: {why}"));
        let can_have = self.of_job(id, |state, job| {
            check_has_state(state, job)?;
            let run = (!state.hubs.share.is_whole()).then(|| run(&state.hubs.secret));
            Ok((state.hubs.share, run, !state.hubs.pieces.is_empty(), state.spec.terms.tensors()))
        });
        let (share, run, has_part, tensors) = can_have?.map_err(never)?;
        let selection = selection(&tensors, query.only)
            .map_err(|why| RefusalCode::BadRequest.because(format!("job {name:?}: {why}")))?;
        if !has_part {
            return Ok(None);
        }
        // No cut over all hubs is needed: the client compares the rounds of the hubs' parts.
        let at = match query.before {
            Some(round) => CutAt::Before(round),
            None if share.is_whole() => CutAt::AllHubs,
            None => CutAt::ThisHub,
        };
        self.copy(name, id, What { selection, dtype: query.dtype, at, share, run }).await.map(Some)
    }
}

/// The end of all pieces: the client's connection has dropped the last piece.
struct Taken {
    _all_taken: oneshot::Sender<()>,
}

/// A piece of an answer.
struct Piece<T> {
    of: T,
    _taken: Arc<Taken>,
}

impl<T: AsRef<[u8]> + Send + 'static> Piece<T> {
    fn bytes(of: T, taken: &Arc<Taken>) -> Bytes {
        Bytes::from_owner(Piece { of, _taken: Arc::clone(taken) })
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Piece<T> {
    fn as_ref(&self) -> &[u8] {
        self.of.as_ref()
    }
}

/// A part of a file: the header, or a range of values.
struct OfFile(Arc<StateFile>, Option<ValueRange>);

impl AsRef<[u8]> for OfFile {
    fn as_ref(&self) -> &[u8] {
        let image = &self.0.image;
        self.1.as_ref().map_or(image.header(), |range| image.values(range))
    }
}

/// Returns the pieces of an answer.
fn pieces_of(
    file: Arc<StateFile>,
    behind: Behind,
    taken: Arc<Taken>,
) -> Box<dyn Iterator<Item = Bytes> + Send> {
    let of_file = |file: &Arc<StateFile>, range| OfFile(Arc::clone(file), range);
    match behind {
        Behind::Nothing => Box::new([Piece::bytes(of_file(&file, None), &taken)].into_iter()),
        Behind::Values => {
            let ranges: Vec<ValueRange> = file.image.ranges().collect();
            let ranges = [None].into_iter().chain(ranges.into_iter().map(Some));
            Box::new(ranges.map(move |range| Piece::bytes(of_file(&file, range), &taken)))
        }
        Behind::Deltas(deltas) => {
            // The file's memory is not needed any more.
            let header = file.image.header().to_vec();
            let mut blocks = 0..deltas.first().map_or(0, |delta| delta.blocks());
            let frames = std::iter::from_fn(move || {
                let mut piece = Vec::new();
                for block in blocks.by_ref() {
                    deltas.iter().for_each(|delta| piece.extend_from_slice(delta.block(block)));
                    if piece.len() >= PIECE_BYTES {
                        break;
                    }
                }
                (!piece.is_empty()).then_some(piece)
            });
            let all = [header].into_iter().chain(frames);
            Box::new(all.map(move |piece| Piece::bytes(piece, &taken)))
        }
    }
}

/// Sends a file to a client in pieces, until the client's connection needs no more of their memory. After an error the caller must
/// close the connection, because the connection may still have pieces.
async fn send(
    file: Arc<StateFile>,
    behind: Behind,
    sink: &Sender<Bytes>,
    reading: &Reading,
) -> Result<(), String> {
    let begun = Instant::now();
    let mut is_in_the_way = file.is_in_the_way.subscribe();
    let (_all_taken, all_taken) = oneshot::channel();
    let mut end = 0;
    for piece in pieces_of(file, behind, Arc::new(Taken { _all_taken })) {
        let bytes = piece.len();
        end += bytes;
        in_time(begun, end, &mut is_in_the_way, sink.send(piece)).await?.map_err(|_| "the client is gone")?;
        reading.got(bytes);
    }
    // The sender is dropped, so the result is an error.
    let _ = in_time(begun, end, &mut is_in_the_way, all_taken).await?;
    Ok(())
}

/// Waits until a client has taken the bytes of a file before `end`.
///
/// # Errors
/// Fails if the client is slower than [`SLOWEST`], or, while other clients wait, than [`SLOWEST_IN_THE_WAY`].
async fn in_time<T>(
    begun: Instant,
    end: usize,
    is_in_the_way: &mut watch::Receiver<bool>,
    taken: impl Future<Output = T>,
) -> Result<T, String> {
    let others_wait = async {
        if is_in_the_way.wait_for(|is_in_the_way| *is_in_the_way).await.is_err() {
            pending::<()>().await; // the file is dropped, so nobody waits for it
        }
        sleep_until(begun + SLOWEST_IN_THE_WAY.time_for(end)).await;
    };
    select! {
        taken = taken => Ok(taken),
        () = others_wait => Err(SLOWEST_IN_THE_WAY.too_slow(", and other clients wait")),
        () = sleep_until(begun + SLOWEST.time_for(end)) => Err(SLOWEST.too_slow("")),
    }
}

fn bytes_of_deltas(deltas: &[Arc<Delta>]) -> u64 {
    deltas.iter().map(|delta| delta.bytes() as u64).sum()
}

/// Returns the name by which readers distinguish this job from other jobs with its name. The result is the same at all
/// hubs, and it is not secret.
fn run(secret: &Secret) -> String {
    hex(&Sha256::digest(secret.0)[..RUN_BYTES])
}

/// Returns the refusal of a request for a state that a job does not have.
pub(super) fn no_state(job: &str, why: &NoState) -> Refusal {
    let (code, round) = match why {
        NoState::Before(why @ NotBefore::Passed { .. }) => (RefusalCode::RoundPassed, Some(why.front())),
        NoState::Before(why @ NotBefore::TooFar { .. }) => (RefusalCode::RoundFar, Some(why.front())),
        NoState::NoWeights | NoState::Other(_) => (RefusalCode::NoState, None),
    };
    Refusal { round, ..code.because(format!("job {job:?}: {why}")) }
}

/// Returns the tensors of each key that a client gets.
pub(super) fn selection(tensors: &Tensors, only: Option<Only>) -> Result<Selection, String> {
    match only {
        None => Ok(Selection::All),
        Some(Only::Weights) => Ok(Selection::One(Tensor::Weights)),
        Some(Only::Averages) => {
            let none = "the job keeps no averages of its weights; start the job with `ema`";
            tensors.averages().map(Selection::One).ok_or_else(|| none.into())
        }
    }
}

/// Checks that the state of a job is at this hub, and can be in a file.
fn check_has_state(state: &coordinator::Job, job: &Job) -> Result<(), String> {
    let optimizer = &state.spec.terms.optimizer;
    if let Some(above) = &job.above {
        return Err(format!(
            "the job's state is at the hubs above, not at this hub: get the state of job {:?} from {}",
            name_above(&job.name),
            above.addresses().join(", ")
        ));
    }
    if !optimizer.keeps_weights() {
        return Err(format!(
            "the job's optimizer, {}, keeps no weights at the hub: get the weights from a worker",
            optimizer.name()
        ));
    }
    check_keys(job.wire.layout().keys(), &state.spec.terms.tensors()).map_err(|error| error.to_string())
}
