//! The cores of a hub against workers that post anything, compared with a model of the rules.
//!
//! In BSP, one round of a chunk is in flight. Each worker pushes the chunk once, over the link of the core
//! that owns it. In SSP and ASP, each worker has one push in flight, and no worker is too far ahead. A push
//! is a gradient, nothing or weights.
//!
//! The hub's error names the chunk or key of a violation. The hub drops only the link over which the
//! violation came. But if the pushes of a chunk do not fit together, the job ends.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use fabric::sim::{Faults, Net, Port, Windows};
use fabric::{Arrival, Imm, LinkId, Port as _, Posted, RecvWindow, SendWindow, Span};
use pbox_core::kernels::Kernels;
use pbox_core::{
    ChunkId, Consistency, Content, Core, Immediate, JobId, JobTerms, Key, Layout, LevelTerms, Notice,
    Numbers, Optimizer, Placement, Round, ShardSpec, Wire,
};

const JOB: JobId = JobId(3);
const KEYS: usize = 3;
const CHUNKS: usize = 7;
const STEPS: usize = 300;
/// The number of posts that a link holds. A core has more chunks than this, so that the rings of answers get full.
const CAPACITY: u32 = 3;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Any immediate.
    Post {
        rank: u8,
        core: u8,
        imm: u32,
    },
    /// A push of an existing chunk, in the round that is in flight or in a round near it. The content is usually right.
    Push {
        rank: u8,
        chunk: u8,
        ahead: u8,
    },
    /// A worker reads its answers.
    Read {
        rank: u8,
        core: u8,
    },
    Rate {
        from: u32,
        rate: f32,
    },
}

#[derive(Arbitrary, Debug)]
struct Shape {
    workers: u8,
    cores: u8,
    optimizer: u8,
}

/// Runs a job. The bytes give its shape, and the steps of its workers.
pub fn run(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let Ok(shape) = Shape::arbitrary(&mut input) else { return };
    let mut bed = Bed::new(&shape);
    for _ in 0..STEPS {
        if input.is_empty() {
            return;
        }
        let Ok(step) = Step::arbitrary(&mut input) else { return };
        bed.step(step);
    }
}

struct Bed {
    cores: Vec<Core<Port>>,
    /// The port of each link of a worker, by rank and core.
    workers: Vec<Vec<(Port, LinkId)>>,
    placement: Placement,
    /// Whether the hub has dropped the link, by rank and core.
    dropped: Vec<Vec<bool>>,
    /// The answers that a worker has not read yet, in the order in which it must see them.
    answers: Vec<Vec<Vec<Imm>>>,
    consistency: Consistency,
    wire: Wire,
    optimizer: Optimizer,
    /// The worker's next round, and whether its last push is unanswered, by chunk and rank.
    chunks: Vec<Vec<(Round, bool)>>,
    /// The content of the last push, by chunk and rank.
    contents: Vec<Vec<Content>>,
    /// Whether the core's part of the job has ended, by core.
    over: Vec<bool>,
}

impl Bed {
    fn new(shape: &Shape) -> Self {
        let (workers, cores) = (usize::from(shape.workers % 3) + 1, usize::from(shape.cores % 2) + 1);
        let keys: [_; KEYS] = [Key::f32("a", [70]), Key::f32("b", [1]), Key::f32("c", [16])];
        let layout = Arc::new(Layout::new(keys.into(), 64).expect("a small layout"));
        assert_eq!(layout.chunks().len(), CHUNKS);
        let placement = Placement::new(&layout, cores);
        let chunks = placement.chunks_by_core();
        let optimizer = match shape.optimizer % 3 {
            0 => Optimizer::Average,
            1 => Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 },
            _ => Optimizer::Nesterov { learning_rate: 0.5, weight_decay: 0.1, momentum: 0.9 },
        };
        let staleness = u32::from(shape.optimizer / 9 % 3);
        let consistency = match shape.optimizer / 3 % 3 {
            _ if optimizer == Optimizer::Average => Consistency::Bsp,
            0 => Consistency::Bsp,
            1 => Consistency::Ssp { staleness },
            _ => Consistency::Asp,
        };
        let level = LevelTerms { consistency, ..LevelTerms::default() };
        let terms = Arc::new(JobTerms { level, ..JobTerms::new(workers as u32, Vec::new(), optimizer) });
        let wire = Wire::new(Arc::clone(&layout), &terms);
        let weights_window = || placement.weights_window(&wire).expect("a window");
        let (weights, claims) = weights_window();
        let net = Net::new(1, Faults::NONE);
        let mut bed = Bed {
            cores: Vec::new(),
            workers: (0..workers).map(|_| Vec::new()).collect(),
            placement: placement.clone(),
            dropped: vec![vec![false; cores]; workers],
            answers: vec![vec![Vec::new(); cores]; workers],
            consistency,
            wire: wire.clone(),
            optimizer,
            chunks: vec![vec![(Round(0), false); workers]; CHUNKS],
            contents: vec![vec![Content::Gradient; workers]; CHUNKS],
            over: vec![false; cores],
        };
        for spec in ShardSpec::of_cores(&terms, &wire, chunks.iter().cloned().zip(claims)) {
            let mut core = Core::new(net.port(), Kernels::detect());
            core.add_job(JOB, spec).expect("a small shard");
            bed.cores.push(core);
        }
        let window = || Arc::new(RecvWindow::local(layout.window_bytes()).expect("a window"));
        for (rank, links) in bed.workers.iter_mut().enumerate() {
            let gradients = Arc::new(SendWindow::new(layout.window_bytes()).expect("a window"));
            let (here, there) = (window(), window());
            let (weights, own) = if consistency.steps_alone() {
                let (weights, own) = weights_window();
                (weights, own.into_iter().map(Some).collect())
            } else {
                (Arc::clone(&weights), chunks.iter().map(|_| None).collect::<Vec<_>>())
            };
            for (core, own) in bed.cores.iter_mut().zip(own) {
                let worker = Windows { send: Arc::clone(&gradients), recv: Arc::clone(&here) };
                let hub = Windows { send: Arc::clone(&weights), recv: Arc::clone(&there) };
                let (ours, theirs) = net.link(worker, hub, CAPACITY);
                core.add_worker(JOB, rank as u32, Arc::clone(&there), own, theirs).expect("spans that fit");
                let mut port = net.port();
                let link = port.attach(ours);
                links.push((port, link));
            }
        }
        let ranks: Vec<u32> = (0..workers as u32).collect();
        bed.cores.iter_mut().for_each(|core| core.release(JOB, Round(0), &ranks, &mut Vec::new()));
        bed
    }

    fn step(&mut self, step: Step) {
        let (workers, cores) = (self.workers.len(), self.cores.len());
        match step {
            Step::Post { rank, core, imm } => {
                self.post(usize::from(rank) % workers, usize::from(core) % cores, Imm(imm));
            }
            Step::Push { rank, chunk, ahead } => {
                let (chunk, rank) = (usize::from(chunk) % CHUNKS, usize::from(rank) % workers);
                let round = self.round_in_flight(chunk, rank);
                let round = Round(round.0.wrapping_add(u32::from(ahead % 16 == 15)));
                let chunk = ChunkId(chunk as u32);
                let usual = self.wire.push(chunk, round);
                let imm = match ahead >> 4 {
                    12 => usual.with(Content::Nothing),
                    13 => usual.with(Content::Weights),
                    14 => usual.with(Content::Ahead),
                    15 => usual.with(Content::Gradient),
                    _ => usual,
                };
                self.post(rank, self.placement.owner(chunk), imm.encode());
            }
            Step::Read { rank, core } => {
                self.read_answers(usize::from(rank) % workers, usize::from(core) % cores)
            }
            Step::Rate { from, rate } => {
                if rate.is_finite() {
                    let optimizer = self.optimizer.with_learning_rate(rate);
                    let multipliers = (from % 2 == 1).then(|| vec![[0.5, 2.0]; KEYS].into());
                    let numbers = Numbers { multipliers, ..Numbers::new(optimizer) };
                    self.cores.iter_mut().for_each(|core| {
                        core.set_numbers(JOB, Round(from), &numbers);
                    });
                }
            }
        }
    }

    /// Posts, makes the core poll, and checks the result.
    fn post(&mut self, rank: usize, core: usize, imm: Imm) {
        let (port, link) = &mut self.workers[rank][core];
        let posted = port.post(*link, Span { offset: 0, bytes: 0 }, imm);
        if self.dropped[rank][core] {
            return assert_eq!(posted, Posted::Closed, "a dropped link takes no posts");
        }
        assert_eq!(posted, Posted::Accepted, "the core has seen all posts before");
        port.flush();
        let was_over = self.over[core];
        let expected = self.expected_drops(rank, core, imm);
        let before = self.cores[core].tally().arrivals;
        let mut notices = Vec::new();
        while self.cores[core].tally().arrivals == before {
            self.cores[core].turn(&mut notices);
        }
        let mut drops = notices.into_iter().map(|notice| match notice {
            Notice::WorkerGone { job: JOB, rank, reason, .. } => (rank as usize, reason),
            other => panic!("{other:?}"),
        });
        for (gone, words) in expected {
            match drops.next() {
                Some((seen, reason)) if gone == seen && reason.contains(&words) => {
                    self.dropped[gone][core] = true;
                }
                seen => panic!(
                    "{imm:?} of rank {rank}: expected that the hub drops rank {gone} with {words:?}, saw {seen:?}"
                ),
            }
        }
        assert_eq!(drops.next(), None, "one notice for each dropped worker");
        // The next turn detaches the links without another notice, and reports why the job ended.
        let mut notices = Vec::new();
        self.cores[core].turn(&mut notices);
        let is_over = matches!(notices[..], [Notice::JobFailed { job: JOB, .. }]);
        assert_eq!(is_over, self.over[core] && !was_over, "{imm:?} of rank {rank}: {notices:?}");
    }

    /// Computes the model's result: the ranks that the hub drops for this post, and the text of each reason.
    fn expected_drops(&mut self, rank: usize, core: usize, imm: Imm) -> Vec<(usize, String)> {
        let Immediate { chunk, round_bits, content } = Immediate::decode(imm);
        if chunk.index() >= CHUNKS || self.placement.owner(chunk) != core {
            return vec![(rank, format!("pushed chunk {} over the link of a core that does not", chunk.0))];
        }
        let round = self.round_in_flight(chunk.index(), rank);
        let alone = self.consistency.steps_alone();
        let workers = &mut self.chunks[chunk.index()];
        if alone && workers[rank].1 {
            return vec![(rank, format!("pushed chunk {} again, but its push of round", chunk.0))];
        }
        if round.low_bits() != round_bits {
            return vec![(
                rank,
                format!("pushed chunk {} for a round that is {round_bits} modulo 64", chunk.0),
            )];
        }
        if workers[rank].1 {
            return vec![(rank, format!("pushed chunk {} twice in round {}", chunk.0, round.0))];
        }
        let is_first = round == Round(0) && self.wire.broadcasts();
        let leaves_out = is_first && rank > 0 && content == Content::Nothing;
        if alone && !leaves_out && content != if is_first { Content::Weights } else { Content::Gradient } {
            return vec![(rank, format!("pushed {} for key", content.name()))];
        }
        if content == Content::Ahead {
            return Vec::new();
        }
        workers[rank] = (round.next(), true);
        let contents = &mut self.contents[chunk.index()];
        contents[rank] = content;
        if self.over[core] {
            return Vec::new();
        }
        let is_whole = !alone && workers.iter().all(|&(_, waits)| waits);
        let all = |content| contents.iter().all(|&each| each == content);
        let answer = match content {
            _ if !is_whole => content,
            _ if all(Content::Weights) => Content::Weights,
            // A rank that pushes nothing lets another rank broadcast.
            _ if is_first
                && contents.contains(&Content::Weights)
                && !contents.contains(&Content::Gradient) =>
            {
                Content::Weights
            }
            _ if is_first || contents.contains(&Content::Weights) => {
                self.over[core] = true;
                return Vec::new();
            }
            _ if all(Content::Nothing) => Content::Nothing,
            _ => Content::Gradient,
        };
        let slowest = workers.iter().map(|&(next, _)| next).min().expect("a worker");
        let mut full = Vec::new();
        for (rank, (next, waits)) in workers.iter_mut().enumerate() {
            if !*waits || !self.consistency.allows(*next, slowest) {
                continue;
            }
            *waits = false;
            let answers = &mut self.answers[rank][core];
            match (self.dropped[rank][core], answers.len() < CAPACITY as usize) {
                (true, _) => {}
                (false, true) => {
                    let round = Round(next.0 - 1);
                    let answer = if alone { self.wire.push(chunk, round).content } else { answer };
                    answers.push(Immediate::new(chunk, round).with(answer).encode());
                }
                (false, false) => full.push((rank, "ring of answers is full".to_owned())),
            }
        }
        full
    }

    /// Returns the round of a chunk that a worker may push next, or whose push is not answered yet.
    fn round_in_flight(&self, chunk: usize, rank: usize) -> Round {
        let (next, waits) = self.chunks[chunk][rank];
        if waits { Round(next.0 - 1) } else { next }
    }

    fn read_answers(&mut self, rank: usize, core: usize) {
        if self.dropped[rank][core] {
            return;
        }
        let (port, _) = &mut self.workers[rank][core];
        let expected = std::mem::take(&mut self.answers[rank][core]);
        let mut seen = Vec::new();
        let mut arrivals = [Arrival::default(); 16];
        while seen.len() < expected.len() {
            let count = port.poll(&mut arrivals);
            seen.extend(arrivals[..count].iter().map(|arrival| arrival.imm));
        }
        assert_eq!(seen, expected, "answers of rank {rank}");
        assert_eq!(port.poll(&mut arrivals), 0, "no answer without a push");
    }
}
