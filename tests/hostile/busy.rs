//! Joins that take long delay only other joins.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric::conformance::Watchdog;
use hub_tests::{describe, join_request, post, settings};
use pbox_core::JobTerms;
use pbox_core::control::{JoinRequest, Peers};
use phub_server::{Hub, HubSettings};

/// The number of joins that keep all of the hub's threads for joins busy.
const JOINS: usize = 2;

#[test]
fn a_hub_says_what_it_is_while_all_its_threads_for_joins_are_at_work() {
    let _watchdog = Watchdog::start();
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Some(directory.path().to_owned());
    let hub = Hub::start(&HubSettings { checkpoints, ..settings(1, 5) }).unwrap();
    // Nobody answers at this address, where the hub asks for checkpoints.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let hubs = vec![hub.address().to_string(), silent.local_addr().unwrap().to_string()];
    let request = join_request(0, 1);
    let terms = JobTerms { hubs: 2, ..request.terms };
    let request = JoinRequest { peers: Some(Peers { hubs, pass: None }), terms, ..request };
    let (body, answered) = (serde_json::to_vec(&request).unwrap(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..JOINS {
            let (hub, body, answered) = (&hub, &body, &answered);
            scope.spawn(move || {
                let (status, why) = post(hub, &format!("/v1/jobs/job-{number}/join"), body);
                answered.fetch_add(1, Ordering::SeqCst);
                assert_eq!(status, 409, "{why}");
            });
        }
        let _asked: Vec<TcpStream> = (0..JOINS).map(|_| silent.accept().unwrap().0).collect();
        assert_eq!(describe(&hub.address().to_string()).jobs.len(), 0);
        assert_eq!(answered.load(Ordering::SeqCst), 0, "the joins go on");
    });
}
