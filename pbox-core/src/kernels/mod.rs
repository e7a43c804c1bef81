//! Kernels: the sum of a chunk's slots, fused with the optimizer's step, in one pass.
//!
//! One body (`body`), compiled once per instruction set (`scalar`, `avx2`, `avx512`), behind one
//! table chosen at start. All of them give the bits of `oracle`: each element is summed in worker
//! order and no multiplication is fused into an addition, so the width of a vector cannot show.
//!
//! One pass at the last arrival, not one addition at each: the accumulator stays in registers, and
//! a chunk costs `workers + 2` reads and 2 writes of memory (Adam: `workers + 3` and 3), which is what
//! bounds the hub (`docs/decisions/0004-sum-at-last-arrival.md`).
//!
//! On the `unsafe` list: calls of functions for instruction sets that were detected.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod body;
mod scalar;

use crate::optimizer::Optimizer;
use crate::oracle::Step;
pub use crate::slots::Slots;

/// Mean of the slots into `out`.
type Average = unsafe fn(&Step, &Slots, out: &mut [f32]);
/// Step on `weights`.
type Stateless = unsafe fn(&Step, &Slots, weights: &mut [f32]);
/// Step on `weights` and `state`.
type Stateful = unsafe fn(&Step, &Slots, weights: &mut [f32], state: &mut [f32]);

/// The kernels of one instruction set.
pub struct Kernels {
    name: &'static str,
    available: fn() -> bool,
    average: Average,
    sgd: Stateless,
    momentum: Stateful,
    nesterov: Stateful,
    adam: Stateful,
    adamw: Stateful,
}

/// Best first.
static ALL: &[Kernels] = &[
    #[cfg(target_arch = "x86_64")]
    avx512::KERNELS,
    #[cfg(target_arch = "x86_64")]
    avx2::KERNELS,
    scalar::KERNELS,
];

impl Kernels {
    /// The best kernels that this processor runs.
    pub fn detect() -> &'static Kernels {
        Self::available().next().expect("scalar kernels run everywhere")
    }

    /// All kernels that this processor runs, best first.
    pub fn available() -> impl Iterator<Item = &'static Kernels> {
        ALL.iter().filter(|kernels| (kernels.available)())
    }

    /// Name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sums the slots and applies the optimizer: `weights` becomes what is sent back, `state` what
    /// is kept. `state` is empty for optimizers without state; for Adam and AdamW it holds all first
    /// moments of the chunk, then all second ones.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn run(
        &self,
        optimizer: &Optimizer,
        step: &Step,
        slots: &Slots,
        weights: &mut [f32],
        state: &mut [f32],
    ) {
        let elements = slots.elements();
        assert_eq!(weights.len(), elements, "weights and slots are of one chunk");
        assert_eq!(state.len(), elements * optimizer.state_per_element(), "state and slots are of one chunk");
        // SAFETY: the caller can only have a table from `available`, which saw that the processor
        // has its instruction set.
        unsafe {
            match optimizer {
                Optimizer::Average => (self.average)(step, slots, weights),
                Optimizer::Sgd { .. } => (self.sgd)(step, slots, weights),
                Optimizer::Momentum { .. } => (self.momentum)(step, slots, weights, state),
                Optimizer::Nesterov { .. } => (self.nesterov)(step, slots, weights, state),
                Optimizer::Adam { .. } => (self.adam)(step, slots, weights, state),
                Optimizer::AdamW { .. } => (self.adamw)(step, slots, weights, state),
            }
        }
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Round;
    use crate::oracle;
    use proptest::prelude::*;

    fn optimizers() -> impl Strategy<Value = Optimizer> {
        let (rate, decay, fraction) = (0.0f32..1.0, 0.0f32..0.1, 0.0f32..0.99);
        let epsilon = prop_oneof![Just(f32::MIN_POSITIVE / 8.0), Just(1e-8f32), Just(0.1f32)];
        let all = (0..Optimizer::NAMES.len(), rate, decay, fraction, 0.0f32..1.0, epsilon);
        all.prop_map(|(which, learning_rate, weight_decay, momentum, beta2, epsilon)| {
            let beta1 = momentum;
            match Optimizer::NAMES[which] {
                "average" => Optimizer::Average,
                "sgd" => Optimizer::Sgd { learning_rate, weight_decay },
                "momentum" => Optimizer::Momentum { learning_rate, weight_decay, momentum },
                "nesterov" => Optimizer::Nesterov { learning_rate, weight_decay, momentum },
                "adam" => Optimizer::Adam { learning_rate, weight_decay, beta1, beta2, epsilon },
                "adamw" => Optimizer::AdamW { learning_rate, weight_decay, beta1, beta2, epsilon },
                other => unreachable!("{other} has no strategy"),
            }
        })
    }

    /// Ordinary numbers, zeros of both signs, and numbers below and just above the smallest normal one.
    fn numbers() -> impl Strategy<Value = f32> {
        let tiny = (any::<bool>(), 0u32..0x0100_0000)
            .prop_map(|(negative, bits)| f32::from_bits(u32::from(negative) << 31 | bits));
        prop_oneof![8 => -1e3f32..1e3, 1 => Just(0.0f32), 1 => Just(-0.0f32), 2 => tiny]
    }

    proptest! {
        #[test]
        fn every_instruction_set_gives_the_oracles_bits(
            optimizer in optimizers(),
            round in prop_oneof![1u32..30, 1u32..u32::MAX],
            workers in 1usize..9,
            elements in 1usize..300,
            values in proptest::collection::vec(numbers(), 64),
        ) {
            let value = |salt: usize, i: usize| values[(salt * 31 + i * 7) % values.len()];
            let slots: Vec<Vec<f32>> =
                (0..workers).map(|w| (0..elements).map(|i| value(w, i)).collect()).collect();
            let starts: Vec<*const f32> = slots.iter().map(|slot| slot.as_ptr()).collect();
            // SAFETY: `slots` outlives the kernels' calls and has `elements` in each.
            let view = unsafe { Slots::new(&starts, elements) };
            let step =
                Step::new(&optimizer, workers as u32, Round(round), optimizer.learning_rate(), 2.0, 0.5);
            let weights: Vec<f32> = (0..elements).map(|i| value(77, i)).collect();
            // A mean of squares has no sign.
            let first = (0..elements).map(|i| value(99, i));
            let mut state: Vec<f32> = first.chain((0..elements).map(|i| value(55, i).abs())).collect();
            state.truncate(elements * optimizer.state_per_element());

            let (mut expected, mut expected_state) = (weights.clone(), state.clone());
            for i in 0..elements {
                let sum = oracle::sum(slots.iter().map(|slot| slot[i]));
                let places = || (i..state.len()).step_by(elements);
                let mut own: Vec<f32> = places().map(|place| state[place]).collect();
                oracle::step(&optimizer, &step, sum, &mut expected[i], &mut own);
                places().zip(own).for_each(|(place, own)| expected_state[place] = own);
            }
            for kernels in Kernels::available() {
                let (mut weights, mut state) = (weights.clone(), state.clone());
                kernels.run(&optimizer, &step, &view, &mut weights, &mut state);
                prop_assert_eq!(bits(&weights), bits(&expected), "{:?} weights", kernels);
                prop_assert_eq!(bits(&state), bits(&expected_state), "{:?} state", kernels);
            }
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }
}
