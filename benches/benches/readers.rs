//! Readers of weights on the hub's machine: the time from the end of a round to a reader's last byte, and how many
//! rounds run meanwhile.
//!
//! Two workers and a hub train in this process without a pause. All readers ask at once when a round ends, and get the
//! newest weights (*newest*). Or all readers ask for the weights after a future round, before this round ends
//! (*named*). In the same run, the same number of plain TCP connections carry the bytes of the f32 weights from memory.
//! Their time is the bound. With `shm`, readers lend memory, and the bound is the time of as many threads that copy the
//! bytes into new memory. Then all readers read once a second. The rounds per second are compared with the rounds per
//! second without readers, and during the plain copies. These measurements (legs) alternate, so that a change of the
//! machine's load affects all of them.
//!
//! `cargo bench --bench readers -- [LEGS] [bf16] [shm]` prints the median, lowest and highest of the legs, for f32 or bf16.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use authority::Credential;
use fabric::Slab;
use fabric::any::Transport;
use hub_tests::training::Training;
use hub_tests::{authorization, hub};
use membership::{Values, fetch_state};
use pbox_core::control::{Only, StateQuery};
use pbox_core::manifest::MAX_HEADER_BYTES;
use pbox_core::{Dtype, Key, Optimizer, Round};
use worker_shim::Session;
use zerocopy::IntoBytes;

const READERS: [usize; 3] = [1, 8, 32];
const WORKERS: u32 = 2;
/// The number of keys, which together have 16.8 MB of weights as f32.
const KEYS: u64 = 16;
const KEY_ELEMENTS: u64 = 1 << 18;
const BYTES: u64 = KEYS * KEY_ELEMENTS * 4;
const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 1e-3, weight_decay: 0.0, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
/// The time for which rounds are counted, while readers read once a second.
const COUNTED: Duration = Duration::from_secs(4);

/// The number of rounds from a request for a named round to the end of this round. It is so large that all requests
/// reach the hub before the round ends.
const AHEAD: u64 = 60;

/// A source to read from.
#[derive(Clone)]
enum Source {
    /// The answer to a request at an address.
    Connection { address: SocketAddr, request: String },
    /// A hub that writes the job's weights into memory: the weights before round `before`, or, if it is `None`, before
    /// the next round.
    Loan { address: SocketAddr, before: Option<u64> },
    /// Memory.
    Memory(Arc<[u8]>),
}

impl Source {
    /// Returns the source of the job's weights at a hub: the weights before round `before`, or, if it is `None`, before
    /// the next round.
    fn weights(address: SocketAddr, before: Option<u64>) -> Self {
        if has("shm") {
            return Source::Loan { address, before };
        }
        let before = before.map(|round| format!("&before={round}")).unwrap_or_default();
        let dtype = if has("bf16") { "&dtype=bf16" } else { "" };
        let request = format!(
            "GET /v1/jobs/job/state?only=weights{dtype}{before} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             authorization: {}\r\n\r\n",
            authorization()
        );
        Source::Connection { address, request }
    }

    /// Returns the source of plain copies.
    fn plain() -> Self {
        let values: Arc<[u8]> = vec![1; BYTES as usize].into();
        match has("shm") {
            true => Source::Memory(values),
            false => Source::Connection { address: copies(values), request: "GET\r\n\r\n".to_owned() },
        }
    }

    /// Reads the whole answer. Returns the time at which the last byte arrived.
    fn read(&self) -> Instant {
        let least = if has("bf16") { BYTES / 2 } else { BYTES };
        match self {
            Source::Connection { address, request } => {
                let mut stream = TcpStream::connect(address).expect("it listens");
                stream.write_all(request.as_bytes()).expect("it reads");
                let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    bytes += count as u64;
                }
                let beginning = String::from_utf8_lossy(&buffer[..100]);
                assert!(bytes >= least, "{bytes} bytes came: {beginning}");
            }
            Source::Loan { address, before } => {
                let before = before.map(|round| Round(round as u32));
                let dtype = if has("bf16") { Dtype::BF16 } else { Dtype::F32 };
                let query = StateQuery { only: Some(Only::Weights), before, dtype };
                let credential = Credential::find_if_any().expect("a secret");
                let values = (Values::InMemory(None), BYTES + MAX_HEADER_BYTES);
                let state = fetch_state(&address.to_string(), "job", query, values, credential.as_ref());
                let values = state.expect("the hub has it").expect("all of it").take_values();
                let bytes = size_of_val(values.expect("the hub is on this machine").as_slice());
                assert!(bytes as u64 >= least, "{bytes} bytes came");
            }
            Source::Memory(values) => {
                let mut slab = Slab::zeroed("a copy", values.len() / size_of::<f32>()).expect("memory");
                slab.as_mut_slice().as_mut_bytes().copy_from_slice(values);
                black_box(slab.as_slice());
            }
        }
        Instant::now()
    }
}

/// Whether the user has given this word.
fn has(word: &str) -> bool {
    std::env::args().any(|given| given == word)
}

/// Starts a server that sends these bytes to each connection, after its request.
fn copies(values: Arc<[u8]>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, values) = (stream.expect("a reader"), Arc::clone(&values));
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 1 << 10]);
                values.chunks(1 << 20).try_for_each(|piece| stream.write_all(piece))
            });
        }
    });
    address
}

/// The number of rounds that the job has made so far.
#[derive(Default)]
struct Rounds {
    done: AtomicU64,
    stop: AtomicBool,
}

impl Rounds {
    fn train(&self, training: &Training, address: &str, rank: u32) {
        let mut session = Session::join(training.config(address, rank)).expect("the hub takes it");
        training.broadcast(&mut session, rank).expect("first weights");
        for key in session.keys() {
            training.write(&mut session, key, |gradient| gradient.fill(0.5));
        }
        loop {
            // Only rank 0 reads the flag, and only before a push, because all workers must end with the same round.
            let stops = rank == 0 && self.stop.load(Ordering::Relaxed);
            // Rank 0 may be gone before this worker's next push.
            if session.keys().try_for_each(|key| session.push(key)).is_err()
                || session.wait_all().is_err()
                || stops
            {
                return;
            }
            if rank == 0 {
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until this number of rounds have ended.
    fn end_of(&self, rounds: u64) -> Instant {
        while self.done() < rounds {
            thread::sleep(Duration::from_micros(100));
        }
        Instant::now()
    }

    /// Waits until the next round ends.
    fn end_of_one(&self) -> Instant {
        self.end_of(self.done() + 1)
    }

    /// Returns the rounds per second while `readers` readers each read the source once a second.
    fn beside(&self, reads: Option<&Source>, readers: usize) -> f64 {
        let end = self.end_of_one() + COUNTED;
        thread::scope(|scope| {
            if let Some(source) = reads {
                for number in 0..readers {
                    scope.spawn(move || {
                        thread::sleep(Duration::from_secs(1) * number as u32 / readers as u32);
                        while Instant::now() < end {
                            let next = Instant::now() + Duration::from_secs(1);
                            source.read();
                            thread::sleep(next.saturating_duration_since(Instant::now()));
                        }
                    });
                }
            }
            let (begun, before) = (Instant::now(), self.done());
            thread::sleep(end.saturating_duration_since(begun));
            (self.done() - before) as f64 / begun.elapsed().as_secs_f64()
        })
    }

    /// Returns the seconds from the end of a round to the last reader's last byte. The readers ask when the round ends.
    fn at_once(&self, source: &Source, readers: usize) -> f64 {
        let begun = self.end_of_one();
        thread::scope(|scope| {
            let all: Vec<_> = (0..readers).map(|_| scope.spawn(move || source.read())).collect();
            (last(all) - begun).as_secs_f64()
        })
    }

    /// Returns the seconds from the end of a round to the last reader's last byte. The readers have asked for the
    /// weights after this round before its end.
    fn named(&self, hub: SocketAddr, readers: usize) -> f64 {
        let rounds = self.done() + AHEAD;
        // Round 0 gives the first weights, and is not counted.
        let source = &Source::weights(hub, Some(rounds + 1));
        thread::scope(|scope| {
            let all: Vec<_> = (0..readers).map(|_| scope.spawn(move || source.read())).collect();
            let begun = self.end_of(rounds);
            (last(all) - begun).as_secs_f64()
        })
    }
}

/// Returns the last of these times.
fn last(readers: Vec<thread::ScopedJoinHandle<'_, Instant>>) -> Instant {
    readers.into_iter().map(|one| one.join().expect("it reads")).max().expect("a reader")
}

/// The figures for one number of readers, by leg.
#[derive(Default)]
struct Figures {
    newest: Vec<f64>,
    named: Vec<f64>,
    bound: Vec<f64>,
    share_of_newest: Vec<f64>,
    share_of_named: Vec<f64>,
    beside_copies: Vec<f64>,
    beside_readers: Vec<f64>,
}

fn shown(figures: &[f64], unit: f64, digits: usize) -> String {
    let mut sorted: Vec<f64> = figures.iter().map(|figure| figure * unit).collect();
    sorted.sort_by(f64::total_cmp);
    let (lowest, highest) = (sorted[0], sorted[sorted.len() - 1]);
    format!("{:.digits$} ({lowest:.digits$} to {highest:.digits$})", sorted[sorted.len() / 2])
}

fn main() {
    let legs = std::env::args().filter_map(|word| word.parse().ok()).next().unwrap_or(5);
    let hub = hub(1);
    let keys = (0..KEYS).map(|key| Key::f32(format!("key{key}"), [KEY_ELEMENTS])).collect();
    let training = Training {
        workers: WORKERS,
        transport: |_| Some(Transport::Shm),
        ..Training::new("job", keys, ADAM)
    };
    let (address, rounds) = (hub.address().to_string(), Rounds::default());
    let state = &Source::weights(hub.address(), None);
    let copy = &Source::plain();
    let mut all: [Figures; 3] = Default::default();
    thread::scope(|scope| {
        let (rounds, training, address) = (&rounds, &training, &address);
        for rank in 0..WORKERS {
            scope.spawn(move || rounds.train(training, address, rank));
        }
        rounds.end_of_one();
        for _ in 0..legs {
            for (readers, figures) in READERS.into_iter().zip(&mut all) {
                let bound = rounds.at_once(copy, readers);
                let newest = rounds.at_once(state, readers);
                let named = rounds.named(hub.address(), readers);
                figures.newest.push(newest);
                figures.named.push(named);
                figures.bound.push(bound);
                figures.share_of_newest.push(bound / newest);
                figures.share_of_named.push(bound / named);
                let alone = rounds.beside(None, readers);
                figures.beside_readers.push(rounds.beside(Some(state), readers) / alone);
                figures.beside_copies.push(rounds.beside(Some(copy), readers) / alone);
            }
        }
        rounds.stop.store(true, Ordering::Relaxed);
    });
    let dtype = if has("bf16") { "bf16" } else { "f32" };
    let by = if has("shm") { "shared memory" } else { "TCP" };
    println!("{:.1} MB of weights, read as {dtype} by {by}, {legs} legs", BYTES as f64 / 1e6);
    for (readers, figures) in READERS.into_iter().zip(&all) {
        println!(
            "{readers} readers: newest {} ms, named {} ms, plain copies {} ms, shares of the bound {} and {}; rounds beside once a \
             second: {} of those without, beside plain copies {}",
            shown(&figures.newest, 1e3, 0),
            shown(&figures.named, 1e3, 0),
            shown(&figures.bound, 1e3, 0),
            shown(&figures.share_of_newest, 1.0, 2),
            shown(&figures.share_of_named, 1.0, 2),
            shown(&figures.beside_readers, 1.0, 2),
            shown(&figures.beside_copies, 1.0, 2),
        );
    }
}
