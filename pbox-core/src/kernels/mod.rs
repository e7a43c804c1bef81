//! Kernels: the sum of a chunk's slots, fused with the optimizer's step, in one pass.
//!
//! One loop (`body`) is compiled once for each instruction set (`scalar`, `avx2`, `avx512`, `neon`), element type
//! and optimizer (`rule`). One table of these functions is chosen at start. All of them give the bits of `oracle`:
//! each element is summed in worker order, and no multiplication is fused into an addition, so the width of a
//! vector does not change the result. Sum and step are in f32 for every element type; the result is rounded last.
//!
//! The sum runs once, at the last arrival, and not as one addition at each arrival. So the accumulator stays in
//! registers, and a chunk costs `workers + 2` reads and 2 writes of memory (Adam: `workers + 3` and 3). Memory is
//! what bounds the hub (`docs/decisions/0004-sum-at-last-arrival.md`).
//!
//! On the `unsafe` list: calls of functions for instruction sets that were detected.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod body;
mod element;
#[cfg(target_arch = "aarch64")]
mod neon;
mod optimizer;
pub mod oracle;
mod rule;
mod scalar;
mod slots;
mod table;
pub(crate) mod vector;
pub(crate) mod work;

use half::{bf16, f16};

pub use element::Element;
pub(crate) use element::typed;
pub use optimizer::{Ablate, InvalidOptimizer, LearningRates, Optimizer};
use oracle::Step;
pub use slots::Slots;
use table::Table;
pub(crate) use table::Tabled;
use work::{InstructionSet, Work};

/// Sums the slots and steps. Workers read `window`; `kept` stays in the hub.
///
/// Unsafe, because the processor must have the instruction set that the function is compiled for.
type Kernel<E> = unsafe fn(&Step, &Slots<E>, window: &mut [E], kept: &mut [f32]);

/// Converts elements to f32. Unsafe for the same reason.
type Widen<E> = unsafe fn(&[E], wide: &mut [f32]);

/// Converts f32 to elements. Unsafe for the same reason.
type Narrow<E> = unsafe fn(&[f32], elements: &mut [E]);

/// The kernels of one instruction set.
pub struct Kernels {
    name: &'static str,
    set: InstructionSet,
    available: fn() -> bool,
    f32: Table<f32>,
    f16: Table<f16>,
    bf16: Table<bf16>,
}

/// The best comes first.
static ALL: &[Kernels] = &[
    #[cfg(target_arch = "x86_64")]
    avx512::KERNELS,
    #[cfg(target_arch = "x86_64")]
    avx2::KERNELS,
    #[cfg(target_arch = "aarch64")]
    neon::KERNELS,
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

    /// The name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sums the slots in f32, steps in f32, and writes the rounded result into `window`, which is sent to the
    /// workers.
    ///
    /// `kept` stays in the hub: [`Optimizer::kept_per_element`] f32 for each element. The master weights come
    /// first, if there are any; without them, `window` holds the weights. Then comes the optimizer's state: for
    /// Adam and AdamW, all first moments of the chunk, then all second moments.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn run<E: Element>(
        &self,
        optimizer: &Optimizer,
        step: &Step,
        slots: &Slots<E>,
        window: &mut [E],
        kept: &mut [f32],
    ) {
        let elements = slots.elements();
        assert_eq!(window.len(), elements, "the window and the slots have the same length");
        assert_eq!(
            kept.len(),
            elements * optimizer.kept_per_element(E::DTYPE),
            "the kept values match the slots"
        );
        let kernel = E::table(self).kernel(optimizer);
        // SAFETY: only `available` hands out tables, after it detected their instruction set.
        unsafe { kernel(step, slots, window, kept) }
    }

    /// Converts the elements to f32, with the bits of [`Element::to_f32`] except for NaNs.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn widen<E: Element>(&self, elements: &[E], wide: &mut [f32]) {
        assert_eq!(elements.len(), wide.len(), "a place for each element");
        let widen = E::table(self).widen;
        // SAFETY: only `available` hands out tables, after it detected their instruction set.
        unsafe { widen(elements, wide) }
    }

    /// Converts the values to elements, with the bits of [`Element::from_f32`] except for NaNs.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn narrow<E: Element>(&self, values: &[f32], elements: &mut [E]) {
        assert_eq!(values.len(), elements.len(), "a place for each value");
        let narrow = E::table(self).narrow;
        // SAFETY: as in `widen`.
        unsafe { narrow(values, elements) }
    }

    /// Runs work other than sums, compiled for the instruction set. `codec` and `slim` define such work.
    pub(crate) fn work<W: Work>(&self, work: W) -> W::Output {
        match self.set {
            // SAFETY: only `available` hands out tables, after it detected their instruction set.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => unsafe { avx512::work(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => unsafe { avx2::work(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => unsafe { neon::work(work) },
            InstructionSet::Scalar => scalar::work(work),
        }
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests;
