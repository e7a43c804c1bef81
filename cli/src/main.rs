//! The `phub-server` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    phub_cli::status(std::env::args_os()).into()
}
