//! The toy networks of P3's paper (figures 4 and 6): how much of a delay is removed by priorities and by slices.
//!
//! Slices, order and queue are those of the product. A stage of the exchange works on one slice at a time, for one unit of
//! time per chunk.

use pbox_core::{Key, KeyId, Layout, Placement, Schedule, SendQueue, Slice, Slices};

/// The number of elements in a chunk of 64 bytes.
const CHUNK: u64 = 16;

/// Exchanges the gradients of layers with these numbers of chunks. Returns the time at which the weights of each layer have
/// arrived. The gradient of the last layer is ready at time 1, the gradient of the layer before it at time 2, and so on.
/// Each slice passes all stages, one after another.
fn exchange(layers: &[u64], schedule: Schedule, stages: usize) -> Vec<u64> {
    let keys = layers.iter().map(|&chunks| Key::f32("layer", [chunks * CHUNK]));
    let keys = keys.enumerate().map(|(layer, key)| Key { name: layer.to_string(), ..key }).collect();
    let one_chunk = 4 * CHUNK as usize;
    let layout = Layout::new(keys, one_chunk).unwrap();
    let slices = Slices::new(&layout, &Placement::new(&layout, 1), schedule, one_chunk);
    let mut queues = vec![SendQueue::new(slices.count()); stages];
    let mut at_work: Vec<Option<(u32, u64)>> = vec![None; stages]; // a slice, and the time at which its stage ends
    let mut there = vec![0; layers.len()];
    for now in 1u64..100 {
        if let Some(layer) = (layers.len() as u64).checked_sub(now) {
            let arrived = slices.of_key(KeyId(layer as u32));
            arrived.for_each(|slice| assert!(queues[0].push(slices.slice(slice).priority, slice)));
        }
        for stage in 0..stages {
            if let Some((slice, _)) = at_work[stage].take_if(|(_, done_at)| *done_at == now) {
                let Slice { key, priority, .. } = slices.slice(slice);
                match queues.get_mut(stage + 1) {
                    Some(next) => assert!(next.push(*priority, slice)),
                    None => there[key.index()] = now,
                }
            }
            if at_work[stage].is_none() {
                at_work[stage] =
                    queues[stage].pop().map(|slice| (slice, now + slices.chunks(slice).len() as u64));
            }
        }
    }
    assert!(queues.iter().all(SendQueue::is_empty) && at_work.iter().all(Option::is_none));
    there
}

/// Each layer computes for one unit of time and synchronizes for two. The next iteration can begin only when the first
/// layer is synchronized.
#[test]
fn the_first_layers_priority_halves_the_delay() {
    let backward_pass = 3;
    let delay = |schedule| exchange(&[2, 2, 2], schedule, 1)[0] - backward_pass;
    assert_eq!(delay(Schedule::Layerwise), 4, "twice the time of synchronizing the first layer");
    assert_eq!(delay(Schedule::Sliced), 4, "slices alone do not change the order");
    assert_eq!(delay(Schedule::P3), 2, "half of it");
}

/// The second layer's gradient, update and weights take three times as long as those of its neighbours. With slices, the
/// paper's example has 30% less communication, and this exchange saves 4 of 11 units of time.
#[test]
fn slices_of_a_heavy_layer_keep_all_stages_busy() {
    let (begun, stages) = (1, 3); // the worker's link, the server, the link back
    let took = |schedule| exchange(&[1, 3, 1], schedule, stages).into_iter().max().unwrap() - begun;
    assert_eq!(took(Schedule::Layerwise), 11, "the first layer waits for the second at each stage");
    assert_eq!(took(Schedule::Sliced), 7, "five chunks, and the last one's two further stages");
    assert_eq!(took(Schedule::P3), 7, "the order does not change how much there is");
    assert_eq!(exchange(&[1, 3, 1], Schedule::P3, stages)[0], 6, "yet the first layer is there earlier");
}
