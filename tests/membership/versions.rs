//! Two adjacent versions of the protocol work together. The other version is this program behind a proxy,
//! which adds fields of a newer version to its messages.

use fabric::conformance::Watchdog;
use hub_tests::proxy::Proxy;
use hub_tests::{config_at, describe, hub, join_request, push_all, refusal, refused, says};
use pbox_core::control::{PROTOCOL, PROTOCOL_LOWEST};
use serde_json::{Value, json};
use worker_shim::Session;

const NEXT: u32 = PROTOCOL + 1;

fn unchanged(_: &str, _: &mut Value) {}

/// Runs a whole job. Two workers, one of each version, broadcast, train and leave.
fn train(addresses: [&str; 2]) {
    let weights = hub_tests::on_threads(2, |rank| {
        let mut session = Session::join(config_at(addresses[rank as usize], "job", rank, 2)).unwrap();
        session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
        session.keys().for_each(|key| session.gradient_mut(key).unwrap().fill(2.0 * rank as f32));
        push_all(&mut session).unwrap();
        session.wait_all().unwrap();
        let weights = session.keys().map(|key| session.weights::<f32>(key).unwrap()[0]).collect::<Vec<_>>();
        session.leave().unwrap();
        weights
    });
    assert_eq!(weights, [[0.5; 3], [0.5; 3]]);
}

#[test]
fn a_member_of_the_next_version_joins_this_hub() {
    fn newer(path: &str, request: &mut Value) {
        if path.ends_with("/join") {
            request["protocol"] = json!(NEXT);
            request["protocol_lowest"] = json!(PROTOCOL);
            request["flavour"] = json!({"of": ["straw", "berry"]});
        }
    }
    fn checked(path: &str, answer: &mut Value) {
        if path.ends_with("/join") {
            assert_eq!(answer["protocol"], PROTOCOL, "the version that both speak: {answer}");
        }
    }
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let proxy = Proxy::start(hub.address());
    proxy.rewrites(newer, checked);
    train([&proxy.address(), &hub.address().to_string()]);
}

#[test]
fn this_member_joins_a_hub_of_the_next_version() {
    fn newer(_: &str, answer: &mut Value) {
        fn more(value: &mut Value) {
            match value {
                Value::Object(fields) => {
                    fields.values_mut().for_each(more);
                    fields.insert("flavour".into(), json!(["straw", "berry"]));
                }
                Value::Array(items) => items.iter_mut().for_each(more),
                _ => {}
            }
        }
        more(answer);
    }
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let proxy = Proxy::start(hub.address());
    proxy.rewrites(unchanged, newer);
    train([&proxy.address(), &hub.address().to_string()]);
}

#[test]
fn ranges_that_do_not_meet_are_both_named_at_both_ends() {
    fn too_new(path: &str, request: &mut Value) {
        if path.ends_with("/join") {
            request["protocol"] = json!(NEXT + 1);
            request["protocol_lowest"] = json!(NEXT);
        }
    }
    fn used(path: &str, answer: &mut Value) {
        if path.ends_with("/join") {
            answer["protocol"] = json!(NEXT);
        }
    }
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let proxy = Proxy::start(hub.address());
    proxy.rewrites(too_new, unchanged);
    let why = refused(config_at(&proxy.address(), "job", 0, 1));
    says(
        why,
        &[
            "this hub speaks protocol 11 to 14",
            "the other end protocol 15 to 16",
            "same version at both ends",
        ],
    );
    let proxy = Proxy::start(hub.address());
    proxy.rewrites(unchanged, used);
    let why = refused(config_at(&proxy.address(), "job", 0, 1));
    says(why, &[&proxy.address(), "with protocol 15", "speaks 11 to 14", "same version at both ends"]);
}

#[test]
fn a_term_that_only_the_newer_end_knows_is_refused_and_not_ignored() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut request = serde_json::to_value(join_request(0, 1)).unwrap();
    (request["protocol"], request["protocol_lowest"]) = (json!(NEXT), json!(PROTOCOL));
    request["terms"]["flavour"] = json!("strawberry");
    let (status, why) = refusal(&hub, "/v1/jobs/job/join", request.to_string());
    assert_eq!(status, 409);
    says(why, &["unknown field `flavour`", "protocol 11 to 14", "14 to 15", "cannot ignore terms"]);
    let hub = describe(&hub.address().to_string());
    assert_eq!((hub.protocol, hub.protocol_lowest), (PROTOCOL, Some(PROTOCOL_LOWEST)));
    assert!(hub.jobs.is_empty() && !hub.version.is_empty());
}
