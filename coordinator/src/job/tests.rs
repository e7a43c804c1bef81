//! Tests of a job: joins, reports and losses in the orders that a hub allows.

use std::time::Duration;

use fabric::any::Transport;
use pbox_core::control::{
    Behind, CheckpointReply, HeartbeatReply, JobState, JoinRequest, Late, Left, LeftAt, PartState,
};
use pbox_core::{Consistency, JobId, Key, KeyId, Look, Numbers, Occasion, OnLoss, Optimizer, Share, Waits};

use super::*;
use crate::{Files, Secret, Token};

mod any_order;
mod checkpoints;
mod cuts;
mod last;

/// Returns a job of one core, for which workers are still missing.
fn gathering(workers: u32, on_loss: OnLoss, members: Members, cores: usize) -> Job {
    let optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
    let mut terms = JobTerms::new(workers, vec![Key::f32("a", [16])], optimizer);
    (terms.on_loss, terms.level.members) = (on_loss, members);
    let hubs = Hubs::new((Share::WHOLE, Vec::new()), Vec::new(), Secret([7; 16]), Round(0), Files::default());
    let made = Made { cores, ..Made::default() };
    let from = (Round(0), NumbersByRound::new(Numbers::new(optimizer)));
    let spec = JobSpec { id: JobId(0), name: "job".into(), terms: Arc::new(terms), made };
    Job::new(spec, hubs, from, Instant::now())
}

/// Returns a job of one core after two members have joined.
fn of_two(on_loss: OnLoss, members: Members) -> Job {
    let mut job = gathering(2, on_loss, members, 1);
    join(&mut job, 0);
    join(&mut job, 1);
    job
}

/// Returns a job that runs, and continues without lost workers.
fn running() -> Job {
    let mut job = of_two(OnLoss::Continue, Members::Workers);
    attach(&mut job, 0);
    attach(&mut job, 1);
    job.let_take_part(&[0, 1], Round(0));
    job
}

fn join(job: &mut Job, rank: u32) {
    job.add_member(rank, u64::from(rank), true, None, Instant::now());
}

/// Connects a member, and gives its link to the core.
fn attach(job: &mut Job, rank: u32) -> Arrival {
    job.members.connect(rank, Token([0; 16]), "job").unwrap();
    job.attached(rank)
}

/// Returns the code of the refusal, if a worker joins with this rank now.
fn code_of_a_join(job: &Job, rank: u32) -> Option<RefusalCode> {
    let join = Join::new("job", &JoinRequest::new(rank, (*job.spec.terms).clone()), Token([0; 16]));
    job.may_come(&join).err().map(|refused| refused.code)
}

/// Loses a worker, and lets the core remove it.
fn lose(job: &mut Job, rank: u32) {
    job.members.lose(rank);
    job.note_removed(rank);
}

#[test]
fn a_rank_is_free_when_the_cores_have_removed_its_worker() {
    let mut job = running();
    job.members.lose(1);
    assert!(
        !job.members.has(1)
            && code_of_a_join(&job, 1) == Some(RefusalCode::RankBusy)
            && !job.members.has_others(0)
    );
    assert!(job.members.get(1).is_some());
    job.note_removed(1);
    assert!(job.members.get(1).is_none());
}

#[test]
fn a_rank_stays_taken_in_a_job_that_does_not_continue() {
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    attach(&mut job, 0);
    attach(&mut job, 1);
    job.let_take_part(&[0, 1], Round(0));
    assert_eq!(job.leave(1, LeftAt::all(Round(3))), Leave::Left);
    assert!(!job.members.has(1));
    assert_eq!(code_of_a_join(&job, 1), Some(RefusalCode::RankTaken), "and not free soon");
    job.note_removed(1);
    assert_eq!(job.leave(0, LeftAt::all(Round(3))), Leave::Last);
    assert!(job.members.get(1).is_some());
}

#[test]
fn a_rank_that_is_taken_admits_nobody_else() {
    let job = of_two(OnLoss::Continue, Members::Workers);
    let join = Join::new("job", &JoinRequest::new(1, (*job.spec.terms).clone()), Token([0; 16]));
    let Refused { code, why } = job.may_come(&join).unwrap_err();
    assert!(code == RefusalCode::RankTaken && why.contains("rank 1 of job \"job\" is taken"), "{why}");
    let mut job = running();
    assert_eq!(code_of_a_join(&job, 1), Some(RefusalCode::RankBusy), "it may be free soon");
    job.members.lose(1);
    assert_eq!(code_of_a_join(&job, 1), Some(RefusalCode::RankBusy), "the core has not removed it");
    job.note_removed(1);
    assert_eq!(code_of_a_join(&job, 1), None);
}

#[test]
fn a_link_that_is_reported_after_the_loss_does_not_keep_the_rank() {
    let mut job = running();
    lose(&mut job, 1);
    join(&mut job, 1);
    job.members.connect(1, Token([0; 16]), "job").unwrap();
    // The core has the link, but its report has not arrived.
    job.members.lose(1);
    assert_eq!(job.attached(1), Arrival::Waiting);
    job.note_removed(1);
    assert!(job.members.get(1).is_none());
}

#[test]
fn a_worker_that_takes_the_rank_of_a_newcomer_does_not_take_part_by_the_cut_of_that_newcomer() {
    let now = Instant::now();
    let mut job = gathering(2, OnLoss::Continue, Members::Workers, 1);
    join(&mut job, 0);
    attach(&mut job, 0);
    job.let_take_part(&[0], Round(1));
    job.add_member(1, 7, true, None, now);
    job.members.connect(1, Token([7; 16]), "job").unwrap();
    let [Effect::Cut(cut, Step::Hold)] = job.handle(Event::Attached(1), now)[..] else { panic!("a cut") };
    job.lose(1, Cause::Other, "it dies");
    job.handle(Event::Removed(1), now);
    job.add_member(1, 8, true, None, now);
    job.members.connect(1, Token([8; 16]), "job").unwrap();
    let released = job.handle(Event::Cut(cut, Stepped::Held(Some(Round(3)))), now);
    let nobody = Step::Release { from: Round(3), admitted: [].into(), ahead: [].into() };
    assert_eq!(released, [Effect::Cut(cut, nobody)]);
    job.handle(Event::Cut(cut, Stepped::Released), now);
    assert!(!job.members.takes_part(1), "no core has its link");
}

#[test]
fn nobody_begins_to_take_part_after_the_last_round() {
    let (mut job, now) = (running(), Instant::now());
    lose(&mut job, 1);
    join(&mut job, 1);
    job.members.connect(1, Token([1; 16]), "job").unwrap();
    let (cut, _) = job.cut(Purpose::Snapshot(CutAt::LastRound), now);
    job.handle(Event::Cut(cut, Stepped::Held(Some(Round(3)))), now);
    job.handle(Event::Cut(cut, Stepped::Lines([Some(Round(3)), None].into())), now);
    assert_eq!(job.handle(Event::Attached(1), now), []);
    job.handle(Event::Cut(cut, Stepped::Ends), now);
    let over = job.handle(Event::Cut(cut, Stepped::Released), now);
    assert_eq!(over, [Effect::CutOver(cut, Ok(Round(3)))], "the newcomer waits for the next hub");
}

#[test]
fn a_newcomer_that_is_lost_before_its_cut_does_not_take_part() {
    let mut job = running();
    lose(&mut job, 1);
    join(&mut job, 1);
    assert_eq!(attach(&mut job, 1), Arrival::Newcomer(1));
    assert!(!job.members.has_others(0), "it does not take part yet");
    job.members.lose(1);
    job.let_take_part(&[1], Round(5));
    assert!(!job.members.has(1));
    assert!(job.news.now().members.iter().all(|member| member.from == Round(0)));
}

#[test]
fn a_hub_below_takes_part_when_it_is_ready_and_connected_in_any_order() {
    let mut job = of_two(OnLoss::Stop, Members::Hubs);
    assert_eq!(attach(&mut job, 0), Arrival::Waiting);
    assert_eq!(job.life.ready(0, &mut job.members, &mut job.news), Arrival::Waiting, "rank 1 is missing");
    assert_eq!(job.life.ready(1, &mut job.members, &mut job.news), Arrival::Waiting, "it is not connected");
    assert_eq!(attach(&mut job, 1), Arrival::Complete([0, 1].into()));
    assert_eq!(
        job.life.ready(1, &mut job.members, &mut job.news),
        Arrival::Waiting,
        "its request was made again"
    );
}

#[test]
fn a_job_waits_for_the_state_that_was_offered() {
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    assert!(job.note_state_offered(vec![]).unwrap());
    job.note_state_offered(vec![]).expect_err("once");
    assert_eq!(job.life.note_state_arriving(), None, "nobody has said whether it is wanted");
    attach(&mut job, 0);
    assert_eq!(attach(&mut job, 1), Arrival::Waiting);
    assert_eq!(job.life.state(), JobState::Gathering { missing: vec![0], machines: vec![] });
    assert_eq!(
        job.life.note_state_wanted((Round(9), Some(64)), &job.members, &mut job.news),
        Arrival::Waiting
    );
    assert_eq!(
        (job.life.note_state_arriving(), job.life.note_state_arriving()),
        (Some((Round(9), 64)), None)
    );
    assert_eq!(job.begin_with(None), Arrival::Complete([0, 1].into()));
    job.let_take_part(&[0, 1], Round(9));
    assert!(!job.note_state_offered(vec![]).unwrap(), "it has begun");
}

#[test]
fn a_state_that_rank_0_has_brought_is_saved_though_no_round_is_over() {
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    let piece = pbox_core::Piece { key: KeyId(0), chunks: 0..1, elements: 0..16 };
    job.hubs.pieces.push(piece);
    let numbers = job.numbers.clone();
    job.begin_with(Some((Round(9), numbers)));
    job.let_take_part(&[0, 1], Round(9));
    job.fail_and_save(("a test", Blame::Job), false, Instant::now());
    let held = LastStepped::Held(Ok(vec![pbox_core::Front { lowest: Round(9), highest: Round(9) }]));
    let effects = job.handle(Event::Last(held), Instant::now());
    let is_written = |effect: &Effect| match effect {
        Effect::Last(LastStep::Write(request)) => request.before == Round(9),
        _ => false,
    };
    assert!(effects.iter().any(is_written), "it is in no file: {effects:?}");
}

#[test]
fn a_state_that_nobody_wants_keeps_nobody_waiting() {
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    assert!(job.note_state_offered(vec![]).unwrap());
    attach(&mut job, 1);
    assert_eq!(attach(&mut job, 0), Arrival::Waiting);
    assert_eq!(
        job.life.note_state_wanted((Round(9), None), &job.members, &mut job.news),
        Arrival::Complete([0, 1].into())
    );
}

#[test]
fn a_job_that_waits_for_machines_says_so_once() {
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    attach(&mut job, 0);
    attach(&mut job, 1);
    let before = job.news.edition();
    job.life.wait_for_machines(vec![2], &mut job.news);
    assert_eq!(job.news.edition(), before + 1);
    job.life.wait_for_machines(vec![2], &mut job.news);
    assert_eq!(job.news.edition(), before + 1);
    assert_eq!(job.life.state(), JobState::Gathering { missing: vec![], machines: vec![2] });
    job.life.wait_for_machines(vec![], &mut job.news);
    assert_eq!(job.news.edition(), before + 2);
}

#[test]
fn a_worker_that_was_far_ahead_begins_with_no_round_beyond_the_last() {
    let mut job = of_two(OnLoss::Continue, Members::Workers);
    Arc::make_mut(&mut job.spec.terms).level.consistency = Consistency::Asp;
    job.life.note_worker_reached(0, Round(1), &mut job.news);
    job.life.note_worker_reached(1, Round::LIMIT, &mut job.news);
    job.first_round = Round(10);
    assert_eq!(job.life.ahead(&job.spec, job.first_round), [0, Round::LIMIT.0 - 10]);
}

#[test]
fn a_job_that_has_begun_forgets_what_its_workers_had_reached() {
    let mut job = of_two(OnLoss::Continue, Members::Workers);
    Arc::make_mut(&mut job.spec.terms).level.consistency = Consistency::Asp;
    for (rank, reached) in [(0, 15), (1, 18)] {
        attach(&mut job, rank);
        job.life.note_worker_reached(rank, Round(reached), &mut job.news);
    }
    job.first_round = Round(10);
    assert_eq!(job.life.ahead(&job.spec, job.first_round), [0, 3]);
    job.let_take_part(&[0, 1], Round(10));
    assert!(job.life.ahead(&job.spec, job.first_round).is_empty());
    assert_eq!(job.news.now().lost, 5, "rounds of the slowest");
    let members: Vec<u32> = job.news.now().members.iter().map(|member| member.from.0).collect();
    assert_eq!(members, [10, 13]);
    // A newcomer reports the round that it had reached, and begins with the round of the other workers.
    job.life.note_worker_reached(1, Round(20), &mut job.news);
    assert!(job.life.ahead(&job.spec, job.first_round).is_empty());
    assert_eq!(job.news.now().reached, Some(Round(20)));
}

/// Returns the effects when rank 1's link ends by itself.
fn link_ends(job: &mut Job) -> Vec<Effect> {
    let ended = Event::LinkEnded { rank: 1, reason: "its link ended".into(), by_itself: true };
    job.handle(ended, Instant::now())
}

fn is_lost(effects: &[Effect]) -> bool {
    let why = "worker 1 is gone: its link ended";
    matches!(effects, [Effect::Lost { rank: 1, cause: Cause::Link, reason, .. }, ..] if reason == why)
}

#[test]
fn the_links_of_a_worker_on_shared_memory_end_with_it() {
    let mut job = running();
    job.members.get_mut(1).unwrap().transport = Some(Transport::Shm);
    assert!(is_lost(&link_ends(&mut job)) && job.members.unlinked(1).is_none());
}

#[test]
fn a_worker_that_has_hung_up_and_has_no_links_is_lost_in_either_order() {
    let mut job = running();
    job.members.get_mut(1).unwrap().transport = Some(Transport::Tcp);
    assert_eq!(job.handle(Event::HungUp(1), Instant::now()), [], "its links are there");
    assert!(is_lost(&link_ends(&mut job)), "nobody is there to make others");
    let mut job = running();
    job.members.get_mut(1).unwrap().transport = Some(Transport::Tcp);
    job.handle(Event::HungUp(1), Instant::now());
    job.members.get_mut(1).unwrap().note_heartbeat(None, false, Instant::now()).unwrap();
    assert_eq!(link_ends(&mut job), [Effect::DropLinks(1, None)]);
    assert_eq!(link_ends(&mut job), [], "the ends of its other links are no news");
    assert!(is_lost(&job.handle(Event::HungUp(1), Instant::now())));
}

#[test]
fn a_member_that_hangs_up_before_it_connects_is_lost_soon_unless_it_sends_a_heartbeat() {
    let (mut job, now) = (of_two(OnLoss::Stop, Members::Workers), Instant::now());
    let (swept, later) = (Event::Swept(Duration::from_secs(30)), now + Duration::from_secs(3));
    let version = job.news.now().version;
    for rank in [0, 1] {
        assert_eq!(job.handle(Event::HungUp(rank), now), []);
    }
    assert!(job.news.now().version > version, "the news makes a living member send a heartbeat");
    assert_eq!(job.handle(swept.clone(), now), [], "it has some time for that");
    let last_heartbeat = job.members.get(1).unwrap().last_heartbeat;
    job.members.get_mut(1).unwrap().last_heartbeat = later;
    job.members.get_mut(0).unwrap().last_heartbeat = later;
    assert_eq!(job.handle(swept.clone(), later), [], "the hub was suspended");
    job.members.get_mut(1).unwrap().last_heartbeat = last_heartbeat;
    job.members.get_mut(0).unwrap().note_heartbeat(None, false, later).unwrap();
    let [Effect::Lost { rank: 1, cause: Cause::Link, reason, .. }, Effect::Fail(..)] =
        &job.handle(swept, later)[..]
    else {
        panic!("worker 1 alone is lost")
    };
    assert_eq!(reason, "worker 1 is gone: its heartbeat ended before it connected to the data path");
}

#[test]
fn a_join_whose_client_has_no_answer_does_not_count() {
    let mut job = gathering(2, OnLoss::Stop, Members::Workers, 1);
    join(&mut job, 0);
    join(&mut job, 1);
    assert_eq!(undo_join(&mut job, 1), [], "the job gathers on");
    assert_eq!(code_of_a_join(&job, 1), None, "its rank is free at once");
    assert!(
        matches!(undo_join(&mut job, 0)[..], [Effect::Lost { rank: 0, .. }, Effect::Fail(..)]),
        "nobody is left"
    );
    let mut job = running();
    lose(&mut job, 1);
    join(&mut job, 1);
    let effects = undo_join(&mut job, 1);
    assert!(effects.contains(&Effect::RemoveWorker(1)), "the cores hear that it is gone: {effects:?}");
    job.note_removed(1);
    assert_eq!(code_of_a_join(&job, 1), None);
}

#[test]
fn a_member_is_silent_for_as_long_as_the_limit() {
    let mut job = running();
    let (begun, limit) = (Instant::now(), Duration::from_secs(30));
    job.members.get_mut(0).unwrap().note_heartbeat(None, false, begun + limit).unwrap();
    assert_eq!(job.handle(Event::Swept(limit), begun), []);
    let lost = job.handle(Event::Swept(limit), begun + limit + Duration::from_secs(1));
    let [Effect::Lost { rank: 1, cause: Cause::Silent, reason: why, .. }, ..] = &lost[..] else {
        panic!("{lost:?}")
    };
    assert!(why.starts_with("worker 1 was silent for 31.0 s, the limit is 30.0 s"), "{why}");
}

/// Returns the failure after the loss of rank 1.
fn failure(job: &mut Job, cause: Cause) -> Option<(String, Blame)> {
    match &job.lose(1, cause, "it died")[..] {
        [Effect::Lost { goes_on: false, .. }, Effect::Fail(reason, blame)] => Some((reason.clone(), *blame)),
        [Effect::Lost { goes_on: true, .. }, ..] => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_goes_on_without_a_lost_worker_and_its_tokens_say_why() {
    let mut job = running();
    job.hubs.arrivals.note(1, 0, 2);
    let effects = job.lose(1, Cause::Other, "it died");
    assert!(!job.hubs.arrivals.note(1, 1, 2), "no hub expects it");
    let why = "job \"job\" continues without this worker: it died; join again to take part".to_owned();
    let reason = "it died".to_owned();
    let lost = Effect::Lost { rank: 1, cause: Cause::Other, reason: reason.clone(), goes_on: true };
    let told = Effect::TellLost(1, reason);
    assert_eq!(effects, [lost, Effect::RemoveWorker(1), told, Effect::Forget(1, why), Effect::Wake]);
    assert!(job.lose(1, Cause::Link, "its link ended").is_empty(), "it is lost once");
    let failed = Some(("it died; no worker is left".to_owned(), Blame::Job));
    assert_eq!(
        job.lose(0, Cause::Link, "it died").last(),
        failed.map(|(why, by)| Effect::Fail(why, by)).as_ref()
    );
}

#[test]
fn a_job_that_has_not_begun_or_does_not_go_on_fails_with_its_worker() {
    let died = |blame| Some(("it died".to_owned(), blame));
    assert_eq!(failure(&mut of_two(OnLoss::Continue, Members::Workers), Cause::Link), died(Blame::Job));
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    attach(&mut job, 0);
    attach(&mut job, 1);
    job.let_take_part(&[0, 1], Round(0));
    assert_eq!(failure(&mut job, Cause::Late), died(Blame::Job));
    assert_eq!(failure(&mut job, Cause::HubLost), died(Blame::Hub), "it may come back");
    job.fail("it died", false, Instant::now());
    assert!(job.lose(0, Cause::Link, "it died").is_empty());
}

#[test]
fn a_hub_below_that_is_gone_without_a_word_may_come_back() {
    let mut job = of_two(OnLoss::Stop, Members::Hubs);
    let mut blame = |cause| failure(&mut job, cause).unwrap().1;
    assert_eq!([Cause::Link, Cause::Silent].map(&mut blame), [Blame::Hub; 2]);
    assert_eq!([Cause::Late, Cause::Other].map(&mut blame), [Blame::Job; 2]);
}

#[test]
fn a_worker_that_has_left_closes_its_links() {
    let mut job = running();
    job.hubs.arrivals.note(1, 0, 2);
    job.leave(1, LeftAt::all(Round(3)));
    assert!(!job.hubs.arrivals.note(1, 1, 2), "no hub expects it");
    assert!(link_ends(&mut job).is_empty());
}

#[test]
fn a_job_fails_with_the_first_of_its_silent_workers() {
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    let later = Instant::now() + Duration::from_secs(31);
    let effects = job.handle(Event::Swept(Duration::from_secs(30)), later);
    let [Effect::Lost { rank: 0, .. }, Effect::Fail(why, Blame::Job)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(why.starts_with("worker 0 was silent"), "{why}");
}

#[test]
fn a_worker_that_leaves_a_job_that_gathers_gives_it_up() {
    let mut job = of_two(OnLoss::Continue, Members::Workers);
    attach(&mut job, 0);
    let why = "worker 0 gave up waiting for worker(s) [1] of 2 to join".to_owned();
    assert_eq!(job.leave(0, LeftAt::all(Round(0))), Leave::Fails(why.clone()));
    job.fail(&why, false, Instant::now());
    assert_eq!(job.leave(1, LeftAt::all(Round(0))), Leave::Nothing);
}

/// Returns the result of a check of a job in which nothing moves: a chunk in round 7 waits for rank 1.
fn waiting() -> Look {
    let owes = Waits { owes: 1, round: Some(Round(7)), is_waiting: false };
    Look { round: Round(7), done: 15, workers: [(1, owes)].into(), ..Look::default() }
}

/// Returns the effects of several checks of a job, each at this number of seconds.
fn judge(job: &mut Job, looks: &[(u64, &Look)], limit: Option<u64>, above: &[Late]) -> Vec<Vec<Effect>> {
    let (begun, limit) = (Instant::now(), limit.map(Duration::from_secs));
    let limits = LateLimits { warning: Duration::from_secs(10), limit };
    let at = |seconds: u64| begun + Duration::from_secs(seconds);
    looks.iter().map(|&(seconds, look)| job.judge(look, &limits, above.to_vec(), at(seconds))).collect()
}

#[test]
fn a_late_worker_is_named_once_and_is_lost_after_the_limit() {
    let mut job = running();
    let (look, moved) = (waiting(), Look { is_moving: true, ..waiting() });
    let looks = [(0, &look), (9, &look), (10, &look), (20, &look), (21, &moved), (40, &look), (51, &look)];
    let effects = judge(&mut job, &looks, Some(30), &[]);
    let (none, held_up) = (vec![], vec![Effect::HeldUp]);
    assert_eq!(effects[..6], [&none, &none, &held_up, &none, &held_up, &held_up].map(Vec::clone));
    let [Effect::Lost { rank: 1, cause: Cause::Late, reason, goes_on: true }, ..] = &effects[6][..] else {
        panic!("{effects:?}")
    };
    let why = "worker 1 lives and holds up round 7: 1 chunk(s) have waited for its push for 30 s; the limit is 30 s \
               (--late-limit-s)";
    assert_eq!(reason, why);
}

/// Worker 0 stands in round 7, and has pushed a key of round 8. Worker 1 cannot push this key, because it has no weights of round
/// 7.
#[test]
fn of_workers_that_wait_for_each_other_the_one_in_the_lowest_round_is_late() {
    let mut job = running();
    let owes = |round| Waits { owes: 1, round: Some(Round(round)), is_waiting: true };
    let workers = [(0, owes(7)), (1, owes(8))].into();
    let look = Look { round: Round(8), done: 15, workers, ..Look::default() };
    let effects = judge(&mut job, &[(0, &look), (31, &look)], Some(30), &[]);
    let lost = effects[1].iter().filter_map(|effect| match effect {
        Effect::Lost { rank, .. } => Some(*rank),
        _ => None,
    });
    assert_eq!(Vec::from_iter(lost), [0]);
}

/// A core may report twice: after the last core's report, further reports about a member do not count.
#[test]
fn a_report_too_many_of_a_core_counts_nothing() {
    let mut standing = Standing::TakesPart { relinked_by: None };
    standing.unlink(1, "a test", Instant::now());
    (0..2).for_each(|_| standing.note_dropped());
    assert!(standing.has_dropped());
    standing.lose(0);
    assert!(standing.note_removed(), "nothing is left to remove");
}

#[test]
fn a_leave_that_cannot_be_is_refused_and_the_member_stays() {
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    attach(&mut job, 0);
    attach(&mut job, 1);
    job.let_take_part(&[0, 1], Round(0));
    let keys = job.spec.terms.keys.len() as u32;
    let behind = |first, keys| Behind { first: KeyId(first), keys, round: Round(2) };
    let left = |behind| LeftAt { round: Round(3), behind: vec![behind] };
    let Leave::Refused(why) = job.leave(1, left(behind(keys - 1, 2))) else {
        panic!("a key beyond the last")
    };
    assert!(why.contains(&format!("the job has {keys} keys")), "{why}");
    assert!(job.members.has(1) && job.news.now().left.is_empty());
    let at = left(behind(keys - 1, 1));
    assert_eq!(job.leave(1, at.clone()), Leave::Left);
    assert_eq!(job.news.now().left, [Left { rank: 1, at }]);
}

/// A worker may leave although the hub awaits a push of the worker. Two examples: a hub below other hubs has no
/// session, and only sessions compare rounds. A worker of an older version names only one round for all its keys, even
/// if some keys are behind.
#[test]
fn a_push_that_waits_for_a_member_that_has_left_fails_the_job_at_the_second_look() {
    let mut job = of_two(OnLoss::Stop, Members::Workers);
    attach(&mut job, 0);
    attach(&mut job, 1);
    job.let_take_part(&[0, 1], Round(0));
    let look = waiting();
    assert_eq!(judge(&mut job, &[(0, &look), (2, &look)], None, &[]).concat(), [], "it may push");
    assert_eq!(job.leave(1, LeftAt::all(Round(8))), Leave::Left);
    let moved = Look { done: 16, ..waiting() };
    let effects = judge(&mut job, &[(3, &look), (4, &moved), (5, &moved)], None, &[]);
    assert_eq!(
        effects[..2],
        [vec![], vec![]],
        "what it had pushed may be on its way, and something has moved"
    );
    let [Effect::Fail(why, Blame::Job)] = &effects[2][..] else { panic!("{effects:?}") };
    assert!(
        why.starts_with("worker 1 has left the job, and 1 chunk(s) of round 7 wait for its push"),
        "{why}"
    );
    let look = Look { workers: Default::default(), ..moved };
    assert_eq!(judge(&mut job, &[(6, &look), (7, &look)], None, &[]).concat(), [], "nobody waits for it");
}

#[test]
fn where_nobody_is_late_the_hubs_above_say_who_is() {
    let mut job = running();
    let look = Look { workers: Default::default(), ..waiting() };
    let above = Late { rank: 3, who: "the hub of machine 3".into(), round: Round(7), chunks: 1, seconds: 12 };
    let effects = judge(&mut job, &[(0, &look), (12, &look)], None, std::slice::from_ref(&above));
    assert_eq!(effects, [vec![Effect::HeldUp], vec![]]);
    assert_eq!(job.news.now().held_up_by, [above]);
}

#[test]
fn a_job_ends_before_the_last_round_that_there_is() {
    let last = Look { round: Round::LIMIT, ..Look::default() };
    let effects = judge(&mut running(), &[(0, &last)], None, &[]).concat();
    assert!(
        matches!(&effects[..], [Effect::Fail(why, Blame::Job)] if why.contains("save the job's weights"))
    );
    let gathering = judge(&mut of_two(OnLoss::Stop, Members::Workers), &[(0, &last)], None, &[]);
    assert_eq!(gathering, [vec![]]);
}

#[test]
fn a_worker_has_other_links_when_all_cores_have_dropped_the_former_ones() {
    let (mut job, now) = (running(), Instant::now());
    let code = |refused: Result<Option<Effect>, Refused>| refused.unwrap_err().code;
    assert_eq!(code(job.ask_for_links(1, "a NIC is down", now)), RefusalCode::NoRelink, "it has had none");
    job.members.get_mut(1).unwrap().transport = Some(Transport::Tcp);
    job.handle(Event::HungUp(1), now);
    let drops = Ok(Some(Effect::DropLinks(1, None)));
    assert_eq!(job.ask_for_links(1, "a NIC is down", now), drops, "it asks, so it lives");
    assert_eq!(job.members.unlinked(1).unwrap().why, "worker 1 is gone: a NIC is down");
    assert_eq!(job.ask_for_links(1, "a NIC is down", now), Ok(None), "the core drops them");
    assert_eq!(job.members.grant_links(1, Token([1; 16]), "job"), Ok(Grant::Waits));
    job.handle(Event::Dropped(1), now);
    assert_eq!(job.members.grant_links(1, Token([1; 16]), "job"), Ok(Grant::Connection { former: None }));
    assert_eq!(
        job.members.grant_links(1, Token([2; 16]), "job"),
        Ok(Grant::Connection { former: Some(Token([1; 16])) })
    );
    assert!(
        job.members.connect(1, Token([1; 16]), "job").is_err()
            && job.members.connect(1, Token([2; 16]), "job").is_ok()
    );
    // The worker was admitted, and says that its new links are lost, too.
    assert_eq!(job.ask_for_links(1, "again", now), Ok(Some(Effect::DropLinks(1, Some(Token([2; 16]))))));
    job.lose(1, Cause::Link, "it died");
    assert_eq!(job.members.grant_links(1, Token([3; 16]), "job").unwrap_err().code, RefusalCode::JobFailed);
    job.fail("a test", false, now);
    assert_eq!(code(job.ask_for_links(0, "late", now)), RefusalCode::JobFailed);
}
