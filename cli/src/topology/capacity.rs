//! `phub-server topology --workers-for MODEL`: the number of workers of a model that this machine can serve
//! as their hub. It names the resource that limits the machine first, and the resource that would limit it
//! next (PHub, section 2: "up to 120 workers").

use std::fmt::Write as _;

use pbox_core::models;
use phub_server::program::WrongSetting;
use topology::{Host, Plan};

use super::machines::mb;

/// The share of a NIC's rated speed that is left for values after headers.
const WITHOUT_HEADERS: f64 = 0.97;

/// Settings of `topology` for the number of workers that a hub can serve.
#[derive(Debug, clap::Args)]
pub(super) struct CapacityArgs {
    /// Print how many workers that train this published network the machine can serve as a hub, and what limits it first.
    ///
    /// The bound is computed from the rated speeds of NICs, and from --memory-gb-s.
    #[arg(long, value_name = "NAME", requires = "samples_per_s",
          conflicts_with_all = ["machines", "racks", "workers", "model", "manifest", "json", "svg"])]
    workers_for: Option<String>,

    /// Number of samples that one worker computes in a second.
    #[arg(long, value_name = "N", value_parser = positive, requires = "workers_for")]
    samples_per_s: Option<f64>,

    /// Batch of one worker: its samples in a round.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "workers_for",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: u32,

    /// Speed of the machine's memory in GB/s: as measured, or about 0.8 of the rated speed of its channels. Default: memory
    /// is no limit.
    #[arg(long, value_name = "N", value_parser = positive, requires = "workers_for")]
    memory_gb_s: Option<f64>,
}

/// Parses a number above 0.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (1e-3..=1e9).contains(&number) => Ok(number),
        _ => Err("expected a number from 0.001 to 1e9".to_owned()),
    }
}

/// A limit on the workers of a hub.
struct Limit {
    name: &'static str,
    gb_s: f64,
    workers: f64,
}

impl CapacityArgs {
    /// Whether the user asked for the number of workers.
    pub fn are_given(&self) -> bool {
        self.workers_for.is_some()
    }

    /// Returns the report on the number of workers, as text.
    pub fn text(&self, host: &Host, plan: &Plan) -> anyhow::Result<String> {
        let (Some(name), Some(samples)) = (&self.workers_for, self.samples_per_s) else {
            return Err(WrongSetting("--workers-for needs --samples-per-s".into()).into());
        };
        let model = models::model(name)?;
        let bytes: u64 = model.keys.iter().filter_map(|key| key.bytes()).sum();
        let each = bytes as f64 * samples / f64::from(self.batch) / 1e9;
        let mut limits: Vec<Limit> = nic_gb_s(host, plan)
            .map(|gb_s| Limit { name: "NICs", gb_s, workers: gb_s / each })
            .into_iter()
            .chain(self.memory_gb_s.map(|gb_s| Limit {
                name: "memory",
                gb_s,
                workers: by_memory(gb_s / each),
            }))
            .collect();
        let mut text = format!(
            "This machine as a hub of {}, {} a copy; each worker computes {samples} samples/s in batches of {}\n\
             A worker pushes {each:.3} GB/s, and gets weights at the same rate\n\n",
            model.name,
            mb(bytes),
            self.batch
        );
        for Limit { name, gb_s, workers } in &limits {
            let _ = writeln!(text, "  {name:<8} {gb_s:>8.1} GB/s {:>8} workers", workers.floor());
        }
        limits.sort_by(|a, b| a.workers.total_cmp(&b.workers));
        let next = match limits.as_slice() {
            [] => "No limit is known, because no speed of a NIC is known. Give --memory-gb-s.".to_owned(),
            [only] => format!(
                "At most {} workers. The first limit: {}. The speed of the other resource (NICs or memory) is not known.",
                only.workers.floor(),
                only.name
            ),
            [first, next, ..] => format!(
                "At most {} workers. The first limit: {}. If this limit were {:.2} times as high, the next limit would be {}, at {} workers.",
                first.workers.floor(),
                first.name,
                next.workers / first.workers,
                next.name,
                next.workers.floor()
            ),
        };
        let _ = writeln!(text, "\n{next}");
        text.push_str(
            "This bound is computed, not measured: it ignores cores, and assumes that no byte is read from a cache.\n",
        );
        Ok(text)
    }
}

/// Returns the sum of the rates of a plan's NICs in each direction, if the speed of each NIC is known.
fn nic_gb_s(host: &Host, plan: &Plan) -> Option<f64> {
    let speed = |nic: &topology::PlacedNic| host.nics.iter().find(|of| of.name == nic.name)?.speed;
    let speeds: Option<Vec<f64>> =
        plan.nics().iter().map(|nic| Some(speed(nic)?.bits_per_s as f64)).collect();
    let bits: f64 = speeds?.iter().sum();
    (bits > 0.0).then_some(bits / 8e9 * WITHOUT_HEADERS)
}

/// Returns the number of workers that the memory can serve. `pushes` is the memory's speed, divided by the
/// rate at which one worker pushes.
///
/// For each byte that `w` workers push, a NIC writes one byte to memory, and the sum reads one byte. The step
/// reads 2/w bytes and writes 2/w bytes (Nesterov). The bound assumes that the cache saves nothing.
fn by_memory(pushes: f64) -> f64 {
    ((pushes - 4.0) / 2.0).max(0.0)
}
