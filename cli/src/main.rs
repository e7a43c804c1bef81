//! The `phub-server` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    match phub_cli::run(std::env::args_os()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
