//! Hostile workers on the data path: members with a token of their own that push what no session
//! pushes. Each loses its link, its job is told who it was and what it did, and a job beside it goes
//! on with right bits.

use std::sync::Arc;
use std::time::Duration;

use fabric::conformance::Watchdog;
use fabric::{Port as _, Posted, SendWindow, Until, shm};
use hub_tests::training::Training;
use hub_tests::{config, hub, join_by_hand, join_request, post_json, says, shm_address};
use pbox_core::control::{HeartbeatReply, HeartbeatRequest, JobState, JoinReply};
use pbox_core::{ChunkId, Immediate, Layout, Placement, Round};
use phub_server::Hub;
use worker_shim::Session;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Rank 0 of a job of two, by hand.
struct Hostile {
    reply: JoinReply,
    layout: Layout,
    placement: Placement,
    port: shm::Port,
    links: Vec<fabric::LinkId>,
    _group: Arc<shm::Group>,
    gradient: fabric::Spans,
    _windows: (Arc<SendWindow>, fabric::RecvWindow),
}

fn token(reply: &JoinReply) -> [u8; 16] {
    u128::from_str_radix(&reply.token, 16).unwrap().to_be_bytes()
}

impl Hostile {
    fn join(hub: &Hub) -> Self {
        let reply = join_by_hand(hub, "hostile", &join_request(0, 2));
        Self::connect(reply).unwrap()
    }

    fn connect(reply: JoinReply) -> Result<Self, shm::ConnectError> {
        let layout = Layout::new(hub_tests::small_model(), 64).unwrap();
        let placement = Placement::new(&layout, reply.cores.len());
        let (group, mut ports) = shm::group(1).unwrap();
        let spans = layout.chunks().iter().map(|chunk| chunk.span).collect();
        let window = SendWindow::new(layout.window_bytes()).unwrap();
        let (window, mut spans) = window.split(vec![spans]).unwrap();
        let address = shm_address(&reply);
        let bytes = layout.window_bytes();
        let joined =
            shm::connect(address, token(&reply), &group, &window, bytes, &placement.capacities(), TIMEOUT)?;
        let mut port = ports.remove(0);
        let links = joined.endpoints.into_iter().map(|endpoint| port.attach(endpoint)).collect();
        let (gradient, _windows) = (spans.remove(0), (window, joined.recv));
        Ok(Hostile { reply, layout, placement, port, links, _group: group, gradient, _windows })
    }

    fn owner(&self, chunk: u32) -> usize {
        self.placement.owner(ChunkId(chunk))
    }

    /// Posts any immediate to any core.
    fn post(&mut self, core: usize, chunk: u32, round: u32) {
        let span = self.layout.chunk(ChunkId(0)).span;
        let imm = Immediate::new(ChunkId(chunk), Round(round)).encode();
        assert_eq!(self.port.post(self.links[core], span, imm), Posted::Accepted);
        self.port.flush();
    }

    /// Waits until all workers of the job are there.
    fn gathered(&self, hub: &Hub) {
        let mut seen = 0;
        loop {
            let request = HeartbeatRequest { token: self.reply.token.clone(), seen };
            let (status, news) = post_json(hub, "/v1/jobs/hostile/heartbeat", &request);
            assert_eq!(status, 200, "{news}");
            let news: HeartbeatReply = serde_json::from_str(&news).unwrap();
            match news.state {
                JobState::Gathering { .. } => seen = news.version,
                JobState::Running => return,
                JobState::Failed { reason } => panic!("failed before the attack: {reason}"),
            }
        }
    }

    /// Waits until the hub has closed all links.
    fn cut_off(&mut self) {
        while !self.links.is_empty() {
            while let Some(closed) = self.port.closed() {
                self.links.retain(|&link| link != closed.link);
            }
            self.port.poll(&mut [fabric::Arrival::default(); 64]);
            self.port.wait(Until::Any, Duration::from_millis(100));
        }
    }
}

/// A worker that writes its gradients while the hub reads them: its own job has values that nobody
/// meant, which every f32 is; nothing else happens.
#[test]
fn a_gradient_that_is_written_while_it_is_read() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let address = hub.address().to_string();
    const ROUNDS: u32 = 300;
    let mut beside = Training::new("beside", hub_tests::small_model(), hub_tests::SGD);
    (beside.chunk_bytes, beside.rounds) = (64, 200);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| beside.run(&address));
        let victim = scope.spawn(|| {
            let mut victim = Session::join(config(&hub, "hostile", 1, 2)).unwrap();
            victim.broadcast_weights(|_, _: &mut [f32]| ()).unwrap();
            for _ in 1..ROUNDS {
                hub_tests::push_all(&mut victim).unwrap();
                victim.wait_all().unwrap();
            }
            victim // its end would be the end of the job
        });
        let mut hostile = Hostile::join(&hub);
        hostile.gathered(&hub);
        let chunks = hostile.layout.chunks().len() as u32;
        for round in 0..ROUNDS {
            for chunk in 0..chunks {
                let core = hostile.owner(chunk);
                hostile.post(core, chunk, round);
            }
            let mut answers = 0;
            while answers < chunks as usize {
                // Every bit pattern, NaN among them, until the round is over.
                let bits = 0x7f80_0001u32.wrapping_mul(round + answers as u32 + 1);
                for chunk in 0..chunks as usize {
                    hostile.gradient.f32_mut(chunk).fill(f32::from_bits(bits));
                }
                answers += hostile.port.poll(&mut [fabric::Arrival::default(); 64]);
            }
        }
        drop(victim.join().expect("the victim's rounds end"));
        beside.join().expect("the job beside has right bits");
    });
    let mut training = Training::new("after", hub_tests::small_model(), hub_tests::SGD);
    training.chunk_bytes = 64;
    training.run(&address);
}

/// A hostile worker, its victim and a job beside them; what the victim is told.
fn attack(hub: &Hub, violate: impl FnOnce(&mut Hostile)) -> String {
    let address = hub.address().to_string();
    let mut beside = Training::new("beside", hub_tests::small_model(), hub_tests::SGD);
    (beside.chunk_bytes, beside.rounds) = (64, 100);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| beside.run(&address));
        let victim = scope.spawn(|| {
            // It hears of the attack wherever it is: an attacker may be quicker than a join.
            let joined = Session::join(config(hub, "hostile", 1, 2));
            let error =
                joined.and_then(|mut victim| victim.broadcast_weights(|_, _: &mut [f32]| ())).unwrap_err();
            error.to_string()
        });
        let mut hostile = Hostile::join(hub);
        hostile.gathered(hub);
        violate(&mut hostile);
        hostile.cut_off();
        beside.join().expect("the job beside goes on");
        let error = victim.join().expect("the victim gets an error");
        says(&error, &["\"hostile\" failed", "worker 0 is gone"]);
        error
    })
}

#[test]
fn a_chunk_that_does_not_exist() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for chunk in [13, 1000, pbox_core::MAX_CHUNKS - 1] {
        let error = attack(&hub, |hostile| hostile.post(0, chunk, 0));
        says(error, &[&format!("chunk {chunk}"), "does not own", "13 chunks"]);
    }
}

#[test]
fn a_chunk_twice_in_a_round() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let error = attack(&hub, |hostile| {
        let core = hostile.owner(3);
        hostile.post(core, 3, 0);
        hostile.post(core, 3, 0);
    });
    // If the victim's push of the chunk came in between, the second one is a push of an old round.
    assert!(
        ["chunk 3 twice in round 0", "chunk 3 for a round that ends in 0, but round 1"]
            .iter()
            .any(|words| error.contains(words)),
        "{error}"
    );
}

#[test]
fn a_chunk_of_another_core() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    if hub_tests::describe(&hub.address().to_string()).cores.len() < 2 {
        return eprintln!("this machine has one cpu: there is no other core");
    }
    let error = attack(&hub, |hostile| {
        let core = 1 - hostile.owner(5);
        hostile.post(core, 5, 0);
    });
    says(error, &["chunk 5", "link of a core that does not own it"]);
}

#[test]
fn a_chunk_of_another_round() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for round in [1, 255] {
        let error = attack(&hub, |hostile| {
            let core = hostile.owner(7);
            hostile.post(core, 7, round);
        });
        says(error, &["chunk 7", &format!("ends in {round}"), "round 0", "in flight"]);
    }
}

#[test]
fn a_link_that_hangs_up() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let error = attack(&hub, |hostile| {
        let link = hostile.links.remove(0);
        hostile.port.detach(link);
    });
    says(error, &["closed the link, exited or was killed"]);
}

#[test]
fn a_token_that_nobody_was_given() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let good = join_by_hand(&hub, "hostile", &join_request(0, 2));
    let bad = JoinReply { token: "0".repeat(32), ..good };
    says(Hostile::connect(bad).map(|_| ()).unwrap_err(), &["refused", "token", "join first"]);
}

/// Two connections with one token would be two links of one rank.
#[test]
fn a_token_used_twice() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let first = Hostile::join(&hub);
    let again = Hostile::connect(first.reply.clone());
    says(again.map(|_| ()).unwrap_err(), &["refused", "worker 0", "\"hostile\"", "connected already"]);
    drop(first);
    // The cores live.
    let mut training = Training::new("after", hub_tests::small_model(), hub_tests::SGD);
    training.chunk_bytes = 64;
    training.run(&hub.address().to_string());
}
