//! The `phub-peers` program: the probe and other systems on the same model and worker count,
//! interleaved in one session, as ratios with their spread.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    benches::peers::run(&benches::peers::Args::parse())
}
