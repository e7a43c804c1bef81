//! The messages and requests of this hub as a member of a job at the hubs above.

use std::io::Read;
use std::time::{Duration, Instant};

use coordinator::{Blame, Change, Compared};
use membership::{Hub, MemberError, Missing};
use pbox_core::control::{
    CheckpointReply, CompareRequest, Late, Latest, LearningRateRequest, LeftAt, Machine, OptimizerRequest,
    ReadyRequest,
};
use pbox_core::{Above, KeyId, Layout, Round};
use tokio::sync::watch;

use super::links::LinkSpec;

/// The time limit for telling the hubs above why a job failed here.
const FAREWELL_LIMIT: Duration = Duration::from_secs(1);

/// A job's membership at the hubs above.
#[derive(Debug)]
pub(crate) struct JoinedAbove {
    pub(super) hubs: Vec<Hub>,
    pub(super) machine: Machine,
    /// The placement of chunks at the hubs above.
    pub placed: Above,
    pub(super) spec: LinkSpec,
    /// Whether links may end while both ends are alive.
    pub(super) may_break: bool,
    /// The channel that signals news from the hubs above.
    pub news: watch::Receiver<()>,
}

impl JoinedAbove {
    /// Returns the addresses of the hubs.
    pub fn addresses(&self) -> Vec<String> {
        self.hubs.iter().map(|hub| hub.address().to_owned()).collect()
    }

    /// Returns the round from which this hub takes part at the hubs above, or the members that are missing there.
    pub fn takes_part(&self) -> Result<Round, Missing> {
        membership::takes_part(&self.hubs, self.machine.number)
    }

    /// Whether this hub passes the weights of its rank 0 on to the hubs above. Rank 0 of the first
    /// machine brings the weights for all machines, as in a broadcast.
    pub fn speaks_for_all(&self) -> bool {
        self.machine.number == 0
    }

    /// Offers a state to the hubs above. If they want the state, returns its length in bytes. May wait for the hubs.
    pub fn offer(&self, before: Round, steps: Option<Vec<u32>>) -> Result<Option<u64>, MemberError> {
        membership::all_of(self.hubs.iter().map(|hub| hub.offer(before, steps.clone())))
    }

    /// Brings a state of `tensors` tensors per key to the hubs above; each hub gets its share. Waits for the
    /// values, and for the hubs.
    pub fn bring(
        &self,
        values: Box<dyn Read + Send>,
        layout: &Layout,
        tensors: usize,
    ) -> Result<(), MemberError> {
        let Above { schedule, split_above, .. } = self.placed;
        membership::bring(&self.hubs, values, layout, (schedule, split_above), tensors)
    }

    /// Returns the highest round that a worker of any machine had reached when it lost a hub, if a worker has lost a
    /// hub.
    pub fn highest_reached(&self) -> Option<Round> {
        membership::highest_reached(&self.hubs)
    }

    /// Reports that all workers of this hub have joined. May wait for the hubs above.
    pub fn say_ready(&self, reached: Option<Round>) -> Result<(), MemberError> {
        self.hubs.iter().try_for_each(|hub| {
            let request = ReadyRequest { token: hub.token.clone(), reached };
            hub.post("ready", "take part", &request).map(|_: serde_json::Value| ())
        })
    }

    /// Returns the reason why the job cannot continue, if the news from the hubs above has such a reason.
    pub fn end(&self) -> Option<(String, Blame)> {
        self.hubs.iter().find_map(Hub::end).map(reason_of)
    }

    /// Whether lost links may be replaced, because the hubs above are alive, and wait for this hub.
    pub(super) fn may_relink(&self) -> bool {
        self.may_break && membership::wait_for_links(&self.hubs)
    }

    /// Returns the reason why a link to a hub above ended. `symptom` is what this hub saw. If the hub above
    /// is alive, it soon reports the reason. May wait for the hubs.
    pub fn explain(&self, symptom: &str) -> (String, Blame) {
        let deadline = Instant::now() + FAREWELL_LIMIT;
        let told = || self.hubs.iter().find_map(|hub| hub.wait_for_end(deadline));
        let lost = || self.hubs.iter().find_map(|hub| hub.check_health(FAREWELL_LIMIT).err());
        match told().or_else(lost) {
            Some(end) => reason_of(end),
            None => {
                let hubs = self.addresses().join(", ");
                (format!("a link to the hubs above at {hubs} is gone: {symptom}"), Blame::Hub)
            }
        }
    }

    /// Whether at least one hub above has not noticed the job's end. One hub may have ended the job while the
    /// other hubs see only closed links.
    pub fn lives_at_some(&self) -> bool {
        self.hubs.iter().any(|hub| hub.end().is_none())
    }

    /// Notifies the hubs above that the job failed here, unless they already know. May wait for the
    /// hubs.
    pub fn fail(&self, reason: &str, blame: Blame) {
        for hub in self.hubs.iter().filter(|hub| hub.end().is_none()) {
            let told = match blame {
                Blame::Job => hub.fail(reason, FAREWELL_LIMIT),
                Blame::Hub => hub.fail_without_hub(reason, FAREWELL_LIMIT),
            };
            if let Err(error) = told {
                tracing::warn!(hub = hub.address(), %error, "cannot report the job's failure to the hub above");
            }
        }
    }

    /// Notifies the hubs above that this hub stops. Their job ends between two rounds. May wait for the hubs.
    pub fn stop(&self, why: &str, limit: Duration) -> Result<(), MemberError> {
        self.hubs[0].stop(why, limit) // hub 0 notifies the other hubs
    }

    /// Returns the workers for which the hubs above wait.
    pub fn held_up_by(&self) -> Vec<Late> {
        self.hubs.iter().flat_map(Hub::held_up_by).collect()
    }

    /// Reports the late worker of this hub to the hubs above. The next heartbeats carry the report.
    pub fn say_latest(&self, latest: Option<Latest>) {
        self.hubs.iter().for_each(|hub| hub.say_latest(latest.clone()));
    }

    /// Leaves the job at the hubs above. `at` has, for each key, the round before which this hub leaves. May wait for
    /// the hubs.
    pub fn leave(&self, at: &LeftAt) -> Result<(), MemberError> {
        self.hubs.iter().map(|hub| hub.leave(at)).fold(Ok(()), Result::and)
    }

    /// Changes the optimizer's hyperparameters at the hubs above. May wait for the hubs.
    pub fn set_numbers(
        &self,
        change: &Change,
        from_round: Round,
        reset: &[KeyId],
    ) -> Result<(), MemberError> {
        self.hubs.iter().try_for_each(|hub| {
            let token = hub.token.clone();
            match change {
                &Change::Rate(learning_rate) => {
                    let request = LearningRateRequest { token, learning_rate, from_round };
                    hub.post("learning-rate", "change the learning rate", &request)
                }
                Change::All(numbers) => {
                    let reset = reset.iter().copied();
                    let request = OptimizerRequest::new(token, numbers.clone(), from_round, reset);
                    hub.post("optimizer", "change the optimizer's hyperparameters", &request)
                }
            }
            .map(|_: serde_json::Value| ())
        })
    }

    /// Sets the order of the answers of the hubs above. May wait for the hubs.
    pub fn set_priorities(&self, keys: &[u32]) -> Result<(), MemberError> {
        self.hubs.iter().try_for_each(|hub| hub.set_priorities(keys))
    }

    /// Reports the digest of the weights that all members here have or write to the hubs above. May wait for the hubs.
    pub fn compare(&self, compared: Compared, digest: u64) -> Result<(), MemberError> {
        let Compared { round, written } = compared;
        let request = CompareRequest { token: self.hubs[0].token.clone(), round, digest, written };
        self.hubs[0].post("compare", "compare weights", &request).map(|_: serde_json::Value| ())
    }

    /// Makes the hubs above write a checkpoint. May wait for the hubs.
    pub fn checkpoint(&self) -> Result<CheckpointReply, MemberError> {
        self.hubs[0].post("checkpoint", "write a checkpoint", &serde_json::json!({}))
    }
}

/// Returns the reason why a membership at a hub above ended, in words for the workers here, and the party
/// that caused it.
pub(super) fn reason_of(end: MemberError) -> (String, Blame) {
    let blame = if end.is_loss_of_hub() { Blame::Hub } else { Blame::Job };
    match end {
        MemberError::JobFailed { reason, .. } => (reason, blame),
        other => (other.to_string(), blame),
    }
}
