//! The kernels of one instruction set for one element type.

use half::{bf16, f16};

use super::optimizer::Optimizer;
use super::{Kernel, Kernels, Narrow, Widen};

/// One kernel for each optimizer, and the conversions.
pub struct Table<E> {
    pub(super) average: Kernel<E>,
    pub(super) sgd: Kernel<E>,
    pub(super) momentum: Kernel<E>,
    pub(super) nesterov: Kernel<E>,
    pub(super) adam: Kernel<E>,
    pub(super) adamw: Kernel<E>,
    pub(super) widen: Widen<E>,
    pub(super) narrow: Narrow<E>,
}

impl<E> Table<E> {
    /// The kernel of an optimizer.
    pub(super) fn kernel(&self, optimizer: &Optimizer) -> Kernel<E> {
        match optimizer {
            Optimizer::Average => self.average,
            Optimizer::Sgd { .. } => self.sgd,
            Optimizer::Momentum { .. } => self.momentum,
            Optimizer::Nesterov { .. } => self.nesterov,
            Optimizer::Adam { .. } => self.adam,
            Optimizer::AdamW { .. } => self.adamw,
        }
    }
}

/// The element types that kernels are compiled for.
pub trait Tabled: Sized {
    /// This type's kernels among those of one instruction set.
    fn table(kernels: &Kernels) -> &Table<Self>;
}

impl Tabled for f32 {
    fn table(kernels: &Kernels) -> &Table<Self> {
        &kernels.f32
    }
}

impl Tabled for f16 {
    fn table(kernels: &Kernels) -> &Table<Self> {
        &kernels.f16
    }
}

impl Tabled for bf16 {
    fn table(kernels: &Kernels) -> &Table<Self> {
        &kernels.bf16
    }
}
