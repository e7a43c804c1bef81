//! A test of a connection whose links join several ports of one end to several ports of the other end, as
//! between two hubs.

use std::sync::Arc;
use std::time::Duration;

use super::Watchdog;
use super::hub_and_workers::{Role, Transport};
use crate::plan::{Carries, LinkPorts, PlannedLink, PortId};
use crate::{Arrival, Imm, LinkId, Port, Posted, SendWindow, Span, Until};

/// The number of ports of each end. Not all pairs of ports have links.
const PORTS: usize = 2;
const JOINED: [(u16, u16); 3] = [(0, 1), (1, 0), (1, 1)];
const BYTES: usize = 64;
/// A timeout that is longer than the watchdog's: a port that nobody wakes fails the test.
const LONG: Duration = Duration::from_secs(3600);

/// Checks that each link joins the two ports that the plan names. A post must show at that port, and wake a
/// thread that sleeps on it.
pub fn links_end_at_the_ports_of_the_plan<T: Transport>(transport: &T) {
    let _watchdog = Watchdog::start();
    let plan = JOINED.map(|(joiner, hub)| PlannedLink {
        ports: LinkPorts { joiner: PortId(joiner), hub: PortId(hub) },
        capacity: 4,
        carries: Carries::default(),
    });
    let window = || Arc::new(SendWindow::new(BYTES).expect("a test's window is small"));
    let (listener, address) = T::listen();
    let joiner = {
        let (transport, plan) = (transport.clone(), plan.clone());
        std::thread::spawn(move || {
            let (group, ports) = transport.ports(Role::Worker, PORTS);
            let (_recv, endpoints) = T::connect(&address, [7; 16], &group, &window(), BYTES, &plan);
            post_and_see::<T::Port>(ports, endpoints, plan.each_ref().map(|link| link.ports.joiner));
        })
    };
    let (group, ports) = transport.ports(Role::Hub, PORTS);
    let (token, (_recv, endpoints)) = T::welcome(&listener, &group, &window(), BYTES, &plan);
    assert_eq!(token, [7; 16]);
    post_and_see::<T::Port>(ports, endpoints, plan.each_ref().map(|link| link.ports.hub));
    joiner.join().expect("the joiner sees as much");
}

/// Posts the number of each link over that link. Checks that the peer's post of the number arrives at the
/// link's port. Each port has a thread.
fn post_and_see<P: Port>(ports: Vec<P>, endpoints: Vec<P::Endpoint>, at: [PortId; JOINED.len()]) {
    assert_eq!(endpoints.len(), at.len(), "one link for each of the plan");
    let mut links: Vec<(Imm, PortId, P::Endpoint)> = Vec::new();
    for (number, (endpoint, port)) in endpoints.into_iter().zip(at).enumerate() {
        links.push((Imm(number as u32), port, endpoint));
    }
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, mut port) in ports.into_iter().enumerate() {
            let (here, elsewhere) = links.into_iter().partition(|(_, port, _)| port.index() == index);
            links = elsewhere;
            let here: Vec<_> = here;
            threads.push(scope.spawn(move || {
                let attached: Vec<(Imm, LinkId)> =
                    here.into_iter().map(|(number, _, endpoint)| (number, port.attach(endpoint))).collect();
                for &(number, link) in &attached {
                    assert_eq!(port.post(link, Span { offset: 0, bytes: 0 }, number), Posted::Accepted);
                }
                port.flush();
                let mut missing: Vec<Arrival> =
                    attached.iter().map(|&(imm, link)| Arrival { link, imm }).collect();
                while !missing.is_empty() {
                    let mut seen = [Arrival::default(); 4];
                    let count = port.poll(&mut seen);
                    for arrival in &seen[..count] {
                        let place = missing.iter().position(|expected| expected == arrival);
                        missing.remove(place.unwrap_or_else(|| panic!("{arrival:?} of {missing:?}")));
                    }
                    if count == 0 {
                        port.wait(Until::Any, LONG);
                    }
                }
                port
            }));
        }
        // All ports live until each of them has seen its arrivals, because the end of one port ends the
        // connection.
        let ports: Vec<P> = threads.into_iter().map(|thread| thread.join().expect("it saw all")).collect();
        drop(ports);
    });
}
