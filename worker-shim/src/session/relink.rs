//! Making links again that were lost while the hub lives, as with a NIC: in the same memory, over whatever leads to the hub now.
//!
//! On the caller's thread, inside a push or a wait, which goes on afterwards. A hub that is lost is another matter (`hold`).
//!
//! ```text
//!   a link closed --> the hub lets go of all links of this worker, and of its pushes that are not stepped
//!     --> new links to the same memory --> what has no answer is pushed again; a push that is stepped is answered again
//! ```

use std::time::{Duration, Instant};

use fabric::any::Transport;
use fabric::{Receive, any};
use membership::{Hub, MemberError, Way};
use pbox_core::Wire;

use super::config::SessionConfig;
use super::error::SessionError;
use super::hold::{Again, Hold};
use super::join::{Attached, attach, drafts};
use super::session::Session;
use crate::exchange::ExchangeError;

/// The pause before links are made again that could not be made: nothing tells when a way is open.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a session has made its links again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Relinks {
    pub times: u32,
    /// Since when no answer has come, and what had come before.
    in_vain: Option<(Instant, u64)>,
}

/// Whether a worker of these settings asks the hub to wait for it when it loses its links.
pub(super) fn asks(config: &SessionConfig) -> bool {
    !config.hub_wait.is_zero()
}

impl Session {
    /// How often this session has made its links again, after it had lost them while its hub lived.
    pub fn relinks(&self) -> u32 {
        self.relinks.times
    }

    /// Goes on after an error of the exchange, if it is the loss of links or of the hub.
    ///
    /// # Errors
    /// The same error, in the hub's words if it has some, if it is another, and if it does not pass.
    #[cold]
    pub(super) fn survive_loss(&mut self, error: ExchangeError) -> Result<(), SessionError> {
        let (since, mut lost) = (Instant::now(), error);
        while matches!(lost, ExchangeError::Closed { .. }) && self.may_relink() {
            self.note_loss();
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
            if since.elapsed() >= self.config.hub_wait || self.is_in_vain() {
                // They wait for this worker, which does not come.
                let why = format!("its links could not be made again: {why} ({lost})");
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

    /// Links are lost. Those before may have brought no answer that was awaited.
    fn note_loss(&mut self) {
        let (received, is_owed) = (self.traffic().received, !self.is_quiet());
        let in_vain = &mut self.relinks.in_vain;
        if in_vain.is_none_or(|(_, before)| received > before || !is_owed) {
            *in_vain = is_owed.then(|| (Instant::now(), received));
        }
    }

    /// Whether links have brought no answer for so long that no more are made.
    fn is_in_vain(&self) -> bool {
        let is_over = self.relinks.in_vain.is_some_and(|(since, _)| since.elapsed() >= self.config.hub_wait);
        is_over || (self.given_up)()
    }

    fn make_links(&mut self, lost: &ExchangeError) -> Result<(), Again> {
        let deadline = Instant::now() + self.config.join_limit;
        // Asked before the links end that are left: on shared memory, too, their end is no death then.
        let relink = |hub: &Hub| hub.relink(lost.to_string()).map_err(|error| Again::Never(error.into()));
        let let_in = self.hubs.iter().map(relink).collect::<Result<_, _>>()?;
        // The former links end first: what a hub sent that only stood still must not come behind what the new links bring.
        let (_group, mut ports) = any::group(1, None).map_err(MemberError::from)?;
        self.exchange.cut(ports.remove(0));
        let (wire, windows) = (Wire::of_terms(&self.config.terms)?, self.exchange.windows());
        let of_hub = |hub: usize| windows.received()[self.hubs[hub].cores.start].clone();
        let receive = |hub| Receive::Into(of_hub(hub));
        let Attached { port, endpoints, received, hubs, ways, .. } =
            attach(let_in, &self.config, &wire, windows.sent(), receive, deadline)?;
        self.let_ahead(drafts(&endpoints));
        self.exchange.relink(port, endpoints, received);
        self.exchange.set_credit(self.credit);
        (self.hubs, self.ways) = (hubs, ways);
        self.relinks.times += 1;
        for (hub, way) in self.hubs.iter().zip(&self.ways) {
            let (job, hub, paths) = (&self.config.job, hub.address(), way.spoken_paths());
            let Way { transport, reason, .. } = way;
            tracing::warn!(job, hub, %transport, paths, "{lost}; the links are made again: {reason}");
        }
        Ok(())
    }
}
