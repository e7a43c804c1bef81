//! Exceptions: one class for each cause. The message has the whole chain of reasons.
//!
//! Knows every error of sessions and hubs, and none of the calls.

use std::error::Error as Cause;

use phub_server::HubError;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use worker_shim::{BackgroundError, ExchangeError, MemberError, SessionError};

create_exception!(phub, Error, PyException, "An error of a hub or a session; the base of all classes below.");
create_exception!(phub, UnreachableError, Error, "No hub answers at the address.");
create_exception!(phub, RefusedError, Error, "The hub refused; the message says why.");
create_exception!(
    phub,
    ProtocolError,
    Error,
    "The other end is not a hub of this version, or broke the protocol."
);
create_exception!(phub, SettingsError, Error, "Wrong settings, names, keys or optimizer.");
create_exception!(phub, OutOfMemoryError, Error, "There was no memory for a window.");
create_exception!(phub, ConnectError, Error, "No transport leads to the hub's data path.");
create_exception!(phub, MissingWorkersError, Error, "Other workers did not join within the limit.");
create_exception!(phub, JobFailedError, Error, "The job cannot go on: a worker died, or broke the protocol.");
create_exception!(phub, PeerLeftError, Error, "A worker left before the round that this worker waits for.");
create_exception!(phub, HubLostError, Error, "The hub died or was cut off.");
create_exception!(phub, StalledError, Error, "All workers are alive, but some worker does not push the key.");
create_exception!(phub, OrderError, Error, "A call out of order, such as a second push before the wait.");
create_exception!(phub, LeftError, Error, "The session has left its job.");
create_exception!(phub, ForkError, Error, "The session belongs to the process that forked this one.");
create_exception!(phub, HubStartError, Error, "A hub could not be started.");
create_exception!(phub, ResourceError, Error, "The system gave no thread, descriptor or other resource.");

/// Adds the classes to the module, under the names that users see.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("UnreachableError", py.get_type::<UnreachableError>())?;
    module.add("RefusedError", py.get_type::<RefusedError>())?;
    module.add("ProtocolError", py.get_type::<ProtocolError>())?;
    module.add("SettingsError", py.get_type::<SettingsError>())?;
    module.add("OutOfMemoryError", py.get_type::<OutOfMemoryError>())?;
    module.add("ConnectError", py.get_type::<ConnectError>())?;
    module.add("MissingWorkersError", py.get_type::<MissingWorkersError>())?;
    module.add("JobFailedError", py.get_type::<JobFailedError>())?;
    module.add("PeerLeftError", py.get_type::<PeerLeftError>())?;
    module.add("HubLostError", py.get_type::<HubLostError>())?;
    module.add("StalledError", py.get_type::<StalledError>())?;
    module.add("OrderError", py.get_type::<OrderError>())?;
    module.add("LeftError", py.get_type::<LeftError>())?;
    module.add("ForkError", py.get_type::<ForkError>())?;
    module.add("HubStartError", py.get_type::<HubStartError>())?;
    module.add("ResourceError", py.get_type::<ResourceError>())
}

/// The exception for an error of a background session.
pub fn of_session(error: &BackgroundError) -> PyErr {
    match error {
        BackgroundError::Session(error) => of_cause(error),
        BackgroundError::Left { .. } => LeftError::new_err(chain(error)),
        BackgroundError::OtherProcess { .. } => ForkError::new_err(chain(error)),
        BackgroundError::Interrupted { .. } => Error::new_err(chain(error)),
    }
}

/// The exception for a session's own error.
pub fn of_cause(error: &SessionError) -> PyErr {
    let words = chain(error);
    match error {
        SessionError::Member(error) => of_membership(error, words),
        SessionError::Window(_) => OutOfMemoryError::new_err(words),
        SessionError::Missing { .. } => MissingWorkersError::new_err(words),
        SessionError::PeerLeft { .. } => PeerLeftError::new_err(words),
        SessionError::Stalled { .. } => StalledError::new_err(words),
        SessionError::Exchange(ExchangeError::UnexpectedAnswer { .. } | ExchangeError::Frame { .. }) => {
            ProtocolError::new_err(words)
        }
        SessionError::Exchange(ExchangeError::Closed { .. }) => HubLostError::new_err(words),
        SessionError::Exchange(_) => OrderError::new_err(words),
        SessionError::System(_) | SessionError::Panicked => ResourceError::new_err(words),
        SessionError::JobName(_)
        | SessionError::Pull(_)
        | SessionError::Terms(_)
        | SessionError::LearningRate { .. } => SettingsError::new_err(words),
    }
}

fn of_membership(error: &MemberError, words: String) -> PyErr {
    match error {
        MemberError::Unreachable { .. } => UnreachableError::new_err(words),
        MemberError::Refused { .. } => RefusedError::new_err(words),
        MemberError::Nonsense { .. } | MemberError::Placement { .. } => ProtocolError::new_err(words),
        MemberError::Connect(_) | MemberError::NoTransport { .. } => ConnectError::new_err(words),
        MemberError::JobFailed { .. } => JobFailedError::new_err(words),
        MemberError::HubLost { .. } => HubLostError::new_err(words),
        MemberError::System(_) => ResourceError::new_err(words),
        MemberError::Hubs { .. } | MemberError::State { .. } => SettingsError::new_err(words),
    }
}

/// The exception for a hub that did not start.
pub fn of_hub(error: &HubError) -> PyErr {
    HubStartError::new_err(chain(error))
}

/// An error and its causes, each once.
fn chain(error: &dyn Cause) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(because) = cause {
        let said = because.to_string();
        if !words.contains(&said) {
            words = format!("{words}: {said}");
        }
        cause = because.source();
    }
    words
}
