//! The kernels for AVX-512.

use super::{Kernels, body};
use crate::oracle::Step;
use crate::slots::Slots;

pub(super) const KERNELS: Kernels = Kernels {
    name: "avx512",
    available: || is_x86_feature_detected!("avx512f"),
    average,
    sgd,
    momentum,
    nesterov,
    adam,
    adamw,
};

#[target_feature(enable = "avx512f")]
fn average(step: &Step, slots: &Slots, out: &mut [f32]) {
    body::average(step, slots, out);
}

#[target_feature(enable = "avx512f")]
fn sgd(step: &Step, slots: &Slots, weights: &mut [f32]) {
    body::sgd(step, slots, weights);
}

#[target_feature(enable = "avx512f")]
fn momentum(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::momentum(step, slots, weights, state);
}

#[target_feature(enable = "avx512f")]
fn nesterov(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::nesterov(step, slots, weights, state);
}

#[target_feature(enable = "avx512f")]
fn adam(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::adam(step, slots, weights, state);
}

#[target_feature(enable = "avx512f")]
fn adamw(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::adamw(step, slots, weights, state);
}
