//! Making links again that were lost while the hub lives, as with a NIC: in the same memory, over whatever leads to the hub now.
//!
//! On the caller's thread, inside a push or a wait, which goes on afterwards. A hub that is lost is another matter (`hold`).
//!
//! ```text
//!   a link closed --> the hub lets go of all links of this worker, and of its pushes that are not stepped
//!     --> new links to the same memory --> what has no answer is pushed again; a push that is stepped is answered again
//! ```

#![allow(clippy::result_large_err)] // once a loss

use std::time::Instant;

use fabric::any::Transport;
use fabric::{Receive, any};
use membership::{Again, Hub, PAUSE};
use pbox_core::Wire;

use super::config::SessionConfig;
use super::error::SessionError;
use super::hold::Hold;
use super::join::{Attached, attach, drafts};
use super::session::Session;
use crate::exchange::ExchangeError;

/// Whether a worker of these settings asks the hub to wait for it when it loses its links.
pub(super) fn asks(config: &SessionConfig) -> bool {
    !config.hub_wait.is_zero()
}

impl Session {
    /// How often this session has made its links again, after it had lost them while its hub lived.
    pub fn relinks(&self) -> u32 {
        self.relinks.times()
    }

    /// Goes on after an error of the exchange, if it is the loss of links or of the hub.
    ///
    /// # Errors
    /// The same error, in the hub's words if it has some, if it is another, and if it does not pass.
    #[cold]
    pub(super) fn survive_loss(&mut self, error: ExchangeError) -> Result<(), SessionError> {
        let mut lost = error;
        while matches!(lost, ExchangeError::Closed { .. }) && self.may_relink() {
            let (came, is_awaited) = (self.traffic().received, !self.is_quiet());
            self.relinks.lost(Instant::now(), came, is_awaited, self.config.hub_wait);
            self.stopwatch.wait_begins();
            let made = self.make_links(&lost);
            self.stopwatch.wait_ends();
            let why = match made {
                Ok(()) => match self.exchange.push_again() {
                    Ok(()) => return Ok(()),
                    Err(again) => {
                        lost = again;
                        "the new ones are lost, too".to_owned()
                    }
                },
                // The hub is gone, or has words of its own.
                Err(Again::Never(why)) => {
                    tracing::warn!("{lost}; the hub does not wait for other links: {why}");
                    break;
                }
                Err(Again::Later(why)) => why.to_string(),
            };
            let over = match self.relinks.may_try(Instant::now(), self.config.hub_wait) {
                Err(over) => Some(format!("; {over}")),
                Ok(()) => (self.given_up)().then(String::new),
            };
            if let Some(over) = over {
                // The other workers wait for this one, which does not come.
                let why = format!("its links could not be made again: {why}{over} ({lost})");
                self.send_failed(&why);
                break;
            }
            tracing::warn!("{lost}; the links are not made again yet: {why}");
            std::thread::sleep(PAUSE);
        }
        self.survive(self.explain(lost))
    }

    fn may_relink(&self) -> bool {
        let is_moved = self.ways.iter().any(|way| way.transport != Transport::Shm);
        let may = self.hubs.iter().all(|hub| hub.relinks && hub.end().is_none());
        may && is_moved && self.hold == Hold::Waits
    }

    fn make_links(&mut self, lost: &ExchangeError) -> Result<(), Again<SessionError>> {
        let deadline = Instant::now() + self.config.join_limit;
        // Asked before the links end that are left: on shared memory, too, their end is no death then.
        let relink = |hub: &Hub| hub.relink(lost.to_string()).map_err(|error| Again::Never(error.into()));
        let let_in = self.hubs.iter().map(relink).collect::<Result<_, _>>()?;
        // The former links end first: what a hub sent that only stood still must not come behind what the new links bring.
        let (_group, mut ports) = any::group(1, None).map_err(SessionError::from)?;
        self.exchange.cut(ports.remove(0));
        let wire = Wire::of_terms(&self.config.terms).map_err(SessionError::from)?;
        let windows = self.exchange.windows();
        let of_hub = |hub: usize| windows.received()[self.hubs[hub].cores.start].clone();
        let receive = |hub| Receive::Into(of_hub(hub));
        let Attached { port, endpoints, received, hubs, ways, .. } =
            attach(let_in, &self.config, &wire, windows.sent(), receive, deadline)?;
        self.let_ahead(drafts(&endpoints));
        self.exchange.relink(port, endpoints, received);
        self.exchange.set_credit(self.credit);
        (self.hubs, self.ways) = (hubs, ways);
        self.relinks.made(Instant::now());
        let hubs = self.hubs.iter().map(Hub::address);
        membership::say_made(&self.config.job, hubs, &self.ways, &lost.to_string());
        Ok(())
    }
}
