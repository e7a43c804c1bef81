//! Output of commands. Rust's own macros would panic if stdout is closed or full.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Prints a line. If the reader of the pipe has ended, as after `| head`, the process ends here.
///
/// # Errors
/// Returns an error if writing to stdout fails for another reason.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("writing to stdout"),
    }
}
