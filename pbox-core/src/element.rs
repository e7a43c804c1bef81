//! Element types: what a window holds, and how it becomes f32 and back.
//!
//! Plain data. These conversions are the specification; `kernels` has the fast ones, with equal bits.

use std::fmt::Debug;

use fabric::Plain;
use half::{bf16, f16};

use crate::kernels::Tabled;
use crate::key::Dtype;

/// A type that keys can have: f32, `half::f16` or `half::bf16`.
pub trait Element: Tabled + Plain + Debug + Default + PartialEq + Send + Sync {
    /// Its name on the wire.
    const DTYPE: Dtype;

    /// The same number in f32; exact.
    fn to_f32(self) -> f32;

    /// The nearest number of this type, ties to even: infinity beyond the largest, subnormal below the
    /// smallest normal one. A NaN stays one.
    fn from_f32(value: f32) -> Self;
}

/// `typed!(dtype, E => work::<E>())`: the same work for whichever type a key has.
macro_rules! typed {
    ($dtype:expr, $E:ident => $work:expr) => {
        match $dtype {
            $crate::key::Dtype::F32 => {
                type $E = f32;
                $work
            }
            $crate::key::Dtype::F16 => {
                type $E = half::f16;
                $work
            }
            $crate::key::Dtype::BF16 => {
                type $E = half::bf16;
                $work
            }
        }
    };
}
pub(crate) use typed;

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

// The crate's `const` conversions are plain arithmetic. The others may ask at each element what the
// processor can do, which the round path must not.

impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;

    #[inline]
    fn to_f32(self) -> f32 {
        self.to_f32_const()
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        f16::from_f32_const(value)
    }
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::BF16;

    #[inline]
    fn to_f32(self) -> f32 {
        self.to_f32_const()
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        bf16::from_f32_const(value)
    }
}
