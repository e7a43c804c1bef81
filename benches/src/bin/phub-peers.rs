//! The `phub-peers` program: the probe and other systems on the same model and worker count,
//! interleaved in one session, as ratios with their spread.

use std::process::ExitCode;

use benches::peers::{Args, run};
use clap::Parser;

fn main() -> ExitCode {
    run(&Args::parse())
}
