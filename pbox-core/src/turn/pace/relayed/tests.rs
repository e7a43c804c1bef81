//! Examples of a chunk's arrivals, from workers and from hubs above.

use super::*;

const FROM_ABOVE: u32 = 2;

/// Returns two workers and one chunk. The chunk's sums are sent to the hub above over the first of two links.
fn relayed(first: Round) -> Relayed {
    let mut pace = Relayed::new(2, vec![FROM_ABOVE], true);
    pace.begin_at(first);
    (0..2).for_each(|rank| pace.admit(rank, first));
    pace
}

#[test]
fn an_answer_that_nobody_asked_for_is_refused() {
    let mut pace = relayed(Round(0));
    assert_eq!(pace.check(0, FROM_ABOVE, 0), Err(OutOfTurn::NotYet(Round(0))));
    pace.above[0] = Above::Asked(Round(0));
    assert_eq!(pace.check(0, FROM_ABOVE, 1), Err(OutOfTurn::OtherRound { expected: Round(0) }));
    assert_eq!(
        pace.check(0, FROM_ABOVE + 1, 0),
        Err(OutOfTurn::OtherRound { expected: Round(0) }),
        "another core above"
    );
    assert_eq!(pace.check(0, FROM_ABOVE, 0), Ok(Round(0)));
    pace.above[0] = Above::Answered(Round(0));
    assert_eq!(pace.check(0, FROM_ABOVE, 0), Err(OutOfTurn::Duplicate(Round(0))));
}

#[test]
fn a_push_counts_as_at_a_hub_that_steps() {
    let mut pace = relayed(Round(0));
    assert_eq!(pace.check(0, 1, 0), Ok(Round(0)));
    assert!(!pace.below.note(0, 1));
    assert_eq!(pace.check(0, 1, 0), Err(OutOfTurn::Duplicate(Round(0))));
    assert!(pace.below.note(0, 0));
}

#[test]
fn a_hub_that_comes_later_waits_for_the_weights_of_the_round_before() {
    let pace = relayed(Round(7));
    assert_eq!((pace.round(0), pace.check(0, FROM_ABOVE, 6)), (Round(7), Ok(Round(6))));
    assert!(!pace.has_finished_before(0, Round(7)), "its workers are answered when the weights come");
}

#[test]
fn a_round_is_abandoned_when_its_last_worker_goes_and_another_comes_later() {
    let mut pace = Relayed::new(2, vec![FROM_ABOVE], true);
    pace.admit(0, Round(0));
    pace.admit(1, Round(1));
    assert_eq!(pace.abandoned(), None);
    pace.above[0] = Above::Asked(Round(0));
    pace.remove(0);
    assert_eq!(pace.abandoned(), None, "worker 1 pushes the next round");
    pace.above[0] = Above::Gathering;
    assert_eq!(pace.abandoned(), Some(Round(0)));
    pace.remove(1);
    assert_eq!(pace.abandoned(), None, "a job without workers ends anyway");
}

#[test]
fn nobody_joins_a_round_whose_sum_has_gone_up() {
    let mut pace = relayed(Round(3));
    pace.above[0] = Above::Gathering;
    assert_eq!(pace.round(0), Round(3));
    pace.above[0] = Above::Asked(Round(3));
    assert_eq!(pace.round(0), Round(4));
}

#[test]
fn weights_may_come_before_the_first_round_is_known() {
    let mut pace = Relayed::new(2, vec![FROM_ABOVE], true);
    assert_eq!(pace.check(0, FROM_ABOVE, 6), Ok(Round(6)));
    pace.above[0] = Above::Joining(Some(6));
    assert!(pace.check(0, FROM_ABOVE, 6).is_err(), "once");
    pace.begin_at(Round(64 + 7));
    assert_eq!(pace.above[0], Above::Answered(Round(64 + 6)));
}

#[test]
fn a_worker_with_other_links_gets_its_first_weights_when_they_have_come_down() {
    let mut pace = relayed(Round(7));
    (0..2).for_each(|rank| pace.forget(rank));
    assert_eq!(pace.handle_repeat(0, 1, 6), Some(Repeated::Waits), "the hub has no weights yet");
    pace.above[0] = Above::Gathering;
    assert_eq!([0, 1].map(|rank| pace.answer_due(0, Round(6), rank)), [None, Some(Round(6))]);
    assert_eq!(pace.handle_repeat(0, 0, 6), Some(Repeated::Due(Round(6))));
    assert_eq!(pace.handle_repeat(0, 1, 6), Some(Repeated::Answered(Round(6))));
}

#[test]
fn a_newcomer_with_other_links_waits_for_the_sum_of_the_round_before() {
    let mut pace = relayed(Round(7));
    pace.remove(1);
    pace.admit(1, Round(8));
    (pace.above[0], pace.contents[0]) = (Above::Asked(Round(7)), Content::Gradient);
    pace.below.note(0, 0);
    (0..2).for_each(|rank| pace.forget(rank));
    assert_eq!(pace.handle_repeat(0, 1, 7), Some(Repeated::Waits));
    assert_eq!(pace.handle_repeat(0, 0, 7), Some(Repeated::Waits));
    pace.below.advance(0, Content::Gradient);
    assert_eq!([0, 1].map(|rank| pace.answer_due(0, Round(7), rank)), [Some(Round(7)); 2]);
}
