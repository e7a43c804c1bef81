//! Arrivals and the roster, by examples.

use super::*;

impl Arrivals {
    fn arrive(&mut self, index: usize, rank: u32, round_bits: u8) -> Result<bool, OutOfTurn> {
        self.check(index, rank, round_bits)?;
        Ok(self.note(index, rank))
    }
}

fn arrivals(chunks: usize, ranks: u32) -> Arrivals {
    let mut arrivals = Arrivals::new(chunks, ranks, false);
    (0..ranks).for_each(|rank| arrivals.admit(rank, Round(0)));
    arrivals
}

#[test]
fn the_last_of_any_order_makes_a_chunk_whole() {
    let mut arrivals = arrivals(1, 130);
    for round in 0..300u32 {
        for step in 0..130u32 {
            let rank = (step * 7 + round) % 130;
            assert!(!arrivals.is_whole(0));
            assert_eq!(arrivals.arrive(0, rank, Round(round).low_bits()), Ok(step == 129));
        }
        assert!(arrivals.is_whole(0));
        arrivals.advance(0, Content::Gradient);
    }
}

#[test]
fn repeats_and_other_rounds_are_seen() {
    let mut arrivals = arrivals(2, 2);
    arrivals.arrive(1, 0, 0).unwrap();
    assert_eq!(arrivals.arrive(1, 0, 0), Err(OutOfTurn::Duplicate(Round(0))));
    assert_eq!(arrivals.arrive(1, 1, 1), Err(OutOfTurn::OtherRound { expected: Round(0) }));
    assert_eq!(arrivals.arrive(1, 1, 0), Ok(true));
    arrivals.advance(1, Content::Gradient);
    assert_eq!(arrivals.arrive(1, 1, 0), Err(OutOfTurn::OtherRound { expected: Round(1) }));
    assert_eq!([0, 1].map(|index| arrivals.round(index)), [Round(0), Round(1)]);
}

#[test]
fn a_rank_that_is_gone_is_not_waited_for_and_does_not_count() {
    let mut arrivals = arrivals(2, 3);
    arrivals.arrive(0, 1, 0).unwrap();
    arrivals.arrive(1, 0, 0).unwrap();
    arrivals.arrive(1, 2, 0).unwrap();
    arrivals.remove(1);
    assert!(!arrivals.is_whole(0), "what it had pushed is out again");
    assert!(arrivals.is_whole(1));
    assert_eq!(arrivals.arrive(0, 1, 0), Err(OutOfTurn::NotYet(Round(0))));
}

#[test]
fn rounds_that_nobody_is_left_of_are_skipped() {
    let mut arrivals = arrivals(2, 2);
    arrivals.remove(1);
    arrivals.arrive(0, 0, 0).unwrap();
    arrivals.advance(0, Content::Gradient);
    arrivals.admit(1, Round(1));
    assert_eq!(arrivals.skip_deserted(1, u32::MAX), 0, "worker 0 may still push it");
    arrivals.remove(0);
    assert_eq!([0, 1].map(|index| arrivals.skip_deserted(index, u32::MAX)), [0, 1]);
    assert_eq!(arrivals.arrive(1, 1, 1), Ok(true));
    arrivals.remove(1);
    assert_eq!(arrivals.skip_deserted(0, u32::MAX), 0, "nobody waits");
}

#[test]
fn a_newcomer_is_waited_for_from_its_round_on() {
    let mut arrivals = arrivals(1, 2);
    arrivals.remove(1);
    arrivals.admit(1, Round(1));
    assert_eq!(arrivals.arrive(0, 1, 0), Err(OutOfTurn::NotYet(Round(0))));
    assert_eq!(arrivals.arrive(0, 0, 0), Ok(true));
    arrivals.advance(0, Content::Gradient);
    assert_eq!(arrivals.arrive(0, 0, 1), Ok(false));
    assert_eq!(arrivals.arrive(0, 1, 1), Ok(true));
}

/// Returns the workers of a chunk that waits for pushes, each with whether it owes its push.
fn waiting(arrivals: &Arrivals, index: usize) -> Vec<(u32, bool)> {
    let mut waiting = Vec::new();
    arrivals.each_waiting(index, &mut |rank, owes| waiting.push((rank, owes)));
    waiting
}

#[test]
fn a_newcomer_waits_for_the_workers_of_the_rounds_before() {
    let mut arrivals = arrivals(1, 2);
    arrivals.remove(1);
    assert!(waiting(&arrivals, 0).is_empty(), "nobody waits");
    arrivals.admit(1, Round(1));
    assert_eq!(waiting(&arrivals, 0), [(0, true), (1, false)], "the newcomer waits for its first weights");
    arrivals.arrive(0, 0, 0).unwrap();
    arrivals.advance(0, Content::Gradient);
    assert!(waiting(&arrivals, 0).is_empty(), "both may push");
}

/// Makes a round of a chunk by a push of worker 0. Returns the round of worker 1's answer, if worker 1 is answered.
fn finish(arrivals: &mut Arrivals, index: usize) -> Option<Round> {
    let round = arrivals.round(index);
    assert_eq!(arrivals.arrive(index, 0, round.low_bits()), Ok(true));
    arrivals.advance(index, Content::Gradient);
    assert_eq!(arrivals.answer_due(index, round, 0), Some(round), "worker 0 has its links");
    arrivals.answer_due(index, round, 1)
}

/// Returns three chunks that are before rounds 3, 2 and 1. Worker 1 takes part from round 3 on.
fn behind() -> Arrivals {
    let mut arrivals = arrivals(3, 2);
    arrivals.remove(1);
    for (index, rounds) in [3, 2, 1].into_iter().enumerate() {
        (0..rounds).for_each(|_| _ = finish(&mut arrivals, index));
    }
    arrivals.admit(1, Round(3));
    arrivals
}

#[test]
fn a_newcomer_with_other_links_is_answered_once_when_it_has_asked_and_the_weights_are_there() {
    const FIRST: u8 = 2;
    let mut arrivals = behind();
    arrivals.forget(1);
    assert_eq!(
        arrivals.handle_repeat(0, 1, FIRST),
        Some(Repeated::Answered(Round(2))),
        "it was here before the loss"
    );
    assert_eq!(finish(&mut arrivals, 1), None, "it has not asked");
    assert_eq!(arrivals.handle_repeat(1, 1, FIRST), Some(Repeated::Due(Round(2))));
    assert_eq!(arrivals.handle_repeat(2, 1, 0), None, "no round that it asks for");
    assert_eq!(arrivals.handle_repeat(2, 1, FIRST), Some(Repeated::Waits));
    assert_eq!(arrivals.handle_repeat(2, 1, FIRST), None, "it has asked");
    assert_eq!(finish(&mut arrivals, 2), None, "round 1 is before its time");
    assert_eq!(finish(&mut arrivals, 2), Some(Round(2)));
    for index in 0..3 {
        assert_eq!(arrivals.arrive(index, 1, 3), Ok(false));
        assert_eq!(finish(&mut arrivals, index), Some(Round(3)), "as all others");
    }
}

#[test]
fn a_newcomer_may_lose_its_links_again_and_again() {
    const FIRST: u8 = 2;
    let mut arrivals = behind();
    arrivals.forget(1);
    assert_eq!(finish(&mut arrivals, 1), None);
    assert_eq!(arrivals.handle_repeat(2, 1, FIRST), Some(Repeated::Waits));
    arrivals.forget(1);
    assert_eq!([finish(&mut arrivals, 2), finish(&mut arrivals, 2)], [None, None], "it asked by old links");
    for index in [1, 2] {
        assert_eq!(arrivals.handle_repeat(index, 1, FIRST), Some(Repeated::Due(Round(2))));
    }
    arrivals.remove(1);
    arrivals.admit(1, Round(4));
    assert_eq!(finish(&mut arrivals, 0), Some(Round(3)), "the next worker of the rank has lost nothing");
}

#[test]
fn each_counts_from_its_round_on() {
    let mut roster = Roster::new(4);
    for rank in [0, 1, 3] {
        roster.admit(rank, Round(2));
    }
    roster.admit(2, Round(5));
    assert_eq!([1, 2, 4, 5, 6].map(|round| roster.size(Round(round))), [0, 3, 3, 4, 4]);
    assert_eq!(roster.ranks(Round(4)).collect::<Vec<_>>(), [0, 1, 3]);
    assert!(roster.has(2, Round(5)) && !roster.has(2, Round(4)));
    assert_eq!([2, 4, 5, 6].map(|round| roster.has_newcomers(Round(round))), [true, false, true, false]);
    assert_eq!([0, 2].map(|rank| roster.first(rank)), [Round(2), Round(5)]);
    assert!(roster.remove(1) && !roster.remove(1));
    assert_eq!([4, 5].map(|round| roster.size(Round(round))), [2, 3]);
    assert_eq!([1, 2, 9].map(|round| roster.first_after(Round(round))), [Some(Round(2)), None, None]);
    assert!(roster.remove(0) && roster.remove(3));
    assert_eq!([2, 4, 5].map(|r| roster.first_after(Round(r))), [Some(Round(5)), Some(Round(5)), None]);
    roster.remove(2);
    assert_eq!(roster.first_after(Round(2)), None, "nobody comes after");
}
