//! A worker in its own process: this test program again, which runs only [`worker_process`]. [`VARIABLE`]
//! names the job to join. After that the test sends a command on each line.
//!
//! ```text
//!   test -- "round\n" -->  child     joined, round, push, finish, leave
//!        <-- "@round 1" --           a reply is the text after an `@`; the child ends after "@error ..."
//! ```

use std::io::{BufRead, Write};

use fabric::conformance::rerun;
use hub_tests::program::Program;
use hub_tests::values::{Reference, fill_gradient, fill_weights, same_bits};
use hub_tests::{FIRST, SGD, config_at, small_model};
use pbox_core::KeyId;
use worker_shim::{Session, SessionConfig, SessionError};

const VARIABLE: &str = "PHUB_TEST_WORKER";
/// The seed of all gradients of these jobs.
const SEED: u64 = 77;

/// A worker of the small model that is driven step by step, in this process or, with [`Remote`], in another
/// process.
pub struct Worker {
    session: Session,
    rank: u32,
    round: u32,
    reference: Reference,
}

impl Worker {
    /// Joins and gets its weights. The words of `what` are `hub job rank workers`. Further words may follow:
    /// a transport that the worker must use, `checksum`, and `waits` if the worker waits for a lost hub.
    pub fn join(what: &str) -> Result<Self, SessionError> {
        let words: Vec<&str> = what.split(' ').collect();
        let [hub, job, rank, workers, settings @ ..] = &words[..] else { panic!("{what:?}") };
        let (rank, workers) = (rank.parse().unwrap(), workers.parse().unwrap());
        let mut config = config_at(hub, job, rank, workers);
        config.transport = settings.first().map(|name| name.parse().unwrap());
        config.checksum |= settings.contains(&"checksum");
        if settings.contains(&"waits") {
            config.hub_wait = SessionConfig::new(*hub, *job, rank, workers, Vec::new(), SGD).hub_wait;
        }
        let mut session = Session::join(config)?;
        session.broadcast_weights(|key, weights| fill_weights(SEED, key, weights))?;
        let reference = Reference::new(SEED, workers, SGD, &small_model());
        Ok(Worker { session, rank, round: 0, reference })
    }

    /// Pushes one key of the round.
    pub fn push(&mut self, key: KeyId) -> Result<(), SessionError> {
        fill_gradient(SEED, self.rank, self.round, key, self.session.gradient_mut(key)?);
        self.session.push(key)
    }

    /// Pushes all keys but the first, waits for all keys, and checks every bit.
    pub fn finish(&mut self) -> Result<(), SessionError> {
        for key in self.session.keys().filter(|&key| key != FIRST) {
            self.push(key)?;
        }
        self.session.wait_all()?;
        self.round += 1;
        self.reference.advance(SGD.learning_rate());
        for key in self.session.keys() {
            let what = format!("rank {}, round {}, key {}", self.rank, self.round, key.0);
            same_bits(what, self.session.weights(key)?, &self.reference.weights[key.index()]);
        }
        Ok(())
    }

    /// Makes a whole round.
    pub fn round(&mut self) -> Result<(), SessionError> {
        self.push(FIRST)?;
        self.finish()
    }

    /// Returns the hub's next round.
    pub fn next_round(&self) -> u32 {
        self.session.next_round().0
    }

    /// Leaves the job.
    pub fn leave(self) -> Result<(), SessionError> {
        self.session.leave()
    }
}

/// The test's handle of a worker process.
pub struct Remote(Program);

impl Remote {
    /// Starts the process, which joins at once.
    pub fn start(what: &str) -> Self {
        Remote(Program::start(rerun(worker_process).env(VARIABLE, what)))
    }

    pub fn send(&mut self, command: &str) {
        writeln!(self.0.stdin(), "{command}").unwrap();
    }

    #[track_caller]
    pub fn says(&mut self, expected: &str) {
        assert_eq!(self.read_reply(), expected);
    }

    /// Waits for the next reply.
    pub fn read_reply(&mut self) -> String {
        self.0.read_reply()
    }

    /// Returns the process.
    pub fn process(&self) -> &Program {
        &self.0
    }
}

/// The main function of a worker process, which is no test. It does nothing if [`VARIABLE`] is not set.
#[test]
fn worker_process() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    if let Err(error) = obey(&what) {
        println!("@error {error}");
    }
}

fn obey(what: &str) -> Result<(), SessionError> {
    let mut worker = Worker::join(what)?;
    println!("@joined");
    for line in std::io::stdin().lock().lines() {
        match line.expect("the test's own words").as_str() {
            "push" => {
                worker.push(FIRST)?;
                println!("@pushed");
            }
            "round" => {
                worker.round()?;
                println!("@round {}", worker.round);
            }
            "finish" => {
                worker.finish()?;
                println!("@round {}", worker.round);
            }
            "leave" => {
                worker.leave()?;
                println!("@left");
                return Ok(());
            }
            other => panic!("unknown command {other:?}"),
        }
    }
    Ok(())
}
