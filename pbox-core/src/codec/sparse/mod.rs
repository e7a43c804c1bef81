//! The codecs that send some values unchanged, and keep the others for later.
//!
//! `topk` and `dgc` choose the values of the largest magnitude (`select`) and share a payload (`payload`); `randomk`
//! chooses values at random.

pub(super) mod dgc;
mod payload;
pub(super) mod randomk;
mod select;
pub(super) mod topk;
