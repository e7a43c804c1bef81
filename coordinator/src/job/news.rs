//! A job's news, which its members wait for.
//!
//! Whoever drives the job publishes them after each input.

use pbox_core::control::{HeartbeatReply, JobState};

/// The news of a job. Each change that members must hear of has its own version.
#[derive(Debug)]
pub struct News {
    told: HeartbeatReply,
    /// The number of changes.
    edition: u64,
}

impl News {
    /// The news of a job that begins.
    pub(super) fn new(state: JobState) -> Self {
        let told = HeartbeatReply {
            version: 1,
            state,
            members: Vec::new(),
            left: Vec::new(),
            held_up_by: Vec::new(),
            reached: None,
            lost: 0,
            refused: None,
        };
        News { told, edition: 0 }
    }

    /// Returns the news as they are now.
    pub fn now(&self) -> &HeartbeatReply {
        &self.told
    }

    /// Returns the number of changes.
    pub fn edition(&self) -> u64 {
        self.edition
    }

    /// Changes the news, and has members hear of the change.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut HeartbeatReply)) {
        self.correct(change);
        self.told.version += 1;
    }

    /// Changes the news. Members hear of the change with the next version.
    pub(super) fn correct(&mut self, change: impl FnOnce(&mut HeartbeatReply)) {
        change(&mut self.told);
        self.edition += 1;
    }
}
