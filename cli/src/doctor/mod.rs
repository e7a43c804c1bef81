//! `phub-server doctor`: everything that a hub needs on this machine, checked before the first job.
//!
//! ```text
//!   facts (/proc, /sys, limits), fabric::verbs, topology ──> judgements ──> Check ──> Report
//!                                   trials (bytes, sockets) ──────────────────┘
//! ```
//!
//! The doctor takes the settings of `serve`. It judges the settings, the machine, and a job of a given size,
//! and changes nothing.

mod check;
mod checks;
mod facts;
mod job;
mod nic_facts;
mod report;

use std::path::Path;

use anyhow::Context;
use fabric::any::Transport;
use fabric::verbs::{self, Device, Nccl, NicList, NicOptions};
use membership::NicSettings;
use membership::environment_warnings;
use pbox_core::MAX_WORKERS;
use pbox_core::control::check_address;
use phub_server::HubSettings;
use phub_server::lanes::{self, OnNics};
use phub_server::program::ModelSource;
use rustix::process::{Resource, getrlimit};
use topology::{Host, NicChoice, NicKind};

use check::{Check, Verdict};
use checks::control_port::Seen;
use checks::rdma::{Candidate, Found, Need};
use checks::{
    congestion, control_port, cores, data_path, files, locality, memory, moving, nic, peer, rdma, serve,
};
use facts::{Balancing, Cpus, HugePages, KernelRdma, Memlock};
use job::Job;
use nic_facts::NicFacts;
use report::{Form, Report};

/// Settings of `phub-server doctor`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Give the doctor the settings of `phub-server serve`. Run it where the hub will run, as the same user, in the same shell, \
unit or container, because limits belong to a process:

  phub-server doctor                                             what this machine can do
  phub-server doctor --transports verbs --nics mlx5              insist on RDMA, and on these NICs
  phub-server doctor --workers 8 --model vgg19                   are the limits enough for a larger job?
  phub-server doctor --listen 10.0.0.1:7077                      also for a worker's machine: does the hub answer?
  phub-server doctor --peer 10.0.0.1                             also for a worker's machine: how good is the way to that hub?
  phub-server doctor --json | jq '.checks[] | select(.verdict == \"fail\")'

Each check prints a line: pass, note (worth knowing), warn (the hub works, but not as well as it could) or FAIL (the hub
or the job would not work). A fix stands below the line where something is wrong.
Exit status: 0 if nothing fails, 1 if something fails, 2 for wrong settings. Missing RDMA is a failure if --transports names \
verbs or this machine has NICs for RDMA, otherwise a note.")]
pub struct DoctorArgs {
    /// The hub's settings.
    #[command(flatten)]
    settings: HubSettings,

    /// The model of the job for which the doctor checks; resnet50 by default.
    #[command(flatten)]
    model: ModelSource,

    /// Number of workers of the job for which the doctor checks this machine's limits.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WORKERS)))]
    workers: u32,

    /// Measure the path to the hub at this address, too: its data ports, the path MTU, and each pair of RDMA NICs. Use this
    /// on a worker's machine, with that hub's secret. Default port: 7077.
    #[arg(long, value_name = "HOST[:PORT]")]
    peer: Option<String>,

    /// Print one JSON object for programs. It has the verdict of all checks, and name, verdict, seen and fix of each check.
    #[arg(long)]
    json: bool,
}

/// The facts that the checks of RDMA have found, for the later checks.
struct Rdma {
    plan: Option<OnNics>,
    /// The NICs that the hub would use and that carry data.
    ready: Vec<NicOptions>,
}

impl DoctorArgs {
    /// Runs the checks, and prints a line for each. Returns true if none of them fails.
    pub fn run(&self) -> anyhow::Result<bool> {
        let settings = &self.settings;
        let peer = self.peer.as_deref().map(crate::operate::bare);
        peer.map_or(Ok(()), |peer| check_address(&peer::with_port(peer))).context("--peer")?;
        let (model, keys) = self.model.keys_or("resnet50")?;
        let job = Job::new(model, keys, self.workers)?;
        let host = Host::live()?;
        let nccl = lanes::nccl(settings);
        let mut report = Report::new(Form::of(self.json), subject(settings, &job));

        let seen = control_port::look(settings.listen);
        serve::needs(settings, &seen).for_each(|check| report.add(check));
        for warning in environment_warnings() {
            report.add(Check::warn("environment", warning, "unset the variable, or correct its name"));
        }
        for warning in &nccl.warnings {
            report.add(Check::warn(
                "NCCL's settings",
                warning,
                "unset the variable for this hub, or set the hub's own setting in its place",
            ));
        }
        let rdma = check_rdma(&mut report, settings, &host, &nccl);
        check_memory(&mut report, &job, rdma.plan.as_ref());
        let nodes = check_cores(&mut report, settings, &host, &job, rdma.plan.as_ref());
        report.add(files::open_files(job.workers, nodes.len(), &getrlimit(Resource::Nofile)));
        report.add(serve::threads(nodes.len()));
        report.add(serve::memory(settings, &job, self.model.is_given()));
        check_ways(&mut report, settings, &rdma, &seen);
        for nic in &rdma.ready {
            report.add(moving::over(nic, job.deepest_lane(&nodes), &settings.paths.0));
            report.add(moving::from_gpus(nic));
        }
        if let Some(peer) = peer {
            let nics = NicSettings {
                list: settings.nics.clone(),
                rails: settings.rails.clone(),
                paths: settings.paths.0.clone(),
            };
            let credential = settings.credential().ok();
            peer::check(peer, credential.as_ref(), &nics, &rdma.ready, &mut |check| report.add(check));
        }
        Ok(report.end()? < Verdict::Fail)
    }
}

/// Returns the hub and the job that are checked.
fn subject(settings: &HubSettings, job: &Job) -> String {
    let offered = Transport::ALL.into_iter().filter(|&way| settings.offers(way));
    let ways: Vec<String> = offered.map(|way| way.to_string()).collect();
    let Job { name, workers, .. } = job;
    format!(
        "phub-server {}: a hub at {} with transports {}, for {name} with {workers} workers",
        env!("CARGO_PKG_VERSION"),
        settings.listen,
        ways.join(", ")
    )
}

/// Checks RDMA, from the library to the GIDs. Each step needs the previous step.
fn check_rdma(report: &mut Report, settings: &HubSettings, host: &Host, nccl: &Nccl) -> Rdma {
    let nothing = Rdma { plan: None, ready: Vec::new() };
    if !settings.offers(Transport::Verbs) {
        report.add(Check::note("RDMA", "--transports does not name verbs"));
        return nothing;
    }
    let asked = lanes::wants_rdma(settings);
    if nccl.disabled && !asked {
        report.add(Check::note(
            "RDMA",
            "NCCL_IB_DISABLE turns RDMA off; --transports or --nics turns RDMA on again",
        ));
        return nothing;
    }
    let list = &lanes::nic_list(settings, nccl);
    // An invalid traffic class counts as 0 here, because the checks of the settings report it.
    let traffic_class = settings.paths.0.traffic_class().unwrap_or(0);
    let kernel = KernelRdma::read();
    let has_nics = !kernel.devices.is_empty() || host.nics.iter().any(|nic| nic.kind != NicKind::Ethernet);
    let need = if asked || has_nics { Need::Wanted } else { Need::Idle };
    let devices = verbs::devices();
    let found = Found { kernel, devices, library: facts::loaded("/libibverbs.so") };
    report.add(rdma::library(need, &found));
    rdma::devices(need, &found).into_iter().for_each(|check| report.add(check));
    let devices = match found.devices {
        Ok(devices) if !devices.is_empty() => devices,
        _ => return nothing,
    };
    let plan = match lanes::on_nics(host, settings, list, &devices) {
        Ok(plan) => Some(plan),
        Err(error) => {
            let fix = "phub-server topology shows cores and NICs; --cores and --nics choose among them";
            // `serve` does the same: it starts without RDMA if no setting asks for RDMA.
            let verdict = if asked { Verdict::Fail } else { Verdict::Warn };
            report.add(Check { verdict, ..Check::fail("NICs to use", error.to_string(), fix) });
            None
        }
    };
    let ready = check_nics(report, host, list, &devices, plan.as_ref(), traffic_class);
    Rdma { plan, ready }
}

/// Checks port and GID of each device. Returns the NICs that can carry data.
fn check_nics(
    report: &mut Report,
    host: &Host,
    list: &NicList,
    devices: &[Device],
    plan: Option<&OnNics>,
    traffic_class: u8,
) -> Vec<NicOptions> {
    let used = plan.map(OnNics::nics).unwrap_or_default();
    let (mut ready, mut facts) = (Vec::new(), Vec::new());
    // A device that the list of NICs excludes also gets a line.
    let nics_of = |device: &Device| match list.nics(device) {
        nics if nics.is_empty() => vec![None],
        nics => nics.into_iter().map(Some).collect(),
    };
    let nics = devices.iter().flat_map(|device| nics_of(device).into_iter().map(move |nic| (device, nic)));
    for (device, options) in nics {
        let nic = host.nic_named(&device.name).and_then(|id| host.nic(id));
        let candidate = Candidate {
            device,
            named: list.names_devices() && options.is_some(),
            planned: options.as_ref().is_some_and(|options| used.contains(options)),
            plan_has_nics: !used.is_empty(),
            netdev: nic.and_then(|nic| nic.netdevs.first().cloned()),
            options,
        };
        report.add(rdma::port(&candidate));
        if let (Some(port), Some(options)) = (candidate.port(), &candidate.options) {
            let netdev = port.netdev.clone().or_else(|| candidate.netdev.clone());
            let fact = NicFacts::read(Path::new("/"), &device.name, candidate.name(), netdev);
            nic::slot(&fact, port.gbps).into_iter().for_each(|check| report.add(check));
            nic::flow_control(&fact, traffic_class).into_iter().for_each(|check| report.add(check));
            facts.push(fact);
            let gid = rdma::gid(&candidate, port);
            if gid.verdict < Verdict::Fail {
                ready.push(options.clone());
            }
            report.add(gid);
        }
    }
    for check in [nic::iommu(&facts), nic::acs(&facts), nic::arp(&facts)].into_iter().flatten() {
        report.add(check);
    }
    ready
}

fn check_memory(report: &mut Report, job: &Job, plan: Option<&OnNics>) {
    let lanes = plan.iter().flat_map(|plan| &plan.lanes);
    let (nodes, of_lanes): (Vec<u32>, Vec<&NicOptions>) =
        lanes.filter_map(|lane| Some((lane.node, lane.nic.as_ref()?))).unzip();
    let nics = plan.map(OnNics::nics).unwrap_or_default().len();
    report.add(memory::memlock(job, nics, job.window_bytes(&nodes, &of_lanes), &Memlock::read()));
}

/// Checks the cores of the hub, and the pages of their memory. Returns the NUMA node of each lane.
fn check_cores(
    report: &mut Report,
    settings: &HubSettings,
    host: &Host,
    job: &Job,
    rdma: Option<&OnNics>,
) -> Vec<u32> {
    let plain;
    let (plan, nodes): (_, Vec<u32>) = match rdma {
        Some(OnNics { plan, lanes }) => (plan, lanes.iter().map(|lane| lane.node).collect()),
        None => match lanes::place(host, settings, NicChoice::default()) {
            Ok(plan) => {
                plain = plan;
                (&plain, plain.cores().iter().map(|core| core.node.0).collect())
            }
            Err(error) => {
                let fix = "phub-server topology shows the cores; --cores chooses among them";
                report.add(Check::fail("cores", error.to_string(), fix));
                return Vec::new();
            }
        },
    };
    let pages = HugePages::read();
    report.add(memory::window_pages(job, &nodes, &pages));
    report.add(memory::private_pages(&pages));
    report.add(locality::locality(host, plan));
    report.add(locality::balancing(host.nodes.len(), &Balancing::read()));
    let cpus: Vec<u32> = plan.cores().iter().map(|core| core.cpu.0).collect();
    let allowed = host.cpus.iter().filter(|cpu| cpu.allowed).map(|cpu| cpu.id.0).collect();
    let facts = Cpus::read(allowed);
    report.add(cores::isolation(&cpus, settings.idle, &facts));
    report.add(cores::governor(&cpus, &facts));
    nodes
}

/// Checks the control port, and the addresses of the data paths.
fn check_ways(report: &mut Report, settings: &HubSettings, rdma: &Rdma, seen: &Seen) {
    report.add(control_port::judge(settings.listen, seen));
    if settings.offers(Transport::Shm) {
        report.add(data_path::shared_memory());
    }
    if settings.offers(Transport::Tcp) {
        report.add(data_path::tcp(settings, seen));
        report.add(congestion::congestion(&settings.tcp_congestion));
    }
    if rdma.plan.is_some() {
        report.add(data_path::handshake(settings, seen));
    }
}
