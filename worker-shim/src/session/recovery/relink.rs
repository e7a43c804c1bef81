//! New links after links were lost while the hub is alive, such as by a failed NIC. The memory stays the same,
//! and the session uses any transport that reaches the hub.
//!
//! Runs on the caller's thread, inside a push or a wait, which then continues. [`Member`](membership::Member)
//! decides on the steps. For the loss of a hub see `hold`.
//!
//! ```text
//!   a link closed --> the hub drops all links of this worker, and its pushes that are not stepped
//!     --> new links to the same memory --> pushes without an answer are repeated; for a stepped push the hub repeats the answer
//! ```

#![allow(clippy::result_large_err)] // large errors are rare: one for each loss

use std::time::Instant;

use fabric::{Receive, any};
use membership::{Event, Failure, Hub, LetIn, Over, Step, Way};

use crate::exchange::ExchangeError;
use crate::session::config::SessionConfig;
use crate::session::error::SessionError;
use crate::session::join::{Attached, attach, drafts};
use crate::session::session::Session;

/// Whether a worker with these settings asks the hub, when it joins, to wait for new links after a loss of links.
pub(in crate::session) fn asks(config: &SessionConfig) -> bool {
    !config.hub_wait.is_zero()
}

impl Session {
    /// Returns the number of times that this session has lost its links while its hub was alive, and has made
    /// new links.
    pub fn relinks(&self) -> u32 {
        self.member.relinks()
    }

    /// Tries to recover from an error of the exchange. Succeeds if the error is a loss of links or of the hub, and the
    /// session can replace the links, or the hub returns.
    ///
    /// # Errors
    /// Returns the error if there is no recovery, with the hub's reason if the hub gives one.
    #[cold]
    pub(in crate::session) fn survive_loss(&mut self, error: ExchangeError) -> Result<(), SessionError> {
        if !matches!(error, ExchangeError::Closed { .. }) {
            return Err(error.into());
        }
        let may_relink = self.ways.iter().any(Way::may_break) && membership::wait_for_links(&self.hubs);
        let Some(step) = self.member.handle(Event::LinkEnded { may_relink }, Instant::now()) else {
            return Err(self.explain(error));
        };
        self.stopwatch.wait_begins();
        let made = self.mend_links(step, error);
        self.stopwatch.wait_ends();
        made
    }

    /// Carries out the steps that replace links. If no new links can be made, tries to recover as after the loss of the
    /// hub.
    fn mend_links(&mut self, mut step: Step, mut lost: ExchangeError) -> Result<(), SessionError> {
        let (mut let_in, mut why) = (Vec::new(), None);
        loop {
            let event = match step {
                Step::Ask(hub) => {
                    if hub == 0 {
                        let_in.clear();
                    }
                    match self.hubs[hub].relink(lost.to_string()) {
                        Ok(hub) => {
                            let_in.push(hub);
                            Event::Granted
                        }
                        // The hub is lost, or refuses with a reason.
                        Err(why) => {
                            tracing::warn!("{lost}; the hub did not allow this worker to reconnect: {why}");
                            Event::Failed(Failure::Permanent)
                        }
                    }
                }
                Step::DropLinks => match any::group(1, None) {
                    // The old links must end here first. Otherwise, after a stall of the hub, posts over old
                    // links could arrive after posts over new links.
                    Ok((_group, mut ports)) => {
                        self.exchange.cut(ports.remove(0));
                        Event::Dropped { came: self.traffic().received, is_awaited: !self.is_quiet() }
                    }
                    Err(error) => transient_failure(&lost, error, &mut why),
                },
                Step::MakeLinks => match self.make_links(std::mem::take(&mut let_in), &lost) {
                    Ok(()) => match self.exchange.push_again() {
                        Ok(()) => Event::LinksMade,
                        Err(again) => {
                            lost = again;
                            transient_failure(&lost, "the new links are lost, too", &mut why)
                        }
                    },
                    Err(error) => transient_failure(&lost, error, &mut why),
                },
                Step::Wait(until) => self.pause(until),
                Step::Explain(over) => {
                    if let Some(over) = over {
                        // The other workers wait for this worker, which gives up. So the other workers are notified of the
                        // reason.
                        let over = (over != Over::CallerGaveUp).then(|| over.to_string());
                        let why = why.into_iter().chain(over).collect::<Vec<_>>().join("; ");
                        self.send_failed(&format!("this worker could not reconnect: {why} ({lost})"));
                    }
                    return self.survive(self.explain(lost));
                }
                Step::GoOn => return Ok(()),
                step => unreachable!("{step:?} makes no links"),
            };
            step = self.member.handle(event, Instant::now()).expect("the end of a step");
        }
    }

    /// Waits until this time, or until the caller gives up.
    pub(in crate::session) fn pause(&self, until: Instant) -> Event {
        if (self.given_up)() {
            return Event::CallerGaveUp;
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        Event::TimePassed
    }

    fn make_links(&mut self, let_in: Vec<LetIn>, lost: &ExchangeError) -> Result<(), SessionError> {
        let deadline = membership::deadline(&let_in, self.config.join_limit);
        let windows = self.exchange.windows();
        let wire = windows.wire().clone();
        let of_hub = |hub: usize| windows.received()[self.hubs[hub].cores.start].clone();
        let receive = |hub| Receive::Into(of_hub(hub));
        let Attached { port, endpoints, received, hubs, ways, .. } =
            attach(let_in, &self.config, &wire, windows.sent(), receive, deadline)?;
        self.let_ahead(drafts(&endpoints));
        self.exchange.relink(port, endpoints, received);
        self.exchange.set_credit(self.credit);
        (self.hubs, self.ways) = (hubs, ways);
        let hubs = self.hubs.iter().map(Hub::address);
        membership::say_made(&self.config.job, hubs, &self.ways, &lost.to_string());
        Ok(())
    }
}

/// Logs that links could not be made, and stores the reason. Returns the event.
fn transient_failure(lost: &ExchangeError, error: impl ToString, why: &mut Option<String>) -> Event {
    let error = error.to_string();
    tracing::warn!("{lost}; could not reconnect yet, trying again: {error}");
    *why = Some(error);
    Event::Failed(Failure::Transient)
}
