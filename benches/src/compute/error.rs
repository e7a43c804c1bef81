//! What can be wrong with a trace. Must not repeat its input at length.

use std::path::PathBuf;

use super::built_in::BUILT_IN;

/// A trace that is none, or is of another model.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace {path}: {error}; give a file that you may read, or one of the built-in traces: {}", BUILT_IN.join(", "))]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// The file is too large.
    #[error(
        "the trace {path} is larger than {limit} bytes: a trace is a line a layer; is this the right file?"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What is read at most.
        limit: u64,
    },
    /// A line is not what it should be.
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
    /// Nothing computes.
    #[error("trace {trace:?} has no layers: give a line for each, after the first line")]
    NoLayers {
        /// Its name.
        trace: String,
    },
    /// A key of another model.
    #[error(
        "trace {trace:?}, layer {layer:?}: key {key:?} is not one of the model's {keys} keys (the first is {first:?}); is the trace of another model? Choose it by --model or --manifest"
    )]
    UnknownKey {
        /// The trace's name.
        trace: String,
        /// The layer's.
        layer: String,
        /// The key that is not there.
        key: String,
        /// How many there are.
        keys: usize,
        /// The first of them.
        first: String,
    },
    /// A key in two layers.
    #[error("trace {trace:?}: key {key:?} is in layer {:?} and in layer {:?}; expected it in one", .layers[0], .layers[1])]
    KeyTwice {
        /// The trace's name.
        trace: String,
        /// The key.
        key: String,
        /// The layers.
        layers: [String; 2],
    },
    /// Keys in no layer.
    #[error(
        "trace {trace:?}: {} of the model's keys are in no layer, the first of them {:?}; name each key in the layer that uses it",
        .missing.len(), at_most(&.missing[0])
    )]
    MissingKeys {
        /// The trace's name.
        trace: String,
        /// Which.
        missing: Vec<String>,
    },
    /// No time.
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
        /// What it says.
        seen: f64,
        /// By what it was to be multiplied.
        scale: f64,
    },
    /// No factor.
    #[error("time scale {seen}: expected a number above 0")]
    TimeScale {
        /// What was asked for.
        seen: f64,
    },
}

/// Names come from a file: so much of one is repeated.
const ECHOED_CHARS: usize = 64;

pub(super) fn at_most(name: &str) -> String {
    name.chars().take(ECHOED_CHARS).collect()
}
