//! Readers of a job can get only its weights, or only their averages. These tensors have the same bits as in
//! the whole state.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use authority::Credential;
use checkpoint_file::{Base, ValuesFrom, decode_as};
use fabric::conformance::Watchdog;
use half::bf16;
use hub_tests::program::until;
use hub_tests::state::{fetch, fetch_only};
use hub_tests::training::Training;
use hub_tests::{PATIENT_S, addresses, authorization, describe, hub, says};
use membership::Values;
use pbox_core::control::{ErrorReply, Followed, Only, ReadersReply, RefusalCode, StateQuery};
use pbox_core::{Dtype, Key, Optimizer, Round};
use phub_server::Hub;
use worker_shim::Session;

use super::checkpoint::hub_every;
use super::state::train_to;

const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.1, weight_decay: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };

const PATIENT: Duration = Duration::from_secs(PATIENT_S);

/// Returns the round of a checkpoint file, and the bytes of each tensor.
fn tensors(file: &[u8]) -> (String, BTreeMap<String, &[u8]>) {
    let data = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut said: serde_json::Map<_, _> = serde_json::from_slice(&file[8..data]).unwrap();
    let about = said.remove("__metadata__").unwrap();
    let bytes = |entry: &serde_json::Value| {
        let [begin, end] = [0, 1].map(|at| data + entry["data_offsets"][at].as_u64().unwrap() as usize);
        &file[begin..end]
    };
    let tensors = said.iter().map(|(name, entry)| (name.clone(), bytes(entry))).collect();
    (about["round"].as_str().unwrap().to_owned(), tensors)
}

/// Returns the status and the error of a request for a state.
fn refused(hub: &str, query: &str) -> (u16, String) {
    let (status, reply) = refusal(hub, query);
    (status, reply.error)
}

fn refusal(hub: &str, query: &str) -> (u16, ErrorReply) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let get =
        agent.get(format!("http://{hub}/v1/jobs/job/state{query}")).header("authorization", authorization());
    let mut answer = get.call().unwrap();
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), serde_json::from_str(&text).unwrap())
}

/// Returns the tensors in the file of a hub's checkpoint before a round.
fn of_file(dir: &Path, before: &str) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let read = files.map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>();
    let (_, of) = read.iter().map(|file| tensors(file)).find(|(round, _)| round == before).unwrap();
    of.into_iter().map(|(name, bytes)| (name, bytes.to_vec())).collect()
}

/// Reads weights and averages, each alone, from a job that trains, and from the job after its hubs were
/// restarted.
fn has_them_alone(hubs: usize) {
    let mut keys = vec![Key::f32("a", [3000]), Key::f32("b", [1]), Key::f32("c", [70, 90])];
    (keys[1].dtype, keys[2].dtype) = (Dtype::F16, Dtype::BF16);
    let mut training = Training::new("job", keys, ADAM);
    (training.workers, training.chunk_bytes, training.ema) = (1, 1024, Some(0.9));
    let dirs: Vec<_> = (0..hubs).map(|_| tempfile::tempdir().unwrap()).collect();
    has_them_until(&training, &dirs, 4);
    has_them_until(&training, &dirs, 7);
}

/// Trains until round `last` has ended, from the checkpoint on if there is one, and reads the weights. Then the last
/// worker leaves, so the next checkpoint has the state that was read.
fn has_them_until(training: &Training, dirs: &[tempfile::TempDir], last: u32) {
    let all: Vec<_> = dirs.iter().map(|dir| hub_every(dir.path(), None)).collect();
    let address = addresses(&all);
    let mut session = Session::join(training.config(&address, 0)).unwrap();
    training.broadcast(&mut session, 0).unwrap();
    train_to(training, &mut session, 0, last);
    let mut read = Vec::new();
    for hub in address.split(',') {
        let whole = fetch(hub, "job", PATIENT).unwrap();
        let (round, whole) = tensors(&whole);
        assert_eq!(round, (last + 1).to_string());
        let belongs = |query: &str, name: &str| match query {
            "?only=weights" => !name.starts_with("optimizer/"),
            _ => name.starts_with("optimizer/ema/"),
        };
        for query in ["?only=weights", "?only=averages"] {
            let part = fetch_only(hub, "job", query, PATIENT).unwrap();
            let (of, part) = tensors(&part);
            let mut expected = whole.clone();
            expected.retain(|name, _| belongs(query, name));
            assert!(!expected.is_empty());
            assert_eq!((&of, &part), (&round, &expected), "{query}");
            let rounded = fetch_only(hub, "job", &format!("{query}&dtype=bf16"), PATIENT).unwrap();
            for (name, elements) in tensors(&rounded).1 {
                let values = expected[&name].as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
                let values = values.flat_map(|value| bf16::from_f32(value).to_le_bytes());
                assert!(values.eq(elements.iter().copied()), "{query} {name}");
            }
            read.push(
                part.into_iter().map(|(name, bytes)| (name, bytes.to_vec())).collect::<BTreeMap<_, _>>(),
            );
        }
        let (status, why) = refused(hub, "?only=everything");
        assert_eq!(status, 400);
        says(why, &["only=everything", "pairs joined by &: only=weights or only=averages"]);
    }
    session.leave().unwrap();
    let of_hub = dirs.iter().map(|dir| of_file(dir.path(), &(last + 1).to_string()));
    for (of_file, read) in of_hub.zip(read.chunks(2)) {
        let read = read.iter().flatten();
        read.for_each(|(name, bytes)| assert_eq!(of_file.get(name), Some(bytes), "{name}"));
    }
}

#[test]
fn weights_and_averages_come_alone_with_the_bits_of_the_whole_state() {
    let _watchdog = Watchdog::start();
    has_them_alone(1);
    has_them_alone(2);
}

#[test]
fn averages_of_a_job_that_keeps_none_are_refused_for_good() {
    let _watchdog = Watchdog::start();
    let mut training = Training::new("job", vec![Key::f32("a", [30])], ADAM);
    training.workers = 1;
    let hub = hub(1);
    let address = hub.address().to_string();
    let mut session = Session::join(training.config(&address, 0)).unwrap();
    training.broadcast(&mut session, 0).unwrap();
    let (status, why) = refused(&address, "?only=averages");
    assert_eq!(status, 400);
    says(why, &["job \"job\"", "keeps no averages of its weights; start the job with `ema`"]);
    session.leave().unwrap();
}

#[test]
fn the_state_before_a_round_that_is_named_comes_when_the_job_does() {
    let _watchdog = Watchdog::start();
    let mut training = Training::new("job", vec![Key::f32("a", [30, 7]), Key::f32("b", [1000])], ADAM);
    (training.workers, training.chunk_bytes) = (1, 256);
    let all: Vec<_> = (0..2).map(|_| hub(2)).collect();
    let address = addresses(&all);
    let mut session = Session::join(training.config(&address, 0)).unwrap();
    training.broadcast(&mut session, 0).unwrap();
    train_to(&training, &mut session, 0, 3);
    let hubs: Vec<&str> = address.split(',').collect();
    let ahead: Vec<_> = std::thread::scope(|scope| {
        let [second, first] = [(hubs[1], 8), (hubs[0], 6)].map(|(hub, round)| {
            scope.spawn(move || {
                fetch_only(hub, "job", &format!("?only=weights&before={round}"), PATIENT).unwrap()
            })
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!first.is_finished() && !second.is_finished(), "the rounds are ahead");
        for last in 4..=9 {
            train_to(&training, &mut session, 0, last);
        }
        [first, second].into_iter().map(|fetched| fetched.join().unwrap()).collect()
    });
    for (file, round) in ahead.iter().zip(["6", "8"]) {
        assert_eq!(tensors(file).0, round);
    }
    for hub in hubs {
        let (status, reply) = refusal(hub, "?before=9");
        assert_eq!((status, reply.code, reply.round), (409, RefusalCode::RoundPassed, Some(Round(10))));
        says(reply.error, &["the state before round 9 is gone, because the job has reached round 10"]);
        let (status, reply) = refusal(hub, "?before=1035");
        assert_eq!((status, reply.code, reply.round), (409, RefusalCode::RoundFar, Some(Round(10))));
        says(reply.error, &["round 1035 is too far ahead", "ask for at most 1024 rounds more"]);
        let (status, why) = refused(hub, "?only=weights&before=soon");
        assert_eq!(status, 400);
        says(why, &["before=soon", "before=ROUND"]);
        // The current state, by the number of its round.
        let now = fetch_only(hub, "job", "?before=10", PATIENT).unwrap();
        assert_eq!(tensors(&now).0, "10");
    }
    session.leave().unwrap();
}

/// A job whose states have 16 MB of weights each, and the job's hub.
struct Large {
    training: Training,
    hub: Hub,
    address: String,
    session: Session,
}

impl Large {
    fn start() -> Self {
        Large::with(ADAM)
    }

    fn with(optimizer: Optimizer) -> Self {
        let mut training = Training::new("job", vec![Key::f32("a", [1 << 22])], optimizer);
        training.workers = 1;
        let hub = hub(1);
        let address = hub.address().to_string();
        let mut session = Session::join(training.config(&address, 0)).unwrap();
        training.broadcast(&mut session, 0).unwrap();
        Large { training, hub, address, session }
    }

    fn readers(&self) -> ReadersReply {
        describe(&self.address).jobs[0].readers.unwrap_or_default()
    }

    /// Returns the connection of a slow reader. The hub has a copy of the weights for this reader, which has
    /// read no byte yet.
    fn slow(&self) -> TcpStream {
        let before = self.readers().reads;
        let mut slow = TcpStream::connect(self.hub.address()).unwrap();
        write!(
            slow,
            "GET /v1/jobs/job/state?only=weights HTTP/1.1\r\nhost: hub\r\nauthorization: {}\r\nconnection: close\r\n\r\n",
            authorization()
        )
        .unwrap();
        while self.readers().reads == before {
            std::thread::yield_now();
        }
        slow
    }

    fn train_to(&mut self, last: u32) {
        train_to(&self.training, &mut self.session, 0, last);
    }
}

fn read(address: &str) -> Vec<u8> {
    fetch_only(address, "job", "?only=weights", PATIENT).unwrap()
}

fn rest(mut slow: TcpStream) -> u64 {
    std::io::copy(&mut slow, &mut std::io::sink()).unwrap()
}

/// The hub has two copies of the weights, and two slow readers use both. All readers that arrive before a copy
/// is free again share the next copy.
#[test]
fn readers_that_wait_share_a_copy() {
    let _watchdog = Watchdog::start();
    const READERS: u64 = 12;
    let mut large = Large::start();
    let slow = [large.slow(), large.slow()];
    large.train_to(1);
    let address = &large.address;
    let files = std::thread::scope(|scope| {
        let all: Vec<_> = (0..READERS).map(|_| scope.spawn(|| read(address))).collect();
        assert_eq!(large.readers().reads, 2, "the others wait for the slow ones");
        slow.into_iter().for_each(|slow| assert!(rest(slow) > 4 << 22));
        all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(files.iter().all(|file| tensors(file).0 == "2"), "no copy is older than its request");
    until("the last read is done", || large.readers().done == 2 + READERS);
    let ReadersReply { reads, copies, bytes, refused: none, round, delay_ns, .. } = large.readers();
    assert!(delay_ns > 0);
    assert_eq!((reads, none, round), (2 + READERS, 0, Round(2)));
    // A request that arrives late, because the machine is busy, has its own copy.
    assert!((3..reads).contains(&copies), "{copies} copies for {reads} reads");
    assert!(bytes >= reads * (4 << 22), "{bytes} bytes");
    assert_eq!((refused(&large.address, "?only=averages").0, large.readers().refused), (400, 1));
    large.session.leave().unwrap();
}

/// Reads the weights as the readers of package `subscription` do: the hub learns that this process is the
/// reader.
fn follow(address: &str) {
    let query = StateQuery { only: Some(Only::Weights), ..StateQuery::default() };
    let credential = Credential::find_if_any().unwrap();
    let read = membership::fetch_state(address, "job", query, (Values::Sent, 4 << 22), credential.as_ref());
    std::io::copy(&mut read.unwrap().unwrap(), &mut std::io::sink()).unwrap();
}

/// The hub writes the values into the reader's memory, and sends only the header. If the hub cannot use the memory, it sends the same
/// bytes.
#[test]
fn a_reader_on_the_hubs_machine_gets_the_weights_in_its_memory() {
    let _watchdog = Watchdog::start();
    let large = Large::start();
    let credential = Credential::find_if_any().unwrap();
    let read = |values, dtype| {
        let query = StateQuery { only: Some(Only::Weights), dtype, ..StateQuery::default() };
        let state = membership::fetch_state(&large.address, "job", query, values, credential.as_ref());
        let mut state = state.unwrap().unwrap();
        let (bytes, memory, mut file) = (state.bytes().unwrap() as usize, state.take_values(), Vec::new());
        std::io::copy(&mut state, &mut file).unwrap();
        let is_in_memory = memory.is_some();
        if let Some(memory) = memory {
            let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            assert_eq!(file.len(), header, "no value is sent");
            file.extend(memory.as_slice().iter().flat_map(|value| value.to_le_bytes()).take(bytes - header));
        }
        assert_eq!(file.len(), bytes);
        (is_in_memory, file)
    };
    for dtype in Dtype::ALL {
        let (is_in_memory, sent) = read((Values::Sent, 1), dtype);
        assert!(!is_in_memory);
        assert_eq!(read((Values::InMemory(None), 5 << 22), dtype), (true, sent.clone()));
        assert_eq!(read((Values::InMemory(None), 1), dtype), (false, sent), "the reader lends too little");
    }
    until("all reads are done", || large.readers().done == 3 * Dtype::ALL.len() as u64);
    large.session.leave().unwrap();
}

/// A reader that asks for deltas gets deltas if its old state is one that the hub has sent to a reader. For
/// any other old state it gets the whole state.
#[test]
fn a_reader_with_an_older_state_gets_the_differences() {
    let _watchdog = Watchdog::start();
    // Together two deltas are shorter than the state only if the weights change little.
    let mut large = Large::with(Optimizer::Sgd { learning_rate: 1e-6, weight_decay: 0.0 });
    let credential = Credential::find_if_any().unwrap();
    let read = |large: &Large, base: Option<&Base>, dtype| {
        let query = StateQuery { only: Some(Only::Weights), dtype, ..StateQuery::default() };
        let values = (Values::Changed(base.map(Base::digest)), 5 << 22);
        let state = membership::fetch_state(&large.address, "job", query, values, credential.as_ref());
        let state = state.unwrap().unwrap();
        let (bytes, deltas) = (state.bytes().unwrap(), state.deltas());
        let from = match (deltas, base) {
            (Some(count), Some(base)) => ValuesFrom::Deltas(base.clone(), count),
            _ => ValuesFrom::File,
        };
        (deltas, decode_as(state, bytes, dtype, from).unwrap())
    };
    for dtype in Dtype::ALL {
        let round = large.session.next_round().0;
        let (none, first) = read(&large, None, dtype);
        large.train_to(round);
        let (one, second) = read(&large, Some(&first.base()), dtype);
        large.train_to(round + 1);
        let (two, third) = read(&large, Some(&first.base()), dtype);
        let (same, again) = read(&large, Some(&third.base()), dtype);
        assert_eq!((none, one, two, same), (None, Some(1), Some(2), Some(0)));
        // The whole state has the digest of all values, which was checked for each of these states.
        let (_, whole) = read(&large, None, dtype);
        assert_eq!(
            [&third, &again, &whole].map(|state| state.base().digest().to_owned()),
            [(); 3].map(|()| whole.base().digest().to_owned())
        );
        assert_ne!(second.base().digest(), whole.base().digest());
    }
    let (_, f32s) = read(&large, None, Dtype::F32);
    let (deltas, _) = read(&large, Some(&f32s.base()), Dtype::BF16);
    assert_eq!(deltas, None, "a state of another type is no base");
    let reads = 5 * Dtype::ALL.len() as u64 + 2;
    until("all reads are done", || large.readers().done == reads);
    let ReadersReply { bytes, saved, .. } = large.readers();
    assert!(saved > 0 && bytes + saved < reads * (5 << 22), "{bytes} bytes, {saved} saved");
    large.session.leave().unwrap();
}

/// The delta does not fit into the buffers of a connection, so the hub sends until the reader closes the connection.
#[test]
fn deltas_that_do_not_arrive_have_saved_nothing() {
    let _watchdog = Watchdog::start();
    let mut large = Large::start();
    let credential = Credential::find_if_any().unwrap();
    let ask = |large: &Large, base: Option<&Base>| {
        let query = StateQuery { only: Some(Only::Weights), ..StateQuery::default() };
        let values = (Values::Changed(base.map(Base::digest)), 5 << 22);
        let state = membership::fetch_state(&large.address, "job", query, values, credential.as_ref());
        state.unwrap().unwrap()
    };
    let first = ask(&large, None);
    let bytes = first.bytes().unwrap();
    let first = decode_as(first, bytes, Dtype::F32, ValuesFrom::File).unwrap();
    large.train_to(large.session.next_round().0);
    let deltas = ask(&large, Some(&first.base()));
    assert_eq!(deltas.deltas(), Some(1));
    drop(deltas);
    until("nobody reads", || large.readers().now == 0);
    assert_eq!((large.readers().done, large.readers().saved), (1, 0));
    large.session.leave().unwrap();
}

/// The process of this test is one follower. The other follower, at the same address, does not name its
/// process.
#[test]
fn the_newest_and_the_slowest_follower_are_known() {
    let _watchdog = Watchdog::start();
    let mut large = Large::start();
    let knows = |large: &Large, newest, slowest| {
        let followed = Some(Followed { newest: Round(newest), slowest: Round(slowest) });
        until("the hub knows its followers", || large.readers().followed == followed);
    };
    follow(&large.address);
    drop(read(&large.address));
    assert_eq!(large.readers().followed, None, "each has read once");
    follow(&large.address);
    knows(&large, 1, 1);
    large.train_to(3);
    follow(&large.address);
    knows(&large, 4, 4);
    drop(read(&large.address));
    large.train_to(5);
    follow(&large.address);
    knows(&large, 6, 4);
    drop(read(&large.address));
    knows(&large, 6, 6);
    large.session.leave().unwrap();
}

#[test]
fn a_slow_reader_holds_up_no_other_reader() {
    let _watchdog = Watchdog::start();
    let mut large = Large::start();
    let slow = large.slow();
    for round in 1..=3 {
        large.train_to(round);
        assert_eq!(tensors(&read(&large.address)).0, (round + 1).to_string());
    }
    assert!(large.readers().now >= 1, "the slow one has its copy");
    assert!(rest(slow) > 4 << 22, "it gets all of it");
    large.session.leave().unwrap();
}

/// Two readers that take nothing use the hub's two copies of the weights. The hub cuts off the older of these
/// readers for a third reader.
#[test]
fn readers_that_stand_still_are_cut_for_those_that_wait() {
    let _watchdog = Watchdog::start();
    let mut large = Large::start();
    let [older, newer] = [large.slow(), large.slow()];
    large.train_to(1);
    assert_eq!(tensors(&read(&large.address)).0, "2");
    assert!(rest(older) < 4 << 22, "the older one was cut");
    assert!(rest(newer) > 4 << 22);
    large.session.leave().unwrap();
}
