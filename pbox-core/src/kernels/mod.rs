//! Kernels: the sum of a chunk's slots, fused with the optimizer's step, in one pass.
//!
//! One body (`body`), compiled once per instruction set (`scalar`, `avx2`, `avx512`), behind one
//! table chosen at start. All of them give the bits of `oracle`: each element is summed in worker
//! order and no multiplication is fused into an addition, so the width of a vector cannot show.
//!
//! One pass at the last arrival, not one addition at each: the accumulator stays in registers, and
//! a chunk costs `workers + 2` reads and 2 writes of memory, which is what bounds the hub
//! (`docs/decisions/0004-sum-at-last-arrival.md`).
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
type Sgd = unsafe fn(&Step, &Slots, weights: &mut [f32]);
/// Step on `weights` and `state`.
type Nesterov = unsafe fn(&Step, &Slots, weights: &mut [f32], state: &mut [f32]);

/// The kernels of one instruction set.
pub struct Kernels {
    name: &'static str,
    available: fn() -> bool,
    average: Average,
    sgd: Sgd,
    nesterov: Nesterov,
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
    /// is kept. `state` is empty for optimizers without state.
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
                Optimizer::Nesterov { .. } => (self.nesterov)(step, slots, weights, state),
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
    use crate::oracle;
    use proptest::prelude::*;

    fn optimizers() -> impl Strategy<Value = Optimizer> {
        prop_oneof![
            Just(Optimizer::Average),
            (0.0f32..1.0, 0.0f32..0.1)
                .prop_map(|(learning_rate, weight_decay)| Optimizer::Sgd { learning_rate, weight_decay }),
            (0.0f32..1.0, 0.0f32..0.1, 0.0f32..0.99).prop_map(|(learning_rate, weight_decay, momentum)| {
                Optimizer::Nesterov { learning_rate, weight_decay, momentum }
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_instruction_set_gives_the_oracles_bits(
            optimizer in optimizers(),
            workers in 1usize..9,
            elements in 1usize..300,
            values in proptest::collection::vec(-1e3f32..1e3, 64),
        ) {
            let value = |salt: usize, i: usize| values[(salt * 31 + i * 7) % values.len()];
            let slots: Vec<Vec<f32>> =
                (0..workers).map(|w| (0..elements).map(|i| value(w, i)).collect()).collect();
            let starts: Vec<*const f32> = slots.iter().map(|slot| slot.as_ptr()).collect();
            // SAFETY: `slots` outlives the kernels' calls and has `elements` in each.
            let view = unsafe { Slots::new(&starts, elements) };
            let step = Step::new(&optimizer, workers as u32, optimizer.learning_rate(), 2.0, 0.5);
            let weights: Vec<f32> = (0..elements).map(|i| value(77, i)).collect();
            let state: Vec<f32> = (0..elements).map(|i| value(99, i)).collect();

            let (mut expected, mut expected_state) = (weights.clone(), state.clone());
            for i in 0..elements {
                let sum = oracle::sum(slots.iter().map(|slot| slot[i]));
                oracle::step(&optimizer, &step, sum, &mut expected[i], &mut expected_state[i]);
            }
            for kernels in Kernels::available() {
                let (mut weights, mut state) = (weights.clone(), state.clone());
                state.truncate(elements * optimizer.state_per_element());
                kernels.run(&optimizer, &step, &view, &mut weights, &mut state);
                prop_assert_eq!(bits(&weights), bits(&expected), "{:?} weights", kernels);
                prop_assert_eq!(bits(&state), bits(&expected_state[..state.len()]), "{:?} state", kernels);
            }
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }
}
