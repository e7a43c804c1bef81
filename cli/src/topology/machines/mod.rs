//! `phub-server topology --machines N --workers-per-machine W`: a job on several machines. It prints the
//! owner of each share, the bytes on each link in a round, and the memory of a hub. It also recommends a
//! shape, with the reason.

mod picture;
mod text;

pub(super) use text::write_rounds;

use pbox_core::{ChunkId, JobTerms, Key, Layout, MAX_HUBS, MAX_WORKERS, Optimizer, Wire};
use phub_server::program::WrongSetting;
use phub_server::shapes::{Level, Shape, Shapes, fastest};
use topology::{Host, Plan};

/// The optimizer whose state is counted.
pub(super) const NESTEROV: Optimizer =
    Optimizer::Nesterov { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };

/// Settings of `topology` for a job on several machines.
#[derive(Debug, clap::Args)]
pub(super) struct MachinesArgs {
    /// Show a job on this number of machines like this one, with a hub on each. Needs a model.
    ///
    /// Shows the owner of each share, and the bytes on each link in a round in each shape. Also shows the recommended shape
    /// with the reason, and the memory of a hub.
    #[arg(long, value_name = "N", value_parser = machines, requires = "workers_per_machine", conflicts_with = "workers")]
    machines: Option<u32>,

    /// Number of workers on each of the --machines.
    #[arg(long, value_name = "N", value_parser = workers, requires = "machines")]
    workers_per_machine: Option<u32>,

    /// Show the shape with this number of dedicated hubs above the machines' hubs, too.
    #[arg(long, value_name = "N", value_parser = above_hubs, requires = "machines")]
    above_hubs: Option<u32>,

    /// Speed of each machine's link in Gb/s, each way. Default: the speed of the fastest NIC that the hub would use.
    ///
    /// The speed of virtual NICs is not known. Without a known speed only bytes are shown.
    #[arg(long, value_name = "GBPS", value_parser = gbps, requires = "machines")]
    link_gbps: Option<f64>,
}

/// The reason for the limit on machines and racks, for errors.
const EACH_HAS_A_HUB: &str = "each has a hub, and no job may have more hubs";

fn machines(text: &str) -> Result<u32, String> {
    number(text, MAX_HUBS, "machines", EACH_HAS_A_HUB)
}

pub(super) fn racks(text: &str) -> Result<u32, String> {
    number(text, MAX_HUBS, "racks", EACH_HAS_A_HUB)
}

pub(super) fn workers(text: &str) -> Result<u32, String> {
    number(
        text,
        MAX_WORKERS,
        "workers",
        "count only the workers of one hub: the workers of a machine, or of a rack",
    )
}

fn above_hubs(text: &str) -> Result<u32, String> {
    number(
        text,
        MAX_HUBS,
        "hubs above",
        "leave --above-hubs out for a mesh, in which the machines' hubs own the chunks",
    )
}

fn number(text: &str, most: u32, what: &str, next: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} {what}: expected a number from 1 to {most}; {next}")),
    }
}

pub(super) fn gbps(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(gbps) if (0.001..=1e6).contains(&gbps) => Ok(gbps),
        _ => Err(format!(
            "{text:?} Gb/s: expected a speed from 0.001 to 1000000, such as 25; leave the speed out to see bytes alone"
        )),
    }
}

impl MachinesArgs {
    /// Whether the settings for several machines are given.
    pub fn are_given(&self) -> bool {
        self.machines.is_some()
    }

    /// Returns the job on machines like `host`. The hubs of these machines have the cores of `plan`.
    pub fn job(
        &self,
        host: &Host,
        plan: &Plan,
        (name, keys): (String, Vec<Key>),
        chunk_bytes: usize,
    ) -> anyhow::Result<MachinesJob> {
        let (Some(machines), Some(workers)) = (self.machines, self.workers_per_machine) else {
            let why =
                "expected both --machines N and --workers-per-machine N; add the setting that is missing";
            return Err(WrongSetting(why.into()).into());
        };
        let cores = plan.cores().len();
        let terms = JobTerms { chunk_bytes, ..JobTerms::new(workers, keys, NESTEROV) };
        terms.check()?;
        let wire = Wire::of_terms(&terms)?;
        let (gbps, link) = self.speed(host, plan);
        let Shapes { mesh, above, all } =
            Shapes::new((&terms, &wire), machines, self.above_hubs, cores, gbps)?;
        let host = host.summary();
        Ok(MachinesJob { name, host, link, machines, cores, terms, wire, mesh, above, shapes: all })
    }

    /// Returns the speed of a machine's link, and a text that says where the figure comes from.
    fn speed(&self, host: &Host, plan: &Plan) -> (Option<f64>, String) {
        if let Some(gbps) = self.link_gbps {
            return (Some(gbps), format!("{gbps} Gb/s each way, by --link-gbps"));
        }
        let nics = plan.nics().iter().filter_map(|placed| host.nic(placed.nic));
        match fastest(nics) {
            None => (None, "speed unknown, so bytes only: --link-gbps 25 sets a speed of 25 Gb/s".to_owned()),
            Some((gbps, name)) => (
                Some(gbps),
                format!("{gbps} Gb/s each way, the speed of {name}; --link-gbps sets another speed"),
            ),
        }
    }
}

fn bytes_of(layout: &Layout, chunks: &[ChunkId]) -> u64 {
    chunks.iter().map(|&chunk| layout.chunk(chunk).span.bytes as u64).sum()
}

/// A job on several machines.
pub(super) struct MachinesJob {
    name: String,
    host: String,
    link: String,
    machines: u32,
    /// The cores of each hub.
    cores: usize,
    /// The terms of the workers of one machine.
    terms: JobTerms,
    wire: Wire,
    mesh: Level,
    above: Option<Level>,
    /// The shapes, the simplest first. A flat shape is left out if a job cannot have this number of workers.
    shapes: Vec<Shape>,
}

impl MachinesJob {
    fn title(&self) -> String {
        let count = |n: u32, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
        let workers = count(self.terms.workers, "worker");
        format!("{} x {workers}, {}", count(self.machines, "machine"), self.name)
    }
}

pub(super) fn mb(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
