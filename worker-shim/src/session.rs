//! The session: a worker's membership in a job, from join to leave.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use fabric::{Idle, Port, Until, any};
use pbox_core::control::{CheckpointReply, JobState, LearningRateRequest, Left, check_job_name};
use pbox_core::{Element, KeyId, Layout, Round, Slices};

use crate::config::SessionConfig;
use crate::credit::{Credit, Trial, Tuner};
use crate::data_path::{self, DataPath, Way};
use crate::error::SessionError;
use crate::exchange::{Exchange, ExchangeError, Traffic};
use crate::hub::{Hub, LetIn};
use crate::planner::PullPlan;
use crate::pulling::Pulling;
use crate::state::State;
use crate::windows::Windows;

/// After a link closed: how long to wait for the hub to say why.
const REASON_LIMIT: Duration = Duration::from_secs(2);

/// How soon a worker that waits for the others sees that its caller gave up.
const LOOK: Duration = Duration::from_millis(100);

/// A worker that spins looks at the news after so many polls: often enough for an error, seldom
/// enough for the lock that the news are under.
const POLLS_PER_LOOK: u32 = 4096;

/// A worker's membership in a job. See the crate's example.
pub struct Session {
    config: SessionConfig,
    /// At least one.
    hubs: Vec<Hub>,
    exchange: Exchange<any::Port>,
    /// To each hub.
    ways: Vec<Way>,
    /// Bytes that each link may hold.
    credit: Option<usize>,
    /// The search for the best, and the last round with its beginning.
    tuner: Option<(Tuner, Option<(Round, Instant)>)>,
    /// Where weights are pulled in batches.
    pulling: Option<Pulling>,
    /// The round that this worker takes part from.
    first: Round,
    /// Weights are there: they were broadcast, or the optimizer keeps none.
    ready: bool,
}

impl Session {
    /// Joins a job and waits until all its workers are there. The first worker to come makes the
    /// job; the others must agree on everything but their rank.
    pub fn join(config: SessionConfig) -> Result<Self, SessionError> {
        Self::join_unless(config, None, &|| false)
    }

    /// As [`join`](Self::join), of rank 0 with a state that it brings for all: a new job then begins with its weights
    /// and optimizer state, and without a broadcast. A job that has weights already, or a checkpoint at its hub, goes on
    /// with those; [`next_round`](Self::next_round) tells.
    pub fn join_with(config: SessionConfig, state: State) -> Result<Self, SessionError> {
        Self::join_unless(config, Some(state), &|| false)
    }

    /// As [`join`](Self::join), for a caller that may give it up while others are waited for.
    pub(crate) fn join_unless(
        config: SessionConfig,
        state: Option<State>,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Self, SessionError> {
        let deadline = Instant::now() + config.join_limit;
        check_job_name(&config.job)?;
        config.optimizer.check()?;
        config.consistency.check(&config.optimizer)?;
        config.check_pull()?;
        pbox_core::manifest::check(&config.keys)?;
        let layout = Arc::new(Layout::new(config.keys.clone(), config.chunk_bytes)?);
        if let Some(compression) = &config.compression {
            compression.check()?;
            compression.check_beside(
                &config.optimizer,
                config.consistency,
                config.schedule,
                config.on_loss,
            )?;
            compression.check_layout(&layout)?;
        }
        let let_in = LetIn::join_all(&config, state.as_ref().map(|state| state.before))?;
        let DataPath { port, endpoints, placement, windows, ways, cores } =
            data_path::open(&config, &let_in, &layout, deadline)?;
        let kept =
            let_in.into_iter().zip(cores).map(|(hub, cores)| hub.keep(cores, &config.job, port.waker()));
        let hubs = kept.collect::<Result<Vec<Hub>, _>>()?;
        let slice_bytes = config.slice_bytes.unwrap_or(config.chunk_bytes);
        let slices = Slices::new(&layout, &placement, config.schedule, slice_bytes);
        let mut session = Session {
            ready: !config.optimizer.keeps_weights(),
            exchange: Exchange::new(port, endpoints, placement, layout, windows, slices),
            credit: config.credit().at_first(),
            tuner: (config.credit() == Credit::Auto).then(Default::default),
            pulling: None,
            first: Round(0),
            config,
            hubs,
            ways,
        };
        if let Some(pull) = &session.config.pull {
            session.pulling = Some(Pulling::begin(pull, &mut session.exchange)?);
        }
        session.exchange.set_credit(session.credit);
        if let Some(state) = state
            && let Some(bytes) = session.hubs[0].state_bytes
        {
            session.hubs[0].bring(state, bytes)?; // a job over several hubs was refused
        }
        let first = session.gather(deadline, given_up)?;
        session.exchange.begin(first)?;
        session.first = first;
        session.ready |= first > Round(0);
        if session.pulling.is_none() {
            session.wait_all()?;
        }
        Ok(session)
    }

    /// Waits until this worker takes part; from which round on.
    fn gather(&mut self, deadline: Instant, given_up: &dyn Fn() -> bool) -> Result<Round, SessionError> {
        let rank = self.config.rank;
        let missing = loop {
            let mut missing = None;
            let mut from = Round(0);
            for news in self.hubs.iter().map(Hub::news) {
                match (news.members.iter().find(|member| member.rank == rank), news.state) {
                    (Some(me), _) => from = from.max(me.from),
                    (None, JobState::Gathering { missing: those }) => missing = Some(those),
                    (None, _) => missing = Some(vec![rank]),
                }
            }
            let Some(missing) = missing else { return Ok(from) };
            if let Some(error) = self.ended() {
                return Err(error);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || given_up() {
                break missing;
            }
            // A hub that is killed shows by its links; news wake the port as well.
            self.take_in()?;
            self.exchange.port().wait(Until::Any, left.min(LOOK));
        };
        let _ = self.send_leave();
        Err(SessionError::Missing {
            job: self.config.job.clone(),
            waited: self.config.join_limit,
            missing,
            workers: self.config.workers,
        })
    }

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
        }
        self.ready = true; // no key can be pushed before its weights are there: it is under way
        Ok(())
    }

    /// A key's gradient, to write in place. It still holds what was last written. `E` is the key's type.
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

    /// A key's weights, to write. With Slim-DP a worker makes its own step, and pushes what that changed: of what is
    /// sent it then gets the hub's weights, the rest stays as it was made.
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

    /// Where weights are pulled in batches: what is planned, once there is a plan, and what came of it.
    pub fn pull_plan(&self) -> Option<&PullPlan> {
        self.pulling.as_ref().and_then(Pulling::plan)
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

    /// Bytes that each link to the hub may hold, and with [`Credit::Auto`] what was tried so far.
    pub fn credit(&self) -> (Option<usize>, &[Trial]) {
        (self.credit, self.tuner.as_ref().map_or(&[], |(tuner, _)| tuner.tried()))
    }

    /// Why there is no push before the broadcast.
    pub(crate) fn no_weights(hub: &str) -> SessionError {
        SessionError::Refused {
            hub: hub.to_owned(),
            what: "push",
            why: "no weights yet: every worker calls broadcast_weights once before its first push".into(),
        }
    }

    fn send(&mut self, key: KeyId) -> Result<(), SessionError> {
        self.pulling.iter_mut().for_each(|pulling| pulling.before_push(&mut self.exchange));
        self.exchange.push(key).map_err(|error| self.explain(error))
    }

    /// Waits until the key's answer is there.
    pub fn wait(&mut self, key: KeyId) -> Result<(), SessionError> {
        self.check_exists(key)?;
        self.pulling.iter_mut().for_each(|pulling| pulling.asked(key));
        self.wait_for(|exchange| (!exchange.is_ready(key)).then(|| (key, exchange.until_key(key))))?;
        self.pulling.iter_mut().for_each(|pulling| pulling.used(key));
        Ok(())
    }

    /// Takes in what has come; how many chunks.
    fn take_in(&mut self) -> Result<usize, SessionError> {
        let taken = self.exchange.progress().and_then(|count| {
            self.pulling.iter_mut().try_for_each(|pulling| pulling.look(&mut self.exchange))?;
            Ok(count)
        });
        taken.map_err(|error| self.explain(error))
    }

    /// Whether the key's answer is there; takes in what has come, and waits for nothing.
    pub fn is_ready(&mut self, key: KeyId) -> Result<bool, SessionError> {
        self.check_exists(key)?;
        self.pulling.iter_mut().for_each(|pulling| pulling.asked(key));
        self.take_in()?;
        let is_ready = self.exchange.is_ready(key);
        self.pulling.iter_mut().filter(|_| is_ready).for_each(|pulling| pulling.used(key));
        Ok(is_ready)
    }

    /// Lets the exchange go on until `until`, for a caller that has nothing to do itself meanwhile, as beside a
    /// GPU that computes: sends what had to wait, takes in what comes, and sleeps in between. Returns some 50 us
    /// late, by the kernel's timer slack, and more on a core that is taken; never much earlier.
    ///
    /// # Errors
    /// When the job or the hub is lost. That a key's answer does not come is an error of [`wait`](Self::wait) alone.
    pub fn progress(&mut self, until: Instant) -> Result<(), SessionError> {
        loop {
            self.take_in()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let left = self.sleep_limit().map_or(left, |limit| limit.min(left));
            // Nobody needs the answers before `until`: one wake-up for the most of them.
            let sleep_for = self.exchange.until_all();
            self.exchange.port().wait(sleep_for, left);
            if let Some(error) = self.ended() {
                return Err(error);
            }
        }
    }

    /// Waits until every key's answer is there.
    pub fn wait_all(&mut self) -> Result<(), SessionError> {
        self.wait_for(|exchange| exchange.first_under_way().map(|key| (key, exchange.until_all())))
    }

    fn check_exists(&self, key: KeyId) -> Result<(), SessionError> {
        match self.exchange.layout().keys().len() {
            keys if key.index() >= keys => Err(ExchangeError::NoSuchKey { key: key.0, keys }.into()),
            _ => Ok(()),
        }
    }

    /// Waits until `open` names no key any more; it names one that is under way, and what to sleep
    /// for.
    fn wait_for(
        &mut self,
        open: impl Fn(&Exchange<any::Port>) -> Option<(KeyId, Until)>,
    ) -> Result<(), SessionError> {
        let mut idle = Idle::new(self.config.idle);
        let mut waiting_since = None;
        let mut polls = 0u32;
        loop {
            polls = polls.wrapping_add(1);
            if self.take_in()? > 0 {
                idle.reset();
            }
            let Some((key, until)) = open(&self.exchange) else { return Ok(()) };
            self.exchange.check_can_come(key)?;
            if self.idle(&mut idle, until) || polls.is_multiple_of(POLLS_PER_LOOK) {
                let since = *waiting_since.get_or_insert_with(Instant::now);
                self.still_possible(key, since)?;
            }
        }
    }

    /// Idles once; whether it slept.
    fn idle(&mut self, idle: &mut Idle, until: Until) -> bool {
        match self.sleep_limit() {
            Some(limit) => {
                self.exchange.port().wait(until, limit);
                true
            }
            None => idle.step(self.exchange.port(), until),
        }
    }

    /// Until a pull is to begin.
    fn sleep_limit(&self) -> Option<Duration> {
        self.pulling.as_ref().and_then(Pulling::sleep_limit)
    }

    /// Whether a key that is under way can still complete; asked after each sleep, and now and then
    /// by those who never sleep.
    fn still_possible(&self, key: KeyId, since: Instant) -> Result<(), SessionError> {
        if let Some(error) = self.ended() {
            return Err(error);
        }
        let round = self.exchange.round(key);
        let name = || self.exchange.layout().keys()[key.index()].name.clone();
        let waits_for = |left: &&Left| !self.config.consistency.allows(round.next(), left.round);
        if let Some(left) = self.hubs.iter().find_map(|hub| hub.news().left.iter().find(waits_for).copied()) {
            return Err(SessionError::PeerLeft {
                job: self.config.job.clone(),
                rank: left.rank,
                left_at: left.round.0,
                round: round.0,
                key: name(),
            });
        }
        if since.elapsed() > self.config.wait_limit {
            return Err(SessionError::Stalled {
                job: self.config.job.clone(),
                waited: self.config.wait_limit,
                round: round.0,
                key: name(),
                missing: self.exchange.outstanding(key),
                chunks: self.exchange.layout().key_chunks(key).len() as u32,
            });
        }
        Ok(())
    }

    /// A key's weights (with [`Average`](pbox_core::Optimizer::Average): the mean gradient), as of
    /// its last finished round; with SSP and ASP as they were when this worker was answered. `E` is the key's type.
    ///
    /// # Errors
    /// As for [`gradient_mut`](Self::gradient_mut).
    pub fn weights<E: Element>(&self, key: KeyId) -> Result<&[E], SessionError> {
        Ok(self.exchange.weights(key)?)
    }

    /// Changes the learning rate from the next round on, for all workers. Called between rounds;
    /// every worker may call it with the same value. With SSP and ASP a push is stepped at the rate of its
    /// own round: workers that are ahead have used the former one.
    pub fn set_learning_rate(&mut self, learning_rate: f32) -> Result<(), SessionError> {
        if !learning_rate.is_finite() {
            return Err(SessionError::LearningRate { seen: learning_rate });
        }
        if let Some(key) = self.exchange.first_under_way() {
            return Err(ExchangeError::UnderWay {
                key: self.exchange.layout().keys()[key.index()].name.clone(),
                round: self.exchange.round(key).0,
                doing: "changing the learning rate",
            }
            .into());
        }
        let from_round = self.next_round();
        self.hubs.iter().try_for_each(|hub| {
            let request = LearningRateRequest { token: hub.token.clone(), learning_rate, from_round };
            hub.ask::<_, serde_json::Value>("learning-rate", "change the learning rate", &request).map(|_| ())
        })
    }

    /// Writes the job's weights and optimizer state to its checkpoint at the hub now: as they are before
    /// the round that is furthest ahead. Returns when they are on the disk.
    ///
    /// # Errors
    /// When the hub writes no checkpoints, or cannot.
    pub fn checkpoint(&mut self) -> Result<CheckpointReply, SessionError> {
        // Of several hubs, the first refuses: they have none.
        self.hubs[0].ask("checkpoint", "write a checkpoint", &serde_json::json!({}))
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

    /// The ranks that take part now, ascending. All, unless the job goes on without some.
    pub fn members(&self) -> Vec<u32> {
        self.hubs[0].news().members.iter().map(|member| member.rank).collect()
    }

    /// The first round that no key has begun. Round 0 is the broadcast, where there is one. After the
    /// join it is the round that this worker takes part from: not 0 when the job had begun.
    pub fn next_round(&self) -> Round {
        self.keys().map(|key| self.exchange.round(key)).fold(self.first, Round::max)
    }

    /// Waits for whatever is under way, and leaves the job.
    pub fn leave(mut self) -> Result<(), SessionError> {
        self.wait_all()?;
        self.send_leave()
    }

    /// Leaves, as things are.
    pub(crate) fn send_leave(&self) -> Result<(), SessionError> {
        let round = self.next_round();
        // Every hub is told, whatever one of them answers.
        self.hubs.iter().map(|hub| hub.leave(round)).fold(Ok(()), Result::and)
    }

    /// One turn of a session that is not waited for by its own thread: takes in what has come; where that is
    /// nothing, idles once, until an awaited key may be there or the [`waker`](Self::waker) wakes. Whether something
    /// came.
    pub(crate) fn turn(
        &mut self,
        idle: &mut Idle,
        awaited: &[(KeyId, Instant)],
    ) -> Result<bool, SessionError> {
        if self.take_in()? > 0 {
            idle.reset();
            return Ok(true);
        }
        let until = match awaited {
            [] => self.exchange.until_all(),
            &[(key, _)] => self.exchange.until_key(key),
            _ => Until::Any,
        };
        match awaited.is_empty() {
            // Whoever computes needs the core more than an answer that nobody waits for.
            true => {
                let nap = self.config.idle.nap.max(LOOK);
                let limit = self.sleep_limit().map_or(nap, |limit| limit.min(nap));
                self.exchange.port().wait(until, limit);
            }
            false if !self.idle(idle, until) => return Ok(false),
            false => {}
        }
        if let Some(error) = self.ended() {
            return Err(error);
        }
        let open = |&&(key, _): &&(KeyId, Instant)| !self.has_answer(key);
        awaited.iter().filter(open).try_for_each(|&(key, since)| self.still_possible(key, since))?;
        Ok(false)
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

    /// The error that ends this session, if the news of some hub hold one.
    fn ended(&self) -> Option<SessionError> {
        self.hubs.iter().find_map(Hub::ended)
    }

    /// A closed link is a symptom; its hub, if it lives, says the cause over the control port.
    fn explain(&self, error: ExchangeError) -> SessionError {
        let ExchangeError::Closed { here, core, .. } = error else { return error.into() };
        let hub = self.hubs.iter().find(|hub| hub.cores.contains(&core)).unwrap_or(&self.hubs[0]);
        match hub.ended_until(Instant::now() + REASON_LIMIT) {
            // What failed at this end, the hub cannot know: it saw this worker go.
            Some(SessionError::JobFailed { job, reason }) if here => {
                let reason = format!("{reason}; at this worker, rank {}: {error}", self.config.rank);
                SessionError::JobFailed { job, reason }
            }
            Some(ended) => ended,
            None => hub.lost(error.to_string()),
        }
    }
}
