//! The `phub-cluster` program: the timeline of a simulated cluster, for the figures.

use std::process::ExitCode;

use benches::cluster::{Args, run};
use clap::Parser;

fn main() -> ExitCode {
    phub_server::program::exit_code("phub-cluster", run(&Args::parse()))
}
