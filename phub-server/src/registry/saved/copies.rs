//! Copies of a job's state, each for all clients that waited for it. A job has at most two copies.
//!
//! ```text
//!   client a --> want --> its turn --> cut --> copy 1 --> b waits: copy 1 is the older one ---> a has it --.
//!   client b, c, while a reads --> one want ---> its turn --> cut --> copy 2: the newest                   |
//!   client d, while all read --> want ------------------------------------------------------ its turn <----'--> cut --> ...
//! ```
//!
//! So one slow client holds up no other client. While a client waits for memory, those of the older copy must be faster.
//!
//! A client never gets a state that is older than its request: once the cut of a want is taken, no client joins the want, unless
//! they name the same round.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use coordinator::{CutAt, Event, JobEnded, Use, WantId};
use pbox_core::control::RefusalCode;
use pbox_core::{JobId, Selection, Share};
use tokio::sync::{oneshot, watch};

use super::collected::{Met, ROUND_LIMIT, ended};
use super::send::no_state;
use super::snapshot::{Wanted, met};
use crate::checkpoint::{NoImage, image};
use crate::registry::{Because, Refusal, Registry, on_thread};

/// The state that clients want.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct What {
    pub selection: Selection,
    pub at: CutAt,
    /// The hub's share.
    pub share: Share,
    /// The job of the name, if the share is a part.
    pub run: Option<String>,
}

/// A checkpoint file in memory. When it is dropped, the next clients have their turn. No one drops it who has the registry's
/// lock.
#[derive(Debug)]
pub(super) struct StateFile {
    pub bytes: Vec<u8>,
    /// Whether other clients wait until this file is gone.
    pub is_in_the_way: watch::Sender<bool>,
    registry: Weak<Registry>,
    job: JobId,
    /// The turn, while this file is the newest.
    turn: Mutex<Option<Turn>>,
}

impl Drop for StateFile {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.bytes));
        if let Some(registry) = self.registry.upgrade() {
            registry.make_room(self.job);
        }
    }
}

/// The answer to the clients of a want.
type Copied = Result<Arc<StateFile>, Refusal>;

/// The copies of a job's state.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// The clients that wait, by their want.
    waiting: HashMap<WantId, (What, Vec<oneshot::Sender<Copied>>)>,
    /// The newest copy, which has the turn. So the next want waits.
    newest: Weak<StateFile>,
    /// The copy before the newest one.
    older: Weak<StateFile>,
}

impl Registry {
    /// Returns a copy of the state of a job.
    pub(super) async fn copy(self: &Arc<Self>, name: &str, id: JobId, what: What) -> Copied {
        let ended = |why| no_state(name, &ended(why));
        let copied = self.copy_with_others(name, id, what).map_err(ended)?;
        copied.await.unwrap_or_else(|_| Err(ended(JobEnded)))
    }

    /// Joins the clients that wait for the same state, or becomes the first of them.
    fn copy_with_others(
        self: &Arc<Self>,
        name: &str,
        id: JobId,
        what: What,
    ) -> Result<oneshot::Receiver<Copied>, JobEnded> {
        let mut inner = self.lock();
        let (state, job) = inner.running(id)?;
        let mut others = job.checkpoints.copies.waiting.iter_mut();
        let (client, copied) = oneshot::channel();
        let same = others.find(|(want, (of, _))| *of == what && state.checkpoints.may_share(**want));
        if let Some((_, (_, clients))) = same {
            clients.push(client);
            return Ok(copied);
        }
        let (want, wanted) = self.want(&mut inner, id, Use::Client(what.selection), what.at, ROUND_LIMIT)?;
        let (_, job) = inner.running(id)?;
        job.checkpoints.copies.waiting.insert(want, (what.clone(), vec![client]));
        let (registry, name) = (Arc::clone(self), name.to_owned());
        let turn = Turn { registry: self.me.clone(), job: id, want };
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
            // Without the lock: a copy that nobody takes gives up its turn.
            for client in clients.ok().flatten().into_iter().flat_map(|(_, clients)| clients) {
                let _ = client.send(made.clone());
            }
        });
        Ok(copied)
    }

    /// Makes a copy of a state when it is there.
    async fn make_copy(self: Arc<Self>, name: &str, what: What, turn: Turn, wanted: Wanted) -> Copied {
        let conflict = |why: String| RefusalCode::NoState.because(format!("job {name:?}: {why}"));
        let met = met(wanted).await.map_err(|why| no_state(name, &why))?;
        let Met::State(mut collected) = met else { unreachable!("no file was wanted") };
        let (job, snapshot) = self.snapshot(&mut collected).map_err(conflict)?;
        let (What { share, run, .. }, before) = (what, collected.before);
        let reads = self.of_job(collected.job, |_, job| Arc::clone(&job.checkpoints.reads));
        let file = on_thread("phub-state", move || {
            let file = image(&job, &snapshot, share, run);
            collected.give_back(snapshot);
            file
        });
        let file = file.await?.map_err(|why| match why {
            NoImage::Keys(why) => conflict(why.to_string()),
            NoImage::Memory { .. } => {
                RefusalCode::NoMemory.because(format!("job {name:?}: its state cannot be sent: {why}"))
            }
        })?;
        reads.into_iter().for_each(|reads| reads.copied(before));
        let (registry, job, turn) = (self.me.clone(), turn.job, Mutex::new(Some(turn)));
        let is_in_the_way = watch::Sender::new(false);
        Ok(Arc::new(StateFile { bytes: file, is_in_the_way, registry, job, turn }))
    }

    /// Makes room for the copy of clients that wait while the newest copy is read: the newest one becomes the older one, and
    /// gives up its turn. If there is an older one, the clients who read it must be faster. The caller has no lock.
    fn make_room(&self, id: JobId) {
        let read = self.of_job(id, |_, job| {
            let copies = &mut job.checkpoints.copies;
            let newest = copies.newest.upgrade().filter(|_| !copies.waiting.is_empty())?;
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

/// The turn of a want, from the request on. It ends when this is dropped, which no one does who has the registry's lock.
#[derive(Debug)]
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
