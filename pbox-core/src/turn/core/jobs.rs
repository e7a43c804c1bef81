//! The work of a core on a job, as commands of the core's owner. The core takes the job, pauses its rounds, saves its
//! state, checks its rounds, and ends the job.

use std::ops::Range;
use std::sync::Arc;

use fabric::{MapError, Port, Slab};

use super::{Core, JobShard, at_work, of_job};
use crate::kernels::Numbers;
use crate::layout::{KeyId, Layout, Round};
use crate::snapshot::{Occasion, Restored, SnapshotPart};
use crate::turn::look::Look;
use crate::turn::made::MadeShard;
use crate::turn::mode::of_mode;
use crate::turn::notice::{JobId, Notice};
use crate::turn::onlooker::{Nobody, Onlooker, Seen};
use crate::turn::pace::Pace;
use crate::turn::replies::AtWork;
use crate::turn::shard::Front;
use crate::turn::spec::ShardSpec;
use crate::turn::watch::{Watch, Watched};
use crate::weights::{Discarded, Gauged};

impl<P: Port> Core<P> {
    /// Makes a shard of a job on this thread, and [adds](Self::add_shard) it.
    ///
    /// # Errors
    /// Returns an error if there is no memory.
    pub fn add_job(&mut self, id: JobId, spec: ShardSpec) -> Result<(), MapError> {
        let made = MadeShard::new(spec, self.port.waker())?;
        self.add_shard(id, made);
        Ok(())
    }

    /// Adds a shard of a job. All chunks of a key are in one shard, and so are all chunks of a group. Workers are added
    /// [later](Self::add_worker), and take part when [`release`](Self::release) admits them.
    pub fn add_shard(&mut self, id: JobId, MadeShard { shard, replies }: MadeShard) {
        // The new shard follows the job's other shards.
        let from = self.shards.iter_mut().rposition(|entry| of_job(entry, id).is_some());
        let free = (from.unwrap_or(0)..self.shards.len()).find(|&place| self.shards[place].is_none());
        let place = free.unwrap_or(self.shards.len());
        if let Some(last) = from.and_then(|last| self.shards[last].as_mut()) {
            last.next = Some(place);
        }
        self.shards.resize_with(self.shards.len().max(place + 1), || None);
        self.ended.reserve(self.shards.len());
        let watch = Watch::new(of_mode!(&shard, shard => shard.terms.workers));
        self.shards[place] = Some(JobShard { id, shard, replies, looked: None, watch, next: None });
    }

    /// Makes a job below other hubs begin with the first round in which this hub takes part at those hubs.
    /// The job has no workers yet.
    pub fn begin_below(&mut self, id: JobId, first: Round) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.begin_at(first));
        }
    }

    /// Holds a job until [`release`](Self::release): no chunk finishes a round meanwhile. Returns the rounds in flight, or
    /// `None` if the core has no chunks of the job.
    pub fn hold(&mut self, id: JobId) -> Option<Front> {
        let fronts = self.shards_of(id).filter_map(|entry| {
            of_mode!(&mut entry.shard, shard => {
                shard.hold();
                shard.front()
            })
        });
        fronts.reduce(|a, b| Front { lowest: a.lowest.min(b.lowest), highest: a.highest.max(b.highest) })
    }

    /// Lets a [held](Self::hold) job's rounds continue. The workers in `admitted` take part from round `from` on; no
    /// chunk may be past that round. Each admitted worker gets the weights of round `from - 1`: now, or as soon as the
    /// chunk has finished that round.
    pub fn release(&mut self, id: JobId, from: Round, admitted: &[u32], notices: &mut Vec<Notice>) {
        for place in 0..self.shards.len() {
            let Core { shards, port, kernels, .. } = self;
            let Some(entry) = of_job(&mut shards[place], id) else { continue };
            at_work!(entry, port, &mut Nobody, kernels, work => {
                work.shard.release();
                for &rank in admitted {
                    if work.replies.link(rank).is_none() && work.shard.goes_on() {
                        continue; // lost during the hold: no round may wait for it
                    }
                    work.shard.admit(rank, from);
                    work.replies.listen(rank);
                    work.post_lines_again(rank);
                    for at in work.shard.finished_before(from) {
                        // The link is new and has room for all posts. If the link has closed, the port reports this.
                        work.shard.greet(at);
                        work.reply(at, rank, Round(from.0 - 1));
                    }
                }
            });
            self.follow(place, None, notices);
            self.settle(place, notices, &mut Nobody);
        }
    }

    /// Returns each worker's line, by rank, in a [held](Self::hold) job with SSP or ASP. A worker's line is the first
    /// round in which no chunk of this core has stepped the worker's push. Empty in BSP.
    pub fn lines(&mut self, id: JobId) -> Vec<Option<Round>> {
        let lines = self.shards_of(id).map(|entry| of_mode!(&entry.shard, shard => shard.pace.lines()));
        lines.reduce(later_lines).unwrap_or_default()
    }

    /// Sets each worker's lead over the slowest worker, in rounds, by rank. Call it for a job with
    /// SSP or ASP that begins.
    pub fn begin_ahead(&mut self, id: JobId, ahead: &[u32]) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.pace.begin_ahead(ahead));
        }
    }

    /// Ends a [held](Self::hold) job before `round`, which no chunk is past. In SSP and ASP, the job ends at each worker's
    /// line; `lines` are the combined [lines](Self::lines) of all cores. After the release, no chunk passes the end.
    pub fn end_before(&mut self, id: JobId, round: Round, lines: &[Option<Round>]) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.end_before(round, lines));
        }
    }

    /// Makes a job, which has no workers yet, begin with a state.
    pub fn restore(&mut self, id: JobId, layout: &Layout, restored: &Restored) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.restore(layout, restored));
        }
    }

    /// Takes a snapshot of a [held](Self::hold) job's state before round `before`. No chunk may be past this round.
    pub fn take_snapshot(&mut self, id: JobId, occasion: Occasion, before: Round, notices: &mut Vec<Notice>) {
        let Some(entry) = self.shards_of(id).next() else { return };
        of_mode!(&mut entry.shard, shard => shard.take_snapshot(occasion, before));
        entry.report_events(notices);
    }

    /// Returns the state of a [held](Self::hold) job that is over, before round `before`. No chunk may be past this round.
    /// Returns `None` if the core has no chunks of the job. Some modes cannot end a round without the missing pushes. In
    /// these modes, returns an error if a chunk has not reached `before`.
    pub fn last_state(&mut self, id: JobId, before: Round) -> Option<Result<SnapshotPart, String>> {
        let kernels = self.kernels;
        let entry = self.shards_of(id).next()?;
        of_mode!(&mut entry.shard, shard => {
            (!shard.keys().is_empty()).then(|| shard.last_state(kernels, before))
        })
    }

    /// Takes back the memory of a snapshot's part after the part was written or discarded. `values` is `None` if the
    /// memory is lost. Returns memory that is not needed.
    pub fn give_back(&mut self, id: JobId, values: Option<Slab>) -> Discarded {
        let not_needed = match self.shards_of(id).next() {
            Some(entry) => of_mode!(&mut entry.shard, shard => shard.give_back(values)),
            None => values,
        };
        not_needed.map(Discarded::of).unwrap_or_default()
    }

    /// Keeps the memory of `values` for the next snapshot of a job or, without `values`, keeps no memory. Returns
    /// memory that is not needed.
    pub fn keep(&mut self, id: JobId, values: Option<Slab>) -> Discarded {
        let not_needed = match self.shards_of(id).next() {
            Some(entry) => of_mode!(&mut entry.shard, shard => shard.keep(values)),
            None => values,
        };
        not_needed.map(Discarded::of).unwrap_or_default()
    }

    /// Ends a job: its links are detached. Returns its memory, which is freed when it is dropped.
    pub fn remove_job(&mut self, id: JobId) -> Discarded {
        let mut discarded = Discarded::default();
        for place in 0..self.shards.len() {
            let Some(ended) = self.shards[place].take_if(|entry| entry.id == id) else { continue };
            for link in ended.replies.links() {
                // The link may have served another shard of the same job, and is then already removed.
                if self.members[link.index()].take().is_some() {
                    self.port.detach(link);
                }
            }
            // The shard also holds the windows of its links, so the removal of a link has freed no window.
            discarded.add((ended.shard, ended.replies));
        }
        discarded
    }

    /// Changes the hyperparameters of a job's optimizer from a round on. Returns the oldest round that this core may
    /// still step, or `None` if the core has no chunks of the job.
    pub fn set_numbers(&mut self, id: JobId, from: Round, numbers: &Numbers) -> Option<Round> {
        let oldest = self.shards_of(id).filter_map(|entry| {
            of_mode!(&mut entry.shard, shard => {
                shard.set_numbers(from, numbers.clone());
                shard.front()
            })
        });
        oldest.map(|front| front.lowest).min()
    }

    /// Sets the order of a job's answers to a worker, and of its sums to hubs above, by the priority of each key.
    pub fn set_priorities(&mut self, id: JobId, rank: u32, priorities: &Arc<[u32]>) {
        self.shards_of(id).for_each(|entry| entry.replies.set_priorities(rank, priorities));
    }

    /// Sets the optimizer state of keys to zero before a round that no worker has pushed. The keys are sorted.
    pub fn reset_state(&mut self, id: JobId, from: Round, keys: &[KeyId]) {
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => shard.reset_state(from, keys));
        }
    }

    /// Checks whether a job's rounds move, and for which workers they wait.
    pub fn look(&mut self, id: JobId) -> Look {
        let shards = self.shards_of(id);
        shards.fold(Look::default(), |look, JobShard { shard, looked, .. }| {
            look.with(of_mode!(shard, shard => Look::at(shard, looked)))
        })
    }

    /// Begins a wait of the core at time `now`, in microseconds, after everything that arrived has been handled.
    /// Notes for which workers the core waits.
    pub fn begin_wait(&mut self, now: u64) {
        for JobShard { shard, watch, .. } in self.shards.iter_mut().flatten() {
            // A held shard, and a shard without chunks, waits for no worker.
            of_mode!(shard, shard => watch.look(&shard.pace, if shard.is_held() { 0 } else { shard.keys().len() }, now));
        }
    }

    /// Ends a wait of the core at time `now`, in microseconds.
    pub fn end_wait(&mut self, now: u64) {
        self.shards.iter_mut().flatten().for_each(|entry| entry.watch.passed(now));
    }

    /// Returns the round that a job had reached when the core began its last wait.
    pub fn round(&mut self, id: JobId) -> Round {
        self.shards_of(id).map(|entry| entry.watch.round()).max().unwrap_or_default()
    }

    /// Returns how long the core waited for each worker, in a job's last rounds.
    pub fn watched(&mut self, id: JobId) -> Watched {
        self.shards_of(id).fold(Watched::default(), |watched, entry| watched.with(entry.watch.watched()))
    }

    /// Returns the measurements of a job's gradients, such as their norms.
    pub fn gauged(&mut self, id: JobId) -> Gauged {
        self.shards_of(id).fold(Gauged::default(), |gauged, entry| {
            gauged.with(of_mode!(&entry.shard, shard => shard.stages.gauged()))
        })
    }

    /// Finishes all chunks of a shard that can finish without a further arrival.
    pub(super) fn settle(&mut self, place: usize, notices: &mut Vec<Notice>, onlooker: &mut impl Onlooker) {
        self.settle_at(place, 0..usize::MAX, notices, onlooker);
        self.settled(place, notices);
    }

    /// Finishes the chunks whose steps waited for other cores, and can now be made.
    pub(super) fn settle_ready(
        &mut self,
        place: usize,
        notices: &mut Vec<Notice>,
        onlooker: &mut impl Onlooker,
    ) {
        while let Some(entry) = &mut self.shards[place] {
            let Some(ready) = of_mode!(&mut entry.shard, shard => shard.take_ready()) else { break };
            self.settle_at(place, ready, notices, onlooker);
        }
        self.settled(place, notices);
    }

    fn settle_at(
        &mut self,
        place: usize,
        mut chunks: Range<usize>,
        notices: &mut Vec<Notice>,
        onlooker: &mut impl Onlooker,
    ) {
        while let Some(entry) = &mut self.shards[place] {
            let job = entry.id;
            let done = at_work!(entry, &mut self.port, onlooker, self.kernels, work => {
                let Some((finished, after)) = work.shard.settle(work.kernels, chunks.clone()) else { break };
                chunks.start = after;
                if finished.skipped > 0 {
                    let (chunk, now) = (work.shard.chunk(finished.place), finished.round.0 + 1);
                    notices.push(Notice::Skipped { job, chunk, rounds: now - finished.skipped..now });
                }
                let done = work.send(&finished);
                work.port.onlooker.done(job, work.shard.chunk(finished.place), done.round, done.steps);
                done
            });
            self.follow(place, Some(done), notices);
        }
    }

    /// Flushes the answers of settled chunks, and reports events.
    fn settled(&mut self, place: usize, notices: &mut Vec<Notice>) {
        self.flush();
        if let Some(entry) = &mut self.shards[place] {
            entry.report_events(notices);
            // A hold may have delayed the chunk that completes this core's part of the gradient norm.
            self.has_duties |= of_mode!(&entry.shard, shard => shard.has_task());
        }
    }

    /// Returns a job's shards, in the order in which they were added.
    pub(super) fn shards_of(&mut self, id: JobId) -> impl Iterator<Item = &mut JobShard> {
        self.shards.iter_mut().filter_map(move |entry| of_job(entry, id))
    }
}

/// Combines the [lines](Core::lines) of two sets of a job's chunks. For each worker, the result has the later line.
pub fn later_lines(a: Vec<Option<Round>>, b: Vec<Option<Round>>) -> Vec<Option<Round>> {
    if b.is_empty() {
        a
    } else if a.is_empty() {
        b
    } else {
        a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect()
    }
}

impl JobShard {
    /// Reports the results of snapshots, and the reason if the job cannot continue. Runs rarely, not once per chunk.
    #[cold]
    pub(super) fn report_events(&mut self, notices: &mut Vec<Notice>) {
        let job = self.id;
        of_mode!(&mut self.shard, shard => {
            notices.extend(shard.take_failure().map(|reason| Notice::JobFailed { job, reason }));
            while let Some(taken) = shard.taken() {
                notices.push(Notice::Snapshot { job, taken });
            }
        });
    }
}
