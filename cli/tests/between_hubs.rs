//! Readers of a job over several hubs while something happens between the hubs' answers: rounds, a new job, the end of a hub.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use fabric::conformance::Watchdog;
use membership::describe;
use pbox_core::control::JobReply;
use subscription::{NoWeights, Source, SourceSettings};

use crate::over_hubs::{SHAPES, check, list, serve, serve_at, step, while_counting, worker, worker_of};
use crate::support::{phub_server, says};

fn source(hubs: &str) -> Source {
    Source::new(SourceSettings::new(hubs, "job")).unwrap()
}

/// Starts a proxy to a hub, and returns its address. The proxy calls `asked` with each request for a state, before it passes the
/// request on.
fn through(hub: &str, asked: impl Fn(&str) + Send + Sync + 'static) -> String {
    through_each(hub, move |request| {
        if request.starts_with("GET /v1/jobs/job/state") {
            asked(request);
        }
    })
}

/// Starts a proxy to a hub, and returns its address. The proxy calls `asked` with each request.
fn through_each(hub: &str, asked: impl Fn(&str) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let (hub, asked) = (hub.to_owned(), Arc::new(asked));
    thread::spawn(move || {
        for client in listener.incoming().map(Result::unwrap) {
            let (hub, asked) = (hub.clone(), Arc::clone(&asked));
            thread::spawn(move || pass_on(client, &hub, &*asked));
        }
    });
    at
}

/// Passes on one request and its answer.
fn pass_on(mut client: TcpStream, hub: &str, asked: &dyn Fn(&str)) {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") {
        match client.read(&mut byte) {
            Ok(1) => request.push(byte[0]),
            _ => return,
        }
    }
    let request = String::from_utf8(request).unwrap();
    asked(request.lines().next().unwrap());
    let mut hub = TcpStream::connect(hub).unwrap();
    let head = request.trim_end();
    hub.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).unwrap();
    let _ = std::io::copy(&mut hub, &mut client);
    let _ = client.shutdown(Shutdown::Both);
}

/// Returns the job at a hub, if the hub has it.
fn job_at(hub: &str) -> Option<JobReply> {
    let hub = describe(hub, Duration::from_secs(30), None).unwrap();
    hub.jobs.into_iter().find(|job| job.name == "job")
}

#[test]
fn hubs_that_give_no_common_round_in_five_tries_are_asked_again_later() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hubs = serve(dir.path(), 2);
    let mut session = worker(&list(&hubs));
    step(&mut session);
    let [next, tries] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let is_slow = Arc::new(AtomicBool::new(true));
    let slow = {
        let (next, tries, is_slow) = (Arc::clone(&next), Arc::clone(&tries), Arc::clone(&is_slow));
        // Delays a request until the round that it names has passed, or for ten rounds if it names no round.
        move |request: &str| {
            tries.fetch_add(1, Ordering::Relaxed);
            let before =
                request.split("before=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
            let passed = before.map_or_else(|| next.load(Ordering::Relaxed) + 10, |before: u32| before + 2);
            while is_slow.load(Ordering::Relaxed) && next.load(Ordering::Relaxed) < passed {
                thread::yield_now();
            }
        }
    };
    let mut source = source(&format!("{},{}", hubs[0].address, through(&hubs[1].address, slow)));
    while_counting(&mut session, &next, || {
        match source.fetch() {
            Err(NoWeights::NotYet(why)) => {
                says(why, &["job \"job\"", "one round in 5 tries", "512 rounds ahead of the job; try again"]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(tries.load(Ordering::Relaxed), 5);
        is_slow.store(false, Ordering::Relaxed);
        // On a busy machine, the next fetch may also find no common round. Then the loop fetches again.
        let (origin, weights) = loop {
            match source.fetch() {
                Err(NoWeights::NotYet(_)) => {}
                fetched => break fetched.unwrap(),
            }
        };
        check(&weights, origin.round);
    });
}

/// Checks a reader between two jobs of one name. The last hub describes the job with `first` keys. Then the
/// workers begin a new job, and only then does the hub answer the request for weights.
fn made_anew(hubs: usize, first: usize) {
    let dir = tempfile::tempdir().unwrap();
    let hubs = serve(dir.path(), hubs);
    let mut session = worker_of(&list(&hubs), &SHAPES[..first]);
    step(&mut session);
    let [is_asked, may_pass] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let held = {
        let (is_asked, may_pass) = (Arc::clone(&is_asked), Arc::clone(&may_pass));
        move |_: &str| {
            is_asked.store(true, Ordering::Relaxed);
            while !may_pass.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        }
    };
    let (last, others) = hubs.split_last().unwrap();
    let others = others.iter().map(|hub| hub.address.clone());
    let addresses: Vec<String> = others.chain([through(&last.address, held)]).collect();
    let mut source = source(&addresses.join(","));
    thread::scope(|scope| {
        let fetched = scope.spawn(move || source.fetch());
        let has_read =
            |hub: &str| job_at(hub).unwrap().readers.is_some_and(|read| read.reads == 1 && read.now == 0);
        while !is_asked.load(Ordering::Relaxed)
            || !addresses[..hubs.len() - 1].iter().all(|hub| has_read(hub))
        {
            thread::yield_now();
        }
        session.leave().unwrap();
        while hubs.iter().any(|hub| job_at(&hub.address).is_some()) {
            thread::yield_now();
        }
        let mut session = worker(&list(&hubs));
        (0..2).for_each(|_| step(&mut session));
        may_pass.store(true, Ordering::Relaxed);
        let (origin, weights) = fetched.join().unwrap().unwrap();
        assert_eq!(origin.round, session.next_round().0);
        check(&weights, origin.round);
    });
}

#[test]
fn a_job_made_anew_between_the_answers_of_two_hubs_is_read() {
    let _watchdog = Watchdog::start();
    made_anew(2, SHAPES.len());
}

#[test]
fn a_job_made_anew_with_other_keys_between_description_and_answer_is_read() {
    let _watchdog = Watchdog::start();
    made_anew(1, 2);
}

#[test]
fn a_hub_that_ended_is_named_and_the_job_that_begins_anew_is_read() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut hubs = serve(dir.path(), 2);
    let all = list(&hubs);
    let mut session = worker(&all);
    step(&mut session);
    let mut source = source(&all);
    source.fetch().unwrap();
    let gone = hubs.pop().unwrap().address.clone(); // dropping kills the hub
    match source.fetch() {
        Err(NoWeights::Away(why)) => says(why, &[&gone]),
        other => panic!("{other:?}"),
    }
    drop(session);
    hubs.push(serve_at(dir.path(), &gone));
    match source.fetch() {
        Err(NoWeights::Away(why)) => says(why, &[&gone, "was started again"]),
        other => panic!("{other:?}"),
    }
    while !matches!(source.fetch(), Err(NoWeights::NoJob(_))) {
        thread::yield_now();
    }
    let mut session = worker(&all);
    step(&mut session);
    let (origin, weights) = source.fetch().unwrap();
    assert_eq!(origin.round, session.next_round().0);
    check(&weights, origin.round);
    session.leave().unwrap();
}

#[test]
fn a_publisher_whose_job_ends_before_its_first_version_fails() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hubs = serve(dir.path(), 1);
    let session = worker(&list(&hubs));
    let (send, requests) = std::sync::mpsc::channel();
    let asked = through_each(&hubs[0].address, move |request| drop(send.send(request.to_owned())));
    let to = dir.path().join("versions");
    let arguments = ["publish", "job", &asked, "--to", to.to_str().unwrap(), "--each-rounds", "1000000"];
    let publisher = phub_server(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    // The publisher's first try has two requests. With the third request, the publisher has seen the job, which is far
    // from the wanted round.
    requests.iter().take(3).for_each(|request| assert!(request.starts_with("GET /v1/hub"), "{request}"));
    session.leave().unwrap();
    let ended = publisher.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let said = String::from_utf8(ended.stderr).unwrap();
    says(&said, &["job \"job\" has ended, and no version of it was published in", to.to_str().unwrap()]);
    assert!(!to.exists(), "a new directory without versions does not stay");
}
