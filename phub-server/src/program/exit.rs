//! The way in which the programs end. They print an error with all its causes in words, and return an exit status for
//! scripts.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;

/// An error: a setting is wrong, or settings exclude each other. The text names the settings.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongSetting(pub String);

/// Ends a program: prints an error with its causes to stderr. The exit status is 2 after a [`WrongSetting`], as after an argument
/// that the parser refuses, and 1 after any other error.
pub fn exit_code(program: &str, result: anyhow::Result<()>) -> ExitCode {
    let is_wrong = result.as_ref().is_err_and(|error| error.is::<WrongSetting>());
    if succeeds(program, result) {
        ExitCode::SUCCESS
    } else if is_wrong {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

/// Prints an error with its causes to stderr. Ignores `RUST_BACKTRACE`: the message is for users, not for programmers.
/// Returns whether there was no error.
pub fn succeeds(program: &str, result: anyhow::Result<()>) -> bool {
    let Err(error) = result else { return true };
    say(format_args!("{program}: {error}"));
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Some errors repeat the text of their cause.
        if !said.contains(&cause) {
            say(format_args!("  because: {cause}"));
        }
        said = cause;
    }
    false
}

/// Prints a text to stdout. A closed pipe is no error, because its reader needs no more.
///
/// # Errors
/// Returns an error if writing to stdout fails for another reason, such as a full disk.
pub fn print(text: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other.context("writing to stdout"),
    }
}

/// Prints a line to stderr. If stderr is closed, does nothing; Rust's own macro would panic.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
