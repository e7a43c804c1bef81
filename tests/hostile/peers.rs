//! Requests between the hubs of a job are refused to a client that does not know the job's secret.

use std::collections::HashMap;

use fabric::conformance::Watchdog;
use hub_tests::{
    addresses, as_hub, config_at, hub, join_by_hand, join_request, post_as, push_all, ready_all, refusal,
    says,
};
use pbox_core::control::{JoinRequest, Pass, Peers};
use pbox_core::{JobTerms, OnLoss};
use serde_json::json;

const JOB: &str = "/v1/jobs/job/peers";

#[test]
fn a_stranger_can_neither_hold_nor_release_a_job() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let list = addresses(&hubs);
    let mut sessions = ready_all(1, |rank| {
        let mut config = config_at(&list, "job", rank, 1);
        config.terms.on_loss = OnLoss::Continue;
        config
    });
    let bodies = HashMap::from([
        ("hold", json!({"cut": 1000})),
        ("release", json!({"cut": 1000, "from": 1, "admitted": [1], "snapshot": true})),
        ("written", json!({"before": 1, "whole": {"rounds": [], "decided": null}, "wait_ms": 100_000})),
        ("arrived", json!({"hub": 1, "worker": 1})),
        ("begins", json!({"first_round": 0})),
        ("lost", json!({"worker": 1, "reason": "a stranger says so"})),
        ("checkpoint", json!({"round_limit_ms": 1000})),
    ]);
    for (hub, (verb, body)) in hubs.iter().flat_map(|hub| bodies.iter().map(move |body| (hub, body))) {
        for secret in ["0".repeat(32), "+".repeat(32), String::new(), "f".repeat(1000)] {
            let mut body = body.clone();
            body["secret"] = json!(secret);
            let (status, why) = post_as(hub, &format!("{JOB}/{verb}"), &as_hub("job"), body.to_string());
            assert_eq!(status, 404, "{verb}: {why}");
            says(why, &["over several hubs with this secret"]);
        }
        let (status, why) = post_as(hub, &format!("{JOB}/{verb}"), &as_hub("job"), body.to_string());
        assert_eq!(status, 400, "{verb} without a secret: {why}");
    }
    let (status, _) = post_as(&hubs[0], &format!("{JOB}/other"), &as_hub("job"), json!({}).to_string());
    assert_eq!(status, 404);
    push_all(&mut sessions[0]).unwrap();
    sessions[0].wait_all().unwrap();
}

/// Returns the join that a worker of two hubs sends to the second hub.
fn at_second(hubs: &[String], pass: Option<Pass>) -> JoinRequest {
    let request = join_request(0, 1);
    let terms = JobTerms { hubs: 2, ..request.terms };
    JoinRequest { hub: 1, peers: Some(Peers { hubs: hubs.to_vec(), pass }), terms, ..request }
}

#[test]
fn a_join_that_does_not_name_its_hubs_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let names: Vec<String> = ["a:1", "b:1"].map(str::to_owned).into();
    let pass =
        || Pass { secret: "1".repeat(32), worker: 1, first_round: Default::default(), checkpoints: false };
    let good = at_second(&names, Some(pass()));
    for (request, words) in [
        (JoinRequest { peers: None, ..good.clone() }, "peers is missing"),
        (at_second(&names[..1], Some(pass())), "peers names 1 hubs"),
        (at_second(&names, None), "the pass is missing"),
        (at_second(&names, Some(Pass { secret: "1".repeat(31), ..pass() })), "not 32 hexadecimal digits"),
        (JoinRequest { hub: 0, ..good.clone() }, "only hub 0 gives passes"),
        (JoinRequest { hub: 0, terms: join_request(0, 1).terms, ..good.clone() }, "peers names 2 hubs"),
    ] {
        let (status, why) = refusal(&hub, "/v1/jobs/job/join", serde_json::to_vec(&request).unwrap());
        assert_eq!(status, 400, "{why}");
        says(why, &[words]);
    }
    join_by_hand(&hub, "job", &good);
}

#[test]
fn hubs_that_know_the_secret_hold_and_release() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let names: Vec<String> = ["a:1", "b:1"].map(str::to_owned).into();
    let secret = "1".repeat(32);
    let pass =
        Pass { secret: secret.clone(), worker: 1, first_round: Default::default(), checkpoints: false };
    join_by_hand(&hub, "job", &at_second(&names, Some(pass)));
    let ask = |verb: &str, body: serde_json::Value| {
        post_as(&hub, &format!("{JOB}/{verb}"), &as_hub("job"), body.to_string())
    };
    let hold = |cut: u64| ask("hold", json!({"secret": secret, "cut": cut}));
    let release = |cut: u64| ask("release", json!({"secret": secret, "cut": cut, "from": 0}));
    assert_eq!(hold(1).0, 200);
    let (status, why) = release(2);
    assert_eq!(status, 409, "{why}");
    assert_eq!(release(1).0, 200);
    for stale in [hold(1), hold(2), release(1)] {
        assert_eq!(stale.0, 409, "{}", stale.1);
    }
    assert_eq!((hold(3).0, release(3).0), (200, 200));
    assert_eq!(hold(4).0, 200);
    let until = |from: u32, admitted: &[u64]| {
        ask("release", json!({"secret": secret, "cut": 4, "from": from, "admitted": admitted}))
    };
    for (from, admitted, words) in [
        (65, &[][..], "at most 64 rounds apart"),
        (4_000_000_000, &[1], "at most 64 rounds apart"),
        (u32::MAX, &[1], "is not a round"),
        (0, &[u64::MAX; 4097], "at most 4096"),
    ] {
        let (status, why) = until(from, admitted);
        assert_eq!(status, 400, "{why}");
        says(why, &[words]);
    }
    assert_eq!(release(4).0, 200, "a wrong release ends nothing");
}
