//! Compressed jobs of a real hub: the bits of a plain model by every way, workers that come and go, checkpoints, how
//! many bytes cross, and workers whose frames lie. By RDMA, too, where `PHUB_TEST_DEVICE` names devices.

use std::sync::Arc;
use std::time::Duration;

use fabric::any::{self, Address, Transport};
use fabric::conformance::Watchdog;
use fabric::verbs::{self, NicOptions};
use fabric::{Port as _, Posted, SendWindow, Until};
use half::f16;
use hub_tests::model::CODECS;
use hub_tests::training::Training;
use hub_tests::values::{self, bits, same_bits};
use hub_tests::{
    config, describe, has_rdma, hub, join_by_hand, join_request, push_all, ready_all, refused, says,
    settings, wires,
};
use pbox_core::control::{JobState, JoinRequest, OnLoss, TransportAddress};
use pbox_core::frame::{HEADER_BYTES, Kind, write_header};
use pbox_core::{
    ChunkId, Consistency, Dtype, Frames, Immediate, Key, Layout, Optimizer, Placement, Round, Schedule,
};
use phub_server::Hub;
use worker_shim::{Credit, Session, SessionConfig, WeightsMode};

const NESTEROV: Optimizer = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 1e-4, momentum: 0.9 };
const TIMEOUT: Duration = Duration::from_secs(30);

fn keys() -> Vec<Key> {
    vec![
        Key::f32("a", [3, 400]),
        Key::of(Dtype::BF16, "b", [300]),
        Key::f32("c", [1]),
        Key::of(Dtype::F16, "d", [70]),
    ]
}

fn training(job: &str, codec: &str) -> Training {
    let mut training = Training::new(format!("{job}-{}", codec.replace(':', "-")), keys(), NESTEROV);
    (training.chunk_bytes, training.compression) = (256, Some(codec.parse().unwrap()));
    training
}

#[test]
fn the_bits_are_those_of_a_plain_model_by_every_way() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    for codec in CODECS {
        let run = |job: &str, change: &dyn Fn(&mut Training)| {
            let mut training = training(job, codec);
            change(&mut training);
            training.run(&address)
        };
        let shm = run("shm", &|training| training.transport = |_| Some(Transport::Shm));
        let mixed = |rank| Some(if rank % 2 == 0 { Transport::Tcp } else { Transport::Shm });
        assert_eq!(run("tcp", &|training| training.transport = |_| Some(Transport::Tcp)), shm, "{codec}");
        assert_eq!(run("mixed", &|training| training.transport = mixed), shm, "{codec}");
        for schedule in Schedule::ALL {
            let scheduled = run(&format!("{schedule}"), &|training| {
                (training.schedule, training.credit) = (schedule, Some(Credit::Bytes(100)));
            });
            assert_eq!(scheduled, shm, "{codec}, {schedule}");
        }
        run("mean", &|training| training.optimizer = Optimizer::Average);
    }
}

/// A test of its own: an emulated guest needs as long for all of the one above as for everything else.
#[test]
fn by_rdma_the_bits_are_those_of_a_plain_model() {
    if !has_rdma() {
        return;
    }
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    for codec in CODECS {
        let mut rdma = training("verbs", codec);
        rdma.transport = |_| Some(Transport::Verbs);
        let mut mixed = training("mixed", codec);
        mixed.transport = |rank| Some(Transport::ALL[rank as usize % 3]);
        (mixed.schedule, mixed.credit) = (Schedule::P3, Some(Credit::Bytes(100)));
        assert_eq!(mixed.run(&address), rdma.run(&address), "{codec}");
    }
}

#[test]
fn a_compressed_job_over_two_hubs() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(2)];
    let address = hubs.each_ref().map(|hub| hub.address().to_string()).join(",");
    for codec in ["bf16", "topk:0.1"] {
        assert_eq!(
            training("job", codec).run(&address),
            training("job", codec).run(&hubs[1].address().to_string())
        );
    }
}

/// What a round costs on the wire, by the codec's own table.
#[test]
fn fewer_bytes_cross() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let codecs = [("none", 1.0), ("bf16", 0.51), ("qsgd:4:512", 0.14), ("topk:0.01", 0.03)];
    for (transport, (codec, share)) in wires().into_iter().flat_map(|wire| codecs.map(|codec| (wire, codec)))
    {
        let mut sessions = ready_all(2, |rank| {
            let mut config = config(&hub, &format!("{transport}-{}", codec.replace(':', "-")), rank, 2);
            config.keys = vec![Key::f32("a", [64 << 10])];
            config.chunk_bytes = 32 << 10;
            config.transport = Some(transport);
            config.compression = codec.parse().ok();
            config
        });
        let before = sessions[0].traffic();
        for session in &mut sessions {
            let gradient = session.gradient_mut::<f32>(hub_tests::FIRST).unwrap();
            gradient.iter_mut().enumerate().for_each(|(i, value)| *value = (i % 1000) as f32 - 500.0);
            session.push(hub_tests::FIRST).unwrap();
        }
        sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
        let now = sessions[0].traffic();
        let whole = (4 * (64 << 10)) as f64;
        let (sent, received) = ((now.sent - before.sent) as f64, (now.received - before.received) as f64);
        assert!(
            sent <= share * whole && received <= 2.0 * share * whole,
            "{codec} by {transport}: {sent} and {received} bytes"
        );
        assert!(sent > 0.3 * share * whole, "{codec} by {transport}: {sent} bytes are too few to be true");
        assert_eq!(
            before.sent as f64,
            if codec == "none" { whole } else { whole + 8.0 * 8.0 },
            "the broadcast"
        );
    }
}

#[test]
fn what_is_not_finite_is_counted() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        config.compression = Some("qsgd:8".parse().unwrap());
        config
    });
    let session = &mut sessions[0];
    let gradient = session.gradient_mut::<f32>(hub_tests::FIRST).unwrap();
    (gradient[3], gradient[40]) = (f32::NAN, f32::INFINITY);
    push_all(session).unwrap();
    session.wait_all().unwrap();
    assert_eq!(session.not_finite(), 2);
    assert!(session.weights::<f32>(hub_tests::FIRST).unwrap().iter().all(|weight| weight.is_finite()));
}

/// Gradients that overflow, as a loss scale that is too large makes them: the round shows it, the next one is whole.
#[test]
fn a_mean_that_overflows_does_so_for_one_round() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut config = config(&hub, "job", 0, 1);
    config.optimizer = Optimizer::Average;
    config.keys = vec![Key::of(Dtype::F16, "a", [100])];
    config.compression = Some("bf16".parse().unwrap());
    let mut session = Session::join(config).unwrap();
    for (pushed, mean) in [(f16::INFINITY, f32::INFINITY), (f16::ONE, 1.0)] {
        session.gradient_mut::<f16>(hub_tests::FIRST).unwrap().fill(pushed);
        push_all(&mut session).unwrap();
        session.wait_all().unwrap();
        let weights = session.weights::<f16>(hub_tests::FIRST).unwrap();
        assert!(weights.iter().all(|weight| weight.to_f32() == mean), "{weights:?}");
    }
}

fn until_members(session: &Session, expected: &[u32]) {
    while session.members() != expected {
        std::thread::yield_now();
    }
}

/// Pushes what the session's rank and round say, and waits; all must have the same bits then.
fn round(sessions: &mut [(u32, Session)]) {
    for (rank, session) in sessions.iter_mut() {
        let round = session.next_round().0;
        for key in session.keys() {
            values::fill_gradient(5, *rank, round, key, session.gradient_mut(key).unwrap());
        }
        push_all(session).unwrap();
    }
    sessions.iter_mut().for_each(|(_, session)| session.wait_all().unwrap());
    all_have_the_same(sessions);
}

fn all_have_the_same(sessions: &[(u32, Session)]) {
    let seen = |session: &Session| -> Vec<Vec<u32>> {
        session.keys().map(|key| bits(session.weights(key).unwrap())).collect()
    };
    let first = seen(&sessions[0].1);
    for (rank, session) in sessions {
        assert_eq!(seen(session), first, "rank {rank} has what the others have");
    }
}

#[test]
fn workers_come_and_go_and_all_have_the_same_weights() {
    let _watchdog = Watchdog::start();
    for transport in [Transport::Shm].into_iter().chain(wires()) {
        for codec in ["bf16", "qsgd:4", "topk:0.1"] {
            let hub = hub(2);
            let config = |rank| {
                let mut config = config(&hub, "job", rank, 3);
                (config.on_loss, config.transport) = (OnLoss::Continue, Some(transport));
                config.compression = Some(codec.parse().unwrap());
                config
            };
            let mut sessions: Vec<(u32, Session)> = (0..).zip(ready_all(3, config)).collect();
            round(&mut sessions);
            drop(sessions.remove(1));
            until_members(&sessions[0].1, &[0, 2]);
            round(&mut sessions);
            round(&mut sessions);
            let back = Session::join(config(1)).unwrap();
            assert_eq!(back.next_round(), Round(4));
            sessions.push((1, back));
            all_have_the_same(&sessions);
            round(&mut sessions);
            // In a round: the newcomer is sent each chunk when the others are.
            for (_, session) in &mut sessions[..2] {
                push_all(session).unwrap();
            }
            drop(sessions.pop());
            until_members(&sessions[0].1, &[0, 2]);
            sessions.iter_mut().for_each(|(_, session)| session.wait_all().unwrap());
            all_have_the_same(&sessions);
            round(&mut sessions);
        }
    }
}

/// With SSP and ASP pushes are coded and answers raw: alone, a worker's rounds are those of BSP.
#[test]
fn workers_apart_are_sent_their_weights_whole() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for consistency in [Consistency::Ssp { staleness: 2 }, Consistency::Asp] {
        let mut config = config(&hub, &consistency.to_string().replace(':', "-"), 0, 1);
        (config.consistency, config.compression) = (consistency, Some("topk:0.5".parse().unwrap()));
        config.keys = vec![Key::f32("a", [4])];
        let mut session = Session::join(config).unwrap();
        session.broadcast_weights::<f32>(|_, weights| weights.fill(1.0)).unwrap();
        // Half of them are sent; what is left out is sent when nothing is larger. The learning rate is 1/2.
        for (gradient, expected) in [
            ([4.0, 0.0, 1.0, 4.0], [-1.0, 1.0, 1.0, -1.0]),
            ([4.0, 0.0, 1.0, 4.0], [-3.0, 1.0, 1.0, -3.0]),
            ([0.0; 4], [-3.0, 1.0, 0.0, -3.0]),
        ] {
            session.gradient_mut(hub_tests::FIRST).unwrap().copy_from_slice(&gradient);
            session.push(hub_tests::FIRST).unwrap();
            session.wait_all().unwrap();
            assert_eq!(session.weights::<f32>(hub_tests::FIRST).unwrap(), expected);
        }
        session.leave().unwrap();
    }
}

#[test]
fn a_job_goes_on_from_a_checkpoint_with_the_hubs_weights() {
    let _watchdog = Watchdog::start();
    for codec in ["bf16", "topk:0.1"] {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = settings(2, hub_tests::PATIENT_S);
        settings.checkpoints = Some(dir.path().to_owned());
        let training = training("job", codec);
        let mut model = training.model(training.compression.unwrap());
        let mut done = 0;
        for life in 0..3 {
            let hub = Hub::start(&settings).unwrap();
            let address = hub.address().to_string();
            let mut expected = vec![model.all_weights()];
            for round in done..done + 4 {
                training.advance(&mut model, round);
                expected.push(model.all_weights());
            }
            hub_tests::together(training.workers, |rank| {
                let mut session = Session::join(training.config(&address, rank)).unwrap();
                training.broadcast(&mut session, rank).unwrap();
                assert_eq!(session.next_round(), Round(done + 1));
                for (round, expected) in (done..).zip(&expected) {
                    for key in session.keys() {
                        let what = format!("{codec}, life {life}, before round {round}, key {}", key.0);
                        same_bits(what, &training.read(&session, key), &expected[key.index()]);
                        if round < done + 4 {
                            training.write(&mut session, key, |gradient| {
                                values::fill_gradient(training.seed, rank, round, key, gradient);
                            });
                        }
                    }
                    if round < done + 4 {
                        push_all(&mut session).unwrap();
                        session.wait_all().unwrap();
                    }
                }
                session.leave().unwrap();
            });
            hub.stop("the test is done with it");
            done += 4;
            model.restart();
        }
    }
}

#[test]
fn workers_must_ask_for_the_same_and_for_what_there_is() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let first = JoinRequest { compression: Some("topk:0.01".parse().unwrap()), ..join_request(0, 2) };
    join_by_hand(&hub, "job", &first);
    let ask = |compression: &str, seed| {
        let mut config = config(&hub, "job", 1, 2);
        (config.compression, config.seed) = (compression.parse().ok(), seed);
        refused(config)
    };
    says(ask("none", 0), &["compression topk:0.01", "worker 1 asks for none"]);
    says(ask("topk:0.02", 0), &["compression topk:0.01", "asks for topk:0.02"]);
    says(ask("topk:0.01", 1), &["seed 0", "asks for 1"]);
    let mut wrong = config(&hub, "other", 0, 1);
    let json = r#"{"codec":"qsgd","bits":9}"#;
    wrong.compression = Some(serde_json::from_str(json).unwrap());
    says(refused(wrong), &["this worker's compression", "bits is 9"]);
    let request = serde_json::to_value(join_request(0, 1)).unwrap();
    let mut request = request.as_object().unwrap().clone();
    request.insert("compression".into(), serde_json::from_str(json).unwrap());
    let (status, why) =
        hub_tests::refusal(&hub, "/v1/jobs/other/join", serde_json::to_vec(&request).unwrap());
    assert_eq!(status, 400, "{why}");
    says(why, &["compression", "bits is 9"]);
}

/// A worker's part of RDMA, on all NICs.
fn rdma() -> any::Rdma {
    let nics: Vec<_> = verbs::devices().unwrap().iter().map(|nic| NicOptions::new(&nic.name)).collect();
    let (group, port) = verbs::worker_group(&nics).unwrap();
    (group, vec![port])
}

/// Rank 0 of a job of two, by hand, on any transport.
struct Liar {
    placement: Placement,
    port: any::Port,
    links: Vec<fabric::LinkId>,
    frames: fabric::Spans,
    rooms: Vec<Frames>,
    _group: any::Group,
    _windows: (Arc<SendWindow>, Arc<fabric::RecvWindow>),
}

const CODEC: &str = "topk:0.25";

fn liars_config(hub: &Hub, rank: u32) -> SessionConfig {
    let mut config = config(hub, "liar", rank, 2);
    config.compression = Some(CODEC.parse().unwrap());
    config.weights = WeightsMode::Private;
    config
}

impl Liar {
    fn join(hub: &Hub, transport: Transport) -> Self {
        let request = JoinRequest { compression: Some(CODEC.parse().unwrap()), ..join_request(0, 2) };
        let reply = join_by_hand(hub, "liar", &request);
        let layout = Arc::new(Layout::new(hub_tests::small_model(), 64).unwrap());
        let wire = request.wire(Arc::clone(&layout));
        let placement = Placement::new(&layout, reply.cores.len());
        let chunks = || (0..layout.chunks().len() as u32).map(ChunkId);
        let window = SendWindow::new(wire.window_bytes()).unwrap();
        let (window, mut frames) =
            window.split(vec![chunks().map(|chunk| wire.span(chunk)).collect()]).unwrap();
        let rdma = (transport == Transport::Verbs).then(rdma);
        let (group, mut ports) = any::group(1, rdma).unwrap();
        let offer = reply.transports.iter().find(|offer| offer.transport() == transport);
        let address = match offer.expect("the hub offers it") {
            TransportAddress::Shm { address, .. } => Address::Shm(address.clone()),
            TransportAddress::Verbs { address } => Address::Verbs(*address),
            TransportAddress::Tcp { addresses } => Address::Tcp(addresses.clone()),
        };
        let token = u128::from_str_radix(&reply.token, 16).unwrap().to_be_bytes();
        let capacities = placement.capacities();
        let joined =
            any::connect(&address, token, &group, &window, window.bytes(), &capacities, TIMEOUT).unwrap();
        let mut port = ports.remove(0);
        let links = joined.endpoints.into_iter().map(|endpoint| port.attach(endpoint)).collect();
        let rooms = chunks().map(|chunk| *wire.framing().unwrap().frames(chunk)).collect();
        while !matches!(describe(&hub.address().to_string()).jobs[0].state, JobState::Running) {
            std::thread::yield_now();
        }
        let (frames, _windows) = (frames.remove(0), (window, joined.recv));
        Liar { placement, port, links, frames, rooms, _group: group, _windows }
    }

    /// Posts what `write` makes of a chunk's frames.
    fn post(&mut self, chunk: u32, round: u32, write: impl FnOnce(&Frames, &mut [u8])) {
        let chunk = ChunkId(chunk);
        let room = self.rooms[chunk.index()];
        write(&room, self.frames.elements_mut(chunk.index()));
        let imm = Immediate::new(chunk, Round(round)).encode();
        let link = self.links[self.placement.owner(chunk)];
        assert_eq!(self.port.post(link, room.span, imm), Posted::Accepted);
        self.port.flush();
    }

    /// The broadcast, as it should be.
    fn broadcast(&mut self) {
        let chunks = self.rooms.len() as u32;
        (0..chunks).for_each(|chunk| self.post(chunk, 0, |room, bytes| room.begin_raw(bytes).fill(0)));
        let mut answers = 0;
        while answers < chunks as usize {
            answers += self.port.poll(&mut [fabric::Arrival::default(); 64]);
            self.port.wait(Until::Any, Duration::from_millis(100));
        }
    }
}

/// What the other worker is told of one that lies.
fn told(transport: Transport, lie: impl FnOnce(&mut Liar)) -> String {
    let hub = hub(2);
    std::thread::scope(|scope| {
        let victim = scope.spawn(|| {
            // It hears of the lie wherever it is: a liar may be quicker than a join.
            let joined = Session::join(liars_config(&hub, 1));
            let worked = joined.and_then(|mut victim| {
                victim.broadcast_weights::<f32>(|_, _| ())?;
                push_all(&mut victim)?;
                victim.wait_all()
            });
            worked.unwrap_err().to_string()
        });
        let mut liar = Liar::join(&hub, transport);
        lie(&mut liar);
        let error = victim.join().expect("the victim gets an error");
        says(&error, &["\"liar\" failed", "worker 0 is gone"]);
        // The core lives.
        let mut after = Training::new("after", hub_tests::small_model(), hub_tests::SGD);
        after.chunk_bytes = 64;
        after.run(&hub.address().to_string());
        error
    })
}

#[test]
fn workers_whose_frames_lie_lose_their_links() {
    let _watchdog = Watchdog::start();
    for transport in [Transport::Shm].into_iter().chain(wires()) {
        let error = told(transport, |liar| {
            liar.post(3, 0, |_, bytes| write_header(bytes, Kind::Coded, 4));
        });
        says(error, &["pushed chunk 3 for round 0", "neither raw nor coded", "expected raw"]);
        let error = told(transport, |liar| {
            liar.post(3, 0, |room, bytes| {
                room.begin_raw(bytes);
                write_header(&mut bytes[room.coded_bytes..], Kind::Raw, 63);
            });
        });
        says(error, &["pushed chunk 3 for round 0", "63 bytes of payload, where the chunk has 64"]);
        let error = told(transport, |liar| {
            liar.broadcast();
            liar.post(5, 1, |_, bytes| write_header(bytes, Kind::Coded, usize::from(u16::MAX)));
        });
        says(error, &["pushed chunk 5 for round 1", "65535 bytes of payload, where there is room for"]);
        let error = told(transport, |liar| {
            liar.broadcast();
            liar.post(5, 1, |_, bytes| {
                write_header(bytes, Kind::Coded, 20);
                bytes[HEADER_BYTES..][..20].fill(0xff);
            });
        });
        says(error, &["pushed chunk 5 for round 1", "its frame holds"]);
    }
}
