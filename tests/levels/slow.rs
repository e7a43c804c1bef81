//! Hubs above that take long to answer a join: inside the join, they read a checkpoint and make the job's memory.

use std::sync::Barrier;
use std::time::Duration;

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::proxy::{Break, Proxy};
use hub_tests::relay::{Relay, RelayPath, Stall};
use hub_tests::{config_at, free_address, hub, hub_below, join_by_hand, join_request, settings};
use pbox_core::Key;
use pbox_core::control::{JoinRequest, Mesh};
use phub_server::{Hub, HubSettings, Machine};
use serde_json::Value;
use worker_shim::Session;

/// A time longer than the heartbeat limit of the hub below.
const LATE: Duration = Duration::from_millis(1500);

fn unchanged(_: &str, _: &mut Value) {}

fn late_answer(path: &str, _: &mut Value) {
    if path.ends_with("/join") {
        std::thread::sleep(LATE);
    }
}

/// Formerly a hub above that read a checkpoint for longer than the heartbeat limit failed the whole job.
#[test]
fn a_hub_above_may_read_and_make_its_memory_for_longer_than_the_heartbeat_limit() {
    let _watchdog = Watchdog::start();
    let data = free_address();
    let (data_listen, transports) = (Some(data), Some(vec![Transport::Tcp]));
    let top = Hub::start(&HubSettings { data_listen, transports, ..settings(1, 30) }).unwrap();
    let relay = Relay::start(top.address(), data);
    let proxy = Proxy::start(relay.address().parse().unwrap());
    proxy.rewrites(unchanged, late_answer);
    relay.stall(RelayPath::Data, Stall::DOWN);
    let machine = Some(Machine { number: 0, of: 16 });
    let below = HubSettings { above: Some(proxy.address()), machine, ..settings(1, 1) };
    let below = Hub::start(&below).unwrap();
    let mut request = join_request(0, 1);
    // The timeout of a join allows for the slowest hub, which takes some seconds to make the windows of 16
    // machines. Only one machine joins here.
    request.terms.keys = vec![Key::f32("large", [8 << 20])];
    request.terms.chunk_bytes = 1 << 20;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("the hub below makes its links", || relay.open(RelayPath::Data) > 0);
            std::thread::sleep(LATE);
            relay.stall(RelayPath::Data, Stall::NONE);
        });
        join_by_hand(&below, "job", &request);
    });
}

/// Formerly each hub at the top, except the first (the leader), waited for the previous hub.
#[test]
fn the_hubs_that_do_not_lead_make_a_job_at_the_same_time() {
    let _watchdog = Watchdog::start();
    static BOTH: Barrier = Barrier::new(2);
    fn wait_for_the_other(path: &str, _: &mut Value) {
        if path.ends_with("/join") {
            BOTH.wait();
        }
    }
    let tops = [hub(1), hub(1), hub(1)];
    let behind: Vec<Proxy> = tops[1..].iter().map(|top| Proxy::start(top.address())).collect();
    behind.iter().for_each(|proxy| proxy.rewrites(wait_for_the_other, unchanged));
    let above = [tops[0].address().to_string(), behind[0].address(), behind[1].address()].join(",");
    let below = hub_below(&above, 0, 1);
    join_by_hand(&below, "job", &join_request(0, 1));
}

/// Formerly the join of the hub below failed if the hub above was restarted between the check of its health
/// and the join.
#[test]
fn a_join_that_is_cut_is_made_again_while_the_hub_is_waited_for() {
    let _watchdog = Watchdog::start();
    let top = hub(1);
    let proxy = Proxy::start(top.address());
    proxy.breaks("join", Break::Lose, 1);
    let below = hub_below(&proxy.address(), 0, 1);
    join_by_hand(&below, "job", &join_request(0, 1));
    assert_eq!(proxy.left(), 0);
    proxy.breaks("join", Break::Lose, 1);
    let mut worker = config_at(&proxy.address(), "other", 0, 1);
    worker.hub_wait = Duration::from_secs(30);
    Session::join(worker).unwrap().leave().unwrap();
    assert_eq!(proxy.left(), 0);
}

/// Formerly each machine's join failed if the first machine's hub was restarted while the hubs of a mesh waited
/// for each other.
#[test]
fn hubs_of_a_mesh_meet_again_if_the_first_machines_hub_cuts_the_meeting() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let proxy = Proxy::start(hub.address());
    proxy.breaks("meet", Break::Lose, 1);
    let mesh = Mesh { machine: Machine { number: 0, of: 1 }, meet: proxy.address() };
    join_by_hand(&hub, "job", &JoinRequest { mesh: Some(mesh), ..join_request(0, 1) });
    assert_eq!(proxy.left(), 0);
}
