//! A job of one worker at a hub, and an oracle that has the bits of each round.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fabric::IdlePolicy;
use half::{bf16, f16};
use pbox_core::{Key, Optimizer};
use phub_server::{CoreSelection, Hub, HubSettings, IdleChoice};
use subscription::{Precision, SourceSettings, Subscription, Version, Wanted};
use worker_shim::{Session, SessionConfig};

const RATE: f32 = 0.05;
pub const SGD: Optimizer = Optimizer::Sgd { learning_rate: RATE, weight_decay: 0.0 };

/// The keys of the job, with their shapes.
pub const SHAPES: [(&str, &[u64]); 3] = [("first", &[7, 11]), ("second", &[300]), ("third", &[])];

pub fn hub() -> Hub {
    let settings = HubSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        cores: Some(CoreSelection::Count(1)),
        idle: IdleChoice::Sleep,
        ..HubSettings::default()
    };
    Hub::start(&settings).unwrap()
}

/// Joins the job `job`. Its weights before round 1 are all 1.
pub fn worker(hub: &Hub) -> Session {
    worker_with(SessionConfig::new(hub.address().to_string(), "job", 0, 1, keys(&SHAPES), SGD))
}

/// Returns f32 keys of these names and shapes.
pub fn keys(shapes: &[(&str, &[u64])]) -> Vec<Key> {
    shapes.iter().map(|(name, shape)| Key::f32(*name, shape.to_vec())).collect()
}

/// Joins a job. Its weights before round 1 are all 1.
pub fn worker_with(mut config: SessionConfig) -> Session {
    (config.idle, config.hub_wait) = (IdlePolicy::SHARED, Duration::ZERO);
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
    session
}

/// Returns a gradient whose sums and products are rounded: it is no short binary fraction.
fn gradient(round: u32, element: usize) -> f32 {
    ((round as f32) * 0.37 + (element as f32) * 1.7).sin()
}

pub fn step(session: &mut Session) {
    let round = session.next_round().0;
    let keys: Vec<_> = session.keys().collect();
    for &key in &keys {
        let values = session.gradient_mut(key).unwrap().iter_mut().enumerate();
        values.for_each(|(element, value)| *value = gradient(round, element));
        session.push(key).unwrap();
    }
    session.wait_all().unwrap();
}

/// Makes rounds all the time while `read` runs.
pub fn while_stepping<T>(session: &mut Session, read: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                step(session);
            }
        });
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
        ends.store(true, Ordering::Relaxed);
        seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns an element before a round: one rounded product and one rounded difference for each step.
fn weight(round: u32, element: usize) -> f32 {
    (1..round).fold(1.0, |weight, step| weight - RATE * gradient(step, element))
}

/// Asserts that a version has each tensor of the job under the given name and in the given type, with the bits of the
/// version's round.
#[track_caller]
pub fn check(version: &Version, tensors: [(&str, Precision); 3]) {
    let weights = &version.weights;
    assert_eq!(version.origin.job, "job");
    assert_eq!(weights.names().collect::<BTreeSet<_>>(), tensors.map(|(name, _)| name).into());
    for ((_, shape), (name, precision)) in SHAPES.into_iter().zip(tensors) {
        let (seen, of) = weights.form(name).unwrap();
        assert_eq!((seen, of.iter().map(|&of| of as u64).collect()), (precision, shape.to_vec()));
        let expected = bytes(0..shape.iter().product::<u64>() as usize, version.origin.round, precision);
        assert!(weights.get(name).unwrap() == expected, "{name} before round {}", version.origin.round);
    }
}

/// Returns the bytes of a key's elements before a round.
pub fn bytes(elements: Range<usize>, round: u32, precision: Precision) -> Vec<u8> {
    let bytes = elements.flat_map(|element| {
        let weight = weight(round, element);
        match precision {
            Precision::F32 => weight.to_le_bytes().to_vec(),
            Precision::Bf16 => bf16::from_f32(weight).to_le_bytes().to_vec(),
            Precision::F16 => f16::from_f32(weight).to_le_bytes().to_vec(),
        }
    });
    bytes.collect()
}

pub fn settings(hub: &Hub) -> SourceSettings {
    SourceSettings::new(&hub.address().to_string(), "job")
}

/// Subscribes to the newest weights, without a pause between versions.
pub fn newest(settings: SourceSettings) -> Subscription {
    Subscription::to_hubs(settings, Wanted::Newest { every: Duration::ZERO }).unwrap()
}
