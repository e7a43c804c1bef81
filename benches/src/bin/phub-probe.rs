//! The `phub-probe` program: what a parameter hub can do on this machine, with no compute.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    benches::probe::run(benches::probe::Args::parse())
}
