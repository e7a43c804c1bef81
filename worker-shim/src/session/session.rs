//! The session: a worker's membership in a job, from join to leave. This file has the training calls and the
//! wait for an answer. `drive` has other ways to drive the exchange, `join` has the first call, and `hubs`
//! has the calls over the control port.
//!
//! Runs on the caller's thread. Decides when to give up; does not depend on how answers arrive, or on how
//! gradients are summed.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fabric::{Idle, Port, Until, any};
use membership::{Hub, Member, Way};
use pbox_core::control::LeftAt;
use pbox_core::{Content, Element, KeyId, Layout, LevelTerms, Numbers, Round};

use super::compare::Digests;
use super::config::SessionConfig;
use super::contents::Pushed;
use super::error::SessionError;
use super::measured::{Stopwatch, Timeline, Times, Trial, Tuner};
use super::recovery::Returns;
use crate::exchange::{Exchange, ExchangeError, Traffic, Windows};
use crate::pull::{Pull, PullError, PullPlan, Pulling};

/// The longest sleep before the next check whether the caller gave up.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// The number of polls after which a spinning worker checks the news. The checks are so frequent that an error is
/// noticed soon, and so rare that locking the news costs almost no time.
const POLLS_PER_LOOK: u32 = 4096;

/// A worker's membership in a job. See the crate's example.
pub struct Session {
    pub(super) config: SessionConfig,
    /// The hubs of the job, at least one.
    pub(super) hubs: Vec<Hub>,
    pub(super) exchange: Exchange<any::Port>,
    /// The transport to each hub, by hub.
    pub(super) ways: Vec<Way>,
    /// The bytes that each link may hold.
    pub(super) credit: Option<usize>,
    /// The search for the best credit.
    pub(super) tuner: Option<Tuner>,
    /// The state of pulls, if weights are pulled in batches.
    pub(super) pulling: Option<Pulling>,
    /// The round that this worker takes part from.
    pub(super) first: Round,
    /// Whether weights were broadcast. Also true if the optimizer keeps no weights.
    pub(super) ready: bool,
    /// The state machine of this worker as a member. It decides what to do after a loss.
    pub(super) member: Member,
    /// The number of next pushes of each key that the session does not send, by key. The rounds of these pushes were
    /// lost with a hub. Empty if no hub was lost.
    pub(super) skips: Vec<u32>,
    pub(super) returns: Returns,
    /// The number of rounds that the job has lost so far, also before this session. A hub's round plus `lost` is the
    /// same number for all workers.
    pub(super) lost: u32,
    /// The terms that this worker asks for when it joins. If its hub is below other hubs,
    /// [`config`](Self::config) has the terms between the worker and its hub.
    pub(super) asked: LevelTerms,
    pub(super) is_below_others: bool,
    /// The optimizer's hyperparameters, as this worker has set them last.
    pub(super) numbers: Option<Numbers>,
    /// The digests of weights, if the hub compares them.
    pub(super) digests: Option<Digests>,
    pub(super) given_up: GivenUp,
    pub(super) stopwatch: Stopwatch,
}

/// A function that returns whether the caller stops waiting.
pub(crate) type GivenUp = Box<dyn Fn() -> bool + Send>;

impl Session {
    /// Gives every worker the weights that `fill` writes on rank 0, and waits until the weights have arrived. Every
    /// worker calls it once, before its first push; `fill` is called only on rank 0. All keys must be of type `E`; for
    /// other models see [`broadcast_written`](Self::broadcast_written).
    ///
    /// If the job already has weights ([`next_round`](Self::next_round) is not 0), this does nothing, and the
    /// worker keeps the job's weights. So a program that is started again can call it in the same way.
    ///
    /// # Errors
    /// Returns an error if this session has made a round since its broadcast: another broadcast would change nothing. In a job
    /// whose optimizer keeps no weights, any round counts.
    pub fn broadcast_weights<E: Element>(
        &mut self,
        mut fill: impl FnMut(KeyId, &mut [E]),
    ) -> Result<(), SessionError> {
        if self.next_round() == Round(0) && self.config.rank == 0 {
            for key in self.keys() {
                fill(key, self.exchange.gradient_mut(key)?);
            }
        }
        self.broadcast_written()
    }

    /// Broadcasts the weights like [`broadcast_weights`](Self::broadcast_weights). Rank 0 has written them to
    /// [`gradient_mut`](Self::gradient_mut) of each key.
    pub fn broadcast_written(&mut self) -> Result<(), SessionError> {
        let is_first = self.next_round() == Round(0);
        self.begin_broadcast()?;
        if is_first {
            self.wait_all()?;
        }
        self.stopwatch.restart(self.next_round(), self.traffic());
        Ok(())
    }

    /// Carries out the first part of [`broadcast_written`](Self::broadcast_written), without the wait.
    pub(crate) fn begin_broadcast(&mut self) -> Result<(), SessionError> {
        let round = self.next_round();
        // A job without weights has no broadcast of its own. So any of its rounds may be another result.
        let keeps_weights = self.config.terms.optimizer.keeps_weights();
        let begins = if keeps_weights { self.first.max(Round(1)) } else { self.first };
        if round > begins {
            return Err(ExchangeError::LateBroadcast { round: round.0 }.into());
        }
        if round == Round(0) {
            let content = self.first_content();
            self.keys().try_for_each(|key| self.send(key, content))?;
            self.flush()?;
        } else {
            self.exchange.discard_changes();
        }
        self.ready = true; // until its weights have arrived, each key is in flight and cannot be pushed
        Ok(())
    }

    /// Returns the content of this worker's push in the broadcast. Rank 0 pushes weights. Other ranks push
    /// nothing, because their values would not be used. If the hub is of an older program, or the optimizer
    /// keeps no weights, all ranks push weights.
    fn first_content(&self) -> Content {
        let are_asked = |hub: &Hub| !hub.takes_first_of_one();
        let leaves_out = self.config.rank > 0 && self.exchange.broadcasts();
        if leaves_out && !self.hubs.iter().any(are_asked) { Content::Nothing } else { Content::Weights }
    }

    /// Returns the last round whose norm is known, and this norm: of the mean gradient over all keys, before clipping.
    /// Only a job with `clip_norm`, `skip_nonfinite` or `skip_spikes` has norms. `None` before the first such round.
    /// The norm of a round arrives before the last weights of the round.
    pub fn norm(&self) -> Option<(Round, f32)> {
        // With `clip_norm_last`, the norm arrives after the weights of its round, so it is not returned.
        let found = self.exchange.found().filter(|_| self.config.terms.waits_for_all());
        found.map(|found| (found.round, found.sum.norm()))
    }

    /// Returns the number of rounds that the job skipped because their mean gradient was not finite, or its
    /// norm was a spike. Only a job with `skip_nonfinite` or `skip_spikes` skips rounds.
    pub fn skipped(&self) -> u64 {
        self.exchange.found().map_or(0, |found| found.skipped)
    }

    /// Returns a key's gradient, to write in place. The gradient still has the values that were written last; with
    /// Slim-DP the values that were sent are zero. `E` is the key's type.
    ///
    /// # Errors
    /// Returns an error while the key is in flight, or if `E` is another type than the key's.
    pub fn gradient_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], SessionError> {
        Ok(self.exchange.gradient_mut(key)?)
    }

    /// Returns a key's weights to read and its gradient to write, together, as a backward pass needs them. The backward
    /// pass must not use the key's weights any more after it has pushed the key.
    ///
    /// # Errors
    /// Returns the errors of [`gradient_mut`](Self::gradient_mut).
    pub fn tensors<E: Element>(&mut self, key: KeyId) -> Result<(&[E], &mut [E]), SessionError> {
        Ok(self.exchange.tensors(key)?)
    }

    /// Returns a key's weights after its last finished round. With SSP and ASP, returns the weights of the
    /// hub's last answer to this worker. With [`Average`](pbox_core::Optimizer::Average), returns the mean
    /// gradient. `E` is the key's type.
    ///
    /// # Errors
    /// Returns the errors of [`gradient_mut`](Self::gradient_mut).
    pub fn weights<E: Element>(&self, key: KeyId) -> Result<&[E], SessionError> {
        Ok(self.exchange.weights(key)?)
    }

    /// Returns a key's weights, to write. With Slim-DP a worker makes its own step, adds the change to the
    /// [gradient](Self::gradient_mut) and pushes it. The hub's weights replace the values that are sent, and the gradient of
    /// these values becomes zero. Other weights keep the worker's values, and their gradient is sent in a later round. (A
    /// caller that overwrites the gradient in each round loses these changes, as the paper's algorithm 1 does.)
    ///
    /// # Errors
    /// Returns the errors of [`gradient_mut`](Self::gradient_mut), and an error in a job without Slim-DP.
    pub fn weights_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], SessionError> {
        Ok(self.exchange.weights_mut(key)?)
    }

    /// Sends a key's gradient to the hub, and returns at once. Until [`wait`](Self::wait), the key's gradient
    /// and weights belong to the hub. So before the push, the caller must compute everything for which the
    /// backward pass needs these weights, such as the delta for the layer below.
    pub fn push(&mut self, key: KeyId) -> Result<(), SessionError> {
        self.push_keys([key])
    }

    /// Pushes several keys like [`push`](Self::push). For small keys one call costs less than a call for each.
    pub fn push_keys(&mut self, keys: impl IntoIterator<Item = KeyId>) -> Result<(), SessionError> {
        self.push_as(Pushed::Gradient, keys)
    }

    /// Pushes several keys as gradients, as nothing, or as weights: see [`Pushed`]. Each worker pushes each
    /// key once a round.
    ///
    /// # Errors
    /// Returns the errors of [`push`](Self::push), and an error if the job takes [gradients](Pushed) only.
    pub fn push_as(
        &mut self,
        what: Pushed,
        keys: impl IntoIterator<Item = KeyId>,
    ) -> Result<(), SessionError> {
        let put = keys.into_iter().try_for_each(|key| self.put_as(key, what));
        // Even if a key cannot be pushed, the keys before it are flushed.
        put.and(self.flush())
    }

    /// Pushes a key. A small key may wait here until the [`flush`](Self::flush), which must follow soon.
    pub(crate) fn put_as(&mut self, key: KeyId, what: Pushed) -> Result<(), SessionError> {
        if !self.ready {
            return Err(SessionError::NoWeights);
        }
        self.exchange.check_exists(key)?;
        let timed = self.stopwatch.push_begins(key, self.exchange.round(key));
        if self.digests.is_some() {
            self.compare(key, what)?;
        }
        let content =
            if what == Pushed::Gradient { Content::Gradient } else { self.other_content(key, what)? };
        if let Some(tuner) = &mut self.tuner
            && let Some(bytes) = tuner.push(self.exchange.round(key))
        {
            self.credit = Some(bytes);
            self.exchange.set_credit(self.credit);
        }
        self.send(key, content)?;
        if let Some(timed) = timed {
            self.stopwatch.push_ends(timed);
        }
        Ok(())
    }

    fn send(&mut self, key: KeyId, content: Content) -> Result<(), SessionError> {
        if self.take_skip(key) {
            return Ok(());
        }
        if let Some(pulling) = &mut self.pulling {
            pulling.before_push(&self.exchange);
        }
        match self.exchange.put_as(key, content) {
            Ok(()) => Ok(()),
            Err(error) => self.survive_loss(error),
        }
    }

    /// Sends the keys that were [put](Self::put).
    pub(crate) fn flush(&mut self) -> Result<(), SessionError> {
        match self.exchange.flush() {
            Ok(()) => Ok(()),
            Err(error) => self.survive_loss(error),
        }
    }

    /// Waits until the key's answer has arrived.
    ///
    /// # Errors
    /// Returns an error if the key cannot arrive before another key is pushed: with pulls in batches, `clip_norm`,
    /// `skip_nonfinite` or `skip_spikes`. This error does not end the session.
    pub fn wait(&mut self, key: KeyId) -> Result<(), SessionError> {
        self.exchange.check_exists(key)?;
        self.wait_for(Some(key))
    }

    /// Waits until every key's answer has arrived.
    pub fn wait_all(&mut self) -> Result<(), SessionError> {
        self.wait_for(None)
    }

    /// Whether the key's answer has arrived. Handles arrivals, and does not wait.
    pub fn is_ready(&mut self, key: KeyId) -> Result<bool, SessionError> {
        self.exchange.check_exists(key)?;
        self.take_in(Some(key))?;
        Ok(self.exchange.is_ready(key))
    }

    /// Waits for the answers of one key, or of all keys.
    fn wait_for(&mut self, awaited: Option<KeyId>) -> Result<(), SessionError> {
        self.take_in(awaited)?;
        if self.open(awaited, KeyId(0)).is_none() {
            return Ok(());
        }
        self.stopwatch.wait_begins();
        let came = self.wait_for_missing(awaited);
        self.stopwatch.wait_ends();
        came
    }

    /// Waits for answers, after a first check has found that an answer is missing.
    fn wait_for_missing(&mut self, awaited: Option<KeyId>) -> Result<(), SessionError> {
        let mut idle = Idle::new(self.config.idle);
        let mut waiting_since = None;
        let mut polls = 0u32;
        // The search continues from the last key that was in flight: with many keys, a search from the first key
        // after each arrival would take long.
        let mut first = KeyId(0);
        while let Some(key) = self.open(awaited, first) {
            if polls == 0 || self.pulling.is_some() {
                self.check_can_come(key)?;
            }
            polls = polls.wrapping_add(1);
            first = key;
            let until = self.exchange.until(awaited);
            if self.idle(&mut idle, until) || polls.is_multiple_of(POLLS_PER_LOOK) {
                let since = *waiting_since.get_or_insert_with(Instant::now);
                self.check_still_possible(key, since)?;
            }
            if self.take_in(awaited)? > 0 {
                idle.reset();
            }
        }
        Ok(())
    }

    /// Checks that a key in flight can get its answer before another key is pushed.
    pub(crate) fn check_can_come(&self, key: KeyId) -> Result<(), ExchangeError> {
        if let Some(pulling) = &self.pulling {
            pulling.batches.check_can_come(key, &self.exchange)?;
        }
        if self.config.terms.waits_for_all() { self.exchange.check_all_pushed_with(key) } else { Ok(()) }
    }

    /// Returns `awaited` if this key is in flight. If `awaited` is `None`, returns any key in flight, searched
    /// from `first` on.
    fn open(&self, awaited: Option<KeyId>, first: KeyId) -> Option<KeyId> {
        match awaited {
            Some(key) => Some(key).filter(|&key| !self.exchange.is_ready(key)),
            // After a recovery from a lost hub, keys before `first` may be in flight again.
            None => self.exchange.under_way_from(first).or_else(|| self.exchange.first_under_way()),
        }
    }

    /// Handles arrivals. `asked` is the key whose weights the caller is about to use, if any. Returns the
    /// number of arrivals.
    pub(super) fn take_in(&mut self, asked: Option<KeyId>) -> Result<usize, SessionError> {
        let taken = match &mut self.pulling {
            None => self.exchange.progress(),
            Some(pulling) => pulling.progress(&mut self.exchange, asked),
        };
        match taken {
            Ok(arrivals) => {
                if arrivals > 0
                    && let Some(timeline) = self.stopwatch.timeline()
                {
                    timeline.came(|key| self.exchange.is_ready(key));
                }
                Ok(arrivals)
            }
            Err(error) => self.survive_loss(error).map(|()| 0),
        }
    }

    /// Idles once. Returns whether the thread slept.
    pub(super) fn idle(&mut self, idle: &mut Idle, until: Until) -> bool {
        let pull_in = self.pull_in();
        if pull_in.is_none() && !idle.sleeps_next() {
            return idle.step(self.exchange.port(), until);
        }
        let since = Instant::now();
        match pull_in {
            Some(limit) => self.exchange.port().wait(until, limit),
            None => _ = idle.step(self.exchange.port(), until),
        }
        self.stopwatch.slept(since.elapsed());
        true
    }

    /// Returns the time until the next pull begins, if a pull is due. The thread must not sleep longer.
    pub(super) fn pull_in(&self) -> Option<Duration> {
        self.pulling.as_ref().and_then(Pulling::sleep_limit)
    }

    /// Returns the number of bytes that each link to the hub may hold. With [`Credit::Auto`](pbox_core::Credit::Auto),
    /// also returns the trials so far.
    pub fn credit(&self) -> (Option<usize>, &[Trial]) {
        (self.credit, self.tuner.as_ref().map_or(&[], Tuner::tried))
    }

    /// Returns the plan and its measured times, if weights are pulled in batches and there is a plan.
    pub fn pull_plan(&self) -> Option<&PullPlan> {
        self.pulling.as_ref().and_then(|pulling| pulling.planner.plan())
    }

    /// Changes the layers, if weights are pulled in batches. Meant for a caller that learns the order of its layers only
    /// while it computes. The times are measured again.
    ///
    /// # Errors
    /// Returns an error while a key is in flight, and if weights are not pulled in batches. Returns an error if the layers do
    /// not have every key once.
    pub fn pull_by(&mut self, layers: Vec<Vec<KeyId>>) -> Result<(), SessionError> {
        self.exchange.check_quiet("pulling by other layers")?;
        let pull = self.config.pull.as_mut().ok_or(PullError::NoBatches)?;
        let pull = Pull { layers, ..pull.clone() };
        self.pulling = Some(Pulling::begin(&pull, &mut self.exchange)?);
        self.config.pull = Some(pull);
        Ok(())
    }

    /// Returns the transport to each hub, and the reason for the choice.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// Returns all keys, first layer first.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> + Clone + use<> {
        (0..self.exchange.layout().keys().len() as u32).map(KeyId)
    }

    /// Returns the layout of the job.
    pub fn layout(&self) -> &Arc<Layout> {
        self.exchange.layout()
    }

    /// Returns the bytes of gradients and weights that were sent and received until now.
    pub fn traffic(&self) -> Traffic {
        self.exchange.traffic()
    }

    /// Returns how this session's time was spent.
    pub fn times(&self) -> Times {
        self.stopwatch.times(self.next_round(), self.traffic())
    }

    /// Returns the number of gradients that were NaN or infinite when a codec encoded them, since the join. Most codecs
    /// send such a value as zero ([`pbox_core::codec`]).
    pub fn not_finite(&self) -> u64 {
        self.exchange.not_finite()
    }

    /// Returns the first round for which no key has its answer. Round 0 is the broadcast, if there is one.
    /// Right after the join, returns this worker's first round, which is not 0 if the job had begun.
    pub fn next_round(&self) -> Round {
        self.keys().map(|key| self.exchange.round(key)).fold(self.first, Round::max)
    }

    /// Returns, for each key, the first round without an answer. If this worker leaves now, it takes no part
    /// in these rounds.
    pub(crate) fn left_at(&self) -> LeftAt {
        LeftAt::of(self.keys().map(|key| self.exchange.round(key)))
    }

    /// Returns the session's pulls, if weights are pulled in batches.
    pub(crate) fn pulling(&mut self) -> Option<&mut Pulling> {
        self.pulling.as_mut()
    }

    /// Returns a waker that ends the sleep of a [`turn`](Self::turn), from any thread.
    pub(crate) fn waker(&mut self) -> Waker {
        self.exchange.port().waker()
    }

    /// Whether every push of the key has its answer, as of the last handled arrivals.
    pub(crate) fn has_answer(&self, key: KeyId) -> bool {
        self.exchange.is_ready(key)
    }

    pub(crate) fn round(&self, key: KeyId) -> Round {
        self.exchange.round(key)
    }

    /// Returns the round that must be pushed for all keys before this key is pushed again. `None` if there is no such
    /// round, or if the push is skipped.
    pub(crate) fn awaited_before(&self, key: KeyId) -> Option<Round> {
        let is_skipped = self.skips.get(key.index()).is_some_and(|&skips| skips > 0);
        if is_skipped { None } else { self.exchange.awaited_before(key) }
    }

    /// Records from now on which keys get their last missing answer, for [`take_answered`](Self::take_answered).
    pub(crate) fn note_answered(&mut self) {
        self.exchange.note_answered();
    }

    pub(crate) fn take_answered(&mut self, keys: &mut Vec<KeyId>) {
        self.exchange.take_answered(keys);
    }

    pub(crate) fn timeline(&self) -> Option<Timeline> {
        self.stopwatch.timeline().cloned()
    }

    /// Whether no key is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.exchange.first_under_way().is_none()
    }

    /// Whether keys can be pushed: there are weights, or the optimizer keeps no weights.
    pub(crate) fn has_weights(&self) -> bool {
        self.ready
    }

    /// Ends the session, and returns its memory.
    pub(crate) fn into_windows(self) -> Windows {
        self.exchange.into_windows()
    }
}
