//! A state that rank 0 brings before its job begins: first an offer, then the values.
//!
//! ```text
//!   join --> offer, state_before 91 --> the job waits --> the values --> cores --> the job begins with round 91
//!              |   A                                        |
//!              V   | do they want it?                       V  each its share, as it arrives
//!   below others: offer to the hubs above                 the hubs above
//! ```
//!
//! A state that rank 0 brought is like a state from a checkpoint: later workers see no difference.

use std::io::{self, Read};
use std::sync::Arc;

use axum::body::Bytes;
use coordinator::MemberOf;
use coordinator::input::{BeginWith, Comes, Offer, Wanted};
use fabric::Slab;
use hub_threads::{Carried, Command};
use membership::MemberError;
use pbox_core::control::{OfferReply, OfferRequest, RefusalCode, StateReply};
use pbox_core::{JobId, Layout, Numbers, Piece, Restored, RestoredKey, Round};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zerocopy::IntoBytes;

use crate::registry::above::{JoinedAbove, not_joined};
use crate::registry::{Because, NoThread, Refusal, Registry, on_thread};

/// The most parts of a request's body that wait for the hubs above to take them.
const PARTS: usize = 8;

/// A state that is arriving.
#[derive(Debug)]
pub(crate) struct IncomingState {
    job: JobId,
    before: Round,
    bytes: usize,
    seen: usize,
    destination: Destination,
}

/// The destination of the values.
#[derive(Debug)]
enum Destination {
    /// The values go to this hub's cores when they are complete.
    Here(Slab),
    /// The values go to the hubs above.
    Up(Upwards),
}

/// A thread that brings the values to the hubs above.
#[derive(Debug)]
struct Upwards {
    parts: mpsc::Sender<Bytes>,
    task: JoinHandle<Result<Result<(), MemberError>, NoThread>>,
}

impl IncomingState {
    /// Returns the length that the state must have, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends the next part. All parts together are at most [`bytes`](Self::bytes) long. May wait for the hubs above.
    pub async fn append(&mut self, part: Bytes) -> Result<(), Refusal> {
        let at = self.seen;
        self.seen += part.len();
        match &mut self.destination {
            Destination::Here(values) => {
                // Values are f32 in this machine's byte order: little endian, as in the windows and the file.
                values.as_mut_slice().as_mut_bytes()[at..][..part.len()].copy_from_slice(&part);
                Ok(())
            }
            // After an error no more parts are taken.
            Destination::Up(Upwards { parts, task }) => match parts.send(part).await {
                Ok(()) => Ok(()),
                Err(_) => end_of(task).await,
            },
        }
    }
}

impl Upwards {
    fn start(above: Arc<JoinedAbove>, layout: Arc<Layout>, tensors: usize) -> Self {
        let (parts, comes) = mpsc::channel(PARTS);
        let values = Box::new(Values { parts: comes, part: Bytes::new() });
        let bring = move || above.bring(values, &layout, tensors);
        Upwards { parts, task: tokio::spawn(on_thread("phub-above", bring)) }
    }
}

/// Waits until the state has been brought to the hubs above, and returns the result.
async fn end_of(task: &mut JoinHandle<Result<Result<(), MemberError>, NoThread>>) -> Result<(), Refusal> {
    task.await.unwrap_or_else(|error| Err(NoThread(error.to_string())))?.map_err(not_joined)
}

/// The values of a state, for the thread that brings them.
struct Values {
    parts: mpsc::Receiver<Bytes>,
    part: Bytes,
}

impl Read for Values {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            let Some(part) = self.parts.blocking_recv() else { return Ok(0) };
            self.part = part;
        }
        let part = self.part.split_to(room.len().min(self.part.len()));
        room[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}

/// Returns a state with its values in the order of a checkpoint.
fn restored(job: &coordinator::Job, before: Round, values: Slab) -> Restored {
    let (pieces, saved) = (&job.hubs.pieces, job.spec.terms.tensors().saved_per_element());
    let all: usize = pieces.iter().map(|piece| piece.elements.len()).sum();
    let mut keys = vec![RestoredKey { elements: 0..0, starts: Vec::new() }; job.spec.terms.keys.len()];
    let mut begin = 0;
    for Piece { key, elements, .. } in pieces {
        let starts = (0..saved).map(|tensor| tensor * all + begin).collect();
        begin += elements.len();
        keys[key.index()] = RestoredKey { elements: elements.clone(), starts };
    }
    let numbers = vec![(Round(0), Numbers::new(job.spec.terms.optimizer))];
    Restored::new(before, numbers, values, keys).with_steps(job.life.offered_steps())
}

impl Registry {
    /// Handles rank 0's offer of a state. A job without a state waits for the offered state. Below other hubs, the
    /// hubs above decide.
    pub async fn offer(
        self: &Arc<Self>,
        name: &str,
        OfferRequest { token, state_before: before, steps }: OfferRequest,
    ) -> Result<OfferReply, Refusal> {
        let (id, above) = {
            let mut inner = self.lock();
            let (MemberOf { job: id, rank }, (state, job)) = inner.member(name, &token)?;
            check_offer(state, rank, before, steps.as_deref()).map_err(Refusal::bad)?;
            let above = job.above.clone();
            let is_for_all = above.as_ref().is_none_or(|above| above.speaks_for_all());
            let own = if above.is_none() { steps.as_deref().unwrap_or_default() } else { &[] };
            let own = own.iter().copied().map(Some).collect();
            let offer = Offer { job: id, steps: own };
            let wanted = is_for_all && inner.ask(offer).map_err(|why| conflict(name, &why))?;
            if !wanted {
                return Ok(OfferReply { state_bytes: None });
            }
            (id, above)
        };
        let asked = match above {
            None => self
                .of_job(id, |state, _| Some(state.hubs.state_bytes(&state.spec.terms)))
                .map_err(Refusal::from),
            Some(above) => {
                let asked = on_thread("phub-above", move || above.offer(before, steps)).await;
                asked.map_err(Refusal::from).and_then(|asked| asked.map_err(not_joined))
            }
        };
        let bytes = asked.as_ref().ok().copied().flatten();
        {
            let mut inner = self.lock();
            let effects = inner.ask(Wanted { job: id, before, bytes })?;
            self.carry_out(&mut inner, id, effects);
        }
        asked.map(|state_bytes| OfferReply { state_bytes })
    }

    /// Makes room for the state that a worker brings, if its job waits for a state.
    pub fn receive_state(&self, name: &str, token: &str) -> Result<IncomingState, Refusal> {
        let (id, before, bytes, above) = {
            let mut inner = self.lock();
            let (MemberOf { job: id, rank }, _) = inner.member(name, token)?;
            let awaited = if rank == 0 { inner.ask(Comes { job: id }) } else { None };
            let (before, bytes) = awaited.ok_or_else(|| {
                conflict(
                    name,
                    &format!(
                        "the hub expects no state from worker {rank}: only rank 0 offers a state, after its join, and sends the state \
                         once, if the hub's answer has state_bytes"
                    ),
                )
            })?;
            let (_, (state, job)) = inner.member(name, token)?;
            let tensors = state.spec.terms.tensors().saved_per_element();
            let up = |above: &Arc<JoinedAbove>| (Arc::clone(above), Arc::clone(job.wire.layout()), tensors);
            (id, before, bytes, job.above.as_ref().map(up))
        };
        let destination = match above {
            Some((above, layout, tensors)) => Destination::Up(Upwards::start(above, layout, tensors)),
            None => Destination::Here(room_for(self, name, bytes)?),
        };
        Ok(IncomingState { job: id, before, bytes: bytes as usize, seen: 0, destination })
    }

    /// Begins the job with the complete state when all its workers are here.
    pub async fn begin_with(self: &Arc<Self>, state: IncomingState) -> Result<StateReply, Refusal> {
        let IncomingState { job: id, before: round, bytes, seen, destination } = state;
        if seen != bytes {
            return Err(Refusal::bad(format!(
                "the state has {seen} bytes, expected {bytes}. All values are f32: first the weights of all keys in the order \
                 of the join, then the optimizer's first value of all keys, then its second value of all keys, and last \
                 the averages, if the job keeps averages; join again to bring the state"
            )));
        }
        let values = match destination {
            Destination::Here(values) => Some(values),
            Destination::Up(Upwards { parts, mut task }) => {
                drop(parts); // this was all
                end_of(&mut task).await?;
                None
            }
        };
        let mut inner = self.lock();
        let (state, job) = inner.running(id)?;
        tracing::info!(job = job.name, round = round.0, "the job begins with the state that worker 0 sent");
        let restored = values.map(|values| Arc::new(restored(state, round, values)));
        if let Some(of_cores) = restored.clone() {
            let layout = Arc::clone(job.wire.layout());
            let (layout, state) = (|| Carried(Arc::clone(&layout)), || Carried(Arc::clone(&of_cores)));
            self.command(job, || Command::Restore { job: id, layout: layout(), state: state() });
        }
        let restored = restored.map(|restored| (restored.round(), restored.numbers()));
        let effects = inner.ask(BeginWith { job: id, restored })?;
        self.carry_out(&mut inner, id, effects);
        Ok(StateReply { round })
    }
}

fn conflict(job: &str, why: &str) -> Refusal {
    RefusalCode::NoState.because(format!("job {job:?}: {why}"))
}

/// Checks that this member can offer a state at all.
fn check_offer(
    job: &coordinator::Job,
    rank: u32,
    before: Round,
    steps: Option<&[u32]>,
) -> Result<(), String> {
    let optimizer = &job.spec.terms.optimizer;
    if rank != 0 {
        return Err(format!(
            "{} offers a state, but only rank 0 may offer a state, with which all workers then begin",
            job.spec.spoken(rank)
        ));
    }
    if !(Round(1)..Round::LIMIT).contains(&before) {
        return Err(format!(
            "the state is before round {}; expected a round of at least 1 (round 0 is the broadcast) and below {}",
            before.0,
            Round::LIMIT.0
        ));
    }
    let (keys, seen) = (job.spec.terms.keys.len(), steps.map_or(0, <[u32]>::len));
    if steps.is_some() && seen != keys {
        return Err(format!(
            "the state has numbers of steps for {seen} keys: expected a number for each of the job's {keys} keys, or \
             none if every key has made a step in each round"
        ));
    }
    if !optimizer.keeps_weights() {
        return Err(format!("the optimizer {} keeps no state: do not offer a state", optimizer.name()));
    }
    Ok(())
}

fn room_for(registry: &Registry, job: &str, bytes: u64) -> Result<Slab, Refusal> {
    let no_room =
        |why: String| RefusalCode::NoMemory.because(format!("job {job:?}: no room for its state: {why}"));
    registry
        .lock()
        .hub()
        .check_room(bytes, registry.memory())
        .map_err(|why| no_room(format!("the state needs {why}")))?;
    let values = Slab::zeroed("a state", bytes as usize / size_of::<f32>());
    values.map_err(|error| no_room(error.to_string()))
}

#[cfg(test)]
mod tests {
    use coordinator::Token;
    use coordinator::input::Connect;

    use super::*;
    use crate::registry::test_bed;

    #[test]
    fn an_offer_comes_before_the_links() {
        let (registry, mut core) = test_bed::registry();
        test_bed::runtime().block_on(async {
            let token = registry.join("job".into(), test_bed::request()).await.unwrap().token;
            core.obey();
            let offer =
                |before| OfferRequest { token: token.clone(), state_before: Round(before), steps: None };
            let member = MemberOf { job: JobId(0), rank: 0 };
            registry.lock().ask(Connect { member, token: Token([0; 16]) }).unwrap();
            let refused = registry.offer("job", offer(3)).await.unwrap_err();
            assert_eq!(refused.code, RefusalCode::NoState);
            assert!(refused.why.contains("too late"));
            registry.fail(&mut registry.lock(), JobId(0), "a test");
            // A worker whose offer arrives after the job has failed learns of the failure from its heartbeat.
            assert_eq!(registry.offer("job", offer(3)).await.unwrap().state_bytes, None);
        });
    }
}
