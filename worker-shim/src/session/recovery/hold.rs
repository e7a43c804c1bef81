//! Recovery after the loss of a hub: the session waits until the hub is back, and continues from the hub's
//! state.
//!
//! Runs on the caller's thread, inside a push or a wait, which then continues. [`Member`](membership::Member)
//! decides the next step.
//!
//! ```text
//!   lost --> notify the job's other hubs --> join again, until all hubs are up --> links to the same memory
//!        --> weights of the checkpoint's round --> skip pushes of rounds that other workers have finished
//! ```
//!
//! The hub counts rounds. After a restart, the hub continues to count from the round of its checkpoint. A session
//! continues its own count, which includes the lost rounds. In this count, `reached` is the first round for which no
//! worker has an answer. After the recovery, the checkpoint's round counts as `reached`. A push for round `reached`
//! that was in flight is repeated. Pushes of earlier rounds are not repeated, because some worker has continued with
//! their answers. So at the end all workers have pushed each key the same number of times.
//!
//! Workers that step alone have no common round. Each has its own `reached`, and keeps the lead over the slowest worker that it
//! had before the loss. So all these workers lose the same number of rounds. Machines that step alone behave like workers that
//! step alone; the workers of one machine step together.

#![allow(clippy::result_large_err)] // large errors are rare: one for each loss

use std::time::{Duration, Instant};

use fabric::{Receive, any};
use membership::{End, Event, Failure, Hub, MemberError, Step};
use pbox_core::{Consistency, Content, JobTerms, KeyId, Round, Wire};

use crate::pull::Pulling;
use crate::session::compare::Digests;
use crate::session::config::SessionConfig;
use crate::session::error::SessionError;
use crate::session::join::{Attached, attach, drafts, let_in};
use crate::session::session::{LOOK, Session};

/// The time limit for notifying another hub of the job that a hub is lost.
pub(in crate::session) const TELL_LIMIT: Duration = Duration::from_secs(2);

/// The number of times that lost hubs have returned, and the number of lost rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returns {
    /// The number of times that hubs have returned.
    pub times: u32,
    /// The sum of the rounds of all losses. The lost rounds of one loss are those from the checkpoint of the restarted
    /// hub to the first round for which no worker had an answer. If workers step alone, to the first round for which
    /// the slowest worker had no answer.
    pub lost_rounds: u64,
}

/// An error, and whether another try may succeed.
enum RetryError<E> {
    /// Another try may succeed.
    Transient(E),
    /// No other try can succeed.
    Permanent(E),
}

impl<E> From<E> for RetryError<E> {
    fn from(error: E) -> Self {
        RetryError::Transient(error)
    }
}

/// The state of a key when the hub was lost.
#[derive(Clone, Copy, Debug)]
struct KeyAtLoss {
    /// The round of the push in flight. If no push was in flight, the round of the next push.
    round: Round,
    under_way: bool,
    /// The content of the push in flight.
    content: Content,
    /// The number of the next pushes that must not be sent, because their rounds were lost earlier.
    skips: u32,
}

impl Session {
    /// Returns the number of times that the session has continued after its hub was lost and returned, and the lost rounds.
    pub fn returns(&self) -> Returns {
        self.returns
    }

    /// Whether the session waits for lost hubs (`hub_wait`), in a job whose workers or machines have no common round.
    pub(in crate::session) fn waits_alone(&self) -> bool {
        self.member.waits_for_hubs() && self.asked.consistency != Consistency::Bsp
    }

    /// Takes one of the key's skips. Returns true if the next push must not be sent, because its round is lost.
    pub(in crate::session) fn take_skip(&mut self, key: KeyId) -> bool {
        let left = self.skips.get_mut(key.index()).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }

    /// Handles the loss of a hub: waits until the hub is back, and continues.
    ///
    /// # Errors
    /// Returns the error if it is not the loss of the hub, or if the hub does not return.
    pub(in crate::session) fn survive(&mut self, error: SessionError) -> Result<(), SessionError> {
        let (lost, end) = match error {
            SessionError::Member(lost) if lost.is_loss_of_hub() => (lost, End::HubLost),
            SessionError::Member(over @ MemberError::JobFailed { .. }) => (over, End::JobOver),
            other => return Err(other),
        };
        let Some(step @ Step::TellLoss) = self.member.handle(Event::Ended(end), Instant::now()) else {
            return Err(lost.into());
        };
        self.stopwatch.wait_begins();
        let back = self.wait_for_hub(step, lost);
        self.stopwatch.wait_ends();
        back
    }

    /// Carries out the steps by which the worker returns to a hub that was lost.
    fn wait_for_hub(&mut self, mut step: Step, lost: MemberError) -> Result<(), SessionError> {
        let (since, wait) = (Instant::now(), self.config.hub_wait);
        tracing::warn!("{lost}; waiting up to {} s for the hub to come back", wait.as_secs_f64());
        let keys = self.keys().map(|key| KeyAtLoss {
            round: self.exchange.round(key),
            under_way: !self.exchange.is_ready(key),
            content: self.exchange.content(key),
            skips: self.skips.get(key.index()).copied().unwrap_or(0),
        });
        let at_loss: Vec<KeyAtLoss> = keys.collect();
        let own = at_loss.iter().map(|at_loss| self.counted(at_loss.round)).max().unwrap_or_default();
        let mut why = None;
        loop {
            let event = match step {
                Step::TellLoss => {
                    match &why {
                        Some(SessionError::Member(again)) => self.tell_other_hubs(again),
                        _ => self.tell_other_hubs(&lost),
                    }
                    Event::Told
                }
                Step::Join(until) => ended(self.join_again(Some(own), until), Event::TakesPart, &mut why),
                Step::CatchUp => ended(self.catch_up(&at_loss, own), Event::CaughtUp, &mut why),
                Step::Wait(until) => self.pause(until),
                Step::GiveUp(over) => {
                    let error = why.expect("at least one try has failed");
                    if over.is_none() {
                        return Err(error);
                    }
                    let waited = since.elapsed().as_secs_f64();
                    // A worker that found workers missing was admitted, so the hub is back.
                    let more = match &error {
                        SessionError::Missing { .. } => format!(
                            "; the hub answers again, but the job did not begin again within {waited:.1} s: {error}; if only this worker \
                             was cut off, the other workers have ended, and their errors name this worker: start the job again"
                        ),
                        _ => format!("; the hub did not come back within {waited:.1} s: {error}"),
                    };
                    return Err(lost.with_more(&more).into());
                }
                Step::GoOn => return Ok(()),
                step => unreachable!("{step:?} leads to no hub"),
            };
            step = self.member.handle(event, Instant::now()).expect("the end of a step");
        }
    }

    /// Notifies the job's other hubs of the loss. They end the job, and notify the other workers of the reason. The hubs must
    /// know of the loss before this worker's links end. Otherwise the end of the links would look like the end of the worker.
    fn tell_other_hubs(&self, lost: &MemberError) {
        if self.hubs.len() == 1 {
            return;
        }
        let stops = self.hubs.iter().filter(|hub| hub.end().is_some()).map(Hub::address).collect::<Vec<_>>();
        let why = match lost {
            MemberError::JobFailed { reason, .. } => format!("the hub at {}: {reason}", stops.join(", ")),
            lost => lost.to_string(),
        };
        for hub in self.hubs.iter().filter(|hub| hub.end().is_none()) {
            if let Err(error) = hub.fail_without_hub(&why, TELL_LIMIT) {
                tracing::debug!(hub = hub.address(), %error, "cannot report the lost hub to this hub, which may be the lost one");
            }
        }
    }

    /// Waits until this worker takes part in a job that it has just joined. If a hub is lost meanwhile and
    /// `may_join_again` is true, joins again when the hub is back.
    ///
    /// # Errors
    /// Returns the error if it is not the loss of a hub, or if the hub does not return within `hub_wait`.
    pub(in crate::session) fn begin_at_first(
        &mut self,
        deadline: Instant,
        may_join_again: bool,
    ) -> Result<(), SessionError> {
        let wait = if may_join_again { self.config.hub_wait } else { Duration::ZERO };
        let (mut until, mut begun) = (None, self.begin(deadline).map_err(RetryError::Transient));
        loop {
            let error = match begun {
                Ok(()) => return Ok(()),
                Err(RetryError::Permanent(error)) => return Err(error),
                Err(RetryError::Transient(error)) => error,
            };
            let is_loss = matches!(&error, SessionError::Member(lost) if lost.is_loss_of_hub());
            if until.is_none() && is_loss && !wait.is_zero() {
                tracing::warn!("{error}; waiting up to {} s for the hub to come back", wait.as_secs_f64());
                until = Some(Instant::now() + wait);
            }
            let Some(until) = until.filter(|until| Instant::now() < *until) else { return Err(error) };
            if self.pause(Instant::now() + LOOK) == Event::CallerGaveUp {
                return Err(error);
            }
            begun = self.join_again(None, until);
        }
    }

    /// Joins again, and waits until the worker takes part. `own` is the highest round that this worker has
    /// reached, if it has taken part before.
    fn join_again(&mut self, own: Option<Round>, until: Instant) -> Result<(), RetryError<SessionError>> {
        // The old links must end before the join. A hub that was only suspended may still send, and its posts
        // must not arrive in the window of the new hub.
        let (_group, mut ports) = any::group(1, None).map_err(SessionError::from)?;
        self.exchange.disconnect(ports.remove(0));
        let terms = JobTerms { level: self.asked, ..self.config.terms.clone() };
        let asked = SessionConfig { terms, ..self.config.clone() };
        let let_in = let_in(&asked, own, until, &self.given_up)?;
        if let_in[0].above().is_some() != self.is_below_others {
            let is = if self.is_below_others {
                "is not below other hubs any more"
            } else {
                "is below other hubs now"
            };
            return Err(RetryError::Permanent(
                self.hubs[0].lost(format!("the hub was restarted, and {is}; start the job again")).into(),
            ));
        }
        let deadline = membership::deadline(&let_in, self.config.join_limit);
        let wire = Wire::of_terms(&self.config.terms).map_err(SessionError::from)?;
        let wire = let_in[0].wire(wire).map_err(SessionError::from)?;
        if wire.hubs() != self.exchange.windows().wire().hubs() {
            let why = "the hub was restarted with another number of hubs above it; start the job again";
            return Err(RetryError::Permanent(self.hubs[0].lost(why.to_owned()).into()));
        }
        let (windows, former) = (self.exchange.windows(), &self.hubs);
        let receive = |hub: usize| Receive::Into(windows.received()[former[hub].cores.start].clone());
        let Attached { port, endpoints, received, slices, hubs, ways, .. } =
            attach(let_in, &self.config, &wire, windows.sent(), receive, deadline)?;
        let drafts = drafts(&endpoints);
        self.exchange.reconnect(port, endpoints, received, slices);
        self.exchange.set_credit(self.credit);
        (self.hubs, self.ways) = (hubs, ways);
        self.let_ahead(drafts);
        if let Some(pull) = &self.config.pull {
            // The hub may now be on another machine, so the times of pulls are measured again.
            self.pulling = Some(Pulling::begin(pull, &mut self.exchange).map_err(SessionError::from)?);
        }
        let begun = self.begin(deadline);
        // The job may be over by now: another worker has found that the weights are lost, and has ended. A second join
        // would wait for that worker, which does not return.
        own.map_or(Ok(()), |own| self.check_has_weights(own))
            .map_err(|error| RetryError::Permanent(error.into()))?;
        Ok(begun?)
    }

    /// Waits for the hub's weights, and continues with the rounds that these weights do not include. `own` is the
    /// highest round that this worker has reached.
    fn catch_up(&mut self, at_loss: &[KeyAtLoss], own: Round) -> Result<(), RetryError<SessionError>> {
        self.wait_all()?;
        // The checkpoint may be further than all workers: it may include a round for which no worker has an answer.
        let begins = self.counted(self.first);
        let highest = membership::highest_reached(&self.hubs).unwrap_or_default().max(own).max(begins);
        self.check_has_weights(highest).map_err(|error| RetryError::Permanent(error.into()))?;
        self.check_has_means(at_loss, highest).map_err(|error| RetryError::Permanent(error.into()))?;
        self.tell_numbers_again()?;
        self.tell_priorities().map_err(SessionError::from)?;
        // The workers of one machine step together, even if machines step alone.
        let steps_alone = self.config.terms.level.consistency != Consistency::Bsp;
        let reached = if steps_alone { own.max(begins) } else { highest };
        self.skips = vec![0; at_loss.len()];
        for (key, at_loss) in self.keys().zip(at_loss) {
            // Some worker may have answers for later rounds of this key than this worker has.
            let round = self.counted(at_loss.round);
            let behind = reached.0.saturating_sub(round.0);
            if at_loss.under_way && round < begins {
                self.exchange.answered_without(key, at_loss.round); // the new weights include this push
            }
            match (at_loss.under_way, behind) {
                (true, 0) => self.push_again(key, at_loss.content)?,
                (true, behind) => self.skips[key.index()] = behind - 1, // the new weights answer this push
                (false, behind) => self.skips[key.index()] = at_loss.skips + behind,
            }
        }
        self.digests.iter_mut().for_each(Digests::forget);
        let lost_in_all = reached.0 - self.first.0;
        let lost = lost_in_all.saturating_sub(std::mem::replace(&mut self.lost, lost_in_all));
        self.returns.times += 1;
        self.returns.lost_rounds += u64::from(lost);
        let (job, round) = (&self.config.job, self.first.0);
        tracing::warn!(
            job,
            round,
            lost,
            "the hub is back; the job continues from its round, and {lost} round(s) are lost"
        );
        Ok(())
    }

    /// Converts a round of the hub into this session's count, which includes the rounds that were lost before. If this
    /// worker has missed a return of the hub, another worker's count may be higher.
    pub(in crate::session) fn counted(&self, round: Round) -> Round {
        Round(round.0.saturating_add(self.lost))
    }

    fn push_again(&mut self, key: KeyId, content: Content) -> Result<(), SessionError> {
        if let Some(pulling) = &mut self.pulling {
            pulling.before_push(&self.exchange);
        }
        self.exchange.put_as(key, content)?;
        Ok(self.exchange.flush()?)
    }

    /// Returns an error if the job has begun anew without weights, although workers have already reached this round, or
    /// a later round.
    fn check_has_weights(&self, own: Round) -> Result<(), MemberError> {
        let reached = membership::highest_reached(&self.hubs).unwrap_or_default().max(own);
        let begins_anew = membership::takes_part(&self.hubs, self.config.rank) == Ok(Round(0));
        if self.config.terms.optimizer.keeps_weights() && begins_anew && reached > Round(0) {
            return Err(self.hubs[0].lost(
                "the hub was restarted without the job's weights; start each hub of the job on its former machine, with \
                 --checkpoints DIRECTORY and --checkpoint-every N"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Checks, in a job without weights, that no other worker already has the mean of a round for which this worker has
    /// no mean.
    fn check_has_means(&self, at_loss: &[KeyAtLoss], reached: Round) -> Result<(), MemberError> {
        let is_lost = |at_loss: &KeyAtLoss| at_loss.under_way && self.counted(at_loss.round) < reached;
        if !self.config.terms.optimizer.keeps_weights() && at_loss.iter().any(is_lost) {
            return Err(self.hubs[0].lost(
                "the hub was restarted, and has lost a round's mean that other workers already have; start the job again"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// Returns the event for a step's result, and stores the reason of a failure.
fn ended(
    result: Result<(), RetryError<SessionError>>,
    event: Event,
    why: &mut Option<SessionError>,
) -> Event {
    let (failure, error) = match result {
        Ok(()) => return event,
        Err(RetryError::Permanent(error)) => (Failure::Permanent, error),
        Err(RetryError::Transient(error)) => match &error {
            SessionError::Member(lost) if lost.is_loss_of_hub() => (Failure::HubLost, error),
            _ => (Failure::Transient, error),
        },
    };
    *why = Some(error);
    Event::Failed(failure)
}
