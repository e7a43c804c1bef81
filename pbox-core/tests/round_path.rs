//! The round path of a core, `Core::turn` over shared memory: it allocates nothing, takes no lock and makes no system call.
//!
//! After the warm-up there is no allocation. The machine code has no locked instruction and no system call, except on the
//! cold paths that are named here. (The test `tests/resources/system_calls.rs` counts the system calls of a hub process
//! from outside.)

use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::machine_code::{Function, Program};
use fabric::conformance::Watchdog;
use fabric::shm::{self, Listener, group};
use fabric::{Arrival, LinkId, PlannedLink, Port, Posted, SendWindow, Span, Until};
use pbox_core::frame::{self, HEADER_BYTES, Kind};
use pbox_core::kernels::Kernels;
use pbox_core::{
    ChunkId, Compression, Consistency, Core, Credit, Framing, Immediate, JobId, JobTerms, Key, Layout,
    LevelTerms, Optimizer, Placement, Round, Schedule, ShardSpec, Wire,
};

/// The allocator of the system, with a count of the calls of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending counts no more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged. The count is not in memory that the allocator manages: the
// counter is constant-initialised and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        count();
        // SAFETY: the caller guarantees what `System` requires.
        unsafe { System.alloc(block) }
    }
    unsafe fn dealloc(&self, start: *mut u8, block: Block) {
        count();
        // SAFETY: as for `alloc`.
        unsafe { System.dealloc(start, block) }
    }
    unsafe fn realloc(&self, start: *mut u8, block: Block, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `alloc`.
        unsafe { System.realloc(start, block, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

const WORKERS: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(30);
const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };

fn layout() -> Arc<Layout> {
    let keys = vec![Key::f32("a", [10_000]), Key::f32("b", [1]), Key::f32("c", [3000])];
    Arc::new(Layout::new(keys, 1024).unwrap())
}

/// The properties in which the tested jobs differ.
#[derive(Clone, Copy)]
struct Job {
    consistency: Consistency,
    schedule: Schedule,
    compression: Option<Compression>,
    clip_norm: Option<f32>,
}

impl Job {
    fn wire(&self) -> Wire {
        Wire::new(layout(), &self.terms())
    }

    fn terms(&self) -> JobTerms {
        let Job { consistency, schedule, compression, clip_norm } = *self;
        let credit = (schedule == Schedule::P3).then_some(Credit::Bytes(4096));
        let level = LevelTerms { consistency, schedule, compression, credit, ..LevelTerms::default() };
        JobTerms { seed: 1, level, clip_norm, ..JobTerms::new(WORKERS, Vec::new(), NESTEROV) }
    }
}

/// Returns a core with one job. The workers' ends are on threads of their own.
fn meet(listener: &Listener, job: Job) -> Core<shm::Port> {
    let Job { consistency, .. } = job;
    let wire = job.wire();
    let placement = Placement::new(wire.layout(), 1);
    let chunks = placement.chunks_by_core().remove(0);
    let window = || {
        let (window, mut weights) = placement.weights_window(&wire).unwrap();
        (window, weights.remove(0))
    };
    let (shared, weights) = window();
    let (group, mut ports) = group(1).unwrap();
    let mut core = Core::new(ports.remove(0), Kernels::detect());
    let mut specs = ShardSpec::of_cores(&Arc::new(job.terms()), &wire, [(chunks, weights)]);
    core.add_job(JobId(0), specs.remove(0)).unwrap();
    for rank in 0..WORKERS {
        let hello = listener.accept().unwrap().unwrap().hello(TIMEOUT).unwrap();
        let (window, own) = match consistency {
            Consistency::Bsp => (Arc::clone(&shared), None),
            _ => {
                let (window, own) = window();
                (window, Some(own))
            }
        };
        let mut joined = hello
            .welcome(
                &group,
                &window,
                wire.gradient_window_bytes(),
                &PlannedLink::of_one_port(&[wire.posts(wire.layout().chunks().len())]),
            )
            .unwrap();
        core.add_worker(JobId(0), rank, joined.recv, own, joined.endpoints.remove(0)).unwrap();
    }
    let ranks: Vec<u32> = (0..WORKERS).collect();
    core.release(JobId(0), Round(0), &ranks, &mut Vec::new());
    core
}

/// Pushes every chunk and waits for every answer, in round after round, and sleeps in between.
fn work(address: &str, job: Job, rounds: u32, done: &AtomicU32) {
    let wire = job.wire();
    let chunks = wire.layout().chunks().len() as u32;
    let spans = (0..chunks).map(|chunk| wire.gradient_span(ChunkId(chunk))).collect();
    let window = SendWindow::new(wire.gradient_window_bytes()).unwrap();
    let (window, mut spans) = window.split(vec![spans]).unwrap();
    let (group, mut ports) = group(1).unwrap();
    let mut joined = shm::connect(
        address,
        [0; 16],
        &group,
        &window,
        wire.gradient_window_bytes(),
        &PlannedLink::of_one_port(&[wire.posts(chunks as usize)]),
        TIMEOUT,
    )
    .unwrap();
    let mut port = ports.remove(0);
    let link: LinkId = port.attach(joined.endpoints.remove(0));
    let mut arrivals = [Arrival::default(); 64];
    for round in (0..rounds).map(Round) {
        for chunk in (0..chunks).map(ChunkId) {
            write_frame(&wire, chunk, round, spans[0].elements_mut(chunk.index()));
            let posted = port.post(link, wire.gradient_span(chunk), wire.push(chunk, round).encode());
            assert_eq!(posted, Posted::Accepted);
        }
        port.flush();
        let mut missing = chunks;
        while missing > 0 {
            match port.poll(&mut arrivals) {
                0 => port.wait(Until::Any, TIMEOUT),
                count => {
                    for &Arrival { imm, .. } in &arrivals[..count] {
                        let decoded = Immediate::decode(imm);
                        if imm == Immediate::control(decoded.chunk, round).encode() {
                            // This answers a notice with a pull.
                            assert_eq!(port.post(link, Span { offset: 0, bytes: 0 }, imm), Posted::Accepted);
                        } else if decoded.hub().is_none() {
                            missing -= 1;
                        }
                    }
                    port.flush();
                }
            }
            assert_eq!(port.closed(), None);
        }
    }
    done.fetch_add(1, Ordering::Release);
    while port.closed().is_none() {
        port.wait(Until::Any, TIMEOUT);
    }
}

/// Writes a worker's push, if it pushes frames.
fn write_frame(wire: &Wire, chunk: ChunkId, round: Round, bytes: &mut [u8]) {
    let Some(framing) = wire.framing() else { return };
    let frames = framing.frames(chunk);
    match Framing::kind(wire.push(chunk, round).content) {
        Kind::Raw => frames.begin_raw(bytes).fill(0),
        Kind::Coded => {
            let values = vec![round.0 as f32; frames.elements];
            let payload = &mut bytes[HEADER_BYTES..frames.coded_bytes];
            let draw = framing.draw(0, round, chunk);
            let encoded =
                framing.codecs().unwrap().push.encode(Kernels::detect(), &values, &mut [], draw, payload);
            frame::write_header(bytes, Kind::Coded, encoded.bytes);
        }
    }
}

#[test]
fn turns_allocate_nothing() {
    let _watchdog = Watchdog::start();
    let plain =
        Job { consistency: Consistency::Bsp, schedule: Schedule::Sliced, compression: None, clip_norm: None };
    for schedule in Schedule::ALL {
        allocates_nothing(Job { schedule, clip_norm: Some(1.0), ..plain });
    }
    for consistency in [Consistency::Bsp, Consistency::Ssp { staleness: 1 }, Consistency::Asp] {
        for schedule in Schedule::ALL {
            allocates_nothing(Job { consistency, schedule, ..plain });
        }
        for codec in CODECS {
            let compression = Some(codec.parse().unwrap());
            allocates_nothing(Job { consistency, compression, ..plain });
        }
    }
}

/// One codec of each kind, as text.
const CODECS: [&str; 8] =
    ["f16", "bf16", "qsgd:4", "onebit", "terngrad", "topk:0.1", "randomk:0.1", "dgc:0.1:0.9:none:4"];

fn allocates_nothing(job: Job) {
    const WARM_UP: u32 = 3;
    const ROUNDS: u32 = 200;
    let Job { consistency, schedule, compression, clip_norm } = job;
    let compressed = compression.map_or("plain".into(), |each| each.to_string());
    let clipped = clip_norm.map_or("", |_| "-clipped");
    let address =
        format!("phub-test-round-path-{}-{consistency}-{schedule}-{compressed}{clipped}", std::process::id());
    let listener = Listener::bind(&address).unwrap();
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&address, job, WARM_UP + ROUNDS, &done));
        }
        let mut core = meet(&listener, job);
        let steps_a_round = if consistency == Consistency::Bsp { 1 } else { u64::from(WORKERS) };
        let chunks = layout().chunks().len() as u64 * steps_a_round;
        let mut notices = Vec::new();
        let (mut in_turns, mut turns) = (0, 0u64);
        while done.load(Ordering::Acquire) < WORKERS {
            let warm = core.tally().chunks >= chunks * u64::from(WARM_UP);
            let before = allocations();
            let worked = core.turn(&mut notices);
            if warm {
                in_turns += allocations() - before;
                turns += 1;
            }
            if !worked {
                core.port().wait(Until::Any, Duration::from_millis(100));
            }
        }
        eprintln!("{turns} turns, {} chunks: {in_turns} allocations", core.tally().chunks);
        assert_eq!(core.tally().chunks, chunks * u64::from(WARM_UP + ROUNDS));
        assert!(notices.is_empty(), "{notices:?}");
        assert_eq!(in_turns, 0, "allocations and frees in {turns} turns");
        let boxed = allocations();
        drop(std::hint::black_box(Box::new(1)));
        assert_eq!(allocations() - boxed, 2, "the test sees what there is to see");
    });
}

/// The functions at which the search stops. Their work is done once per worker, once per round or never, but not once per
/// chunk.
const COLD: [&str; 19] = [
    // A worker that broke the protocol or closed its link, and the text of the reason.
    "::drop_worker",
    "::to_string",
    "CloseReason",
    "drop_in_place<fabric::port::Closed>",
    // A link that ends: its endpoint is dropped, which shuts its socket.
    "Port>::detach",
    // A chunk that is copied into a snapshot. The snapshot's memory is mapped when its first chunk is copied.
    "::copy_to_snapshot",
    "::report_events",
    "drop_in_place<pbox_core::snapshot::capture::Taken>",
    // Pushes that their job does not accept, or that do not go together.
    "::wrong_content",
    "::fail",
    // A newcomer that lost its links before it had all its first weights.
    "ungreeted::Ungreeted::ask",
    // The board on which the cores select for Slim-DP. Each core uses the board three times per selection.
    "slim::board::Board::",
    // The shared memory of the cores that find the norm of a round, which each core uses once a round.
    "whole::WholeGradient::give",
    "::do_duties",
    // A ring with values that no correct peer writes.
    "Endpoint>>::corrupt",
    // Memory. The test `turns_allocate_nothing` has shown that no turn calls these functions.
    "alloc::raw_vec",
    "alloc::string",
    // Panics, which never happen: all indices are within bounds, and no `expect` fails.
    "panic",
    "_fail",
];

/// Functions that the compiler may use for a copy, a comparison, a fill or an unwinding. The list also has memory
/// functions on cold paths that a release build inlines: `turns_allocate_nothing` has shown that no turn calls them.
const LIBRARIES: [&str; 9] =
    ["_Unwind_Resume", "bcmp", "free", "malloc", "memcpy", "memmove", "memset", "posix_memalign", "realloc"];

/// The test searches all functions that a turn can reach, also those that sum and step. It finds one atomic
/// read-modify-write instruction, and three instructions that enter the operating system. All four wake a worker that
/// has announced its sleep, once per sleep. `bell::claim_wake` has the atomic instruction, and is called after a plain
/// load of the worker's word. Then the core calls `futex::wake`. For a worker that sleeps at descriptors, it calls
/// `waking` instead, which sends a datagram or, in a hub, writes to an eventfd.
///
/// The fence of `bell::published`, once per chunk, is not a read-modify-write. But compilers write it as `lock or $0` on
/// the thread's own stack, where no other thread contends.
#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "reads x86-64 machine code")]
fn turns_hold_no_locked_instruction_and_no_system_call() {
    let _watchdog = Watchdog::start();
    let _keep: fn(&mut Core<shm::Port>, &mut Vec<pbox_core::Notice>) -> bool = Core::turn;
    let program = Program::disassemble(&std::env::current_exe().unwrap());
    let turn = program.named(|name| name.contains("turn::core::Core<") && name.ends_with("::turn"));
    assert_eq!(turn.len(), 1, "the binary's one `Core<shm::Port>::turn`");
    let whole = program.reached_from(&program.named(|_| true), &[]);
    let sees = |what: fn(&Function) -> &Vec<String>| whole.functions.iter().any(|f| !what(f).is_empty());
    assert!(sees(|f| &f.locked) && sees(|f| &f.system_calls), "the test sees what there is to see");

    let reached = program.reached_from(&turn, &COLD);
    let has = |part: &str| reached.functions.iter().any(|function| function.name.contains(part));
    for part in [
        "Port>::poll",
        "together::finish_round",
        "alone::step",
        "Encoder::encode",
        "Port>::post",
        "Port>::flush",
        "isa::avx512::sum",
        "isa::avx512::work",
        "isa::avx2::work",
        "isa::scalar::work",
    ] {
        assert!(has(part), "the walk passes {part}");
    }
    let fence = |instruction: &str| {
        instruction.contains("lock or") && instruction.contains("$0x0,") && instruction.ends_with("(%rsp)")
    };
    let mut modifying = Vec::new();
    let mut entering = Vec::new();
    for function in &reached.functions {
        let shown = |instruction: &String| format!("{}: {instruction}", function.name);
        modifying.extend(function.locked.iter().filter(|instruction| !fence(instruction)).map(shown));
        entering.extend(function.system_calls.iter().map(shown));
    }
    let waking = |shown: &str| {
        let names = ["Port>::flush: ", "bell::claim_wake: ", "futex::wake: ", "Waker::wake: "];
        names.iter().any(|name| shown.contains(name))
    };
    assert!(modifying.len() == 1 && modifying[0].contains("xchg") && waking(&modifying[0]), "{modifying:#?}");
    assert!(entering.len() == 3 && entering.iter().all(|shown| waking(shown)), "{entering:#?}");
    let foreign: Vec<_> = reached.libraries.iter().filter(|name| !LIBRARIES.contains(name)).collect();
    assert!(foreign.is_empty(), "functions of libraries in the round path: {foreign:?}");
    eprintln!("{} functions; {modifying:?}; {entering:?}; {:?}", reached.functions.len(), reached.libraries);
}
