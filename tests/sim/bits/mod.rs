//! Weights are those of a plain model, bit by bit.

mod compressed;
mod levels;
mod seeds;
mod slim;
