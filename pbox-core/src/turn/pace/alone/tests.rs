//! Tests of clocks: a comparison with a naive model, and examples.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const RANKS: u32 = 4;

impl Clocks {
    fn arrive(&mut self, index: usize, rank: u32, round_bits: u8) -> Result<(), OutOfTurn> {
        self.check(index, rank, round_bits)?;
        self.note(index, rank);
        Ok(())
    }
}

fn ssp(staleness: u32) -> Consistency {
    Consistency::Ssp { staleness }
}

fn clocks(consistency: Consistency, ranks: u32) -> Clocks {
    let mut clocks = Clocks::new(consistency, 1, ranks, false);
    (0..ranks).for_each(|rank| clocks.admit(rank, Round(0)));
    clocks.find_slowest(0);
    clocks
}

/// Pushes and steps. Returns the workers that then get an answer.
fn push(clocks: &mut Clocks, rank: u32, round: u32) -> Vec<(u32, u32)> {
    clocks.arrive(0, rank, Round(round).low_bits()).unwrap();
    clocks.advance(0, rank);
    answers(clocks)
}

fn answers(clocks: &mut Clocks) -> Vec<(u32, u32)> {
    let ranks = clocks.ranks as u32;
    let answer = |rank| {
        let round = clocks.allow(0, rank)?;
        assert_eq!(clocks.allow(0, rank), None, "once a push");
        clocks.note_answer(0, rank);
        Some((rank, round.0))
    };
    (0..ranks).filter_map(answer).collect()
}

#[test]
fn round_0_is_a_barrier_in_every_mode() {
    for consistency in [ssp(0), ssp(7), Consistency::Asp] {
        let mut clocks = clocks(consistency, 3);
        assert_eq!(push(&mut clocks, 2, 0), []);
        assert_eq!(push(&mut clocks, 0, 0), []);
        assert_eq!(push(&mut clocks, 1, 0), [(0, 0), (1, 0), (2, 0)], "{consistency}");
    }
}

#[test]
fn the_fast_one_is_held_exactly_at_the_staleness() {
    let mut clocks = clocks(ssp(2), 2);
    push(&mut clocks, 0, 0);
    push(&mut clocks, 1, 0);
    assert_eq!(push(&mut clocks, 0, 1), [(0, 1)]);
    assert_eq!(push(&mut clocks, 0, 2), [(0, 2)]);
    assert_eq!(push(&mut clocks, 0, 3), [], "it would begin round 4, and the other one round 1");
    assert_eq!(push(&mut clocks, 1, 1), [(0, 3), (1, 1)]);
    assert_eq!(clocks.round(0), Round(2));
}

#[test]
fn a_job_that_ends_steps_what_is_before_the_line_of_each_worker() {
    let mut clocks = clocks(ssp(1), 2);
    push(&mut clocks, 0, 0);
    push(&mut clocks, 1, 0);
    assert_eq!(push(&mut clocks, 0, 1), [(0, 1)]);
    assert_eq!(push(&mut clocks, 0, 2), [], "held back");
    let lines = clocks.lines();
    assert_eq!(lines, [Some(Round(3)), Some(Round(1))]);
    // Another core has stepped a push of worker 1 that this core has not stepped.
    clocks.end_at(&[Some(Round(3)), Some(Round(2))]);
    assert_eq!(answers(&mut clocks), [(0, 2)], "what was held back is answered");
    assert!(!clocks.has_come_to(0, Round(2)));
    assert_eq!(push(&mut clocks, 1, 1), [(1, 1)]);
    assert!(clocks.has_come_to(0, Round(2)), "each has come to its line");
    clocks.arrive(0, 1, 2).unwrap();
    assert_eq!(clocks.pushed(0, 1), None, "behind the line nothing is stepped");
}

#[test]
fn workers_begin_as_far_ahead_as_they_were() {
    let mut clocks = Clocks::new(ssp(2), 1, 2, false);
    clocks.begin_ahead(&[2, 0]);
    (0..2).for_each(|rank| clocks.admit(rank, Round(5)));
    clocks.find_slowest(0);
    assert_eq!(clocks.round(0), Round(5));
    assert_eq!(answers(&mut clocks), [(0, 6), (1, 4)], "their weights");
    assert_eq!(push(&mut clocks, 0, 7), [], "two rounds ahead, and one more is too far");
    assert_eq!(push(&mut clocks, 1, 5), [(0, 7), (1, 5)]);
    clocks.remove(0);
    clocks.admit(0, Round(6));
    clocks.find_slowest(0);
    assert_eq!(answers(&mut clocks), [(0, 5)], "only when the job begins");
}

#[test]
fn pushes_out_of_turn_are_seen() {
    let mut clocks = clocks(ssp(0), 2);
    assert_eq!(clocks.arrive(0, 0, 1), Err(OutOfTurn::OtherRound { expected: Round(0) }));
    clocks.arrive(0, 0, 0).unwrap();
    assert_eq!(clocks.arrive(0, 0, 0), Err(OutOfTurn::Unanswered(Round(0))), "noted");
    clocks.advance(0, 0);
    assert_eq!(clocks.arrive(0, 0, 1), Err(OutOfTurn::Unanswered(Round(0))), "held");
    clocks.remove(0);
    clocks.find_slowest(0);
    assert_eq!(clocks.arrive(0, 0, 1), Err(OutOfTurn::NotYet(Round(0))));
}

#[test]
fn one_that_may_be_answered_waits_until_it_is() {
    let mut clocks = clocks(Consistency::Asp, 1);
    clocks.arrive(0, 0, 0).unwrap();
    clocks.advance(0, 0);
    assert_eq!(clocks.allow(0, 0), Some(Round(0)));
    assert_eq!(clocks.arrive(0, 0, 1), Err(OutOfTurn::Unanswered(Round(0))));
    clocks.note_answer(0, 0);
    assert_eq!(clocks.arrive(0, 0, 1), Ok(()));
}

/// A model that follows the documentation word by word: the clocks are in a map, and each call finds the minimum anew.
#[derive(Debug)]
struct Model {
    consistency: Consistency,
    /// The workers that take part. Each has its next round, and whether it waits for an answer.
    members: BTreeMap<u32, (u32, bool)>,
    /// The slowest clock at the last time when there was a member.
    slowest: u32,
}

impl Model {
    fn slowest(&mut self) -> u32 {
        self.slowest = self.members.values().map(|&(next, _)| next).min().unwrap_or(self.slowest);
        self.slowest
    }

    fn answers(&mut self) -> Vec<(u32, u32)> {
        let slowest = self.slowest();
        let staleness = match self.consistency {
            Consistency::Asp => u32::MAX,
            Consistency::Ssp { staleness } => staleness,
            Consistency::Bsp => unreachable!("not among the cases"),
        };
        let mut answered = Vec::new();
        for (&rank, (next, owed)) in &mut self.members {
            if *owed && slowest >= 1 && *next - slowest <= staleness {
                *owed = false;
                answered.push((rank, *next - 1));
            }
        }
        answered
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// A push by a worker. If the worker is not idle, the push is out of turn.
    Push(u32),
    Remove(u32),
    Admit(u32),
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..RANKS).prop_map(Event::Push),
        1 => (0..RANKS).prop_map(Event::Remove),
        1 => (0..RANKS).prop_map(Event::Admit),
    ]
}

proptest! {
    #[test]
    fn clocks_do_as_the_model(
        staleness in proptest::option::of(0u32..4),
        events in proptest::collection::vec(events(), 0..400),
    ) {
        let consistency = staleness.map_or(Consistency::Asp, ssp);
        let mut clocks = clocks(consistency, RANKS);
        let members = (0..RANKS).map(|rank| (rank, (0, false))).collect();
        let mut model = Model { consistency, members, slowest: 0 };
        for event in events {
            match event {
                Event::Push(rank) => {
                    let before = clocks.round(0);
                    match model.members.get_mut(&rank) {
                        Some((next, owed)) if !*owed => {
                            prop_assert_eq!(clocks.arrive(0, rank, Round(*next).low_bits()), Ok(()));
                            prop_assert_eq!(clocks.pushed(0, rank), Some(Round(*next)));
                            let moved = clocks.advance(0, rank);
                            (*next, *owed) = (*next + 1, true);
                            prop_assert_eq!(moved, model.slowest() > before.0);
                            prop_assert!(model.slowest() <= before.0 + 1);
                        }
                        Some(&mut (next, _)) => {
                            prop_assert_eq!(clocks.arrive(0, rank, Round(next).low_bits()), Err(OutOfTurn::Unanswered(Round(next - 1))));
                        }
                        None => prop_assert_eq!(clocks.arrive(0, rank, 0), Err(OutOfTurn::NotYet(before))),
                    }
                }
                Event::Remove(rank) => {
                    model.members.remove(&rank);
                    clocks.remove(rank);
                    clocks.find_slowest(0);
                }
                Event::Admit(rank) if !model.members.contains_key(&rank) => {
                    let from = model.slowest();
                    model.members.insert(rank, (from, from > 0));
                    clocks.admit(rank, Round(from));
                    clocks.find_slowest(0);
                }
                Event::Admit(_) => {}
            }
            prop_assert_eq!(answers(&mut clocks), model.answers());
            prop_assert_eq!(clocks.round(0), Round(model.slowest()));
        }
    }
}
