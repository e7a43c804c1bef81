//! The system calls of a busy hub. Its core threads make far fewer calls than they finish chunks. strace
//! counts the calls of a hub process that busy-polls.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::processes::hub::start_hub;
use fabric::conformance::Watchdog;
use hub_tests::program::kill;
use hub_tests::{config_at, describe, join_all, push_all};
use pbox_core::{Key, Optimizer};
use rustix::process::Signal;
use worker_shim::Session;

/// The most system calls for each chunk. A round needs one wake-up of each worker: 2 calls for 400 chunks.
const CALLS_PER_CHUNK: f64 = 0.05;
const ROUNDS: u64 = 50;
const CHUNKS: u64 = 400;

/// The strace processes on all threads of a process, with one file for each thread.
struct Strace(Child);

impl Strace {
    fn attach(pid: u32, to: &Path) -> Self {
        let mut command = Command::new("strace");
        command.args(["-ff", "-p", &pid.to_string(), "-o"]).arg(to.join("thread"));
        let mut child = match command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => panic!("strace does not start ({error}); install the package strace"),
        };
        let mut said = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(
            line.contains("attached"),
            "strace cannot attach to a process of this user: {line}; allow ptrace here (a container needs \
             --cap-add SYS_PTRACE, a host kernel.yama.ptrace_scope=0 or root)"
        );
        // A thread reads the rest of strace's output, so that strace does not block.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Strace(child)
    }

    fn detach(&mut self) {
        kill(self.0.id(), Signal::INT);
        self.0.wait().unwrap();
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the core threads of a process.
fn core_threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let core = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("phub-core-"))
    };
    tasks.filter(core).map(|task| task.file_name().into_string().unwrap()).collect()
}

fn rounds(sessions: &mut [Session]) {
    std::thread::scope(|scope| {
        for session in sessions {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    push_all(session).unwrap();
                    session.wait_all().unwrap();
                }
            });
        }
    });
}

#[test]
fn a_busy_core_makes_far_fewer_calls_than_it_finishes_chunks() {
    let _watchdog = Watchdog::start();
    let (hub, address) = start_hub(&[("PHUB_IDLE", "busy-poll")]);
    let mut sessions = join_all(2, |rank| {
        let mut config = config_at(&address, "job", rank, 2);
        config.terms.optimizer = Optimizer::Average;
        config.terms.keys = (0..4).map(|key| Key::f32(format!("key {key}"), [CHUNKS / 4 * 1024])).collect();
        config.terms.chunk_bytes = 4096;
        config
    });
    rounds(&mut sessions); // the hub is warm

    let dir = tempfile::tempdir().unwrap();
    let mut strace = Strace::attach(hub.pid(), dir.path());
    rounds(&mut sessions);
    let threads = core_threads(hub.pid());
    strace.detach();

    let file = |thread: &String| dir.path().join(format!("thread.{thread}"));
    let traces = threads.iter().map(|thread| std::fs::read_to_string(file(thread)).unwrap_or_default());
    let calls: Vec<String> = traces
        .flat_map(|trace| {
            trace.lines().filter(|line| line.contains('(')).map(String::from).collect::<Vec<_>>()
        })
        .collect();
    let chunks = ROUNDS * CHUNKS;
    let per_chunk = calls.len() as f64 / chunks as f64;
    eprintln!(
        "{} system calls of {} core thread(s) for {chunks} chunks: {per_chunk:.5} a chunk",
        calls.len(),
        threads.len()
    );
    assert_eq!(threads.len(), 1);
    assert!(
        per_chunk < CALLS_PER_CHUNK,
        "{per_chunk} system calls a chunk; the first: {:#?}",
        &calls[..calls.len().min(20)]
    );
    assert!(describe(&address).cores[0].chunks >= chunks, "the core has worked");
    sessions.into_iter().for_each(|session| session.leave().unwrap());
}
