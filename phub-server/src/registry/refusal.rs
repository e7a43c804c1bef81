//! The refusal of a request. Must not know HTTP.

use pbox_core::control::{ParseError, RefusalCode};

use super::cut::JobEnded;

/// Why a request is refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The code, by which programs decide.
    pub code: RefusalCode,
    /// The text for the person who made the request.
    pub why: String,
}

/// What makes a refusal of a code.
pub(crate) trait Because {
    /// Makes the refusal.
    fn because(self, why: impl Into<String>) -> Refusal;
}

impl Because for RefusalCode {
    fn because(self, why: impl Into<String>) -> Refusal {
        Refusal { code: self, why: why.into() }
    }
}

impl Refusal {
    /// Refuses a request that is wrong in itself.
    pub fn bad(why: impl ToString) -> Self {
        RefusalCode::BadRequest.because(why.to_string())
    }

    /// Refuses for a cause that the hub's log has.
    pub fn internal() -> Self {
        RefusalCode::Internal.because("the hub could not do it")
    }
}

impl From<ParseError> for Refusal {
    fn from(error: ParseError) -> Self {
        let code = match error {
            ParseError::Malformed { .. } => RefusalCode::BadRequest,
            ParseError::Protocol { .. } | ParseError::Newer { .. } => RefusalCode::ProtocolDiffers,
        };
        code.because(error.to_string())
    }
}

impl From<JobEnded> for Refusal {
    fn from(error: JobEnded) -> Self {
        RefusalCode::JobEnded.because(error)
    }
}

impl From<NoThread> for Refusal {
    fn from(error: NoThread) -> Self {
        RefusalCode::NoResource.because(error)
    }
}

/// A thread could not be had, or failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoThread(pub(super) String);

impl From<NoThread> for String {
    fn from(error: NoThread) -> Self {
        error.0
    }
}
