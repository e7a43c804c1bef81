//! Workers that send a correct hello, and then messages that no correct worker sends. Each such message
//! causes a clear error at both ends.

use std::time::Duration;

use super::super::handshake::message::{LinkEnd, Links, Message};
use super::super::handshake::stream::MessageStream;
use super::*;

/// The hub's group, and a listener for a peer that sends a hello and then the message that the test gives it.
struct Hub {
    listener: Listener,
    group: Arc<Group>,
    window: Arc<SendWindow>,
    _ports: Vec<Port>,
}

impl Hub {
    fn new(nic: &NicOptions) -> Self {
        let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let (group, ports) = group(&[nic.clone(), nic.clone()], GroupOptions::default()).unwrap();
        Hub { listener, group, window: window().0, _ports: ports }
    }

    /// Returns the hub's error for a worker that has a window of `send_bytes` and sends `says`, and the last
    /// message to the worker.
    fn meets(&self, send_bytes: u64, says: Option<Message>, timeout: Duration) -> (String, Option<Message>) {
        let mut stream = MessageStream::connect(self.listener.address(), LONG).unwrap();
        let links = PlannedLink::of_one_port(&[8]).iter().map(|link| link.ports).collect();
        stream.send(&Message::hello([0; 16], send_bytes, links, Vec::new())).unwrap();
        let hello = self.listener.accept().unwrap().unwrap().hello(timeout).unwrap();
        std::thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let mut heard = stream.receive().ok();
                if matches!(heard, Some(Message::Ports { .. })) {
                    if let Some(message) = says {
                        stream.send(&Message::Unreached(Vec::new())).unwrap();
                        stream.send(&message).unwrap();
                    }
                    heard = stream.receive().ok();
                }
                heard
            });
            let welcomed = hello.welcome(
                &self.group,
                &self.window,
                BYTES,
                &PlannedLink::of_one_port(&[8, 0]),
                |_| (),
                || (),
            );
            (welcomed.unwrap_err().to_string(), worker.join().unwrap())
        })
    }
}

fn links(change: impl FnOnce(&mut Links)) -> Option<Message> {
    let nic = Address {
        device: "mlx5_0".into(),
        link_layer: LinkLayer::Ethernet,
        gid: Gid(Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()),
        prefix: None,
        lid: 0,
        mtu: Mtu::from_code(3).unwrap(),
    };
    let end = LinkEnd { nic: 0, number: 17, first_packet: 0, keys: vec![1] };
    let mut links =
        Links { address: 4096, bytes: BYTES as u64, nics: vec![nic], apart: false, ends: vec![end] };
    change(&mut links);
    Some(Message::Links(links))
}

#[test]
fn a_worker_that_keeps_to_no_plan_is_refused_with_the_reason() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    let hub = Hub::new(&nic);
    let whole = BYTES as u64;
    let too_many = links(|links| links.ends.push(links.ends[0].clone()));
    let other_ranges = links(|links| links.ends[0].keys.push(2));
    let cases = [
        (whole - 1, None, "has 262143 bytes where the layout needs 262144"),
        (whole, Some(Message::Ready), "expected ends of links, got ready"),
        (whole, too_many, "offers 2 links, and this end expects 1"),
        (whole, other_ranges, "has 2 keys for a link that carries 1 ranges of its window"),
        (whole, links(|links| links.nics.clear()), "link 0 is on the peer's NIC 0 of 0"),
        (whole, links(|links| links.bytes -= 1), "has 262143 bytes where the layout needs 262144"),
    ];
    for (send_bytes, says, expected) in cases {
        let (error, heard) = hub.meets(send_bytes, says, LONG);
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        let Some(Message::Refused(told)) = heard else { panic!("the worker is told {heard:?}") };
        assert!(told.contains(expected), "the worker is told {told:?}");
    }
    let (error, _) = hub.meets(whole, Some(Message::Refused("no memory".into())), LONG);
    assert_eq!(error, "the other end refused the RDMA connection: no memory");
    let (error, _) = hub.meets(whole, None, Duration::from_millis(300));
    assert!(error.contains("did not send its part of the handshake within 3.6s"), "{error}");
}

#[test]
fn an_address_without_a_path_is_refused_with_states_both_ends_and_the_gid_table() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    // A default route has destination and mask 0. With such a route, there is a path to every address.
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    if routes.lines().any(|line| line.split_whitespace().nth(1) == Some("00000000")) {
        println!("skipped: this machine has a default route");
        return;
    }
    let hub = Hub::new(&nic);
    let ours = hub.group.nics(0)[0].address().gid;
    // An address from a block that is assigned to nobody (RFC 5737).
    let nowhere = Gid(Ipv4Addr::new(203, 0, 113, 9).to_ipv6_mapped().octets());
    let (error, _) = hub.meets(BYTES as u64, links(|links| links.nics[0].gid = nowhere), LONG);
    for expected in ["from INIT to RTR", "STATE | AV | PATH_MTU", "The GID table of"] {
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
    assert!(error.contains(&ours.to_string()) && error.contains(&nowhere.to_string()), "{error}");
}

#[test]
fn queues_grow_with_the_links_up_to_what_the_nic_has() {
    let _watchdog = Watchdog::start();
    let Some(nic) = device() else { return };
    const CAPACITY: u32 = 1500;
    let (mut hub, mut workers) = meet(&nic, 2, CAPACITY);
    hub.attach_all();
    // Both workers post all their posts before the hub polls.
    for worker in &mut workers {
        worker.attach_all();
        for value in 0..CAPACITY {
            let nothing = Span { offset: 0, bytes: 0 };
            assert_eq!(worker.port.post(LinkId(0), nothing, Imm(value)), Posted::Accepted);
        }
        worker.port.flush();
    }
    let mut seen = [0, 0];
    while seen != [CAPACITY, CAPACITY] {
        // Posts that wait in a worker's link are sent when the worker sees completions of earlier posts.
        workers.iter_mut().for_each(|worker| assert_eq!(worker.port.poll(&mut [Arrival::default()]), 0));
        let mut arrivals = [Arrival::default(); 64];
        let count = hub.port.poll(&mut arrivals);
        for arrival in &arrivals[..count] {
            assert_eq!(arrival.imm.0, seen[arrival.link.index()], "in order, none lost");
            seen[arrival.link.index()] += 1;
        }
    }

    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.address();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (group, _ports) = group(std::slice::from_ref(&nic), GroupOptions::default()).unwrap();
            let hello = listener.accept().unwrap().unwrap().hello(LONG).unwrap();
            let _ = hello.welcome(
                &group,
                &window().0,
                BYTES,
                &PlannedLink::of_one_port(&[1 << 30]),
                |_| (),
                || (),
            );
        });
        let (group, _port) = worker_group(std::slice::from_ref(&nic), GroupOptions::default()).unwrap();
        connect(
            address,
            [0; 16],
            &group,
            &window().0,
            Receive::New(BYTES),
            &PlannedLink::of_one_port(&[1 << 30]),
            LONG,
        )
        .unwrap_err()
        .to_string()
    });
    assert!(error.contains("the device's maximum is") && error.contains("larger chunks"), "{error}");
}
