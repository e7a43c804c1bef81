//! A core thread carries out its waiting commands between two turns.

use std::sync::Arc;

use fabric::{RecvWindow, Spans, any};
use pbox_core::{Discarded, JobId, LevelTerms};

use crate::timeline::CoreTimeline;
use crate::{Command, CoreLinksAbove, CoreThread, Report};

impl CoreThread {
    /// Carries out the waiting commands.
    pub fn obey(&mut self) {
        self.waiting_since.clear();
        while let Ok(command) = self.inbox.try_recv() {
            self.carry_out(command);
            self.report_notices();
        }
    }

    fn carry_out(&mut self, command: Command) {
        let (core, notices) = (&mut self.core, &mut self.notices);
        match command {
            Command::Nothing => {}
            Command::Stop => self.stops = true,
            Command::Events(to) => {
                let events = self.timeline.as_ref().map_or_else(Default::default, CoreTimeline::events);
                drop(to.0.send((self.number, events)));
            }
            Command::AddShard { job, shard } => core.add_shard(job, *shard),
            Command::Restore { job, layout, state } => core.restore(job, &layout.0, &state.0),
            Command::AddWorker { job, rank, gradients, weights, link } => {
                self.add_worker(job, rank, gradients.0, weights.0, *link)
            }
            Command::UnlinkWorker { job, rank } => self.unlink_worker(job, rank),
            Command::RemoveWorker { job, rank } => self.remove_worker(job, rank),
            Command::AddAbove { job, level, links } => self.add_above(job, &level, links.0),
            Command::UnlinkAbove { job } => self.unlink_above(job),
            Command::BeginBelow { job, first, reply } => {
                core.begin_below(job, first);
                reply.send(());
            }
            Command::Hold { job, reply } => reply.send(core.hold(job)),
            Command::Lines { job, reply } => reply.send(core.lines(job)),
            Command::EndBefore { job, before, lines, reply } => {
                core.end_before(job, before, &lines);
                reply.send(());
            }
            Command::TakeSnapshot { job, occasion, before } => {
                core.take_snapshot(job, occasion, before, notices)
            }
            Command::GiveBack { job, values } => {
                let not_needed = core.give_back(job, values);
                self.free(not_needed);
                self.report(Report::Freed { job, core: self.number });
            }
            Command::Keep { job, values } => {
                let not_needed = core.keep(job, values);
                self.free(not_needed);
            }
            Command::Release { job, from, admitted, ahead, reply } => {
                if !ahead.is_empty() {
                    core.begin_ahead(job, &ahead);
                }
                core.release(job, from, &admitted, notices);
                reply.send(());
            }
            Command::SetNumbers { job, from, numbers, reset, reply } => {
                core.reset_state(job, from, &reset);
                reply.send(core.set_numbers(job, from, &numbers));
            }
            Command::SetPriorities { job, rank, priorities, reply } => {
                core.set_priorities(job, rank, &priorities);
                reply.send(());
            }
            Command::Look { job, reply } => reply.send(core.look(job)),
            Command::Measure { job, reply } => reply.send(self.measured(job)),
            Command::LastState { job, before, reply } => reply.send(core.last_state(job, before)),
            Command::RemoveJob { job } => {
                let memory = core.remove_job(job);
                self.free(memory);
            }
        }
    }

    fn add_worker(
        &mut self,
        job: JobId,
        rank: u32,
        gradients: Arc<RecvWindow>,
        weights: Option<Spans>,
        link: any::Endpoint,
    ) {
        let report = match self.core.add_worker(job, rank, gradients, weights, link) {
            Ok(former) => {
                self.free(former);
                Report::Attached { job, rank }
            }
            Err(error) => Report::WorkerGone { job, rank, reason: error.to_string(), by_itself: false },
        };
        self.report(report);
    }

    fn unlink_worker(&mut self, job: JobId, rank: u32) {
        let windows = self.core.unlink_worker(job, rank);
        self.free(windows);
        self.report(Report::Unlinked { job, rank });
    }

    fn remove_worker(&mut self, job: JobId, rank: u32) {
        let windows = self.core.remove_worker(job, rank, &mut self.notices);
        self.free(windows);
        self.report_notices(); // after `Removed`, nothing more is reported about this worker
        self.report(Report::Removed { job, rank });
    }

    fn add_above(&mut self, job: JobId, level: &LevelTerms, links: CoreLinksAbove) {
        let added = self.core.add_above(job, level, links, &mut self.notices);
        self.report_notices();
        if let Err(error) = added {
            self.report(Report::JobFailed { job, reason: error.to_string() });
        }
    }

    fn unlink_above(&mut self, job: JobId) {
        let (windows, answers) = self.core.unlink_above(job);
        self.free(windows);
        self.report(Report::UnlinkedAbove { job, answers });
    }

    /// Passes memory to the thread that frees it, so that rounds of other jobs continue.
    fn free(&self, memory: Discarded) {
        if !memory.is_empty() {
            let _ = self.discard.send(memory);
        }
    }
}
