//! Compares the optimum with every way to cut the layers, and the greedy algorithms with examples that were computed by
//! hand.

use proptest::prelude::*;

use super::super::greedy;
use super::*;

/// Returns a profile whose costs are whole numbers, so that sums are exact and can be compared.
fn profile(start_up: u32, layers: &[(u32, u32)]) -> Profile {
    let cost =
        |&(transfer, forward): &(u32, u32)| LayerCost { transfer: transfer.into(), forward: forward.into() };
    Profile { start_up: start_up.into(), layers: layers.iter().map(cost).collect() }
}

fn makespan(profile: &Profile, batches: &[Range<usize>]) -> f64 {
    Timeline::new(profile, batches).makespan
}

/// Returns every way to cut `layers` layers.
fn all_cuts(layers: usize) -> impl Iterator<Item = Vec<Range<usize>>> {
    (0..1u32 << (layers - 1)).map(move |cuts| {
        let ends = (1..layers).filter(|end| cuts & (1 << (end - 1)) != 0).chain([layers]);
        let cut = |begin: &mut usize, end| Some(std::mem::replace(begin, end)..end);
        ends.scan(0, cut).collect()
    })
}

/// Simulates a plan, one unit of time after the other. Returns the makespan and the idle time.
fn ticks(profile: &Profile, batches: &[Range<usize>]) -> (f64, f64) {
    let mut pulls: Vec<f64> = batches
        .iter()
        .map(|batch| {
            profile.start_up + profile.layers[batch.clone()].iter().map(|layer| layer.transfer).sum::<f64>()
        })
        .collect();
    let mut left: Vec<Vec<f64>> = batches
        .iter()
        .map(|batch| profile.layers[batch.clone()].iter().map(|layer| layer.forward).collect())
        .collect();
    let (mut now, mut overlap) = (0.0, 0.0);
    while left.iter().flatten().any(|&left| left > 0.0) || pulls.iter().any(|&left| left > 0.0) {
        let pulling = pulls.iter().position(|&left| left > 0.0);
        let computing = left.iter().position(|layers| layers.iter().any(|&left| left > 0.0));
        // A batch has arrived when its own pull and all earlier pulls have ended.
        let computing = computing.filter(|&batch| pulling.is_none_or(|pulling| batch < pulling));
        if let Some(pulling) = pulling {
            pulls[pulling] -= 1.0;
        }
        if let Some(layer) = computing.and_then(|batch| left[batch].iter_mut().find(|left| **left > 0.0)) {
            *layer -= 1.0;
            overlap += f64::from(pulling.is_some());
        }
        now += 1.0;
    }
    (now, overlap)
}

fn costs() -> impl Strategy<Value = Profile> {
    let layers = proptest::collection::vec((0u32..30, 0u32..30), 1..10);
    (0u32..20, layers).prop_map(|(start_up, layers)| profile(start_up, &layers))
}

proptest! {
    #[test]
    fn the_optimum_is_the_best_of_all_cuts(profile in costs()) {
        let batches = Batching::Optimum.batches(&profile);
        let best = all_cuts(profile.layers.len())
            .map(|batches| (makespan(&profile, &batches), batches.len()))
            .min_by(|a, b| a.partial_cmp(b).unwrap())
            .unwrap();
        prop_assert_eq!((makespan(&profile, &batches), batches.len()), best);
    }

    #[test]
    fn a_timeline_is_what_happens_tick_by_tick(profile in costs(), cut: prop::sample::Index) {
        let all: Vec<_> = all_cuts(profile.layers.len()).collect();
        let batches = cut.get(&all);
        let timeline = Timeline::new(&profile, batches);
        prop_assert_eq!((timeline.makespan, timeline.overlap), ticks(&profile, batches));
        prop_assert!(timeline.there.is_sorted() && timeline.begun.is_sorted());
    }

    #[test]
    fn batches_are_all_layers_in_order_and_the_optimum_is_never_behind(profile in costs()) {
        let best = makespan(&profile, &Batching::Optimum.batches(&profile));
        for batching in Batching::ALL {
            let batches = batching.batches(&profile);
            prop_assert!(batches.iter().all(|batch| !batch.is_empty()));
            prop_assert_eq!(batches.into_iter().flatten().collect::<Vec<_>>(), (0..profile.layers.len()).collect::<Vec<_>>());
            prop_assert!(best <= makespan(&profile, &batching.batches(&profile)));
        }
    }

    /// Each pair of neighbouring batches satisfies the paper's constraint 5, if any choice that was still possible
    /// satisfies it.
    #[test]
    fn the_greedy_ones_satisfy_the_constraint_where_it_can_be(profile in costs()) {
        prop_assume!(profile.layers.len() > 1);
        let (sums, layers) = (Sums::new(&profile), profile.layers.len());
        for two in greedy::front(&sums).windows(2).skip(1) {
            let holds = |end| sums.pull(two[1].start..end) > sums.forward(two[0].clone());
            prop_assert!(holds(two[1].end) || !(two[1].start + 1..=layers).any(holds));
        }
        for two in greedy::back(&sums).windows(2).rev().skip(1) {
            let holds = |begin| sums.pull(two[1].clone()) > sums.forward(begin..two[0].end);
            prop_assert!(holds(two[0].start) || !(0..two[0].end).any(holds));
        }
    }
}

#[test]
fn greedy_from_the_front() {
    // Two kinds of pairs satisfy the constraint: l1 = 1 with l2 >= 3 (1 + 1 + 6 > 4), and l1 = 2 with l2 >= 4
    // (1 + 6 + 9 > 8). l1 = 2 computes longer, so the pair is l1 = 2 and l2 = 4. One layer is left. Its pull
    // (1 + 1) is shorter than the computing of layers 3 and 4. So no choice satisfies the constraint, and this
    // layer is a batch.
    let hidden = profile(1, &[(2, 4), (1, 4), (6, 3), (9, 3), (1, 3)]);
    assert_eq!(greedy::front(&Sums::new(&hidden)), [0..2, 2..4, 4..5]);
    // Again l1 = 2, with l2 = 3 or more (20 > 8): of several pairs the one with the smallest l2 is taken.
    let tie = profile(1, &[(2, 4), (1, 4), (20, 3), (9, 3), (1, 30)]);
    assert_eq!(greedy::front(&Sums::new(&tie)), [0..2, 2..3, 3..4, 4..5]);
}

#[test]
fn greedy_from_the_back() {
    // The last pull takes 1 + 9. It is longer than the computing of layers 3 and 4 (4 + 5), but not with layer
    // 2 added. A last pull that begins with an earlier layer exceeds its computing by more. The pull of layers
    // 3 and 4 takes 1 + 2 + 1, which is longer than the computing of layer 2 (3). The first layer is left.
    let both = profile(1, &[(1, 20), (1, 3), (2, 4), (1, 5), (9, 1)]);
    assert_eq!(greedy::back(&Sums::new(&both)), [0..1, 1..2, 2..4, 4..5]);
}

#[test]
fn where_all_pulls_hide_the_first_layer_is_by_itself() {
    let quick = profile(1, &[(1, 50), (1, 50), (1, 50), (1, 50)]);
    assert_eq!(greedy::front(&Sums::new(&quick)), [0..1, 1..4]);
    assert_eq!(greedy::back(&Sums::new(&quick)), [0..1, 1..4]);
    assert_eq!(Batching::Optimum.batches(&quick), [0..1, 1..4]);
}

#[test]
fn a_slow_start_up_makes_one_batch_and_none_makes_one_of_each_layer_that_helps() {
    let layers = [(5, 5), (5, 5), (5, 5)];
    assert_eq!(Batching::Optimum.batches(&profile(100, &layers)).len(), 1);
    assert_eq!(Batching::Optimum.batches(&profile(0, &layers)), [0..1, 1..2, 2..3]);
}

#[test]
fn one_layer_and_none() {
    for batching in Batching::ALL {
        assert!(batching.batches(&profile(3, &[(5, 7)])).into_iter().eq(std::iter::once(0..1)));
        assert_eq!(batching.batches(&profile(3, &[])), []);
    }
    assert_eq!(Timeline::new(&profile(3, &[]), &[]), Timeline::default());
}

/// A plan is also found for a thousand layers.
#[test]
fn many_layers() {
    let layers: Vec<(u32, u32)> = (0..1000).map(|layer| (layer % 7 * 3, layer % 5 * 4)).collect();
    let profile = profile(2, &layers);
    let best = makespan(&profile, &Batching::Optimum.batches(&profile));
    assert!(best <= makespan(&profile, &Batching::Greedy.batches(&profile)));
}

#[test]
fn in_words() {
    for batching in Batching::ALL {
        assert_eq!(batching.to_string().parse(), Ok(batching));
    }
    let error = "best".parse::<Batching>().unwrap_err().to_string();
    assert!(error.contains("\"best\"") && error.contains("ibatch, greedy, layer or all"), "{error}");
}
