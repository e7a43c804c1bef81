//! The simulation compared with results computed by hand, and with the timelines from which plans are made.

use std::ops::Range;

use proptest::prelude::*;
use worker_shim::batch::{Batching, Timeline};

use super::*;

/// Creates machines whose links carry one byte per second. Each layer is given as bytes, forward seconds and
/// backward seconds, and is spread evenly over all hubs.
fn cluster(nodes: usize, start_up: f64, layers: &[(f64, f64, f64)]) -> Cluster {
    let layer = |&(bytes, forward, backward): &(f64, f64, f64)| ClusterLayer {
        forward,
        backward,
        by_hub: vec![bytes / nodes as f64; nodes],
    };
    let layers = layers.iter().map(layer).collect();
    Cluster { nodes, link_bytes_per_s: 1.0, start_up, latency: 0.0, push_at_the_end: false, layers }
}

fn run(cluster: &Cluster, batches: &[Range<usize>]) -> Ran {
    simulate(cluster, batches, ITERATIONS)
}

fn near(seen: f64, expected: f64) -> bool {
    (seen - expected).abs() < 1e-6 * expected.max(1.0)
}

#[test]
fn one_machine_computes_and_waits_for_start_ups() {
    let alone = cluster(1, 0.5, &[(8.0, 1.0, 2.0), (8.0, 1.0, 2.0)]);
    assert!(near(run(&alone, &[0..1, 1..2]).iteration, 6.0 + 0.5));
    assert!(near(run(&alone, &[0..2; 1]).iteration, 6.0 + 0.5));
}

/// Checks two machines. Half of each layer crosses a link: 4 seconds for the first layer, and 2 for the
/// second.
#[test]
fn two_machines_by_hand() {
    let two = cluster(2, 0.5, &[(8.0, 1.0, 2.0), (4.0, 3.0, 5.0)]);
    // The times are backward 5 + 2, the first layer's gradients 4, the start-up, all weights 6, and forward
    // 4.
    let all = run(&two, &[0..2; 1]);
    assert!(near(all.iteration, 7.0 + 4.0 + 0.5 + 6.0 + 4.0), "{all:?}");
    assert!(near(all.pull, 6.5) && near(all.pull_and_forward, 10.5) && near(all.to_last_layer, 7.5));
    // After the gradients, the first layer's weights take 4. The second layer's take 2.5, while the first
    // layer computes.
    let layer = run(&two, &[0..1, 1..2]);
    assert!(near(layer.iteration, 7.0 + 4.0 + 4.5 + 2.5 + 3.0), "{layer:?}");
    assert!(near(layer.pulls[0], 4.5) && near(layer.pulls[1], 2.5), "{layer:?}");
    // After the backward pass, the gradients take 2 and 4. The last layer's gradients are sent first.
    let sequential = run(&Cluster { push_at_the_end: true, ..two }, &[0..2; 1]);
    assert!(near(sequential.iteration, 7.0 + 6.0 + 6.5 + 4.0), "{sequential:?}");
}

/// Checks that a layer on one hub goes to all other machines over that hub's link.
#[test]
fn a_layer_on_one_hub_waits_for_its_link() {
    let mut four = cluster(4, 0.0, &[(8.0, 1.0, 1.0)]);
    assert!(near(run(&four, &[0..1; 1]).pull, 6.0));
    four.layers[0].by_hub = vec![8.0, 0.0, 0.0, 0.0];
    // Three times 8 bytes cross. The hub's own worker has the layer at once.
    assert!(near(run(&four, &[0..1; 1]).pull, 24.0 * 3.0 / 4.0));
}

#[test]
fn modules_are_one_layer_and_no_byte_is_lost() {
    let model = pbox_core::models::model("googlenet").unwrap();
    let whole = crate::compute::trace("googlenet").unwrap().plan(&model.keys, 1.0).unwrap();
    let joined = join(whole.clone(), '/');
    assert_eq!(joined.steps.len(), 12, "the paper's count");
    assert_eq!((joined.compute(), joined.steps[2].name.as_str()), (whole.compute(), "inception_3a"));
    let layout = Layout::new(model.keys.clone(), 32_768).unwrap();
    for spread in [Spread::Hubs, Spread::Even] {
        let layers = layers(&joined, &key_bytes_by_hub(&layout, spread, 5, 1_000_000), 5);
        let bytes: f64 = layers.iter().flat_map(|layer| &layer.by_hub).sum();
        assert!(near(bytes, model.bytes() as f64), "{bytes}");
    }
}

proptest! {
    /// Checks that equal machines run as the plan of one of them predicts.
    #[test]
    fn a_cluster_runs_as_its_timeline_says(
        nodes in 2usize..6,
        start_up in 0u32..20,
        layers in proptest::collection::vec((1u32..40, 1u32..40), 1..7),
    ) {
        let layers: Vec<_> = layers.iter().map(|&(bytes, forward)| (bytes.into(), forward.into(), 3.0)).collect();
        let cluster = cluster(nodes, f64::from(start_up) / 2.0, &layers);
        let profile = cluster.profile();
        let mut best = f64::INFINITY;
        for batching in Batching::ALL {
            let batches = batching.batches(&profile);
            let (timeline, ran) = (Timeline::new(&profile, &batches), run(&cluster, &batches));
            prop_assert!(near(ran.pull_and_forward, timeline.makespan), "{:?} {:?}", ran, timeline);
            prop_assert!(near(ran.to_last_layer, timeline.last_begun), "{:?} {:?}", ran, timeline);
            if batching == Batching::Optimum {
                best = ran.pull_and_forward;
            }
            prop_assert!(best <= ran.pull_and_forward + 1e-6);
        }
    }
}
