//! A session whose keys have numbers. Every call that waits does so without the GIL, and Ctrl-C ends the
//! wait.

use std::ffi::CString;

use pbox_core::{Dtype, Groups, Key, KeyId, Layout, Multipliers, Numbers, Optimizer, Round};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use worker_shim::{
    Background, BackgroundError, PullPlan, Pushed, SessionConfig, SessionError, State, Traffic, Way,
    WeightsMode,
};

use crate::errors::{OrderError, SettingsError, of_cause, of_session};
use crate::setting::choice;
use crate::state::Pieces;
use crate::window::Window;

/// A key: name, shape, type, and the multipliers of learning rate and weight decay.
type KeyTuple = (String, Vec<u64>, String, f32, f32);

/// A plan: batching; ranges of layers; start-up, prediction and mean in seconds; rounds, profiles; the plan
/// as text.
type PlanTuple = (String, Vec<(usize, usize)>, Option<f64>, Option<f64>, Option<f64>, u32, u32, String);

/// The times: rounds; seconds in all, pushing, and waiting; bytes sent and received; the times as text.
type TimesTuple = (u32, f64, f64, f64, u64, u64, String);

/// A worker's membership in a job.
#[pyclass(frozen, module = "phub._phub")]
pub struct Session {
    background: Background,
    /// Whether NumPy may write the weights, because they are a copy that belongs to this worker.
    private: bool,
}

/// Calls `wait` without the GIL. `wait` gets a function that returns whether Python has a signal to handle.
/// If the signal's handler raises an exception, such as KeyboardInterrupt, this call raises it, too.
fn interruptible<R: Send>(
    py: Python<'_>,
    wait: impl Send + FnOnce(&mut dyn FnMut() -> bool) -> Result<R, BackgroundError>,
) -> PyResult<R> {
    let mut raised = None;
    let outcome = py.detach(|| {
        wait(&mut || {
            raised = Python::attach(|py| py.check_signals()).err();
            raised.is_some()
        })
    });
    match raised {
        Some(raised) => Err(raised),
        None => outcome.map_err(|error| of_session(&error)),
    }
}

/// Returns the reason why a session with these settings cannot use a hub that is below other hubs; None if it
/// can.
#[pyfunction]
pub fn refused_below(settings: Vec<(String, String)>) -> PyResult<Option<String>> {
    let config = with_settings(SessionConfig::new("", "", 0, 1, Vec::new(), Optimizer::Average), settings)?;
    Ok(config.terms.check_below().err().map(|error| error.to_string()))
}

/// Returns the number of bytes of a window of gradients, and the offset and length of each key in it.
#[pyfunction]
pub fn places(keys: Vec<KeyTuple>) -> PyResult<(usize, Vec<(usize, usize)>)> {
    let keys = keys.into_iter().map(key).collect::<PyResult<_>>()?;
    let layout = Layout::of_keys(keys).map_err(|error| SettingsError::new_err(error.to_string()))?;
    let spans = (0..layout.keys().len() as u32).map(|key| layout.key_span(KeyId(key)));
    Ok((layout.window_bytes(), spans.map(|span| (span.offset, span.bytes)).collect()))
}

fn with_settings(mut config: SessionConfig, settings: Vec<(String, String)>) -> PyResult<SessionConfig> {
    for (name, value) in settings {
        config.set(&name, &value).map_err(|error| SettingsError::new_err(error.to_string()))?;
    }
    Ok(config)
}

/// Parses an optimizer from Python's JSON.
fn optimizer_of(json: &str) -> PyResult<Optimizer> {
    let wrong = |error| SettingsError::new_err(format!("optimizer {json}: {error}"));
    serde_json::from_str(json).map_err(|error: serde_json::Error| wrong(error))
}

fn key((name, shape, dtype, lr_mult, wd_mult): KeyTuple) -> PyResult<Key> {
    let dtypes = [Dtype::F32, Dtype::F16, Dtype::BF16].map(|dtype| (dtype.name(), dtype));
    let dtype = choice(&format!("key {name:?}: type"), &dtype, &dtypes)?;
    Ok(Key { lr_mult, wd_mult, ..Key::new(dtype, name, shape) })
}

#[pymethods]
impl Session {
    #[new]
    #[allow(clippy::too_many_arguments)] // Python names them
    fn new(
        py: Python<'_>,
        hub: &str,
        job: &str,
        rank: u32,
        world_size: u32,
        keys: Vec<KeyTuple>,
        optimizer: &str,
        settings: Vec<(String, String)>,
        pull_layers: Vec<Vec<u32>>,
        state: Option<(u32, Option<Vec<u32>>, Bound<'_, PyAny>)>,
    ) -> PyResult<Self> {
        // Other libraries read RUST_LOG, too. So a fault in RUST_LOG does not stop this session.
        let _ = phub_server::program::log("warn", None);
        let keys = keys.into_iter().map(key).collect::<PyResult<_>>()?;
        let optimizer = optimizer_of(optimizer)?;
        let config = SessionConfig::new(hub, job, rank, world_size, keys, optimizer);
        let mut config = with_settings(config, settings)?;
        config.pull.iter_mut().for_each(|pull| pull.layers = layers(&pull_layers));
        // With Slim-DP, values that are not sent stay as the worker has written them.
        let keeps_own = config.terms.level.compression.is_some_and(|each| each.has_own_answers());
        let private = config.weights == WeightsMode::Private || keeps_own;
        let values = state.as_ref().map(|(.., pieces)| Pieces::new(pieces)).transpose()?;
        let brought = state.zip(values);
        let state = brought.map(|((before, steps, _), values)| State {
            before: Round(before),
            steps,
            values: Box::new(values),
        });
        let background = interruptible(py, |interrupted| Background::join_with(config, state, interrupted))?;
        Ok(Session { background, private })
    }

    fn gradient(&self, key: u32) -> PyResult<Window> {
        let (described, memory) = self.key(key)?;
        let nowhere =
            "gradients are in dma_buf, which has no address in this process: write gradients by the device";
        let address = memory.gradient.ok_or_else(|| OrderError::new_err(nowhere))?;
        Ok(Window::new(described, address, false, self.background.memory()))
    }

    fn weights(&self, key: u32) -> PyResult<Window> {
        let (described, memory) = self.key(key)?;
        Ok(Window::new(described, memory.weights, !self.private, self.background.memory()))
    }

    fn push(&self, keys: Vec<u32>) -> PyResult<()> {
        self.push_as(&keys, Pushed::Gradient)
    }

    /// Pushes gradients that `send_ahead` has sent, but that the script may have changed since. Sends all bytes again.
    fn push_rewritten(&self, keys: Vec<u32>) -> PyResult<()> {
        self.push_as(&keys, Pushed::Rewritten)
    }

    fn push_nothing(&self, keys: Vec<u32>) -> PyResult<()> {
        self.push_as(&keys, Pushed::Nothing)
    }

    fn push_weights(&self, keys: Vec<u32>) -> PyResult<()> {
        self.push_as(&keys, Pushed::Weights)
    }

    fn send_ahead(&self, keys: Vec<u32>) -> PyResult<()> {
        let keys: Vec<KeyId> = keys.into_iter().map(KeyId).collect();
        self.background.send_ahead(&keys).map_err(|error| of_session(&error))
    }

    /// Returns for each key whether it saves time to send its gradient before its push.
    fn leave_ahead(&self, py: Python<'_>, keys: Vec<u32>) -> PyResult<Vec<bool>> {
        self.call(py, move |session| {
            Ok(keys.into_iter().map(|key| session.leaves_ahead(KeyId(key))).collect())
        })
    }

    fn was_left_alone(&self, key: u32) -> PyResult<bool> {
        self.background.was_left_alone(KeyId(key)).map_err(|error| of_session(&error))
    }

    fn wait(&self, py: Python<'_>, key: u32) -> PyResult<()> {
        // Most answers have arrived already. The GIL is then not released.
        if self.is_ready(key)? {
            return Ok(());
        }
        interruptible(py, |interrupted| self.background.wait(KeyId(key), interrupted))
    }

    fn settle(&self, py: Python<'_>, key: u32) -> PyResult<()> {
        interruptible(py, |interrupted| self.background.settle(KeyId(key), interrupted))
    }

    fn is_ready(&self, key: u32) -> PyResult<bool> {
        self.background.is_ready(KeyId(key)).map_err(|error| of_session(&error))
    }

    fn are_ready(&self, keys: Vec<u32>) -> PyResult<Vec<bool>> {
        let keys = Vec::from_iter(keys.into_iter().map(KeyId));
        self.background.are_ready(&keys).map_err(|error| of_session(&error))
    }

    fn wait_all(&self, py: Python<'_>) -> PyResult<()> {
        interruptible(py, |interrupted| self.background.wait_all(interrupted))
    }

    fn broadcast_written(&self, py: Python<'_>) -> PyResult<()> {
        interruptible(py, |interrupted| self.background.broadcast_written(interrupted))
    }

    fn set_learning_rate(&self, py: Python<'_>, learning_rate: f32) -> PyResult<()> {
        self.call(py, move |session| session.set_learning_rate(learning_rate))
    }

    /// Changes the optimizer, which is JSON, and each key's multipliers of learning rate and weight decay.
    /// `reset` has the keys whose state becomes zero. `groups` has other optimizers, and for each key the
    /// number of its group: 0 for none, else from 1.
    fn set_optimizer(
        &self,
        py: Python<'_>,
        optimizer: &str,
        multipliers: Option<Vec<Multipliers>>,
        reset: Vec<u32>,
        groups: Option<(Vec<String>, Vec<u8>)>,
    ) -> PyResult<()> {
        let (optimizer, reset) = (optimizer_of(optimizer)?, Vec::from_iter(reset.into_iter().map(KeyId)));
        let group = |(optimizers, of_keys): (Vec<String>, Vec<u8>)| {
            let optimizers = optimizers.iter().map(|each| optimizer_of(each)).collect::<PyResult<_>>()?;
            PyResult::Ok(Groups { optimizers, of_keys }.into())
        };
        let groups = groups.map(group).transpose()?;
        let numbers = Numbers { optimizer, multipliers: multipliers.map(Into::into), groups };
        self.call(py, move |session| session.set_numbers(numbers, &reset))
    }

    fn pull_by(&self, py: Python<'_>, pull_layers: Vec<Vec<u32>>) -> PyResult<()> {
        self.call(py, move |session| session.pull_by(layers(&pull_layers)))
    }

    fn need(&self, py: Python<'_>, order: Vec<u32>) -> PyResult<()> {
        let order = Vec::from_iter(order.into_iter().map(KeyId));
        self.call(py, move |session| session.need(&order))
    }

    fn pull_plan(&self, py: Python<'_>) -> PyResult<Option<PlanTuple>> {
        let plan = self.call(py, |session| Ok(session.pull_plan().cloned()))?;
        Ok(plan.as_ref().map(of_plan))
    }

    /// Writes a checkpoint. Returns its round, its length in bytes, and the milliseconds that writing took.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<(u32, u64, u64)> {
        let written = interruptible(py, |interrupted| self.background.checkpoint(interrupted))?;
        Ok((written.round.0, written.bytes, written.milliseconds))
    }

    fn members(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        self.call(py, |session| Ok(session.members()))
    }

    fn is_below_others(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |session| Ok(session.is_below_others()))
    }

    fn not_finite(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |session| Ok(session.not_finite()))
    }

    /// Returns the bytes sent and received.
    fn traffic(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let traffic = self.call(py, |session| Ok(session.traffic()))?;
        Ok((traffic.sent, traffic.received))
    }

    /// Returns the times: see [`TimesTuple`].
    #[getter]
    fn times(&self) -> TimesTuple {
        let times = self.background.times();
        let [total, pushing, waiting] =
            [times.total, times.pushing, times.waiting].map(|time| time.as_secs_f64());
        let Traffic { sent, received } = times.traffic;
        (times.rounds, total, pushing, waiting, sent, received, times.to_string())
    }

    /// Returns the number of times that a lost hub returned, and the number of lost rounds.
    fn returns(&self, py: Python<'_>) -> PyResult<(u32, u64)> {
        let returns = self.call(py, |session| Ok(session.returns()))?;
        Ok((returns.times, returns.lost_rounds))
    }

    /// Returns the number of times that links were lost while the hub was alive, and were replaced.
    fn relinks(&self, py: Python<'_>) -> PyResult<u32> {
        self.call(py, |session| Ok(session.relinks()))
    }

    /// Returns the last round whose norm is known, with the norm, and the number of skipped rounds.
    fn norm(&self, py: Python<'_>) -> PyResult<(Option<(u32, f32)>, u64)> {
        self.call(py, |session| Ok((session.norm().map(|(round, norm)| (round.0, norm)), session.skipped())))
    }

    #[getter]
    fn next_round(&self) -> u32 {
        self.background.next_round().0
    }

    #[getter]
    fn ways(&self) -> Vec<(String, String, Vec<String>)> {
        let paths = |way: &Way| way.paths.iter().map(|path| path.words.clone()).collect();
        let words = |way: &Way| (way.transport.to_string(), way.reason.clone(), paths(way));
        self.background.ways().iter().map(words).collect()
    }

    /// Leaves the job. If the last checkpoint could not be written, warns: the worker has left nevertheless.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        match interruptible(py, |interrupted| self.background.leave(interrupted)) {
            Err(error) if error.is_instance_of::<PyRuntimeWarning>(py) => {
                let words = CString::new(error.value(py).to_string())?;
                PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &words, 2)
            }
            left => left,
        }
    }

    /// Ends the session now. The worker leaves if no key is in flight; otherwise it counts as lost for the
    /// other workers. With a reason, the hub notifies the other workers that this worker fails.
    #[pyo3(signature = (reason=None))]
    fn close(&self, py: Python<'_>, reason: Option<&str>) {
        py.detach(|| match reason {
            Some(reason) => self.background.close_because(reason),
            None => self.background.close(),
        });
    }
}

impl Session {
    fn call<R: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut worker_shim::Session) -> Result<R, SessionError> + Send + 'static,
    ) -> PyResult<R> {
        let answer = interruptible(py, |interrupted| self.background.with(call, interrupted))?;
        answer.map_err(|error| of_cause(&error))
    }

    fn push_as(&self, keys: &[u32], what: Pushed) -> PyResult<()> {
        let keys: Vec<KeyId> = keys.iter().copied().map(KeyId).collect();
        self.background.push_as(&keys, what).map_err(|error| of_session(&error))
    }

    fn key(&self, key: u32) -> PyResult<(&Key, &worker_shim::KeyMemory)> {
        let mut keys = self.background.layout().keys().iter().zip(self.background.keys());
        let count = keys.len();
        keys.nth(key as usize).ok_or_else(|| {
            OrderError::new_err(format!(
                "key {key} does not exist; the job has {count} keys, numbered from 0"
            ))
        })
    }
}

/// Converts the numbers of keys in layers.
fn layers(numbers: &[Vec<u32>]) -> Vec<Vec<KeyId>> {
    numbers.iter().map(|layer| layer.iter().copied().map(KeyId).collect()).collect()
}

/// Converts a plan for Python.
fn of_plan(plan: &PullPlan) -> PlanTuple {
    let PullPlan { batching, batches, profile, predicted_s, measured_s, rounds, profiles } = plan;
    let start_up = profile.as_ref().map(|profile| profile.start_up);
    let batches = batches.iter().map(|batch| (batch.start, batch.end)).collect();
    (batching.to_string(), batches, start_up, *predicted_s, *measured_s, *rounds, *profiles, plan.to_string())
}
