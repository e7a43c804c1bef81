//! The parts of a job that do not change after it begins.

use std::net::IpAddr;
use std::sync::Arc;

use pbox_core::control::Mesh;
use pbox_core::{Consistency, JobId, JobTerms, Members, OnLoss, Share};
use serde::{Deserialize, Serialize};

use super::{Blame, Cause};
use crate::join::{Differs, Join};

/// The number, name and terms of a job, and the decisions taken when it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// The number of the job at this hub. The job's name was reserved for this number.
    pub id: JobId,
    /// The name.
    pub name: String,
    /// The terms of the first worker. All other workers must ask for the same terms.
    pub terms: Arc<JobTerms>,
    /// The decisions that were taken when the job was made.
    pub made: Made,
}

/// The decisions that are taken when a job is made.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// The number of this hub's cores to which each worker has a link.
    pub cores: usize,
    /// The number of cores that own chunks. It is the number of all cores, unless the job has fewer chunks.
    pub owners: usize,
    /// Whether this hub sends the job's sums up to other hubs.
    pub is_below: bool,
    /// The memory that the job was promised, in bytes.
    pub promised: u64,
    /// The address of the worker that made the job.
    pub owner: Option<IpAddr>,
    /// Whether the job is a trial: it continues from no checkpoint and leaves none.
    pub trial: bool,
    /// The mesh that the job's workers ask for, if any. In a mesh, each machine has a hub, which owns a share of the
    /// job.
    pub mesh: Option<Mesh>,
}

impl JobSpec {
    /// Whether the running job continues after it loses workers.
    pub fn goes_on(&self) -> bool {
        self.terms.on_loss == OnLoss::Continue
    }

    /// Whether the job's members make their rounds together at this hub. The workers of one machine make their rounds
    /// together even if machines step alone (SSP, ASP).
    pub(crate) fn steps_together(&self) -> bool {
        self.terms.level.consistency == Consistency::Bsp || self.made.is_below
    }

    /// Names the member of a rank, in words.
    pub fn spoken(&self, rank: u32) -> String {
        match self.terms.level.members {
            Members::Workers => format!("worker {rank}"),
            Members::Hubs | Members::Mesh => format!("the hub of machine {rank}"),
        }
    }

    /// Returns the party to blame if the job fails because it lost a member. A hub below that disappears without a message
    /// may return, so the failure counts as the loss of a hub.
    pub(crate) fn blame(&self, cause: Cause) -> Blame {
        match cause {
            Cause::HubLost => Blame::Hub,
            Cause::Link | Cause::Silent if self.terms.level.members != Members::Workers => Blame::Hub,
            Cause::Link | Cause::Silent | Cause::Late | Cause::Other => Blame::Job,
        }
    }

    /// Checks that a worker's terms are equal to the job's terms. The error names the difference.
    pub(crate) fn check_terms(&self, join: &Join, share: &Share) -> Result<(), String> {
        let JobSpec { name, made, .. } = self;
        let (rank, (hub, hubs)) = (join.rank, join.hub);
        if hub != share.hub {
            return Err(format!(
                "in job {name:?} this hub is {share}, and worker {rank} asks for hub {hub} of {hubs}; all workers of a job must \
                 name its hubs in the same order, or use another job name"
            ));
        }
        match &join.differs {
            None => {}
            Some(Differs::Keys(theirs)) => {
                return Err(format!(
                    "manifests differ in job {name:?}: {theirs}; all workers must build the same model (worker {rank})"
                ));
            }
            Some(Differs::Term { what, ours, theirs }) => {
                return Err(format!(
                    "job {name:?} has {what} {ours}, worker {rank} asks for {theirs}; all workers of a job must ask \
                     for the same, or use another job name"
                ));
            }
        }
        if join.mesh != made.mesh {
            let spoken = |mesh: &Option<Mesh>| {
                mesh.as_ref().map_or("no mesh".to_owned(), |mesh| format!("the mesh {mesh}"))
            };
            return Err(format!(
                "job {name:?} has {} at this hub, worker {rank} asks for {}; all workers of a machine must ask for the same mesh",
                spoken(&made.mesh),
                spoken(&join.mesh)
            ));
        }
        if join.trial != made.trial {
            let spoken = |is_trial: bool| if is_trial { "a trial" } else { "no trial" };
            return Err(format!(
                "job {name:?} is {}, and worker {rank} asks for {}; use another job name",
                spoken(made.trial),
                spoken(join.trial)
            ));
        }
        Ok(())
    }
}
