//! Requests of the control port that no worker sends: several at once, repeated headers, and parts of chunked
//! bodies without an end. Also invalid paths and methods, and floods.
//!
//! The hub refuses each with an error or closes the connection. A job that runs at the same time continues
//! with right bits.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use authority::{Credential, Right};
use fabric::conformance::{Watchdog, alone};
use hub_tests::training::Training;
use hub_tests::{addresses, authorization, config_at, describe, hub, push_all, says, settings};
use pbox_core::Key;
use pbox_core::control::ErrorReply;
use phub_server::{Hub, HubSettings};
use worker_shim::Session;

/// Sends these bytes, and returns all bytes of the answer until the hub closes. The answer is empty if the
/// hub closes before all bytes were sent.
fn reply_to(hub: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    let mut client = TcpStream::connect(hub).unwrap();
    let _ = client.write_all(bytes.as_ref());
    let mut said = Vec::new();
    let _ = client.read_to_end(&mut said);
    String::from_utf8(said).expect("the hub speaks text")
}

/// Returns the error in an answer, which must have this status.
fn error(answer: &str, status: u16) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    serde_json::from_str::<ErrorReply>(body).unwrap_or_else(|error| panic!("{error}: {answer}")).error
}

fn request(line: &str, headers: &str) -> String {
    let authorization = authorization();
    format!(
        "{line} HTTP/1.1\r\nhost: hub\r\nconnection: close\r\nauthorization: {authorization}\r\n{headers}\r\n"
    )
}

#[test]
fn requests_that_nobody_sends_are_refused_in_words_and_a_job_goes_on() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let (at, address) = (hub.address(), hub.address().to_string());
    let beside = Training { workers: 2, rounds: 300, ..Training::small("beside") };
    std::thread::scope(|scope| {
        let job = scope.spawn(|| beside.run(&address));
        // Each of several requests in one packet has its answer, in order.
        let many = "GET /v1/health HTTP/1.1\r\nhost: hub\r\n\r\n".repeat(499);
        let many = many + &request("GET /v1/health", "");
        assert_eq!(reply_to(at, many).matches("\r\n\r\nok\n").count(), 500);
        // The first of two headers counts, and the second gives no access.
        let twice = format!(
            "GET /v1/hub HTTP/1.1\r\nhost: hub\r\nconnection: close\r\nauthorization: Bearer x\r\nauthorization: {}\r\n\r\n",
            authorization()
        );
        says(error(&reply_to(at, twice), 401), &["not made with the hub's secret"]);
        let join = |headers: &str, body: &[u8]| {
            reply_to(at, [request("POST /v1/jobs/job/join", headers).as_bytes(), body].concat())
        };
        says(
            error(&join("content-encoding: gzip\r\ncontent-length: 4\r\n", b"\x1f\x8b\x08\0"), 400),
            &["join"],
        );
        let trailers = (0..100_000).map(|each| format!("t{each}: x\r\n")).collect::<String>();
        for chunked in [
            format!("1;{}", "e".repeat(1_000_000)),
            format!("2\r\n{{}}\r\n0\r\n{trailers}\r\n"),
            "ffffffffffffffffff\r\n".to_owned(),
        ] {
            let said = join("transfer-encoding: chunked\r\n", chunked.as_bytes());
            if !said.is_empty() {
                says(error(&said, 400), &["cut off"]);
            }
        }
        job.join().expect("the job beside goes on, with right bits");
    });
}

#[test]
fn paths_and_methods_that_are_none_are_json_and_repeat_little() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let get = |path: &str| reply_to(hub.address(), request(&format!("GET {path}"), ""));
    for path in ["/v1/jobs/%ff%fe/state", "/v1/jobs/%/state"] {
        let answer = get(path);
        error(&answer, if path.contains("ff") { 400 } else { answer[9..12].parse().unwrap() });
    }
    let long = get(&format!("/v1/jobs/{}/state", "a".repeat(60_000)));
    says(error(&long, 400), &["job name", "expected 1 to 64 letters"]);
    assert!(long.len() < 1000, "an answer of {} bytes", long.len());
    for job in ["..%2f..", "a%20b", "%1b%5b2J", "J%C3%BCrgen"] {
        says(error(&get(&format!("/v1/jobs/{job}/state")), 400), &["job name"]);
    }
    for part in ["x/2", "0/-1", "0/2/4294967296", "0/2/%20"] {
        says(error(&get(&format!("/v1/jobs/job/parts/{part}")), 400), &["the path", "numbers below 2^32"]);
    }
    says(
        error(&reply_to(hub.address(), request("PUT /v1/jobs/job/join", "")), 405),
        &["another method", "GET /"],
    );
    says(error(&reply_to(hub.address(), request("TRACE /v1/hub", "")), 405), &["another method"]);
}

/// One thread serves any number of requests for a part of a checkpoint. Each answer reads the file.
#[test]
fn a_flood_of_questions_for_parts_takes_one_thread() {
    alone(|| {
        let _watchdog = Watchdog::start();
        let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let hubs = directories.each_ref().map(|directory| {
            let checkpoints = Some(directory.path().to_owned());
            Hub::start(&HubSettings { checkpoints, ..settings(1, 30) }).unwrap()
        });
        // The part has 64 MB. For each answer the hub computes the digest of the part.
        let config = config_at(&addresses(&hubs), "job", 0, 1).with_terms(|terms| {
            (terms.keys, terms.chunk_bytes) = (vec![Key::f32("only", [32 << 20])], 1 << 20)
        });
        let mut session = Session::join(config).unwrap();
        session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(1.0)).unwrap();
        push_all(&mut session).unwrap();
        session.wait_all().unwrap();
        session.leave().unwrap();
        let [hub, _other] = hubs;
        let reader = Credential::find().unwrap().token(Right::Read, "job");
        let ask = format!(
            "GET /v1/jobs/job/parts/0/2/2 HTTP/1.1\r\nhost: hub\r\nconnection: close\r\nauthorization: Bearer {reader}\r\n\r\n"
        );
        let one = reply_to(hub.address(), &ask);
        assert!(one.contains(r#""rounds":[2]"#), "{one}");
        let crowd: Vec<TcpStream> = (0..200)
            .map(|_| {
                let mut client = TcpStream::connect(hub.address()).unwrap();
                client.write_all(ask.as_bytes()).unwrap();
                client
            })
            .collect();
        let beside = Training::small("beside");
        let address = hub.address().to_string();
        let most = std::thread::scope(|scope| {
            let job = scope.spawn(|| beside.run(&address));
            let mut most = 0;
            while !job.is_finished() {
                let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
                let names =
                    threads.map(|one| std::fs::read_to_string(one.path().join("comm")).unwrap_or_default());
                most = most.max(names.filter(|name| name == "phub-parts\n").count());
            }
            job.join().expect("the job beside goes on, with right bits");
            most
        });
        // A thread that has answered remains for a moment.
        assert!(most < 10, "{most} threads");
        drop(crowd);
        assert_eq!(describe(&address).jobs.len(), 0);
    });
}
