//! The probe's report: a table for people, or one JSON object.

mod credit;
mod crossed;
mod pull;

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pbox_core::control::{CoreReply, HubReply};
use pbox_core::{Credit, Key, Layout, Schedule};
use serde::Serialize;

pub(super) use credit::CreditReport;
use credit::Tried;
pub(super) use crossed::{Crossed, digest};
pub(super) use pull::PullReport;

use super::args::Args;
use crate::compute::{ComputeReport, Times};

/// The result of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    model: String,
    parameters: u64,
    dtype: &'static str,
    model_bytes: u64,
    workers: u32,
    transport: String,
    cores: usize,
    kernels: String,
    optimizer: &'static str,
    consistency: String,
    schedule: Schedule,
    /// The most bytes of a slice, or `None` if whole layers are sent.
    slice_bytes: Option<usize>,
    /// The credit, as the user gave it.
    credit: String,
    /// The credit of rank 0.
    credit_bytes: Option<usize>,
    credit_tried: Vec<Tried>,
    #[serde(skip)]
    credit_words: String,
    /// The codec of gradients and weights.
    compression: Option<String>,
    /// The number of bytes that a worker sends in a round.
    sent_bytes: f64,
    received_bytes: f64,
    #[serde(skip)]
    volume_words: String,
    ablated: Vec<String>,
    /// The norm of the mean gradient in the last round, if the job has norms.
    gradient_norm: Option<f32>,
    weights: &'static str,
    pages: &'static str,
    rounds: u32,
    seconds: f64,
    rounds_per_s: f64,
    round_ms_p10: f64,
    round_ms_p50: f64,
    round_ms_p90: f64,
    goodput_gb_per_s: f64,
    limit_gb_per_s: Option<f64>,
    limit_ratio: Option<f64>,
    /// The lowest and the highest ratio of the limit's time to the rounds' time in a `Leg`.
    limit_ratio_spread: Option<[f64; 2]>,
    checked: bool,
    hub_rss_mb: f64,
    worker_rss_mb: f64,
    compute: Option<ComputeReport>,
    /// The pulls of rank 0.
    pull: Option<PullReport>,
    per_core: Vec<CoreShare>,
}

/// The work of one core in the measured rounds.
#[derive(Debug, Serialize)]
struct CoreShare {
    cpu: u32,
    /// The NIC over which the core's chunks cross, if the transport is RDMA.
    #[serde(skip_serializing_if = "Option::is_none")]
    nic: Option<String>,
    chunks: u64,
    bytes: u64,
    busy_s: f64,
    waiting_s: f64,
}

/// Some rounds, and the same number of passes of the machine's limit right after them. Times are in ns, and
/// sorted.
#[derive(Debug)]
pub(super) struct Leg {
    rounds: Vec<u64>,
    passes: Vec<u64>,
}

impl Leg {
    /// Makes a leg from each worker's times. A round ends when the last worker has its weights, so the longest of the
    /// workers' times counts. The workers' times differ only by the time of a wake-up.
    pub fn new(by_worker: &[Vec<u64>], passes: Vec<Duration>) -> Self {
        let rounds = by_worker.iter().map(Vec::len).min().unwrap_or(0);
        let slowest = |round: usize| by_worker.iter().map(|worker| worker[round]).max().unwrap_or(0);
        let mut rounds: Vec<u64> = (0..rounds).map(slowest).collect();
        let mut passes: Vec<u64> = passes.iter().map(|pass| pass.as_nanos() as u64).collect();
        rounds.sort_unstable();
        passes.sort_unstable();
        Leg { rounds, passes }
    }

    /// Returns the limit's time divided by the rounds' time, or `None` without a limit.
    fn ratio(&self) -> Option<f64> {
        (!self.passes.is_empty()).then(|| quantile(&self.passes, 0.5) / quantile(&self.rounds, 0.5))
    }
}

/// The measurements of a run.
#[derive(Debug)]
pub(super) struct Measured<'a> {
    pub transport: String,
    pub layout: &'a Layout,
    pub legs: &'a [Leg],
    pub worker_rss: u64,
    /// The hub's descriptions before and after each `Leg`.
    pub hub: &'a [(HubReply, HubReply)],
    /// The credit, traffic and pulls of rank 0.
    pub credit: CreditReport,
    pub crossed: Crossed,
    pub pull: Option<PullReport>,
    /// The norm of the last round, if the job has norms.
    pub norm: Option<f32>,
    /// The compute measurements of each worker.
    pub computed: &'a [Times],
}

impl Report {
    /// Makes the report from the measurements.
    pub(super) fn new(args: &Args, measured: Measured) -> Result<Self> {
        let Measured { layout, legs, hub, credit, crossed, .. } = measured;
        let (model, _) = args.keys()?;
        let after = &hub.last().expect("a run has a leg").1;
        let sorted = |times: fn(&Leg) -> &Vec<u64>| {
            let mut all: Vec<u64> = legs.iter().flat_map(times).copied().collect();
            all.sort_unstable();
            all
        };
        let (rounds, passes) = (sorted(|leg| &leg.rounds), sorted(|leg| &leg.passes));
        let seconds = rounds.iter().sum::<u64>() as f64 / 1e9;
        let round_ms = |q| quantile(&rounds, q) / 1e6;
        let moved = f64::from(args.all_workers()) * layout.model_bytes() as f64;
        let key_bytes: Vec<u64> = layout.keys().iter().filter_map(Key::bytes).collect();
        let (scale, bandwidth) = (args.compute.time_scale, args.compute.bandwidth_gbps);
        let compute = |plan| ComputeReport::new(&plan, scale, &key_bytes, bandwidth, measured.computed);
        let mut ratios: Vec<f64> = legs.iter().filter_map(Leg::ratio).collect();
        ratios.sort_by(f64::total_cmp);
        // By default, the links to one peer share a credit.
        let asked = args.credit.or(credit.bytes.map(Credit::Bytes)).unwrap_or(Credit::None);
        Ok(Report {
            model,
            parameters: layout.parameters(),
            dtype: layout.keys()[0].dtype.name(),
            model_bytes: layout.model_bytes(),
            workers: args.all_workers(),
            transport: measured.transport,
            cores: after.cores.len(),
            kernels: after.kernels.clone(),
            optimizer: args.optimizer.name(),
            consistency: args.consistency.to_string(),
            schedule: args.schedule(),
            slice_bytes: (!args.schedule().by_layer())
                .then(|| args.slice_bytes.unwrap_or(layout.chunk_bytes())),
            credit: asked.to_string(),
            credit_words: credit.words(asked),
            credit_bytes: credit.bytes,
            credit_tried: credit.tried,
            compression: args.compress.map(|compression| compression.to_string()),
            sent_bytes: crossed.sent,
            received_bytes: crossed.received,
            volume_words: crossed.words(layout.model_bytes()),
            ablated: args.ablate.iter().map(|what| format!("{what:?}").to_lowercase()).collect(),
            gradient_norm: measured.norm,
            weights: match args.weights {
                _ if args.compress.is_some() => "private",
                super::args::WeightsChoice::Shared => "shared",
                super::args::WeightsChoice::Private => "private",
            },
            pages: if fabric::shared_huge_pages() { "huge" } else { "small" },
            rounds: args.rounds,
            seconds,
            rounds_per_s: f64::from(args.rounds) / seconds,
            round_ms_p10: round_ms(0.1),
            round_ms_p50: round_ms(0.5),
            round_ms_p90: round_ms(0.9),
            goodput_gb_per_s: moved / quantile(&rounds, 0.5),
            limit_gb_per_s: (!passes.is_empty()).then(|| moved / quantile(&passes, 0.5)),
            limit_ratio: ratios.get(ratios.len() / 2).copied(),
            limit_ratio_spread: ratios.first().copied().zip(ratios.last().copied()).map(Into::into),
            // A wrong result would have ended the run with an error.
            checked: args.compress.is_none() || args.ends_alike(),
            hub_rss_mb: after.rss_bytes as f64 / 1e6,
            worker_rss_mb: measured.worker_rss as f64 / 1e6,
            compute: args.plan()?.map(compute),
            pull: measured.pull,
            per_core: CoreShare::of(hub, seconds),
        })
    }

    /// Prints the report.
    pub(super) fn print(&self, json: bool) -> Result<()> {
        let text = if json { serde_json::to_string(self)? + "\n" } else { self.table() };
        phub_server::program::print(text)
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{}: {:.1} M parameters in {}, {:.1} MB; {} workers, {} weights, {}{} over {}, {} kernels\n\n",
            self.model,
            self.parameters as f64 / 1e6,
            self.dtype,
            self.model_bytes as f64 / 1e6,
            self.workers,
            self.weights,
            self.optimizer,
            if self.consistency == "bsp" { String::new() } else { format!(" in {}", self.consistency) },
            self.transport,
            self.kernels,
        );
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<16} {value}");
        };
        row("rounds", format!("{} in {:.2} s, {:.1} a second", self.rounds, self.seconds, self.rounds_per_s));
        row(
            "a round",
            format!(
                "{:.2} ms (p10 {:.2}, p90 {:.2})",
                self.round_ms_p50, self.round_ms_p10, self.round_ms_p90
            ),
        );
        let unit = self.slice_bytes.map_or("whole layers".into(), |bytes| format!("slices of {bytes} bytes"));
        row("schedule", format!("{}, {unit}; credit {}", self.schedule, self.credit_words));
        if let Some(compression) = &self.compression {
            row("compression", compression.clone());
            row("volume", self.volume_words.clone());
        }
        if let Some(norm) = self.gradient_norm {
            row("gradient norm", format!("{norm} before clipping, in the last round"));
        }
        if !self.ablated.is_empty() {
            row("left out", self.ablated.join(" and "));
        }
        row("goodput", format!("{:.2} GB/s (workers x model / median round)", self.goodput_gb_per_s));
        for (name, value) in self.compute.iter().flat_map(ComputeReport::rows) {
            row(name, value);
        }
        if let Some(pull) = &self.pull {
            row("pulls", pull.words().to_owned());
        }
        if let (Some(limit), Some(ratio)) = (self.limit_gb_per_s, self.limit_ratio) {
            row(
                "machine's limit",
                format!("{limit:.2} GB/s (same kernels and cores, private memory, no exchange)"),
            );
            let [low, high] = self.limit_ratio_spread.unwrap_or([ratio; 2]);
            row("ratio", format!("{ratio:.2} of the limit (median of legs, {low:.2} to {high:.2})"));
        }
        let exact = match self.consistency.as_str() {
            "bsp" => "exact",
            _ => "exact, of an allowed number of steps",
        };
        row(
            "checked",
            match self.compression {
                None if matches!(self.optimizer, "lars" | "lamb") => {
                    format!("every element after the last round: {exact}")
                }
                None => {
                    format!(
                        "one cache line of every chunk in 16 rounds, every element after the last: {exact}"
                    )
                }
                Some(_) if self.checked => {
                    "all workers of this machine have the same bits after the last round".into()
                }
                Some(_) => "nothing: results are not exact, and differ between workers".into(),
            },
        );
        row(
            "memory",
            format!(
                "hub {:.0} MB, a worker {:.0} MB resident (shared pages count in both)",
                self.hub_rss_mb, self.worker_rss_mb
            ),
        );
        text.extend(self.compute.iter().map(ComputeReport::worst_layers));
        let nic = |core: &CoreShare| core.nic.clone().unwrap_or_default();
        let wide = self.per_core.iter().map(|core| nic(core).len()).max().unwrap_or(0);
        // Without RDMA there is no column for NICs.
        let column = |nic: &str| if wide == 0 { String::new() } else { format!("  {nic:<0$}", wide.max(3)) };
        let _ = writeln!(text, "\n  core  cpu{}   chunks       GB  work", column("nic"));
        for (slot, core) in self.per_core.iter().enumerate() {
            let share = core.busy_s / (core.busy_s + core.waiting_s).max(1e-9);
            let _ = writeln!(
                text,
                "  {slot:>4} {:>4}{} {:>8} {:>8.2}  {:<20} {:>5.1}% working, {:.1}% waiting",
                core.cpu,
                column(&nic(core)),
                core.chunks,
                core.bytes as f64 / 1e9,
                "█".repeat((share * 20.0).round() as usize),
                share * 100.0,
                (1.0 - share) * 100.0,
            );
        }
        text
    }
}

impl CoreShare {
    /// Returns the work of each core in rounds that took `seconds`, from the pairs of descriptions. The hub
    /// counts a wait when the wait ends, so a wait includes the time in which the limit was measured.
    fn of(hub: &[(HubReply, HubReply)], seconds: f64) -> Vec<Self> {
        let cores = hub.first().map_or(0, |(before, _)| before.cores.len());
        let sum = |core: usize, count: fn(&CoreReply) -> u64| {
            hub.iter()
                .map(|(before, after)| count(&after.cores[core]) - count(&before.cores[core]))
                .sum::<u64>()
        };
        let share = |core: usize| {
            let busy_s = sum(core, |core| core.busy_ns) as f64 / 1e9;
            CoreShare {
                cpu: hub[0].0.cores[core].cpu,
                nic: hub[0].0.cores[core].nic.clone(),
                chunks: sum(core, |core| core.chunks),
                bytes: sum(core, |core| core.chunk_bytes),
                busy_s,
                waiting_s: (seconds - busy_s).max(0.0),
            }
        };
        (0..cores).map(share).collect()
    }
}

fn quantile(sorted: &[u64], q: f64) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        len => sorted[((len - 1) as f64 * q).round() as usize] as f64,
    }
}

/// Returns a progress bar on stderr, if stderr is a terminal and the report is not JSON.
pub(super) fn progress_bar(args: &Args) -> ProgressBar {
    let bar = ProgressBar::new(args.rounds.into());
    bar.set_draw_target(if args.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() });
    let style = ProgressStyle::with_template("{msg:34} {wide_bar} {pos}/{len} {elapsed_precise}");
    bar.set_style(style.expect("the template is right"));
    bar
}
