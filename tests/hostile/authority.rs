//! A stranger who reaches the control port, and a user with another secret. Neither learns anything about a
//! job or changes anything, and the job's bits are right.

use std::io::{Read, Write};
use std::net::TcpStream;

use authority::{Credential, Right, Secret};
use fabric::any::Transport;
use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::{authorization, config, hub, join_request, push_all, ready_all, refused, says};
use pbox_core::control::{ErrorReply, RefusalCode};
use phub_server::Hub;

/// Sends a request that shows this authorization, or none. Returns the status and the body.
fn ask(hub: &Hub, method: &str, path: &str, shown: Option<&str>, body: &[u8]) -> (u16, Vec<u8>) {
    let url = format!("http://{}{path}", hub.address());
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let shown = shown.unwrap_or_default();
    let mut answer = match method {
        "GET" => agent.get(&url).header("authorization", shown).call(),
        _ => agent.post(&url).header("authorization", shown).send(body),
    }
    .unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_vec().unwrap())
}

#[test]
fn a_stranger_learns_nothing_and_changes_nothing() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
    sessions.iter_mut().for_each(|session| push_all(session).unwrap());
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    let before = ask(&hub, "GET", "/v1/jobs/job/state", Some(&authorization()), b"");
    assert_eq!(before.0, 200);

    let join = serde_json::to_vec(&join_request(1, 2)).unwrap();
    let foreign = Secret::random().unwrap().token(Right::Operate, "*");
    let shown = [None, Some("Bearer "), Some("Basic cm9vdDpyb290"), Some(&*format!("Bearer {foreign}"))];
    for shown in shown {
        for (method, path, body) in [
            ("GET", "/v1/hub", &b""[..]),
            ("GET", "/v1/jobs/job/state", b""),
            ("GET", "/v1/jobs/other/state", b""),
            ("GET", "/v1/jobs/job/parts/0/2", b""),
            ("POST", "/v1/jobs/job/join", &join),
            ("POST", "/v1/jobs/other/join", &join),
            ("POST", "/v1/jobs/job/checkpoint", b""),
            ("POST", "/v1/jobs/job/meet", b"{}"),
            ("POST", "/v1/jobs/job/peers/hold", br#"{"secret": "00"}"#),
        ] {
            let (status, said) = ask(&hub, method, path, shown, body);
            assert_eq!(status, 401, "{method} {path} {shown:?}");
            let ErrorReply { code, error, .. } = serde_json::from_slice(&said).unwrap();
            assert_eq!(code, RefusalCode::TokenForeign, "an empty header is one, too");
            says(&error, &["token"]);
            for secret in ["job", "rank", "nesterov", "/root", "sgd"] {
                assert!(!error.contains(secret), "{method} {path} tells {secret:?}: {error}");
            }
        }
        // These requests show the token of a join, which nobody has without a join.
        for verb in [
            "heartbeat",
            "relink",
            "leave",
            "learning-rate",
            "optimizer",
            "priorities",
            "compare",
            "offer",
            "ready",
            "state",
        ] {
            let body = br#"{"token": "00", "secret": "00", "seen": 0, "round": 1, "learning_rate": 1, "from_round": 1, "state_before": 1}"#;
            let (status, said) = ask(&hub, "POST", &format!("/v1/jobs/job/{verb}"), shown, body);
            assert_eq!(status, 401, "{verb}: {}", String::from_utf8_lossy(&said));
            // The hub reads nothing of the body. A hub that read the body would wait for the missing bytes.
            let wrong = "Phub-Member 0123456789abcdef0123456789abcdef";
            let mut half = TcpStream::connect(hub.address()).unwrap();
            let head = format!(
                "POST /v1/jobs/job/{verb} HTTP/1.1\r\nhost: hub\r\nauthorization: {wrong}\r\ncontent-length: 4000\r\n\r\n{{"
            );
            half.write_all(head.as_bytes()).unwrap();
            let mut said = [0; 12];
            half.read_exact(&mut said).unwrap();
            assert_eq!(said, *b"HTTP/1.1 404", "{verb}");
        }
    }
    assert_eq!(ask(&hub, "GET", "/v1/jobs/job/state", Some(&authorization()), b""), before);
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    let beside = Training::small("beside");
    let bits =
        |weights: Vec<Vec<f32>>| weights.iter().flatten().map(|each| each.to_bits()).collect::<Vec<_>>();
    assert_eq!(beside.run(&hub.address().to_string()).concat(), bits(beside.reference_after(beside.rounds)));
}

#[test]
fn a_worker_with_another_secret_is_refused_by_every_transport_and_told_where_its_secret_is() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    for transport in [Transport::Shm, Transport::Tcp] {
        let mut config = config(&hub, "job", 0, 1);
        config.transport = Some(transport);
        config.token = Some(Credential::parse("another-secret-of-16", "the file of a test").unwrap());
        let error = refused(config.clone());
        says(
            &error,
            &["does not let", "join", "not made with the hub's secret", "the file of a test", "PHUB_TOKEN"],
        );
        assert!(!error.contains("another-secret"), "{error}");

        // The user takes part with a token of this job, and not with a token of another job.
        let all = Credential::find().unwrap();
        for (job, lets) in [("job", true), ("other", false)] {
            let token = all.token(Right::Join, job).to_string();
            config.token = Some(Credential::parse(&token, "a test").unwrap());
            if lets {
                worker_shim::Session::join(config.clone()).unwrap().leave().unwrap();
            } else {
                says(refused(config.clone()), &["allows to join job \"other\"", "to join job \"job\""]);
            }
        }
    }
}
