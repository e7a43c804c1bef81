//! Slim-DP: workers send only the most significant parameters (Sun et al., section 3). This module defines the bytes of
//! each round and their meaning, and does no input or output. The hub's shard uses it to step, and the worker's session to
//! push.
//!
//! ```text
//!   round  0          1      2                3 .. q-1                q      q+1                     r mod q = 0
//!   push   broadcast  whole  whole            significant + explorer  whole  significant + explorer  whole
//!                       \-- select --> set from round 3 on              \-- select --> next set from round q+2 on
//! ```
//!
//! The *significant set* has the parameters with the largest significance `|w| + c |g|`: a part `beta` of all
//! parameters. The paper calls this set the core. It is the same for all workers. The *explorer* has a part `alpha -
//! beta` of all parameters. In each round, each worker draws its explorer from the parameters outside the significant
//! set. A worker pushes only the significant set and its explorer. The hub answers with the weights of the same
//! parameters.

mod board;
mod explorer;
mod payload;
mod pusher;
mod selector;
pub mod set;
mod significance;

use serde::{Deserialize, Serialize};

pub use board::Board;
pub use explorer::Drawer;
pub use payload::{Push, SlimPayloadError, answer, merge, payload_bytes};
pub use pusher::Pusher;
pub(crate) use selector::Selector;

use crate::layout::Round;

/// The settings of Slim-DP. They are the same for all workers of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlimDp {
    /// The part of the parameters that is sent in a round: above 0, at most 1.
    pub alpha: f32,
    /// The part of the parameters in the significant set: from 0 to `alpha`. With `beta = alpha` nothing is explored,
    /// and training does not converge (section 4.3).
    pub beta: f32,
    /// The number of rounds from one selection of the significant set to the next, at least 1.
    #[serde(default = "default_q")]
    pub q: u32,
    /// The factor of the gradient in the significance `|w| + c |g|`. The default is `mean |w| / mean |g|` of the whole
    /// model, at each selection. With the default, weights and gradients have the same influence at any scale and
    /// learning rate.
    #[serde(default)]
    pub c: Option<f32>,
    /// The way in which the hub learns which parameters a worker explores.
    #[serde(default)]
    pub explorer: Explorer,
}

/// The way in which the hub learns which parameters a worker explores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Explorer {
    /// The worker sends the indices of the explored parameters, 16 bits each. (In section 3.5 of the paper, the
    /// worker sends a key with each value.)
    Keys,
    /// Worker and hub both draw the indices from the same seed, and no indices are sent.
    #[default]
    Seeded,
}

/// Returns the default of `q`: the paper's choice for VGG-16, in mini-batches. For GoogLeNet, the paper chooses
/// 50,000 (section 4.2).
fn default_q() -> u32 {
    20_000
}

/// The limit on the elements of a chunk: an index has 16 bits.
pub const MAX_ELEMENTS: usize = 1 << 16;

/// Settings that Slim-DP cannot work with.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidSlimDp {
    /// Alpha is not in the range: above 0, at most 1.
    #[error(
        "Slim-DP: alpha is {seen}: expected the part of the parameters to send, above 0 and at most 1, such as 0.2"
    )]
    Alpha {
        /// The alpha of the settings.
        seen: f32,
    },
    /// Beta is not in the range from 0 to alpha.
    #[error(
        "Slim-DP: beta is {seen} with alpha {alpha}: expected the part of the parameters in the significant set, from 0 to alpha; half of alpha is the paper's choice"
    )]
    Beta {
        /// The beta of the settings.
        seen: f32,
        /// The alpha of the settings.
        alpha: f32,
    },
    /// Q is 0: there is no round between two selections.
    #[error(
        "Slim-DP: q is 0: expected the rounds from one selection of the significant set to the next, at least 1"
    )]
    Q,
    /// The coefficient is negative or not finite.
    #[error(
        "Slim-DP: c is {seen}: expected the factor of the gradient in the significance |w| + c |g|, finite and not negative; without c, weights and gradients count the same"
    )]
    C {
        /// The coefficient of the settings.
        seen: f32,
    },
    /// A chunk has more elements than 16 bits can number.
    #[error(
        "Slim-DP with chunks of {elements} elements: an index has 16 bits, so a chunk has at most {MAX_ELEMENTS}; use smaller chunks"
    )]
    Chunk {
        /// The number of elements of the largest chunk.
        elements: usize,
    },
}

impl SlimDp {
    /// Creates settings with this alpha and beta, and the defaults for the rest.
    pub fn new(alpha: f32, beta: f32) -> Self {
        SlimDp { alpha, beta, q: default_q(), c: None, explorer: Explorer::default() }
    }

    /// Checks that Slim-DP can work with each setting.
    pub fn check(&self) -> Result<(), InvalidSlimDp> {
        let &SlimDp { alpha, beta, q, c, .. } = self;
        if !(alpha > 0.0 && alpha <= 1.0) {
            return Err(InvalidSlimDp::Alpha { seen: alpha });
        }
        if !(0.0..=alpha).contains(&beta) {
            return Err(InvalidSlimDp::Beta { seen: beta, alpha });
        }
        if q == 0 {
            return Err(InvalidSlimDp::Q);
        }
        if let Some(seen) = c.filter(|c| !(0.0..f32::INFINITY).contains(c)) {
            return Err(InvalidSlimDp::C { seen });
        }
        Ok(())
    }

    /// Checks that chunks of this many elements are small enough.
    pub fn check_chunks(&self, elements: usize) -> Result<(), InvalidSlimDp> {
        if elements > MAX_ELEMENTS { Err(InvalidSlimDp::Chunk { elements }) } else { Ok(()) }
    }

    /// Whether the significant set is selected after a round. In such a round, all workers push all parameters.
    /// `first` is the first round that the job trains in: 1, or the first round after its checkpoint.
    pub fn selects(&self, round: Round, first: Round) -> bool {
        round == first || (round > first && round.0.is_multiple_of(self.q))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let slim = SlimDp::new(0.2, 0.1);
        assert_eq!(slim.check(), Ok(()));
        assert_eq!(SlimDp::new(1.0, 1.0).check(), Ok(()));
        for seen in [0.0, -0.5, 1.5, f32::INFINITY] {
            assert_eq!(SlimDp::new(seen, 0.0).check(), Err(InvalidSlimDp::Alpha { seen }));
        }
        assert!(matches!(SlimDp::new(f32::NAN, 0.0).check(), Err(InvalidSlimDp::Alpha { .. })));
        assert_eq!(SlimDp::new(0.2, 0.3).check(), Err(InvalidSlimDp::Beta { seen: 0.3, alpha: 0.2 }));
        assert_eq!(SlimDp::new(0.2, -0.1).check(), Err(InvalidSlimDp::Beta { seen: -0.1, alpha: 0.2 }));
        assert_eq!(SlimDp { q: 0, ..slim }.check(), Err(InvalidSlimDp::Q));
        let with = |c| SlimDp { c: Some(c), ..slim }.check();
        assert_eq!(with(-1.0), Err(InvalidSlimDp::C { seen: -1.0 }));
        assert_eq!(with(f32::INFINITY), Err(InvalidSlimDp::C { seen: f32::INFINITY }));
        assert!(matches!(with(f32::NAN), Err(InvalidSlimDp::C { .. })));
        assert_eq!(slim.check_chunks(65_536), Ok(()));
        assert_eq!(slim.check_chunks(65_537), Err(InvalidSlimDp::Chunk { elements: 65_537 }));
    }

    #[test]
    fn the_significant_set_is_selected_at_first_and_every_q_rounds() {
        let slim = SlimDp { q: 4, ..SlimDp::new(0.2, 0.1) };
        let selects = |first: u32| -> Vec<u32> {
            (1..14).filter(|&round| slim.selects(Round(round), Round(first))).collect()
        };
        assert_eq!(selects(1), [1, 4, 8, 12]);
        assert_eq!(selects(6), [6, 8, 12]);
    }
}
