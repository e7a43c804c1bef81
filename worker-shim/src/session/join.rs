//! The join: from the settings to a worker that takes part.
//!
//! Runs on the caller's thread.

use std::sync::Arc;
use std::time::Instant;

use fabric::tcp::{Frames, Options};
use fabric::{Port, Receive, RecvWindow, SendWindow, Until, WindowError, any};
use membership::{
    Credential, DataPath, Event, Hub, Join, LetIn, Limits, Member, MemberError, Named, Ports, Way,
};
use pbox_core::control::{JoinRequest, check_job_name};
use pbox_core::{Credit, Round, Slices, Wire};

use super::compare::Digests;
use super::config::SessionConfig;
use super::error::SessionError;
use super::measured::{Stopwatch, Timeline, Who, codec_rate};
use super::recovery::{Returns, TELL_LIMIT, relink};
use super::session::{GivenUp, LOOK, Session};
use super::state::State;
use crate::exchange::{Exchange, Traffic, Windows};
use crate::pull::Pulling;

impl Session {
    /// Joins a job and waits until all its workers have joined. The first worker creates the job; the other workers
    /// must agree on everything except their rank.
    pub fn join(config: SessionConfig) -> Result<Self, SessionError> {
        Self::join_unless(config, None, Box::new(|| false))
    }

    /// Joins like [`join`](Self::join), as rank 0 with a state for all workers. A new job then begins with these
    /// weights and this optimizer state, and has no broadcast. If the job already has weights, or a checkpoint at its
    /// hub, the state is ignored; [`next_round`](Self::next_round) shows with which round the job continues.
    pub fn join_with(config: SessionConfig, state: State) -> Result<Self, SessionError> {
        Self::join_unless(config, Some(state), Box::new(|| false))
    }

    /// Joins like [`join`](Self::join), and gives up when `given_up` returns true while the session waits for
    /// other workers or for its hub.
    pub(crate) fn join_unless(
        mut config: SessionConfig,
        state: Option<State>,
        given_up: GivenUp,
    ) -> Result<Self, SessionError> {
        check_job_name(&config.job)?;
        SessionConfig::check_environment()?;
        config.check_limits()?;
        config.terms.hubs = membership::hub_addresses(&config.hub)?.len() as u32;
        config.terms.check()?;
        config.check_pull()?;
        let digests = Digests::of(&config.terms);
        let mut wire = Wire::of_terms(&config.terms)?;
        config.check_dma_buf(&wire)?;
        let timeline =
            config.trace.as_ref().map(|path| Timeline::new(path, &config.job, config.rank, wire.layout()));
        let timeline = timeline.transpose()?;
        let (asked, until) = (config.terms.clone(), Instant::now() + config.hub_wait);
        let (deadline, is_below_others, wanted, gradients, attached) = loop {
            let let_in = let_in(&config, None, until, &given_up)?;
            let deadline = membership::deadline(&let_in, config.join_limit);
            let is_below_others = let_in[0].above().is_some();
            if is_below_others {
                config.terms = config.terms.beside();
                wire = let_in[0].wire(Wire::of_terms(&config.terms)?)?;
            }
            // A job may begin as soon as its links are made, and then it takes no state. So the state is offered
            // before.
            let wanted = match &state {
                Some(state) => state.offer(&let_in)?,
                None => false,
            };
            let (window, gradients) = Windows::gradients_in(&wire, config.dma_buf.as_ref())?;
            let receive = receive(&let_in, &config, &wire)?;
            match attach(let_in, &config, &wire, &window, receive, deadline) {
                // The hub was lost after it had admitted this worker.
                Err(SessionError::Member(lost)) if lost.is_loss_of_hub() && Instant::now() < until => {
                    tracing::warn!("{lost}; waiting for the hub to come back");
                    config.terms = asked.clone();
                    wire = Wire::of_terms(&config.terms)?;
                }
                attached => break (deadline, is_below_others, wanted, gradients, attached?),
            }
        };
        let Attached { port, endpoints, received, slices, hubs, ways, links } = attached;
        let windows = Windows::new(&wire, config.rank, gradients, received, config.weights)?;
        let credit = config.terms.level.with_links(links).credit();
        let ahead = drafts(&endpoints);
        let limits = Limits { hubs: hubs.len(), links: config.hub_wait, hub: config.hub_wait };
        let mut session = Session {
            ready: !config.terms.optimizer.keeps_weights(),
            exchange: Exchange::new(port, endpoints, Arc::clone(wire.layout()), windows, slices),
            credit: credit.at_first(),
            tuner: (credit == Credit::Auto).then(Default::default),
            pulling: None,
            first: Round(0),
            member: Member::new(limits),
            skips: Vec::new(),
            returns: Returns::default(),
            lost: 0,
            asked: asked.level,
            is_below_others,
            numbers: None,
            digests,
            given_up,
            stopwatch: Stopwatch::begin(Round(0), Traffic::default()),
            config,
            hubs,
            ways,
        };
        if let Some(timeline) = timeline {
            timeline.compare(&session.hubs);
            session.stopwatch.show(timeline, Who::Session);
        }
        if let Some(pull) = &session.config.pull {
            session.pulling = Some(Pulling::begin(pull, &mut session.exchange)?);
        }
        session.exchange.set_credit(session.credit);
        codec_rate::say(&session.config, &session.ways);
        session.let_ahead(ahead);
        if let Some(state) = state.filter(|_| wanted) {
            let terms = &session.config.terms;
            let placed = (terms.level.schedule, terms.splits_above());
            let tensors = terms.tensors().saved_per_element();
            membership::bring(&session.hubs, state.values, session.exchange.layout(), placed, tensors)?;
        }
        session.begin_at_first(deadline, !wanted)?; // a state was read, and cannot be brought again
        session.member.handle(Event::TakesPart, Instant::now());
        session.lost = membership::lost_rounds(&session.hubs);
        if session.pulling.is_none() {
            session.wait_all()?;
        }
        session.member.handle(Event::CaughtUp, Instant::now());
        session.stopwatch.restart(session.next_round(), session.traffic());
        Ok(session)
    }

    /// Allows gradients to be sent ahead over the links to the cores for which `over` is true. If a hub answers
    /// gradients ahead, but this worker has not asked for such answers, nothing is sent ahead.
    pub(super) fn let_ahead(&mut self, over: Vec<bool>) {
        let are_answered = self.hubs.iter().any(|hub| hub.answers_ahead);
        let may = self.config.terms.answers_ahead || !are_answered;
        self.exchange.let_ahead(if may { over } else { Vec::new() }, are_answered);
    }

    /// Waits until this worker takes part, and begins with its first round.
    pub(super) fn begin(&mut self, deadline: Instant) -> Result<(), SessionError> {
        self.first = self.gather(deadline)?;
        self.exchange.begin(self.first)?;
        self.ready |= self.first > Round(0);
        Ok(())
    }

    /// Waits until this worker takes part. Returns its first round. If the worker gives up, it first notifies the hubs
    /// whose job is alive, so that its rank is free when it joins again.
    fn gather(&mut self, deadline: Instant) -> Result<Round, SessionError> {
        let gathered = self.gather_until(deadline);
        if let Err(error) = &gathered {
            for hub in self.hubs.iter().filter(|hub| hub.end().is_none()) {
                let _ = match error {
                    // A normal leave would be wrong after the loss of another hub. If this hub's job has begun, this
                    // hub would wait for the other workers, which cannot take part without the lost hub either.
                    SessionError::Member(lost) if lost.is_loss_of_hub() => {
                        hub.fail_without_hub(&lost.to_string(), TELL_LIMIT)
                    }
                    _ => hub.leave(&self.left_at()),
                };
            }
        }
        gathered
    }

    fn gather_until(&mut self, deadline: Instant) -> Result<Round, SessionError> {
        let rank = self.config.rank;
        loop {
            let missing = match membership::takes_part(&self.hubs, rank) {
                Ok(round) => return Ok(round),
                Err(missing) => missing,
            };
            self.check_alive()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || (self.given_up)() {
                return Err(SessionError::Missing {
                    job: self.config.job.clone(),
                    waited: self.config.join_limit,
                    missing,
                    workers: self.config.terms.workers,
                });
            }
            // If a hub was killed, its links end, and this call returns the error. News from a hub also wakes the port,
            // so the sleep below ends early.
            self.take_in(None)?;
            self.exchange.port().wait(Until::Any, left.min(LOOK));
        }
    }
}

/// Waits until all hubs of the job answer, and joins the job at each hub. `reached` is the round that this worker has
/// reached, if it has joined before.
pub(super) fn let_in(
    config: &SessionConfig,
    reached: Option<Round>,
    until: Instant,
    given_up: &dyn Fn() -> bool,
) -> Result<Vec<LetIn>, SessionError> {
    let addresses = membership::hub_addresses(&config.hub)?;
    let request = JoinRequest {
        mesh: config.mesh.clone(),
        reached,
        relinks: relink::asks(config),
        trial: config.trial,
        ..JoinRequest::new(config.rank, config.terms.clone())
    };
    let credential = match &config.token {
        Some(given) => Some(given.clone()),
        None => Credential::find_if_any().map_err(MemberError::from)?,
    };
    let join = Join {
        addresses: &addresses,
        job: &config.job,
        limit: config.join_limit,
        request: &request,
        credential: credential.as_ref(),
        named: &Named::Here,
    };
    Ok(join.when_up(until, given_up)?)
}

/// The hubs, and the links to them with the links' windows.
pub(super) struct Attached {
    pub port: any::Port,
    pub endpoints: Vec<any::Endpoint>,
    pub received: Vec<Arc<RecvWindow>>,
    pub slices: Slices,
    pub hubs: Vec<Hub>,
    pub ways: Vec<Way>,
    /// The most links that lead to one hub.
    pub links: usize,
}

/// Whether the link to each core can carry gradients before they are pushed.
pub(super) fn drafts(endpoints: &[any::Endpoint]) -> Vec<bool> {
    endpoints.iter().map(any::Endpoint::carries_drafts).collect()
}

/// Returns a function that gives the window for the posts of each hub. Several hubs post into one common window, so
/// that weights need not be copied. This is impossible if a hub on this machine shares its own pages.
fn receive(
    hubs: &[LetIn],
    config: &SessionConfig,
    wire: &Wire,
) -> Result<impl Fn(usize) -> Receive + use<>, WindowError> {
    let bytes = wire.weights_window_bytes();
    let is_one = hubs.len() > 1 && !membership::may_share_memory(hubs, config.transport);
    let one = is_one.then(|| RecvWindow::local(bytes)).transpose()?.map(Arc::new);
    Ok(move |_| one.clone().map_or(Receive::New(bytes), Receive::Into))
}

/// Makes the links to hubs that have admitted this worker. `receive` returns the window for the posts of a
/// hub, by number.
pub(super) fn attach(
    let_in: Vec<LetIn>,
    config: &SessionConfig,
    wire: &Wire,
    window: &Arc<SendWindow>,
    receive: impl Fn(usize) -> Receive,
    deadline: Instant,
) -> Result<Attached, SessionError> {
    let level = &config.terms.level;
    let tcp =
        Options { frames: Frames::summed_if(config.checksum), congestion: config.tcp_congestion.clone() };
    let (ports, port) = Ports::one(&let_in, config.transport, &config.nics, config.rank, tcp)?;
    let DataPath { endpoints, received, placement, ways, cores, .. } =
        membership::open(&let_in, level.schedule, wire, window, receive, &ports, deadline)
            .map_err(|error| say_why_by_rdma(error, config))?;
    let links = cores.iter().map(ExactSizeIterator::len).max().unwrap_or(1);
    let kept = let_in.into_iter().zip(cores).map(|(hub, cores)| hub.keep(cores, port.waker()));
    let hubs = kept.collect();
    let slice_bytes = level.slice_bytes.unwrap_or(config.terms.chunk_bytes);
    let slices = Slices::new(wire.layout(), &placement, level.schedule, slice_bytes);
    Ok(Attached { port, endpoints, received, slices, hubs, ways, links })
}

/// Adds a hint to the error that no transport works: with `dma_buf`, RDMA is needed even if the caller has not asked
/// for it.
fn say_why_by_rdma(mut error: MemberError, config: &SessionConfig) -> MemberError {
    if let (MemberError::NoTransport { tried, .. }, Some(dma_buf)) = (&mut error, &config.dma_buf) {
        tried.push(format!(
            "gradients in {dma_buf} are sent by RDMA alone: without RDMA, leave `dma_buf` out"
        ));
    }
    error
}
