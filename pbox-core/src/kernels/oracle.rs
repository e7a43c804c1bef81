//! The specification of the arithmetic, for one element at a time. Every kernel must give the same bits. Tests and the
//! probe compare results with this specification.
//!
//! The sum is in worker order, `((g0 + g1) + g2) + ...`, and is then multiplied by `rescale`. No operation is fused or
//! reordered. Additions, multiplications, divisions and square roots are those of IEEE 754, which round exactly. So the
//! width of a vector does not change the result.
//!
//! All arithmetic is in f32. Gradients of another type are converted first, which is exact, and the result is rounded last.

use super::element::Element;
pub use super::optimizer::Step;
use super::optimizer::{AdamStep, Optimizer};

/// Returns the sum of the gradients in worker order.
pub fn sum(gradients: impl IntoIterator<Item = f32>) -> f32 {
    gradients.into_iter().reduce(|sum, gradient| sum + gradient).unwrap_or(0.0)
}

/// Steps one element. The new `weight` is sent back; the new `state` stays in the hub.
///
/// `state` belongs to the element. It has at least [`state_per_element`](Optimizer::state_per_element) f32: `m`, then `v`,
/// then the highest `v`.
pub fn step(optimizer: &Optimizer, step: &Step, sum: f32, weight: &mut f32, state: &mut [f32]) {
    let mean = sum * step.rescale;
    match optimizer {
        Optimizer::Average | Optimizer::Sum => *weight = mean,
        Optimizer::Sgd { .. } => {
            let gradient = decayed(step, mean, *weight);
            *weight -= step.learning_rate * gradient;
        }
        Optimizer::Momentum { .. } => {
            let gradient = decayed(step, mean, *weight);
            state[0] = step.momentum * state[0] + gradient;
            *weight -= step.learning_rate * state[0];
        }
        Optimizer::Dampened { .. } => {
            let gradient = decayed(step, mean, *weight);
            state[0] = step.momentum * state[0] + step.gain * gradient;
            *weight -= step.learning_rate * state[0];
        }
        Optimizer::Nesterov { .. } => {
            let gradient = decayed(step, mean, *weight);
            state[0] = step.momentum * state[0] + gradient;
            *weight -= step.learning_rate * (gradient + step.momentum * state[0]);
        }
        Optimizer::Adam { .. } | Optimizer::AmsGrad { .. } => {
            let gradient = decayed(step, mean, *weight);
            adam(optimizer, &step.adam, gradient, weight, state);
        }
        Optimizer::AdamW { .. } | Optimizer::AmsGradW { .. } => {
            *weight *= step.adam.keep;
            adam(optimizer, &step.adam, mean, weight, state);
        }
        Optimizer::Lion { .. } => {
            let AdamStep { beta1, gain1, beta2, gain2, step_size, keep, .. } = step.adam;
            let toward = beta1 * state[0] + gain1 * mean;
            let sign = if toward == 0.0 || toward.is_nan() { toward } else { 1.0f32.copysign(toward) };
            *weight = *weight * keep - step_size * sign;
            state[0] = beta2 * state[0] + gain2 * mean;
        }
        Optimizer::Lars { .. } => {
            state[0] = step.momentum * state[0] + step.learning_rate * decayed(step, mean, *weight);
            *weight -= state[0];
        }
        Optimizer::Lamb { .. } => {
            let update = lamb(step, mean, *weight, state);
            *weight -= step.learning_rate * update;
        }
    }
}

/// Returns a gradient or an update plus the decay of the weights. A decay of 0 is not added, because 0 times an infinite
/// weight would be NaN.
fn decayed(step: &Step, toward: f32, weight: f32) -> f32 {
    if step.weight_decay > 0.0 { toward + step.weight_decay * weight } else { toward }
}

/// Steps one element of a key of any type. The new `window` is sent back. The new `kept` stays in the hub
/// ([`kept_per_element`](Optimizer::kept_per_element)): the master weight, if there is one, then the state.
///
/// The step is made in f32 on the master weight, and the window gets the rounded result. For f32, the window itself has the
/// master weight.
pub fn step_rounded<E: Element>(
    optimizer: &Optimizer,
    numbers: &Step,
    sum: f32,
    window: &mut E,
    kept: &mut [f32],
) {
    if optimizer.master_per_element(E::DTYPE) > 0 {
        let (master, state) = kept.split_first_mut().expect("there is a master weight");
        step(optimizer, numbers, sum, master, state);
        *window = E::from_f32(*master);
    } else {
        let mut weight = window.to_f32();
        step(optimizer, numbers, sum, &mut weight, kept);
        *window = E::from_f32(weight);
    }
}

/// Updates the average of one element's weights after a step has computed `weight`. Before the first step, the average is
/// the weight.
pub fn average(decay: f64, weight: f32, average: &mut f32) {
    *average = decay as f32 * *average + (1.0 - decay) as f32 * weight;
}

/// The length of a block of elements, in bytes of the key's type. Squares are added block by block, and no block has
/// elements of two chunks.
pub const BLOCK_BYTES: usize = 32 << 10;

/// The number of lanes of a block. An element's square is added to the lane of its index.
pub const LANES: usize = super::LANES;

/// Returns the sum of the squares of a block's mean gradients, in f64. Each square is added to the lane of its index, and
/// then the lanes are added in order.
pub fn squares(block: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    for (index, &mean) in block.iter().enumerate() {
        lanes[index % LANES] += f64::from(mean) * f64::from(mean);
    }
    lanes.iter().sum()
}

/// Returns the sum of squares of f32, rounded once to the nearest f64. The result does not depend on the order: the
/// function counts the bits of all squares for each power of 2, and then adds.
pub fn exact_sum(squares: impl Iterator<Item = f64>) -> f64 {
    const LOWEST: i32 = -350; // the lowest bit of an f64 that is 2^-298
    let (mut counts, mut not_finite) = ([0u64; 700], 0.0);
    for square in squares.filter(|&square| square != 0.0) {
        if !square.is_finite() {
            not_finite += square;
            continue;
        }
        let (exponent, fraction) = (square.to_bits() >> 52, square.to_bits() & ((1 << 52) - 1) | 1 << 52);
        let lowest = (exponent as i32 - 1075 - LOWEST) as usize;
        (0..53).for_each(|bit| counts[lowest + bit] += fraction >> bit & 1);
    }
    for bit in 1..counts.len() {
        counts[bit] += counts[bit - 1] / 2;
        counts[bit - 1] %= 2;
    }
    let top = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
    let lowest = top.saturating_sub(52);
    let kept = counts[lowest..=top].iter().rev().fold(0, |value, bit| value * 2 + bit);
    let (half, below) = match counts[..lowest].split_last() {
        Some((half, below)) => (*half, kept % 2 + below.iter().sum::<u64>()),
        None => (0, 0),
    };
    let rounded = (kept + half * below.min(1)) as f64 * 2f64.powi(lowest as i32 + LOWEST);
    if not_finite == 0.0 { rounded } else { not_finite }
}

/// Returns the norm of a model's gradient from the sums of the squares of all blocks.
pub fn norm(squares: impl Iterator<Item = f64>) -> f32 {
    exact_sum(squares).sqrt() as f32
}

/// Returns the factor for a round's mean gradients with which their norm is at most `most`, as in
/// `torch.nn.utils.clip_grad_norm_`. An infinite norm makes the factor 0, and a NaN makes it NaN.
pub fn clip_scale(norm: f32, most: f32) -> f32 {
    let scale = most / (norm + 1e-6);
    if scale > 1.0 { 1.0 } else { scale }
}

/// Returns the factor for a round's gradient, from `norm`, the norm of the previous round. The factor would scale a norm
/// above `most` down to `most`. It is 1 if `norm` is 0 or not finite, because such a norm says nothing about this gradient.
pub fn clip_scale_after(norm: f32, most: f32) -> f32 {
    if norm > 0.0 && norm.is_finite() { clip_scale(norm, most) } else { 1.0 }
}

/// Whether a round with this norm is skipped as a spike. `norms` are the norms of the earlier rounds that were not
/// skipped. A norm that is not finite is a spike. Any other norm is a spike if it is above `times` their running mean,
/// and this mean has at least ten norms. The mean of up to 100 norms gives each norm the same weight. Each later norm
/// has a weight of a hundredth.
pub fn is_spike(norms: &[f32], norm: f32, times: f32) -> bool {
    let counted = norms.iter().filter(|norm| **norm != 0.0).map(|&norm| f64::from(norm));
    let (mut mean, mut count) = (0.0, 0.0f64);
    for norm in counted {
        count += 1.0;
        mean += (norm - mean) / count.min(100.0);
    }
    !norm.is_finite() || count >= 10.0 && f64::from(norm) > f64::from(times) * mean
}

/// Returns an element of the vector whose norm LARS and LAMB compare with the norm of the weights: the gradient or the
/// update.
pub fn measured(optimizer: &Optimizer, step: &Step, mean: f32, weight: f32, state: &[f32]) -> f32 {
    match optimizer {
        Optimizer::Lamb { .. } => lamb(step, mean * step.rescale, weight, &mut [state[0], state[1]]),
        _ => mean * step.rescale,
    }
}

/// Returns the quotient of two norms of a key, from the sums of squares of the key's blocks: of the weights, and of the
/// [`measured`] values. The quotient is 0 if one of the norms is 0.
pub fn quotient(blocks: impl Iterator<Item = [f64; 2]> + Clone) -> f32 {
    let [weights, other] = [0, 1].map(|which| exact_sum(blocks.clone().map(|squares| squares[which])).sqrt());
    if weights == 0.0 { 0.0 } else { (other / weights) as f32 }
}

fn lamb(step: &Step, mean: f32, weight: f32, state: &mut [f32]) -> f32 {
    let AdamStep { beta1, gain1, beta2, gain2, step_size, bias2, epsilon, .. } = step.adam;
    state[0] = beta1 * state[0] + gain1 * mean;
    state[1] = beta2 * state[1] + gain2 * mean * mean;
    decayed(step, step_size * state[0] / (state[1].sqrt() / bias2 + epsilon), weight)
}

fn adam(optimizer: &Optimizer, step: &AdamStep, gradient: f32, weight: &mut f32, state: &mut [f32]) {
    state[0] = step.beta1 * state[0] + step.gain1 * gradient;
    state[1] = step.beta2 * state[1] + step.gain2 * gradient * gradient;
    let mut second = state[1];
    if matches!(optimizer, Optimizer::AmsGrad { .. } | Optimizer::AmsGradW { .. }) {
        second = if state[2] > second { state[2] } else { second };
        state[2] = second;
    }
    *weight -= step.step_size * state[0] / (second.sqrt() / step.bias2 + step.epsilon);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Round;

    #[test]
    fn the_scale_is_that_of_torch() {
        assert_eq!(
            [0.0, 0.5, 2.0, f32::INFINITY].map(|norm| clip_scale(norm, 1.0)),
            [1.0, 1.0, 1.0 / 2.000_001, 0.0]
        );
        assert!(clip_scale(f32::NAN, 1.0).is_nan());
    }

    #[test]
    fn an_infinite_weight_stays_if_there_is_no_decay() {
        let (learning_rate, weight_decay, momentum, beta1, beta2, epsilon) = (0.5, 0.0, 0.5, 0.5, 0.5, 0.5);
        for optimizer in [
            Optimizer::Sgd { learning_rate, weight_decay },
            Optimizer::Momentum { learning_rate, weight_decay, momentum },
            Optimizer::Dampened { learning_rate, weight_decay, momentum, dampening: 0.5 },
            Optimizer::Nesterov { learning_rate, weight_decay, momentum },
            Optimizer::Adam { learning_rate, weight_decay, beta1, beta2, epsilon },
            Optimizer::AmsGrad { learning_rate, weight_decay, beta1, beta2, epsilon },
            Optimizer::Lars { learning_rate, weight_decay, momentum, trust: 0.5 },
            Optimizer::Lamb { learning_rate, weight_decay, beta1, beta2, epsilon },
        ] {
            let numbers = Step::new(&optimizer, 1, Round(1), learning_rate, 1.0, 1.0);
            let (mut weight, mut state) = (f32::NEG_INFINITY, [0.0; 3]);
            step(&optimizer, &numbers, 1.0, &mut weight, &mut state);
            assert_eq!((weight, state.map(f32::is_finite)), (f32::NEG_INFINITY, [true; 3]), "{optimizer:?}");
        }
    }

    /// Adam's first step goes against the gradient's sign, and has size `lr` for gradients of any size.
    #[test]
    fn adams_first_step_has_the_size_of_the_learning_rate() {
        let (learning_rate, weight_decay, beta1, beta2, epsilon) = (0.5, 0.0, 0.9, 0.999, 1e-12);
        let optimizer = Optimizer::Adam { learning_rate, weight_decay, beta1, beta2, epsilon };
        let numbers = Step::new(&optimizer, 1, Round(1), learning_rate, 1.0, 1.0);
        for gradient in [1e-3, -7.0, 1e4] {
            let (mut weight, mut state) = (0.0, [0.0; 2]);
            step(&optimizer, &numbers, gradient, &mut weight, &mut state);
            assert!((weight + 0.5f32.copysign(gradient)).abs() < 1e-6, "{gradient}: {weight}");
        }
    }
}
