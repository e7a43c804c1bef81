//! The shortest iteration that a link allows, whatever the schedule.
//!
//! The bound is a pure function of plan, sizes and link. It must not depend on what was measured.
//!
//! ```text
//!    backward                           forward
//!    ... layer 2 | layer 1 | layer 0 ][ layer 0 | layer 1 | layer 2 ...
//!                ^ gradients of layer 2 are there         ^ its weights are needed
//!                |<------ what layers 0 to 2 send -------->|  passes the link in between
//!                |<- computing inside: layers 0 and 1 ---->|
//! ```
//!
//! A layer's window is the time from its gradients to the use of its weights. For each layer, an iteration
//! takes at least the compute time outside the window, plus the longer of computing and sending inside the
//! window. The last layer's window contains all bytes. While the last layer computes, the link has nothing to
//! carry.

use std::time::Duration;

use super::trace::ComputePlan;

/// Returns the bound for a worker whose link carries `bytes_per_s` in each direction. `key_bytes` has the
/// number of bytes of each key.
///
/// The bound assumes that both directions are busy at the same time, and that layers are cut as finely as
/// needed.
pub fn shortest_iteration(plan: &ComputePlan, key_bytes: &[u64], bytes_per_s: f64) -> Duration {
    let computing = plan.compute().as_secs_f64();
    let (mut inside, mut bytes, mut shortest) = (0.0, 0, computing);
    for step in &plan.steps {
        bytes += step.keys.iter().map(|key| key_bytes[key.index()]).sum::<u64>();
        shortest = f64::max(shortest, computing - inside + bytes as f64 / bytes_per_s);
        inside += (step.forward + step.backward).as_secs_f64();
    }
    Duration::from_secs_f64(shortest)
}

#[cfg(test)]
mod tests {
    use pbox_core::KeyId;

    use super::*;
    use crate::compute::ComputeStep;

    const MS: Duration = Duration::from_millis(1);

    /// Creates a plan with layers of 1 ms forward and 2 ms backward, each with a key.
    fn plan(layers: u32) -> ComputePlan {
        let step = |layer: u32| ComputeStep {
            name: layer.to_string(),
            keys: vec![KeyId(layer)],
            forward: MS,
            backward: 2 * MS,
        };
        ComputePlan { name: "test".into(), batch: 1, steps: (0..layers).map(step).collect() }
    }

    /// Returns the bound in milliseconds for a link with 1000 bytes per millisecond.
    fn ms(key_bytes: &[u64]) -> f64 {
        shortest_iteration(&plan(key_bytes.len() as u32), key_bytes, 1e6).as_secs_f64() * 1e3
    }

    #[test]
    fn a_fast_link_leaves_computing() {
        assert_eq!(ms(&[0, 0, 0]), 9.0);
        // 2 ms of the last layer's bytes cross the link while the two other layers compute for 6 ms.
        assert_eq!(ms(&[0, 0, 2000]), 9.0);
    }

    #[test]
    fn the_first_layer_hides_behind_nothing() {
        assert_eq!(ms(&[500, 0, 0]), 9.5);
        assert_eq!(ms(&[500, 0, 2000]), 9.5);
    }

    #[test]
    fn the_slow_link_waits_for_the_last_layer_to_compute() {
        // The bytes take 12 ms, and in 3 ms there are no bytes to send.
        assert_eq!(ms(&[4000, 4000, 4000]), 15.0);
        assert_eq!(ms(&[0, 0, 12_000]), 15.0);
        // The second layer's window has 3 ms of computing and 6 ms of bytes.
        assert_eq!(ms(&[0, 6000, 0]), 9.0 - 3.0 + 6.0);
    }

    /// Checks that a simulated link and processor, which never idle without need, are not faster than the
    /// bound.
    #[test]
    fn no_schedule_is_faster() {
        for first in [0, 1000, 5000] {
            for last in [0, 3000, 9000] {
                let sizes = [first, 2000, last];
                assert!(ms(&sizes) <= perfect(&sizes), "{sizes:?}: {} above {}", ms(&sizes), perfect(&sizes));
            }
        }
    }

    /// Returns the period of the schedule first-layer-first in milliseconds, simulated byte by byte, after
    /// some iterations.
    fn perfect(sizes: &[u64]) -> f64 {
        let mut free_at = 0.0; // the time when the processor is free
        let mut there = vec![0.0; sizes.len()]; // the time when the layer's weights are there
        let mut last_begin = 0.0;
        let mut period = 0.0;
        for _ in 0..4 {
            for (layer, there) in there.iter().enumerate() {
                free_at = f64::max(free_at, *there) + 1.0;
                if layer == 0 {
                    (period, last_begin) = (free_at - last_begin, free_at);
                }
            }
            let mut gradients = vec![0.0; sizes.len()];
            for ready in gradients.iter_mut().rev() {
                free_at += 2.0;
                *ready = free_at;
            }
            // Each step of 1 ms sends a thousand bytes of the first layer that has bytes to send.
            let mut left: Vec<u64> = sizes.to_vec();
            let mut now = gradients[sizes.len() - 1];
            there.copy_from_slice(&gradients);
            while left.iter().any(|&bytes| bytes > 0) {
                let ready = |&layer: &usize| left[layer] > 0 && gradients[layer] <= now;
                let layer = (0..sizes.len()).find(ready);
                now += 1.0;
                if let Some(layer) = layer {
                    left[layer] -= 1000;
                    there[layer] = now;
                }
            }
        }
        period
    }
}
