//! Tests of a hub: the limits on jobs and on jobs of one address, the promises of memory, and what remains after an end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pbox_core::control::{JoinRequest, Pass, Peers};
use pbox_core::{JobTerms, Key, Numbers, NumbersByRound, Optimizer, Round, Share};

use super::*;
use crate::input::{self, Begin, Fail, HubOf, MemberOf};
use crate::job::{Blame, Job, JobSpec, LastStep, Leave, Made};
use crate::join::Join;
use crate::{LateLimits, Secret, Token};

mod any_order;

const GB: u64 = 1_000_000_000;
const JOBS_LIMIT: usize = 4;
const WORKERS: u32 = 2;
const ONE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)));
const OTHER: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)));

fn settings(quotas: Quotas) -> Settings {
    let late = LateLimits { warning: Duration::from_secs(30), limit: None };
    Settings { jobs_limit: JOBS_LIMIT, quotas, late }
}

/// Returns a hub with these quotas.
fn of_quotas(quotas: Quotas) -> Hub {
    Hub::new(settings(quotas))
}

fn terms() -> JobTerms {
    let optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
    JobTerms::new(WORKERS, vec![Key::f32("a", [16])], optimizer)
}

/// Begins a job of this owner. The job was promised `promised` bytes.
fn begin((id, name): (JobId, &str), owner: Option<IpAddr>, promised: u64) -> Begin {
    let hub = HubOf {
        names: Vec::new(),
        share: Share::WHOLE,
        pieces: Vec::new(),
        secret: Secret([7; 16]),
        first_round: Round(0),
        files: crate::Files::default(),
    };
    let made = Made { cores: 1, owner, promised, ..Made::default() };
    let from = (Round(0), NumbersByRound::new(Numbers::new(terms().optimizer)));
    let spec = JobSpec { id, name: name.to_owned(), terms: Arc::new(terms()), made };
    Begin { spec, hub, from }
}

fn room(gigabytes: u64, used: u64) -> Option<Memory> {
    let words = format!("this machine has {gigabytes}.00 GB");
    Some(Memory { room: gigabytes * GB, words, used: used * GB })
}

/// Makes a job that is promised this much memory.
fn make(hub: &mut Hub, name: &str, owner: Option<IpAddr>, bytes: u64) -> Result<JobId, Refused> {
    let Found::Free(id) = hub.find_or_reserve(name, owner)? else { panic!("{name} is not free") };
    let promised = hub.promise(Promise::new(name, &terms(), bytes, room(100, 0)));
    hub.names.release(name);
    promised?;
    hub.ask(begin((id, name), owner, bytes), Instant::now());
    Ok(id)
}

fn join(hub: &mut Hub, name: &str, rank: u32, token: Token, now: Instant) -> Result<JobId, Refused> {
    hub.join(Join::new(name, &JoinRequest::new(rank, terms()), token), now).map(|(id, _)| id)
}

/// Promises the memory for reading a join.
fn promise_join(hub: &mut Hub, bytes: u64) -> Result<(), Refused> {
    hub.ask(input::PromiseJoin { bytes, memory: room(100, 0) }, Instant::now())
}

/// Makes a member leave by its token. The bytes of the token are the member's rank.
fn leave(hub: &mut Hub, job: JobId, rank: u32, now: Instant) -> Leave {
    let (member, token) = (MemberOf { job, rank }, Some(Token([rank as u8; 16])));
    hub.ask(input::Leave { member, token, round: Round(3), behind: Vec::new() }, now)
}

/// Connects all members of a job, so that it begins.
fn run(job: &mut Job) {
    for rank in 0..WORKERS {
        job.members.connect(rank, Token([0; 16]), "job").unwrap();
        job.attached(rank);
    }
    job.let_take_part(&[0, 1], Round(0));
}

fn fail(hub: &mut Hub, id: JobId, now: Instant) {
    hub.fail(id, "a test", Blame::Job, false, now);
}

fn refused<T>(answer: Result<T, Refused>, code: RefusalCode, words: &[&str]) {
    let Err(refused) = answer else { panic!("it is let in") };
    assert_eq!(refused.code, code);
    words.iter().for_each(|words| assert!(refused.why.contains(words), "{}", refused.why));
}

#[test]
fn a_pass_lets_one_worker_in() {
    let (mut hub, now) = (of_quotas(Quotas::default()), Instant::now());
    make(&mut hub, "job", ONE, GB).unwrap();
    let secret = Secret([7; 16]).show();
    let pass = Pass { secret, worker: 7, first_round: Round(0), checkpoints: false };
    let mut with_pass = |rank: u32| {
        let peers = Peers { hubs: vec!["hub:1".into(), "hub:2".into()], pass: Some(pass.clone()) };
        let request = &JoinRequest { peers: Some(peers), ..JoinRequest::new(rank, terms()) };
        hub.join(Join::new("job", request, Token([rank as u8 + 1; 16])), now).map(|_| ())
    };
    with_pass(0).unwrap();
    refused(with_pass(1), RefusalCode::JobDiffers, &["worker 1 shows the pass of worker 0", "a new pass"]);
}

#[test]
fn one_job_more_than_the_limit_is_refused_until_another_ends() {
    let mut hub = of_quotas(Quotas::default());
    for number in 0..JOBS_LIMIT - 1 {
        make(&mut hub, &format!("job-{number}"), None, 0).unwrap();
    }
    // A job that is being made also counts against the limit on jobs.
    let making = hub.find_or_reserve("made", None).unwrap();
    assert_eq!(making, Found::Free(JobId(3)));
    refused(make(&mut hub, "another", None, 0), RefusalCode::JobsLimit, &["4 jobs", "--jobs-limit"]);
    hub.names.release("made");
    hub.ask(begin((JobId(3), "made"), None, 0), Instant::now());
    refused(make(&mut hub, "another", None, 0), RefusalCode::JobsLimit, &[]);
    fail(&mut hub, JobId(0), Instant::now());
    make(&mut hub, "another", None, 0).unwrap();
}

#[test]
fn a_hub_that_ends_with_its_jobs_takes_their_workers_and_one_that_stops_takes_nobody() {
    let mut hub = of_quotas(Quotas::default());
    make(&mut hub, "b", None, 0).unwrap();
    hub.find_or_reserve("a", None).unwrap();
    assert_eq!(hub.ask(input::Drain, Instant::now()), ["a", "b"]);
    refused(hub.find_or_reserve("c", None), RefusalCode::Draining, &["takes no new jobs"]);
    assert_eq!(hub.find_or_reserve("b", None), Ok(Found::Job));
    assert_eq!(hub.find_or_reserve("a", None), Ok(Found::Reserved));
    hub.ask(input::BeginStop { reason: "a test".into(), has_files: true }, Instant::now());
    refused(hub.find_or_reserve("b", None), RefusalCode::HubStops, &[STOPS]);
    refused(hub.find_or_reserve("c", None), RefusalCode::HubStops, &[STOPS]);
    assert!(!hub.names.is_empty() && hub.end.drains());
    fail(&mut hub, JobId(0), Instant::now());
    hub.names.release("a");
    assert!(hub.names.is_empty());
}

#[test]
fn an_address_has_its_jobs_and_no_more_and_others_have_theirs() {
    let mut hub = of_quotas(Quotas { jobs_per_address: Some(2), ..Quotas::default() });
    make(&mut hub, "a", ONE, 0).unwrap();
    make(&mut hub, "b", ONE, 0).unwrap();
    let words = ["10.0.0.1", "2 job(s)", "(a, b)", "--jobs-per-address allows 2"];
    refused(make(&mut hub, "c", ONE, 0), RefusalCode::Quota, &words);
    make(&mut hub, "c", OTHER, 0).unwrap();
    fail(&mut hub, JobId(0), Instant::now());
    make(&mut hub, "d", ONE, 0).unwrap();
}

#[test]
fn the_memory_of_a_job_and_of_an_address_has_a_limit() {
    let mut hub = of_quotas(Quotas { memory_per_address: Some(2 * GB), ..Quotas::default() });
    make(&mut hub, "a", ONE, GB).unwrap();
    make(&mut hub, "b", ONE, GB).unwrap();
    let words = ["10.0.0.1", "2 job(s)", "(a, b)", "--memory-per-address"];
    refused(make(&mut hub, "c", ONE, GB), RefusalCode::Quota, &words);
    assert_eq!(hub.promised(), 2 * GB, "a refused job has no promise");
    make(&mut hub, "c", OTHER, GB).unwrap();
    let mut hub = of_quotas(Quotas { memory_per_job: Some(GB - 1), ..Quotas::default() });
    refused(make(&mut hub, "a", ONE, GB), RefusalCode::Quota, &["--memory-per-job"]);
}

/// Formerly, a limit of some megabytes was shown as 0.00 GB.
#[test]
fn a_small_limit_is_shown_in_a_small_unit() {
    let small = Quotas { memory_per_job: Some(4_000_000), ..Quotas::default() };
    let made = make(&mut of_quotas(small), "a", ONE, 4_500_000);
    refused(made, RefusalCode::Quota, &["needs 4.50 MB", "lets a job have 4.00 MB"]);
    let small = Quotas { memory_per_address: Some(4_000), ..Quotas::default() };
    let made = make(&mut of_quotas(small), "a", ONE, 4_500);
    refused(
        made,
        RefusalCode::Quota,
        &["needs 4.50 kB", "has 0 bytes in", "--memory-per-address allows 4.00 kB"],
    );
}

#[test]
fn what_is_promised_and_not_used_is_used() {
    let promised = |gigabytes: u64| {
        let mut hub = of_quotas(Quotas::default());
        make(&mut hub, "job", None, gigabytes * GB).unwrap();
        hub
    };
    let fits = |needed: u64, room, hub: &Hub| hub.check_room(needed * GB, room);
    let (none, first) = (promised(0), promised(14));
    assert!(fits(14, room(23, 0), &none).is_ok());
    let refused = fits(14, room(23, 0), &first).unwrap_err().to_string();
    assert!(refused.contains("14.00 GB of memory, this machine has 23.00 GB"), "{refused}");
    assert!(refused.contains("14.00 GB are promised to other jobs"), "{refused}");
    assert!(fits(9, room(23, 0), &first).is_ok());
    // The first job has touched its memory. The room no longer has this memory, and the check must not count it
    // twice.
    assert!(fits(9, room(9, 14), &first).is_ok());
    assert!(fits(9, room(16, 7), &first).is_ok());
    assert!(fits(10, room(16, 7), &first).is_err());
    // Other memory of the process does not count as memory of jobs.
    assert!(fits(9, room(8, 14), &none).is_err());
    assert!(fits(9, None, &first).is_ok(), "who knows");
}

#[test]
fn the_promises_are_as_before_when_a_job_is_refused_fails_or_ends() {
    let mut hub = of_quotas(Quotas::default());
    make(&mut hub, "first", None, GB).unwrap();
    let large = make(&mut hub, "large", None, 1000 * GB);
    refused(large, RefusalCode::NoMemory, &["1000.00 GB of memory", "fewer workers"]);
    assert_eq!(hub.promised(), GB, "a refused job has no promise");
    let second = make(&mut hub, "second", None, GB).unwrap();
    promise_join(&mut hub, 5).unwrap();
    refused(promise_join(&mut hub, 100 * GB), RefusalCode::NoMemory, &["cannot read this join"]);
    assert_eq!(hub.promised(), 2 * GB + 5);
    hub.ask(input::EndJoin { bytes: 5 }, Instant::now());
    fail(&mut hub, second, Instant::now());
    assert_eq!(hub.promised(), GB);
    hub.ask(input::End { job: JobId(0) }, Instant::now());
    assert_eq!(hub.promised(), 0);
}

#[test]
fn the_name_of_a_failed_job_is_reserved_until_its_last_state_is_saved() {
    let (mut hub, now) = (of_quotas(Quotas::default()), Instant::now());
    let job = make(&mut hub, "job", ONE, GB).unwrap();
    for rank in 0..WORKERS {
        join(&mut hub, "job", rank, Token([rank as u8; 16]), now).unwrap();
    }
    run(hub.job_mut(job).unwrap());
    let fail = Fail { job, reason: "a test".into(), blame: Blame::Job, saves: true };
    let failed = hub.ask(fail, now).unwrap();
    assert!(failed.is_being_saved && failed.effects == [Effect::Last(LastStep::Hold)]);
    assert_eq!(hub.find_or_reserve("job", ONE), Ok(Found::Reserved));
    assert!(hub.names.saves_any() && !hub.names.is_empty());
    hub.names.release("job");
    assert_eq!(hub.find_or_reserve("job", ONE), Ok(Found::Free(JobId(1))));
    assert!(!hub.names.saves_any());
}

/// A worker may join a job after the job's last worker has left, while the hub is still leaving the hubs above.
#[test]
fn a_worker_that_joins_behind_the_last_leave_has_no_token_when_the_job_has_ended() {
    let (mut hub, now) = (of_quotas(Quotas::default()), Instant::now());
    let id = make(&mut hub, "job", None, 0).unwrap();
    hub.job_mut(id).unwrap().spec.made.is_below = true;
    let terms = &mut hub.job_mut(id).unwrap().spec.terms;
    Arc::make_mut(terms).on_loss = pbox_core::OnLoss::Continue;
    for rank in 0..WORKERS {
        join(&mut hub, "job", rank, Token([rank as u8; 16]), now).unwrap();
    }
    run(hub.job_mut(id).unwrap());
    assert_eq!(leave(&mut hub, id, 1, now), Leave::Left);
    hub.job_mut(id).unwrap().note_removed(1);
    assert_eq!(leave(&mut hub, id, 0, now), Leave::Last);
    join(&mut hub, "job", 1, Token([2; 16]), now).unwrap();
    hub.ask(input::End { job: id }, now);
    assert_eq!(hub.tokens.owner(Token([2; 16])), Err(Unserved::Unknown));
    assert_eq!(hub.tokens.owner(Token([0; 16])), Err(Unserved::Left), "a second leave changes nothing");
}

#[test]
fn a_failed_job_is_kept_for_its_members_until_it_is_old_or_others_have_failed_since() {
    let (mut hub, now) = (of_quotas(Quotas::default()), Instant::now());
    for number in 0..=JOBS_LIMIT as u8 {
        let id = make(&mut hub, "job", None, 0).unwrap();
        join(&mut hub, "job", 0, Token([number; 16]), now).unwrap();
        fail(&mut hub, id, now);
    }
    hub.sweep(now);
    let kept: Vec<JobId> = hub.jobs().map(|job| job.spec.id).collect();
    assert_eq!(kept, [1, 2, 3, 4].map(JobId), "the first is forgotten");
    let digits = |number| authority::hex(&[number; 16]);
    assert!(hub.member("job", &digits(1)).is_ok() && hub.member("another", &digits(1)).is_err());
    refused(hub.member("job", &digits(0)), RefusalCode::TokenUnknown, &["more than 60 s ago"]);
    hub.sweep(now + KEEP_FAILED);
    assert_eq!(hub.jobs().count(), 0);
    refused(hub.member("job", &digits(1)), RefusalCode::TokenUnknown, &[]);
}

#[test]
fn a_hub_that_stops_waits_for_its_members_and_for_the_hubs_above() {
    let (mut hub, now) = (of_quotas(Quotas::default()), Instant::now());
    let id = make(&mut hub, "job", None, 0).unwrap();
    join(&mut hub, "job", 1, Token([1; 16]), now).unwrap();
    assert_eq!(
        hub.ask(input::Stop { reason: "a test".into() }, now),
        [StopStep::Fail(vec![id], "a test".into())]
    );
    let failed = hub.fail(id, "a test", Blame::Job, false, now).unwrap();
    assert_eq!(failed.blame, Blame::Hub, "whatever ends while the hub stops, its stop ends");
    hub.ask(input::TellAbove { job: id }, now);
    assert_eq!(hub.ask(input::Stop { reason: "again".into() }, now), [], "all have failed");
    hub.ask(input::Told { member: MemberOf { job: id, rank: 0 } }, now);
    hub.ask(input::ToldAbove { job: id }, now);
    assert!(hub.end.has_unnotified(), "of a member");
    hub.ask(input::Told { member: MemberOf { job: id, rank: 1 } }, now);
    assert!(!hub.end.has_unnotified());
    hub.ask(input::TellAbove { job: id }, now);
    assert!(hub.end.has_unnotified(), "the hubs above");
    hub.ask(input::ToldAbove { job: id }, now);
    assert!(!hub.end.has_unnotified());
    assert!(hub.fail(id, "a test", Blame::Job, false, now).is_none());
    assert_eq!(hub.counts.failed_jobs, 1);
}
