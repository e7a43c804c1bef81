//! The session: a worker's membership in a job, from join to leave. Here are its training calls; `join` and `wait` are
//! what they begin and end with, and `hubs` what goes over the control port.
//!
//! On the caller's thread. Must not know how gradients are summed.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fabric::{Port, any};
use membership::{Hub, MemberError, Way};
use pbox_core::{Element, KeyId, Layout, Round};

use super::config::SessionConfig;
use super::credit::{Trial, Tuner};
use super::error::SessionError;
use crate::exchange::{Exchange, Traffic, Windows};
use crate::pull::{Pull, PullError, PullPlan, Pulling};

/// How soon a worker that waits for the others sees that its caller gave up.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// A worker's membership in a job. See the crate's example.
pub struct Session {
    pub(super) config: SessionConfig,
    /// At least one.
    pub(super) hubs: Vec<Hub>,
    pub(super) exchange: Exchange<any::Port>,
    /// To each hub.
    pub(super) ways: Vec<Way>,
    /// Bytes that each link may hold.
    pub(super) credit: Option<usize>,
    /// The search for the best, and the last round with its beginning.
    pub(super) tuner: Option<(Tuner, Option<(Round, Instant)>)>,
    /// Where weights are pulled in batches.
    pub(super) pulling: Option<Pulling>,
    /// The round that this worker takes part from.
    pub(super) first: Round,
    /// Weights are there: they were broadcast, or the optimizer keeps none.
    pub(super) ready: bool,
}

impl Session {
    /// Gives every worker the weights that `fill` writes on rank 0 (it is called there only), and
    /// waits for them. Once, before the first push; every worker calls it. For a model whose keys are all
    /// of type `E`; for others there is [`broadcast_written`](Self::broadcast_written).
    ///
    /// A worker that came to a job that has weights already ([`next_round`](Self::next_round) is not 0)
    /// keeps those: then this does nothing, so that a program that is started again need not know.
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

    /// As [`broadcast_weights`](Self::broadcast_weights), with what rank 0 has written to
    /// [`gradient_mut`](Self::gradient_mut) of each key as the weights.
    pub fn broadcast_written(&mut self) -> Result<(), SessionError> {
        let is_first = self.next_round() == Round(0);
        self.begin_broadcast()?;
        if is_first { self.wait_all() } else { Ok(()) }
    }

    /// The part of [`broadcast_written`](Self::broadcast_written) that does not wait.
    pub(crate) fn begin_broadcast(&mut self) -> Result<(), SessionError> {
        if self.next_round() == Round(0) {
            self.keys().try_for_each(|key| self.send(key))?;
        } else {
            self.exchange.discard_changes();
        }
        self.ready = true; // no key can be pushed before its weights are there: it is under way
        Ok(())
    }

    /// A key's gradient, to write in place. It still holds what was last written; with Slim-DP zero, where that was sent.
    /// `E` is the key's type.
    ///
    /// # Errors
    /// While the key is under way, and when `E` is another type than the key's.
    pub fn gradient_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], SessionError> {
        Ok(self.exchange.gradient_mut(key)?)
    }

    /// A key's weights to read and its gradient to write, together: a backward pass needs both, and
    /// must be done with the weights before it pushes the key.
    ///
    /// # Errors
    /// As for [`gradient_mut`](Self::gradient_mut).
    pub fn tensors<E: Element>(&mut self, key: KeyId) -> Result<(&[E], &mut [E]), SessionError> {
        Ok(self.exchange.tensors(key)?)
    }

    /// A key's weights (with [`Average`](pbox_core::Optimizer::Average): the mean gradient), as of
    /// its last finished round; with SSP and ASP as they were when this worker was answered. `E` is the key's type.
    ///
    /// # Errors
    /// As for [`gradient_mut`](Self::gradient_mut).
    pub fn weights<E: Element>(&self, key: KeyId) -> Result<&[E], SessionError> {
        Ok(self.exchange.weights(key)?)
    }

    /// A key's weights, to write. With Slim-DP a worker makes its own step, adds what that changed to the
    /// [gradient](Self::gradient_mut) and pushes it: of what is sent it then gets the hub's weights, and the gradient is
    /// zero. The rest stays as it was made, and its change goes out when it is sent. (Who writes the gradient anew in each
    /// round loses what is left out, as the paper's algorithm 1 does.)
    ///
    /// # Errors
    /// As for [`gradient_mut`](Self::gradient_mut), and in any other job.
    pub fn weights_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], SessionError> {
        Ok(self.exchange.weights_mut(key)?)
    }

    /// Sends a key's gradient to the hub and returns at once. Until [`wait`](Self::wait), the key's
    /// gradient and weights belong to the hub: whatever the backward pass needs of the weights (the
    /// delta for the layer below) is computed before.
    pub fn push(&mut self, key: KeyId) -> Result<(), SessionError> {
        if !self.ready {
            return Err(Self::no_weights(&self.config.hub));
        }
        self.tune(key);
        self.send(key)
    }

    fn send(&mut self, key: KeyId) -> Result<(), SessionError> {
        if let Some(pulling) = &mut self.pulling {
            pulling.before_push(&self.exchange);
        }
        self.exchange.push(key).map_err(|error| self.explain(error))
    }

    /// Why there is no push before the broadcast.
    pub(crate) fn no_weights(hub: &str) -> SessionError {
        let why = "no weights yet: every worker calls broadcast_weights once before its first push".into();
        MemberError::Refused { hub: hub.to_owned(), what: "push", why }.into()
    }

    /// Where this is the first push of a round: how long the one before took, and what follows for the credit.
    fn tune(&mut self, key: KeyId) {
        let Some((tuner, last)) = &mut self.tuner else { return };
        if key.index() >= self.exchange.layout().keys().len() {
            return; // the push says so
        }
        let (round, now) = (self.exchange.round(key), Instant::now());
        if last.is_some_and(|(last, _)| round <= last) {
            return;
        }
        let took = last.replace((round, now)).map(|(_, begun)| now - begun);
        if let Some(bytes) = took.and_then(|took| tuner.lap(took)) {
            self.credit = Some(bytes);
            self.exchange.set_credit(self.credit);
        }
    }

    /// Bytes that each link to the hub may hold, and with [`Credit::Auto`](crate::Credit::Auto) what was tried so far.
    pub fn credit(&self) -> (Option<usize>, &[Trial]) {
        (self.credit, self.tuner.as_ref().map_or(&[], |(tuner, _)| tuner.tried()))
    }

    /// If weights are pulled in batches: what is planned, once there is a plan, and what came of it.
    pub fn pull_plan(&self) -> Option<&PullPlan> {
        self.pulling.as_ref().and_then(Pulling::plan)
    }

    /// If weights are pulled in batches: by other layers from now on, for a caller that learns only as it computes
    /// in what order its layers are needed. What they take is measured anew.
    ///
    /// # Errors
    /// While a key is under way, when weights are not pulled in batches, and when they are not every key once.
    pub fn pull_by(&mut self, layers: Vec<Vec<KeyId>>) -> Result<(), SessionError> {
        self.check_quiet("pulling by other layers")?;
        let pull = self.config.pull.as_mut().ok_or(PullError::NoBatches)?;
        let pull = Pull { layers, ..pull.clone() };
        self.pulling = Some(Pulling::begin(&pull, &mut self.exchange)?);
        self.config.pull = Some(pull);
        Ok(())
    }

    /// By which transport it reaches each hub, and why by this one.
    pub fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// All keys, first layer first.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> + use<> {
        (0..self.exchange.layout().keys().len() as u32).map(KeyId)
    }

    /// The layout of the job.
    pub fn layout(&self) -> &Arc<Layout> {
        self.exchange.layout()
    }

    /// Bytes of gradients and weights that have crossed so far, as they cross.
    pub fn traffic(&self) -> Traffic {
        self.exchange.traffic()
    }

    /// Gradients that were NaN or infinite when a codec encoded them, since the join. What becomes of such a value
    /// is the codec's to say ([`pbox_core::codec`]): most send it as zero.
    pub fn not_finite(&self) -> u64 {
        self.exchange.not_finite()
    }

    /// The first round of which no key has its answer. Round 0 is the broadcast, where there is one. After the
    /// join it is the round that this worker takes part from: not 0 when the job had begun.
    pub fn next_round(&self) -> Round {
        self.keys().map(|key| self.exchange.round(key)).fold(self.first, Round::max)
    }

    /// Its pulls, if weights are pulled in batches; and its exchange.
    pub(crate) fn pulling(&mut self) -> Option<(&mut Pulling, &Exchange<any::Port>)> {
        self.pulling.as_mut().map(|pulling| (pulling, &self.exchange))
    }

    /// With it any thread ends the sleep of a [`turn`](Self::turn).
    pub(crate) fn waker(&mut self) -> Waker {
        self.exchange.port().waker()
    }

    /// Whether no push of the key is unanswered, as far as this session has looked.
    pub(crate) fn has_answer(&self, key: KeyId) -> bool {
        self.exchange.is_ready(key)
    }

    /// Whether nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.exchange.first_under_way().is_none()
    }

    /// Whether keys can be pushed: there are weights, or none are kept.
    pub(crate) fn has_weights(&self) -> bool {
        self.ready
    }

    /// Ends the session, and keeps its memory.
    pub(crate) fn into_windows(self) -> Windows {
        self.exchange.into_windows()
    }
}
