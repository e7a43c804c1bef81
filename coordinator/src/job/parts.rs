//! The parts of checkpoints, in a job over several hubs. Each other hub reports the state of its part to hub 0, which
//! follows all parts.
//!
//! ```text
//!   hub 0 --how is your part before round 7?--> hub 1     answers when the part is written or failed, or after some time
//!   hub 0 <--written, failed, or not yet------- hub 1
//!     '--not yet: hub 0 asks again. If not all chunks have reached the round, hub 0 asks only until a time limit
//! ```
//!
//! A checkpoint is complete when all parts are written. In a question, round 0 stands for the part that is being written
//! now.

use std::time::{Duration, Instant};

use pbox_core::control::{CheckpointReply, PartState, WholeRounds, WrittenReply};
use pbox_core::{Occasion, Round};
use serde::{Deserialize, Serialize};

use super::Effect;
use super::wants::{LONGEST, NoState, Saving, WantId, overdue};
use crate::hubs::Hubs;

/// The number of a checkpoint whose parts hub 0 follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FollowId(u64);

/// The number of a question that hub 0 asks about this hub's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AskedId(u64);

/// The checkpoints that this hub follows as hub 0, and hub 0's questions to this hub that have no answer yet.
#[derive(Debug, Default)]
pub(super) struct Followed {
    last: u64,
    follows: Vec<Follow>,
    asked: Vec<Asked>,
}

/// A checkpoint whose parts hub 0 follows.
#[derive(Debug)]
struct Follow {
    id: FollowId,
    before: Round,
    /// The time limit for chunks to reach the round.
    until: Option<Instant>,
    /// The other hubs, in order, with the length of each part in bytes, or the reason why the part is missing. `None`
    /// until the hub has a result.
    parts: Vec<(u32, Option<Result<u64, String>>)>,
    then: Then,
}

/// The step that follows when every other hub has written its part or failed.
#[derive(Debug)]
pub(super) enum Then {
    /// A cut begins, which serves this request for the state.
    Cut(WantId),
    /// The checkpoint is complete or has failed, and the request that it serves, if any, is answered.
    Told(CheckpointReply, Option<WantId>),
}

/// A question of hub 0 about this hub's part.
#[derive(Debug)]
struct Asked {
    id: AskedId,
    before: Round,
    until: Instant,
}

impl Followed {
    /// Forgets all checkpoints and questions, because the job has failed.
    pub fn end(&mut self) {
        self.follows.clear();
        self.asked.clear();
    }
}

impl Saving<'_> {
    /// Follows the parts of the other hubs. Without other hubs, continues at once.
    pub(super) fn follow(&mut self, before: Round, until: Option<Instant>, then: Then) -> Vec<Effect> {
        let job = &mut *self.job;
        let others = job.hubs.others_with_files();
        if others.is_empty() {
            return self.followed(before, Ok(0), then);
        }
        let followed = &mut job.checkpoints.followed;
        followed.last += 1;
        let parts = others.iter().map(|&hub| (hub, None)).collect();
        let follow = Follow { id: FollowId(followed.last), before, until, parts, then };
        let effects = others.into_iter().map(|hub| ask(&job.hubs, &follow, hub)).collect();
        followed.follows.push(follow);
        effects
    }

    /// Notes a hub's report about its part, or the reason why there is no report. Asks the hub again if the part is not
    /// decided.
    pub fn note_part(
        &mut self,
        id: FollowId,
        hub: u32,
        said: Result<(Vec<Round>, PartState), String>,
    ) -> Vec<Effect> {
        let (job, now) = (&mut *self.job, self.now);
        let follows = &mut job.checkpoints.followed.follows;
        let Some(place) = follows.iter().position(|follow| follow.id == id) else { return Vec::new() };
        let follow = &mut follows[place];
        let lacks =
            |why: &str| Some(Err(format!("{} has no part of the checkpoint: {why}", job.hubs.name(hub))));
        let part = match &said {
            Err(why) => Some(Err(why.clone())),
            Ok((_, part)) => match part {
                PartState::Written(bytes) => Some(Ok(*bytes)),
                PartState::Failed(why) => lacks(why),
                PartState::Collecting if follow.until.is_some_and(|until| until < now) => {
                    lacks(&overdue(follow.before))
                }
                PartState::Collecting | PartState::Writing => None,
            },
        };
        if let Ok((rounds, _)) = said {
            job.hubs.note_files(hub, rounds);
        }
        let Some(part) = part else { return vec![ask(&job.hubs, follow, hub)] };
        let of_hub = follow.parts.iter_mut().find(|(of, _)| *of == hub);
        of_hub.into_iter().for_each(|(_, of_hub)| *of_hub = Some(part.clone()));
        if follow.parts.iter().any(|(_, part)| part.is_none()) {
            return Vec::new();
        }
        let Follow { before, parts, then, .. } = follows.remove(place);
        self.followed(before, parts.into_iter().filter_map(|(_, part)| part).sum(), then)
    }

    /// Continues when the parts of all other hubs are decided. `of_others` is the length of these parts, or the reason
    /// why a part is missing.
    fn followed(&mut self, before: Round, of_others: Result<u64, String>, then: Then) -> Vec<Effect> {
        let (reply, want) = match then {
            Then::Cut(want) => return self.cut(want),
            Then::Told(reply, want) => (reply, want),
        };
        let mut effects = Vec::new();
        let told = of_others.map(|bytes| CheckpointReply { bytes: reply.bytes + bytes, ..reply });
        if let Err(why) = &told {
            self.job.checkpoints.error = Some(why.clone());
            effects.push(Effect::NotWhole(before, why.clone()));
        }
        effects.extend(want.map(|want| Effect::Wanted(want, told.map_err(NoState::Other))));
        effects
    }

    /// Notes the result of writing a file. If the file is good, also returns why the previous attempt failed.
    pub fn end_file(
        &mut self,
        occasion: Occasion,
        before: Round,
        written: Result<CheckpointReply, String>,
    ) -> (Option<String>, Vec<Effect>) {
        let checkpoints = &mut self.job.checkpoints;
        let mut of_file = checkpoints.writing.extract_if(.., |(of, _)| *of == occasion);
        let want = of_file.next().and_then(|(_, want)| want);
        drop(of_file);
        self.note_file_ended();
        let checkpoints = &mut self.job.checkpoints;
        let error_before = checkpoints.end_file(before, written.clone());
        let (want, until) = want.unzip();
        let effects = match written {
            Ok(reply) => {
                let reply = CheckpointReply { error_before: error_before.clone(), ..reply };
                self.follow(before, until, Then::Told(reply, want))
            }
            Err(why) => want.map(|want| Effect::Wanted(want, Err(NoState::Other(why)))).into_iter().collect(),
        };
        (error_before, self.and_tells_parts(effects))
    }

    /// Notes hub 0's question about this hub's part, and for how long the answer may wait. Hub 0 also sends the rounds of
    /// complete checkpoints.
    pub fn asked_for(&mut self, before: Round, whole: WholeRounds, wait: Duration) -> (AskedId, Vec<Effect>) {
        if !self.job.hubs.leads() {
            self.job.hubs.whole = whole;
        }
        let until = self.now + wait.min(LONGEST);
        let followed = &mut self.job.checkpoints.followed;
        followed.last += 1;
        let id = AskedId(followed.last);
        followed.asked.push(Asked { id, before, until });
        (id, self.and_tells_parts(Vec::new()))
    }

    /// Appends answers to hub 0 to `effects`. A question is answered when its part is written or has failed, or when
    /// its wait is over.
    pub(super) fn and_tells_parts(&mut self, mut effects: Vec<Effect>) -> Vec<Effect> {
        let (job, now) = (&mut *self.job, self.now);
        let mut asked = std::mem::take(&mut job.checkpoints.followed.asked);
        let told = asked.extract_if(.., |asked| {
            let is_decided = !matches!(
                job.checkpoints.part_before(asked.before),
                PartState::Collecting | PartState::Writing
            );
            is_decided || asked.until <= now
        });
        effects.extend(told.map(|Asked { id, before, .. }| {
            let part = job.checkpoints.part_before(before);
            Effect::Part(id, WrittenReply { rounds: job.hubs.rounds.clone(), part })
        }));
        job.checkpoints.followed.asked = asked;
        effects
    }
}

/// Asks a hub for its part.
fn ask(hubs: &Hubs, follow: &Follow, hub: u32) -> Effect {
    Effect::FollowPart { follow: follow.id, hub, before: follow.before, whole: hubs.whole.clone() }
}
