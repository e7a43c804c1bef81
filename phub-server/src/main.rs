//! The `phub-server` program: `serve` runs the hub, `topology` shows a machine and a plan for it.

use std::io::IsTerminal;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use phub_server::topology_command::TopologyArgs;
use phub_server::{Hub, HubSettings, exit_code};
use tokio::signal::unix::{SignalKind, signal};

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
    Serve(HubSettings),
    /// Show sockets, cores and NICs of this machine or another, and where a job's chunks would go.
    Topology(TopologyArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(settings) => serve(&settings),
        Command::Topology(args) => args.run().map_err(Into::into),
    };
    exit_code("phub-server", result)
}

fn serve(settings: &HubSettings) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::Level::INFO.into())
        .from_env_lossy();
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Before the hub is up, so that no signal is lost.
    let _in_runtime = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).context("catching SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("catching SIGTERM")?;
    let hub = Hub::start(settings)?;
    println!("phub-server: control port http://{}", hub.address());
    let signal = runtime.block_on(async {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        }
    });
    hub.stop(&format!("the hub was stopped by {signal}"));
    Ok(())
}
