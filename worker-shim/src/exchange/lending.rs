//! Gradients and weights of keys that are not under way, lent to the caller.
//!
//! The exchange's, on the worker's thread. On the `unsafe` list: reading the weights window.

use fabric::Port;
use pbox_core::{Element, Key, KeyId};

use super::coder::Coder;
use super::error::ExchangeError;
use super::exchange::Exchange;

impl<P: Port> Exchange<P> {
    /// A key's gradient, to write. Its contents are the caller's until [`push`](Self::push).
    pub fn gradient_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], ExchangeError> {
        self.check_idle_as::<E>(key, "writing its gradient")?;
        Ok(self.windows.gradient_mut(key))
    }

    /// A key's weights, as of its last finished round.
    pub fn weights<E: Element>(&self, key: KeyId) -> Result<&[E], ExchangeError> {
        self.check_idle_as::<E>(key, "reading its weights")?;
        // SAFETY: `check_idle_as` saw that no push of the key is unanswered, and `&self` keeps it so.
        Ok(unsafe { self.windows.weights(key) })
    }

    /// A key's weights to read and its gradient to write, together.
    pub fn tensors<E: Element>(&mut self, key: KeyId) -> Result<(&[E], &mut [E]), ExchangeError> {
        self.check_idle_as::<E>(key, "using its tensors")?;
        // SAFETY: `check_idle_as` saw that no push of the key is unanswered, and `&mut self` keeps it so.
        Ok(unsafe { self.windows.tensors(key) })
    }

    /// A key's weights, to write. With Slim-DP, weights that are not sent stay as the worker writes them.
    ///
    /// # Errors
    /// While the key is under way, and in any other job.
    pub fn weights_mut<E: Element>(&mut self, key: KeyId) -> Result<&mut [E], ExchangeError> {
        self.check_idle_as::<E>(key, "writing its weights")?;
        let Exchange { windows, layout, .. } = self;
        let name = || layout.keys()[key.index()].name.clone();
        windows.weights_mut(key).ok_or_else(|| ExchangeError::HubsWeights { key: name() })
    }

    /// With Slim-DP, makes all gradients zero: they were written for a broadcast that does not take place.
    pub fn discard_changes(&mut self) {
        self.windows.coder_mut().into_iter().for_each(Coder::discard_changes);
    }

    /// As `check_idle`, and the key is of type `E`.
    fn check_idle_as<E: Element>(&self, key: KeyId, doing: &'static str) -> Result<(), ExchangeError> {
        self.check_idle(key, doing)?;
        let Key { name, dtype, .. } = &self.layout.keys()[key.index()];
        if *dtype != E::DTYPE {
            let (key, seen, asked) = (name.clone(), dtype.name(), E::DTYPE.name());
            return Err(ExchangeError::OtherType { key, seen, asked });
        }
        Ok(())
    }
}
