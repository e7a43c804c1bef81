//! The memory of this machine that a job needs at a hub. Pure functions: the hub calls them before it admits
//! a job, and `topology` calls them for a job that is only planned.

use pbox_core::{JobTerms, Key, Wire};

/// The bytes of the hub's tables for a chunk, with a margin: 180 bytes were measured. The tables have the chunk's
/// place, its owner, its arrivals, and its byte ranges in two windows.
const OF_A_CHUNK: u64 = 192;
/// The bytes of the hub's tables for a compressed chunk, with a margin: 324 bytes were measured.
const OF_A_COMPRESSED_CHUNK: u64 = 352;
/// The bytes for each pair of a chunk and a worker: the rings of a worker have room for all chunks, each way.
const OF_A_CHUNK_AND_WORKER: u64 = 16;
/// The bytes of a key without its name and shape, with a margin. For a key with a name of 7 letters and a shape of one
/// number, 555 bytes were measured.
const OF_A_KEY: u64 = 640;
/// The number of copies of a key's name and shape that the hub keeps.
const COPIES_OF_A_KEY: u64 = 4;
/// The bytes that a core needs for the norms of one key, with a margin: 570 bytes were measured.
const OF_A_KEY_AND_CORE: u64 = 640;
/// The most cores that are counted for a key.
const MOST_CORES: u64 = 64;
/// The memory of a parsed join and its text, as a multiple of the text, with a margin. For keys with names of one
/// letter, 4.5 was measured.
const PARSED_PER_TEXT: u64 = 6;

/// Returns the memory that the hub needs to read a join of `text_bytes` bytes.
pub(crate) fn parsed_bytes(text_bytes: usize) -> u64 {
    (text_bytes as u64).saturating_mul(PARSED_PER_TEXT)
}

/// Returns the size of the hub's tables for a job's keys and chunks, in bytes. The size depends only on the
/// terms, so a small request can make these tables large.
pub(crate) fn tables_bytes(terms: &JobTerms) -> u64 {
    let chunk_bytes = terms.chunk_bytes.max(1) as u64;
    let of_a_core = if terms.optimizer.adapts_keys() { OF_A_KEY_AND_CORE } else { 0 };
    let of_a_key = |key: &Key| {
        let spelled = key.name.len() + size_of_val(&key.shape[..]);
        let chunks = key.bytes().unwrap_or(0).div_ceil(chunk_bytes);
        let places = of_a_core * chunks.min(MOST_CORES);
        (OF_A_KEY + COPIES_OF_A_KEY * spelled as u64 + places, chunks)
    };
    let (mut keys, mut chunks) = (0, 0_u64);
    for (bytes, of_key) in terms.keys.iter().map(of_a_key) {
        (keys, chunks) = (keys + bytes, chunks.saturating_add(of_key));
    }
    let of_a_chunk = match terms.level.compression {
        None => OF_A_CHUNK,
        Some(_) => OF_A_COMPRESSED_CHUNK,
    };
    chunks.saturating_mul(of_a_chunk + OF_A_CHUNK_AND_WORKER * u64::from(terms.workers)).saturating_add(keys)
}

/// The memory of one job at one hub, in bytes. A window is memory that links write or read. Each window is
/// counted as a whole; a hub touches only its share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobMemory {
    /// The windows into which workers, or hubs below, push.
    pub gradients: u64,
    /// The window of the sums that go up, if the hub is below other hubs.
    pub sums: u64,
    /// The windows that workers, or hubs below, read; and the hub's own weights.
    pub weights: u64,
    /// Master weights, the optimizer's state, and an average. With compression, these bytes include the
    /// values that the workers have. 0 if the hub is below other hubs, which keep these values.
    pub kept: u64,
    /// The weights of the previous round, if the hub may send weights early (answers ahead).
    pub former: u64,
    /// The mean gradients that the hub keeps, in f32. If steps wait for the norm of the round, the hub keeps
    /// the means of all chunks. Otherwise it keeps the mean of one chunk for each core.
    pub means: u64,
    /// The room for a snapshot, if snapshots are taken while the job runs.
    pub snapshots: u64,
    /// The number of hubs over which the job is spread.
    hubs: u64,
}

impl JobMemory {
    /// Computes the memory of a job with this wire and these terms. `snapshots` says whether snapshots are taken while
    /// the job runs, and `is_below` whether the hub is below other hubs.
    pub fn new(wire: &Wire, terms: &JobTerms, snapshots: bool, is_below: bool) -> Self {
        let own_weights = wire.has_own_weights();
        let workers = u64::from(terms.workers);
        let of_workers = if own_weights { workers } else { 0 };
        // If each worker gets its own encoded frames, there is no window of the hub's own weights.
        let of_the_job = u64::from(wire.framing().is_none() || !own_weights);
        let window = wire.gradient_window_bytes() as u64;
        let shows_ahead = terms.has_answers_ahead() && !is_below;
        let of_a_snapshot = 4 * wire.layout().parameters() * terms.tensors().saved_per_element() as u64;
        JobMemory {
            gradients: workers.saturating_mul(window),
            sums: if is_below { window } else { 0 },
            weights: (of_workers + of_the_job).saturating_mul(wire.weights_window_bytes() as u64),
            kept: if is_below { 0 } else { wire.kept_bytes(&terms.tensors()) },
            means: if is_below { 0 } else { means_bytes(wire, terms) },
            former: if shows_ahead { wire.weights_window_bytes() as u64 } else { 0 },
            snapshots: if snapshots { of_a_snapshot } else { 0 },
            hubs: u64::from(terms.hubs),
        }
    }

    /// Returns the memory that a hub promises to a job with these terms, including its tables of keys and
    /// chunks.
    pub fn promised(&self, terms: &JobTerms) -> u64 {
        self.needed().saturating_add(tables_bytes(terms))
    }

    /// Returns this hub's share of `bytes` bytes of the whole job.
    pub fn share(&self, bytes: u64) -> u64 {
        bytes / self.hubs
    }

    /// Returns the memory that this hub needs for the job, without tables.
    pub fn needed(&self) -> u64 {
        let JobMemory { gradients, sums, weights, kept, former, means, snapshots, .. } = *self;
        let all = [gradients, sums, weights, kept, former, means, snapshots];
        self.share(all.into_iter().fold(0, u64::saturating_add))
    }
}

fn means_bytes(wire: &Wire, terms: &JobTerms) -> u64 {
    let all = wire.layout().parameters();
    let of_a_core = wire.layout().max_chunk_elements() as u64;
    let kept = match terms.clip_norm_last {
        _ if terms.keeps_means() => all,
        Some(_) => all.min(MOST_CORES.saturating_mul(of_a_core)),
        None => 0,
    };
    4 * kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use pbox_core::{Members, Optimizer};

    const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
    const LAMB: Optimizer =
        Optimizer::Lamb { learning_rate: 0.1, weight_decay: 0.0, beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };
    /// The bytes of one key with 32 chunks, whose counts have 64 bytes each.
    const MODEL: u64 = 1 << 20;
    const COUNTS: u64 = 32 * 64;

    fn terms() -> JobTerms {
        JobTerms::new(4, vec![Key::f32("a", [MODEL / 4])], NESTEROV)
    }

    #[test]
    fn a_flat_job_has_a_window_for_each_worker_one_of_weights_and_state() {
        let terms = terms();
        let memory = JobMemory::new(&Wire::of_terms(&terms).unwrap(), &terms, true, false);
        assert_eq!(
            [memory.gradients, memory.sums, memory.weights, memory.kept],
            [4, 0, 1, 1].map(|n| n * MODEL)
        );
        assert_eq!(memory.snapshots, 2 * MODEL, "weights and momentum");
        assert_eq!(memory.needed(), 8 * MODEL);
        let needed =
            |terms: JobTerms| JobMemory::new(&Wire::of_terms(&terms).unwrap(), &terms, true, false).needed();
        assert_eq!(needed(JobTerms { answers_ahead: true, ..terms.clone() }), 9 * MODEL);
        let lines = 4 * 128;
        assert_eq!(needed(JobTerms { clip_norm: Some(1.0), ..terms.clone() }), 9 * MODEL + lines);
        let last = JobTerms { clip_norm_last: Some(1.0), workers: 1, ..terms.clone() };
        let (of_32, more) = (6 * MODEL + lines, JobTerms { chunk_bytes: 64, ..last.clone() });
        assert_eq!(needed(last), of_32, "32 chunks, of which each may have a core of its own");
        assert_eq!(needed(more) - 5 * MODEL - lines, MOST_CORES * 64, "a chunk of each core");
        assert_eq!(needed(JobTerms { skip_nonfinite: true, ..terms.clone() }), 9 * MODEL + lines);
        assert_eq!(
            needed(JobTerms { ema: Some(0.5), ..terms.clone() }),
            10 * MODEL,
            "kept, and in a snapshot"
        );
        // With two hubs, each of the four gradient windows also has the lines of both hubs. A line is the place of a
        // hub's part of the gradient norm.
        let needed_of_two = needed(JobTerms { clip_norm: Some(1.0), hubs: 2, ..terms });
        assert_eq!(needed_of_two, (9 * MODEL + 5 * 2 * lines) / 2);
    }

    #[test]
    fn a_small_request_may_have_large_tables() {
        let mut terms = terms();
        let of_32_chunks = tables_bytes(&terms);
        assert!(of_32_chunks < 16 << 10, "{of_32_chunks}");
        terms.chunk_bytes = 64;
        terms.keys = vec![Key::f32("a", [1 << 28])]; // 2^24 chunks
        assert!(tables_bytes(&terms) > 3 << 30, "as much was measured to be resident with fewer workers");
        terms.keys = vec![Key::f32("a", [u64::MAX / 8]), Key::f32("b", [u64::MAX / 8])];
        assert!(tables_bytes(&terms) > 1 << 60);
        terms.keys = (0..1000).map(|number| Key::f32(format!("{number:01000}"), [1])).collect();
        let plain = tables_bytes(&terms);
        assert!(plain > 1000 * (4 * 1000 + 600));
        terms.optimizer = LAMB;
        assert_eq!(tables_bytes(&terms), plain + 1000 * 640, "the places where their norms are found");
        terms.keys = vec![Key::f32("a", [1 << 28])];
        assert_eq!(
            tables_bytes(&terms),
            tables_bytes(&JobTerms { optimizer: NESTEROV, ..terms.clone() }) + 64 * 640
        );
    }

    #[test]
    fn in_a_mesh_the_state_is_above_and_each_hub_has_its_share() {
        let (terms, above) = (terms(), terms().above(Members::Mesh, 2, 2).unwrap());
        let below = JobMemory::new(&Wire::of_terms(&terms).unwrap(), &terms, false, true);
        assert_eq!([below.gradients, below.sums, below.weights, below.kept], [4, 1, 1, 0].map(|n| n * MODEL));
        let above = JobMemory::new(&Wire::of_terms(&above).unwrap(), &above, false, false);
        assert_eq!([above.gradients, above.weights, above.kept], [2 * (MODEL + COUNTS), MODEL, MODEL]);
        assert_eq!(above.needed(), (4 * MODEL + 2 * COUNTS) / 2);
    }
}
