//! The conformance suite over the simulated network, with all faults that a reliable link may have.
#![forbid(unsafe_code)]

use std::sync::Arc;

use fabric::conformance::{Bed, End, Local, Meeting, Peer, Shape};
use fabric::sim::{EndId, Endpoint, Faults, Net, Port, Rate, Windows, seeds};
use fabric::{RecvWindow, Spans};

struct SimBed {
    seed: u64,
    faults: Faults,
}

impl Bed for SimBed {
    type Port = Port;

    fn name(&self) -> String {
        format!("sim with seed {} and {:?}", self.seed, self.faults)
    }

    fn meet(&self, shape: Shape) -> Meeting<Port> {
        let net = Net::new(self.seed, self.faults.clone());
        let one_peer = Shape { peers: 1, ..shape };
        let (near_send, near_spans) = shape.send_window();
        let mut near_links = Vec::new();
        let mut peers: Vec<Box<dyn Peer>> = Vec::new();
        for _ in 0..shape.peers {
            let (far_send, far_spans) = one_peer.send_window();
            let mut far_links = Vec::new();
            for _ in 0..shape.links {
                let recv = || Arc::new(RecvWindow::local(shape.window_bytes()).unwrap());
                let (near_recv, far_recv) = (recv(), recv());
                let near = Windows { send: Arc::clone(&near_send), recv: Arc::clone(&near_recv) };
                let far = Windows { send: Arc::clone(&far_send), recv: Arc::clone(&far_recv) };
                let (to_far, to_near) = net.link(near, far, shape.capacity);
                near_links.push((to_far, near_recv));
                far_links.push((to_near, far_recv));
            }
            peers.push(peer(&net, one_peer, far_spans, far_links));
        }
        Meeting { near: End::new(shape, net.port(), near_spans, near_links), peers }
    }
}

fn peer(net: &Net, shape: Shape, spans: Spans, links: Vec<(Endpoint, Arc<RecvWindow>)>) -> Box<dyn Peer> {
    let ends: Vec<EndId> = links.iter().map(|(endpoint, _)| endpoint.id()).collect();
    let end = End::new(shape, net.port(), spans, links);
    let net = net.clone();
    Box::new(Local::new(end, move || ends.into_iter().for_each(|end| net.kill(end))))
}

mod without_faults {
    use super::*;
    fabric::conformance_tests!(SimBed { seed: 0, faults: Faults::NONE });
}

mod with_delay {
    use super::*;
    fabric::conformance_tests!(seed in seeds(8) => SimBed {
        seed, faults: Faults { delay: 0..20, ..Faults::NONE }
    });
}

mod with_delay_and_reorder {
    use super::*;
    fabric::conformance_tests!(seed in seeds(8) => SimBed {
        seed, faults: Faults { delay: 0..20, reorder: true, ..Faults::NONE }
    });
}

/// A net that breaks the contract does not pass the suite.
#[test]
#[should_panic = "sim with seed 0"]
fn a_net_that_duplicates_is_caught() {
    let faults = Faults { duplicate: Rate::per_mille(300), ..Faults::NONE };
    fabric::conformance::links_do_not_mix(&SimBed { seed: 0, faults });
}
