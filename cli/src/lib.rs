//! The `phub-server` program. `serve` runs the hub, and `demo` shows a hub at work. `status`, `stop` and
//! `drain` send requests to a hub, and `top` shows the progress of its jobs. `topology` shows a machine and a
//! plan for it. `doctor` checks what a hub needs on this machine, and `replay` replays the record of a hub.
//! The Python package also runs the program.
//!
//! The program is a separate crate, so that programs that contain a hub are built without it.

#![forbid(unsafe_code)]

mod certificate;
mod checkpoint;
mod demo;
pub mod doctor;
mod input;
mod operate;
mod out;
mod pages;
mod replay;
mod serve;
mod token;
mod top;
pub mod topology;
mod trace;
mod version;
mod weights;

use std::ffi::OsString;

use ::topology::{HostError, PlaceError};
use anyhow::Context;
use authority::CredentialError;
use clap::{CommandFactory, Parser, Subcommand};
use membership::MemberError;
use pbox_core::LayoutError;
use pbox_core::control::{InvalidJobName, NotAnAddress};
use pbox_core::models::UnknownModel;
use phub_server::program::{Unusable, WrongSetting, log, parse, say, succeeds, variables_in};
use phub_server::{HubError, HubSettings};
use rustix::process::Signal;
use subscription::SourceError;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use versions::VersionError;

use certificate::CertificateArgs;
use checkpoint::CheckpointArgs;
use demo::DemoArgs;
use doctor::DoctorArgs;
use operate::{DrainArgs, StatusArgs, StopArgs};
use pages::{CompletionsArgs, ManArgs};
use replay::ReplayArgs;
use serve::{End, serve};
use token::TokenArgs;
use top::TopArgs;
use topology::TopologyArgs;
use trace::TraceArgs;
use weights::{PublishArgs, PullArgs, VersionsArgs};

/// A parameter hub: sums the gradients of all workers, steps the optimizer, and returns the new weights.
#[derive(Debug, Parser)]
#[command(name = "phub-server", version = version::SHORT.as_str(), long_version = version::LONG.as_str(), after_help = EXITS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a hub until Ctrl-C or SIGTERM. Logs go to stderr; RUST_LOG sets their level.
    Serve(HubSettings),
    /// Show a hub at work: workers train a small network, and one of them becomes slow.
    Demo(DemoArgs),
    /// Print the state of a hub, its jobs and their workers.
    Status(StatusArgs),
    /// Stop a job. The hub first writes the job's checkpoint, if it keeps checkpoints.
    Stop(StopArgs),
    /// Drain a hub: it accepts no new jobs, and ends when its last job has ended.
    Drain(DrainArgs),
    /// Show sockets, cores and NICs of this machine or another, and the placement of a job's chunks.
    Topology(TopologyArgs),
    /// Show the progress of a hub's jobs, and the ranks that it waits for, until Ctrl-C.
    Top(TopArgs),
    /// Check whether this machine has what a hub needs. Prints a line for each check, with a fix where something is wrong.
    Doctor(DoctorArgs),
    /// List, verify and export checkpoints.
    Checkpoint(CheckpointArgs),
    /// Publish a job's weights while it trains, as versions in a directory that engines read.
    Publish(PublishArgs),
    /// Pull a job's weights into a safetensors file, while it trains.
    Pull(PullArgs),
    /// List, verify and export the versions that `publish` has written.
    Versions(VersionsArgs),
    /// Merge the timelines of hubs and workers into one file with one clock.
    Trace(TraceArgs),
    /// Replay the record of a hub, and compare each answer with the record.
    Replay(ReplayArgs),
    /// Make a certificate for the control port, and its key.
    Certificate(CertificateArgs),
    /// Make a secret for hubs and workers, or a token with a single right.
    Token(TokenArgs),
    /// Write pages for `man`: one for the program, and one for each command.
    Man(ManArgs),
    /// Print the script with which a shell completes commands and options.
    Completions(CompletionsArgs),
}

/// The sentence of `--help` about the exit statuses of [`exit`].
const EXITS: &str = "Exit status: 0 all went well; 1 the command failed, and stderr says why; 2 a setting is wrong; \
    3 a drained hub has ended.";

/// The exit statuses of the program. The argument parser also ends the program with [`WRONG`](exit::WRONG).
pub mod exit {
    /// The status of success.
    pub const WELL: u8 = 0;
    /// The status of a failure.
    pub const FAILED: u8 = 1;
    /// The status of a wrong setting.
    pub const WRONG: u8 = 2;
    /// The status of a hub that has ended because it was drained. A supervisor must not start it again.
    pub const DRAINED: u8 = 3;
}

/// Runs the program as [`status`] does. Returns whether all went well.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> bool {
    status(arguments) == exit::WELL
}

/// Runs the program with these arguments, of which the first is its name. Returns its [exit status](exit),
/// and prints errors to stderr. Wrong arguments and `--help` end the process.
pub fn status(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli: Cli = parse(arguments.iter().cloned()).unwrap_or_else(|unusable: Unusable| unusable.exit());
    if !succeeds("phub-server", catch_file_too_large()) {
        return exit::FAILED;
    }
    let result = match cli.command {
        Command::Serve(settings) => match log("info", settings.log_format).and_then(|()| serve(&settings)) {
            Ok(End::Drained) => return exit::DRAINED,
            other => other.map(drop),
        },
        Command::Demo(args) => log("warn", None).and_then(|()| args.run()),
        Command::Status(args) => args.run(),
        Command::Stop(args) => args.run(),
        Command::Drain(args) => args.run(),
        Command::Topology(args) => args.run(),
        Command::Top(args) => args.run(),
        Command::Token(args) => args.run(),
        Command::Trace(args) => args.run(),
        Command::Certificate(args) => args.run(),
        Command::Publish(args) => args.run(),
        Command::Pull(args) => args.run(),
        Command::Versions(args) => args.run(),
        Command::Man(args) => args.run(Cli::command()),
        Command::Completions(args) => args.run(Cli::command()),
        // The subcommands have already printed the error.
        Command::Checkpoint(args) => match args.run() {
            Ok(false) => return exit::FAILED,
            other => other.map(drop),
        },
        Command::Replay(args) => match args.run() {
            Ok(false) => return exit::FAILED,
            other => other.map(drop),
        },
        Command::Doctor(args) => match args.run() {
            Ok(false) => return exit::FAILED,
            other => other.map(drop),
        },
    };
    let said = result.as_ref().err().map(|error| (format!("{error:#}"), is_of_settings(error)));
    if succeeds("phub-server", result) {
        return exit::WELL;
    }
    let command = Cli::command();
    let chosen = arguments.iter().skip(1).find_map(|name| command.find_subcommand(name)).unwrap_or(&command);
    let (said, is_wrong) = said.unwrap_or_default();
    for note in variables_in(&said, chosen, &arguments) {
        say(format_args!("  {note}"));
    }
    if is_wrong { exit::WRONG } else { exit::FAILED }
}

/// Whether the cause of an error is a wrong setting.
fn is_of_settings(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<WrongSetting>()
            || cause.is::<InvalidJobName>()
            || cause.is::<NotAnAddress>()
            || cause.is::<UnknownModel>()
            || cause.is::<LayoutError>()
            || cause.is::<CredentialError>()
            || cause.is::<PlaceError>()
            || cause.downcast_ref().is_some_and(HubError::is_of_settings)
            || matches!(cause.downcast_ref(), Some(MemberError::Hubs { .. }))
            // A `SourceError` shows its inner error as its own text. So the chain of causes does not have the inner
            // error.
            || matches!(
                cause.downcast_ref(),
                Some(SourceError::JobName(_) | SourceError::Hub(MemberError::Hubs { .. }))
            )
            || matches!(cause.downcast_ref(), Some(VersionError::Also { .. }))
            || matches!(cause.downcast_ref(), Some(HostError::Synthetic(_)))
    })
}

/// Catches SIGXFSZ. Without a handler, a write to a file, or to a window in a memfd, beyond `ulimit -f` ends
/// the process without a message. With a handler only the call fails.
fn catch_file_too_large() -> anyhow::Result<()> {
    // The handler stays after the end of this runtime.
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let _in_runtime = runtime.enter();
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop).context("catching SIGXFSZ")
}
