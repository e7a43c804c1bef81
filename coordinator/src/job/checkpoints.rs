//! The checkpoints of a job: the snapshots, whose parts the cores take, and the files that are written from the snapshots.
//!
//! ```text
//!   due at the cores ---------------+
//!   a cut, of this hub or of hub 0 -+--> cores take their parts --> all have answered --> a file --> written, or failed
//!                                             |
//!                                             v a core has no part
//!                                          skipped, or tried again for a request for the state (`wants`)
//! ```
//!
//! A cut is a pause of the job between two rounds. The driver holds the parts, and writes the files. No core waits for the
//! disk: while a core's part is being written, the core skips its next part.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::time::Instant;

use pbox_core::control::{CheckpointReply, PartState, WholeRounds};
use pbox_core::{Occasion, Round, Selection};

use super::Job;
use super::cut::CutAt;
use super::parts::Followed;
use super::wants::{Use, WantId, Wants};
use crate::hubs::{Hubs, may_write};

/// The number of checkpoints for which this hub remembers the state of its own part.
const PARTS: usize = 8;
/// The number of reports about rounds without a snapshot that are kept for each core. Older reports are not needed,
/// because no core is this many rounds behind another core.
const PASSED: usize = 64;

/// The checkpoints of a job.
#[derive(Debug, Default)]
pub struct Checkpoints {
    /// The number of snapshots that were requested through cuts.
    asked: u64,
    collecting: Vec<Collecting>,
    /// The rounds that each core has passed without snapshots, from its last reports, in any order.
    passed: BTreeMap<usize, VecDeque<RangeInclusive<Round>>>,
    /// The state of this hub's part of each recent checkpoint, by round. Hub 0 asks for these states. The parts may be
    /// completed in any order.
    parts: BTreeMap<Round, PartState>,
    /// The requests for the job's state.
    pub(super) wants: Wants,
    /// The snapshots that are being written, or will be written. A snapshot may serve a request for the state, until the
    /// request's time is over.
    pub(super) writing: Vec<(Occasion, Option<(WantId, Instant)>)>,
    /// The parts of other hubs that hub 0 follows, and hub 0's questions about this hub's part.
    pub(super) followed: Followed,
    /// The last checkpoint that was written.
    pub last: Option<CheckpointReply>,
    /// The reason why the last attempt failed, or was skipped.
    pub error: Option<String>,
    /// Whether the last attempt failed, so that the state is saved only if another attempt succeeds.
    pub has_failed: bool,
}

/// A snapshot for which not all cores have answered.
#[derive(Debug)]
struct Collecting {
    occasion: Occasion,
    before: Round,
    /// The number of cores that have answered.
    answers: usize,
    /// The reason why a core has no part; `None` while no core has reported that it has no part.
    refused: Option<String>,
    /// The cores that have no part, and whose memory for parts is still in use.
    lacks: BTreeSet<usize>,
    /// The request for the state that the snapshot serves, if any.
    want: Option<WantId>,
}

/// A core's answer about a snapshot.
pub(super) struct TakenBy {
    /// The core.
    pub core: usize,
    pub occasion: Occasion,
    pub before: Round,
    /// The last round of a range, if the core has passed all rounds of the range without a snapshot.
    pub through: Option<Round>,
    /// The reason why the core has no part.
    pub refused: Option<String>,
}

/// A snapshot for which all cores have answered.
pub(super) struct Over {
    pub occasion: Occasion,
    pub before: Round,
    /// The reason why there is no snapshot.
    pub refused: Option<String>,
    /// The cores that have no part because their memory for parts is in use.
    pub lacks: BTreeSet<usize>,
    /// The request for the state that the snapshot served, if any.
    pub want: Option<WantId>,
}

impl Checkpoints {
    fn set_part(&mut self, before: Round, state: PartState) {
        self.parts.insert(before, state);
        if self.parts.len() > PARTS {
            self.parts.pop_first();
        }
    }

    /// Notes the result of saving the job's last state.
    pub(crate) fn note_last_state(&mut self, saved: &Result<Option<CheckpointReply>, String>) {
        match saved {
            Ok(Some(reply)) => self.last = Some(reply.clone()),
            Ok(None) => {}
            Err(why) => self.error = Some(why.clone()),
        }
    }

    /// Whether another client may share the state that this request waits for.
    pub fn may_share(&self, want: WantId) -> bool {
        self.wants.may_share(want)
    }

    /// Returns the state of this hub's part of the checkpoint before a round. Round 0 stands for the part that is being
    /// taken or written now, if there is one.
    pub fn part_before(&self, before: Round) -> PartState {
        let parts = &self.parts;
        let is_under_way = |state: &&PartState| matches!(state, PartState::Collecting | PartState::Writing);
        match parts.last_key_value() {
            _ if before == Round(0) => {
                parts.values().find(is_under_way).cloned().unwrap_or(PartState::Written(0))
            }
            Some((newest, _)) if *newest >= before => parts.get(&before).cloned().unwrap_or_else(|| {
                PartState::Failed(format!(
                    "this hub already has a newer part of the checkpoint, before round {}",
                    newest.0
                ))
            }),
            _ => PartState::Collecting,
        }
    }

    /// Forgets all requests for the state and all questions of hub 0, because the job has failed.
    pub(super) fn end(&mut self) {
        self.wants = Wants::default();
        self.followed.end();
    }

    /// Begins a snapshot after a cut. Without `want`, the snapshot is a part of a checkpoint, and hub 0 gets the result.
    pub(super) fn begin(
        &mut self,
        before: Round,
        want: Option<(WantId, Use)>,
        at: Option<CutAt>,
    ) -> Occasion {
        self.asked += 1;
        let selection = match want {
            Some((_, Use::Client(selection))) => selection,
            Some((_, Use::File)) | None => Selection::All,
        };
        let occasion = match at {
            Some(CutAt::Before(_)) => Occasion::Ahead(self.asked, selection),
            _ => Occasion::Asked(self.asked, selection),
        };
        let (lacks, want) = (BTreeSet::new(), want.map(|(want, _)| want));
        self.collecting.push(Collecting { occasion, before, answers: 0, refused: None, lacks, want });
        if want.is_none() {
            self.set_part(before, PartState::Collecting);
        }
        occasion
    }

    /// Records a core's answer about a snapshot: the core has taken its part, or has no part. A core may also report
    /// that it passed all rounds from `before` to `through` without a part. Returns the snapshots for which all cores
    /// have now answered.
    pub(super) fn note_taken(&mut self, taken: TakenBy, owners: usize) -> Vec<Over> {
        let TakenBy { core, occasion, before, through, refused } = taken;
        let Checkpoints { collecting, passed, .. } = self;
        if let (Some(through), Some(why)) = (through, &refused) {
            let rounds = before..=through;
            let due = collecting.iter().map(|one| one.occasion).filter(|of| is_due_in(*of, &rounds));
            let due = Vec::from_iter(due);
            let of_core = passed.entry(core).or_default();
            of_core.push_back(rounds);
            if of_core.len() > PASSED {
                of_core.pop_front();
            }
            return due
                .into_iter()
                .filter_map(|of| self.answered(of, core, owners, Some(why.clone())))
                .collect();
        }
        if !collecting.iter().any(|one| one.occasion == occasion) {
            // Cores that have already passed the round send no other answer about the round. Each of these cores counts as
            // an answer without a part.
            let has_passed =
                |of_core: &&VecDeque<_>| of_core.iter().any(|rounds| is_due_in(occasion, rounds));
            let answers = passed.values().filter(has_passed).count();
            let refused = (answers > 0).then(|| "another core has passed it".to_owned());
            let lacks = BTreeSet::new();
            collecting.push(Collecting { occasion, before, answers, refused, lacks, want: None });
        }
        Vec::from_iter(self.answered(occasion, core, owners, refused))
    }

    /// Counts one more core's answer for a snapshot. Returns the snapshot after the last answer.
    fn answered(
        &mut self,
        occasion: Occasion,
        core: usize,
        owners: usize,
        refused: Option<String>,
    ) -> Option<Over> {
        let collecting = &mut self.collecting;
        let of = collecting
            .iter()
            .position(|one| one.occasion == occasion)
            .expect("the snapshot is being collected");
        let one = &mut collecting[of];
        one.answers += 1;
        one.lacks.extend(refused.is_some().then_some(core));
        one.refused = refused.or(one.refused.take());
        if one.answers < owners {
            return None;
        }
        let Collecting { before, refused, lacks, want, .. } = collecting.swap_remove(of);
        if let Some(why) = refused.as_ref().filter(|_| want.is_none()) {
            self.set_part(before, PartState::Failed(why.clone()));
            let skipped = format!("the checkpoint before round {} was skipped: {why}", before.0);
            self.error = Some(skipped);
        }
        Some(Over { occasion, before, refused, lacks, want })
    }

    /// Notes that a core's memory for its parts of snapshots is free again.
    pub(super) fn note_freed(&mut self, core: usize) {
        self.collecting.iter_mut().for_each(|one| _ = one.lacks.remove(&core));
    }

    /// Notes that a file is about to be written. Returns the rounds of complete checkpoints. Files of other rounds are
    /// no longer needed.
    ///
    /// # Errors
    /// Returns an error if too many files of this hub already wait for the files of other hubs.
    pub(crate) fn begin_file(&mut self, before: Round, hubs: &Hubs) -> Result<WholeRounds, String> {
        self.set_part(before, PartState::Writing);
        let Hubs { share, whole, rounds, .. } = hubs;
        match share.is_whole() || may_write(whole, rounds) {
            true => Ok(whole.clone()),
            false => Err(format!(
                "another hub of the job has not written its part of rounds {:?}, and this hub keeps no more unfinished rounds; see the log \
                 of hub 0",
                rounds.iter().map(|round| round.0).collect::<Vec<_>>()
            )),
        }
    }

    /// Notes the result of writing a file. If this file is good, returns why the previous attempt failed.
    pub(super) fn end_file(
        &mut self,
        before: Round,
        written: Result<CheckpointReply, String>,
    ) -> Option<String> {
        self.has_failed = written.is_err();
        match written {
            Ok(reply) => {
                self.set_part(before, PartState::Written(reply.bytes));
                let error_before = self.error.take();
                self.last = Some(CheckpointReply { error_before: error_before.clone(), ..reply });
                error_before
            }
            Err(why) => {
                self.set_part(before, PartState::Failed(why.clone()));
                self.error = Some(why);
                None
            }
        }
    }
}

impl Job {
    /// Whether this member is the last member of the running job, and this hub must write a checkpoint before the
    /// member leaves.
    pub fn ends_with(&self, rank: u32) -> bool {
        let has_state =
            self.hubs.leads() && !self.spec.made.is_below && self.spec.terms.optimizer.keeps_weights();
        self.life.runs() && !self.members.has_others(rank) && has_state && !self.spec.made.trial
    }

    /// Whether the job is saved when this hub stops: by a checkpoint of this hub or of the hubs above.
    pub fn is_saved_at_stop(&self, has_files: bool) -> bool {
        self.life.runs()
            && match self.spec.made.is_below {
                // In a mesh, this hub also owns a share of the job above, which has this job's state. The stop saves
                // the job above, and so this state.
                true => self.spec.made.mesh.is_none() && !self.spec.goes_on(),
                false => has_files && !self.spec.made.trial,
            }
    }
}

/// Whether a snapshot was due before one of `rounds`.
fn is_due_in(occasion: Occasion, rounds: &RangeInclusive<Round>) -> bool {
    matches!(occasion, Occasion::Due(round) if rounds.contains(&round))
}
