//! Exceptions: a class for each cause. The message has the whole chain of reasons.
//!
//! This file depends on every error of sessions and hubs, but not on their calls.

use std::error::Error as Cause;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeWarning};
use pyo3::prelude::*;
use worker_shim::{BackgroundError, ExchangeError, MemberError, SessionError};

create_exception!(phub, Error, PyException, "An error of a hub or a session; the base of all classes below.");

/// Defines exceptions, and the function that adds them to the module under the names that users see.
macro_rules! exceptions {
    ($($name:ident: $doc:literal,)*) => {
        $(create_exception!(phub, $name, Error, $doc);)*

        /// Adds the classes to the module.
        pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
            let base = module.py().get_type::<Error>();
            base.setattr("code", module.py().None())?;
            module.add("Error", base)?;
            $(module.add(stringify!($name), module.py().get_type::<$name>())?;)*
            Ok(())
        }
    };
}

exceptions! {
    UnreachableError: "No hub answers at the address.",
    RefusedError: "The hub refused; the message says why.",
    ProtocolError: "The other end is not a hub of this version, or broke the protocol.",
    SettingsError: "Wrong settings, names, keys or optimizer.",
    OutOfMemoryError: "There was no memory for a window.",
    ConnectError: "No transport leads to the hub's data path.",
    MissingWorkersError: "Some workers did not join within the limit.",
    JobFailedError: "The job cannot continue: a worker died, or broke the protocol.",
    PeerLeftError: "A worker left before the round that this worker waits for.",
    HubLostError: "The hub died or was cut off.",
    StalledError: "All workers are alive, but some worker does not push the key.",
    OrderError: "A call in the wrong order, such as a second push before the wait.",
    LeftError: "The session has left its job.",
    ForkError: "The session belongs to the process that forked this process.",
    HubStartError: "A hub could not be started.",
    ResourceError: "The system gave no thread, descriptor or other resource.",
}

/// Returns the exception for an error of a background session.
pub fn of_session(error: &BackgroundError) -> PyErr {
    match error {
        BackgroundError::Session(error) => of_cause(error),
        BackgroundError::Left { .. } => LeftError::new_err(chain(error)),
        BackgroundError::OtherProcess { .. } => ForkError::new_err(chain(error)),
        BackgroundError::Interrupted { .. } => Error::new_err(chain(error)),
    }
}

/// Returns the exception for a session's own error.
pub fn of_cause(error: &SessionError) -> PyErr {
    let words = chain(error);
    match error {
        SessionError::Member(error) => of_membership(error, words),
        SessionError::NoWeights => RefusedError::new_err(words),
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
        | SessionError::Setting(_)
        | SessionError::Terms(_)
        | SessionError::Trace(_)
        | SessionError::LearningRate(_)
        | SessionError::Numbers(_) => SettingsError::new_err(words),
    }
}

/// Returns the exception for an error of a request to a hub.
pub fn of_member(error: &MemberError) -> PyErr {
    of_membership(error, chain(error))
}

fn of_membership(error: &MemberError, words: String) -> PyErr {
    match error {
        MemberError::Unreachable { .. } => UnreachableError::new_err(words),
        MemberError::Refused { code, .. } | MemberError::NotAllowed { code, .. } => {
            with_code(RefusedError::new_err(words), code.word())
        }
        MemberError::NoTls { .. } => RefusedError::new_err(words),
        MemberError::Protocol { .. } | MemberError::Nonsense { .. } => ProtocolError::new_err(words),
        MemberError::Connect(_) | MemberError::DataPath { .. } | MemberError::NoTransport { .. } => {
            ConnectError::new_err(words)
        }
        MemberError::JobFailed { .. } => JobFailedError::new_err(words),
        MemberError::HubLost { .. } => HubLostError::new_err(words),
        MemberError::CheckpointLost { .. } => PyRuntimeWarning::new_err(words),
        MemberError::System(_) => ResourceError::new_err(words),
        MemberError::Hubs { .. }
        | MemberError::State { .. }
        | MemberError::Credential(_)
        | MemberError::Trust(_) => SettingsError::new_err(words),
    }
}

/// Adds the code of the hub's refusal to an exception.
fn with_code(exception: PyErr, code: &str) -> PyErr {
    // If this fails, the attribute of the class stays `None`.
    Python::attach(|py| drop(exception.value(py).setattr("code", code)));
    exception
}

/// Returns the text of an error and of its causes, without repetitions.
pub fn chain(error: &dyn Cause) -> String {
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
