//! Pushes that are not a plain gradient: no gradient, new weights, or a gradient that is sent before its push.
//!
//! Runs on the caller's thread. Must not depend on what the hub does with the pushes.

use pbox_core::{Compression, Consistency, Content, KeyId, LevelTerms};

use super::error::SessionError;
use super::session::Session;
use crate::exchange::ExchangeError;

/// The content of a push of a key.
///
/// A job with SSP, ASP or Slim-DP takes gradients only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The gradient. Bytes that were sent [ahead](Session::send_ahead) are not sent again.
    Gradient,
    /// The gradient, which may have changed after [`send_ahead`](Session::send_ahead) sent it. All its bytes are sent
    /// again.
    Rewritten,
    /// No gradient, which counts as zeros. If no worker has a gradient, weights and optimizer state do not change.
    Nothing,
    /// New weights, which the worker has written into its gradient. Every worker pushes weights of the key in the same round, and
    /// the weights of the lowest rank count. The optimizer's state does not change.
    Weights,
}

impl Pushed {
    /// Returns the content for the hub.
    fn content(self) -> Content {
        match self {
            Pushed::Gradient | Pushed::Rewritten => Content::Gradient,
            Pushed::Nothing => Content::Nothing,
            Pushed::Weights => Content::Weights,
        }
    }

    /// Returns the name, for errors.
    pub(crate) fn name(self) -> &'static str {
        self.content().name()
    }
}

impl Session {
    /// Sends the bytes of these keys' gradients now, if that saves time. The bytes have no effect until the push. The
    /// next [push](Self::push) of a key then sends no bytes. If the gradient has changed, push it as
    /// [`Pushed::Rewritten`]. May be called again. Does nothing on shared memory, with a codec, with checksums, with
    /// `kvstore`, and for small keys that are sent together with their neighbours.
    ///
    /// # Errors
    /// Returns an error while a key is in flight.
    pub fn send_ahead(&mut self, keys: impl IntoIterator<Item = KeyId>) -> Result<(), SessionError> {
        let sent = keys.into_iter().try_for_each(|key| self.put_ahead(key));
        sent.and(self.flush())
    }

    /// Whether sending a key's bytes [before its push](Self::send_ahead) saves time, over the current links.
    pub fn leaves_ahead(&self, key: KeyId) -> bool {
        !self.steps_alone() && self.exchange.leaves_ahead(key)
    }

    /// Queues a key to be sent like [`send_ahead`](Self::send_ahead). The key waits here until the
    /// [`flush`](Self::flush), which must follow soon.
    pub(crate) fn put_ahead(&mut self, key: KeyId) -> Result<(), SessionError> {
        self.exchange.check_exists(key)?;
        let is_skipped = self.skips.get(key.index()).is_some_and(|&skips| skips > 0);
        if is_skipped || self.steps_alone() {
            return Ok(()); // the next push is skipped, or could not refer to these bytes (SSP, ASP)
        }
        if self.digests.is_some() && self.exchange.leaves_ahead(key) && self.exchange.is_ready(key) {
            self.compare_weights(key)?; // the hub may write the weights from now on
        }
        match self.exchange.send_ahead(key) {
            Ok(()) => Ok(()),
            Err(error) => self.survive_loss(error),
        }
    }

    /// Whether the key's weights were left unchanged by its last push, or so far by the push in flight. If so, no
    /// worker had a gradient, or the round was [skipped](Self::skipped).
    ///
    /// # Errors
    /// Returns an error if there is no such key.
    pub fn was_left_alone(&self, key: KeyId) -> Result<bool, SessionError> {
        self.exchange.check_exists(key)?;
        Ok(self.exchange.was_left_alone(key))
    }

    /// Returns the content of a push that is not a plain gradient.
    #[cold]
    pub(super) fn other_content(&mut self, key: KeyId, what: Pushed) -> Result<Content, SessionError> {
        let content = what.content();
        if what == Pushed::Rewritten {
            self.exchange.rewritten(key);
        }
        let name = || self.layout().keys()[key.index()].name.clone();
        match gradients_only(&self.asked).filter(|_| content != Content::Gradient) {
            None => Ok(content),
            Some(why) => {
                Err(ExchangeError::OnlyGradients { key: name(), pushed: content.name(), why }.into())
            }
        }
    }

    fn steps_alone(&self) -> bool {
        self.asked.consistency != Consistency::Bsp
    }
}

/// Returns the reason why a job takes gradients only, and the next step; `None` if it takes other contents,
/// too.
pub(crate) fn gradients_only(level: &LevelTerms) -> Option<&'static str> {
    if level.consistency != Consistency::Bsp {
        return Some("workers that step alone (SSP and ASP) push gradients only: choose the consistency bsp");
    }
    let is_slim = matches!(level.compression, Some(Compression::Slim(_)));
    is_slim.then_some("Slim-DP takes gradients only: choose a codec, or no compression")
}
