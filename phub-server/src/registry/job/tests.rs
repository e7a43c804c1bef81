//! Tests of members: reports, requests and losses in each order that the lock allows. The tests that need no
//! core are in the coordinator's crate.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use coordinator::input::{Attach, Comes, Connect, Disconnect, Happened, Offer};
use coordinator::{Effect, Event, MemberOf, Request, Step, Stepped, Token};
use fabric::any::Transport;
use hub_threads::{CoreThread, Report};
use pbox_core::control::{BeginsRequest, JobState, JoinReply, RefusalCode, RelinkRequest};
use pbox_core::{Consistency, JobId, Members, OnLoss, Round};

use crate::registry::{Refusal, Registry, test_bed};

const JOB: JobId = JobId(0);

fn token(digits: &str) -> Token {
    Token(authority::unhex(digits).unwrap())
}

fn member(rank: u32) -> MemberOf {
    MemberOf { job: JOB, rank }
}

/// A hub of one core with one job, which begins with two members.
struct Bed {
    registry: Arc<Registry>,
    core: CoreThread,
    on_loss: OnLoss,
    members: Members,
    consistency: Consistency,
    /// The tokens of the members' joins, in the order of the joins.
    tokens: Vec<Token>,
}

impl Bed {
    fn new(on_loss: OnLoss, members: Members) -> Self {
        let (registry, core) = test_bed::registry();
        Bed { registry, core, on_loss, members, consistency: Consistency::Bsp, tokens: Vec::new() }
    }

    /// Returns a hub with a running job that continues after the loss of a worker.
    fn running() -> Self {
        let mut bed = Bed::new(OnLoss::Continue, Members::Workers);
        bed.join(0);
        bed.join(1);
        bed.begin();
        bed
    }

    /// Connects both members, so that the job begins.
    fn begin(&self) {
        self.attach(0);
        let [Effect::Cut(cut, Step::Hold)] = self.attach(1)[..] else { panic!("all are here") };
        for stepped in [Stepped::Held(None), Stepped::Released] {
            self.ask(Happened { job: JOB, event: Event::Cut(cut, stepped) });
        }
    }

    fn join(&mut self, rank: u32) {
        let mut request = test_bed::request();
        (request.rank, request.relinks) = (rank, true);
        (request.terms.workers, request.terms.on_loss) = (2, self.on_loss);
        (request.terms.level.members, request.terms.level.consistency) = (self.members, self.consistency);
        let joined = test_bed::runtime().block_on(self.registry.join("job".into(), request));
        self.core.obey();
        self.tokens.push(token(&joined.unwrap().token));
    }

    fn of_job<T>(&self, look: impl FnOnce(&coordinator::Job) -> T) -> T {
        self.registry.of_job(JOB, |state, _| look(state)).unwrap()
    }

    fn ask<R: Request>(&self, request: R) -> R::Answer {
        self.registry.lock().ask(request)
    }

    fn connect(&self, rank: u32, token: Token) -> Result<(), String> {
        self.ask(Connect { member: member(rank), token })
    }

    /// Reports that the core has its link to a member.
    fn attached(&self, rank: u32) -> Vec<Effect> {
        self.ask(Happened { job: JOB, event: Event::Attached(rank) })
    }

    /// Notes the transport of a member's links.
    fn has_links(&self, rank: u32, transport: Transport) {
        self.ask(Attach { member: member(rank), transport: transport.to_string(), nics: Vec::new() });
    }

    /// Connects a member, and reports that the core has its link.
    fn attach(&self, rank: u32) -> Vec<Effect> {
        self.connect(rank, Token([0; 16])).unwrap();
        self.has_links(rank, Transport::Tcp);
        self.attached(rank)
    }

    /// Returns the token with which rank 1 joined.
    fn token(&self) -> Token {
        self.tokens[1]
    }

    /// Reports that a link of rank 1 ended without a fault of the worker. Returns whether the job waits for
    /// new links.
    fn link_ends(&self) -> bool {
        let reason = "its link ended".to_owned();
        self.registry.report(Report::WorkerGone { job: JOB, rank: 1, reason, by_itself: true });
        self.of_job(|job| job.members.has(1))
    }

    /// Asks for new links of rank 1, and runs `meanwhile` before the answer. A refusal may come before
    /// `meanwhile`.
    fn relink(&self, token: Token, meanwhile: impl FnOnce()) -> Result<JoinReply, Refusal> {
        let request = RelinkRequest { token: shown(token), why: "a test".into() };
        let mut asked = pin!(self.registry.relink("job", request));
        test_bed::runtime().block_on(async {
            let mut look = || asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            match look() {
                Poll::Ready(answer) => return answer,
                Poll::Pending => meanwhile(),
            }
            match look() {
                Poll::Ready(answer) => answer,
                Poll::Pending => panic!("the cores have dropped the links"),
            }
        })
    }

    /// Reports that the core has dropped the lost links of rank 1.
    fn unlinked(&self) {
        self.registry.report(Report::Unlinked { job: JOB, rank: 1 });
    }

    fn is_unlinked(&self) -> bool {
        self.of_job(|job| job.members.get(1).is_some_and(|member| member.standing.why_unlinked().is_some()))
    }

    fn is_free(&self, rank: u32) -> bool {
        self.of_job(|job| job.members.get(rank).is_none())
    }
}

fn shown(token: Token) -> String {
    authority::hex(&token.0)
}

#[test]
fn lost_links_are_made_again_by_one_connection() {
    let bed = Bed::running();
    let join = bed.token();
    assert!(bed.link_ends() && bed.is_unlinked());
    assert!(bed.link_ends(), "the ends of its other links are no news");
    assert_eq!(bed.attached(1), []);
    assert!(bed.of_job(|job| job.members.has(1) && job.members.has_others(0)), "it takes part nevertheless");
    assert!(bed.is_unlinked(), "this link is one of the lost");
    let own = token(&bed.relink(join, || bed.unlinked()).unwrap().token);
    assert_eq!(bed.registry.expects(own), Ok((JOB, 1)));
    assert!(bed.connect(1, join).unwrap_err().contains("connected already"), "another token");
    bed.connect(1, own).unwrap();
    assert!(bed.connect(1, own).unwrap_err().contains("connected already"));
    bed.ask(Disconnect { member: member(1) });
    bed.connect(1, own).unwrap();
    assert!(bed.is_unlinked());
    bed.attached(1);
    assert!(!bed.is_unlinked());
}

#[test]
fn links_that_are_lost_again_wait_for_the_cores_again() {
    let bed = Bed::running();
    let join = bed.token();
    bed.link_ends();
    let first = token(&bed.relink(join, || bed.unlinked()).unwrap().token);
    bed.connect(1, first).unwrap();
    // The new links end, too, before the core has reported that it has them.
    assert!(bed.link_ends());
    let second = bed.relink(join, || {
        assert!(bed.registry.expects(first).is_err(), "the first connection is one of the lost");
        bed.attached(1);
        bed.unlinked();
    });
    let second = token(&second.unwrap().token);
    assert!(bed.is_unlinked(), "the link of the first connection does not count");
    bed.connect(1, first).unwrap_err();
    bed.connect(1, second).unwrap();
    bed.attached(1);
    assert!(!bed.is_unlinked());
    // On shared memory, too, the links of a worker may end while the worker is alive.
    bed.has_links(1, Transport::Shm);
    assert!(bed.link_ends());
}

#[test]
fn a_worker_that_is_lost_makes_no_links_again() {
    let bed = Bed::running();
    let join = bed.token();
    bed.link_ends();
    // The waiting request is refused at once, although the cores have not dropped the links.
    let refused = bed.relink(join, || {
        let reason = "it broke the protocol".to_owned();
        bed.registry.report(Report::WorkerGone { job: JOB, rank: 1, reason, by_itself: false });
    });
    let refusal = refused.unwrap_err();
    assert!(refusal.code == RefusalCode::WorkerLost && refusal.why.contains("it broke the protocol"));
    bed.registry.report(Report::Removed { job: JOB, rank: 1 });
    assert!(bed.is_free(1));
}

#[test]
fn a_first_round_is_confirmed_until_the_job_has_begun() {
    let mut bed = Bed::new(OnLoss::Continue, Members::Workers);
    bed.join(0);
    bed.join(1);
    let begins = |round| {
        let request = BeginsRequest { secret: String::new(), first_round: Round(round) };
        bed.registry.begins(JOB, request)
    };
    begins(0).unwrap();
    let Refusal { code, why, .. } = begins(3).unwrap_err();
    assert!(code == RefusalCode::NoState && why.contains("begins with round 0"), "{why}");
    bed.begin();
    let Refusal { code, why, .. } = begins(0).unwrap_err();
    assert!(code == RefusalCode::NoState && why.contains("has already begun"), "it may have written");
}

#[test]
fn a_failed_job_stays_failed_for_the_first_reason() {
    let mut bed = Bed::new(OnLoss::Stop, Members::Workers);
    bed.join(0);
    bed.join(1);
    bed.attach(0);
    bed.registry.fail(&mut bed.registry.lock(), JOB, "the first");
    bed.registry.fail(&mut bed.registry.lock(), JOB, "the second");
    let (job, rank) = (JOB, 1);
    bed.registry.report(Report::Attached { job, rank });
    bed.registry.report(Report::WorkerGone { job, rank, reason: "it died".into(), by_itself: true });
    let mut inner = bed.registry.lock();
    let (state, own) = inner.job(job).unwrap();
    assert_eq!(state.news.now().state, JobState::Failed { reason: "the first".into(), hub_stops: false });
    assert!(own.weights.is_none());
    drop(inner);
    assert!(!bed.ask(Offer { job, steps: vec![] }).unwrap() && bed.ask(Comes { job }).is_none());
    assert!(bed.connect(1, Token([0; 16])).is_ok(), "its news say what has become of it");
    assert_eq!(bed.attached(1), []);
}

#[test]
fn a_connection_that_led_nowhere_leaves_the_token_good_for_another() {
    let (registry, mut core) = test_bed::registry();
    test_bed::runtime().block_on(async {
        let token = registry.join("job".into(), test_bed::request()).await.unwrap().token;
        core.obey();
        let token = self::token(&token);
        let admission = registry.admission(token).unwrap();
        assert!(registry.admission(token).unwrap_err().contains("connected already"));
        registry.readmit(&admission);
        assert!(registry.admission(token).is_ok());
        registry.of_job(JobId(0), |state, _| assert!(!state.life.failed())).unwrap();
    });
}

#[test]
fn members_with_a_bound_of_staleness_are_not_further_apart() {
    let (registry, mut core) = test_bed::registry();
    let ssp = Consistency::Ssp { staleness: 3 };
    let join = |rank: u32, reached: u32, job: &str, consistency: Consistency| {
        let mut request = test_bed::request();
        (request.rank, request.reached) = (rank, Some(Round(reached)));
        (request.terms.workers, request.terms.level.consistency) = (2, consistency);
        test_bed::runtime().block_on(registry.join(job.into(), request))
    };
    join(0, 1, "job", ssp).unwrap();
    core.obey();
    let Refusal { code, why, .. } = join(1, 25_000, "job", ssp).expect_err("it is not believed");
    assert_eq!(code, RefusalCode::ReachedDiffers);
    assert!(why.contains("round 25000") && why.contains("at most 67 rounds apart"), "{why}");
    join(1, 68, "job", ssp).unwrap();
    // With ASP, workers may be any number of rounds apart, so the hub accepts the rounds that they report.
    join(0, 1, "another", Consistency::Asp).unwrap();
    join(1, Round::LIMIT.0, "another", Consistency::Asp).unwrap();
}
