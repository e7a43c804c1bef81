//! The kernels for AVX2.

use super::{Kernels, body};
use crate::oracle::Step;
use crate::slots::Slots;

pub(super) const KERNELS: Kernels = Kernels {
    name: "avx2",
    available: || is_x86_feature_detected!("avx2"),
    average,
    sgd,
    momentum,
    nesterov,
    adam,
    adamw,
};

#[target_feature(enable = "avx2")]
fn average(step: &Step, slots: &Slots, out: &mut [f32]) {
    body::average(step, slots, out);
}

#[target_feature(enable = "avx2")]
fn sgd(step: &Step, slots: &Slots, weights: &mut [f32]) {
    body::sgd(step, slots, weights);
}

#[target_feature(enable = "avx2")]
fn momentum(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::momentum(step, slots, weights, state);
}

#[target_feature(enable = "avx2")]
fn nesterov(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::nesterov(step, slots, weights, state);
}

#[target_feature(enable = "avx2")]
fn adam(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::adam(step, slots, weights, state);
}

#[target_feature(enable = "avx2")]
fn adamw(step: &Step, slots: &Slots, weights: &mut [f32], state: &mut [f32]) {
    body::adamw(step, slots, weights, state);
}
