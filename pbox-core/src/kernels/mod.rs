//! Kernels: the sum of a chunk's slots, fused with the optimizer's step, in one pass.
//!
//! One body (`body`), compiled once per instruction set (`scalar`, `avx2`, `avx512`, `neon`), element type
//! and optimizer (`rule`), behind one table chosen at start. All of them give the bits of `oracle`: each
//! element is summed in worker order and no multiplication is fused into an addition, so the width of a
//! vector cannot show. Sum and step are in f32 whatever the element type; what is sent is rounded last.
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
pub(crate) use slots::Gradients;
pub use slots::Slots;
use table::Table;
pub(crate) use table::Tabled;
use work::{InstructionSet, Work};

/// Sum of the slots and step. `window` is what workers read; `kept` is what the hub keeps beside it.
///
/// It is unsafe for what it is compiled for: the processor must have the instruction set.
type Kernel<E> = unsafe fn(&Step, &Slots<E>, window: &mut [E], kept: &mut [f32]);

/// The elements in f32. Unsafe for the same reason.
type Widen<E> = unsafe fn(&[E], wide: &mut [f32]);

/// The other way.
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

/// Best first.
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

    /// Name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sums the slots in f32 and applies the optimizer, in f32. `window` becomes what is sent back.
    ///
    /// `kept` is what the hub keeps beside it, [`Optimizer::kept_per_element`] f32 for each element: the
    /// master weights, where there are any (else `window` is read too), then the optimizer's state,
    /// which for Adam and AdamW is all first moments of the chunk, then all second ones. `window` becomes
    /// the master weights, rounded.
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
        assert_eq!(window.len(), elements, "window and slots are of one chunk");
        assert_eq!(
            kept.len(),
            elements * optimizer.kept_per_element(E::DTYPE),
            "what is kept and slots are of one chunk"
        );
        let kernel = E::table(self).kernel(optimizer);
        // SAFETY: the caller can only have a table from `available`, which saw that the processor
        // has its instruction set.
        unsafe { kernel(step, slots, window, kept) }
    }

    /// The elements in f32, with the bits of [`Element::to_f32`], but for those of a NaN.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn widen<E: Element>(&self, elements: &[E], wide: &mut [f32]) {
        assert_eq!(elements.len(), wide.len(), "a place for each element");
        let widen = E::table(self).widen;
        // SAFETY: the caller can only have a table from `available`, which saw that the processor
        // has its instruction set.
        unsafe { widen(elements, wide) }
    }

    /// The values as elements, with the bits of [`Element::from_f32`], but for those of a NaN.
    ///
    /// # Panics
    /// When lengths differ.
    pub fn narrow<E: Element>(&self, values: &[f32], elements: &mut [E]) {
        assert_eq!(values.len(), elements.len(), "a place for each value");
        let narrow = E::table(self).narrow;
        // SAFETY: as in `widen`.
        unsafe { narrow(values, elements) }
    }

    /// Does work that is no sum, compiled for the instruction set: `codec` has it.
    pub(crate) fn work<W: Work>(&self, work: W) -> W::Output {
        match self.set {
            // SAFETY: the caller can only have a table from `available`, which saw that the processor
            // has its instruction set.
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
