//! The device that a built-in trace imitates, as a roofline. Arithmetic and memory traffic overlap, so a
//! layer takes as long as the slower of the two. This module must not depend on a network.

use super::network::LayerWork;

/// The number of bytes of an f32, the type in which the papers train.
const ELEMENT_BYTES: f64 = 4.0;

/// The peak rates of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    /// The number of floating-point operations per second. A multiply-add counts as two.
    pub flops: f64,
    /// The number of bytes per second to and from the device's memory.
    pub bytes_per_s: f64,
}

/// NVIDIA's Quadro P4000, the GPU of P3's experiments, by its data sheet: 5.3 TFLOP/s in f32 and 243 GB/s.
pub(super) const P4000: Device = Device { flops: 5.3e12, bytes_per_s: 243e9 };

impl Device {
    /// Returns the seconds of a layer's forward pass for a batch, if the device reaches its peak rates.
    pub fn seconds(&self, work: &LayerWork, batch: u32) -> f64 {
        let batch = f64::from(batch);
        let arithmetic = 2.0 * work.multiply_adds * batch / self.flops;
        let elements = work.elements * batch + work.weights;
        let traffic = elements * ELEMENT_BYTES / self.bytes_per_s;
        // Normalization and activation are separate passes after the product.
        let pointwise = work.pointwise_elements * batch * ELEMENT_BYTES / self.bytes_per_s;
        arithmetic.max(traffic) + pointwise
    }
}
