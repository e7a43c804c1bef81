//! Errors of traces. Must not repeat long input.

use std::path::PathBuf;

use super::built_in::BUILT_IN;

/// A text that is no trace, or a trace of another model.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace {path}: {error}; give a file that you may read, or one of the built-in traces: {}", BUILT_IN.join(", "))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: std::io::Error,
    },
    /// The file is too large.
    #[error(
        "the trace {path} is larger than {limit} bytes: a trace is a line a layer; is this the right file?"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most bytes that are read.
        limit: u64,
    },
    /// A line is wrong.
    #[error("{path}, line {line}: {why}; expected {expected}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The trace has no layer.
    #[error("trace {trace:?} has no layers: give a line for each, after the first line")]
    NoLayers {
        /// Its name.
        trace: String,
    },
    /// The model does not have the key.
    #[error(
        "trace {trace:?}, layer {layer:?}: key {key:?} is not one of the model's {keys} keys (the first is {first:?}); is the trace of another model? Choose it by --model or --manifest"
    )]
    UnknownKey {
        /// The trace's name.
        trace: String,
        /// The layer's.
        layer: String,
        /// The missing key.
        key: String,
        /// How many keys the model has.
        keys: usize,
        /// The first of these keys.
        first: String,
    },
    /// Two layers have the same key.
    #[error("trace {trace:?}: key {key:?} is in layer {:?} and in layer {:?}; expected it in one", .layers[0], .layers[1])]
    KeyTwice {
        /// The trace's name.
        trace: String,
        /// The key.
        key: String,
        /// The layers.
        layers: [String; 2],
    },
    /// No layer has these keys.
    #[error(
        "trace {trace:?}: {} of the model's keys are in no layer, the first of them {:?}; name each key in the layer that uses it",
        .missing.len(), at_most(&.missing[0])
    )]
    MissingKeys {
        /// The trace's name.
        trace: String,
        /// The keys.
        missing: Vec<String>,
    },
    /// A time is out of range.
    #[error(
        "trace {trace:?}, layer {layer:?}: {what} is {seen} (times {scale}); expected microseconds above 0, and below an hour"
    )]
    Time {
        /// The trace's name.
        trace: String,
        /// The layer's.
        layer: String,
        /// Which of its times.
        what: &'static str,
        /// The time in the trace.
        seen: f64,
        /// The time scale.
        scale: f64,
    },
    /// The time scale is out of range.
    #[error("time scale {seen}: expected a number above 0")]
    TimeScale {
        /// The time scale.
        seen: f64,
    },
}

/// Errors repeat this much of a name from a file.
const ECHOED_CHARS: usize = 64;

pub(super) fn at_most(name: &str) -> String {
    name.chars().take(ECHOED_CHARS).collect()
}
