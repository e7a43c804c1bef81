//! The `phub-server` program: `serve` runs the hub, `top` shows how its jobs go, `topology` shows a machine and a plan for it,
//! `doctor` checks what a hub needs here. The Python package runs it, too.

mod exit;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::certificate_command::CertificateArgs;
use crate::checkpoint_command::CheckpointArgs;
use crate::doctor::DoctorArgs;
use crate::token_command::TokenArgs;
use crate::top_command::TopArgs;
use crate::topology_command::TopologyArgs;
use crate::trace_command::TraceArgs;
use crate::{Hub, HubSettings, raise_open_files};
use exit::succeeds;

pub use exit::exit_code;

/// A parameter hub: sums the gradients of all workers, runs the optimizer, and returns the new
/// weights, at the speed of the memory.
#[derive(Debug, Parser)]
#[command(name = "phub-server", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the hub until Ctrl-C or SIGTERM. Logs go to stderr (RUST_LOG sets how much).
    Serve {
        #[command(flatten)]
        settings: HubSettings,
        /// How log lines are written: text for people, or json for programs, an object a line with its facts as fields
        /// [default: text] [env: PHUB_LOG_FORMAT=]
        #[arg(long, value_enum)]
        log_format: Option<LogFormat>,
    },
    /// Show sockets, cores and NICs of this machine or another, and where a job's chunks would go.
    Topology(TopologyArgs),
    /// Show how a hub's jobs go, and for whom it waits, until Ctrl-C.
    Top(TopArgs),
    /// Check everything that a hub needs here, before the first job: a line each, with the fix.
    Doctor(DoctorArgs),
    /// List, verify and export checkpoints.
    Checkpoint(CheckpointArgs),
    /// Make one timeline of those of hubs and workers, on one clock.
    Trace(TraceArgs),
    /// Make a certificate for the control port, and its key.
    Certificate(CertificateArgs),
    /// Make a secret for hubs and workers, or a token that allows one thing.
    Token(TokenArgs),
}

/// Runs the program with these arguments, of which the first is its name. Returns whether all went well; what went wrong is
/// on stderr. Arguments that are wrong, and `--help`, end the process.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let result = match Cli::parse_from(arguments).command {
        Command::Serve { settings, log_format } => log("info", log_format).and_then(|()| serve(&settings)),
        Command::Topology(args) => args.run(),
        Command::Top(args) => args.run(),
        Command::Token(args) => args.run(),
        Command::Trace(args) => args.run(),
        Command::Certificate(args) => args.run(),
        // It has printed what is wrong.
        Command::Checkpoint(args) => match args.run() {
            Ok(true) => Ok(()),
            Ok(false) => return false,
            Err(error) => Err(error),
        },
        Command::Doctor(args) => match args.run() {
            Ok(true) => Ok(()),
            // The doctor has printed what is wrong.
            Ok(false) => return false,
            Err(error) => Err(error),
        },
    };
    succeeds("phub-server", result)
}

/// Writes what this process logs to stderr from now on, unless it has a log already: at the levels of `RUST_LOG`, else at
/// these; in this format, else in that of `PHUB_LOG_FORMAT`.
///
/// # Errors
/// When `RUST_LOG` names no levels, or `PHUB_LOG_FORMAT` no format. Nothing is then logged.
pub fn log(levels: &str, format: Option<LogFormat>) -> anyhow::Result<()> {
    let given = std::env::var("RUST_LOG").ok().filter(|levels| !levels.is_empty());
    let levels = given.unwrap_or_else(|| levels.to_owned());
    let levels: Targets = levels.parse().with_context(|| {
        format!(
            "RUST_LOG is {levels:?}; expected a level such as info, or levels such as warn,phub_server=debug"
        )
    })?;
    let named = std::env::var("PHUB_LOG_FORMAT").ok().filter(|name| !name.is_empty());
    let format = match (format, named) {
        (Some(format), _) => format,
        (None, Some(name)) => LogFormat::from_str(&name, false)
            .map_err(|_| anyhow!("PHUB_LOG_FORMAT is {name:?}; expected text or json"))?,
        (None, None) => LogFormat::Text,
    };
    let ansi = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(ansi);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(levels)).try_init().ok(); // an error: it has one
    Ok(())
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A sentence and its facts, for people.
    Text,
    /// A JSON object a line, with the facts as fields.
    Json,
}

fn serve(settings: &HubSettings) -> anyhow::Result<()> {
    raise_open_files();
    fabric::few_heaps();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Signals are caught before the hub is up, so that none is lost.
    let _in_runtime = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("catching SIGHUP")?;
    let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
    let hub = Hub::start(settings)?;
    println!("phub-server: control port {}://{}", hub.scheme(), hub.address());
    let mut drain = signal(SignalKind::user_defined1()).context("catching SIGUSR1")?;
    let (reload_secret, reload_certificate) = (hub.reload_secret(), hub.reload_certificate());
    let reload = || {
        let certificate = reload_certificate.as_ref().map(|reload| ("certificate", reload()));
        for (what, reloaded) in [("secret", reload_secret())].into_iter().chain(certificate) {
            match reloaded {
                Ok(()) => tracing::info!("SIGHUP: the {what} was read again"),
                Err(error) => tracing::error!(%error, "SIGHUP: the hub keeps the {what} that it has"),
            }
        }
    };
    let mut next_signal = async || {
        loop {
            tokio::select! {
                _ = interrupt.recv() => return "SIGINT",
                _ = terminate.recv() => return "SIGTERM",
                _ = hangup.recv() => reload(),
            }
        }
    };
    let unused = async || match settings.unused_limit_s {
        None => std::future::pending().await,
        Some(limit) => {
            hub.unused_for(Duration::from_secs(limit)).await;
            format!("no job for {limit} s")
        }
    };
    let mut drained = async || {
        loop {
            tokio::select! {
                _ = drain.recv() => hub.drain(),
                () = hub.drained() => return,
            }
        }
    };
    let end = runtime.block_on(async {
        tokio::select! {
            signal = next_signal() => signal.to_owned(),
            why = unused() => why,
            () = drained() => "it takes no more jobs, and the last one has ended".to_owned(),
        }
    });
    tracing::info!("{end}: the hub stops once checkpoints are written; another signal ends it at once");
    let unsaved = hub.unsaved();
    let (done, stopped) = oneshot::channel();
    let stop = move || {
        hub.stop(&format!("the hub was stopped by {end}"));
        let _ = done.send(());
    };
    std::thread::Builder::new().name("phub-stop".into()).spawn(stop).context("stopping the hub")?;
    runtime.block_on(async {
        tokio::select! {
            stopped = stopped => stopped.context("stopping the hub failed; see the log"),
            signal = next_signal() => Err(cut_short(signal, &unsaved.borrow())),
        }
    })
}

/// The error after a second signal: which checkpoints are lost.
fn cut_short(signal: &str, unsaved: &[String]) -> anyhow::Error {
    if unsaved.is_empty() {
        return anyhow!("ended at once by {signal}; no checkpoint was left to write");
    }
    anyhow!(
        "ended at once by {signal}; not written: the last checkpoints of jobs {unsaved:?}, which go on from the ones before"
    )
}
