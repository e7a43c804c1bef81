//! The log of a program while it runs, on stderr.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::exit::WrongSetting;

/// Makes this process write its log to stderr from now on, unless it has a log already. The levels come from
/// `RUST_LOG`; if it is not set, from `levels`. The form comes from `format`; if it is `None`, from
/// `PHUB_LOG_FORMAT`.
///
/// # Errors
/// Returns an error if `RUST_LOG` names no levels, or if `PHUB_LOG_FORMAT` names no format. Nothing is then logged.
pub fn log(levels: &str, format: Option<LogFormat>) -> anyhow::Result<()> {
    let given = std::env::var("RUST_LOG").ok().filter(|levels| !levels.is_empty());
    let levels = given.unwrap_or_else(|| levels.to_owned());
    let levels: Targets = levels.parse().map_err(|_| {
        WrongSetting(format!(
            "RUST_LOG is {levels:?}; expected a level such as info, or levels such as warn,phub_server=debug"
        ))
    })?;
    let named = std::env::var("PHUB_LOG_FORMAT").ok().filter(|name| !name.is_empty());
    let format = match (format, named) {
        (Some(format), _) => format,
        (None, Some(name)) => LogFormat::from_str(&name, false)
            .map_err(|_| WrongSetting(format!("PHUB_LOG_FORMAT is {name:?}; expected text or json")))?,
        (None, None) => LogFormat::Text,
    };
    let ansi = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(ansi);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    // An error means that the process has a log already.
    tracing_subscriber::registry().with(lines.with_filter(levels)).try_init().ok();
    Ok(())
}

/// The way in which log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A sentence and its facts, for people.
    Text,
    /// A JSON object on each line, with the facts as fields.
    Json,
}
