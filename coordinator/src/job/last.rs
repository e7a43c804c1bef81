//! Saving the last state of a failed job, before the cores forget the job. All hubs save the state before the same
//! round, or hub 0 saves no state.
//!
//! ```text
//!   hub 1 --failed: why--> hub 0                          the job fails at hub 0, too
//!   hub 0 --failed: why--> hub 1, hub 2, ...              each hub pauses its cores, and answers with the rounds of its chunks
//!   hub 0 --last: the highest round--> hub 1, hub 2, ...  each hub ends its rounds before this round, and writes its part
//! ```
//!
//! | a hub | waits until | and then |
//! | --- | --- | --- |
//! | any hub | its cores have paused the job | hub 0 sends `failed` to the other hubs; another hub sends it to hub 0; a job's only hub writes |
//! | hub 0 | the other hubs have answered | asks the hubs that have the job to write their parts, or to write nothing |
//! | hub 0 | the other hubs have written | writes its own part, if all other hubs have written theirs |
//! | another hub | hub 0 has answered | answers hub 0, if hub 0 saves the state |
//! | another hub | hub 0 asks for its part | writes its part; writes nothing if hub 0 does not ask within a time limit |
//! | any hub | it has written | ends the job on its cores, and the name is free |
//!
//! A hub that has nothing to write, or cannot write, ends the job at once. A hub below other hubs has no state: the hubs
//! above save it.

use std::time::{Duration, Instant};

use pbox_core::control::{
    CheckpointReply, FailedReply, FailedRequest, LastReply, LastRequest, RoundsInFlight,
};
use pbox_core::{Front, Round};
use serde::{Deserialize, Serialize};

use super::{Blame, Effect, Job};
use crate::hubs::Hubs;

/// A step of saving a last state. The driver carries out the step, and reports the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastStep {
    /// Hold the job on all cores.
    Hold,
    /// Notify the other hubs that the job has failed.
    TellOthers(FailedRequest),
    /// Notify hub 0 that the job has failed.
    TellLead(FailedRequest),
    /// Ask these hubs to write their parts.
    HaveWritten(Vec<u32>, LastRequest),
    /// Write this hub's part.
    Write(LastRequest),
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum LastStepped {
    /// All cores have paused the job. Each core with chunks reports the rounds of its chunks.
    Held(Result<Vec<Front>, String>),
    /// The other hubs have answered, in their order.
    OthersTold(Vec<Result<FailedReply, String>>),
    /// Hub 0 has answered.
    LeadTold(Result<FailedReply, String>),
    /// The hubs that were asked have written their parts, or have failed to.
    OthersWritten(Vec<Result<LastReply, String>>),
    /// This hub's part is written, or the write has failed.
    Written(Result<CheckpointReply, String>),
}

/// The saved state, or nothing if no new state had to be saved. An error is the reason why the state is not saved.
pub type Saved = Result<Option<CheckpointReply>, String>;

/// The last state of a job while it is being saved.
#[derive(Debug)]
pub(super) struct Last {
    waits_for: WaitsFor,
    /// The rounds of this hub's chunks. They no longer change.
    own: Option<RoundsInFlight>,
    /// The failure, as it is reported to the other hubs.
    failed: FailedRequest,
    /// A description of the job's end, for people.
    ended: String,
    /// The round of the last complete checkpoint. At hubs other than hub 0, the round of this hub's last part.
    saved: Round,
}

/// The last state of a job, if it is being saved.
#[derive(Debug, Default)]
pub(crate) struct LastState(Option<Last>);

/// The result for which a hub waits.
#[derive(Debug)]
enum WaitsFor {
    Hold,
    /// The answers of the other hubs, for which hub 0 waits.
    Others,
    /// The parts of the other hubs, for which hub 0 waits. If hub 0 writes no part of its own afterwards, the final result is
    /// already known.
    Parts(LastRequest, Option<Saved>),
    /// The answer of hub 0, for which each other hub waits.
    Lead,
    /// The request of hub 0 to write a part, for which each other hub waits. The time is the beginning of the wait.
    Order(Instant),
    /// The write of this hub's own part. The number is the length of the other hubs' parts, in bytes.
    Write(u64),
}

impl Job {
    /// Ends the job as [`fail`](Self::fail) does, and begins to save its last state if the job runs. `stops` says
    /// whether this hub stops.
    pub(crate) fn fail_and_save(
        &mut self,
        (reason, blame): (&str, Blame),
        stops: bool,
        now: Instant,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.life.runs() {
            let written = self.checkpoints.last.as_ref().map(|last| last.round);
            let last = Last::new((reason, blame), stops, &self.hubs, written);
            self.last.0 = Some(last);
            effects.push(Effect::Last(LastStep::Hold));
        }
        effects.extend(self.fail(reason, blame == Blame::Hub, now));
        effects
    }
}

impl LastState {
    /// Whether the last state of the failed job is being saved.
    pub(crate) fn is_being_saved(&self) -> bool {
        self.0.is_some()
    }

    /// Answers the question whether this hub still has the job. Another hub, at which the job has failed, asks it. The
    /// answer waits until this hub's cores have paused the job and hub 0 has answered this hub.
    pub(crate) fn asked_to_hold(&mut self, hubs: &Hubs, now: Instant) -> Vec<Effect> {
        let holds = |saves, rounds| vec![Effect::Holds(FailedReply { saves, rounds })];
        let Some(last) = &mut self.0 else { return holds(false, None) };
        match &mut last.waits_for {
            _ if hubs.leads() => holds(true, None),
            WaitsFor::Hold | WaitsFor::Lead => Vec::new(),
            WaitsFor::Order(since) => {
                *since = now;
                holds(true, last.own)
            }
            _ => holds(true, last.own),
        }
    }

    /// Begins to write the state that hub 0 has chosen. Called at hubs other than hub 0. Returns nothing if this hub does not
    /// wait for the request of hub 0.
    pub(crate) fn asked_for_part(&mut self, hubs: &Hubs, request: LastRequest) -> Option<Vec<Effect>> {
        let last = self.0.take_if(|last| matches!(last.waits_for, WaitsFor::Order(_)))?;
        Some(match check_before(request.before, last.own) {
            Ok(()) => self.write(hubs, last, request, 0),
            Err(why) => over(Err(why)),
        })
    }

    /// Notes the result of a step. Ignores a result for which the hub does not wait.
    pub(super) fn stepped(&mut self, hubs: &Hubs, stepped: LastStepped, now: Instant) -> Vec<Effect> {
        let Some(mut last) = self.0.take() else { return Vec::new() };
        match (std::mem::replace(&mut last.waits_for, WaitsFor::Hold), stepped) {
            (WaitsFor::Hold, LastStepped::Held(Err(why))) => over(Err(why)),
            (WaitsFor::Hold, LastStepped::Held(Ok(fronts))) => {
                let rounds = |Front { lowest, highest }| RoundsInFlight { lowest, highest };
                last.own = fronts.into_iter().map(rounds).reduce(both);
                let failed = last.failed.clone();
                match (hubs.share.is_whole(), hubs.leads()) {
                    (true, _) => self.others_hold(hubs, last, Vec::new()),
                    (false, true) => self.begin_wait(last, WaitsFor::Others, LastStep::TellOthers(failed)),
                    (false, false) => self.begin_wait(last, WaitsFor::Lead, LastStep::TellLead(failed)),
                }
            }
            (WaitsFor::Others, LastStepped::OthersTold(replies)) => self.others_hold(hubs, last, replies),
            (WaitsFor::Parts(request, is_over), LastStepped::OthersWritten(parts)) => {
                self.others_have_written(hubs, last, request, (is_over, parts))
            }
            (WaitsFor::Lead, LastStepped::LeadTold(told)) => match told {
                Ok(FailedReply { saves: true, .. }) => {
                    let holds = FailedReply { saves: true, rounds: last.own };
                    self.0 = Some(Last { waits_for: WaitsFor::Order(now), ..last });
                    vec![Effect::Holds(holds)]
                }
                Ok(_) => {
                    over(last.unsaved(format!("{} saves no last state (see the log of hub 0)", hubs.name(0))))
                }
                Err(why) => over(last.unsaved(why)),
            },
            (WaitsFor::Write(of_others), LastStepped::Written(written)) => {
                over(written.map(|reply| Some(CheckpointReply { bytes: reply.bytes + of_others, ..reply })))
            }
            (waits_for, _) => {
                self.0 = Some(Last { waits_for, ..last });
                Vec::new()
            }
        }
    }

    /// Ends the wait for hub 0's request, if the wait has taken too long. Called at hubs other than hub 0.
    pub(super) fn overdue(&mut self, hubs: &Hubs, limit: Duration, now: Instant) -> Vec<Effect> {
        // Hub 0 asks all hubs for their rounds first. Hub 0 waits for each hub at most `limit`.
        let limit = 3 * limit;
        let is_late = |last: &Last| matches!(last.waits_for, WaitsFor::Order(since) if now - since > limit);
        let Some(last) = self.0.take_if(|last| is_late(last)) else { return Vec::new() };
        let (lead, seconds) = (hubs.name(0), limit.as_secs_f64());
        over(last.unsaved(format!("{lead} did not say within {seconds:.1} s which round all hubs save")))
    }

    fn begin_wait(&mut self, last: Last, waits_for: WaitsFor, step: LastStep) -> Vec<Effect> {
        self.0 = Some(Last { waits_for, ..last });
        vec![Effect::Last(step)]
    }

    /// Decides at hub 0 which state all hubs save: the state before the highest round of any chunk. This state must be newer
    /// than the last checkpoint.
    fn others_hold(
        &mut self,
        hubs: &Hubs,
        last: Last,
        replies: Vec<Result<FailedReply, String>>,
    ) -> Vec<Effect> {
        let holds = |reply: &Result<FailedReply, String>| reply.as_ref().is_ok_and(|reply| reply.saves);
        // Hub 0 asks only the hubs that still have the job. So hub 0 does not wait again for a hub that has ended.
        let there = (1..).zip(&replies).filter(|(_, reply)| holds(reply)).map(|(hub, _)| hub).collect();
        let rounds = last.of_all(hubs, replies);
        let (mut before, mut ended) = (Round(0), last.ended.clone());
        if let Ok(Some(RoundsInFlight { lowest, highest })) = rounds
            && lowest > Round(0)
            && highest > last.saved
        {
            before = highest;
            if lowest < before {
                let round = before.0 - 1;
                ended += &format!("; round {round} was ended with the gradients that had arrived");
            }
        }
        let (secret, whole) = (hubs.secret.show(), hubs.whole.clone());
        let request = LastRequest { secret, before, ended, whole };
        // A hub makes all hubs write a checkpoint before it stops. So a hub may have ended by now, after everything was saved.
        let is_over = rounds.err().map(|why| last.unsaved(why));
        match hubs.share.is_whole() {
            true => self.others_have_written(hubs, last, request, (is_over, Vec::new())),
            false => {
                let step = LastStep::HaveWritten(there, request.clone());
                self.begin_wait(last, WaitsFor::Parts(request, is_over), step)
            }
        }
    }

    /// Writes hub 0's part, if all other hubs have written theirs. A part of hub 0 alone would be useless: a job starts
    /// only from a round that all hubs have.
    fn others_have_written(
        &mut self,
        hubs: &Hubs,
        last: Last,
        request: LastRequest,
        (is_over, parts): (Option<Saved>, Vec<Result<LastReply, String>>),
    ) -> Vec<Effect> {
        let of_others =
            parts.into_iter().map(|part| part.map(|part| part.bytes)).sum::<Result<u64, String>>();
        match (is_over, of_others) {
            (Some(saved), _) => over(saved),
            (None, Ok(of_others)) => self.write(hubs, last, request, of_others),
            (None, Err(why)) => over(Err(why)),
        }
    }

    fn write(&mut self, hubs: &Hubs, last: Last, request: LastRequest, of_others: u64) -> Vec<Effect> {
        match request.before == Round(0) || hubs.pieces.is_empty() {
            true => over(Ok(None)),
            false => self.begin_wait(last, WaitsFor::Write(of_others), LastStep::Write(request)),
        }
    }
}

impl Last {
    /// Begins to save the last state of a failed job. `written` is the round of this hub's last file since the job
    /// began. If there is no such file, only the checkpoint that the job continued from counts as saved. A state that
    /// rank 0 has brought is in no file.
    fn new((reason, blame): (&str, Blame), stops: bool, hubs: &Hubs, written: Option<Round>) -> Self {
        let newest = match (hubs.share.is_whole(), hubs.leads()) {
            (true, _) => written,
            (false, true) => hubs.whole.rounds.last().copied(),
            (false, false) => hubs.rounds.last().copied(),
        };
        let secret = hubs.secret.show();
        let failed = FailedRequest { secret, reason: reason.to_owned(), hub_stops: blame == Blame::Hub };
        let mut last = Last {
            waits_for: WaitsFor::Hold,
            own: None,
            failed,
            ended: format!("failed: {reason}"),
            saved: newest.unwrap_or(hubs.first_round),
        };
        if stops && !hubs.share.is_whole() {
            last.failed.reason = format!("{} stops: {reason}", hubs.name(hubs.share.hub));
        }
        last
    }

    /// Returns the reason why the state is not saved, as an error. If the last checkpoint already has this state, returns no
    /// error.
    fn unsaved(&self, why: String) -> Saved {
        match self.own.is_none_or(|own| own.highest <= self.saved) {
            true => Ok(None),
            false => Err(why),
        }
    }

    /// Returns the rounds of the chunks of all hubs. `others` are the answers of the other hubs.
    fn of_all(
        &self,
        hubs: &Hubs,
        others: Vec<Result<FailedReply, String>>,
    ) -> Result<Option<RoundsInFlight>, String> {
        let mut all = self.own;
        for (hub, reply) in (1..).zip(others) {
            let FailedReply { saves, rounds } = reply?;
            if !saves {
                let name = hubs.name(hub);
                return Err(format!("{name} no longer has its part of the last state (see its log)"));
            }
            all = all.into_iter().chain(rounds).reduce(both);
        }
        all.map_or(Ok(()), |all| check_before(all.highest, self.own))?;
        Ok(all)
    }
}

/// Returns the effects of the end. If other hubs wait for an answer, they learn that this hub no longer has the job.
/// Hub 0 also gets the result of this hub's part, if it waits for this result.
fn over(saved: Saved) -> Vec<Effect> {
    let bytes = |saved: &Option<CheckpointReply>| saved.as_ref().map_or(0, |reply| reply.bytes);
    let part = saved.as_ref().map(|saved| LastReply { bytes: bytes(saved) }).map_err(Clone::clone);
    let holds = FailedReply { saves: false, rounds: None };
    vec![Effect::Holds(holds), Effect::HasPart(part), Effect::LastOver(saved)]
}

/// Checks that this hub can save the state before a round. `own` are the rounds of this hub's chunks. Before round 0 there
/// is no state to save.
fn check_before(before: Round, own: Option<RoundsInFlight>) -> Result<(), String> {
    match own {
        Some(own) if before > Round(0) && (before < own.highest || !before.is_near(own.highest)) => {
            Err(format!(
                "the state before round {} cannot be saved: this hub's chunks are in rounds {} to {}, and the \
             chunks of all hubs must be at most {} rounds apart",
                before.0,
                own.lowest.0,
                own.highest.0,
                Round::APART
            ))
        }
        _ => Ok(()),
    }
}

/// Returns the range that covers the rounds of the chunks of two hubs.
fn both(a: RoundsInFlight, b: RoundsInFlight) -> RoundsInFlight {
    RoundsInFlight { lowest: a.lowest.min(b.lowest), highest: a.highest.max(b.highest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_state_is_near_the_rounds_that_are_here() {
        let own = Some(RoundsInFlight { lowest: Round(6), highest: Round(7) });
        for (before, is_right) in [(0, true), (6, false), (7, true), (8, true), (71, true), (72, false)] {
            assert_eq!(check_before(Round(before), own).is_ok(), is_right, "{before}");
        }
        assert!(check_before(Round::LIMIT, own).unwrap_err().contains("at most 64"));
        check_before(Round(72), None).unwrap();
    }
}
