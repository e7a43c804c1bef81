//! The three stages of a core for a chunk: read the workers' pushes, step, and reply.
//!
//! ```text
//!   mode                  read             step into                        reply
//!   BSP                   bare slots       the window that workers read     shared, raw
//!   SSP, ASP              bare slots       a window that only the hub sees  each worker's own, raw
//!   codec, BSP            decoded frames   the hub's own f32                shared, coded
//!   codec, SSP or ASP     decoded frames   the hub's own f32                each worker's own, coded
//!   Slim-DP               decoded frames   the hub's own f32                each worker's own, coded
//! ```
//!
//! A mode is a row: [`Staged`] with one type for each stage, chosen when the shard is made, so that no stage asks for
//! another mode. Owned by the core, and laid out by place: the chunks' order in the shard.

#[allow(unsafe_code)]
mod bare;
mod chunks;
mod coded;
#[allow(unsafe_code)]
mod frame_sum;
mod own;
mod private;
mod shadow;
#[allow(unsafe_code)]
mod slim;
#[allow(unsafe_code)]
mod staged;
mod steps;

pub(crate) use bare::{BareSlots, RawForAll};
pub(crate) use chunks::Chunk;
pub(crate) use coded::{CodedForAll, CodedForEach};
pub(crate) use frame_sum::FrameSum;
pub(crate) use own::RawForEach;
pub(crate) use private::HubWeights;
pub(crate) use slim::{SlimPushes, SlimReply};
pub(crate) use staged::{Staged, Stages, To};
