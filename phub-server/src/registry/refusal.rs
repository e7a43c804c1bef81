//! The refusal of a request. Must not depend on HTTP.

use coordinator::{JobEnded, Refused};
use pbox_core::Round;
use pbox_core::control::{ParseError, RefusalCode};

/// The reason why a request is refused.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// The code, by which programs decide what to do.
    pub code: RefusalCode,
    /// The text for the person who made the request.
    pub why: String,
    /// The round that the job has reached, if the request named another round.
    pub round: Option<Round>,
}

/// The conversion of a code into a refusal.
pub(crate) trait Because {
    /// Makes the refusal with this reason.
    fn because(self, why: impl Into<String>) -> Refusal;
}

impl Because for RefusalCode {
    fn because(self, why: impl Into<String>) -> Refusal {
        Refusal { code: self, why: why.into(), round: None }
    }
}

impl Refusal {
    /// Refuses an invalid request.
    pub fn bad(why: impl ToString) -> Self {
        RefusalCode::BadRequest.because(why.to_string())
    }

    /// Refuses a request because of an internal error. The hub's log has the details.
    pub fn internal() -> Self {
        RefusalCode::Internal.because("the hub could not carry out the request; the hub's log says why")
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

impl From<Refused> for Refusal {
    fn from(Refused { code, why }: Refused) -> Self {
        Refusal { code, why, round: None }
    }
}

impl From<JobEnded> for Refusal {
    fn from(error: JobEnded) -> Self {
        RefusalCode::JobEnded.because(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::test_bed::{registry, request, runtime};

    #[test]
    fn a_token_has_one_spelling_and_no_other_is_anybodys() {
        let (registry, _core) = registry();
        let token = runtime().block_on(registry.join("job".into(), request())).unwrap().token;
        assert!(registry.has_member(&token) && registry.heartbeat("job", &token, None).is_ok());
        let signed = format!("+{}", &token[1..]);
        for wrong in
            ["", "0", &"0".repeat(32), &token[1..], &format!("0{token}"), &token.to_uppercase(), &signed]
        {
            // A token of digits alone has no letters to capitalize.
            let refused = registry.heartbeat("job", wrong, None).map(drop);
            let is_same = wrong == token;
            assert_eq!(registry.has_member(wrong), is_same, "{wrong}");
            assert_eq!(
                refused.err().map(|refused| refused.code),
                (!is_same).then_some(RefusalCode::TokenUnknown)
            );
        }
        let refused = registry.heartbeat("another", &token, None).map(drop).unwrap_err();
        assert_eq!(refused.code, RefusalCode::TokenUnknown);
    }
}
