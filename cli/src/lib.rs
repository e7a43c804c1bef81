//! The `phub-server` program: `serve` runs the hub, `top` shows how its jobs go, `topology` shows a machine and a plan for it,
//! `doctor` checks what a hub needs here. The Python package runs it, too.
//!
//! A crate of its own, so that programs that have a hub within them are built without it.

#![forbid(unsafe_code)]

mod certificate;
mod checkpoint;
pub mod doctor;
mod serve;
mod token;
mod top;
pub mod topology;
mod trace;

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use phub_server::HubSettings;
use phub_server::program::{LogFormat, log, succeeds};

use certificate::CertificateArgs;
use checkpoint::CheckpointArgs;
use doctor::DoctorArgs;
use serve::serve;
use token::TokenArgs;
use top::TopArgs;
use topology::TopologyArgs;
use trace::TraceArgs;

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
