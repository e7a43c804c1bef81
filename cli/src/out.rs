//! Output of commands. Rust's own macros would panic if stdout is closed or full.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context;
use phub_server::program::{print, say};

/// Prints a line. If the reader of the pipe has ended, as after `| head`, the process ends here.
///
/// # Errors
/// Returns an error if writing to stdout fails for another reason.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    all(format_args!("{text}\n"))
}

/// Prints a text as it is, and adds no line end. Ends the process as [`line`] does.
///
/// # Errors
/// Returns an error if writing to stdout fails for another reason.
pub(crate) fn all(text: impl Display) -> anyhow::Result<()> {
    match write(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("writing to stdout"),
    }
}

/// Prints a line of a command whose exit status is its result. If the reader of the pipe has ended, as after `| grep -q`, prints
/// nothing, and the work continues.
///
/// # Errors
/// Returns an error if writing to stdout fails for another reason.
pub(crate) fn verdict(text: impl Display) -> anyhow::Result<()> {
    print(format_args!("{text}\n"))
}

/// The stdout of a command whose main work is not its output. If the reader of the pipe has ended, the work continues.
#[derive(Debug, Default)]
pub(crate) struct Out {
    is_closed: bool,
}

impl Out {
    /// Prints a line. If the reader of the pipe has ended, prints nothing, except one message to stderr.
    ///
    /// # Errors
    /// Returns an error if writing to stdout fails for another reason.
    pub fn line(&mut self, text: impl Display) -> anyhow::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        match write(format_args!("{text}\n")) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                say(
                    "phub-server: the reader of stdout has ended; the work continues, and prints no more lines",
                );
                Ok(())
            }
            other => other.context("writing to stdout"),
        }
    }
}

fn write(text: impl Display) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush())
}
