//! The reason why a job refuses a member. The driver makes a reply of it.

use pbox_core::control::RefusalCode;

/// The reason why a job refuses a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The code, by which programs decide what to do.
    pub code: RefusalCode,
    /// The text for the person who asked.
    pub why: String,
}

impl Refused {
    /// Makes the refusal of a code and a text.
    pub(crate) fn new(code: RefusalCode, why: String) -> Self {
        Refused { code, why }
    }
}
