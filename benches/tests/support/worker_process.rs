//! A worker in a process of its own: this test binary once more, told by [`VARIABLE`] to run
//! [`worker_process`] alone, and then line by line what to do.
//!
//! ```text
//!   test -- "round\n" -->  child     joined, round, push, finish, leave
//!        <-- "@round 1" --           a reply is what follows an `@`; "@error ..." ends the child
//! ```

use std::io::{BufRead, Write};
use std::process::Command;

use pbox_core::KeyId;
use worker_shim::{Session, SessionError};

use crate::support::program::Program;
use crate::support::values::{Reference, fill_gradient, fill_weights, same_bits};
use crate::support::{FIRST, SGD, config_at, small_model};

const VARIABLE: &str = "PHUB_TEST_WORKER";
/// Of all gradients of these jobs.
const SEED: u64 = 77;

/// One worker of the small model, step by step; in this process or, by [`Remote`], in another.
pub struct Worker {
    session: Session,
    rank: u32,
    round: u32,
    reference: Reference,
}

impl Worker {
    /// Joins, and has its weights. `what` is `hub job rank workers`.
    pub fn join(what: &str) -> Result<Self, SessionError> {
        let [hub, job, rank, workers] = what.split(' ').collect::<Vec<_>>()[..] else { panic!("{what:?}") };
        let (rank, workers) = (rank.parse().unwrap(), workers.parse().unwrap());
        let mut session = Session::join(config_at(hub, job, rank, workers))?;
        session.broadcast_weights(|key, weights| fill_weights(SEED, key, weights))?;
        let reference = Reference::new(SEED, workers, SGD, &small_model());
        Ok(Worker { session, rank, round: 0, reference })
    }

    /// Pushes one key of the round.
    pub fn push(&mut self, key: KeyId) -> Result<(), SessionError> {
        fill_gradient(SEED, self.rank, self.round, key, self.session.gradient_mut(key)?);
        self.session.push(key)
    }

    /// Pushes the keys but the first, waits for all of them, and checks every bit.
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

    /// A whole round.
    pub fn round(&mut self) -> Result<(), SessionError> {
        self.push(FIRST)?;
        self.finish()
    }

    /// Leaves in good order.
    pub fn leave(self) -> Result<(), SessionError> {
        self.session.leave()
    }
}

/// The test's handle of a worker process.
pub struct Remote(Program);

impl Remote {
    /// Starts it; it joins at once.
    pub fn start(what: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "support::worker_process::worker_process", "--nocapture"]);
        Remote(Program::start(command.env(VARIABLE, what)))
    }

    /// Tells it something, without waiting.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.0.stdin(), "{command}").unwrap();
    }

    /// Waits for its next reply, and asserts that it is this one.
    #[track_caller]
    pub fn says(&mut self, expected: &str) {
        assert_eq!(self.reply(), expected);
    }

    /// Its next reply. The harness of the child writes lines of its own, which are none.
    pub fn reply(&mut self) -> String {
        loop {
            let line = self.0.hear_line().expect("the worker ended, its own words are above");
            if let Some((_, said)) = line.split_once('@') {
                return said.to_owned();
            }
        }
    }

    /// The process.
    pub fn process(&self) -> &Program {
        &self.0
    }
}

/// Not a test: the main function of a worker process. Without its variable it does nothing.
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
