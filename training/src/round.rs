//! A worker's round. The forward and the backward loop overlap with the exchange of weights and gradients.

use worker_shim::{Session, SessionError};

use crate::network::{Network, NetworkPass};
use crate::samples::Samples;

/// Trains on a batch. The forward pass waits for each layer's weights just before it uses them. The backward pass pushes
/// each gradient as soon as it is written. Returns the batch's loss before the step. When the function returns, the last
/// pushes are still in flight.
///
/// # Errors
/// Returns the errors of [`Session::wait`] and [`Session::push`].
pub fn round(session: &mut Session, pass: &mut NetworkPass, batch: &Samples) -> Result<f32, SessionError> {
    let layers = pass.network().layers();
    pass.begin(batch);
    for layer in 0..layers {
        let (weight, bias) = (Network::weight(layer), Network::bias(layer));
        session.wait(weight)?;
        session.wait(bias)?;
        pass.forward(layer, session.weights(weight)?, session.weights(bias)?);
    }
    let loss = pass.loss(batch.labels());
    for layer in (0..layers).rev() {
        let (weight, bias) = (Network::weight(layer), Network::bias(layer));
        pass.bias_gradient(layer, session.gradient_mut(bias)?);
        session.push(bias)?;
        // After the push of a key, the hub may write the key's weights. So the backward pass uses the weights
        // before this push.
        pass.backward(layer, session.weights(weight)?);
        pass.weight_gradient(layer, session.gradient_mut(weight)?);
        session.push(weight)?;
    }
    Ok(loss)
}
