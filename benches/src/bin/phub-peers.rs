//! The `phub-peers` program. It runs the probe and other systems on the same model with the same number of
//! workers, in turn, and prints ratios with their spread.

use std::process::ExitCode;

use benches::peers::{Args, run};
use clap::Parser;

fn main() -> ExitCode {
    run(&Args::parse())
}
