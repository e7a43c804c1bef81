//! A snapshot of a single tensor, while rounds pass. It has exactly the bits of this tensor in a snapshot of all tensors.

use std::sync::Arc;

use fabric::sim::{Faults, Net};
use hub_tests::simulated::{Simulated, Terms};
use pbox_core::{
    Dtype, JobId, Key, KeyId, Layout, Notice, Occasion, Optimizer, Round, Selection, SnapshotPart, Tensor,
};

const ADAM: Optimizer =
    Optimizer::Adam { learning_rate: 0.1, weight_decay: 1e-3, beta1: 0.9, beta2: 0.99, epsilon: 1e-8 };
const CORES: usize = 2;
/// The tensors of a job with averages under Adam.
const TENSORS: [Tensor; 4] = [Tensor::Weights, Tensor::State(0), Tensor::State(1), Tensor::State(2)];

/// Returns the keys of a model: of several chunks, of one element, and of each type.
fn layout() -> Arc<Layout> {
    let mut keys = vec![Key::f32("a", [70]), Key::f32("b", [1]), Key::f32("c", [9, 7]), Key::f32("d", [40])];
    (keys[1].dtype, keys[2].dtype) = (Dtype::F16, Dtype::BF16);
    Arc::new(Layout::new(keys, 64).unwrap())
}

/// Returns the parts of a snapshot before round 4. The cores get the request when the job is in round `asked`.
fn parts(selection: Selection, asked: u32) -> Vec<SnapshotPart> {
    let layout = layout();
    let mut terms = Terms::new(1, CORES, ADAM);
    terms.job.ema = Some(0.9);
    let mut job = Simulated::new(Net::new(1, Faults::NONE), &layout, terms).unwrap();
    for round in 0..6 {
        if round == asked {
            for core in &mut job.cores {
                core.take_snapshot(JobId(0), Occasion::Ahead(1, selection), Round(4), &mut job.notices);
            }
        }
        for key in 0..layout.keys().len() as u32 {
            let value = |element: usize| (1 + key * 31 + round) as f32 / (element + 3) as f32;
            let worker = &mut job.workers[0];
            match layout.keys()[key as usize].dtype {
                Dtype::F32 => {
                    let gradient = worker.gradient_mut::<f32>(KeyId(key)).unwrap();
                    gradient.iter_mut().enumerate().for_each(|(element, of)| *of = value(element));
                }
                Dtype::F16 => worker.gradient_mut(KeyId(key)).unwrap().fill(half::f16::from_f32(value(0))),
                Dtype::BF16 => worker.gradient_mut(KeyId(key)).unwrap().fill(half::bf16::from_f32(value(0))),
            }
            worker.push(KeyId(key)).unwrap();
        }
        job.settle(1000).unwrap();
        job.step().unwrap(); // the cores report the results of snapshots in their next turn
    }
    let part = |notice| match notice {
        Notice::Snapshot { taken, .. } => taken.part.unwrap(),
        other => panic!("{other:?}"),
    };
    let mut parts: Vec<_> = job.notices.drain(..).map(part).collect();
    parts.sort_by_key(|part| part.chunks[0]);
    assert_eq!(parts.len(), CORES);
    parts
}

/// Returns the bits of one tensor of each chunk.
fn bits(part: &SnapshotPart, place: usize, tensors: usize) -> Vec<Vec<u32>> {
    let layout = layout();
    let (mut values, mut of_chunks) = (part.values.as_slice(), Vec::new());
    for &chunk in &part.chunks {
        let (span, key) = (layout.chunk(chunk).span, layout.chunk(chunk).key);
        let elements = span.bytes / layout.keys()[key.index()].dtype.bytes();
        let (of_chunk, rest) = values.split_at(elements * tensors);
        of_chunks
            .push(of_chunk[place * elements..][..elements].iter().map(|value| value.to_bits()).collect());
        values = rest;
    }
    assert!(values.is_empty(), "the part has no other values");
    of_chunks
}

#[test]
fn a_snapshot_of_one_tensor_has_the_bits_that_a_snapshot_of_all_has_of_it() {
    for asked in [1, 4] {
        let all = parts(Selection::All, asked);
        for (place, tensor) in TENSORS.into_iter().enumerate() {
            for (one, all) in parts(Selection::One(tensor), asked).iter().zip(&all) {
                assert_eq!((&one.chunks, &one.steps), (&all.chunks, &all.steps));
                let (seen, expected) = (bits(one, 0, 1), bits(all, place, TENSORS.len()));
                assert_eq!(seen, expected, "{tensor:?} asked before round {asked}");
            }
        }
    }
}
