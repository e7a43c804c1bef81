//! Reads a trace from a file: JSON, one object a line.
//!
//! ```text
//! {"trace": "my network on my GPU", "batch": 32}
//! {"layer": "fc1", "keys": ["fc1.weight", "fc1.bias"], "forward_us": 120.5, "backward_us": 241}
//! {"layer": "fc2", "keys": ["fc2.weight", "fc2.bias"], "forward_us": 40, "backward_us": 80}
//! ```
//!
//! The first line has the name of the trace, and the number of samples in a worker's batch. Each other line
//! is a layer, in the order of the forward pass. A layer without weights has no keys. Empty lines are
//! skipped. This module must not depend on a job: [`Trace::plan`] checks whether the keys are the job's.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;

use super::built_in::BUILT_IN;
use super::trace::{Layer, Trace, at_most};

/// The largest file. A hundred thousand layers need less.
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
pub fn read(path: &Path) -> Result<Trace> {
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text)).with_context(
        || {
            format!(
                "cannot read the trace {}; give a file that you may read, or one of the built-in traces: {}",
                path.display(),
                BUILT_IN.join(", ")
            )
        },
    )?;
    ensure!(
        text.len() as u64 <= MOST_BYTES,
        "the trace {} is larger than {MOST_BYTES} bytes: a trace is a line a layer; is this the right file?",
        path.display()
    );
    parse(path, &text)
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Trace> {
    let wrong = |line: usize, why: String, expected: &str| {
        anyhow!("{}, line {line}: {why}; expected {expected}", path.display())
    };
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (number, head) = lines.next().ok_or_else(|| wrong(1, "the file is empty".to_owned(), HEAD))?;
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

/// Returns the parser's error without its line number, because the parser gets one line at a time.
fn words(error: &serde_json::Error) -> String {
    let words = error.to_string();
    at_most(words.split(" at line ").next().unwrap_or_default())
}
