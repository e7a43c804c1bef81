//! Reads a trace from a file: JSON, one object a line.
//!
//! ```text
//! {"trace": "my network on my GPU", "batch": 32}
//! {"layer": "fc1", "keys": ["fc1.weight", "fc1.bias"], "forward_us": 120.5, "backward_us": 241}
//! {"layer": "fc2", "keys": ["fc2.weight", "fc2.bias"], "forward_us": 40, "backward_us": 80}
//! ```
//!
//! The first line names the trace and the samples of a worker's batch; each other line is a layer, in the order of
//! the forward pass. A layer without weights has no keys. Empty lines are skipped.
//! Must not know a job: [`Trace::plan`] checks whether the keys are the job's.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::error::{TraceError, at_most};
use super::trace::{Layer, Trace};

/// A hundred thousand layers need less.
const MOST_BYTES: u64 = 16 << 20;

const HEAD: &str = r#"a first line like {"trace": "my network", "batch": 32}"#;
const LAYER: &str =
    r#"a layer like {"layer": "fc1", "keys": ["fc1.weight"], "forward_us": 120.5, "backward_us": 241}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    trace: String,
    batch: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    layer: String,
    keys: Vec<String>,
    forward_us: f64,
    backward_us: f64,
}

/// Reads a trace.
pub fn read(path: &Path) -> Result<Trace, TraceError> {
    let failed = |error| TraceError::Read { path: path.to_owned(), error };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(TraceError::TooLarge { path: path.to_owned(), limit: MOST_BYTES });
    }
    parse(path, &text)
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Trace, TraceError> {
    let wrong = |line, why, expected| TraceError::Line { path: path.to_owned(), line, why, expected };
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let Some((number, head)) = lines.next() else {
        return Err(wrong(1, "the file is empty".to_owned(), HEAD));
    };
    let Head { trace, batch } =
        serde_json::from_str(head).map_err(|error| wrong(number, words(&error), HEAD))?;
    if batch == 0 {
        return Err(wrong(number, "a batch of 0 samples".to_owned(), HEAD));
    }
    let (mut layers, mut names) = (Vec::new(), HashSet::new());
    for (number, line) in lines {
        let Line { layer, keys, forward_us, backward_us } =
            serde_json::from_str(line).map_err(|error| wrong(number, words(&error), LAYER))?;
        for (what, us) in [("forward_us", forward_us), ("backward_us", backward_us)] {
            if us <= 0.0 {
                let why = format!("layer {:?}: {what} is {us}, not above 0", at_most(&layer));
                return Err(wrong(number, why, LAYER));
            }
        }
        if !names.insert(layer.clone()) {
            let why = format!("a second layer {:?}", at_most(&layer));
            return Err(wrong(number, why, "every layer to have a name of its own"));
        }
        layers.push(Layer { name: layer, keys, forward_us, backward_us });
    }
    Ok(Trace { name: trace, batch, layers })
}

/// The parser's error without its line number: the parser sees one line at a time.
fn words(error: &serde_json::Error) -> String {
    let words = error.to_string();
    at_most(words.split(" at line ").next().unwrap_or_default())
}
