//! The report of `phub-peers`: a table in Markdown, or one JSON object.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use super::args::Args;
use super::system::{Missing, Work};

/// The result of all runs.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    model: String,
    parameters: u64,
    model_bytes: u64,
    workers: u32,
    rounds: u32,
    repeats: u32,
    systems: Vec<Row>,
    missing: Vec<Missing>,
}

/// The machine of the runs.
#[derive(Debug, Serialize)]
struct Machine {
    processor: String,
    cpus: usize,
    kernels: String,
}

/// One system.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    goodput_gb_per_s: Spread,
    /// The goodput of the first system divided by the goodput of this system, within each repeat.
    hub_is_faster_by: Spread,
    /// The goodput of every run, in order.
    runs_gb_per_s: Vec<f64>,
}

/// The median, the lowest and the highest of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

impl Report {
    /// Makes the report from each system's goodput in each repeat. The first system is compared with the
    /// others.
    pub fn new(
        args: &Args,
        work: &Work,
        kernels: Option<String>,
        names: &[&str],
        goodputs: &[Vec<f64>],
        missing: Vec<Missing>,
    ) -> Self {
        Report {
            machine: Machine::this(kernels),
            model: work.model.clone(),
            parameters: work.elements,
            model_bytes: work.elements * 4,
            workers: args.workers,
            rounds: args.rounds,
            repeats: args.repeats,
            systems: rows(names, goodputs),
            missing,
        }
    }

    /// Prints the report.
    pub fn print(&self, json: bool) -> Result<()> {
        let text = if json { serde_json::to_string(self)? + "\n" } else { self.table() };
        phub_server::program::print(text)
    }

    fn table(&self) -> String {
        let Machine { processor, cpus, kernels } = &self.machine;
        let mut text = format!(
            "{processor}, {cpus} cpus, {kernels} kernels\n{}, {} workers, median of {} interleaved runs of {} rounds (lowest to highest)\n\n",
            self.model, self.workers, self.repeats, self.rounds
        );
        let _ = writeln!(text, "  {:<34} {:>22}   {:>22}", "", "GB/s", "the hub is faster by");
        for row in &self.systems {
            let (goodput, ratio) = (row.goodput_gb_per_s.to_string(), row.hub_is_faster_by.to_string());
            let _ = writeln!(text, "  {:<34} {goodput:>22}   {ratio:>22}", row.name);
        }
        for missing in &self.missing {
            let _ = writeln!(text, "  {:<34} {:>22}", missing.system, "not installed");
        }
        text
    }
}

impl Machine {
    fn this(kernels: Option<String>) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine {
            processor: processor(&cpuinfo).unwrap_or(std::env::consts::ARCH).to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get()),
            kernels: kernels.unwrap_or_else(|| "unknown".into()),
        }
    }
}

/// Returns the processor's name, if the kernel reports it. On ARM it does not.
fn processor(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim()).filter(|name| !name.is_empty())
}

fn rows(names: &[&str], goodputs: &[Vec<f64>]) -> Vec<Row> {
    let row = |(name, theirs): (&&str, &Vec<f64>)| {
        let ratios: Vec<f64> = goodputs[0].iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
        Row {
            name: name.to_string(),
            goodput_gb_per_s: Spread::of(theirs),
            hub_is_faster_by: Spread::of(&ratios),
            runs_gb_per_s: theirs.clone(),
        }
    };
    names.iter().zip(goodputs).map(row).collect()
}

impl Spread {
    /// Returns the spread of one or more values.
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (below, above) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Spread { median: (below + above) / 2.0, lowest: sorted[0], highest: sorted[sorted.len() - 1] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.lowest, self.highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, lowest: 1.0, highest: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of(&[7.0]).to_string(), "7.00 (7.00 to 7.00)");
    }

    #[test]
    fn ratios_are_taken_within_a_repeat() {
        // In the second repeat the machine has half of its speed. The ratio stays the same.
        let rows = rows(&["hub", "peer"], &[vec![8.0, 4.0], vec![2.0, 1.0]]);
        assert_eq!(rows[0].hub_is_faster_by, Spread { median: 1.0, lowest: 1.0, highest: 1.0 });
        assert_eq!(rows[1].hub_is_faster_by, Spread { median: 4.0, lowest: 4.0, highest: 4.0 });
        assert_eq!(rows[1].goodput_gb_per_s, Spread { median: 1.5, lowest: 1.0, highest: 2.0 });
    }

    #[test]
    fn the_processor() {
        let two = "processor\t: 0\nmodel name\t: A: fast one \nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(processor(two), Some("A: fast one"));
        assert_eq!(processor("processor\t: 0\nBogoMIPS\t: 50.0\n"), None);
    }

    #[test]
    fn a_table_names_what_is_missing() {
        let machine = Machine { processor: "Fast".into(), cpus: 2, kernels: "avx2".into() };
        let missing = vec![Missing { system: "gloo", how: "install it".into() }];
        let systems = rows(&["hub", "peer"], &[vec![8.0], vec![2.0]]);
        let report = Report {
            machine,
            model: "tiny".into(),
            parameters: 10,
            model_bytes: 40,
            workers: 2,
            rounds: 5,
            repeats: 1,
            systems,
            missing,
        };
        let table = report.table();
        for words in ["Fast, 2 cpus, avx2 kernels", "tiny, 2 workers", "4.00 (4.00 to 4.00)", "not installed"]
        {
            assert!(table.contains(words), "expected {words:?} in\n{table}");
        }
    }
}
