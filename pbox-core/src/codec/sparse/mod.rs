//! Codecs that send some values unchanged, and keep all other values for later.
//!
//! `topk` and `dgc` choose the values with the largest magnitudes (`select`) and have the same form of payload (`payload`).
//! `randomk` chooses values at random.

pub(super) mod dgc;
mod payload;
pub(super) mod randomk;
mod select;
pub(super) mod topk;
