//! Output of commands. Rust's own macros panic if stdout is closed or full.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context;

/// Prints a line. If the reader of the pipe has ended, as after `| head`, this ends the process.
///
/// # Errors
/// Returns an error if stdout takes nothing for another reason.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("writing to stdout"),
    }
}
