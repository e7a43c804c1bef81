//! The `phub-probe` program: it measures what a parameter hub can do on this machine when computing takes no
//! time.

use std::process::ExitCode;

use benches::probe::{Args, run};
use clap::Parser;

fn main() -> ExitCode {
    let args = Args::parse();
    let program = args.program();
    phub_server::program::exit_code(&program, run(args))
}
