//! The shared parts of tests of hubs and workers: hubs in this process, and sessions on threads of their own.
//! Also raw requests to the control port, values with known results, and programs as child processes.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // no user reads this crate

pub mod program;
pub mod proxy;
pub mod recorder;
pub mod relay;
pub mod state;
pub mod training;
pub mod usage;

pub use sim_tests::{SGD, model, race, says, simulated, trouble, values};

use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixDatagram};
use std::sync::Mutex;
use std::time::Duration;

use authority::{ALL_JOBS, Credential, Right};
use fabric::IdlePolicy;
use fabric::any::Transport;
use pbox_core::control::{ErrorReply, HubReply, JoinReply, JoinRequest, TransportAddress};
use pbox_core::{JobTerms, Key, KeyId};
use phub_server::{ControlLimits, CoreSelection, Hub, HubSettings, IdleChoice, Machine};
use serde::Serialize;
use worker_shim::{Session, SessionConfig, SessionError};

/// A heartbeat limit for tests. It is so long that no test reaches it by accident, and no test waits for it.
pub const PATIENT_S: u64 = 30;

/// An address on which nobody listens: the kernel never chooses a privileged port for a socket.
pub const NOWHERE: &str = "127.0.0.1:1";

/// Returns a hub with `cores` cores on a free port.
pub fn hub(cores: usize) -> Hub {
    hub_with_limit(cores, PATIENT_S)
}

/// Returns a hub with this heartbeat limit.
pub fn hub_with_limit(cores: usize, heartbeat_limit_s: u64) -> Hub {
    Hub::start(&settings(cores, heartbeat_limit_s)).expect("a hub starts on a free port")
}

/// Returns a hub with these limits for the clients of its control port.
pub fn hub_with(cores: usize, limits: ControlLimits) -> Hub {
    Hub::start_with(&settings(cores, PATIENT_S), limits).expect("a hub starts on a free port")
}

/// Returns a hub with one core below other hubs, as machine `number` of `of`.
pub fn hub_below(above: &str, number: u32, of: u32) -> Hub {
    let machine = Some(Machine { number, of });
    let settings = HubSettings { above: Some(above.to_owned()), machine, ..settings(1, PATIENT_S) };
    Hub::start(&settings).expect("a hub starts on a free port")
}

/// Returns an address for a hub whose peers must know the address before the hub listens. No other socket
/// gets the port: the kernel chooses only higher ports, and other tests see the abstract socket name that
/// this process holds for the port until it ends.
pub fn free_address() -> SocketAddr {
    static HELD: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    let hold = |port: u16| {
        let name = unix::SocketAddr::from_abstract_name(format!("phub-test-port-{port}"))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        HELD.lock().unwrap().push(UnixDatagram::bind_addr(&name)?);
        TcpListener::bind(address).map(|_| address)
    };
    (10_000..32_000).find_map(|port| hold(port).ok()).expect("the ports do not end")
}

/// Returns the settings of a test's hub.
pub fn settings(cores: usize, heartbeat_limit_s: u64) -> HubSettings {
    HubSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        cores: Some(CoreSelection::Count(cores.min(cpus()))),
        // The workers run on the same cpus.
        idle: IdleChoice::Sleep,
        heartbeat_limit_s,
        ..HubSettings::default()
    }
}

/// Returns the list of these hubs in the form in which a worker gets it.
pub fn addresses<'a>(hubs: impl IntoIterator<Item = &'a Hub>) -> String {
    hubs.into_iter().map(|hub| hub.address().to_string()).collect::<Vec<_>>().join(",")
}

/// Returns the number of cpus that this process may use. A test that wants two cores gets one core on a
/// machine with one cpu.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get())
}

/// Whether RDMA can be tested. If it cannot, the output of the test says so.
pub fn has_rdma() -> bool {
    let named = std::env::var("PHUB_TEST_DEVICE").is_ok_and(|devices| !devices.is_empty());
    if !named {
        println!("skipped: RDMA, as PHUB_TEST_DEVICE names no device to test on; make rxe has soft-RoCE");
    }
    named
}

/// Returns the transports that copy bytes from window to window.
pub fn copying_transports() -> Vec<Transport> {
    if has_rdma() { vec![Transport::Tcp, Transport::Verbs] } else { vec![Transport::Tcp] }
}

/// Returns the transports of two workers, by rank: one pair has TCP for the second worker. If there is RDMA,
/// another pair has RDMA for both.
pub fn transports_of_two() -> Vec<fn(u32) -> Option<Transport>> {
    let by_tcp: fn(u32) -> Option<Transport> = |rank| (rank == 1).then_some(Transport::Tcp);
    let by_rdma: fn(u32) -> Option<Transport> = |_| Some(Transport::Verbs);
    if has_rdma() { vec![by_tcp, by_rdma] } else { vec![by_tcp] }
}

/// Returns two keys of several chunks, and a key of a single element.
pub fn small_model() -> Vec<Key> {
    vec![Key::f32("first.weight", [3, 40]), Key::f32("second.bias", [1]), Key::f32("third.weight", [50])]
}

/// Returns the settings of a worker of a job with the small model, in chunks of 64 bytes.
pub fn config(hub: &Hub, job: &str, rank: u32, workers: u32) -> SessionConfig {
    config_at(&hub.address().to_string(), job, rank, workers)
}

/// Works like [`config`], for a hub of another process.
pub fn config_at(hub: &str, job: &str, rank: u32, workers: u32) -> SessionConfig {
    let mut config = SessionConfig::new(hub, job, rank, workers, small_model(), SGD);
    config.terms.chunk_bytes = 64;
    config.idle = IdlePolicy::SHARED;
    config.hub_wait = Duration::ZERO; // a loss is an error at once; `faults::returns` waits
    config
}

/// Runs all workers of a job, each on its own thread. Returns their results by rank.
pub fn on_threads<T: Send>(workers: u32, worker: impl Fn(u32) -> T + Sync) -> Vec<T> {
    let results: Vec<_> = (0..workers).map(|_| Mutex::new(None)).collect();
    run_on_threads(workers, &|rank| {
        let result = worker(rank);
        *results[rank as usize].lock().expect("no other thread has this lock") = Some(result);
    });
    let result = |cell: Mutex<Option<T>>| cell.into_inner().ok().flatten().expect("each worker has a result");
    results.into_iter().map(result).collect()
}

/// Runs `worker` on a thread for each rank. This function is compiled once for all closures. As a generic function,
/// it was a tenth of the compiled code of the tests.
fn run_on_threads(workers: u32, worker: &(dyn Fn(u32) + Sync)) {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|rank| scope.spawn(move || worker(rank))).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a worker panicked, see above"));
    });
}

/// Joins all workers of a job.
pub fn join_all(workers: u32, config: impl Fn(u32) -> SessionConfig + Sync) -> Vec<Session> {
    on_threads(workers, |rank| Session::join(config(rank)).unwrap_or_else(|e| panic!("rank {rank}: {e}")))
}

/// Joins all workers of a job and broadcasts weights of 1.
pub fn ready_all(workers: u32, config: impl Fn(u32) -> SessionConfig + Sync) -> Vec<Session> {
    on_threads(workers, |rank| {
        let mut session = Session::join(config(rank)).unwrap_or_else(|e| panic!("rank {rank}: {e}"));
        session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
        session
    })
}

/// Pushes every key.
pub fn push_all(session: &mut Session) -> Result<(), SessionError> {
    session.keys().try_for_each(|key| session.push(key))
}

/// Returns the error of a join that must fail.
pub fn refused(config: SessionConfig) -> String {
    match Session::join(config) {
        Ok(_) => panic!("the join was expected to fail"),
        Err(error) => error.to_string(),
    }
}

/// Returns the join request of a worker of the small model.
pub fn join_request(rank: u32, workers: u32) -> JoinRequest {
    let terms = JobTerms { chunk_bytes: 64, ..JobTerms::new(workers, small_model(), SGD) };
    JoinRequest::new(rank, terms)
}

/// Returns the header that gives a request all rights of this user.
pub fn authorization() -> String {
    format!("Bearer {}", Credential::find().unwrap().token(Right::Operate, ALL_JOBS))
}

/// Posts a body of any kind to the control port. Returns the status and the body of the reply.
pub fn post(hub: &Hub, path: &str, body: impl AsRef<[u8]>) -> (u16, String) {
    post_as(hub, path, &authorization(), body)
}

/// Returns the header with which another hub of the job proves a request.
pub fn as_hub(job: &str) -> String {
    format!("Bearer {}", Credential::find().unwrap().token(Right::Peer, job))
}

/// Posts as a client that shows this authorization.
pub fn post_as(hub: &Hub, path: &str, shown: &str, body: impl AsRef<[u8]>) -> (u16, String) {
    let url = format!("http://{}{path}", hub.address());
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let post = agent.post(&url).header("authorization", shown);
    let mut answer = post.send(body.as_ref()).unwrap_or_else(|e| panic!("{url}: {e}"));
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

/// Posts as the member of the job with this token. Returns the status and the body of the reply.
pub fn post_as_member(
    hub: &Hub,
    job: &str,
    verb: &str,
    token: &str,
    body: impl AsRef<[u8]>,
) -> (u16, String) {
    post_as(hub, &format!("/v1/jobs/{job}/{verb}"), &format!("Phub-Member {token}"), body)
}

/// Sends a state as the member with this token. Returns the status and the body of the reply.
pub fn bring(hub: &Hub, job: &str, token: &str, state: Vec<u8>) -> (u16, String) {
    post_as_member(hub, job, "state", token, state)
}

/// Works like [`post_as_member`], with a request that the hub must refuse. Returns the status and the error.
pub fn refusal_of_member(
    hub: &Hub,
    job: &str,
    verb: &str,
    token: &str,
    body: impl AsRef<[u8]>,
) -> (u16, String) {
    let (status, body) = post_as_member(hub, job, verb, token, body);
    let reply: ErrorReply = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{verb}: {e}: {body}"));
    (status, reply.error)
}

/// Lets the member with this token leave. Returns the status.
pub fn leave_by_hand(hub: &Hub, job: &str, token: &str) -> u16 {
    post_as_member(hub, job, "leave", token, r#"{"round": 0}"#).0
}

/// Posts JSON to the control port.
pub fn post_json(hub: &Hub, path: &str, body: &impl Serialize) -> (u16, String) {
    post(hub, path, serde_json::to_vec(body).unwrap())
}

/// Posts a request that the hub must refuse. Returns the status and the error. Every refusal is JSON with an
/// `error` and a code that determines the status.
pub fn refusal(hub: &Hub, path: &str, body: impl AsRef<[u8]>) -> (u16, String) {
    let (status, body) = post(hub, path, body);
    assert!(status >= 400, "{path} was granted: {body}");
    let reply: ErrorReply = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{path}: {e}: {body}"));
    assert_eq!(status, reply.code.status(), "{path}: {}", reply.code);
    (status, reply.error)
}

/// Joins by plain HTTP, without a session.
pub fn join_by_hand(hub: &Hub, job: &str, request: &JoinRequest) -> JoinReply {
    let (status, body) = post_json(hub, &format!("/v1/jobs/{job}/join"), request);
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Returns the address of the hub's shared memory for a worker that joined by hand.
pub fn shm_address(reply: &JoinReply) -> &str {
    let shm = |each: &'_ _| matches!(each, TransportAddress::Shm { .. });
    match reply.transports.iter().find(|each| shm(each)) {
        Some(TransportAddress::Shm { address, .. }) => address,
        _ => panic!("a hub offers shared memory: {reply:?}"),
    }
}

/// Returns the hub's description of itself on its control port.
pub fn describe(hub: &str) -> HubReply {
    let get = ureq::get(format!("http://{hub}/v1/hub")).header("authorization", authorization());
    get.call().unwrap().body_mut().read_json().unwrap()
}

pub const FIRST: KeyId = KeyId(0);
pub const SECOND: KeyId = KeyId(1);
pub const THIRD: KeyId = KeyId(2);
