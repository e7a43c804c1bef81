//! Weights equal those of a plain model, bit for bit.

mod compressed;
mod levels;
mod seeds;
mod slim;
