//! The failure of a request: its reason, and whether the request is retried. Must not depend on how requests are
//! sent.

use std::time::{Duration, Instant};

use pbox_core::control::RefusalCode;
use ureq::http::StatusCode;

use crate::error::MemberError;

/// The pause before a failed request is retried.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The hub itself refuses the request, and a retry would not help.
    Refused,
    /// The hub has no such job or member. The membership is over, for example because the hub was restarted.
    Gone,
    /// The hub itself refuses the request for now.
    Busy,
    /// A proxy reports that the hub cannot be reached now, or the hub asks for a retry.
    Passing,
    /// The answer does not come from a hub.
    Strange,
    /// The connection ended during the request. The hub may have carried the request out.
    Cut,
    /// There was no connection, or no answer before the timeout.
    Unreachable,
}

impl Cause {
    /// Returns the failure for a hub's refusal. The status decides only if this program does not know the code.
    pub fn of_refusal(code: RefusalCode, status: StatusCode, asks_again: bool) -> Self {
        use RefusalCode as Code;
        match code {
            Code::NoConnection => Cause::Passing,
            Code::Stalled | Code::RankBusy | Code::JobDiffers | Code::Busy | Code::NotReady => Cause::Busy,
            Code::PageUnknown
            | Code::JobUnknown
            | Code::TokenUnknown
            | Code::WorkerLost
            | Code::JobEnded
            | Code::HubStops
            | Code::Internal => Cause::Gone,
            Code::Other if passes(status) && asks_again => Cause::Passing,
            Code::Other if passes(status) => Cause::Busy,
            Code::Other if status == StatusCode::NOT_FOUND => Cause::Gone,
            _ => Cause::Refused,
        }
    }
}

/// Whether a status says that the same request may succeed later.
pub(crate) fn passes(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::INSUFFICIENT_STORAGE
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
}

/// Whether a refusal concerns the credential of this process.
pub(crate) fn is_about_rights(code: RefusalCode, status: StatusCode) -> bool {
    use RefusalCode as Code;
    match code {
        Code::Other => [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status),
        code => matches!(
            code,
            Code::TokenMissing | Code::TokenForeign | Code::TokenExpired | Code::NotAllowed | Code::WebPage
        ),
    }
}

/// The failure of a request.
#[derive(Debug)]
pub(crate) struct Failure {
    pub cause: Cause,
    pub error: MemberError,
}

/// Converts an error that does not come from a request. The failure is not temporary.
impl From<MemberError> for Failure {
    fn from(error: MemberError) -> Self {
        Failure { cause: Cause::Refused, error }
    }
}

impl Failure {
    /// Adds the likely kind of the server to the error, if the first request to a server got no HTTP answer.
    pub fn of_first_request(mut self) -> Self {
        if let (Cause::Cut, MemberError::Unreachable { cause, .. }) = (self.cause, &mut self.error) {
            *cause = format!(
                "the server at this address does not speak HTTP, or has ended ({cause}): the server may be another program, or a hub's data \
                 path (port 7078, if the control port is 7077)"
            );
        }
        self
    }

    /// Whether a member retries this request. A member's hub may get the same request twice. If there is no connection, the
    /// hub has ended, and a retry does not help.
    pub fn passes_for_member(&self) -> bool {
        !matches!(self.cause, Cause::Refused | Cause::Gone | Cause::Unreachable)
    }

    /// Whether a join is retried, because the hub has not received the request, or asks for a retry.
    pub fn passes_for_newcomer(&self) -> bool {
        self.cause == Cause::Passing
    }
}

/// Retries a request until `limit` is over, as long as its failure may be temporary.
///
/// # Errors
/// Returns the last failure. If the limit cut the last try short, returns the hub's answer to the previous try. The
/// error has the number of tries and their time.
pub(crate) fn insist<R>(
    limit: Duration,
    passes: impl Fn(&Failure) -> bool,
    mut ask: impl FnMut() -> Result<R, Failure>,
) -> Result<R, Failure> {
    let begun = Instant::now();
    let mut answer = None;
    for tries in 1.. {
        let failure = match ask() {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        let over = begun.elapsed() >= limit;
        if over || !passes(&failure) {
            let Failure { cause, error } = failure;
            // The limit cut the last try short. The hub's earlier answer explains the failure better.
            let cut_short = over && cause == Cause::Unreachable;
            let error = answer.filter(|_| cut_short).unwrap_or(error);
            return Err(Failure { cause, error: error.after(tries, begun.elapsed()) });
        }
        answer = (failure.cause != Cause::Cut).then_some(failure.error);
        // No event reports that a hub or a proxy can answer again, so this thread polls.
        std::thread::sleep(RETRY);
    }
    unreachable!("the limit ends the tries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_comes_to_follows_from_its_code() {
        for &code in RefusalCode::ALL {
            let status = StatusCode::from_u16(code.status()).unwrap();
            let asks_again = code == RefusalCode::NoConnection;
            let by_code = Cause::of_refusal(code, status, false);
            // A hub of an older version sends only the status. The status alone must give the same cause as the code.
            assert_eq!(by_code, Cause::of_refusal(RefusalCode::Other, status, asks_again), "{code}");
            assert_eq!(is_about_rights(code, status), is_about_rights(RefusalCode::Other, status), "{code}");
            // With a known code, the status does not matter: a server between this process and the hub may have changed it.
            assert_eq!(by_code, Cause::of_refusal(code, StatusCode::IM_A_TEAPOT, true), "{code}");
        }
    }
}
