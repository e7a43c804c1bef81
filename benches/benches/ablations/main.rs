//! Ablations of decisions in the hub: how a chunk is divided over cores, and which core owns which chunk.
//! Variants that the hub does not have are built here, with the hub's kernels and private memory.
//!
//! The program prints rows of CSV: experiment, model, variant, at (a size or a number of cores), value.
//! `tools/figures/phub/zero.py` runs it for `docs/figures/phub.md`.

mod balance;
mod cost;
mod memory;
mod norm;

use clap::{Parser, ValueEnum};
use memory::{Memory, Variant};

/// The sizes of a chunk.
const SIZES: [usize; 9] = [1 << 10, 1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 20, 1 << 22];

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// The time of a pass, by variant and chunk size.
    Divide,
    /// The load of the busiest core, compared with the mean.
    Balance,
    /// The cost of a chunk with rayon.
    Cost,
    /// The time of a pass with a norm between sum and step, compared with a pass without a norm.
    Norm,
}

/// Measures variants that the hub does not have. Prints CSV.
#[derive(Debug, Parser)]
struct Args {
    /// The experiments to run.
    #[arg(value_enum, default_values_t = [What::Divide, What::Balance, What::Cost, What::Norm])]
    what: Vec<What>,
    /// Number of the repeat. Odd repeats measure the variants in another order.
    #[arg(long, default_value_t = 0)]
    repeat: u32,
    /// Size of the model in MiB. The whole memory, with gradients and state, is six times this size.
    #[arg(long, default_value_t = 64)]
    model_mib: usize,
    /// The flag that cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let cpus = cpus();
    for what in &args.what {
        match what {
            What::Divide => divide(&args, &cpus),
            What::Balance => balance::print(),
            What::Cost => cost::print(cpus.len()),
            What::Norm => norm::print(&cpus),
        }
    }
}

/// Returns all cpus that this process may use.
fn cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).expect("the cpus of this process");
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Prints the milliseconds of the fastest pass, by chunk size and variant. Only the fastest counts, because
/// other work on the machine slows some passes down.
fn divide(args: &Args, cpus: &[usize]) {
    Memory::new(1 << 20).check(cpus);
    let mut memory = Memory::new(args.model_mib << 20);
    let mut variants = Variant::ALL;
    if args.repeat % 2 == 1 {
        variants.reverse();
    }
    for chunk_bytes in SIZES {
        for variant in variants {
            let passes = memory.passes(variant, chunk_bytes, cpus);
            let fastest = passes.into_iter().min().expect("a pass").as_secs_f64() * 1e3;
            println!("divide,,{},{chunk_bytes},{fastest:.4}", variant.name());
        }
    }
}
