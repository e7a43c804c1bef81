//! What a core makes its shard of a job from.

use std::num::NonZeroU32;
use std::sync::Arc;

use fabric::{SendWindow, Span, Spans, WindowError};

use crate::job::{Compression, JobTerms, LevelTerms};
use crate::layout::ChunkId;
use crate::place::Below;
use crate::slim::Board;
use crate::snapshot::Restored;
use crate::wire::{Wire, counted};

/// One core's part of a job, before it is made.
#[derive(Debug)]
pub struct ShardSpec {
    /// The job's terms.
    pub terms: Arc<JobTerms>,
    /// The job's layout, and what crosses of it.
    pub wire: Wire,
    /// The chunks that this core owns, ascending.
    pub chunks: Vec<ChunkId>,
    /// The spans of these chunks in the job's weights, in the same order: with BSP the window that all
    /// workers read, below other hubs the values in the window of sums, otherwise a window that only the hub sees.
    pub weights: Spans,
    /// The state to go on with; without one, weights and state are zero and round 0 begins.
    pub restored: Option<Arc<Restored>>,
    /// A snapshot is due every so many rounds.
    pub snapshot_every: Option<NonZeroU32>,
    /// The hubs above, which step, when this hub is below others.
    pub(super) above: Option<AboveSpec>,
    /// In a job with Slim-DP: where the hub's cores meet to select the significant set.
    pub(super) board: Option<Arc<Board>>,
}

/// The way of one core's sums to the hubs above.
#[derive(Debug)]
pub(super) struct AboveSpec {
    /// What both levels agree on for the links between them.
    pub level: LevelTerms,
    /// The [line](counted::line) of each chunk in the window of sums, in the order of the chunks.
    pub counts: Spans,
    /// The places of the chunks there, in the same order: what is posted.
    pub posts: Vec<Span>,
    /// The numbers of the links by which the chunks' sums go up, in the same order.
    pub links: Vec<u32>,
    /// How many links of the core lead up.
    pub ways: u32,
    /// The job's first weights are those of another hub's workers.
    pub keeps_first: bool,
}

impl ShardSpec {
    /// The shards of a job's cores at a hub below others, and the window of sums that the hubs above read. `here` and
    /// `above` are what is agreed on for the links below and for those that lead up. `keeps_first`: the job's first weights are those of another
    /// hub's workers.
    ///
    /// # Errors
    /// When there is no memory for the window.
    pub fn of_cores_below(
        here: (&Arc<JobTerms>, &Wire),
        above: (LevelTerms, &Wire),
        below: &Below,
        keeps_first: bool,
    ) -> Result<(Arc<SendWindow>, Vec<ShardSpec>), WindowError> {
        let ((terms, wire), (level, wire_above)) = (here, above);
        let chunks = below.placement.chunks_by_core();
        let post = |&chunk: &ChunkId| wire_above.gradient_span(chunk);
        let values = |chunk: &ChunkId| Span { bytes: wire.layout().chunk(*chunk).span.bytes, ..post(chunk) };
        let line = |chunk: &ChunkId| counted::line(post(chunk));
        let of_values = chunks.iter().map(|chunks| chunks.iter().map(values).collect());
        let of_counts = chunks.iter().map(|chunks| chunks.iter().map(line).collect());
        let sums = SendWindow::new(wire_above.gradient_window_bytes())?;
        let split = sums.split(of_values.chain(of_counts).collect());
        let (sums, mut spans) = split.expect("sums and counts are disjoint, aligned and inside");
        let counts = spans.split_off(chunks.len());
        let mut specs = Self::of_cores(terms, wire, chunks.into_iter().zip(spans));
        for ((spec, counts), ways) in specs.iter_mut().zip(counts).zip(&below.ways) {
            let posts = spec.chunks.iter().map(post).collect();
            let links = spec.chunks.iter().map(|&chunk| terms.workers + below.link(chunk)).collect();
            spec.above =
                Some(AboveSpec { level, counts, posts, links, ways: ways.len() as u32, keeps_first });
        }
        Ok((sums, specs))
    }

    /// The shards of a job's cores: each core with its chunks, ascending, and its part of the job's weights window.
    pub fn of_cores(
        terms: &Arc<JobTerms>,
        wire: &Wire,
        cores: impl IntoIterator<Item = (Vec<ChunkId>, Spans)>,
    ) -> Vec<ShardSpec> {
        let spec = |(chunks, weights)| ShardSpec {
            terms: Arc::clone(terms),
            wire: wire.clone(),
            chunks,
            weights,
            restored: None,
            snapshot_every: None,
            above: None,
            board: None,
        };
        let mut specs: Vec<ShardSpec> = cores.into_iter().map(spec).collect();
        if let Some(Compression::Slim(slim)) = &terms.level.compression {
            let parts = specs.iter().filter(|spec| !spec.chunks.is_empty()).count();
            let elements =
                |chunk: &ChunkId| wire.framing().expect("compressed").frames(*chunk).elements as u64;
            let all = specs.iter().flat_map(|spec| &spec.chunks).map(elements).sum();
            let board = Arc::new(Board::new(slim, parts, wire.layout().chunks().len(), all));
            specs.iter_mut().for_each(|spec| spec.board = Some(Arc::clone(&board)));
        }
        specs
    }
}
