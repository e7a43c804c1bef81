//! The kernels for any processor: whatever the compiler makes of the body for the baseline.

use super::{Kernels, body};
use crate::oracle::Step;
use crate::slots::Slots;

pub(super) const KERNELS: Kernels =
    Kernels { name: "scalar", available: || true, average, sgd, momentum, nesterov, adam, adamw };

fn average(step: &Step, slots: &Slots, out: &mut [f32]) {
    body::average(step, slots, out);
}

fn sgd(step: &Step, slots: &Slots, weights: &mut [f32]) {
    body::sgd(step, slots, weights);
}

fn momentum(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::momentum(step, slots, weights, state);
}

fn nesterov(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::nesterov(step, slots, weights, state);
}

fn adam(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::adam(step, slots, weights, state);
}

fn adamw(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::adamw(step, slots, weights, state);
}
