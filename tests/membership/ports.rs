//! A member with several ports, such as a hub that joins another hub. Its links are spread over the ports.

use std::sync::Arc;
use std::time::{Duration, Instant};

use authority::Credential;
use fabric::any::{self, Transport};
use fabric::conformance::Watchdog;
use fabric::{Arrival, LinkId, Port as _, PortId, Posted, Receive, SendWindow, Until};
use hub_tests::{config, hub, join_request};
use membership::{Join, Named, Ports};
use pbox_core::control::LeftAt;
use pbox_core::{ChunkId, KeyId, Layout, Round, Wire};
use worker_shim::Session;

const LIMIT: Duration = Duration::from_secs(30);

/// Joins as rank 0 with two ports, and broadcasts the weights. The weights of a chunk equal the chunk's
/// number.
fn broadcast_by_two_ports(hub: &str, job: &str, transport: Transport) {
    let request = join_request(0, 2);
    let layout = Arc::new(Layout::new(request.terms.keys.clone(), request.terms.chunk_bytes).unwrap());
    let chunks = (0..layout.chunks().len() as u32).map(ChunkId);
    let spans = chunks.clone().map(|chunk| layout.chunk(chunk).span).collect();
    let (window, mut spans) = SendWindow::new(layout.window_bytes()).unwrap().split(vec![spans]).unwrap();

    let (group, mut ports) = any::group(2, None).unwrap();
    let (dealt_to, rdma) = (vec![PortId(1), PortId(0)], Err("nobody asks".into()));
    let ends = Ports { group, dealt_to, rdma, transport: Some(transport), on_one_node: true };
    let credential = Credential::find_if_any().unwrap();
    let join = Join {
        addresses: &[hub],
        job,
        limit: LIMIT,
        request: &request,
        credential: credential.as_ref(),
        named: &Named::Here,
    };
    let let_in = join.once().unwrap();
    let wire = Wire::plain(Arc::clone(&layout));
    let (schedule, deadline) = (request.terms.level.schedule, Instant::now() + LIMIT);
    let receive = |_| Receive::New(layout.window_bytes());
    let path = membership::open(&let_in, schedule, &wire, &window, receive, &ends, deadline).unwrap();
    assert_eq!(path.ports, ends.dealt_to[..path.endpoints.len()], "core by core, in the order of the list");
    let attach = |(endpoint, port): (_, &PortId)| ports[port.index()].attach(endpoint);
    let links: Vec<LinkId> = path.endpoints.into_iter().zip(&path.ports).map(attach).collect();
    let kept = let_in.into_iter().zip(path.cores);
    let hubs: Vec<_> = kept.map(|(hub, cores)| hub.keep(cores, ports[0].waker())).collect();
    while membership::takes_part(&hubs, 0) != Ok(Round(0)) {
        ports[0].wait(Until::Any, LIMIT);
    }

    let mut awaited = vec![Vec::new(); ports.len()];
    for chunk in chunks {
        spans[0].elements_mut::<f32>(chunk.index()).fill(chunk.0 as f32);
        let (core, imm) = (path.placement.owner(chunk), wire.push(chunk, Round(0)).encode());
        let port = path.ports[core].index();
        assert_eq!(ports[port].post(links[core], layout.chunk(chunk).span, imm), Posted::Accepted);
        awaited[port].push(Arrival { link: links[core], imm });
    }
    ports.iter_mut().for_each(any::Port::flush);
    let key = |arrival: &Arrival| (arrival.link, arrival.imm.0);
    for (port, mut awaited) in ports.iter_mut().zip(awaited) {
        let (mut seen, mut room) = (Vec::new(), [Arrival::default(); 8]);
        while seen.len() < awaited.len() {
            let count = port.poll(&mut room);
            seen.extend_from_slice(&room[..count]);
            if count == 0 {
                port.wait(Until::Any, LIMIT);
            }
        }
        seen.sort_by_key(key);
        awaited.sort_by_key(key);
        assert_eq!(seen, awaited, "each port has the answers of its links");
    }
    hubs[0].leave(&LeftAt::all(Round(1))).unwrap();
}

#[test]
fn links_are_dealt_to_the_ports_of_a_member() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    for transport in [Transport::Shm, Transport::Tcp] {
        let (address, job) = (hub.address().to_string(), transport.to_string());
        std::thread::scope(|scope| {
            scope.spawn(|| broadcast_by_two_ports(&address, &job, transport));
            let mut other = Session::join(config(&hub, &job, 1, 2)).unwrap();
            other.broadcast_weights(|_, _: &mut [f32]| ()).unwrap();
            let layout = Arc::clone(other.layout());
            for key in (0..layout.keys().len() as u32).map(KeyId) {
                let mut weights = other.weights::<f32>(key).unwrap();
                for chunk in layout.key_chunks(key) {
                    let (own, rest) = weights.split_at(layout.chunk(ChunkId(chunk)).span.bytes / 4);
                    assert!(own.iter().all(|&weight| weight == chunk as f32), "{transport}: chunk {chunk}");
                    weights = rest;
                }
            }
        });
    }
}
