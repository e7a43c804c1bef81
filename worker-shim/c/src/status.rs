//! The result of a call, and the text of an error. Each thread has the text of its last call that failed.

use std::cell::RefCell;
use std::ffi::{CStr, CString};

use subscription::{SourceError, SubscriptionError};
use worker_shim::{BackgroundError, ExchangeError, MemberError, SessionError};

/// The result of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhubStatus {
    /// The call succeeded.
    Ok = 0,
    /// An argument or a setting is wrong: a null pointer, a key that does not exist, a learning rate that is not a
    /// number.
    Invalid = 1,
    /// Calls were made in the wrong order: a key is still in flight, there are no weights yet, or the session has
    /// left.
    Order = 2,
    /// The hub cannot be reached, or is not a hub of this version.
    Unreachable = 3,
    /// The hub refused the request.
    Refused = 4,
    /// Other workers did not join, do not push, or left too early.
    Others = 5,
    /// The job failed, or its hub is lost: the session is over. For a reader: the hub was away for too long.
    Lost = 6,
    /// The wait was ended by the callback that the caller gave to phub_join or phub_subscribe.
    Interrupted = 7,
    /// Memory, threads or descriptors ran out.
    Exhausted = 8,
    /// A session or a subscription is used in the child of a fork.
    OtherProcess = 9,
    /// A defect of this library.
    Internal = 10,
    /// There was no version of weights within the timeout.
    Timeout = 11,
    /// A version of weights in a directory cannot be read, or is damaged.
    Damaged = 12,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A failed call: its status, and the reason.
#[derive(Debug)]
pub(crate) struct Failure {
    pub status: PhubStatus,
    pub words: String,
}

impl Failure {
    pub fn invalid(words: impl Into<String>) -> Self {
        Failure { status: PhubStatus::Invalid, words: words.into() }
    }
}

/// Stores the text of a failure for this thread. Returns the status for the caller.
pub(crate) fn keep(failure: Failure) -> PhubStatus {
    let words = CString::new(failure.words.replace('\0', " ")).unwrap_or_default();
    // When a thread ends, a destructor may make a call after `LAST` is destroyed. This call returns only its
    // status.
    let _ = LAST.try_with(|last| last.replace(words));
    failure.status
}

/// Returns the text of this thread's last failure. It is valid until the thread's next failure.
pub(crate) fn last() -> *const std::ffi::c_char {
    LAST.try_with(|last| CStr::as_ptr(&last.borrow())).unwrap_or(c"".as_ptr())
}

impl From<BackgroundError> for Failure {
    fn from(error: BackgroundError) -> Self {
        let status = match &error {
            BackgroundError::Session(cause) => of_cause(cause),
            BackgroundError::Interrupted { .. } => PhubStatus::Interrupted,
            BackgroundError::Left { .. } => PhubStatus::Order,
            BackgroundError::OtherProcess { .. } => PhubStatus::OtherProcess,
        };
        Failure { status, words: error.to_string() }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        Failure { status: of_cause(&error), words: error.to_string() }
    }
}

fn of_cause(error: &SessionError) -> PhubStatus {
    use SessionError as E;
    match error {
        E::Member(error) => of_membership(error),
        E::JobName(_)
        | E::Terms(_)
        | E::LearningRate(_)
        | E::Numbers(_)
        | E::Pull(_)
        | E::Setting(_)
        | E::Trace(_) => PhubStatus::Invalid,
        E::NoWeights => PhubStatus::Order,
        E::Missing { .. } | E::PeerLeft { .. } | E::Stalled { .. } => PhubStatus::Others,
        E::Exchange(ExchangeError::NoSuchKey { .. } | ExchangeError::OtherType { .. }) => PhubStatus::Invalid,
        E::Exchange(
            ExchangeError::UnderWay { .. }
            | ExchangeError::Unpushed { .. }
            | ExchangeError::HubsWeights { .. }
            | ExchangeError::InDmaBuf { .. }
            | ExchangeError::LateBroadcast { .. }
            | ExchangeError::NeedsAll { .. }
            | ExchangeError::OnlyGradients { .. },
        ) => PhubStatus::Order,
        E::Exchange(
            ExchangeError::UnexpectedAnswer { .. }
            | ExchangeError::Frame { .. }
            | ExchangeError::Closed { .. },
        ) => PhubStatus::Lost,
        E::Window(_) | E::System(_) => PhubStatus::Exhausted,
        E::Panicked => PhubStatus::Internal,
    }
}

impl From<SubscriptionError> for Failure {
    fn from(error: SubscriptionError) -> Self {
        use SubscriptionError as E;
        let status = match &error {
            E::Source(SourceError::Hub(error)) => of_membership(error),
            E::Source(_) => PhubStatus::Invalid,
            E::Lost(_) | E::Gone => PhubStatus::Lost,
            E::Directory(_) => PhubStatus::Damaged,
            E::Timeout { .. } => PhubStatus::Timeout,
            E::Interrupted => PhubStatus::Interrupted,
            E::Busy => PhubStatus::Order,
            E::OtherProcess => PhubStatus::OtherProcess,
            E::Thread(_) => PhubStatus::Exhausted,
        };
        Failure { status, words: error.to_string() }
    }
}

fn of_membership(error: &MemberError) -> PhubStatus {
    use MemberError as E;
    match error {
        E::Hubs { .. } | E::State { .. } | E::Credential(_) | E::Trust(_) => PhubStatus::Invalid,
        E::Unreachable { .. }
        | E::Protocol { .. }
        | E::Nonsense { .. }
        | E::NoTransport { .. }
        | E::Connect(_)
        | E::DataPath { .. } => PhubStatus::Unreachable,
        E::Refused { .. } | E::NotAllowed { .. } | E::NoTls { .. } | E::CheckpointLost { .. } => {
            PhubStatus::Refused
        }
        E::JobFailed { .. } | E::HubLost { .. } => PhubStatus::Lost,
        E::System(_) => PhubStatus::Exhausted,
    }
}
