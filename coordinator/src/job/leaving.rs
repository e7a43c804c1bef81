//! Members that leave, and the end of the job.

use std::sync::Arc;
use std::time::Instant;

use pbox_core::control::Left;
use pbox_core::{JobTerms, Piece, Round};

use super::{Job, Life, Standing};

impl Job {
    /// Notes that a worker left in good order. True if it was the last.
    pub fn left(&mut self, rank: u32, round: Round) -> bool {
        if self.goes_on() {
            self.lost(rank);
        } else {
            self.standing(rank).into_iter().for_each(|standing| *standing = Standing::Left);
            self.tell(|news| {
                news.members.retain(|member| member.rank != rank);
                news.left.push(Left { rank, round });
            });
        }
        !(0..self.terms.workers).any(|rank| self.has(rank))
    }

    /// Notes that a worker is no member any more, and that the job goes on.
    pub(super) fn lost(&mut self, rank: u32) {
        let cores = self.made.cores;
        self.standing(rank).into_iter().for_each(|standing| standing.lose(cores));
    }

    /// Forgets that a worker arrived: no hub expects it any more.
    pub fn forget_arrival(&mut self, rank: u32) {
        if let Some(worker) = self.worker(rank) {
            self.hubs.arrivals.forget(worker);
        }
    }

    /// Notes that a core has removed a worker. After the last core the rank is free, and the news say that no round waits for it.
    pub fn removed(&mut self, rank: u32) {
        if self.standing(rank).is_some_and(Standing::removed) {
            self.members[rank as usize] = None;
            self.tell(|news| news.members.retain(|member| member.rank != rank));
        }
    }

    /// Ends the job for all its workers: on its own account, or because the hub stops.
    pub fn fail(&mut self, reason: &str, hub_stops: bool, now: Instant) {
        self.life = Life::Failed { at: now, reason: reason.to_owned(), hub_stops };
        self.tell(|_| {});
    }

    /// Gives back what a failed job knows of its keys: it is there for its news alone.
    pub fn forget_model(&mut self) -> Option<(Arc<JobTerms>, Vec<Piece>)> {
        if self.terms.keys.is_empty() {
            return None;
        }
        let terms = Arc::new(JobTerms { keys: Vec::new(), ..*self.terms });
        Some((std::mem::replace(&mut self.terms, terms), std::mem::take(&mut self.hubs.pieces)))
    }
}
