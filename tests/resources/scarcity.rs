//! A hub without enough memory, descriptors, locked memory or huge pages refuses requests with an error that
//! names the limit to raise, and keeps running. The tests limit the running hub's process by prlimit(2).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::processes::hub::start_hub;
use fabric::conformance::{Watchdog, alone};
use hub_tests::program::{Program, until};
use hub_tests::training::Training;
use hub_tests::usage::status_bytes;
use hub_tests::{SGD, authorization, config_at, describe, join_request, refused, says};
use pbox_core::control::{JobReply, JobState};
use pbox_core::{Key, Optimizer};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use worker_shim::{Session, SessionConfig};

struct Hub {
    program: Program,
    address: String,
}

impl Hub {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(variables: &[(&str, &str)]) -> Self {
        // The C library would reserve addresses for the allocations of each new thread, and so blur the
        // limit.
        let (program, address) = start_hub(&[&[("MALLOC_ARENA_MAX", "1")], variables].concat());
        Hub { program, address }
    }

    fn limit(&self, what: Resource, to: u64) {
        let maximum = getrlimit(what).maximum; // the child has the same maximum
        let limit = Rlimit { current: Some(maximum.map_or(to, |maximum| to.min(maximum))), maximum };
        prlimit(Pid::from_raw(self.program.pid() as i32), what, limit).expect("our own child");
    }

    /// Runs a job whose bits must be right.
    fn assert_alive(&self) {
        Training::small("after").run(&self.address);
    }
}

/// Returns the settings of a job that needs memory for a model of `mib` MiB, and for nothing else of that
/// size.
fn of_mib(hub: &Hub, job: &str, mib: u64) -> SessionConfig {
    let mut config = config_at(&hub.address, job, 0, 1);
    config.terms.keys = vec![Key::f32("large", [mib << 18])];
    config.terms.optimizer = Optimizer::Average;
    config.terms.chunk_bytes = 1 << 20;
    config
}

#[test]
fn a_job_without_enough_memory_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = Hub::start();
    let has = status_bytes(hub.program.pid(), "VmSize:");
    hub.limit(Resource::As, has + (400 << 20));
    let words = ["cannot map", "ulimit -v", "smaller model"];
    // There is no room for the weights.
    says(
        refused(of_mib(&hub, "large", 512)),
        &[&words[..], &["536870912 bytes", "\"large\"", "weights"]].concat(),
    );
    assert_eq!(describe(&hub.address).jobs, [], "a refused job is none");
    hub.assert_alive();
    // There is room for the weights, but not for the worker's window.
    says(
        refused(of_mib(&hub, "half", 256)),
        &[&words[..], &["268435456 bytes", "a receive window"]].concat(),
    );
    let told =
        |job: &JobReply| matches!(&job.state, JobState::Failed { reason, .. } if reason.contains(words[0]));
    until("the job is failed, and its name is free", || describe(&hub.address).jobs.iter().any(told));
    hub.assert_alive();
}

/// Checks that the error names the memory, and not the directory or the file.
#[test]
fn a_checkpoint_without_memory_for_its_state_is_refused() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let start = || Hub::start_with(&[("PHUB_CHECKPOINTS", dir.path().to_str().unwrap())]);
    let of = |hub: &Hub| SessionConfig::with_terms(of_mib(hub, "large", 64), |terms| terms.optimizer = SGD);
    let former = start();
    let mut session = Session::join(of(&former)).unwrap();
    session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(1.0)).unwrap();
    session.leave().unwrap();
    drop(former);
    let hub = start();
    hub.limit(Resource::As, status_bytes(hub.program.pid(), "VmSize:") + (40 << 20));
    let error = refused(of(&hub)).to_string();
    says(
        &error,
        &["job \"large\": there is no memory for the state of its checkpoint", "cannot map", "ulimit -v"],
    );
    assert!(!error.contains("move the file away"), "{error}");
    hub.assert_alive();
}

/// Checks that a worker that cannot start a thread leaves at once. Formerly the hub waited for the worker's heartbeats.
#[test]
fn a_worker_without_a_thread_for_its_heartbeat_gives_its_rank_back() {
    let _watchdog = Watchdog::start();
    alone(|| {
        let hub = Hub::start();
        let worker = || config_at(&hub.address, "job", 0, 2);
        let limit = getrlimit(Resource::As);
        // There is no room for the stack of a thread.
        let has = status_bytes(std::process::id(), "VmSize:");
        setrlimit(Resource::As, Rlimit { current: Some(has + (1 << 20)), ..limit }).unwrap();
        let error = refused(worker());
        setrlimit(Resource::As, limit).unwrap();
        says(error, &["cannot start the thread of the heartbeat", &hub.address, "ulimit -u"]);
        says(
            refused(SessionConfig { join_limit: Duration::from_millis(100), ..worker() }),
            &["for worker(s) [1] of 2"],
        );
    });
}

/// The memory's descriptors do not arrive, but the hub has linked the worker. So the hub refuses the worker's TCP connection,
/// and the reason of this refusal alone does not mention descriptors.
#[test]
fn a_worker_without_descriptors_hears_why_shared_memory_failed() {
    let _watchdog = Watchdog::start();
    alone(|| {
        let hub = Hub::start();
        let limit = getrlimit(Resource::Nofile);
        let join = |room: u64| {
            let config = config_at(&hub.address, &format!("job-{room}"), 0, 1);
            setrlimit(Resource::Nofile, Rlimit { current: Some(room), ..limit }).unwrap();
            let joined = Session::join(config);
            setrlimit(Resource::Nofile, limit).unwrap();
            joined
        };
        let errors: Vec<String> = (4..64).map_while(|room| join(room).err()).map(|e| e.to_string()).collect();
        let both = |error: &&String| error.contains("refused the TCP connection");
        says(errors.iter().find(both).unwrap(), &["before that, shm: ", "ulimit -n"]);
    });
}

/// The limit of open files counts descriptor numbers, and a thread in accept(2) has reserved a number that
/// /proc does not show. So the test leaves the hub no descriptor at all, and sends its requests on an open
/// connection.
#[test]
fn a_hub_without_descriptors_says_so_and_serves_when_it_has_some() {
    let _watchdog = Watchdog::start();
    let hub = Hub::start();
    let room = |descriptors| hub.limit(Resource::Nofile, descriptors);
    let connect = || TcpStream::connect(&hub.address).expect("the kernel takes it in");
    let mut known = connect();
    known.write_all(b"GET /v1/health HTTP/1.1\r\nhost: hub\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        let mut some = [0; 256];
        let bytes = known.read(&mut some).expect("the hub answers");
        assert_ne!(bytes, 0, "the hub hung up after {:?}", String::from_utf8_lossy(&answer));
        answer.extend(&some[..bytes]);
    }
    room(3);
    // A new connection waits in the backlog, and the hub replies later.
    let mut waiting = connect();
    waiting.write_all(b"GET /v1/health HTTP/1.1\r\nhost: hub\r\nconnection: close\r\n\r\n").unwrap();
    let body = serde_json::to_string(&join_request(0, 1)).unwrap();
    let (length, authorization) = (body.len(), authorization());
    let head = format!(
        "POST /v1/jobs/job/join HTTP/1.1\r\nhost: hub\r\nauthorization: {authorization}\r\ncontent-length: {length}\r\n"
    );
    known.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    known.read_to_string(&mut answer).unwrap();
    says(answer, &["HTTP/1.1 5", "ulimit -n"]);
    room(1024);
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    says(answer, &["200 OK", "ok"]);
    hub.assert_alive();
}

/// Checks that the first worker gets the error. Formerly all workers were admitted, and failed after 10 s.
#[test]
fn a_job_whose_workers_need_too_many_descriptors_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = Hub::start();
    hub.limit(Resource::Nofile, 64);
    let error = refused(config_at(&hub.address, "large", 0, 100));
    let words =
        ["\"large\": 100 workers need", "may have 64: it has", "without jobs", "ulimit -n", "fewer workers"];
    says(&error, &words);
    assert_eq!(describe(&hub.address).jobs, [], "a refused job is none");
    hub.limit(Resource::Nofile, 1024);
    hub.assert_alive();
}

/// A limit on locked memory is harmless with shared memory, because the hub locks no memory then.
#[test]
fn no_locked_memory_is_needed() {
    let _watchdog = Watchdog::start();
    let hub = Hub::start();
    hub.limit(Resource::Memlock, 0);
    hub.assert_alive();
    let locked = status_bytes(hub.program.pid(), "VmLck:");
    assert_eq!(locked, 0);
}

#[test]
fn joins_with_long_manifests_that_fail_leave_no_memory_behind() {
    let _watchdog = Watchdog::start();
    let (program, address) = start_hub(&[]);
    let keys = (0..100_000).map(|key| {
        let name = format!("a.layer.with.a.rather.long.name.that.a.framework.made.up.{key}.weight");
        serde_json::json!({"name": name, "shape": [1], "dtype": "f32"})
    });
    let mut join = serde_json::to_value(join_request(0, 1)).unwrap();
    join["terms"]["keys"] = keys.collect();
    join["rank"] = serde_json::json!(7); // refused when the whole request has been read
    let body = serde_json::to_vec(&join).unwrap();
    assert!(body.len() > 8 << 20, "{} bytes", body.len());
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let send = |job: u32| {
        let post = agent.post(format!("http://{address}/v1/jobs/job-{job}/join"));
        let post = post.header("authorization", authorization()).content_type("application/json");
        let mut answer = post.send(&body[..]).unwrap();
        let why = answer.body_mut().read_to_string().unwrap();
        assert_eq!(answer.status(), 400, "{why}");
    };
    let before = status_bytes(program.pid(), "VmRSS:");
    std::thread::scope(|scope| {
        for client in 0..4 {
            scope.spawn(move || (0..5).for_each(|request| send(client * 5 + request)));
        }
    });
    // Twenty such requests once left 550 MB.
    let left = || status_bytes(program.pid(), "VmRSS:").saturating_sub(before);
    until("their memory is the machine's again", || left() < 64 << 20);
}

#[test]
fn an_address_and_a_job_have_their_quotas_and_the_error_says_who_has_what() {
    let _watchdog = Watchdog::start();
    let (_program, address) = start_hub(&[("PHUB_JOBS_PER_ADDRESS", "1"), ("PHUB_MEMORY_PER_JOB", "100")]);
    let session = worker_shim::Session::join(config_at(&address, "first", 0, 1)).unwrap();
    let why = refused(config_at(&address, "second", 0, 1));
    says(why, &["address 127.0.0.1 has 1 job(s)", "(first)", "--jobs-per-address allows 1"]);
    session.leave().unwrap();
    let mut large = config_at(&address, "large", 0, 1);
    (large.terms.keys, large.terms.chunk_bytes) = (vec![Key::f32("large", [64 << 20])], 1 << 20);
    says(refused(large), &["\"large\" needs", "--memory-per-job", "0.10 GB"]);
    worker_shim::Session::join(config_at(&address, "second", 0, 1)).unwrap();
}
