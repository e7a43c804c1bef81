//! Tests of the planner with a simulated link and caller, whose times are known.

use std::time::Duration;

use super::*;

/// Two keys each.
const LAYERS: [LayerCost; 4] = [cost(2.0, 9.0), cost(3.0, 5.0), cost(20.0, 2.0), cost(15.0, 3.0)];
const START_UP: f64 = 4.0;

const fn cost(transfer: f64, forward: f64) -> LayerCost {
    LayerCost { transfer, forward }
}

fn planner(batching: Batching) -> Planner {
    let layers: Vec<Vec<KeyId>> = (0..4).map(|layer| vec![KeyId(2 * layer), KeyId(2 * layer + 1)]).collect();
    Planner::new(batching, &layers, 8)
}

/// Simulates a round with these costs. Returns the batches of the next round if they change.
fn round(planner: &mut Planner, profile: &Profile) -> Option<Vec<Range<usize>>> {
    let begun = Instant::now();
    let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
    let batches = planner.batches.clone();
    let timeline = Timeline::new(profile, &batches);
    let mut due = 0.0;
    for &there in &timeline.there {
        planner.due(at(due));
        planner.there(at(there));
        due = there;
    }
    let mut computed = 0.0;
    for (batch, &begins) in batches.iter().zip(&timeline.begun) {
        for layer in batch.clone() {
            for key in [2 * layer, 2 * layer + 1].map(|key| KeyId(key as u32)) {
                planner.asked(key, at(computed));
                planner.used(key, at(f64::max(computed, begins)));
                // A second request for the same key's weights changes nothing.
                planner.asked(key, at(computed + 100.0));
                planner.used(key, at(computed + 100.0));
            }
            computed = f64::max(computed, begins) + profile.layers[layer].forward;
        }
    }
    assert!(planner.is_round_over());
    planner.end_of_round(true).map(<[_]>::to_vec)
}

fn truth(factor: f64) -> Profile {
    let scaled = |layer: &LayerCost| cost(factor * layer.transfer, layer.forward);
    Profile { start_up: START_UP, layers: LAYERS.iter().map(scaled).collect() }
}

/// Simulates rounds until there is a plan.
fn profiled(planner: &mut Planner, profile: &Profile) {
    for _ in 0..2 * PROFILE_ROUNDS {
        assert!(planner.is_profiling);
        round(planner, profile);
    }
}

#[test]
fn the_profile_is_what_things_take_and_the_plan_follows_from_it() {
    for batching in [Batching::Optimum, Batching::Greedy] {
        let mut planner = planner(batching);
        profiled(&mut planner, &truth(1.0));
        let plan = planner.plan().unwrap().clone();
        let profile = plan.profile.unwrap();
        assert!((profile.start_up - START_UP).abs() < 1e-6);
        for (seen, real) in profile.layers.iter().zip(&LAYERS[..3]) {
            assert!(
                (seen.transfer - real.transfer).abs() < 1e-6 && (seen.forward - real.forward).abs() < 1e-6
            );
        }
        assert_eq!(plan.batches, batching.batches(&truth(1.0)));
        assert_eq!(round(&mut planner, &truth(1.0)), None);
        let plan = planner.plan().unwrap();
        assert!((plan.measured_s.unwrap() - plan.predicted_s.unwrap()).abs() < 1e-6, "{plan}");
        assert!(plan.to_string().contains("predicted") && plan.to_string().contains(batching.name()));
    }
}

#[test]
fn what_depends_on_nothing_is_there_at_once_and_stays() {
    for (batching, batches) in [(Batching::Layer, 4), (Batching::All, 1)] {
        let mut planner = planner(batching);
        assert_eq!(planner.batches().len(), batches);
        for number in 0..4 * DRIFT_ROUNDS {
            assert_eq!(round(&mut planner, &truth(f64::from(1 + number / DRIFT_ROUNDS))), None);
        }
        let plan = planner.plan().unwrap();
        assert_eq!((plan.batches.len(), plan.predicted_s, plan.rounds), (batches, None, 4 * DRIFT_ROUNDS));
        assert!(plan.to_string().contains("measured") && !plan.to_string().contains("predicted"));
    }
}

#[test]
fn a_disturbed_round_changes_nothing() {
    let mut calm = planner(Batching::Optimum);
    profiled(&mut calm, &truth(1.0));
    let mut planner = planner(Batching::Optimum);
    for number in 0..2 * PROFILE_ROUNDS {
        // The second round of each kind is disturbed.
        round(&mut planner, &truth(if number % PROFILE_ROUNDS == 1 { 5.0 } else { 1.0 }));
    }
    assert_eq!(planner.plan().unwrap().batches, calm.plan().unwrap().batches);
    for _ in 0..10 {
        for number in 0..DRIFT_ROUNDS {
            assert_eq!(round(&mut planner, &truth(if number == 0 { 1.0 } else { 3.0 })), None);
        }
    }
}

#[test]
fn drift_is_measured_anew_and_each_time_more_patiently() {
    let mut planner = planner(Batching::Optimum);
    profiled(&mut planner, &truth(1.0));
    let mut slow = false;
    for patience in [DRIFT_ROUNDS, 2 * DRIFT_ROUNDS, 4 * DRIFT_ROUNDS] {
        slow = !slow;
        let now = truth(if slow { 3.0 } else { 1.0 });
        for _ in 1..patience {
            assert_eq!(round(&mut planner, &now), None);
        }
        assert_eq!(round(&mut planner, &now), Some(each(4)), "layer by layer again");
        profiled(&mut planner, &now);
        assert_eq!(planner.plan().unwrap().batches, Batching::Optimum.batches(&now));
    }
    assert_eq!(planner.plan().unwrap().profiles, 4);
}

#[test]
fn a_round_without_a_forward_pass_is_passed_over() {
    let mut planner = planner(Batching::Optimum);
    let now = Instant::now();
    for _ in 0..4 * PROFILE_ROUNDS {
        for _ in 0..4 {
            planner.due(now);
            planner.there(now);
        }
        assert_eq!(planner.end_of_round(true), None);
    }
    assert_eq!(planner.plan(), None);
    profiled(&mut planner, &truth(1.0));
    assert!(planner.plan().is_some());
}

/// The planner ignores the first forward pass of a job, because its weights did not come by a pull.
#[test]
fn what_was_used_before_the_first_push_is_of_no_round() {
    let mut planner = planner(Batching::Optimum);
    let now = Instant::now();
    for key in (0..8).map(KeyId) {
        planner.asked(key, now);
        planner.used(key, now);
    }
    planner.forget_what_was_used();
    profiled(&mut planner, &truth(1.0));
    assert!(
        (planner.plan().unwrap().profile.as_ref().unwrap().layers[0].forward - LAYERS[0].forward).abs()
            < 1e-6
    );
}

#[test]
fn one_layer_has_no_start_up_to_tell_from_its_transfer() {
    assert_eq!(start_up(&[5.0], 5.0), 0.0);
    assert_eq!(start_up(&[5.0, 5.0, 5.0], 7.0), 4.0, "layers that are all alike");
    assert_eq!(start_up(&[5.0, 1.0], 9.0), 0.0, "noise is no less than nothing");
    assert_eq!(start_up(&[5.0, 1.0], 0.0), 1.0, "nor more than the fastest");
}
