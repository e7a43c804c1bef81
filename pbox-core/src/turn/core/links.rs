//! The links of a core's jobs to workers and to hubs above: attaching, losing and replacing them.

use std::fmt::Display;
use std::sync::Arc;

use fabric::{Arrival, LinkId, Port, RecvWindow, SpanError, Spans};

use super::{ARRIVALS_PER_LINK, Core, JobShard, Member, at_work, of_job};
use crate::job::LevelTerms;
use crate::turn::mode::of_mode;
use crate::turn::notice::{AnswersAbove, JobId, Notice};
use crate::turn::onlooker::{Nobody, Seen};
use crate::turn::replies::AtWork;
use crate::weights::Discarded;

impl<P: Port> Core<P> {
    /// Attaches a worker's link to its job. If each worker has its own weights window, `windows` has this
    /// core's spans of that window, for each shard of the job. The windows' pages must be allocated. If the
    /// worker had lost its links before, returns the windows of the lost links.
    pub fn add_worker(
        &mut self,
        id: JobId,
        rank: u32,
        gradients: Arc<RecvWindow>,
        own: impl IntoIterator<Item = Spans>,
        endpoint: P::Endpoint,
    ) -> Result<Discarded, SpanError> {
        let mut discarded = Discarded::default();
        let first = self.shards.iter_mut().position(|entry| of_job(entry, id).is_some());
        let Some(first) = first else { return Ok(discarded) }; // the job ended meanwhile
        let mut own = own.into_iter();
        for entry in self.shards_of(id) {
            of_mode!(&mut entry.shard, shard => {
                shard.add_worker(rank, Arc::clone(&gradients), own.next(), &mut discarded)
            })?;
        }
        // Each rank has one link. With two links, one worker would push twice.
        if let Some(former) = self.unlink(id, rank) {
            self.port.detach(former);
        }
        let terms = of_mode!(&self.shards[first].as_ref().expect("the shard was found above").shard, shard => &shard.terms);
        let credit = terms.level.credit().at_first();
        self.attach(id, Member { shard: first, rank }, endpoint, credit);
        Ok(discarded)
    }

    /// Attaches the links of a job's shard to the hubs above, in the order of the links' numbers. Each link comes with
    /// the window that the hub writes, unless workers read that window. `level` has the terms of these links. Call it
    /// before [`begin_below`](Self::begin_below), and again after [`unlink_above`](Self::unlink_above): the sums that
    /// have no answer are then sent again.
    ///
    /// # Errors
    /// Returns an error if a window lacks chunks of the shard.
    pub fn add_above(
        &mut self,
        id: JobId,
        level: &LevelTerms,
        links: impl IntoIterator<Item = (P::Endpoint, Option<Arc<RecvWindow>>)>,
        notices: &mut Vec<Notice>,
    ) -> Result<(), SpanError> {
        let Some(first) = self.shards.iter_mut().position(|entry| of_job(entry, id).is_some()) else {
            return Ok(());
        };
        let entry = self.shards[first].as_ref().expect("just found");
        let workers = of_mode!(&entry.shard, shard => shard.terms.workers);
        for (rank, (endpoint, window)) in (workers..).zip(links) {
            if let Some(window) = window {
                let entry = self.shards[first].as_mut().expect("just found");
                of_mode!(&mut entry.shard, shard => shard.add_above(rank, window))?;
            }
            self.attach(id, Member { shard: first, rank }, endpoint, level.credit().at_first());
        }
        for place in 0..self.shards.len() {
            let Core { shards, port, kernels, .. } = self;
            let Some(entry) = of_job(&mut shards[place], id) else { continue };
            at_work!(entry, port, &mut Nobody, kernels, work => work.ask_again());
            self.follow(place, None, notices);
        }
        self.flush();
        Ok(())
    }

    /// Attaches a link to a job, under a number that no link of the job has yet.
    fn attach(&mut self, id: JobId, member: Member, endpoint: P::Endpoint, credit: Option<usize>) {
        let link = self.port.attach(endpoint);
        let Core { shards, port, kernels, .. } = self;
        for entry in shards.iter_mut().filter_map(|entry| of_job(entry, id)) {
            entry.replies.attach(member.rank, link);
            let (answers_ahead, posts) =
                of_mode!(&entry.shard, shard => (shard.terms.has_answers_ahead(), shard.posts()));
            if credit.is_some() || answers_ahead {
                // If the credit is used up, chunks wait in this queue, in the order of the level's schedule.
                // Lines with parts of the gradient norm wait in the queue, too.
                entry.replies.make_room(member.rank, if answers_ahead { 2 * posts } else { posts });
                port.set_credit(link, credit);
            }
            if !entry.replies.leads_up(member.rank) {
                at_work!(entry, port, &mut Nobody, kernels, work => work.post_lines_again(member.rank));
            }
        }
        if self.members.len() <= link.index() {
            self.members.resize(link.index() + 1, None);
        }
        self.members[link.index()] = Some(member);
        let room = ARRIVALS_PER_LINK * self.members.iter().flatten().count();
        if room > self.arrivals.len() {
            self.arrivals.resize(room, Arrival::default());
        }
    }

    /// Detaches a worker that left or was lost. The job's terms decide whether rounds then wait for this worker or
    /// continue. Returns the worker's windows.
    pub fn remove_worker(&mut self, id: JobId, rank: u32, notices: &mut Vec<Notice>) -> Discarded {
        let mut discarded = Discarded::default();
        if let Some(link) = self.unlink(id, rank) {
            self.port.detach(link);
        }
        for place in 0..self.shards.len() {
            let Some(entry) = of_job(&mut self.shards[place], id) else { continue };
            entry.replies.forget(rank);
            let removed = of_mode!(&mut entry.shard, shard => {
                shard.goes_on().then(|| shard.remove_worker(rank, &mut discarded))
            });
            match removed {
                None => {}
                Some(Ok(())) => self.settle(place, notices, &mut Nobody),
                Some(Err(reason)) => {
                    notices.push(Notice::JobFailed { job: id, reason });
                    break;
                }
            }
        }
        discarded
    }

    /// Drops the link of a living worker that will make [a new link](Self::add_worker). Rounds of the job
    /// wait until the worker has pushed again all rounds that have no answer. Returns the worker's gradient
    /// window.
    pub fn unlink_worker(&mut self, id: JobId, rank: u32) -> Discarded {
        let mut discarded = Discarded::default();
        if let Some(link) = self.unlink(id, rank) {
            self.port.detach(link);
        }
        for JobShard { shard, replies, .. } in self.shards_of(id) {
            of_mode!(shard, shard => {
                shard.unlink(rank, &mut discarded);
                replies.allow_repeats(rank, shard.keys().len());
            });
        }
        discarded
    }

    /// Drops a job's lost links to the hubs above; the job's rounds wait for [new links](Self::add_above). Returns the
    /// windows that the hubs above wrote, unless workers read these windows. Also returns how many answers had arrived
    /// over the lost links.
    pub fn unlink_above(&mut self, id: JobId) -> (Discarded, AnswersAbove) {
        let (mut discarded, mut answers) = (Discarded::default(), AnswersAbove::default());
        let first = self.shards_of(id).next();
        for number in first.map_or(0..0, |entry| entry.replies.numbers_above()) {
            if let Some(link) = self.unlink(id, number) {
                self.port.detach(link);
            }
            for JobShard { shard, .. } in self.shards_of(id) {
                of_mode!(shard, shard => shard.stages.unlink(number, &mut discarded));
            }
        }
        for JobShard { shard, .. } in self.shards_of(id) {
            of_mode!(shard, shard => answers.add(&shard.pace, shard.keys().len()));
        }
        (discarded, answers)
    }

    /// Returns the links of a job's workers, with their ranks.
    pub fn links(&self, id: JobId) -> impl Iterator<Item = (u32, LinkId)> {
        let of_job = move |(link, member): (u32, &Option<Member>)| {
            let Member { shard, rank } = (*member)?;
            let entry = self.shards[shard].as_ref().filter(|entry| entry.id == id)?;
            (!entry.replies.leads_up(rank)).then_some((rank, LinkId(link)))
        };
        (0..).zip(&self.members).filter_map(of_job)
    }

    /// Removes a worker's link from all shards of its job. Returns the link.
    fn unlink(&mut self, id: JobId, rank: u32) -> Option<LinkId> {
        let link = self.shards_of(id).filter_map(|entry| entry.replies.detach(rank)).last()?;
        self.members[link.index()] = None;
        Some(link)
    }

    #[cold]
    pub(super) fn drop_broken(&mut self, place: usize, notices: &mut Vec<Notice>) {
        let entry = self.shards[place].as_mut().expect("its answers were posted");
        for (rank, violation) in entry.replies.take_broken() {
            self.drop_worker(place, rank, &violation, false, notices);
        }
    }

    /// Drops a worker. `by_itself` says whether the link ended by itself, without a breach of the protocol by the
    /// worker.
    #[cold]
    pub(super) fn drop_worker(
        &mut self,
        place: usize,
        rank: u32,
        reason: &dyn Display,
        by_itself: bool,
        notices: &mut Vec<Notice>,
    ) {
        let entry = self.shards[place].as_ref().expect("a member's job is there");
        let (job, leads_up) = (entry.id, entry.replies.leads_up(rank));
        if let Some(link) = self.unlink(job, rank) {
            self.dropped.push(link);
            let reason = reason.to_string();
            notices.push(match leads_up {
                true => Notice::AboveGone { job, reason },
                false => Notice::WorkerGone { job, rank, reason, by_itself },
            });
        }
    }
}
