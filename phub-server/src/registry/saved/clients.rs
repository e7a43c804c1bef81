//! Copies of a job's state for the clients that wait for it. [`copies`](super::copies) has a diagram.

use std::sync::{Arc, PoisonError};

use coordinator::{Event, JobEnded, Use};
use pbox_core::JobId;
use pbox_core::control::RefusalCode;
use tokio::sync::oneshot;

use super::collected::{Met, ROUND_LIMIT, ended};
use super::copies::{AtEnd, Copied, StateFile, What};
use super::send::no_state;
use super::snapshot::{Wanted, met};
use crate::checkpoint::{NoImage, image};
use crate::registry::{Because, Refusal, Registry, on_thread};

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
    async fn make_copy(self: Arc<Self>, name: &str, what: What, turn: AtEnd, wanted: Wanted) -> Copied {
        let conflict = |why: String| RefusalCode::NoState.because(format!("job {name:?}: {why}"));
        let met = met(wanted).await.map_err(|why| no_state(name, &why))?;
        let Met::State(mut collected) = met else { unreachable!("no file was wanted") };
        let (job, snapshot) = self.snapshot(&mut collected).map_err(conflict)?;
        let (What { share, run, .. }, id, before) = (what, collected.job, collected.before);
        let reads = self.of_job(id, |_, job| Arc::clone(&job.checkpoints.reads));
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
        let me = self.me.clone();
        let gone = AtEnd::new(move || me.upgrade().into_iter().for_each(|registry| registry.make_room(id)));
        Ok(Arc::new(StateFile::new(file, before, turn, gone)))
    }

    /// Makes room for a new copy, if clients wait for one. If there is no older copy, the newest copy becomes the older
    /// one, and the waiting clients have their turn. If there is an older copy, its readers must read faster from now
    /// on. The caller must not hold the lock.
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
