//! The hubs of a level, the share of each hub, and the bytes of each share on the wire.

use pbox_core::{Above, ChunkId, JobTerms, MAX_WORKERS, Members, Placement, Wire};

use super::Shape;

/// The bytes that a transport sends before each chunk. The header of a TCP frame has 16 bytes.
const FRAME_BYTES: u64 = 16;

/// The hubs that the machines' hubs push sums to, with a share each. In a mesh, these hubs are the machines' hubs
/// themselves.
#[derive(Debug)]
pub struct Level {
    /// The terms of the job at these hubs.
    pub terms: JobTerms,
    /// The wire.
    pub wire: Wire,
    /// The chunks of each hub.
    pub hubs: Vec<Placement>,
    /// The volume of each hub's share.
    pub volumes: Vec<Volume>,
}

impl Level {
    /// Makes the level of `hubs` hubs with `cores` cores each. `terms` and `wire` are the terms and the wire between
    /// the workers of one machine and their hub.
    ///
    /// # Errors
    /// Returns an error if the job cannot have these hubs.
    pub fn new(
        (terms, wire): (&JobTerms, &Wire),
        hubs: u32,
        machines: u32,
        cores: usize,
    ) -> anyhow::Result<Self> {
        let terms = terms.above(Members::Hubs, hubs, machines)?;
        terms.check()?;
        let above = Wire::of_terms(&terms)?;
        let placed = Above {
            schedule: terms.level.schedule,
            split_above: terms.splits_above(),
            cores: vec![cores.into(); hubs as usize],
            above: None,
        };
        let hubs = placed.placements(wire.layout()).map_err(anyhow::Error::msg)?;
        let mut level = Level { terms, wire: above, hubs, volumes: Vec::new() };
        let volume = |hub| Volume::of_chunks(wire, &level.wire, level.chunks(hub));
        level.volumes = (0..level.hubs.len()).map(volume).collect();
        Ok(level)
    }

    /// Returns the chunks of the hub with this number.
    pub fn chunks(&self, hub: usize) -> Vec<ChunkId> {
        self.hubs[hub].chunks_by_core().concat()
    }
}

/// The shapes of a job on several machines.
#[derive(Debug)]
pub struct Shapes {
    /// The machines' hubs, each with a share.
    pub mesh: Level,
    /// The dedicated upper hubs, if there are any.
    pub above: Option<Level>,
    /// The shapes, the simplest first. Flat is left out if a job cannot have this many workers.
    pub all: Vec<Shape>,
}

impl Shapes {
    /// Computes the shapes of a job with these terms and this wire on `machines` machines. `above` is the
    /// number of dedicated hubs, if there are any. Each hub has `cores` cores, and each link has the speed
    /// `gbps`.
    ///
    /// # Errors
    /// Returns an error if the job cannot have these hubs.
    pub fn new(
        job: (&JobTerms, &Wire),
        machines: u32,
        above: Option<u32>,
        cores: usize,
        gbps: Option<f64>,
    ) -> anyhow::Result<Self> {
        let workers = job.0.workers;
        let mesh = Level::new(job, machines, machines, cores)?;
        let above = above.map(|hubs| Level::new(job, hubs, machines, cores)).transpose()?;
        let flat = (machines * workers <= MAX_WORKERS).then(|| Shape::flat(&mesh.volumes, workers, gbps));
        let apart = above.as_ref().map(|above| Shape::above(&above.volumes, machines, gbps));
        let all = flat.into_iter().chain([Shape::mesh(&mesh.volumes, gbps)]).chain(apart).collect();
        Ok(Shapes { mesh, above, all })
    }
}

/// The bytes of some chunks that cross a link once, with the headers of their frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// The bytes of one worker's gradient.
    pub gradient: u64,
    /// The bytes of one lower hub's sum of its workers' gradients, with counts.
    pub sum: u64,
    /// The bytes of the weights to one worker or hub below.
    pub weights: u64,
}

impl Volume {
    /// Returns the volume of these chunks. `below` is the wire between workers and their hub, `above` is the wire
    /// between hubs.
    pub fn of_chunks(below: &Wire, above: &Wire, chunks: impl IntoIterator<Item = ChunkId>) -> Self {
        let mut all = Volume::default();
        for chunk in chunks {
            all.gradient += FRAME_BYTES + below.gradient_span(chunk).bytes as u64;
            all.sum += FRAME_BYTES + above.gradient_span(chunk).bytes as u64;
            all.weights += FRAME_BYTES + above.weights_span(chunk).bytes as u64;
        }
        all
    }

    /// Returns the sum of these volumes.
    pub(super) fn over(parts: &[Volume]) -> Self {
        let sum = |of: fn(&Volume) -> u64| parts.iter().map(of).sum();
        Volume {
            gradient: sum(|part| part.gradient),
            sum: sum(|part| part.sum),
            weights: sum(|part| part.weights),
        }
    }

    /// Returns this volume without `part`.
    pub(super) fn without(self, part: Volume) -> Self {
        Volume {
            gradient: self.gradient - part.gradient,
            sum: self.sum - part.sum,
            weights: self.weights - part.weights,
        }
    }
}
