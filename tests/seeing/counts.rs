//! The hub counts the events of its members and jobs, and the bytes of their links.

use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{
    authorization, config, describe, has_rdma, hub, join_all, push_all, ready_all, refused, says,
};
use pbox_core::control::{CountsReply, LinkReply, LostReply};

#[test]
fn joins_refusals_losses_and_failures_are_counted() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let counts = || describe(&hub.address().to_string()).counts;
    assert_eq!(counts(), CountsReply::default());
    let config = |rank| config(&hub, "job", rank, 2);
    let mut sessions = join_all(2, config);
    let joined = CountsReply { joins: 2, ..CountsReply::default() };
    assert_eq!(counts(), joined);
    says(refused(config(0)), &["rank 0"]);
    assert_eq!(counts(), CountsReply { refused_joins: 1, ..joined });
    drop(sessions.pop()); // without a leave
    until("the job has failed", || counts().failed_jobs == 1);
    drop(sessions);
    let lost = LostReply { link: 1, ..LostReply::default() };
    assert_eq!(counts(), CountsReply { refused_joins: 1, lost, failed_jobs: 1, ..joined });
}

/// The hub and the workers count the same bytes on their links in rounds of bare gradients. The hub also
/// counts the headers of frames.
#[test]
fn bytes_of_links_are_those_of_the_workers() {
    let _watchdog = Watchdog::start();
    let (rounds, hub) = (3, hub(2));
    for transport in Transport::ALL.into_iter().filter(|&each| each != Transport::Verbs || has_rdma()) {
        let job = format!("by-{transport}");
        let links = |rank: u32| -> Vec<LinkReply> {
            let reply = describe(&hub.address().to_string());
            let job = reply.jobs.into_iter().find(|each| each.name == job).expect("it runs");
            let member = job.members.into_iter().find(|each| each.rank == rank).expect("it has joined");
            assert_eq!(member.transport, Some(transport.to_string()));
            member.links
        };
        let mut sessions = ready_all(2, |rank| {
            let mut config = config(&hub, &job, rank, 2);
            config.transport = Some(transport);
            config
        });
        for _ in 0..rounds {
            sessions.iter_mut().for_each(|session| push_all(session).unwrap());
            sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
        }
        if transport == Transport::Shm {
            assert!(links(0).is_empty() && links(1).is_empty(), "nothing crosses");
            continue;
        }
        let header = if transport == Transport::Tcp { 16 } else { 0 };
        for (rank, session) in (0..).zip(&sessions) {
            let worker = session.traffic();
            // Each chunk has a frame in each direction, in each round and in the broadcast.
            let headers = (rounds + 1) * session.layout().chunks().len() as u64 * header;
            let expected = [worker.received + headers, worker.sent + headers];
            until("the hub has looked after the last round", || {
                let links = links(rank);
                let known = links.iter().all(|link| !link.nic.is_empty());
                let sent: u64 = links.iter().map(|link| link.sent_bytes).sum();
                let received: u64 = links.iter().map(|link| link.received_bytes).sum();
                assert!(sent <= expected[0] && received <= expected[1], "{links:?}, expected {expected:?}");
                assert!(links.is_empty() || known, "{links:?}");
                [sent, received] == expected
            });
        }
        if transport == Transport::Tcp {
            let nics: Vec<String> = links(0).into_iter().map(|link| link.nic).collect();
            assert_eq!(nics, ["lo"], "both cores' links are one line");
        }
    }
}

fn metrics(hub: &str) -> String {
    let get = ureq::get(format!("http://{hub}/metrics")).header("authorization", authorization());
    get.call().unwrap().body_mut().read_to_string().unwrap()
}

/// A job of one worker has nobody to wait for. Formerly the hub showed its round as 0 until the check for
/// late workers, which runs every five seconds.
#[test]
fn the_round_of_a_lone_worker_is_true_at_once() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let mut sessions = ready_all(1, |rank| config(&hub, "job", rank, 1));
    let address = hub.address().to_string();
    // If the hub did not ask its cores, these 30 rounds would wait for 30 checks, which take longer than the
    // watchdog waits.
    for _ in 1..=30 {
        push_all(&mut sessions[0]).unwrap();
        sessions[0].wait_all().unwrap();
        let next = sessions[0].next_round();
        let line = format!("\nphub_job_round{{job=\"job\"}} {}.0\n", next.0);
        until("the metrics have the round", || metrics(&address).contains(&line));
        until("the hub shows the round", || describe(&address).jobs[0].round == next);
    }
}
