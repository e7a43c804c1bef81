//! The request of a worker to join a job, as the hub sees it.

use pbox_core::Round;
use pbox_core::control::{JoinRequest, Mesh, Pass, Peers};
use pbox_core::job::Difference;
use serde::{Deserialize, Serialize};

use crate::asker::Asker;
use crate::tokens::Token;

/// The difference between the terms of a worker and the terms of its job, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Differs {
    /// The keys differ.
    Keys(String),
    /// A term has different values.
    Term {
        /// The name of the term.
        what: String,
        /// The value of the job.
        ours: String,
        /// The value of the worker.
        theirs: String,
    },
}

impl From<&Difference> for Differs {
    fn from(difference: &Difference) -> Self {
        match difference {
            Difference::Keys(theirs) => Differs::Keys(theirs.to_string()),
            Difference::Term { what, ours, theirs } => {
                Differs::Term { what: (*what).to_owned(), ours: ours.clone(), theirs: theirs.clone() }
            }
        }
    }
}

/// A request of a worker to join the job of this name. The answer has the pass that the worker shows to the job's other hubs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The name of the job.
    pub name: String,
    /// The rank of the worker.
    pub rank: u32,
    /// The number of this hub and the number of hubs, according to the worker.
    pub hub: (u32, u32),
    /// The address of the job's hub 0, and the pass that hub 0 gave, in a job over several hubs.
    pub lead: Option<(String, Option<Pass>)>,
    /// The mesh that the worker asks for, if any. In a mesh, each machine has a hub, which owns a share of the job.
    pub mesh: Option<Mesh>,
    /// Whether the worker asks for a trial.
    pub trial: bool,
    /// Whether the worker reconnects when it loses its links.
    pub relinks: bool,
    /// The round that the worker had reached when it lost a hub.
    pub reached: Option<Round>,
    /// The difference between the worker's terms and the job's terms.
    pub differs: Option<Differs>,
    /// The client that sent the request.
    pub from: Option<Asker>,
    /// A new token for the worker, which no member has had.
    pub token: Token,
    /// Whether this hub writes checkpoints.
    pub saves: bool,
}

impl Join {
    /// Takes the fields that the hub needs from a worker's request. `token` is a new token for the worker.
    pub fn new(name: &str, request: &JoinRequest, token: Token) -> Self {
        let lead = |peers: &Peers| Some((peers.hubs.first()?.clone(), peers.pass.clone()));
        Join {
            name: name.to_owned(),
            rank: request.rank,
            hub: (request.hub, request.terms.hubs),
            lead: request.peers.as_ref().and_then(lead),
            mesh: request.mesh.clone(),
            trial: request.trial,
            relinks: request.relinks,
            reached: request.reached,
            differs: None,
            from: None,
            token,
            saves: false,
        }
    }
}
