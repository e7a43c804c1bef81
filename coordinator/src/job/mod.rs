//! A job: its terms, its members, and the news for which its workers wait.
//!
//! Plain state: decides nothing about cores and connections. Callers ask the part of the job that they need. A change that
//! concerns several parts is a method of the job.
//!
//! | file | what it does |
//! | --- | --- |
//! | here | has the parts of a job |
//! | `spec` | has the facts of a job that never change |
//! | `life` | has the states of a job |
//! | `members` | has the members of the job: their joins, lateness and ends |
//! | `cut` | stops the job between two rounds |
//! | `event` | handles events that no request causes, and returns the effects |
//! | `checkpoints` | collects the parts of snapshots, and has the results of the files |
//! | `wants` | makes cores take snapshots for clients that want the state: repeatedly if necessary, and within a time limit |
//! | `parts` | follows, as hub 0, the parts of other hubs, and reports the state of this hub's part |
//! | `offered` | has the state that rank 0 brings |
//! | `numbers` | has the hyperparameters of the optimizer |
//! | `last` | directs the saving of the last state of a failed job |
//! | `news` | has the news for the members |

mod checkpoints;
mod cut;
mod event;
mod last;
mod life;
mod members;
mod news;
mod numbers;
mod offered;
mod parts;
mod spec;
#[cfg(test)]
mod tests;
mod wants;

use std::sync::Arc;
use std::time::Instant;

use pbox_core::control::{Member as Taking, RefusalCode};
use pbox_core::{JobTerms, Members, NumbersByRound, Piece, Round};

pub use checkpoints::Checkpoints;
use cut::Cuts;
pub use cut::{CutAt, CutId, NotBefore, NotCut, NotReleased, Purpose, Step, Stepped};
pub use event::{Blame, Cause, Effect, Event};
use last::LastState;
pub use last::{LastStep, LastStepped, Saved};
pub use life::Life;
use life::{Gathering, StateOffer};
pub(crate) use members::undo_join;
pub use members::{Arrival, Grant, LateLimits, Leave, Member, Ranks, Standing};
pub(crate) use news::MANY;
pub use news::{News, REPORT_EVERY};
pub use numbers::Change;
pub(crate) use numbers::forget_numbers;
pub use parts::{AskedId, FollowId};
pub use spec::{JobSpec, Made};
pub(crate) use wants::Saving;
pub use wants::{NoState, Parts, Use, WantId};

use crate::asker::Asker;
use crate::digests::Digests;
use crate::hubs::Hubs;
use crate::join::Join;
use crate::progress::Progress;
use crate::refused::Refused;

/// The terms of a job, which list its keys, and the pieces of keys that this hub owns.
pub type Model = (Arc<JobTerms>, Vec<Piece>);

/// A job. The driver of a hub reads the parts of its jobs. Only requests to the hub change a job.
#[derive(Debug)]
pub struct Job {
    /// The parts that do not change after the job begins.
    pub spec: JobSpec,
    /// The state of the job.
    pub life: Life,
    /// The members.
    pub members: Ranks,
    pub(crate) cuts: Cuts,
    /// The snapshots in progress, and the files of the job.
    pub checkpoints: Checkpoints,
    /// The last state of a failed job, while it is being saved.
    pub(crate) last: LastState,
    /// The round with which the job began.
    first_round: Round,
    /// The optimizer's hyperparameters, as set by the workers.
    pub numbers: NumbersByRound,
    /// The hubs of the job.
    pub hubs: Hubs,
    /// The progress at the last check of the cores.
    pub progress: Progress,
    /// The comparison of the members' weights.
    pub digests: Digests,
    /// The news for the members.
    pub news: News,
}

impl Job {
    /// Creates a job. `from` is the round with which the job begins, and the optimizer's hyperparameters at that round.
    pub(crate) fn new(spec: JobSpec, hubs: Hubs, from: (Round, NumbersByRound), now: Instant) -> Self {
        let workers = spec.terms.workers;
        let life = Life::new(workers);
        Job {
            members: Ranks::new(workers, spec.made.cores),
            spec,
            news: News::new(life.state(), workers),
            life,
            cuts: Cuts::default(),
            checkpoints: Checkpoints::default(),
            last: LastState::default(),
            first_round: from.0,
            numbers: from.1,
            hubs,
            progress: Progress::new(now),
            digests: Digests::default(),
        }
    }

    /// Checks that a worker may join this job now.
    pub(crate) fn may_come(&self, join: &Join) -> Result<(), Refused> {
        let (rank, JobSpec { name, terms, .. }) = (join.rank, &self.spec);
        let is_taken = self.members.get(rank).is_some();
        if is_taken && self.spec.goes_on() && self.life.runs() {
            let why = format!("rank {rank} of job {name:?} is not free yet: try again");
            return Err(Refused::new(RefusalCode::RankBusy, why));
        }
        let why = self.spec.check_terms(join, &self.hubs.share);
        why.map_err(|why| Refused::new(RefusalCode::TermsDiffer, why))?;
        if is_taken {
            return Err(Refused::new(
                RefusalCode::RankTaken,
                format!(
                    "rank {rank} of job {name:?} is taken (after a crash, until the hub notices that the former worker is gone: try again); give each worker its own rank from 0 to {}, or use another job name",
                    terms.workers - 1
                ),
            ));
        }
        self.hubs.check_pass(join, |worker| self.members.rank(worker))?;
        self.life.check_reached(rank, join.reached, &self.spec)
    }

    /// Notes that a worker has joined.
    pub(crate) fn add_member(
        &mut self,
        rank: u32,
        worker: u64,
        relinks: bool,
        from: Option<Asker>,
        now: Instant,
    ) {
        let is_ready = self.spec.terms.level.members == Members::Workers;
        self.members.add(
            rank,
            Member {
                standing: Standing::Joined { is_ready },
                from,
                last_heartbeat: now,
                latest: None,
                transport: None,
                links: Vec::new(),
                worker,
                relinks: relinks && self.spec.made.mesh.is_none(),
                hung_up: None,
            },
        );
    }

    /// Lets these workers take part from round `from` on. Workers that have been lost by now do not take part.
    pub(crate) fn let_take_part(&mut self, ranks: &[u32], from: Round) {
        let (mut here, ahead) = (Vec::new(), self.life.ahead(&self.spec, self.first_round));
        for &rank in ranks {
            let from = Round(from.0.saturating_add(ahead.get(rank as usize).copied().unwrap_or(0)));
            if self.members.standing(rank).is_some_and(Standing::let_take_part) {
                here.push(Taking { rank, from });
            }
        }
        let (first, former) = (self.first_round, std::mem::replace(&mut self.life, Life::Running));
        self.news.tell(&self.life, |news| {
            if let Life::Gathering(Gathering { reached, .. }) = former {
                // If workers step alone (SSP, ASP), each worker keeps its lead. So the round of the slowest worker is
                // the round that the job had reached.
                let slowest = reached.into_iter().flatten().min().filter(|_| !ahead.is_empty());
                let reached = slowest.or(news.reached);
                news.lost = reached.map_or(0, |reached| reached.0.saturating_sub(first.0));
            }
            news.refused = None;
            news.members.extend(here);
            news.members.sort_by_key(|member| member.rank);
        });
    }

    /// Whether the hub keeps the job's state: the job has not failed, or its last state is being saved.
    pub fn is_kept(&self) -> bool {
        !self.life.failed() || self.last.is_being_saved()
    }
}
