//! The state under the registry's lock: the coordinator's hub, which decides, and this hub's own part of each job.
//!
//! Every change of the hub's state goes through [`Inner::ask`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use coordinator::input::Release;
use coordinator::{Hub, Input, JobEnded, MemberOf, Refused, Request, Settings};
use pbox_core::JobId;

use super::job::{Job, Load};
use super::recorder::Recorder;

/// The most names of ended jobs that are kept.
const MOST_ENDED: usize = 256;

/// The state under the lock.
#[derive(Debug)]
pub(super) struct Inner {
    hub: Hub,
    /// This hub's own part of each job of the coordinator.
    jobs: BTreeMap<JobId, Job>,
    /// The load of jobs that are being made, by name.
    pub loads: HashMap<String, Load>,
    /// The members whose client does not have the answer to its join yet.
    pub unanswered: HashSet<(JobId, u32)>,
    /// The names of the jobs with files that ended last, in the order of their ends.
    ended: Vec<String>,
    recorder: Option<Recorder>,
}

/// A job in the coordinator, and this hub's part of that job.
pub(super) type Both<'a> = (&'a coordinator::Job, &'a mut Job);

impl Inner {
    pub fn new(settings: Settings, recorder: Option<Recorder>) -> Self {
        Inner {
            hub: Hub::new(settings),
            jobs: BTreeMap::new(),
            loads: HashMap::new(),
            unanswered: HashSet::new(),
            ended: Vec::new(),
            recorder,
        }
    }

    /// Sends a request to the coordinator. The recorder notes it.
    pub fn ask<R: Request>(&mut self, request: R) -> R::Answer {
        let now = Instant::now();
        let Some(recorder) = &mut self.recorder else { return self.hub.ask(request, now) };
        let input: Input = request.clone().into();
        let answer = self.hub.ask(request, now);
        recorder.note(&input, now, &answer);
        answer
    }

    /// Notes that a job with files has ended.
    pub fn note_end(&mut self, name: &str) {
        self.ended.retain(|ended| ended != name);
        self.ended.push(name.to_owned());
        if self.ended.len() > MOST_ENDED {
            self.ended.remove(0);
        }
    }

    /// Returns the names of the jobs with files that ended last, in the order of their ends.
    pub fn ended(&self) -> &[String] {
        &self.ended
    }

    /// Returns the coordinator's hub, for reading.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Returns a job.
    pub fn job(&mut self, id: JobId) -> Option<Both<'_>> {
        Some((self.hub.job(id)?, self.jobs.get_mut(&id)?))
    }

    /// Returns all jobs, including failed jobs.
    pub fn jobs(&mut self) -> impl Iterator<Item = Both<'_>> {
        let Inner { hub, jobs, .. } = self;
        jobs.iter_mut().filter_map(|(&id, job)| Some((hub.job(id)?, job)))
    }

    /// Returns a job that has not failed.
    pub fn running(&mut self, id: JobId) -> Result<Both<'_>, JobEnded> {
        self.job(id).filter(|(state, _)| !state.life.failed()).ok_or(JobEnded)
    }

    /// Returns the job of this name that has not failed.
    pub fn named(&mut self, name: &str) -> Option<Both<'_>> {
        self.job(self.hub.names().job(name)?)
    }

    /// Returns the member that this token belongs to, and its job, which must have the name `job`.
    pub fn member(&mut self, job: &str, token: &str) -> Result<(MemberOf, Both<'_>), Refused> {
        let (state, rank) = self.hub.member(job, token)?;
        let own = self.jobs.get_mut(&state.spec.id).expect("each job of the coordinator has a part here");
        Ok((MemberOf { job: state.spec.id, rank }, (state, own)))
    }

    /// Ends the reservation of a name.
    pub fn release(&mut self, name: &str) {
        self.loads.remove(name);
        self.ask(Release { name: name.to_owned() });
    }

    pub fn add(&mut self, job: Job) {
        self.jobs.insert(job.id, job);
    }

    pub fn remove(&mut self, id: JobId) -> Option<Job> {
        self.jobs.remove(&id)
    }

    /// Publishes news that has changed, and drops entries of jobs that no longer exist.
    pub fn publish(&mut self) {
        let Inner { hub, jobs, .. } = self;
        jobs.retain(|&id, job| hub.job(id).map(|state| job.publish(state)).is_some());
    }
}
