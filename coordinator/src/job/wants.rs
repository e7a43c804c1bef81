//! Wants: requests for a job's state within a time limit, for a file or for a client. The cores take the
//! state in a cut, which is a pause of the job between two rounds.
//!
//! ```text
//!   a file's want ------------------v
//!   clients' want ----> its turn --> parts of other hubs end --> cut --> parts of the cores --> file, or client
//!                                         ^                                    |
//!                                         '--- memory is free <--- a core has no part: its memory is in use
//! ```
//!
//! | a want waits for | when its time is over |
//! | --- | --- |
//! | its turn, which comes when the copy for other clients is gone, or when the hub has room for one more copy | it fails: another client reads the state |
//! | hubs that still write a part of the previous checkpoint, and would skip a new part | it no longer waits for a hub whose part is not complete |
//! | the cut | nothing happens, because a cut waits for no worker |
//! | the parts of the cores | it fails: a round did not end in time |
//! | memory on cores that had no memory for a part | it fails, with the cores' reason. Exception: a want for a file continues to wait while this hub writes an earlier file |
//!
//! A file that is being written has no time limit, because a disk may be slow. When it is written, the time limit of a file
//! that waits for memory begins again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pbox_core::{Round, Selection};
use serde::{Deserialize, Serialize};

use super::checkpoints::{Over, TakenBy};
use super::cut::{CutAt, CutId, NotBefore, NotCut, Purpose};
use super::parts::Then;
use super::{Effect, Job};

/// The limit on the time of a request for the state. The time may come from a replayed record, which may have any duration.
/// Adding a very long duration to a clock's time would overflow.
pub(super) const LONGEST: Duration = Duration::from_secs(86_400 * 365);

/// The number of a want (a request for the state) at this hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WantId(u64);

/// The purpose of a wanted state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Use {
    /// A file for the job, at all hubs of the job.
    File,
    /// Clients, which share a copy of these tensors. The copy exists until all clients have read it.
    Client(Selection),
}

/// The use of the parts of a snapshot, after all cores have answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parts {
    /// The parts are written to a file.
    Write,
    /// The parts are given to the client that wants them.
    Give(WantId),
    /// The parts are discarded, because one part is missing for this reason. No request of this hub waits for these parts.
    Skip(String),
    /// The parts are discarded, because one part is missing and the request continues to wait, or because the request's time
    /// is over.
    Drop,
}

/// The reason why a request for the state fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoState {
    /// No round of the job is over.
    #[error("{}", NotCut::NoWeights)]
    NoWeights,
    /// No state can be taken before the round that a client named.
    #[error(transparent)]
    Before(NotBefore),
    /// Another reason, in words.
    #[error("{0}")]
    Other(String),
}

impl From<NotCut> for NoState {
    fn from(why: NotCut) -> Self {
        match why {
            NotCut::NoWeights => NoState::NoWeights,
            NotCut::Before(why) => NoState::Before(why),
            why => NoState::Other(why.to_string()),
        }
    }
}

/// The requests for a job's state.
#[derive(Debug, Default)]
pub(super) struct Wants {
    last: u64,
    waiting: Vec<Want>,
    /// The request of the clients that now read the state.
    reading: Option<WantId>,
}

/// A want: a request for the state, without an answer so far.
#[derive(Debug)]
pub(super) struct Want {
    id: WantId,
    purpose: Use,
    at: CutAt,
    limit: Duration,
    pub until: Instant,
    waits_for: WaitsFor,
}

/// The event for which a request for the state waits.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WaitsFor {
    Turn,
    Others,
    Cut(CutId),
    /// All cores give their parts of the state before this round.
    Cores(Round),
    /// Free memory on these cores, which had no memory for their part of the state. The text has the reason.
    Memory(BTreeSet<usize>, String),
}

impl Wants {
    /// Whether another client may share the state for which the client of this request waits. Sharing is allowed before the
    /// cut is taken, and always if both clients name the same round. So no client gets a state that is older than its request.
    pub fn may_share(&self, id: WantId) -> bool {
        let is_ahead = |want: &Want| match want.waits_for {
            WaitsFor::Turn | WaitsFor::Cut(_) => true,
            _ => matches!(want.at, CutAt::Before(_)),
        };
        self.waiting.iter().any(|want| want.id == id && is_ahead(want))
    }

    fn get(&mut self, id: WantId) -> Option<&mut Want> {
        self.waiting.iter_mut().find(|want| want.id == id)
    }

    fn take(&mut self, id: WantId) -> Option<Want> {
        let place = self.waiting.iter().position(|want| want.id == id)?;
        Some(self.waiting.remove(place))
    }

    /// Returns the want (request for the state) for which a cut was made, and the purpose of the state. Called when the cores
    /// take the snapshot.
    pub fn cut_for(&mut self, cut: CutId, before: Round) -> Option<(WantId, Use)> {
        let want = self.waiting.iter_mut().find(|want| want.waits_for == WaitsFor::Cut(cut))?;
        want.waits_for = WaitsFor::Cores(before);
        Some((want.id, want.purpose))
    }

    /// Answers the request for the state whose cut has failed. The answer is the failure.
    pub fn cut_failed(&mut self, cut: CutId, why: &NotCut) -> Option<Effect> {
        let id = self.waiting.iter().find(|want| want.waits_for == WaitsFor::Cut(cut))?.id;
        self.take(id).map(|want| want.ends(why.clone().into()))
    }
}

impl Want {
    fn ends(self, why: NoState) -> Effect {
        Effect::Wanted(self.id, Err(why))
    }

    /// Returns why the request fails when its time is over, or `None` if the request continues to wait. `writes` says
    /// whether this hub is writing a file.
    fn overdue(&self, writes: bool) -> Option<String> {
        match &self.waits_for {
            WaitsFor::Turn => Some("another client reads the job's state; try again later".to_owned()),
            WaitsFor::Others | WaitsFor::Cut(_) => None,
            WaitsFor::Cores(before) => Some(overdue(*before)),
            WaitsFor::Memory(_, why) => (self.purpose != Use::File || !writes).then(|| why.clone()),
        }
    }
}

/// A job and the time of an event, for the methods that handle requests for the state.
pub(crate) struct Saving<'job> {
    pub job: &'job mut Job,
    pub now: Instant,
}

impl Saving<'_> {
    fn wants(&mut self) -> &mut Wants {
        &mut self.job.checkpoints.wants
    }

    /// Notes a request for a snapshot of the state at a cut, within a time limit. A client's time begins again when its
    /// turn comes.
    pub fn want(&mut self, purpose: Use, at: CutAt, limit: Duration) -> (WantId, Vec<Effect>) {
        let limit = limit.min(LONGEST);
        let until = self.now + limit;
        let wants = self.wants();
        wants.last += 1;
        let id = WantId(wants.last);
        wants.waiting.push(Want { id, purpose, at, limit, until, waits_for: WaitsFor::Turn });
        let effects = match purpose {
            Use::File => self.try_want(id),
            Use::Client(_) => self.next_client(),
        };
        (id, effects)
    }

    /// Gives the turn to the client that has waited longest, if no state is being read.
    fn next_client(&mut self) -> Vec<Effect> {
        let now = self.now;
        let wants = self.wants();
        let waits = |want: &&mut Want| want.waits_for == WaitsFor::Turn;
        let Some(next) = wants.waiting.iter_mut().find(waits).filter(|_| wants.reading.is_none()) else {
            return Vec::new();
        };
        next.until = now + next.limit;
        let id = next.id;
        wants.reading = Some(id);
        self.try_want(id)
    }

    /// Notes that a client has read the state, or gives up. Then gives the turn to the next client.
    pub fn end_read(&mut self, id: WantId) -> Vec<Effect> {
        let wants = self.wants();
        wants.take(id);
        wants.reading.take_if(|reading| *reading == id);
        self.next_client()
    }

    /// Tries to take the wanted state. Other hubs would skip a snapshot while they write their parts of the previous
    /// checkpoint. So hub 0 first waits until they have written these parts.
    fn try_want(&mut self, id: WantId) -> Vec<Effect> {
        let leads = self.job.hubs.leads();
        let Some(want) = self.wants().get(id) else { return Vec::new() };
        let until = want.until;
        match matches!(want.at, CutAt::ThisHub | CutAt::Before(_)) || !leads {
            true => self.cut(id),
            false => {
                want.waits_for = WaitsFor::Others;
                self.follow(Round(0), Some(until), Then::Cut(id))
            }
        }
    }

    /// Asks for a cut that serves this request for the state.
    pub(super) fn cut(&mut self, id: WantId) -> Vec<Effect> {
        let Some(at) = self.wants().get(id).map(|want| want.at) else { return Vec::new() };
        let (cut, effects) = self.job.cut(Purpose::Snapshot(at), self.now);
        self.wants().get(id).expect("the want still waits").waits_for = WaitsFor::Cut(cut);
        effects
    }

    /// Notes a core's answer for a snapshot: the core has taken its part, or has no part.
    pub(super) fn note_taken(&mut self, taken: TakenBy) -> Vec<Effect> {
        let owners = self.job.spec.made.owners;
        let over = self.job.checkpoints.note_taken(taken, owners);
        let effects = over.into_iter().flat_map(|over| self.snapshot_over(over)).collect::<Vec<_>>();
        self.and_tells_parts(effects)
    }

    /// Decides the use of the parts of a snapshot for which all cores have answered.
    fn snapshot_over(&mut self, Over { occasion, before, refused, lacks, want }: Over) -> Vec<Effect> {
        let (parts, next) = match (refused, want) {
            (Some(why), None) => (Parts::Skip(why), Vec::new()),
            (Some(why), Some(id)) => (Parts::Drop, self.lacks_memory(id, lacks, why)),
            (None, Some(id)) => match self.wants().take(id) {
                None => (Parts::Drop, Vec::new()),
                Some(Want { purpose: Use::Client(_), .. }) => (Parts::Give(id), Vec::new()),
                Some(Want { until, .. }) => {
                    self.job.checkpoints.writing.push((occasion, Some((id, until))));
                    (Parts::Write, Vec::new())
                }
            },
            (None, None) => {
                self.job.checkpoints.writing.push((occasion, None));
                (Parts::Write, Vec::new())
            }
        };
        [Effect::Snapshot(occasion, before, parts)].into_iter().chain(next).collect()
    }

    /// Makes a request wait until the memory for these cores' parts is free. If `cores` is empty, tries again at once.
    fn lacks_memory(&mut self, id: WantId, cores: BTreeSet<usize>, why: String) -> Vec<Effect> {
        match self.wants().get(id) {
            Some(want) if !cores.is_empty() => {
                want.waits_for = WaitsFor::Memory(cores, why);
                Vec::new()
            }
            _ => self.try_want(id),
        }
    }

    /// Notes that the memory for a core's part is free again. Tries again for each request that waited only for this
    /// core.
    pub fn note_freed(&mut self, core: usize) -> Vec<Effect> {
        self.job.checkpoints.note_freed(core);
        let mut freed = Vec::new();
        for want in &mut self.wants().waiting {
            if let WaitsFor::Memory(cores, _) = &mut want.waits_for
                && cores.remove(&core)
                && cores.is_empty()
            {
                freed.push(want.id);
            }
        }
        freed.into_iter().flat_map(|id| self.try_want(id)).collect()
    }

    /// Notes that a file is written or has failed. For files that wait for memory, the time limit begins again.
    pub(super) fn note_file_ended(&mut self) {
        let now = self.now;
        let waits =
            |want: &&mut Want| want.purpose == Use::File && matches!(want.waits_for, WaitsFor::Memory(..));
        self.wants().waiting.iter_mut().filter(waits).for_each(|want| want.until = now + want.limit);
    }

    /// Answers the requests whose time is over, with an error.
    pub fn time_passes(&mut self) -> Vec<Effect> {
        let (now, writes) = (self.now, !self.job.checkpoints.writing.is_empty());
        let is_late = |want: &mut Want| want.until <= now && want.overdue(writes).is_some();
        let late = self.wants().waiting.extract_if(.., is_late).collect::<Vec<_>>();
        let answer = |want: Want| want.overdue(writes).map(|why| want.ends(NoState::Other(why)));
        let effects = late.into_iter().filter_map(answer).collect();
        self.and_tells_parts(effects)
    }
}

/// Returns the error text for a round that did not end in time.
pub(super) fn overdue(before: Round) -> String {
    let round = before.0.saturating_sub(1);
    format!(
        "the job has no state to read: round {round} did not end in time, because some workers have not pushed all keys; try again"
    )
}
