//! Iterations on a test's clock: when the worker waits, computes and pushes, and which waits count as stalls.

use std::time::Duration;

use pbox_core::{Key, KeyId};

use super::*;
use crate::compute::{ComputeReport, Layer, Times, Trace};

/// An action of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Wait(u32),
    Look,
    Until(u64),
    Push(u32),
}
use Did::{Look, Push, Until, Wait};

/// A worker whose weights arrive at given times, and which returns late from computing.
struct Scripted {
    now_us: u64,
    ready_us: Vec<u64>,
    late_us: u64,
    did: Vec<Did>,
}

impl Worker for Scripted {
    type Error = std::convert::Infallible;

    fn now(&self) -> Duration {
        Duration::from_micros(self.now_us)
    }

    fn is_ready(&mut self, key: KeyId) -> Result<bool, Self::Error> {
        Ok(self.ready_us[key.index()] <= self.now_us)
    }

    fn wait(&mut self, key: KeyId) -> Result<(), Self::Error> {
        self.now_us = self.now_us.max(self.ready_us[key.index()]);
        self.did.push(Wait(key.0));
        Ok(())
    }

    fn push(&mut self, key: KeyId) -> Result<(), Self::Error> {
        self.did.push(Push(key.0));
        Ok(())
    }

    fn compute_until(&mut self, until: Duration) -> Result<(), Self::Error> {
        self.now_us = self.now_us.max(until.as_micros() as u64 + self.late_us);
        self.did.push(Until(until.as_micros() as u64));
        Ok(())
    }

    fn look(&mut self) -> Result<(), Self::Error> {
        self.did.push(Look);
        Ok(())
    }
}

/// Returns a plan with two layers, of which the second has two keys. The layers take 10 and 20 us forward,
/// and twice that backward.
fn plan() -> ComputePlan {
    let layer = |name: &str, keys: &[&str], us| Layer {
        name: name.into(),
        keys: keys.iter().map(|&key| key.into()).collect(),
        forward_us: us,
        backward_us: 2.0 * us,
    };
    let layers = vec![layer("first", &["a"], 10.0), layer("second", &["b", "c"], 20.0)];
    let keys = ["a", "b", "c"].map(|name| Key::f32(name, [1]));
    Trace { name: "two".into(), batch: 4, layers }.plan(&keys, 1.0).unwrap()
}

fn run(ready_us: [u64; 3], late_us: u64) -> (Vec<Did>, Vec<u128>) {
    let plan = plan();
    let mut worker = Scripted { now_us: 0, ready_us: ready_us.to_vec(), late_us, did: Vec::new() };
    let mut iteration = Iteration::new(&plan, worker.now());
    let Ok(()) = iteration.run(&mut worker);
    (worker.did, iteration.stalled().iter().map(Duration::as_micros).collect())
}

#[test]
fn forward_in_order_and_backward_in_reverse() {
    let (did, stalled) = run([0, 0, 0], 0);
    assert_eq!(did, [Until(10), Until(30), Look, Until(70), Push(2), Push(1), Until(90), Push(0)]);
    assert_eq!(stalled, [0, 0]);
}

#[test]
fn a_layer_computes_only_once_all_its_weights_are_there() {
    let (did, stalled) = run([5, 0, 40], 0);
    assert_eq!(did[..4], [Wait(0), Until(15), Wait(2), Until(60)]);
    assert_eq!(stalled, [5, 25], "the second layer could have begun at 15");
}

#[test]
fn being_woken_late_is_no_stall_and_does_not_add_up() {
    let (did, stalled) = run([0, 0, 0], 3);
    assert_eq!(did[did.len() - 2..], [Until(90), Push(0)]);
    assert_eq!(stalled, [0, 0]);
    // Weights that arrive while the thread is late cause no wait.
    assert_eq!(run([0, 12, 0], 3).1, [0, 0]);
    assert_eq!(run([0, 14, 0], 3).1, [0, 4]);
}

#[test]
fn a_report_adds_up() {
    let us = |times: &[u64]| times.iter().map(|time| time * 1000).collect::<Vec<u64>>();
    // Each worker makes two iterations, each with 90 us of computing. On average, one worker is stalled for
    // 10 us of an iteration, and the other worker for 30 us.
    let one = Times { iterations: us(&[100, 100]), stalled: us(&[0, 20]), exchanges: us(&[50, 40, 90]) };
    let other = Times { iterations: us(&[110, 140]), stalled: us(&[0, 60]), exchanges: us(&[50, 30, 70]) };
    let report = ComputeReport::new(&plan(), 1.0, &[300, 500, 200], Some(0.1), &[one, other]);
    let is = |seen: f64, expected: f64| {
        assert!((seen - expected).abs() < 1e-6 * expected, "{seen}, not {expected}")
    };
    is(report.samples_per_s, 4e6 / 100.0 + 4e6 / 125.0);
    is(report.stalled_ms, 0.020);
    is(report.layers[1].stalled_ms, 0.020);
    is(report.overlap, 1.0 - 20.0 / 50.0);
    let json = serde_json::to_value(&report).unwrap();
    is(json["iteration_ms"].as_f64().unwrap(), 0.1125);
    is(json["late_ms"].as_f64().unwrap(), 0.0025);
    // 8000 bits at 100 Mb/s take 80 us. The second layer computes for 60 us, in which nothing crosses.
    is(json["bound_samples_per_s"].as_f64().unwrap(), 8e6 / 140.0);
    let bars = report.worst_layers();
    assert!(bars.contains("second") && !bars.contains("first"), "{bars}");
}
