//! `phub-server topology`: this machine or another, and the placement of a job's chunks, as text and as a
//! picture (like PHub's figure 2). With `--machines`, it shows a job on several machines.

mod capacity;
mod machines;
mod racks;

use std::fmt::Write as _;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::Context as _;
use pbox_core::{ChunkId, Key, Layout, MAX_WORKERS, Placement, default_chunk_bytes};
use phub_server::CoreSelection;
use phub_server::program::{ModelSource, WrongSetting};
use serde_json::json;
use topology::{Host, NicChoice, PlaceError, Plan, Request, render};

use capacity::CapacityArgs;
use machines::MachinesArgs;
use racks::RacksArgs;

use crate::{input, out};

/// Settings of `phub-server topology`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Show a machine, and which core would own which chunks of a job:

  phub-server topology                                           this machine
  phub-server topology --model vgg19 --svg plan.svg              and a plan for a job on it, also as a picture
  phub-server topology --synthetic \"sockets:2 cores:10 nics:5 nic_gbps:56\" --model vgg19

Show which shape is fastest for a job on several machines like this one, flat or a mesh:

  phub-server topology --machines 2 --workers-per-machine 4 --model resnet50 --link-gbps 25
  phub-server topology --machines 8 --workers-per-machine 8 --model vgg19 --above-hubs 4 --svg job.svg

Show a job in several racks, with one hub in each rack:

  phub-server topology --racks 4 --workers-per-rack 8 --model vgg19 --worker-gbps 10 --hub-gbps 100 --uplink-gbps 40

Show how many workers a machine can serve as their hub, and what limits it first:

  phub-server topology --workers-for resnet50 --samples-per-s 190 --memory-gb-s 125")]
pub struct TopologyArgs {
    /// Show the machine of this hwloc XML file (made by `lstopo --of xml FILE`), instead of this machine.
    #[arg(long, value_name = "FILE", conflicts_with = "synthetic")]
    xml: Option<PathBuf>,

    /// Show a machine with this description, instead of this machine, for example "sockets:2 cores:8 nics:5 nic_gbps:56".
    #[arg(long, value_name = "DESCRIPTION")]
    synthetic: Option<String>,

    #[command(flatten)]
    model: ModelSource,

    /// Number of the job's workers. It decides how many bytes a round moves.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WORKERS)))]
    workers: u32,

    /// Size of a chunk. Default: 32768 up to 2.1 GB of weights, more for larger models, as in a job.
    #[arg(long, value_name = "BYTES")]
    chunk_bytes: Option<usize>,

    /// Cores that sum and step: a number, or a list of cpus, for example 0,2,4-7. Default: the cores that `serve` would
    /// choose.
    #[arg(long, value_name = "N|LIST")]
    cores: Option<CoreSelection>,

    /// Use only these NICs: names with commas between them. Default: as `serve` chooses.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    nics: Option<Vec<String>>,

    /// Do not use these NICs: names with commas between them.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    except_nics: Vec<String>,

    #[command(flatten)]
    machines: MachinesArgs,

    #[command(flatten)]
    racks: RacksArgs,

    #[command(flatten)]
    capacity: CapacityArgs,

    /// Print one JSON object for programs: cores and NICs of the plan, with their parts of the job, and the plan's reasons.
    #[arg(long, conflicts_with_all = ["machines", "racks"])]
    json: bool,

    /// Draw the machine and the plan into this file, too; with --machines the job's machines.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

/// Returns a plan as JSON, for programs.
fn as_json(host: &Host, plan: &Plan) -> serde_json::Value {
    let nic_name = |id| host.nic(id).map(|nic| nic.name.as_str());
    let core = |core: &topology::PlacedCore| {
        let nics: Vec<_> = core.nics.iter().filter_map(|&id| nic_name(id)).collect();
        json!({"cpu": core.cpu.0, "node": core.node.0, "nics": nics, "bytes": core.load_bytes})
    };
    let nic = |nic: &topology::PlacedNic| json!({"name": nic.name, "cores": nic.cores.len(), "bytes": nic.load_bytes});
    let cores: Vec<_> = plan.cores().iter().map(core).collect();
    let nics: Vec<_> = plan.nics().iter().map(nic).collect();
    json!({"cpus": host.cpus.len(), "cores": cores, "nics": nics, "reasons": plan.reasons()})
}

impl TopologyArgs {
    /// Prints the text. Writes the picture if the arguments name a file for it.
    pub fn run(&self) -> anyhow::Result<()> {
        let host = match (&self.xml, &self.synthetic) {
            (Some(path), _) => {
                input::check_no_fifo(path)?;
                Host::from_xml(path)?
            }
            (_, Some(description)) => Host::from_synthetic(description)?,
            _ => Host::live()?,
        };
        let (mut text, picture) = if self.racks.are_given() {
            let model = self.needed_model("--racks")?;
            let chunk_bytes = self.chunk(&model.1);
            (self.racks.text(model, chunk_bytes)?, String::new())
        } else if self.capacity.are_given() {
            let plan = topology::place(&host, &self.request(&[]))?;
            (self.capacity.text(&host, &plan)?, String::new())
        } else if self.machines.are_given() {
            self.of_machines(&host)?
        } else {
            self.of_one(&host)?
        };
        if let Some(path) = &self.svg {
            std::fs::write(path, picture).with_context(|| {
                format!("cannot write {}: the directory must exist and be yours to write", path.display())
            })?;
            if !self.json {
                let _ = writeln!(text, "\nPicture: {}", path.display());
            }
        }
        out::all(text)
    }

    /// Returns text and picture of the machine. If there is a model, text and picture include a plan for the model.
    fn of_one(&self, host: &Host) -> anyhow::Result<(String, String)> {
        let mut text = String::new();
        let model = self.model.keys()?;
        let has_model = model.is_some();
        let plan = match model {
            None if self.chunk_bytes.is_some() => {
                let why = "--chunk-bytes needs a model, which has chunks; add --model resnet50, or --manifest FILE.safetensors";
                return Err(WrongSetting(why.into()).into());
            }
            // Without a job, the plan still chooses cores and NICs.
            None if self.chooses() || self.json => Some(topology::place(host, &self.request(&[]))?),
            None => None,
            Some((name, keys)) => {
                let layout = Layout::new(keys.clone(), self.chunk(&keys))?;
                let plan = self.place(host, &layout)?;
                let _ = write!(text, "\n{}", self.traffic(&name, &layout, &plan));
                Some(plan)
            }
        };
        if let (true, Some(plan)) = (self.json, &plan) {
            return Ok((format!("{}\n", as_json(host, plan)), render::svg(host, Some(plan), "run")));
        }
        text.insert_str(0, &render::text(host, plan.as_ref(), "run"));
        if !has_model {
            text.push_str(
                "\nAdd --model resnet50 to see where its chunks would go, --svg FILE to draw it.\n",
            );
        }
        Ok((text, render::svg(host, plan.as_ref(), "run")))
    }

    fn chunk(&self, keys: &[Key]) -> usize {
        self.chunk_bytes.unwrap_or_else(|| default_chunk_bytes(keys))
    }

    /// Whether the settings choose among cores and NICs.
    fn chooses(&self) -> bool {
        self.cores.is_some() || self.nics.is_some() || !self.except_nics.is_empty()
    }

    /// Returns the model's name and keys. Returns an error if there is no model, because `setting` needs one.
    fn needed_model(&self, setting: &str) -> anyhow::Result<(String, Vec<Key>)> {
        let why = || {
            format!(
                "{setting} needs a model to say what crosses the links; add --model resnet50, or --manifest FILE.safetensors"
            )
        };
        self.model.keys()?.ok_or_else(|| WrongSetting(why()).into())
    }

    /// Returns text and picture of a job on several machines like this one.
    fn of_machines(&self, host: &Host) -> anyhow::Result<(String, String)> {
        let model = self.needed_model("--machines")?;
        let plan = topology::place(host, &self.request(&[]))?;
        let chunk_bytes = self.chunk(&model.1);
        let job = self.machines.job(host, &plan, model, chunk_bytes)?;
        Ok((job.text(), job.svg()))
    }

    fn place(&self, host: &Host, layout: &Layout) -> Result<Plan, PlaceError> {
        // The first placement finds the cores. The hub's own rule then places runs of consecutive chunks on
        // these cores.
        let cores = topology::place(host, &self.request(&[]))?;
        let nodes: Vec<u32> = cores.cores().iter().map(|core| core.node.0).collect();
        let run_bytes =
            |run: Range<u32>| -> u64 { run.map(|id| layout.chunk(ChunkId(id)).span.bytes as u64).sum() };
        let placement = Placement::new(layout, nodes);
        let (weights, owners): (Vec<u64>, Vec<u32>) =
            placement.runs().map(|(run, core)| (run_bytes(run), core)).unzip();
        topology::place(host, &Request { owners: Some(&owners), ..self.request(&weights) })
    }

    fn request<'a>(&self, weights: &'a [u64]) -> Request<'a> {
        Request {
            cores: CoreSelection::choice(self.cores.as_ref()),
            nics: NicChoice { only: self.nics.clone(), except: self.except_nics.clone() },
            ..Request::new(weights)
        }
    }

    /// Returns the traffic of a round, and the hub's memory traffic.
    fn traffic(&self, name: &str, layout: &Layout, plan: &Plan) -> String {
        let (workers, model) = (u64::from(self.workers), layout.model_bytes());
        let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        let mut text = format!(
            "Job: {name}, {} keys, {} chunks of at most {} KiB (a run is some neighbouring chunks of a key), {} a copy, {workers} workers\n",
            layout.keys().len(),
            layout.chunks().len(),
            layout.chunk_bytes() as f64 / 1024.0,
            mb(model),
        );
        let _ =
            writeln!(text, "  a round brings {} of gradients in and sends as much out", mb(workers * model));
        for nic in plan.nics() {
            let _ = writeln!(text, "  {}: {} in and out a round", nic.name, mb(workers * nic.load_bytes));
        }
        let _ = writeln!(
            text,
            "  the hub reads {} and writes {} of memory a round with Nesterov",
            mb((workers + 2) * model),
            mb(2 * model)
        );
        text
    }
}
