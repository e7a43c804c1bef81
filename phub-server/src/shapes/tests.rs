//! The formulas of shapes agree with cases that were computed by hand, and with bytes that were counted. The
//! fastest shape is chosen.

use super::*;
use pbox_core::models::model;
use pbox_core::{JobTerms, Optimizer, Wire};

const MB: u64 = 1_000_000;

/// Returns even shares of a model of `bytes` bytes, one for each machine, without headers and counts.
fn even(machines: u64, bytes: u64) -> Vec<Volume> {
    let part = bytes / machines;
    vec![Volume { gradient: part, sum: part, weights: part }; machines as usize]
}

/// Returns the bytes of a published model, and the share of each machine's hub.
fn shares(name: &str, machines: u32, workers: u32) -> (u64, Vec<Volume>) {
    let optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };
    let terms = JobTerms::new(workers, model(name).unwrap().keys, optimizer);
    let wire = Wire::of_terms(&terms).unwrap();
    let level = Level::new((&terms, &wire), machines, machines, 2).unwrap();
    (wire.layout().model_bytes(), level.volumes)
}

/// The rows of `docs/figures/levels.md` on links of 1 Gb/s. Each measured rate divided by the formula's rate
/// is 0.98 to 1.
#[test]
fn measured_rates_are_98_to_100_percent_of_the_formulas() {
    for (machines, workers, name, kind, measured) in [
        (2, 4, "resnet50", Kind::Mesh, 1.204),
        (2, 4, "resnet50", Kind::Flat, 0.303),
        (4, 2, "resnet50", Kind::Mesh, 0.798),
        (4, 1, "resnet50", Kind::Mesh, 0.799),
        (4, 1, "vgg19", Kind::Mesh, 0.143),
    ] {
        let (_, shares) = shares(name, machines, workers);
        let shape = match kind {
            Kind::Flat => Shape::flat(&shares, workers, Some(1.0)),
            _ => Shape::mesh(&shares, Some(1.0)),
        };
        let ratio = measured * shape.round_s().unwrap();
        assert!((0.98..=1.0).contains(&ratio), "{machines} x {workers}, {name}, {kind}: {ratio:.4}");
    }
}

/// Each machine of a mesh of two sends and receives 1.003 to 1.004 times the model, with all headers. The
/// interfaces counted these bytes.
#[test]
fn a_machine_of_a_mesh_carries_what_was_counted_whatever_its_workers() {
    for workers in [1, 2, 4, 8] {
        let (model, shares) = shares("googlenet", 2, workers);
        for load in Shape::mesh(&shares, None).loads {
            for bytes in [load.sends, load.receives] {
                // The formula leaves out the headers of packets; an interface counts one header for 64 KiB.
                let models = bytes as f64 / model as f64;
                assert!((1.001..1.003).contains(&models), "{workers} workers, {}: {models:.4}", load.link);
            }
        }
    }
}

#[test]
fn a_mesh_carries_2_n_minus_1_over_n_models_and_flat_w_times_that() {
    for (machines, model, expected) in [(1, 100 * MB, 0), (2, 100 * MB, 100 * MB), (4, 100 * MB, 150 * MB)] {
        let shares = even(machines, model);
        for load in Shape::mesh(&shares, None).loads {
            assert_eq!([load.sends, load.receives], [expected; 2], "{machines} machines");
        }
        for load in Shape::flat(&shares, 8, None).loads {
            assert_eq!([load.sends, load.receives], [8 * expected; 2], "{machines} machines");
        }
    }
}

#[test]
fn what_one_sends_another_receives() {
    let (_, shares) = shares("resnet50", 3, 5);
    for shape in [Shape::flat(&shares, 5, None), Shape::mesh(&shares, None), Shape::above(&shares, 7, None)] {
        let total = |of: fn(&Load) -> u64| shape.loads.iter().map(of).sum::<u64>();
        assert_eq!(total(|load| load.sends), total(|load| load.receives), "{}", shape.kind);
    }
}

#[test]
fn hubs_apart_carry_the_sums_of_all_machines() {
    let shape = Shape::above(&even(2, 100 * MB), 6, Some(10.0));
    let links: Vec<Link> = shape.loads.iter().map(|load| load.link).collect();
    assert_eq!(links[5..], [Link::Machine(5), Link::HubAbove(0), Link::HubAbove(1)]);
    assert_eq!(shape.loads[0].bytes(), 100 * MB);
    assert_eq!((shape.bottleneck().link, shape.bottleneck().bytes()), (Link::HubAbove(0), 300 * MB));
}

/// Four racks of eight workers, 100 MB without headers. A worker has 10 Gb/s, a hub 100, an uplink 40. By hand, one hub
/// for all racks takes max(0.08, 3.2/12.5, 2.4/5) = 0.48 s. With a hub in each rack, a round takes max(0.08, 0.8/12.5,
/// 0.15/5) = 0.08 s.
#[test]
fn racks_take_what_the_papers_formula_says() {
    let speeds = RackSpeeds { worker: 10.0, hub: 100.0, uplink: 40.0 };
    let shares = even(4, 100 * MB);
    let [flat, mesh] = both(&shares, speeds);
    assert_eq!((flat.bottleneck().link, mesh.bottleneck().link), (Link::Uplink, Link::Worker));
    let is = |shape: &Shape, seconds: f64| (shape.round_s().unwrap() * GOODPUT - seconds).abs() < 1e-9;
    assert!(is(&flat, 0.48) && is(&mesh, 0.08), "{flat:?} {mesh:?}");
    // With a hub of 10 Gb/s, a round takes 3.2/1.25 = 2.56 s (flat), and 0.8/1.25 = 0.64 s (mesh).
    let [flat, mesh] = both(&shares, RackSpeeds { hub: 10.0, ..speeds });
    assert_eq!((flat.bottleneck().link, mesh.bottleneck().link), (Link::RackHub, Link::RackHub));
    assert!(is(&flat, 2.56) && is(&mesh, 0.64), "{flat:?} {mesh:?}");
    // With an uplink of 1 Gb/s, a round takes 2.4/0.125 = 19.2 s (flat), and 0.15/0.125 = 1.2 s (mesh). A hub of 1 Gb/s
    // limits the other racks in the same way.
    let [flat, mesh] = both(&shares, RackSpeeds { uplink: 1.0, ..speeds });
    assert_eq!((flat.bottleneck().link, mesh.bottleneck().link), (Link::Uplink, Link::Uplink));
    assert!(is(&flat, 19.2) && is(&mesh, 1.2), "{flat:?} {mesh:?}");
    // One rack is one hub either way.
    let [flat, mesh] = both(&even(1, 100 * MB), speeds);
    assert_eq!(flat.round_s(), mesh.round_s());
    assert_eq!(choose(&[flat, mesh]).best.kind, Kind::Flat);
}

fn both(shares: &[Volume], speeds: RackSpeeds) -> [Shape; 2] {
    [Shape::flat_racks(shares, 8, speeds), Shape::mesh_of_racks(shares, 8, speeds)]
}

#[test]
fn the_choice_is_the_fastest_and_of_equals_the_simplest() {
    let shapes = |machines, workers, gbps| {
        let (_, shares) = shares("resnet50", machines, workers);
        [Shape::flat(&shares, workers, gbps), Shape::mesh(&shares, gbps)]
    };
    for gbps in [None, Some(1.0), Some(100.0)] {
        let two = shapes(2, 4, gbps);
        let choice = choose(&two);
        assert_eq!(choice.best.kind, Kind::Mesh);
        assert!(
            choice.why.contains("4.00 times as fast as flat: a round waits for 102.4 MB"),
            "{}",
            choice.why
        );
    }
    for (machines, workers, why) in [(4, 1, "mesh is not faster"), (1, 8, "nothing crosses a link")] {
        let two = shapes(machines, workers, None);
        let choice = choose(&two);
        assert_eq!(choice.best.kind, Kind::Flat);
        assert!(choice.why.contains(why), "{}", choice.why);
    }
    assert_eq!(choose(&shapes(2, 4, None)[1..]).why, "no other shape is possible");
}
