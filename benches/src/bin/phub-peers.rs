//! The `phub-peers` program: the probe and other systems on the same model with as many workers, interleaved in one session,
//! as ratios with their spread.

use std::process::ExitCode;

use benches::peers::{Args, run};
use clap::Parser;

fn main() -> ExitCode {
    run(&Args::parse())
}
