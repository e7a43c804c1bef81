//! The reason why a job refuses a member. The driver makes the reply from this reason.

use pbox_core::control::RefusalCode;

/// The reason why a job refuses a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The code, from which programs decide what to do.
    pub code: RefusalCode,
    /// The text for the person who asked.
    pub why: String,
}

impl Refused {
    /// Creates a refusal from a code and a text.
    pub(crate) fn new(code: RefusalCode, why: String) -> Self {
        Refused { code, why }
    }
}
