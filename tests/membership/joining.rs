//! Joins of workers, and the errors of refused joins, by a session and by plain HTTP. Each refusal names the
//! object, the expected value, and the next step.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use authority::Credential;
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::proxy::Proxy;
use hub_tests::{
    NOWHERE, authorization, config, config_at, describe, hub, hub_below, hub_with_limit, join_by_hand,
    join_request, on_threads, post_as_member, post_json, refusal, refusal_of_member, refused, says,
};
use membership::{Join, Named};
use pbox_core::control::{HeartbeatReply, JobReply, JobState, PROTOCOL, RefusalCode};
use pbox_core::{Key, Optimizer};
use serde_json::{Value, json};
use worker_shim::{Session, SessionError};

/// A heartbeat limit that no test reaches: only after this time would a silent worker be lost.
const FOR_EVER_S: u64 = 3600;

#[test]
fn a_rank_is_taken_once() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    join_by_hand(&hub, "job", &join_request(1, 2));
    says(refused(config(&hub, "job", 1, 2)), &["rank 1", "\"job\"", "taken", "0 to 1", "another job name"]);
}

#[test]
fn programs_tell_refusals_apart_by_their_codes() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    join_by_hand(&hub, "job", &join_request(1, 2));
    let code_of = |worker| match Session::join(worker).err() {
        Some(SessionError::Member(error)) => error.code(),
        other => panic!("{other:?}"),
    };
    let mut other_terms = config(&hub, "job", 0, 2);
    other_terms.terms.seed = 1;
    let mut huge = config(&hub, "huge", 0, 1000);
    (huge.terms.chunk_bytes, huge.terms.keys) = (1 << 20, vec![Key::f32("huge", [1 << 37])]);
    for (worker, code) in [
        (config(&hub, "job", 1, 2), RefusalCode::RankTaken),
        (other_terms, RefusalCode::TermsDiffer),
        (huge, RefusalCode::NoMemory),
    ] {
        assert_eq!(code_of(worker), Some(code));
    }
}

/// A script that was interrupted and changed may meet the workers of its first start.
#[test]
fn a_worker_with_other_terms_hears_whose_job_it_is_and_how_it_ends() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, 40);
    join_by_hand(&hub, "job", &join_request(1, 2));
    let mut changed = config(&hub, "job", 0, 2);
    changed.terms.seed = 1;
    let words = ["seed", "worker 1 at 127.0.0.1", "earlier start", "`phub-server stop job`", "within 40.0 s"];
    says(refused(changed), &words);
}

#[test]
fn ranks_are_below_the_number_of_workers() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    says(refused(config(&hub, "job", 2, 2)), &["rank 2", "2 workers", "from 0 to 1"]);
    says(refused(config(&hub, "job", 0, 0)), &["0 workers", "expected 1 to 4096"]);
    says(refused(config(&hub, "job", 0, 4097)), &["4097 workers", "expected 1 to 4096"]);
    assert_eq!(describe(&hub.address().to_string()).jobs, [], "refused joins leave no job");
}

#[test]
fn workers_of_a_job_ask_for_the_same() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    join_by_hand(&hub, "job", &join_request(0, 2));
    let same = ["\"job\"", "worker 1", "must ask for the same", "another job name"];

    let error = refused(config(&hub, "job", 1, 3));
    says(&error, &same);
    says(&error, &["workers 2", "asks for 3"]);

    let mut other = config(&hub, "job", 1, 2);
    other.terms.chunk_bytes = 128;
    let error = refused(other);
    says(&error, &same);
    says(&error, &["chunk_bytes 64", "asks for 128"]);

    let mut other = config(&hub, "job", 1, 2);
    other.terms.optimizer = Optimizer::Sgd { learning_rate: 0.25, weight_decay: 0.0 };
    let error = refused(other);
    says(&error, &same);
    says(&error, &["optimizer", "0.5", "0.25"]);

    let mut other = config(&hub, "job", 1, 2);
    other.terms.ablate.aggregate = true;
    let error = refused(other);
    says(&error, &same);
    says(&error, &["ablate"]);

    // A worker with the same terms is still admitted.
    join_by_hand(&hub, "job", &join_request(1, 2));
}

#[test]
fn workers_of_a_job_ask_for_the_same_compression() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut first = join_request(0, 2);
    first.terms.level.compression = "topk:0.01".parse().ok();
    join_by_hand(&hub, "job", &first);
    let ask = |compression: &str, seed| {
        let mut config = config(&hub, "job", 1, 2);
        (config.terms.level.compression, config.terms.seed) = (compression.parse().ok(), seed);
        refused(config)
    };
    says(ask("none", 0), &["compression topk:0.01", "worker 1 asks for none"]);
    says(ask("topk:0.02", 0), &["compression topk:0.01", "asks for topk:0.02"]);
    says(ask("topk:0.01", 1), &["seed 0", "asks for 1"]);
    let mut wrong = config(&hub, "other", 0, 1);
    let json = r#"{"codec":"qsgd","bits":9}"#;
    wrong.terms.level.compression = Some(serde_json::from_str(json).unwrap());
    says(refused(wrong), &["this worker's terms", "compression", "bits is 9"]);
    let mut request = serde_json::to_value(join_request(0, 1)).unwrap();
    request["terms"]["level"]["compression"] = serde_json::from_str(json).unwrap();
    let (status, why) = refusal(&hub, "/v1/jobs/other/join", serde_json::to_vec(&request).unwrap());
    assert_eq!(status, 400, "{why}");
    says(why, &["compression", "bits is 9"]);
}

#[test]
fn manifests_differ_by_a_named_key() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    join_by_hand(&hub, "job", &join_request(0, 2));
    let error_of = |change: &dyn Fn(&mut Vec<Key>)| {
        let mut other = config(&hub, "job", 1, 2);
        change(&mut other.terms.keys);
        let error = refused(other);
        says(&error, &["manifests differ", "\"job\"", "worker 1", "same model"]);
        error
    };
    says(error_of(&|keys| keys[2].shape = vec![51]), &["key 2", "third.weight", "f32[51]", "f32[50]"]);
    says(error_of(&|keys| keys[1].name = "renamed".into()), &["key 1", "renamed", "second.bias"]);
    says(error_of(&|keys| keys.swap(0, 1)), &["key 0", "first.weight", "second.bias"]);
    says(error_of(&|keys| keys[0].lr_mult = 0.5), &["key 0", "first.weight", "lr_mult 0.5", "lr_mult 1"]);
    says(error_of(&|keys| drop(keys.pop())), &["2 keys", "3", "third.weight"]);
}

#[test]
fn a_manifest_that_is_none_is_refused_at_both_ends() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut cases: Vec<(Vec<Key>, &[&str])> = vec![
        (vec![], &["no key", "at least one"]),
        (vec![Key::f32("a", [1]), Key::f32("a", [2])], &["keys 0 and 1", "\"a\"", "rename"]),
        (vec![Key::f32("a", [4, 0])], &["\"a\"", "[4, 0]", "omit the key"]),
        (vec![Key::f32("a", [u64::MAX, 2])], &["\"a\"", "the shape is wrong"]),
        (vec![Key::f32("", [1])], &["key 0", "empty name"]),
        (vec![Key::f32("a", [1 << 39])], &["\"a\"", "1099511627776 bytes"]),
    ];
    for (keys, words) in cases.drain(..) {
        let mut worker = config(&hub, "job", 0, 1);
        worker.terms.keys = keys.clone();
        let error = refused(worker);
        says(&error, words);
        says(&error, &["this worker's terms", "manifest"]);
        let mut request = join_request(0, 1);
        request.terms.keys = keys;
        let (status, error) = refusal(&hub, "/v1/jobs/job/join", serde_json::to_vec(&request).unwrap());
        assert_eq!(status, 400);
        says(error, words);
    }
    let mut worker = config(&hub, "job", 0, 1);
    worker.terms.chunk_bytes = 100;
    says(refused(worker), &["chunk size 100", "multiple of 64", "32768"]);
    let mut request = join_request(0, 1);
    request.terms.chunk_bytes = 0;
    let (status, error) = refusal(&hub, "/v1/jobs/job/join", serde_json::to_vec(&request).unwrap());
    assert_eq!(status, 400);
    says(error, &["\"job\"", "chunk size 0", "multiple of 64"]);
}

#[test]
fn a_job_that_no_memory_holds_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut request = join_request(0, 1000);
    request.terms.chunk_bytes = 1 << 20;
    request.terms.keys = vec![Key::f32("huge", [1 << 37])]; // half a TiB for each of a thousand keys
    let (status, error) = refusal(&hub, "/v1/jobs/job/join", serde_json::to_vec(&request).unwrap());
    assert_eq!(status, 507);
    says(error, &["\"job\"", "1000 workers", "need", "available", "fewer workers"]);
    assert_eq!(describe(&hub.address().to_string()).jobs, []);
}

#[test]
fn optimizers_have_finite_settings() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let (learning_rate, weight_decay) = (0.1, 0.0);
    for (optimizer, words) in [
        (Optimizer::Sgd { learning_rate: f32::NAN, weight_decay }, ["sgd", "learning_rate is NaN", "finite"]),
        (Optimizer::Sgd { learning_rate: -5.0, weight_decay }, ["sgd", "learning_rate is -5", "at least 0"]),
        (Optimizer::Sgd { learning_rate, weight_decay: -1.0 }, ["sgd", "weight_decay is -1", "at least 0"]),
        (
            Optimizer::Nesterov { learning_rate, weight_decay, momentum: 1.0 },
            ["nesterov", "momentum is 1", "below 1"],
        ),
    ] {
        let mut worker = config(&hub, "job", 0, 1);
        worker.terms.optimizer = optimizer;
        says(refused(worker), &words);
    }
}

#[test]
fn job_names_are_plain() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let long = "x".repeat(65);
    for name in ["", "two words", "a/b", "a?b", "naïve", "..%2f", ".hidden", "-x", &long] {
        says(refused(config(&hub, name, 0, 1)), &["job name", &format!("{name:?}"), "1 to 64", "letters"]);
    }
    let (status, error) =
        refusal(&hub, "/v1/jobs/two%20words/join", serde_json::to_vec(&join_request(0, 1)).unwrap());
    assert_eq!(status, 400);
    says(error, &["job name", "two words", "1 to 64"]);
}

#[test]
fn another_protocol_version_is_named() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let ours = PROTOCOL.to_string();
    // A request of another version may have fields that this version does not know.
    for (request, seen) in [
        (json!({"protocol": 999, "rank": 0, "flavour": "strawberry"}), "999"),
        (json!({"rank": 0}), "none"),
        (json!({"protocol": "1"}), "none"),
    ] {
        let (status, error) = refusal(&hub, "/v1/jobs/job/join", request.to_string());
        assert_eq!(status, 409);
        says(error, &["protocol", &ours, seen, "same version at both ends"]);
    }
}

#[test]
fn garbage_is_refused_and_harms_no_job() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut garbage: Vec<Vec<u8>> =
        ["", "{", "null", "[]", "\u{0}", "{\"protocol\": 1}", "1e999", "\"join\""]
            .map(|text| text.as_bytes().to_vec())
            .into();
    garbage.push(vec![0xff; 100]);
    garbage.push("[".repeat(100_000).into_bytes());
    let mut unknown = serde_json::to_value(join_request(0, 1)).unwrap();
    unknown["chunk_byte"] = json!(64);
    garbage.push(unknown.to_string().into_bytes());
    let mut negative = serde_json::to_value(join_request(0, 1)).unwrap();
    negative["rank"] = json!(-1);
    garbage.push(negative.to_string().into_bytes());
    let member = join_by_hand(&hub, "other", &join_request(0, 2)).token;
    for verb in ["join", "heartbeat", "learning-rate", "priorities", "leave"] {
        for body in &garbage {
            let (status, error) = match verb {
                "join" => refusal(&hub, "/v1/jobs/job/join", body),
                _ => refusal_of_member(&hub, "other", verb, &member, body),
            };
            assert!(matches!(status, 400 | 409 | 413), "{verb}: {status} {error}");
            assert!(error.len() < 1000, "{verb}: an error of {} bytes", error.len());
        }
    }
    let (_, error) = refusal(&hub, "/v1/jobs/job/join", unknown.to_string());
    says(error, &["join", "unknown field", "chunk_byte"]);
    let (status, error) = refusal(&hub, "/v1/jobs/job/joyn", "{}");
    assert_eq!(status, 404);
    says(error, &["no such page", "GET /"]);

    let session = Session::join(config(&hub, "job", 0, 1)).unwrap();
    session.leave().unwrap();
}

#[test]
fn requests_need_the_token_of_a_member() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let reply = join_by_hand(&hub, "job", &join_request(0, 2));
    let words = ["\"job\"", "token", "join again"];
    for token in ["nonsense", "0", &"0".repeat(32), &"f".repeat(32), &"9".repeat(1000)] {
        for (verb, body) in [
            ("heartbeat", json!({"seen": 0})),
            ("learning-rate", json!({"learning_rate": 0.1, "from_round": 1})),
            ("leave", json!({"round": 0})),
        ] {
            let (status, error) = refusal_of_member(&hub, "job", verb, token, body.to_string());
            assert_eq!(status, 404, "{verb} with token {token:?}: {error}");
            says(error, &words);
        }
    }
    // The token is in the header: a token in the body is ignored.
    let body = json!({"token": reply.token, "seen": 0}).to_string();
    let (status, error) = refusal(&hub, "/v1/jobs/job/heartbeat", body);
    assert_eq!(status, 401);
    says(error, &["the token that the worker's join gave", "Phub-Member"]);
    // A token is valid only for its own job.
    let seen = r#"{"seen": 0}"#;
    let (status, error) = refusal_of_member(&hub, "other", "heartbeat", &reply.token, seen);
    assert_eq!(status, 404);
    says(error, &["\"other\"", "token"]);
    let (status, news) = post_as_member(&hub, "job", "heartbeat", &reply.token, seen);
    assert_eq!(status, 200);
    let news: HeartbeatReply = serde_json::from_str(&news).unwrap();
    assert_eq!(news.state, JobState::Gathering { missing: vec![0, 1], machines: Vec::new() });
}

#[test]
fn workers_that_do_not_come_are_named() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut alone = config(&hub, "job", 1, 4);
    alone.join_limit = Duration::from_secs(1);
    let error = Session::join(alone).map(|_| ()).unwrap_err();
    says(&error, &["\"job\"", "waited 1s", "[0, 2, 3]", "of 4", "start them", "join limit"]);
    assert!(matches!(error, SessionError::Missing { .. }));
    // The job has failed for all its workers, so its name is free again.
    Session::join(config(&hub, "job", 0, 1)).unwrap().leave().unwrap();
}

/// Whether the proxy passes the answers of joins on.
static PASSES: AtomicBool = AtomicBool::new(false);

/// The hub below waits for the hub above when its client hangs up. Nobody gets the answer, so the join must not count.
#[test]
fn a_client_that_hangs_up_before_the_answer_to_its_join_leaves_no_worker() {
    fn held(path: &str, _: &mut Value) {
        until("the client has hung up", || !path.ends_with("/join") || PASSES.load(Ordering::Acquire));
    }
    let _watchdog = Watchdog::start();
    let above = hub(1);
    let proxy = Proxy::start(above.address());
    proxy.rewrites(|_, _| {}, held);
    let below = hub_below(&proxy.address(), 0, 1);
    let body = serde_json::to_string(&join_request(0, 1)).unwrap();
    let (address, shown, length) = (below.address(), authorization(), body.len());
    let mut client = TcpStream::connect(address).unwrap();
    write!(
        client,
        "POST /v1/jobs/job/join HTTP/1.1\r\nhost: {address}\r\nauthorization: {shown}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    until("the join has reached the hub above", || describe(&above.address().to_string()).counts.joins == 1);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "the hub has closed the connection, without an answer");
    PASSES.store(true, Ordering::Release);
    let has_ended = || describe(&above.address().to_string()).jobs.iter().all(JobReply::has_failed);
    until("the hub has left the job above", has_ended);
    let mut other = config(&below, "job", 0, 1);
    other.terms.seed = 1;
    Session::join(other).unwrap().leave().unwrap();
}

/// Formerly rank 0 waited for a minute, and did not learn that rank 1 had asked to join with another model.
#[test]
fn who_waits_is_told_who_was_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    std::thread::scope(|scope| {
        let mut first = config(&hub, "job", 0, 2);
        first.join_limit = Duration::from_secs(2);
        let waiting = scope.spawn(|| refused(first));
        until("rank 0 waits", || {
            describe(&hub.address().to_string()).jobs.iter().any(|job| !job.members.is_empty())
        });
        let mut other = config(&hub, "job", 1, 2);
        other.terms.keys.pop();
        says(refused(other), &["manifests differ"]);
        let told = waiting.join().unwrap();
        says(told, &["[1] of 2 to join", "the hub has refused rank 1 at 127.0.0.1", "manifests differ"]);
    });
}

/// Formerly each piece of news was sent at once to all workers that waited, so joins of 64 machines took twice as long.
#[test]
fn who_waits_for_many_workers_is_told_at_most_once_a_second() {
    const WORKERS: u32 = 64;
    let _watchdog = Watchdog::start();
    let (hub, begun) = (hub(1), Instant::now());
    let first = join_by_hand(&hub, "job", &join_request(0, WORKERS));
    let answers = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut seen = 0;
            for answers in 1.. {
                let request = format!(r#"{{"seen": {seen}}}"#);
                let (_, news) = post_as_member(&hub, "job", "heartbeat", &first.token, request);
                let news: HeartbeatReply = serde_json::from_str(&news).unwrap();
                if news.refused.is_some_and(|refused| refused.starts_with("rank 63 ")) {
                    return answers;
                }
                seen = news.version;
            }
            unreachable!("the loop has no end")
        });
        for rank in 1..WORKERS {
            let of_another_job = join_request(rank, 2 * WORKERS);
            assert_eq!(post_json(&hub, "/v1/jobs/job/join", &of_another_job).0, 409);
        }
        waiting.join().unwrap()
    });
    let limit = 2 + begun.elapsed().as_secs();
    assert!(answers <= limit, "{answers} answers: expected at most {limit}");
}

#[test]
fn a_worker_that_gives_up_is_named_to_the_others() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let errors = on_threads(2, |rank| {
        let mut config = config(&hub, "job", rank, 3);
        if rank == 1 {
            config.join_limit = Duration::from_secs(1);
        }
        refused(config)
    });
    says(&errors[1], &["waited 1s", "2", "of 3"]);
    says(&errors[0], &["\"job\" failed", "worker 1 gave up waiting", "2"]);
}

/// Checks that an admitted member gives its rank back if it then fails, for example because it has no memory for its
/// windows. Formerly the hub noticed the member's silence only after the heartbeat limit.
#[test]
fn a_member_that_fails_before_its_links_leaves_at_once() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, FOR_EVER_S);
    let (address, request) = (hub.address().to_string(), join_request(0, 2));
    let credential = Credential::find_if_any().unwrap();
    let join = Join {
        addresses: &[&address],
        job: "job",
        limit: Duration::from_secs(10),
        request: &request,
        credential: credential.as_ref(),
        named: &Named::Here,
    };
    for _ in 0..2 {
        drop(join.once().unwrap());
        let job = describe(&address).jobs.remove(0);
        let words = ["rank 0 failed", "its join ended before it had links", "its own error says why"];
        says(format!("{:?}", job.state), &words);
    }
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let _watchdog = Watchdog::start();
    let mut nobody = config_at(NOWHERE, "job", 0, 1);
    nobody.join_limit = Duration::from_secs(1);
    says(refused(nobody), &[NOWHERE, "cannot reach", "refused", "is phub-server running there"]);
}

#[test]
fn a_server_that_is_no_hub_is_named() {
    let _watchdog = Watchdog::start();
    for answer in ["200 OK\r\ncontent-length: 2\r\n\r\nhi", "500 Oops\r\ncontent-length: 6\r\n\r\n<html>"] {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        // The server answers only the first tries. The time limit cuts the last try short, and the error is
        // that of an earlier answer.
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for (number, client) in server.incoming().enumerate() {
                let mut client = client.unwrap();
                let _ = client.read(&mut [0; 65536]);
                if number < 2 {
                    let _ = client.write_all(format!("HTTP/1.1 {answer}").as_bytes());
                } else {
                    silent.push(client);
                }
            }
        });
        let mut worker = config_at(&address, "job", 0, 1);
        worker.join_limit = Duration::from_secs(3);
        says(
            refused(worker),
            &[&address, &answer[..3], &format!("protocol {PROTOCOL}"), "is it a phub-server"],
        );
    }
}

#[test]
fn a_worker_that_is_killed_before_it_connects_holds_up_nobody() {
    let _watchdog = Watchdog::start();
    let hub = hub_with_limit(1, FOR_EVER_S);
    let token = join_by_hand(&hub, "job", &join_request(0, 1)).token;
    let silent_ms = || describe(&hub.address().to_string()).jobs[0].members[0].silent_ms;
    until("the worker was silent for half a second", || silent_ms() > 500);
    let body = json!({"token": token, "seen": u64::MAX}).to_string();
    let mut heartbeat = TcpStream::connect(hub.address()).unwrap();
    let head =
        format!("POST /v1/jobs/job/heartbeat HTTP/1.1\r\nhost: hub\r\nauthorization: Phub-Member {token}");
    write!(heartbeat, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    until("the hub has the heartbeat", || silent_ms() < 500);
    drop(heartbeat);
    until("the rank is free, long before its worker is silent for too long", || {
        post_json(&hub, "/v1/jobs/job/join", &join_request(0, 1)).0 == 200
    });
}
