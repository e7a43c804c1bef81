//! A job's news, for which its members wait.
//!
//! The driver of the job publishes the news after each input.

use std::mem::discriminant;
use std::time::Duration;

use pbox_core::control::{HeartbeatReply, JobState, Late, reason};
use pbox_core::{MAX_WORKERS, Round};

use super::Life;
use crate::asker::Asker;

/// The interval at which a hub reports its late worker to the hubs above. After this time, the hubs above answer a
/// heartbeat of the hub even without news. If there are many hubs below, they answer after a longer time.
pub const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The largest number of members for which a hub can answer each heartbeat once in every [`REPORT_EVERY`].
pub(crate) const MANY: u32 = 64;

/// The news of a job. Each change that members must know raises the version.
#[derive(Clone, Debug)]
pub struct News {
    reply: HeartbeatReply,
    /// The number of the job's workers.
    workers: u32,
    /// The version in which the job last changed its state: it began to wait for members, began to run, or failed.
    turned: u64,
    /// The number of all changes, including changes without a new version.
    edition: u64,
}

impl News {
    /// Creates the news of a job that begins.
    pub(super) fn new(state: JobState, workers: u32) -> Self {
        let reply = HeartbeatReply {
            version: 1,
            state,
            members: Vec::new(),
            left: Vec::new(),
            held_up_by: Vec::new(),
            reached: None,
            lost: 0,
            refused: None,
        };
        News { reply, workers, turned: 1, edition: 0 }
    }

    /// Returns the current news.
    pub fn now(&self) -> &HeartbeatReply {
        &self.reply
    }

    /// Whether there is news after this version.
    pub fn is_after(&self, version: u64) -> bool {
        self.reply.version > version
    }

    /// Whether the job has begun or failed after this version. Members are notified of these changes at once.
    pub fn has_turned_after(&self, version: u64) -> bool {
        self.turned > version
    }

    /// Returns how long the hub collects more news before it answers a heartbeat. The time is at most `REPORT_EVERY`, so that a
    /// living member sends its next heartbeat in time. If the hub announced each join to all members at once, 1024 joins would
    /// need half a million answers.
    pub fn collects_for(&self) -> Duration {
        match self.reply.state {
            JobState::Gathering { .. } => REPORT_EVERY * self.workers.min(MANY) / MANY,
            _ => REPORT_EVERY * self.workers / MAX_WORKERS,
        }
    }

    /// Returns the number of changes.
    pub fn edition(&self) -> u64 {
        self.edition
    }

    /// Changes the news and updates the job's state in it, with a new version for the members.
    pub(super) fn tell(&mut self, life: &Life, change: impl FnOnce(&mut HeartbeatReply)) {
        self.change(|news| {
            change(news);
            news.state = life.state();
        });
    }

    /// Notes the round that a worker of any machine had reached when it lost a hub.
    pub(super) fn note_reached(&mut self, life: &Life, round: Round) {
        self.tell(life, |news| news.reached = news.reached.max(Some(round)));
    }

    /// Notes that a join was refused. Members of a job that has not begun get this news, because they wait for the refused
    /// worker.
    pub(crate) fn note_refused(&mut self, life: &Life, rank: u32, from: Option<&Asker>, why: &str) {
        if life.gathers() {
            let at = from.map(|from| format!(" at {from}")).unwrap_or_default();
            self.tell(life, |news| news.refused = Some(format!("rank {rank}{at}: {}", reason(why))));
        }
    }

    /// Notes which workers delay the rounds. Returns whether these workers have changed.
    pub(super) fn note_held_up_by(&mut self, late: Vec<Late>) -> bool {
        let who = |late: &[Late]| late.iter().map(|late| late.who.clone()).collect::<Vec<_>>();
        let is_news = who(&late) != who(&self.reply.held_up_by);
        match is_news {
            true => self.change(|news| news.held_up_by = late),
            false => self.correct(|news| news.held_up_by = late),
        }
        is_news
    }

    /// Changes the news, with a new version for the members.
    fn change(&mut self, change: impl FnOnce(&mut HeartbeatReply)) {
        let before = discriminant(&self.reply.state);
        self.correct(change);
        self.reply.version += 1;
        if discriminant(&self.reply.state) != before {
            self.turned = self.reply.version;
        }
    }

    /// Changes the news without a new version. Members see the change together with the next version.
    fn correct(&mut self, change: impl FnOnce(&mut HeartbeatReply)) {
        change(&mut self.reply);
        self.edition += 1;
    }
}
