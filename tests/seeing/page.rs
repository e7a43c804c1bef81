//! The hub's page, and the events that keep it up to date.

use std::io::{BufRead, BufReader, Read};

use authority::{Credential, Right};
use fabric::conformance::Watchdog;
use hub_tests::program::until;
use hub_tests::{authorization, config, hub, push_all, ready_all, says};
use pbox_core::control::HubReply;
use phub_server::Hub;
use ureq::http::Response;

/// Asks the hub for a page, with these headers.
pub(super) fn get(hub: &Hub, path: &str, headers: &[(&str, &str)]) -> Response<ureq::Body> {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let request = agent.get(format!("http://{}{path}", hub.address()));
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).call().unwrap()
}

fn status(hub: &Hub, path: &str, headers: &[(&str, &str)]) -> u16 {
    get(hub, path, headers).status().as_u16()
}

/// The events in an answer.
struct Events(BufReader<Box<dyn Read>>);

impl Events {
    fn of(hub: &Hub, authorization: &str) -> Self {
        let answer = get(hub, "/v1/events", &[("authorization", authorization)]);
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Events(BufReader::new(Box::new(answer.into_body().into_reader())))
    }

    /// Returns the next event, as its name and its data.
    fn next(&mut self) -> Option<(String, String)> {
        let mut line = || {
            let mut line = String::new();
            (self.0.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
        };
        let event = (line()?, line().unwrap());
        assert_eq!(line().unwrap(), "", "an empty line ends an event");
        let value =
            |line: String, name: &str| line.strip_prefix(name).unwrap_or_else(|| panic!("{line}")).to_owned();
        Some((value(event.0, "event: "), value(event.1, "data: ")))
    }

    fn hub(&mut self) -> HubReply {
        let (name, data) = self.next().unwrap();
        assert_eq!(name, "hub");
        serde_json::from_str(&data).unwrap()
    }
}

#[test]
fn a_browser_gets_the_page_without_a_token_and_others_the_list() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut page = get(&hub, "/", &[("accept", "text/html,application/xhtml+xml,*/*;q=0.8")]);
    assert_eq!(
        (page.status().as_u16(), &page.headers()["content-type"]),
        (200, &"text/html; charset=utf-8".parse().unwrap())
    );
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    says(
        &policy,
        &["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "script-src 'nonce-"],
    );
    let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap();
    let text = page.body_mut().read_to_string().unwrap();
    assert_eq!(text.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    let other = get(&hub, "/", &[("accept", "text/html")]);
    assert!(
        !other.headers()["content-security-policy"].to_str().unwrap().contains(nonce),
        "a nonce is used once"
    );
    let list = get(&hub, "/", &[("accept", "*/*")]).body_mut().read_to_string().unwrap();
    says(list, &["GET  /v1/events"]);
    let elsewhere = [("accept", "text/html"), ("origin", "http://elsewhere.example")];
    assert_eq!(status(&hub, "/", &elsewhere), 403);
    assert_eq!(status(&hub, "/index.html", &[("accept", "text/html")]), 404);
}

#[test]
fn events_need_a_token_and_show_the_jobs_that_it_covers() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let secret = Credential::find().unwrap();
    let bearer = |right, job: &str| format!("Bearer {}", secret.token(right, job));
    assert_eq!(status(&hub, "/v1/events", &[]), 401);
    assert_eq!(status(&hub, "/v1/events", &[("authorization", "Bearer phub-read.*.0000")]), 401);
    assert_eq!(status(&hub, "/v1/events?token=phub-read", &[]), 401);
    let elsewhere = [("authorization", &*authorization()), ("origin", "http://elsewhere.example")];
    assert_eq!(status(&hub, "/v1/events", &elsewhere), 403);
    let mut sessions = ready_all(2, |rank| config(&hub, "seen", rank, 2));
    let _other = ready_all(1, |rank| config(&hub, "other", rank, 1));
    let names = |hub: HubReply| hub.jobs.into_iter().map(|job| job.name).collect::<Vec<_>>();
    assert_eq!(names(Events::of(&hub, &bearer(Right::Read, "*")).hub()), ["other", "seen"]);
    let mut events = Events::of(&hub, &bearer(Right::Read, "seen"));
    assert_eq!(names(events.hub()), ["seen"]);
    // The next round appears in a later event of the page.
    push_all(&mut sessions[1]).unwrap();
    until("the event says for whom the round waits", || {
        let job = events.hub().jobs.remove(0);
        assert_eq!(
            job.members.iter().filter_map(|member| member.transport.as_deref()).collect::<Vec<_>>(),
            ["shm"; 2]
        );
        job.rounds.is_some_and(|rounds| rounds.waits_for == [0] && !rounds.recent.is_empty())
    });
}

#[test]
fn there_are_so_many_listeners_and_a_place_is_free_again() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut all: Vec<Events> = (0..32).map(|_| Events::of(&hub, &authorization())).collect();
    all.iter_mut().for_each(|events| drop(events.hub()));
    let mut refused = get(&hub, "/v1/events", &[("authorization", &authorization())]);
    assert_eq!(refused.status(), 503);
    says(refused.body_mut().read_to_string().unwrap(), &["32 clients already listen", "try again"]);
    drop(all.pop());
    until("the place is free", || status(&hub, "/v1/events", &[("authorization", &authorization())]) == 200);
    // Listeners take no place from workers.
    let mut session = ready_all(1, |rank| config(&hub, "job", rank, 1)).remove(0);
    push_all(&mut session).unwrap();
    session.wait_all().unwrap();
}

#[test]
fn the_events_end_with_the_hub_and_say_why() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let (mut reads, silent) = (Events::of(&hub, &authorization()), Events::of(&hub, &authorization()));
    reads.hub();
    hub.stop("a test stops it"); // a client that does not read delays the stop only for a time
    drop(silent);
    let last = std::iter::from_fn(|| reads.next()).last().unwrap();
    assert_eq!(last, ("end".to_owned(), "\"a test stops it\"".to_owned()));
}
