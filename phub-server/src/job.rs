//! A job: its manifest, its members, and the news that its workers wait for.
//!
//! Owned by the registry, under its lock. Decides nothing about cores and connections.

use std::sync::Arc;
use std::time::Instant;

use fabric::SendWindow;
use pbox_core::control::{HeartbeatReply, JobReply, JobState, JoinRequest, Left};
use pbox_core::manifest::first_difference;
use pbox_core::{JobId, Layout, Round};
use tokio::sync::watch;

/// A worker that joined.
#[derive(Debug)]
pub(crate) struct Member {
    /// It has been let in on the data path.
    connected: bool,
    /// Cores that have its link.
    attached: usize,
    /// When its last heartbeat came.
    pub heard: Instant,
    /// The first round without it, once it left.
    left: Option<Round>,
}

/// One job.
#[derive(Debug)]
pub(crate) struct Job {
    pub id: JobId,
    pub name: String,
    /// What the first worker asked for; the others must ask for the same.
    pub terms: JoinRequest,
    pub layout: Arc<Layout>,
    /// Posts that the link to each core holds: as many as the core owns chunks.
    pub capacities: Vec<u32>,
    /// The weights; gone once the job failed.
    pub weights: Option<Arc<SendWindow>>,
    pub members: Vec<Option<Member>>,
    news: watch::Sender<HeartbeatReply>,
    cores: usize,
}

impl Job {
    pub fn new(
        id: JobId,
        name: String,
        terms: JoinRequest,
        layout: Arc<Layout>,
        capacities: Vec<u32>,
        weights: Arc<SendWindow>,
    ) -> Self {
        let workers = terms.workers;
        let state = JobState::Gathering { missing: (0..workers).collect() };
        let news = watch::Sender::new(HeartbeatReply { version: 1, state, left: Vec::new() });
        let members = (0..workers).map(|_| None).collect();
        let cores = capacities.len();
        Job { id, name, terms, layout, capacities, weights: Some(weights), members, news, cores }
    }

    /// Whether a worker that asks for `request` may take part; the error says what differs.
    pub fn admits(&self, request: &JoinRequest) -> Result<(), String> {
        let Job { name, terms, .. } = self;
        let differs = |what: &str, theirs: String, ours: String| {
            Err(format!(
                "job {name:?} has {what} {ours}, worker {} asks for {theirs}; all workers of a job must ask for the same, or use another job name",
                request.rank
            ))
        };
        if request.workers != terms.workers {
            return differs("workers", request.workers.to_string(), terms.workers.to_string());
        }
        if self.members[request.rank as usize].is_some() {
            return Err(format!(
                "rank {} of job {name:?} is taken (after a crash, until the former worker is missed: try again); give each worker its own rank from 0 to {}, or use another job name",
                request.rank,
                terms.workers - 1
            ));
        }
        if request.chunk_bytes != terms.chunk_bytes {
            return differs("chunk_bytes", request.chunk_bytes.to_string(), terms.chunk_bytes.to_string());
        }
        if request.optimizer != terms.optimizer {
            return differs(
                "optimizer",
                format!("{:?}", request.optimizer),
                format!("{:?}", terms.optimizer),
            );
        }
        if request.ablate != terms.ablate {
            return differs("ablate", format!("{:?}", request.ablate), format!("{:?}", terms.ablate));
        }
        match first_difference(&request.keys, &terms.keys) {
            None => Ok(()),
            Some(difference) => Err(format!(
                "manifests differ in job {name:?}: {difference}; all workers must build the same model (worker {})",
                request.rank
            )),
        }
    }

    /// Takes a worker in.
    pub fn add_member(&mut self, rank: u32) {
        self.members[rank as usize] =
            Some(Member { connected: false, attached: 0, heard: Instant::now(), left: None });
    }

    /// A worker comes to the data path; once only, because a rank has one link to each core.
    pub fn connect(&mut self, rank: u32) -> Result<(), String> {
        match &mut self.members[rank as usize] {
            Some(member) if !member.connected => {
                member.connected = true;
                Ok(())
            }
            _ => Err(format!(
                "worker {rank} of job {:?} is connected already, and a token is good for one connection; join again under another rank or job name",
                self.name
            )),
        }
    }

    /// A core has the worker's link; true when this made the job complete.
    pub fn attached(&mut self, rank: u32) -> bool {
        if let Some(member) = &mut self.members[rank as usize] {
            member.attached += 1;
        }
        if !matches!(self.state(), JobState::Gathering { .. }) {
            return false;
        }
        let here = |member: &Option<Member>| member.as_ref().is_some_and(|m| m.attached >= self.cores);
        let ranks = self.members.iter().zip(0u32..);
        let missing: Vec<u32> = ranks.filter(|(member, _)| !here(member)).map(|(_, rank)| rank).collect();
        let complete = missing.is_empty();
        let state = if complete { JobState::Running } else { JobState::Gathering { missing } };
        self.publish(|news| news.state = state);
        complete
    }

    /// A worker left in good order; true when it was the last.
    pub fn left(&mut self, rank: u32, round: Round) -> bool {
        if let Some(member) = &mut self.members[rank as usize] {
            member.left = Some(round);
        }
        self.publish(|news| news.left.push(Left { rank, round }));
        self.members.iter().flatten().all(|member| member.left.is_some())
    }

    /// Whether the worker is a member that has not left.
    pub fn has(&self, rank: u32) -> bool {
        self.members[rank as usize].as_ref().is_some_and(|member| member.left.is_none())
    }

    /// Ends the job for all its workers.
    pub fn fail(&mut self, reason: &str) {
        self.weights = None;
        self.publish(|news| news.state = JobState::Failed { reason: reason.to_owned() });
    }

    pub fn failed(&self) -> bool {
        matches!(self.state(), JobState::Failed { .. })
    }

    pub fn state(&self) -> JobState {
        self.news.borrow().state.clone()
    }

    /// News as they come.
    pub fn subscribe(&self) -> watch::Receiver<HeartbeatReply> {
        self.news.subscribe()
    }

    fn publish(&self, change: impl FnOnce(&mut HeartbeatReply)) {
        self.news.send_modify(|news| {
            change(news);
            news.version += 1;
        });
    }

    pub fn describe(&self) -> JobReply {
        JobReply {
            name: self.name.clone(),
            state: self.state(),
            workers: self.terms.workers,
            keys: self.layout.keys().len(),
            model_bytes: self.layout.model_bytes(),
        }
    }
}
