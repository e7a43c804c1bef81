//! Tests of the programs: the probe, the peers, the training example.

mod children;
mod command_line;
mod compute;
mod peers;
mod probe;
mod train;

/// Returns the probe.
fn probe_program() -> std::process::Command {
    std::process::Command::new(env!("CARGO_BIN_EXE_phub-probe"))
}
