//! Kernels: the sum of a chunk's slots (one gradient from each worker) and the optimizer's step, in one pass.
//!
//! One loop (`body`) is compiled once for each instruction set (`isa`), element type and optimizer (`rule`). At start, the
//! best instruction set of the processor is chosen (`compiled`). All instruction sets give the bits of `oracle`. Each element
//! is summed in worker order, and no multiplication is fused into an addition. So the width of a vector does not change the
//! result. Sum and step are in f32 for every element type; the result is rounded last.
//!
//! The sum runs once, at the last arrival, instead of one addition at each arrival. So the accumulator stays in
//! registers. A chunk costs `workers + 2` reads and 2 writes of its size in memory (with Adam, `workers + 3` reads and
//! 3 writes). The memory limits the speed of the hub (`docs/decisions/0004-sum-at-last-arrival.md`).

mod average;
mod body;
#[allow(unsafe_code)]
mod compiled;
mod element;
#[allow(unsafe_code)]
mod isa;
mod magnitude;
mod measured;
mod optimizer;
pub mod oracle;
mod rule;
mod tensors;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

pub(crate) use average::Decay;
pub use compiled::{Kernels, Slots};
pub use element::Element;
pub(crate) use element::typed;
pub(crate) use isa::{Converter, Vector, Work};
pub use magnitude::Magnitude;
pub use measured::Before;
pub use optimizer::{
    Ablate, Groups, InvalidOptimizer, Multipliers, Numbers, NumbersByRound, Optimizer, Step,
};
pub use tensors::{Selection, Tensor, Tensors};

/// The number of lanes of a sum of squares: the number of values in the widest vector.
const LANES: usize = 32;
