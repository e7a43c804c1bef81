//! The `phub-cluster` program: a cluster that is simulated, for the figures.

use std::process::ExitCode;

use benches::cluster::{Args, run};
use clap::Parser;

fn main() -> ExitCode {
    phub_server::exit_code("phub-cluster", run(&Args::parse()))
}
