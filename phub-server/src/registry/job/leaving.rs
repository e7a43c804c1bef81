//! Members that leave or are lost, and the end of the job.

use std::sync::Arc;
use std::time::Instant;

use pbox_core::control::Left;
use pbox_core::{Discarded, JobTerms, Layout, Round, Wire};

use super::{Job, Life, Standing};
use crate::registry::hubs::Ending;

impl Job {
    /// A worker left in good order. True if it was the last.
    pub fn left(&mut self, rank: u32, round: Round) -> bool {
        if self.goes_on() {
            self.lost(rank);
        } else {
            self.standing(rank).into_iter().for_each(|standing| *standing = Standing::Left);
            self.publish(|news| {
                news.members.retain(|member| member.rank != rank);
                news.left.push(Left { rank, round });
            });
        }
        !(0..self.terms.workers).any(|rank| self.has(rank))
    }

    /// A worker was lost, and the job goes on.
    pub fn lost(&mut self, rank: u32) {
        let cores = self.cores.numbers.len();
        self.standing(rank).into_iter().for_each(|standing| standing.lose(cores));
    }

    /// No hub expects this worker any more.
    pub fn forget_arrival(&mut self, rank: u32) {
        if let Some(worker) = self.worker(rank) {
            self.hubs.arrivals.forget(worker);
        }
    }

    /// A core has let go of a worker. After the last core the rank is free, and the news say that no round waits for it.
    pub fn removed(&mut self, rank: u32) {
        if self.standing(rank).is_some_and(Standing::removed) {
            self.members[rank as usize] = None;
            self.publish(|news| news.members.retain(|member| member.rank != rank));
        }
    }

    /// Ends the job for all its workers: on its own account, or because the hub stops.
    pub fn fail(&mut self, reason: &str, hub_stops: bool, ending: Option<Ending>) {
        self.weights = None;
        self.life = Life::Failed { at: Instant::now(), reason: reason.to_owned(), hub_stops, ending };
        self.hubs.end_hold();
        self.publish(|_| {});
    }

    /// Gives back what a failed job knows of its keys and chunks: it is there for its news alone.
    pub fn forget_model(&mut self) -> Option<Discarded> {
        if self.terms.keys.is_empty() {
            return None;
        }
        let terms = Arc::new(JobTerms { keys: Vec::new(), ..*self.terms });
        let terms = std::mem::replace(&mut self.terms, terms);
        let wire = std::mem::replace(&mut self.wire, Wire::plain(Arc::new(Layout::none())));
        Some(Discarded::of((terms, wire, std::mem::take(&mut self.hubs.pieces))))
    }
}
