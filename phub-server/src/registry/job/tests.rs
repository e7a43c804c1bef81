//! Tests of members: reports, requests and losses in orders that the lock allows.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fabric::any::Transport;
use pbox_core::control::{BeginsRequest, JobState, JoinReply, RelinkRequest};
use pbox_core::{Consistency, JobId, Members, OnLoss, Round};

use super::{Arrival, Job};
use crate::cores::{CoreThread, Report};
use crate::registry::{Refusal, Registry, Token, test_bed, token_of};

const JOB: JobId = JobId(0);

/// A hub of one core with one job, which begins with two members.
struct Bed {
    registry: Arc<Registry>,
    core: CoreThread,
    on_loss: OnLoss,
    members: Members,
    consistency: Consistency,
}

impl Bed {
    fn new(on_loss: OnLoss, members: Members) -> Self {
        let (registry, core) = test_bed::registry();
        Bed { registry, core, on_loss, members, consistency: Consistency::Bsp }
    }

    /// A job that runs, and goes on without lost workers.
    fn running() -> Self {
        let mut bed = Bed::new(OnLoss::Continue, Members::Workers);
        for rank in [0, 1] {
            bed.join(rank);
            bed.attach(rank);
        }
        bed.of_job(|job| job.take_part(&[0, 1], Round(0)));
        bed
    }

    fn join(&mut self, rank: u32) -> Token {
        let mut request = test_bed::request();
        (request.rank, request.relinks) = (rank, true);
        (request.terms.workers, request.terms.on_loss) = (2, self.on_loss);
        (request.terms.level.members, request.terms.level.consistency) = (self.members, self.consistency);
        let joined = test_bed::runtime().block_on(self.registry.join("job".into(), request));
        self.core.obey();
        token_of(&joined.unwrap().token)
    }

    fn of_job<T>(&self, look: impl FnOnce(&mut Job) -> T) -> T {
        self.registry.of_job(JOB, look).unwrap()
    }

    /// A member connects, and the core has its link.
    fn attach(&self, rank: u32) -> Arrival {
        self.of_job(|job| {
            job.connect(rank, [0; 16]).unwrap();
            job.members[rank as usize].as_mut().unwrap().transport = Some(Transport::Tcp);
            job.attached(rank)
        })
    }

    /// The token with which rank 1 joined.
    fn token(&self) -> Token {
        let inner = self.registry.lock();
        inner.tokens.iter().find(|(_, of)| of.1 == 1).map(|(token, _)| *token).unwrap()
    }

    /// A link of rank 1 ends by itself. Whether the job waits until others are made.
    fn link_ends(&self) -> bool {
        self.registry.waits_for_links(&mut self.registry.lock(), JOB, 1, "its link ended")
    }

    /// Rank 1 wants to make links again. An answer comes while `meanwhile` is over.
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

    /// The core says that it has dropped the lost links of rank 1.
    fn unlinked(&self) {
        self.registry.report(Report::Unlinked { job: JOB, rank: 1 });
    }

    fn is_unlinked(&self) -> bool {
        self.of_job(|job| job.unlinked(1).is_some())
    }

    fn is_free(&self, rank: u32) -> bool {
        self.of_job(|job| job.member(rank).is_none())
    }
}

fn shown(token: Token) -> String {
    format!("{:032x}", u128::from_be_bytes(token))
}

#[test]
fn a_rank_is_free_when_the_cores_have_removed_its_worker() {
    let bed = Bed::running();
    bed.of_job(|job| {
        job.lost(1);
        assert!(!job.has(1) && job.may_become_free(1) && !job.has_others(0));
    });
    assert!(!bed.is_free(1));
    bed.of_job(|job| job.removed(1));
    assert!(bed.is_free(1));
}

#[test]
fn a_rank_stays_taken_in_a_job_that_does_not_continue() {
    let mut bed = Bed::new(OnLoss::Stop, Members::Workers);
    for rank in [0, 1] {
        bed.join(rank);
        bed.attach(rank);
    }
    bed.of_job(|job| {
        job.take_part(&[0, 1], Round(0));
        assert!(!job.left(1, Round(3)) && !job.has(1) && !job.may_become_free(1));
        job.removed(1);
        assert!(job.left(0, Round(3)), "the last");
    });
    assert!(!bed.is_free(1));
}

#[test]
fn a_link_that_is_reported_after_the_loss_does_not_keep_the_rank() {
    let mut bed = Bed::running();
    bed.of_job(|job| {
        job.lost(1);
        job.removed(1);
    });
    bed.join(1);
    bed.of_job(|job| {
        job.connect(1, [0; 16]).unwrap();
        // The core has the link, and has not said so yet.
        job.lost(1);
        assert_eq!(job.attached(1), Arrival::Waiting);
        job.removed(1);
    });
    assert!(bed.is_free(1));
}

#[test]
fn a_newcomer_that_is_lost_before_its_cut_does_not_take_part() {
    let mut bed = Bed::running();
    bed.of_job(|job| {
        job.lost(1);
        job.removed(1);
    });
    bed.join(1);
    assert_eq!(bed.attach(1), Arrival::Newcomer(1));
    bed.of_job(|job| {
        assert!(!job.has_others(0), "it does not take part yet");
        job.lost(1);
        job.take_part(&[1], Round(5));
        assert!(!job.has(1));
        assert!(job.news.borrow().members.iter().all(|member| member.from == Round(0)));
    });
}

#[test]
fn a_hub_below_takes_part_when_it_is_ready_and_connected_in_any_order() {
    let mut bed = Bed::new(OnLoss::Stop, Members::Hubs);
    bed.join(0);
    bed.join(1);
    assert_eq!(bed.attach(0), Arrival::Waiting);
    assert_eq!(bed.of_job(|job| job.ready(0)), Arrival::Waiting, "rank 1 is missing");
    assert_eq!(bed.of_job(|job| job.ready(1)), Arrival::Waiting, "it is not connected");
    assert_eq!(bed.attach(1), Arrival::Complete([0, 1].into()));
    assert_eq!(bed.of_job(|job| job.ready(1)), Arrival::Waiting, "its request was made again");
}

#[test]
fn lost_links_are_made_again_by_one_connection() {
    let bed = Bed::running();
    let join = bed.token();
    assert!(bed.link_ends() && bed.is_unlinked());
    assert!(bed.link_ends(), "the ends of its other links are no news");
    bed.of_job(|job| {
        assert_eq!(job.attached(1), Arrival::Waiting);
        assert!(job.has(1) && job.has_others(0), "it takes part all the same");
    });
    assert!(bed.is_unlinked(), "this link is one of the lost");
    let own = token_of(&bed.relink(join, || bed.unlinked()).unwrap().token);
    assert_eq!(bed.registry.expects(own), Ok((JOB, 1)));
    bed.of_job(|job| {
        assert!(job.connect(1, join).unwrap_err().contains("connected already"), "another token");
        job.connect(1, own).unwrap();
        assert!(job.connect(1, own).unwrap_err().contains("connected already"));
        job.not_connected(1);
        job.connect(1, own).unwrap();
        assert!(job.unlinked(1).is_some());
        job.attached(1);
    });
    assert!(!bed.is_unlinked());
}

#[test]
fn links_that_are_lost_again_wait_for_the_cores_again() {
    let bed = Bed::running();
    let join = bed.token();
    bed.link_ends();
    let first = token_of(&bed.relink(join, || bed.unlinked()).unwrap().token);
    bed.of_job(|job| job.connect(1, first).unwrap());
    // Its new links end, too, before the core has said that it has them.
    assert!(bed.link_ends());
    let second = bed.relink(join, || {
        assert!(bed.registry.expects(first).is_err(), "the first connection is one of the lost");
        bed.of_job(|job| job.attached(1));
        bed.unlinked();
    });
    let second = token_of(&second.unwrap().token);
    bed.of_job(|job| {
        assert!(job.unlinked(1).is_some(), "the link of the first connection does not count");
        job.connect(1, first).unwrap_err();
        job.connect(1, second).unwrap();
        job.attached(1);
        assert!(job.unlinked(1).is_none());
    });
    // On shared memory, too, the links of such a worker may end while it lives.
    bed.of_job(|job| job.members[1].as_mut().unwrap().transport = Some(Transport::Shm));
    assert!(bed.link_ends());
}

#[test]
fn the_links_of_a_worker_on_shared_memory_end_with_it() {
    let bed = Bed::running();
    bed.of_job(|job| job.members[1].as_mut().unwrap().transport = Some(Transport::Shm));
    assert!(!bed.link_ends() && !bed.is_unlinked());
}

#[test]
fn a_worker_that_has_hung_up_and_has_no_links_is_lost_in_either_order() {
    let bed = Bed::running();
    bed.of_job(|job| assert_eq!(job.hangs_up(1), None, "its links are there"));
    assert!(!bed.link_ends(), "nobody is there to make others");
    bed.of_job(|job| job.heard_of(1, None)).unwrap();
    assert!(bed.link_ends());
    bed.of_job(|job| assert_eq!(job.hangs_up(1).as_deref(), Some("its link ended")));
}

#[test]
fn a_worker_that_is_lost_makes_no_links_again() {
    let bed = Bed::running();
    let join = bed.token();
    bed.link_ends();
    // The request that waits is refused at once: the cores have not dropped the links.
    let refused = bed.relink(join, || {
        let reason = "it broke the protocol".to_owned();
        bed.registry.report(Report::WorkerGone { job: JOB, rank: 1, reason, by_itself: false });
    });
    assert!(matches!(refused, Err(Refusal::Gone(why)) if why.contains("it broke the protocol")));
    bed.registry.report(Report::Removed { job: JOB, rank: 1 });
    assert!(bed.is_free(1));
}

#[test]
fn a_job_waits_for_the_state_that_was_offered() {
    let mut bed = Bed::new(OnLoss::Stop, Members::Workers);
    bed.join(0);
    bed.join(1);
    bed.of_job(|job| {
        assert!(job.state_offered(vec![]).unwrap());
        job.state_offered(vec![]).expect_err("once");
        assert_eq!(job.state_comes(), None, "nobody has said whether it is wanted");
    });
    bed.attach(0);
    assert_eq!(bed.attach(1), Arrival::Waiting);
    bed.of_job(|job| {
        assert_eq!(job.state(), JobState::Gathering { missing: vec![0], machines: vec![] });
        assert_eq!(job.state_wanted(Round(9), Some(64)), Arrival::Waiting);
        assert_eq!((job.state_comes(), job.state_comes()), (Some((Round(9), 64)), None));
        assert_eq!(job.begin_with(None), Arrival::Complete([0, 1].into()));
        job.take_part(&[0, 1], Round(9));
        assert!(!job.state_offered(vec![]).unwrap(), "it has begun");
    });
}

#[test]
fn a_state_that_nobody_wants_keeps_nobody_waiting() {
    let mut bed = Bed::new(OnLoss::Stop, Members::Workers);
    bed.join(0);
    bed.join(1);
    assert!(bed.of_job(|job| job.state_offered(vec![])).unwrap());
    bed.attach(1);
    assert_eq!(bed.attach(0), Arrival::Waiting);
    assert_eq!(bed.of_job(|job| job.state_wanted(Round(9), None)), Arrival::Complete([0, 1].into()));
}

#[test]
fn a_job_that_waits_for_machines_says_so_once() {
    let mut bed = Bed::new(OnLoss::Stop, Members::Workers);
    for rank in [0, 1] {
        bed.join(rank);
        bed.attach(rank);
    }
    bed.of_job(|job| {
        job.wait_for_machines(vec![2]);
        let version = job.news.borrow().version;
        job.wait_for_machines(vec![2]);
        assert_eq!(job.news.borrow().version, version);
        assert_eq!(job.state(), JobState::Gathering { missing: vec![], machines: vec![2] });
        job.wait_for_machines(vec![]);
        assert_eq!(job.news.borrow().version, version + 1);
    });
}

#[test]
fn a_job_that_has_begun_forgets_what_its_workers_had_reached() {
    let mut bed = Bed::new(OnLoss::Continue, Members::Workers);
    bed.consistency = Consistency::Asp;
    for (rank, reached) in [(0, 15), (1, 18)] {
        bed.join(rank);
        bed.attach(rank);
        bed.of_job(|job| job.worker_has_reached(rank, Round(reached)));
    }
    bed.of_job(|job| {
        job.first_round = Round(10);
        assert_eq!(job.ahead(), [0, 3]);
        job.take_part(&[0, 1], Round(10));
        assert!(job.ahead().is_empty());
        assert_eq!(job.news.borrow().lost, 5, "rounds of the slowest");
        let members = |job: &Job| job.news.borrow().members.iter().map(|m| m.from.0).collect::<Vec<_>>();
        assert_eq!(members(job), [10, 13]);
        // A newcomer says how far it was, and begins where the others are.
        job.worker_has_reached(1, Round(20));
        assert!(job.ahead().is_empty());
        assert_eq!(job.news.borrow().reached, Some(Round(20)));
    });
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
    assert!(matches!(begins(3), Err(Refusal::Conflict(why)) if why.contains("begins with round 0")));
    for rank in [0, 1] {
        bed.attach(rank);
    }
    bed.of_job(|job| job.take_part(&[0, 1], Round(0)));
    assert!(
        matches!(begins(0), Err(Refusal::Conflict(why)) if why.contains("has begun")),
        "it may have written"
    );
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
    let job = inner.jobs.get_mut(&job).unwrap();
    assert_eq!(job.state(), JobState::Failed { reason: "the first".into(), hub_stops: false });
    assert!(job.weights.is_none() && !job.state_offered(vec![]).unwrap() && job.state_comes().is_none());
    assert!(job.connect(1, [0; 16]).is_ok(), "its news say what has become of it");
    assert_eq!(job.attached(1), Arrival::Waiting);
}
