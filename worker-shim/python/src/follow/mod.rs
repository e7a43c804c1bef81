//! Followers of a job's weights for Python: subscriptions whose wait Ctrl-C and `close` end.
//!
//! The Python thread waits without the GIL. No worker waits for a follower.

mod version;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use subscription::{Precision, SourceError, SourceSettings, Subscription, SubscriptionError, Wanted};

use crate::errors::{
    ForkError, OrderError, ProtocolError, ResourceError, SettingsError, UnreachableError, of_member,
};
use crate::setting::{choice, credential_of};
pub use version::{Tensor, Version};

/// A follower of a job's weights.
#[pyclass(frozen, module = "phub._phub")]
pub struct Follower(Subscription);

#[pymethods]
impl Follower {
    /// Creates a follower of a job at its hub, or at all of its hubs, with commas between them. `names` is a JSON object: a name,
    /// or a name and a type, for each key. With `every`, requests for versions are at least `every` seconds apart. With `each`,
    /// versions come before rounds that are multiples of `each`. A wait ends `timeout` seconds after the next version is due.
    #[staticmethod]
    #[pyo3(signature = (hub, job, dtype, ema, names, token, fetch_deltas, hub_wait, every, each, timeout))]
    #[allow(clippy::too_many_arguments)] // the arguments of a function in Python
    fn of_hub(
        hub: &str,
        job: &str,
        dtype: &str,
        ema: bool,
        names: &str,
        token: Option<&str>,
        fetch_deltas: bool,
        hub_wait: f64,
        every: Option<f64>,
        each: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let settings = SourceSettings {
            credential: credential_of(token)?,
            precision: choice("dtype", dtype, &Precision::NAMED)?,
            averages: ema,
            names: serde_json::from_str(names)
                .map_err(|error| SettingsError::new_err(format!("names: {error}")))?,
            fetch_deltas,
            hub_wait: seconds("hub_wait", hub_wait)?,
            ..SourceSettings::new(hub, job)
        };
        let subscribed = Subscription::to_hubs(settings, wanted(every, each)?);
        within(subscribed.map_err(|error| raised(&error))?, timeout)
    }

    /// Creates a follower of a directory. `every` and `timeout` are as in `of_hub`. With `each`, the follower gets only
    /// versions whose numbers are multiples of `each`.
    #[staticmethod]
    #[pyo3(signature = (directory, every, each, timeout))]
    fn of_directory(
        directory: PathBuf,
        every: Option<f64>,
        each: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        within(Subscription::to_directory(&directory, wanted(every, each)?), timeout)
    }

    /// Returns the next version. Returns None at the end.
    #[pyo3(name = "next")]
    fn next_version(&self, py: Python<'_>) -> PyResult<Option<Version>> {
        let mut signal = None;
        let next = py.detach(|| {
            self.0.next_version_unless(&mut || {
                signal = Python::attach(|py| py.check_signals()).err();
                signal.is_some()
            })
        });
        next.map(|version| version.map(Version::new))
            .map_err(|error| signal.unwrap_or_else(|| raised(&error)))
    }

    /// Forgets the last version, so that the next call returns the newest version at once.
    fn forget(&self) {
        self.0.forget();
    }

    /// Ends all waits.
    fn close(&self) {
        self.0.close();
    }
}

fn wanted(every: Option<f64>, each: Option<i64>) -> PyResult<Wanted> {
    let number = |each: i64| u32::try_from(each).ok().and_then(NonZeroU32::new);
    match (every, each) {
        (None, None) => Ok(Wanted::default()),
        (Some(every), None) => Ok(Wanted::Newest { every: seconds("every", every)? }),
        (None, Some(each)) => number(each)
            .map(Wanted::Each)
            .ok_or_else(|| SettingsError::new_err(format!("each {each}: expected a number from 1 on"))),
        (Some(_), Some(_)) => Err(SettingsError::new_err("expected every or each, and both are given")),
    }
}

fn within(subscription: Subscription, timeout: Option<f64>) -> PyResult<Follower> {
    Ok(Follower(match timeout {
        Some(timeout) => subscription.with_timeout(seconds("timeout", timeout)?),
        None => subscription,
    }))
}

fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    let wrong = |_| SettingsError::new_err(format!("{what} {seconds:?}: expected seconds from 0 to 1e19"));
    Duration::try_from_secs_f64(seconds).map_err(wrong)
}

/// Returns the exception for an error.
fn raised(error: &SubscriptionError) -> PyErr {
    let words = error.to_string();
    match error {
        SubscriptionError::Source(SourceError::Hub(error)) => of_member(error),
        SubscriptionError::Source(_) => SettingsError::new_err(words),
        SubscriptionError::Lost(_) | SubscriptionError::Timeout { .. } => UnreachableError::new_err(words),
        SubscriptionError::Directory(_) => ProtocolError::new_err(words),
        SubscriptionError::Interrupted | SubscriptionError::Busy => OrderError::new_err(words),
        SubscriptionError::OtherProcess => ForkError::new_err(words),
        SubscriptionError::Thread(_) | SubscriptionError::Gone => ResourceError::new_err(words),
    }
}
