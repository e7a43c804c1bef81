//! A job on several machines as text for a terminal.

use std::fmt::Write as _;

use pbox_core::{Below, Layout, MAX_WORKERS};
use phub_server::job_memory::JobMemory;
use phub_server::shapes::{Kind, Level, Link, Shape, choose};

use super::{MachinesJob, bytes_of, mb};

/// The most lines that are written for a level.
const LINES: usize = 16;

impl MachinesJob {
    /// Returns the report on the job over several machines, as text.
    pub fn text(&self) -> String {
        // Writing to a String cannot fail.
        let mut text = String::new();
        let _ = self.heading(&mut text);
        let _ = self.owners(&mut text);
        let _ = writeln!(text, "\nWhat the links allow; hubs and workers may take longer\n{}", self.rounds());
        let _ = writeln!(text, "{}", self.command());
        let _ = self.memory(&mut text);
        text
    }

    fn heading(&self, out: &mut String) -> std::fmt::Result {
        let layout: &Layout = self.wire.layout();
        writeln!(
            out,
            "{}: {} keys, {} chunks of at most {} KiB, {} a copy",
            self.title(),
            layout.keys().len(),
            layout.chunks().len(),
            layout.chunk_bytes() as f64 / 1024.0,
            mb(layout.model_bytes())
        )?;
        let linked = Below::new(&self.mesh.hubs, self.cores).cores_above;
        let links = linked.iter().map(Vec::len).max().unwrap_or(0);
        writeln!(out, "  each machine: {}", self.host)?;
        writeln!(
            out,
            "  each hub: cores: {}; links of each core to other hubs, in a mesh: {links}",
            self.cores
        )?;
        writeln!(out, "  each link: {}", self.link)
    }

    /// Writes a line for each hub: the chunks that it owns, and the load of its link in each shape.
    fn owners(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "\nWhat each hub owns, and the bytes that its machine's link carries a round (out, in)"
        )?;
        write!(out, "  {:<13} {:>8} {:>11} {:>6}", "", "chunks", "bytes", "share")?;
        let kinds: String =
            self.shapes.iter().map(|shape| format!("  {:^23}", shape.kind.to_string())).collect();
        writeln!(out, "{}", kinds.trim_end())?;
        self.lines(out, &self.mesh, Link::Machine)?;
        self.above.iter().try_for_each(|above| self.lines(out, above, Link::HubAbove))
    }

    fn lines(&self, out: &mut String, level: &Level, link: fn(u32) -> Link) -> std::fmt::Result {
        for (number, hub) in (0..).zip(0..level.hubs.len().min(LINES)) {
            let (link, chunks) = (link(number), level.chunks(hub));
            let bytes = bytes_of(self.wire.layout(), &chunks);
            let share = bytes as f64 / self.wire.layout().model_bytes() as f64 * 100.0;
            let name = link.to_string();
            write!(out, "  {name:<13} {:>8} {:>11} {share:>5.1}%", chunks.len(), mb(bytes))?;
            for shape in &self.shapes {
                let load = shape.loads.iter().find(|load| load.link == link);
                let [sends, receives] =
                    load.map_or(["-".into(), "-".into()], |load| [mb(load.sends), mb(load.receives)]);
                write!(out, "  {sends:>11} {receives:>11}")?;
            }
            writeln!(out)?;
        }
        match level.hubs.len().checked_sub(LINES + 1) {
            Some(beyond) => writeln!(out, "  ... and {} more like these", beyond + 1),
            None => Ok(()),
        }
    }

    /// Returns how fast rounds can be in each shape, and the recommended shape.
    pub(super) fn rounds(&self) -> String {
        let mut text = String::new();
        let _ = write_rounds(&mut text, &self.shapes, self.machines * self.terms.workers);
        text
    }

    /// Returns the commands that start the hubs.
    fn command(&self) -> String {
        let of = self.machines;
        let serve = "phub-server serve --listen 0.0.0.0:7077";
        match choose(&self.shapes).best.kind {
            Kind::Flat => {
                format!("On each machine: {serve}\n  its workers: PHUB_HUB with the hubs of all machines")
            }
            Kind::Mesh => format!(
                "torchrun, Slurm and Open MPI start it; without them, on each machine: {serve}\n  its workers: \
                 PHUB_LEVELS=machine PHUB_MESH=N/{of}@FIRST-HOST:7077, N from 0"
            ),
            Kind::Above => {
                format!(
                    "Hubs above: {serve}\nOn each machine: {serve} --above HOST:7077,... --machine N/{of}, N from 0\n  its \
                     workers: PHUB_LEVELS=machine"
                )
            }
        }
    }

    /// Writes the memory of a hub with two levels. A hub counts its memory in the same way before it admits a job.
    fn memory(&self, out: &mut String) -> std::fmt::Result {
        let below = JobMemory::new(&self.wire, &self.terms, false, true);
        let level = |level: &Level| JobMemory::new(&level.wire, &level.terms, false, false);
        let own = level(&self.mesh);
        writeln!(out, "\nMemory of a machine's hub, in a mesh, with Nesterov")?;
        writeln!(
            out,
            "  job of its {} workers: {} of gradients, {} of sums, {} of weights that the workers read",
            self.terms.workers,
            mb(below.gradients),
            mb(below.sums),
            mb(below.weights)
        )?;
        writeln!(
            out,
            "  its share of the job above: {} of the hubs' sums, {} of weights, {} of the optimizer's state",
            mb(own.share(own.gradients)),
            mb(own.share(own.weights)),
            mb(own.share(own.kept))
        )?;
        writeln!(
            out,
            "  both jobs together need at most {}, because they share the memory of sums and weights of the chunks that the hub owns",
            mb(below.needed() + own.needed())
        )?;
        // Each hub has two connections to every other hub: as a member of the other hub's job, and in its own
        // job. Each connection has a window of gradients and a window of weights.
        let connections = 2 * u64::from(self.machines - 1);
        let wire = &self.mesh.wire;
        let windows = (wire.gradient_window_bytes() + wire.weights_window_bytes()) as u64;
        writeln!(
            out,
            "  with RDMA, {} count against RLIMIT_MEMLOCK, on all NICs together: the hub's share of the gradients and weights windows of {connections} connections",
            mb(connections * own.share(windows))
        )?;
        let Some(above) = self.above.as_ref().map(level) else { return Ok(()) };
        writeln!(
            out,
            "With dedicated hubs above: {} of a machine's hub, {} of each hub above",
            mb(below.needed()),
            mb(above.needed())
        )
    }
}

/// Writes how fast rounds can be in each of these shapes, for a job with `workers` workers, and the
/// recommended shape.
pub(crate) fn write_rounds(out: &mut String, shapes: &[Shape], workers: u32) -> std::fmt::Result {
    for shape in shapes {
        let load = shape.bottleneck();
        let (kind, bytes) = (format!("{}:", shape.kind), mb(load.bytes()));
        write!(out, "  {kind:<6} a round waits for the link of {}, {bytes} one way", load.link)?;
        match load.round_s() {
            Some(0.0) | None => writeln!(out)?,
            Some(round_s) => {
                writeln!(out, ": {:.1} ms, {:.3} rounds a second", round_s * 1e3, 1.0 / round_s)?;
            }
        }
    }
    if shapes[0].kind != Kind::Flat {
        writeln!(out, "  flat:  not possible: {workers} workers, and a job has at most {MAX_WORKERS}")?;
    }
    let choice = choose(shapes);
    writeln!(out, "  use {}: {}", choice.best.kind, choice.why)
}
