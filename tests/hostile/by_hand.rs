//! A worker by hand: a member of a job with its own token that posts messages which no session posts.
//! [`attack`] returns the error of the other worker.

use std::sync::Arc;
use std::time::Duration;

use fabric::any::{self, Address, Transport};
use fabric::verbs::{self, GroupOptions, NicOptions};
use fabric::{
    Arrival, LinkId, PlannedLink, Port as _, Posted, Receive, RecvWindow, SendWindow, Span, Spans, Until,
};
use hub_tests::{join_by_hand, post_as_member, push_all, says};
use pbox_core::control::{HeartbeatReply, JobState, JoinReply, JoinRequest, TransportAddress};
use pbox_core::{ChunkId, Layout, Placement, Round, Wire};
use phub_server::Hub;
use worker_shim::{Session, SessionConfig};

/// The job of every worker by hand.
pub const JOB: &str = "attacked";

const TIMEOUT: Duration = Duration::from_secs(30);

/// A connected worker by hand.
pub struct ByHand {
    pub reply: JoinReply,
    pub wire: Wire,
    pub placement: Placement,
    /// The parts of the gradient window, by chunk.
    pub gradient: Spans,
    pub port: any::Port,
    /// The links, by core.
    pub links: Vec<LinkId>,
    _group: any::Group,
    _windows: (Arc<SendWindow>, Arc<RecvWindow>),
}

impl ByHand {
    pub fn join(hub: &Hub, request: &JoinRequest, transport: Transport) -> Self {
        Self::connect(join_by_hand(hub, JOB, request), request, transport).unwrap()
    }

    /// Connects with the token of `reply`.
    pub fn connect(
        reply: JoinReply,
        request: &JoinRequest,
        transport: Transport,
    ) -> Result<Self, any::ConnectError> {
        let layout = Arc::new(Layout::new(request.terms.keys.clone(), request.terms.chunk_bytes).unwrap());
        let placement = Placement::new(&layout, reply.cores.len());
        let chunks = 0..layout.chunks().len() as u32;
        let wire = Wire::new(layout, &request.terms);
        let window = SendWindow::new(wire.gradient_window_bytes()).unwrap();
        let spans = chunks.map(|chunk| wire.gradient_span(ChunkId(chunk))).collect();
        let (window, mut spans) = window.split(vec![spans]).unwrap();
        let rdma = (transport == Transport::Verbs).then(all_nics);
        let (group, mut ports) = any::group(1, rdma).unwrap();
        let offer = reply.transports.iter().find(|offer| offer.transport() == transport);
        let address = match offer.expect("the hub offers it") {
            TransportAddress::Shm { address, .. } => Address::Shm(address.clone()),
            TransportAddress::Verbs { address } => Address::Verbs(*address),
            TransportAddress::Tcp { addresses } => Address::Tcp(addresses.clone()),
        };
        let token = authority::unhex(&reply.token).unwrap();
        let plan = PlannedLink::of_one_port(&placement.capacities());
        let joined = any::connect(
            &address,
            token,
            &group,
            &window,
            Receive::New(wire.weights_window_bytes()),
            &plan,
            TIMEOUT,
        )?;
        let mut port = ports.remove(0);
        let links = joined.endpoints.into_iter().map(|endpoint| port.attach(endpoint)).collect();
        let (gradient, _windows) = (spans.remove(0), (window, joined.recv));
        Ok(ByHand { reply, wire, placement, gradient, port, links, _group: group, _windows })
    }

    pub fn chunks(&self) -> u32 {
        self.wire.layout().chunks().len() as u32
    }

    pub fn owner(&self, chunk: u32) -> usize {
        self.placement.owner(ChunkId(chunk))
    }

    /// Posts any immediate to any core.
    pub fn post(&mut self, core: usize, span: Span, chunk: u32, round: u32) {
        let imm = self.wire.push(ChunkId(chunk), Round(round)).encode();
        assert_eq!(self.port.post(self.links[core], span, imm), Posted::Accepted);
        self.port.flush();
    }

    /// Takes in arrivals without waiting. Returns the number of arrivals.
    pub fn poll(&mut self) -> usize {
        self.port.poll(&mut [Arrival::default(); 64])
    }

    /// Waits for a moment, until something may have arrived.
    pub fn wait(&mut self) {
        self.port.wait(Until::Any, Duration::from_millis(100));
    }

    pub fn until_running(&self, hub: &Hub) {
        let mut seen = 0;
        loop {
            let request = format!(r#"{{"seen": {seen}}}"#);
            let (status, news) = post_as_member(hub, JOB, "heartbeat", &self.reply.token, request);
            assert_eq!(status, 200, "{news}");
            let news: HeartbeatReply = serde_json::from_str(&news).unwrap();
            match news.state {
                JobState::Gathering { .. } => seen = news.version,
                JobState::Running => return,
                JobState::Failed { reason, .. } => panic!("failed before the attack: {reason}"),
            }
        }
    }

    pub fn until_cut_off(&mut self) {
        while !self.links.is_empty() {
            while let Some(closed) = self.port.closed() {
                self.links.retain(|&link| link != closed.link);
            }
            self.poll();
            self.wait();
        }
    }
}

/// Returns a group and a port of RDMA on all NICs.
fn all_nics() -> any::Rdma {
    let nics: Vec<_> = verbs::devices().unwrap().iter().map(|nic| NicOptions::new(&nic.name)).collect();
    let (group, port) = verbs::worker_group(&nics, GroupOptions::default()).unwrap();
    (group, vec![port])
}

/// Attacks the hub as rank 0 of a job of two. Returns the error of rank 1, which is a session with this
/// config.
pub fn attack(
    hub: &Hub,
    request: &JoinRequest,
    transport: Transport,
    victim: impl Fn() -> SessionConfig + Send,
    violate: impl FnOnce(&mut ByHand),
) -> String {
    std::thread::scope(|scope| {
        let victim = scope.spawn(move || {
            // The error may come in any of these calls, because an attacker may be quicker than a join.
            let worked = Session::join(victim()).and_then(|mut victim| {
                victim.broadcast_weights(|_, _: &mut [f32]| ())?;
                push_all(&mut victim)?;
                victim.wait_all()
            });
            worked.unwrap_err().to_string()
        });
        let mut attacker = ByHand::join(hub, request, transport);
        attacker.until_running(hub);
        violate(&mut attacker);
        attacker.until_cut_off();
        let error = victim.join().expect("the victim gets an error");
        // A worker in its handshake gets the reason from the data path, with a different text.
        says(&error, &[&format!("{JOB:?}"), " failed", "worker 0 is gone"]);
        error
    })
}
