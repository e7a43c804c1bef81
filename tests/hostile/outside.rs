//! Addresses that a join names. The hub sends no token to them, and sends requests only to the peers that its
//! operator allows.
//!
//! With such a request, the hub sends only a proof of the request, and it sends only requests that hubs make.
//! It repeats no text of the answer, accepts no number that is too large, and delays nobody else.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::mpsc;

use authority::{ALL_JOBS, Credential, Right};
use fabric::conformance::Watchdog;
use hub_tests::recorder::{Recorder, Seen, json};
use hub_tests::training::Training;
use hub_tests::{
    PATIENT_S, config_at, describe, hub, join_request, post_as, refusal, refused, says, settings,
};
use pbox_core::control::{ErrorReply, JoinRequest, Mesh, PROTOCOL, Peers};
use pbox_core::{JobTerms, Layout, Placement, Share};
use phub_server::{Hub, HubSettings};
use serde_json::{Value, json as value};

const JOIN: &str = "/v1/jobs/job/join";

/// Returns a worker of machine 1 of 2, whose hubs meet at this address.
fn with_mesh(meet: &str) -> JoinRequest {
    let mesh = Mesh { machine: "1/2".parse().unwrap(), meet: meet.to_owned() };
    JoinRequest { mesh: Some(mesh), ..join_request(0, 1) }
}

fn body(request: &JoinRequest) -> Vec<u8> {
    serde_json::to_vec(request).unwrap()
}

/// Returns the answer of a hub with `ports` ports to a join.
fn let_in(ports: u32, cores: &[u32]) -> Value {
    value!({"protocol": PROTOCOL, "token": "0".repeat(32), "cores": cores, "placement": "00", "ports": ports,
        "heartbeat_limit_ms": 10_000, "transports": [{"transport": "tcp", "addresses": ["127.0.0.1:1"]}]})
}

/// Plays the first hub of a mesh, whose second hub is at `other`.
fn first_of_mesh(other: String, join: impl Fn(&Seen) -> Value + Send + Sync + 'static) -> Recorder {
    // The recorder must know its own address.
    let (tell, own) = mpsc::sync_channel::<String>(1);
    let own = std::sync::Mutex::new((own, None::<String>));
    let recorder = Recorder::start(move |seen: &Seen| {
        let mut own = own.lock().unwrap();
        if own.1.is_none() {
            own.1 = Some(own.0.recv().unwrap());
        }
        let me = own.1.clone().unwrap();
        match seen.path.rsplit('/').next().unwrap() {
            "meet" => json(value!({"hubs": [me, other]})),
            "join" => json(join(seen)),
            _ => json(value!({})),
        }
    });
    tell.send(recorder.address()).unwrap();
    recorder
}

#[test]
fn a_hub_shows_no_token_to_an_address_of_a_join_and_survives_what_it_says() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let attacker = first_of_mesh(hub.address().to_string(), |_| let_in(u32::MAX, &[0]));
    let (_, why) = refusal(&hub, JOIN, body(&with_mesh(&attacker.address())));
    says(&why, &["4294967295 ports: expected 4096 at most"]);

    let seen = attacker.seen();
    let asked: Vec<&str> = seen.iter().map(|seen| seen.path.as_str()).collect();
    for path in ["/v1/health", "/v1/jobs/job/meet", "/v1/jobs/job.above/join"] {
        assert!(asked.contains(&path), "{asked:?}");
    }
    let secrets = Credential::find().unwrap();
    for Seen { path, shown, text, .. } in &seen {
        let rights = [Right::Read, Right::Join, Right::Operate, Right::Peer];
        let has_token = rights.iter().any(|right| text.contains(&format!("phub-{right}.")));
        assert!(!text.contains("Bearer") && !has_token, "{text}");
        for job in ["job", "job.above", ALL_JOBS] {
            for right in rights {
                let token = secrets.token(right, job).to_string();
                assert!(!text.contains(token.rsplit('.').next().unwrap()), "{path} shows {token}");
            }
        }
        // The proof that the recorder got gives access to nothing else.
        let Some(shown) = shown else { continue };
        let status = |path: &str, body: &[u8]| post_as(&hub, path, shown, body).0;
        assert_eq!(status(JOIN, b"{}"), 401, "{path}");
        assert_eq!(status("/v1/jobs/other/join", b"{}"), 401, "{path}");
        assert_eq!(status("/v1/jobs/job.above/checkpoint", b""), 401, "{path}");
        assert_eq!(status(path, b"{}"), 400, "another body");
        let get = ureq::get(format!("http://{}/v1/hub", hub.address())).header("authorization", shown);
        assert_eq!(get.call().unwrap_err().to_string(), "http status: 401");
    }
    let beside = Training::small("beside");
    let bits = |weights: &[Vec<f32>]| weights.concat().iter().map(|each| each.to_bits()).collect::<Vec<_>>();
    let trained = beside.run(&hub.address().to_string());
    assert_eq!(trained.concat(), bits(&beside.reference_after(beside.rounds)));
}

#[test]
fn a_worker_survives_a_hub_that_says_it_has_2_to_the_32_ports() {
    let _watchdog = Watchdog::start();
    for (answer, words) in [
        (let_in(u32::MAX, &[0]), "4294967295 ports: expected 4096"),
        (let_in(u32::MAX, &[u32::MAX - 1]), "4294967295 ports: expected 4096"),
        (let_in(1, &[0, 1, 2]), "3 cores: expected 1"),
        (let_in(2, &[0, 0]), "cores [0, 0] of 2"),
        (value!({"heartbeat_limit_ms": u64::MAX}), "ms for a heartbeat: expected 3600000"),
        (value!({"nodes": 4_000_000_000u32}), "no answer"),
        (
            value!({"above": {"schedule": "sliced", "split_above": 1, "cores": [4_000_000_000u32]}}),
            "no answer",
        ),
    ] {
        let mut whole = let_in(1, &[0]);
        answer.as_object().unwrap().iter().for_each(|(name, value)| whole[name] = value.clone());
        let recorder = Recorder::start(move |_| json(whole.clone()));
        let error = refused(config_at(&recorder.address(), "job", 0, 1));
        if words != "no answer" {
            says(&error, &[words]);
        }
        assert!(recorder.seen().iter().all(|seen| !seen.text.contains("Bearer")), "{error}");
    }
}

#[test]
fn one_of_several_hubs_has_no_hubs_above() {
    let _watchdog = Watchdog::start();
    let mut answer = let_in(1, &[0]);
    answer["above"] = value!({"schedule": "sliced", "split_above": 1, "cores": [1]});
    answer["pass"] = value!({"secret": "0".repeat(32), "worker": 1, "first_round": 0, "checkpoints": false});
    let hubs = [0, 1].map(|_| {
        let answer = answer.clone();
        Recorder::start(move |_| json(answer.clone())).address()
    });
    says(refused(config_at(&hubs.join(","), "job", 0, 1)), &["hubs above, for a job over several hubs"]);
}

#[test]
fn an_address_is_a_host_and_a_port() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let recorder = Recorder::start(|_| json(value!({})));
    let at = recorder.address();
    for wrong in [
        format!("{at}/path"),
        format!("{at}/path?query=:80"),
        format!("user@{at}"),
        format!("user:word@{at}"),
        format!("http://{at}"),
        "127.0.0.1".to_owned(),
        "a b:80".to_owned(),
    ] {
        let mesh = serde_json::to_string(&with_mesh("place:1")).unwrap().replace("place:1", &wrong);
        let (status, why) = refusal(&hub, JOIN, mesh);
        assert_eq!(status, 400, "{wrong}: {why}");
        says(&why, &["expected a machine and the host and port of the first machine's hub"]);

        let two = JobTerms { hubs: 2, ..join_request(0, 1).terms };
        let peers = Some(Peers { hubs: vec![hub.address().to_string(), wrong.clone()], pass: None });
        let (status, why) =
            refusal(&hub, JOIN, body(&JoinRequest { peers, terms: two, ..join_request(0, 1) }));
        assert_eq!(status, 400, "{wrong}: {why}");
        says(&why, &["not the address of a control port", "expected a host and a port"]);

        let meet = value!({"protocol": PROTOCOL, "machine": "0/2", "address": wrong, "wait_ms": 1});
        let (status, why) = refusal(&hub, "/v1/jobs/job/meet", meet.to_string());
        assert_eq!(status, 400, "{wrong}: {why}");
    }
    assert!(recorder.seen().is_empty(), "{:?}", recorder.seen());
}

#[test]
fn nothing_of_what_answers_elsewhere_comes_back_and_it_leads_nowhere() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let elsewhere = Recorder::start(|_| json(value!({})));
    let to = format!("location: http://{}/v1/health\r\n", elsewhere.address());
    for (status, headers) in [(200, String::new()), (404, String::new()), (307, to)] {
        let page = Recorder::start(move |seen: &Seen| {
            let status = if seen.path == "/v1/health" && status != 307 { 200 } else { status };
            Some((status, headers.clone(), "a page of an internal service".to_owned()))
        });
        let (_, why) = refusal(&hub, JOIN, body(&with_mesh(&page.address())));
        says(&why, &["no answer of a hub"]);
        assert!(!why.contains("internal"), "{why}");
        assert!(page.seen().len() > 1);
    }
    assert!(elsewhere.seen().is_empty(), "{:?}", elsewhere.seen());
}

#[test]
fn a_hub_asks_the_peers_that_its_operator_allows() {
    let _watchdog = Watchdog::start();
    let peers = Some("10.0.0.0/8,hub.example".parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Some(directory.path().to_owned());
    let hub = Hub::start(&HubSettings { peers, checkpoints, ..settings(1, PATIENT_S) }).unwrap();
    let attacker = Recorder::start(|_| json(value!({})));
    let mut asked = vec![with_mesh(&attacker.address())];
    let two = JobTerms { hubs: 2, ..join_request(0, 1).terms };
    let hubs = vec![hub.address().to_string(), attacker.address()];
    asked.push(JoinRequest { peers: Some(Peers { hubs, pass: None }), terms: two, ..join_request(0, 1) });
    for request in asked {
        let (_, why) = refusal(&hub, JOIN, body(&request));
        says(&why, &["--peers", "does not have 127.0.0.1"]);
    }
    assert!(attacker.seen().is_empty(), "{:?}", attacker.seen());
}

/// A hub connects to data paths only at allowed peers. Here an allowed peer says that its data path is at a
/// machine that is not allowed.
#[test]
fn an_answer_leads_a_data_path_only_to_the_peers_that_are_allowed() {
    let _watchdog = Watchdog::start();
    let peers = Some("127.0.0.1".parse().unwrap());
    let hub = Hub::start(&HubSettings { peers, ..settings(1, PATIENT_S) }).unwrap();
    let inside = TcpListener::bind("127.0.0.2:0").unwrap();
    inside.set_nonblocking(true).unwrap();
    let at = inside.local_addr().unwrap();
    let attacker = first_of_mesh(hub.address().to_string(), move |seen| {
        let asked: JoinRequest = serde_json::from_str(&seen.body).unwrap();
        let terms = &asked.terms;
        let layout = Layout::new(terms.keys.clone(), terms.chunk_bytes).unwrap();
        let share = Share::of_hub(terms, asked.hub);
        let placement = Placement::of_share(&layout, terms.level.schedule, share, 1);
        let mut answer = let_in(1, &[0]);
        answer["placement"] = value!(placement.digest());
        answer["transports"][0]["addresses"] = value!([at.to_string()]);
        answer["pass"] =
            value!({"secret": "0".repeat(32), "worker": 1, "first_round": 0, "checkpoints": false});
        answer
    });
    let (_, why) = refusal(&hub, JOIN, body(&with_mesh(&attacker.address())));
    says(&why, &["--peers", "does not have 127.0.0.2"]);
    let asked = inside.accept().map(|(_, from)| from).map_err(|error| error.kind());
    assert_eq!(asked.unwrap_err(), ErrorKind::WouldBlock, "it has not connected there");
}

#[test]
fn joins_that_wait_for_another_hub_hold_nobody_up() {
    let _watchdog = Watchdog::start();
    let directory = tempfile::tempdir().unwrap();
    let checkpoints = Some(directory.path().to_owned());
    let hub = Hub::start(&HubSettings { checkpoints, ..settings(1, PATIENT_S) }).unwrap();
    let silent = Recorder::start(|_| None);
    let hubs = vec![hub.address().to_string(), silent.address()];
    let two = JobTerms { hubs: 2, ..join_request(0, 1).terms };
    let request = JoinRequest { peers: Some(Peers { hubs, pass: None }), terms: two, ..join_request(0, 1) };
    let (ended, end) = mpsc::channel();
    let joins: Vec<_> =
        (0..4).map(|number| (format!("/v1/jobs/slow-{number}/join"), ended.clone())).collect();
    std::thread::scope(|scope| {
        for (path, ended) in joins {
            let (hub, request) = (&hub, &request);
            scope.spawn(move || {
                let said = refusal(hub, &path, body(request));
                ended.send(said).unwrap();
            });
        }
        silent.wait_for(4);
        // All joins wait, and the hub serves all other clients.
        assert_eq!(describe(&hub.address().to_string()).jobs.len(), 0);
        Training::small("beside").run(&hub.address().to_string());
        assert!(end.try_recv().is_err(), "no join has ended");
        silent.let_go();
    });
}

#[test]
fn a_member_is_no_hub_of_its_job() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(1), hub(1)];
    let terms = JobTerms { hubs: 2, ..join_request(0, 1).terms };
    let names = hubs.iter().map(|hub| hub.address().to_string()).collect();
    let peers = Some(Peers { hubs: names, pass: None });
    let joined =
        hub_tests::join_by_hand(&hubs[0], "job", &JoinRequest { peers, terms, ..join_request(0, 1) });
    // The worker has the job's secret, and is not allowed to use it.
    let secret = joined.pass.unwrap().secret;
    let all = Credential::find().unwrap();
    for right in [Right::Join, Right::Operate] {
        for job in ["job", ALL_JOBS] {
            let shown = format!("Bearer {}", all.token(right, job));
            for verb in
                ["failed", "lost", "last", "hold", "release", "arrived", "begins", "checkpoint", "written"]
            {
                let body = value!({"secret": secret, "reason": "a member says so"}).to_string();
                let path = format!("/v1/jobs/job/peers/{verb}");
                let (status, said) = post_as(&hubs[0], &path, &shown, body.as_bytes());
                assert_eq!(status, 403, "{verb} by {right} to {job}: {said}");
                says(serde_json::from_str::<ErrorReply>(&said).unwrap().error, &["peer"]);
            }
        }
    }
    let shown = format!("Phub-Member {}", joined.token);
    let (status, _) = post_as(&hubs[0], "/v1/jobs/job/peers/hold", &shown, b"{}");
    assert_eq!(status, 401);
    assert_eq!(describe(&hubs[0].address().to_string()).jobs.len(), 1, "the job is there");
}

#[test]
fn a_hub_that_serves_everybody_proves_nothing_for_them() {
    let _watchdog = Watchdog::start();
    let hub = Hub::start(&HubSettings { insecure: true, ..settings(1, PATIENT_S) }).unwrap();
    let attacker = first_of_mesh(hub.address().to_string(), |_| let_in(u32::MAX, &[0]));
    refusal(&hub, JOIN, body(&with_mesh(&attacker.address())));
    let seen = attacker.seen();
    assert!(seen.iter().any(|seen| seen.path.ends_with("/join")), "{seen:?}");
    assert!(seen.iter().all(|seen| seen.shown.is_none()), "{seen:?}");
}
