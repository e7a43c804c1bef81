//! `phub-server topology --racks R --workers-per-rack W`: workers with separate links, and a hub on its own
//! machine in each rack (PHub, figure 5). It prints the bytes on each link in a round, and whether one hub is
//! enough.

use std::fmt::Write as _;

use pbox_core::{JobTerms, Key, MAX_WORKERS, Wire};
use phub_server::program::WrongSetting;
use phub_server::shapes::{Level, RackSpeeds, Shape};

use super::machines::{NESTEROV, gbps, mb, racks, workers, write_rounds};

/// Settings of `topology` for a job in several racks.
#[derive(Debug, clap::Args)]
pub(super) struct RacksArgs {
    /// Show a job in this number of racks, with a hub in each; each worker has its own link. Needs a model and the speeds.
    ///
    /// Shows the bytes on each link in a round. Also shows whether one hub for all racks is as fast as a mesh with a hub in
    /// each rack.
    #[arg(long, value_name = "N", value_parser = racks, conflicts_with_all = ["machines", "workers", "svg"],
          requires_all = ["workers_per_rack", "worker_gbps", "hub_gbps", "uplink_gbps"])]
    racks: Option<u32>,

    /// Number of workers in each rack.
    #[arg(long, value_name = "N", value_parser = workers, requires = "racks")]
    workers_per_rack: Option<u32>,

    /// Speed of a worker's link in Gb/s, each way.
    #[arg(long, value_name = "GBPS", value_parser = gbps, requires = "racks")]
    worker_gbps: Option<f64>,

    /// Speed of all NICs of a rack's hub together in Gb/s, each way.
    #[arg(long, value_name = "GBPS", value_parser = gbps, requires = "racks")]
    hub_gbps: Option<f64>,

    /// Speed of a rack's link to the other racks in Gb/s, each way.
    #[arg(long, value_name = "GBPS", value_parser = gbps, requires = "racks")]
    uplink_gbps: Option<f64>,
}

impl RacksArgs {
    /// Whether the settings for racks are given.
    pub fn are_given(&self) -> bool {
        self.racks.is_some()
    }

    /// Returns the report on the job over several racks, as text.
    pub fn text(&self, (name, keys): (String, Vec<Key>), chunk_bytes: usize) -> anyhow::Result<String> {
        let given = (self.racks, self.workers_per_rack, self.worker_gbps, self.hub_gbps, self.uplink_gbps);
        let (Some(racks), Some(workers), Some(worker), Some(hub), Some(uplink)) = given else {
            let why = "--racks needs --workers-per-rack, --worker-gbps, --hub-gbps and --uplink-gbps";
            return Err(WrongSetting(why.into()).into());
        };
        let speeds = RackSpeeds { worker, hub, uplink };
        let terms = JobTerms { chunk_bytes, ..JobTerms::new(workers, keys, NESTEROV) };
        terms.check()?;
        let wire = Wire::of_terms(&terms)?;
        // For the load of links it does not matter which core owns a chunk.
        let shares = Level::new((&terms, &wire), racks, racks, 1)?.volumes;
        let flat = || Shape::flat_racks(&shares, workers, speeds);
        let mesh = Shape::mesh_of_racks(&shares, workers, speeds);
        let all = racks * workers;
        let shapes: Vec<Shape> = (all <= MAX_WORKERS).then(flat).into_iter().chain([mesh]).collect();

        let mut text = format!(
            "{racks} racks x {workers} workers, {name}, {} a copy: flat with one hub in one rack, or a mesh with a hub in each rack\n\
             Gb/s each way: a worker {worker}, a hub {hub}, an uplink {uplink}\n\n\
             Bytes that a link carries a round (out, in)\n",
            mb(wire.layout().model_bytes())
        );
        for (shape, load) in shapes.iter().flat_map(|shape| shape.loads.iter().map(move |load| (shape, load)))
        {
            let (kind, link) = (shape.kind.to_string(), load.link.to_string());
            let _ = writeln!(text, "  {kind:<5} {link:<21} {:>11} {:>11}", mb(load.sends), mb(load.receives));
        }
        text.push_str("\nWhat the links allow; hubs and workers may take longer\n");
        let _ = write_rounds(&mut text, &shapes, all);
        Ok(text)
    }
}
