//! The inputs from which a core makes its shard of a job.

use std::num::NonZeroU32;
use std::sync::Arc;

use fabric::{SendWindow, Span, Spans, WindowError};

use crate::job::{Compression, JobTerms, LevelTerms, Members};
use crate::layout::{ChunkId, KeyId, Layout};
use crate::place::Below;
use crate::slim::Board;
use crate::snapshot::Restored;
use crate::weights::{CodedSpec, PassSpec};
use crate::whole::{Crossing, Scope, WholeGradient};
use crate::wire::{Wire, counted};

/// One core's part of a job, before it is made.
#[derive(Debug)]
pub struct ShardSpec {
    /// The job's terms.
    pub terms: Arc<JobTerms>,
    /// The job's layout, and the form of its chunks in windows.
    pub wire: Wire,
    /// The chunks that this core owns, ascending.
    pub chunks: Vec<ChunkId>,
    /// The spans of these chunks in the job's weights, in the same order, followed by the spans of the
    /// [lines](Wire::weights_line) that the core writes. With BSP the spans are in the window that all workers read. At
    /// a hub below other hubs, the spans are in the window of sums, and the lines are those that the core passes on. In
    /// all other modes, the spans are in a window that only the hub sees.
    pub weights: Spans,
    /// The state to continue with. Without it, weights and state are zero and the job begins with round 0.
    pub restored: Option<Arc<Restored>>,
    /// The interval of snapshots, in rounds.
    pub snapshot_every: Option<NonZeroU32>,
    /// The hubs above, which make the steps, if this hub is below other hubs.
    pub(super) above: Option<AboveSpec>,
    /// The board: the memory with which the hub's cores select the significant set together, in a job with Slim-DP.
    pub(super) board: Option<Arc<Board>>,
    /// The scopes in which steps wait for each other, in the order of the chunks: the whole model, or each key. Empty if a
    /// step waits only for the pushes of its own chunk.
    pub(super) scopes: Vec<Scope>,
}

/// The path of one core's sums to the hubs above.
#[derive(Debug)]
pub(super) struct AboveSpec {
    /// The terms of the links between the two levels.
    pub level: LevelTerms,
    pub form: SumForm,
    /// The number of the link that carries each chunk's sums to a hub above, in the order of the chunks.
    pub links: Vec<u32>,
    /// The count of the core's links to hubs above.
    pub link_count: u32,
    /// Whether the job's first weights come from another hub's workers.
    pub keeps_first: bool,
    /// The path of lines, the messages with parts of the gradient norm, to members and to hubs above.
    pub passes: PassSpec,
}

/// The form of the sums that are sent to the hubs above.
#[derive(Debug)]
pub(super) enum SumForm {
    /// Sums as plain values, posted from the window into which the step writes.
    Bare {
        /// The cache line with each chunk's [count](counted::line), in the window of sums, in the order of the chunks.
        counts: Spans,
        /// The spans to post: those of the chunks in the window of sums, in the same order.
        posts: Vec<Span>,
        /// The spans of the chunks in the window that the workers read, in the same order. `None` if the hubs above write this
        /// window themselves.
        shown: Option<Spans>,
    },
    /// Frames. [`ShardSpec::weights`] are the spans of the frames in the window of sums.
    Coded(CodedSpec),
}

/// The windows of a hub below other hubs, for its hubs above and its workers.
#[derive(Debug)]
pub struct WindowsBelow {
    /// The window of sums, which the hubs above read.
    pub sums: Arc<SendWindow>,
    /// The window of weights, which the workers read. `None` if the hubs above write weights into it themselves.
    pub shown: Option<Arc<SendWindow>>,
}

impl ShardSpec {
    /// Returns the shards of a job's cores at a hub below other hubs, and the windows for its hubs above and its workers.
    /// `here` and `above` are the terms of the links to workers and to hubs above. `machine` is this hub's number among the
    /// members above. The job's first weights come from the workers of machine 0.
    ///
    /// # Errors
    /// Returns an error if there is no memory for the windows.
    pub fn of_cores_below(
        here: (&Arc<JobTerms>, &Wire),
        above: (LevelTerms, &Wire),
        below: &Below,
        machine: u32,
    ) -> Result<(WindowsBelow, Vec<ShardSpec>), WindowError> {
        let ((terms, wire), (level, wire_above)) = (here, above);
        let chunks = below.placement.chunks_by_core();
        // In a mesh with SSP or ASP, each machine also needs a copy of the answers for its own share.
        let copies = level.members == Members::Mesh && level.consistency.steps_alone();
        let shown = match copies || wire_above.framing().is_some() {
            true => {
                let of_cores = chunks.iter().map(|chunks| wire.weights_spans(chunks));
                Some(split(wire.weights_window_bytes(), of_cores.collect())?)
            }
            false => None,
        };
        let (shown, of_shown) = shown.unzip();
        let of_shown: Vec<Option<Spans>> = match of_shown {
            Some(of_cores) => of_cores.into_iter().map(Some).collect(),
            None => chunks.iter().map(|_| None).collect(),
        };
        let lines_apart = |(mut shown, chunks): (Option<Spans>, &Vec<ChunkId>)| {
            let lines = shown.as_mut().map(|shown| shown.split_off(chunks.len()));
            (shown, lines)
        };
        let (of_shown, of_lines): (Vec<_>, Vec<_>) =
            of_shown.into_iter().zip(&chunks).map(lines_apart).unzip();
        let Sums { window: sums, spans, forms } = sums(wire, wire_above, &chunks, of_shown, machine)?;
        let crossing = Arc::new(Crossing::new(wire_above.hubs().len(), chunks.len()));
        let mut specs = Self::plain(terms, wire, chunks.into_iter().zip(spans));
        let of_cores = specs.iter_mut().zip(forms).zip(of_lines).zip(&below.cores_above).enumerate();
        for (core, (((spec, form), shown), cores_above)) in of_cores {
            let links = spec.chunks.iter().map(|&chunk| terms.workers + below.link(chunk)).collect();
            let (keeps_first, link_count) = (machine > 0, cores_above.len() as u32);
            let passes =
                PassSpec { above: wire_above.clone(), crossing: (Arc::clone(&crossing), core), shown };
            spec.above = Some(AboveSpec { level, form, links, link_count, keeps_first, passes });
        }
        Ok((WindowsBelow { sums, shown }, specs))
    }

    /// Returns the shards of a job's cores. Each core has its chunks, ascending, and its part of the job's weights window.
    pub fn of_cores(
        terms: &Arc<JobTerms>,
        wire: &Wire,
        cores: impl IntoIterator<Item = (Vec<ChunkId>, Spans)>,
    ) -> Vec<ShardSpec> {
        let mut specs = Self::plain(terms, wire, cores);
        if let Some(Compression::Slim(slim)) = &terms.level.compression {
            let parts = specs.iter().filter(|spec| !spec.chunks.is_empty()).count();
            let elements =
                |chunk: &ChunkId| wire.framing().expect("compressed").frames(*chunk).elements as u64;
            let all = specs.iter().flat_map(|spec| &spec.chunks).map(elements).sum();
            let board = Arc::new(Board::new(slim, parts, wire.layout().chunks().len(), all));
            specs.iter_mut().for_each(|spec| spec.board = Some(Arc::clone(&board)));
        }
        if terms.finds_norms() {
            let mut owners: Vec<_> = specs.iter_mut().filter(|spec| !spec.chunks.is_empty()).collect();
            let first = owners.iter().position(|spec| wire.hub_of(&spec.chunks).is_some());
            let hubs = wire.hubs().len();
            let whole = Arc::new(WholeGradient::new(terms, owners.len(), first.unwrap_or(0), hubs));
            let each = owners.iter_mut().enumerate();
            each.for_each(|(core, spec)| {
                let whole = Arc::clone(&whole);
                spec.scopes = vec![Scope { whole, core, chunks: spec.chunks.len() }];
            });
        }
        if terms.optimizer.adapts_keys() {
            Self::wait_by_key(&mut specs, wire.layout());
        }
        specs
    }

    /// Makes the scopes in which the cores with chunks of one key wait for each other.
    fn wait_by_key(specs: &mut [ShardSpec], layout: &Layout) {
        let key = |chunk: &ChunkId| layout.chunk(*chunk).key;
        let mut cores = vec![0; layout.keys().len()];
        let runs = |chunks: &[ChunkId]| -> Vec<(KeyId, usize)> {
            chunks.chunk_by(|one, next| key(one) == key(next)).map(|run| (key(&run[0]), run.len())).collect()
        };
        let mut of_cores: Vec<Vec<(KeyId, usize, usize)>> = Vec::new();
        for spec in specs.iter() {
            let numbered = runs(&spec.chunks).into_iter().map(|(key, chunks)| {
                cores[key.index()] += 1;
                (key, cores[key.index()] - 1, chunks)
            });
            of_cores.push(numbered.collect());
        }
        let places: Vec<_> = cores.into_iter().map(|cores| Arc::new(WholeGradient::of_key(cores))).collect();
        for (spec, of_core) in specs.iter_mut().zip(of_cores) {
            let scope = |(key, core, chunks): (KeyId, usize, usize)| Scope {
                whole: Arc::clone(&places[key.index()]),
                core,
                chunks,
            };
            spec.scopes = of_core.into_iter().map(scope).collect();
        }
    }

    /// Makes the shards of cores that do not wait for each other.
    fn plain(
        terms: &Arc<JobTerms>,
        wire: &Wire,
        cores: impl IntoIterator<Item = (Vec<ChunkId>, Spans)>,
    ) -> Vec<ShardSpec> {
        let cores: Vec<_> = cores.into_iter().collect();
        // A core without chunks has no link.
        let links = cores.iter().filter(|(chunks, _)| !chunks.is_empty()).count();
        let level = terms.level.with_links(links);
        let own = Arc::new(JobTerms { level, ..JobTerms::clone(terms) });
        let spec = |(chunks, weights)| ShardSpec {
            terms: Arc::clone(&own),
            wire: wire.clone(),
            chunks,
            weights,
            restored: None,
            snapshot_every: None,
            above: None,
            board: None,
            scopes: Vec::new(),
        };
        cores.into_iter().map(spec).collect()
    }
}

/// Returns a window, split into spans by owner.
fn split(bytes: usize, owners: Vec<Vec<Span>>) -> Result<(Arc<SendWindow>, Vec<Spans>), WindowError> {
    Ok(SendWindow::new(bytes)?.split(owners).expect("chunks are disjoint, aligned and inside"))
}

/// The window of sums at a hub below other hubs.
struct Sums {
    window: Arc<SendWindow>,
    /// The chunks and lines of each core.
    spans: Vec<Spans>,
    forms: Vec<SumForm>,
}

/// Makes the window of sums of a hub that has number `machine` at the hubs above.
fn sums(
    wire: &Wire,
    wire_above: &Wire,
    chunks: &[Vec<ChunkId>],
    shown: Vec<Option<Spans>>,
    machine: u32,
) -> Result<Sums, WindowError> {
    let of_cores = |place: &dyn Fn(&ChunkId) -> Span| -> Vec<Vec<Span>> {
        chunks.iter().map(|chunks| chunks.iter().map(place).collect()).collect()
    };
    let with_lines = |place: &dyn Fn(&ChunkId) -> Span| -> Vec<Vec<Span>> {
        let lines = |hub| wire_above.gradient_lines_of(hub);
        let lines = chunks.iter().map(|chunks| wire_above.hubs_of(chunks).flat_map(lines));
        of_cores(place)
            .into_iter()
            .zip(lines)
            .map(|(chunks, lines)| chunks.into_iter().chain(lines).collect())
            .collect()
    };
    let post = |&chunk: &ChunkId| wire_above.gradient_span(chunk);
    let bytes = wire_above.gradient_window_bytes();
    Ok(match wire_above.framing() {
        None => {
            let bytes_of = |chunk: &ChunkId| wire.layout().chunk(*chunk).span.bytes;
            let values = |chunk: &ChunkId| Span { bytes: bytes_of(chunk), ..post(chunk) };
            let line = |chunk: &ChunkId| counted::line(post(chunk));
            let (window, mut spans) = split(bytes, [with_lines(&values), of_cores(&line)].concat())?;
            let counts = spans.split_off(chunks.len()).into_iter();
            let forms = counts.zip(of_cores(&post)).zip(shown);
            let bare = |((counts, posts), shown)| SumForm::Bare { counts, posts, shown };
            Sums { window, spans, forms: forms.map(bare).collect() }
        }
        Some(framing) => {
            let (window, spans) = split(bytes, with_lines(&post))?;
            let coded = |shown| CodedSpec { framing: Arc::clone(framing), machine, shown };
            let forms = shown.into_iter().flatten().map(coded).map(SumForm::Coded).collect();
            Sums { window, spans, forms }
        }
    })
}
