//! Joining: from the settings to a worker that takes part.
//!
//! On the caller's thread.

use std::sync::Arc;
use std::time::Instant;

use fabric::{Port, Receive, Until};
use membership::{Credential, DataPath, Hub, MemberError, Ports};
use pbox_core::control::{JoinRequest, PROTOCOL, Versions, check_job_name};
use pbox_core::{Credit, Round, Slices, Wire};

use super::config::SessionConfig;
use super::error::SessionError;
use super::session::{LOOK, Session};
use super::state::State;
use crate::exchange::{Exchange, Windows};
use crate::pull::Pulling;

impl Session {
    /// Joins a job and waits until all its workers are there. The first worker creates the job; the others must agree on
    /// everything except their rank.
    pub fn join(config: SessionConfig) -> Result<Self, SessionError> {
        Self::join_unless(config, None, &|| false)
    }

    /// As [`join`](Self::join), of rank 0 with a state for all workers: a new job then begins with these weights and this
    /// optimizer state, and without a broadcast. A job that has weights already, or a checkpoint at its hub, ignores the
    /// state; [`next_round`](Self::next_round) tells.
    pub fn join_with(config: SessionConfig, state: State) -> Result<Self, SessionError> {
        Self::join_unless(config, Some(state), &|| false)
    }

    /// As [`join`](Self::join), for a caller that may give up while the session waits for other workers.
    pub(crate) fn join_unless(
        mut config: SessionConfig,
        state: Option<State>,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Self, SessionError> {
        let deadline = Instant::now() + config.join_limit;
        check_job_name(&config.job)?;
        let addresses = membership::hub_addresses(&config.hub)?;
        config.terms.hubs = addresses.len() as u32;
        config.terms.check()?;
        config.check_pull()?;
        let mut wire = Wire::of_terms(&config.terms)?;
        let request = JoinRequest {
            protocol: PROTOCOL,
            protocol_lowest: Versions::OURS.lowest_of_several(),
            rank: config.rank,
            hub: 0,
            through: Vec::new(),
            mesh: config.mesh.clone(),
            peers: None,
            terms: config.terms.clone(),
        };
        let credential = match &config.token {
            Some(given) => Some(given.clone()),
            None => Credential::find_if_any().map_err(MemberError::from)?,
        };
        let (job, limit, shown) = (&config.job, config.join_limit, credential.as_ref());
        let mut let_in = membership::join_all(&addresses, job, limit, &request, shown)?;
        if let_in[0].above().is_some() {
            config.terms = config.terms.beside();
            wire = Wire::of_terms(&config.terms)?;
        }
        // Before the links are made: without them the job cannot begin meanwhile.
        let wanted = match &state {
            Some(state) => state.offer(&mut let_in)?,
            None => false,
        };
        let (window, gradients) = Windows::gradients(&wire)?;
        let (ports, port) = Ports::one(&let_in, config.transport, config.nics.as_ref())?;
        let schedule = config.terms.level.schedule;
        let receive = |_| Receive::New(wire.weights_window_bytes());
        let DataPath { endpoints, received, placement, ways, cores, .. } =
            membership::open(&let_in, schedule, &wire, &window, receive, &ports, deadline)?;
        let windows = Windows::new(&wire, config.rank, gradients, received, config.weights)?;
        let kept = let_in.into_iter().zip(cores).map(|(hub, cores)| hub.keep(cores, port.waker()));
        let hubs: Vec<Hub> = kept.collect();
        let credit = config.terms.level.credit();
        let layout = Arc::clone(wire.layout());
        let slice_bytes = config.terms.level.slice_bytes.unwrap_or(config.terms.chunk_bytes);
        let slices = Slices::new(&layout, &placement, schedule, slice_bytes);
        let mut session = Session {
            ready: !config.terms.optimizer.keeps_weights(),
            exchange: Exchange::new(port, endpoints, layout, windows, slices),
            credit: credit.at_first(),
            tuner: (credit == Credit::Auto).then(Default::default),
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
        if let Some(state) = state.filter(|_| wanted) {
            let terms = &session.config.terms;
            let (placed, tensors) = ((schedule, terms.split_above), terms.optimizer.saved_per_element());
            membership::bring(&session.hubs, state.values, session.exchange.layout(), placed, tensors)?;
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

    /// Waits until this worker takes part. Returns its first round.
    fn gather(&mut self, deadline: Instant, given_up: &dyn Fn() -> bool) -> Result<Round, SessionError> {
        let rank = self.config.rank;
        let missing = loop {
            let missing = match membership::takes_part(&self.hubs, rank) {
                Ok(round) => return Ok(round),
                Err(missing) => missing,
            };
            self.check_alive()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || given_up() {
                break missing;
            }
            // The links show that a hub was killed. News also wake the port.
            self.take_in(None)?;
            self.exchange.port().wait(Until::Any, left.min(LOOK));
        };
        let _ = self.send_leave();
        Err(SessionError::Missing {
            job: self.config.job.clone(),
            waited: self.config.join_limit,
            missing,
            workers: self.config.terms.workers,
        })
    }
}
