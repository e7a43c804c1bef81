//! Codecs on one core, with one chunk in cache, for every instruction set. The benchmark measures the cost of
//! encoding a value at one end and adding it at the other.
//!
//! Throughput is bytes of f32 values: at 10 GB/s, 2.5 billion values per second are encoded and added. Each
//! time, the chunk's values are encoded for a new round, so that state and randomness are as in a job. Every
//! payload is checked before the measurement. A copy of the chunk in the same run is the reference.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pbox_core::codec::{Codec, Draw};
use pbox_core::kernels::Kernels;
use pbox_core::{ChunkId, Round};

/// The number of elements of a chunk of f32, of the default size.
const ELEMENTS: usize = (32 << 10) / size_of::<f32>();

const CODECS: [(&str, Codec); 13] = [
    ("f16", Codec::F16),
    ("bf16", Codec::Bf16),
    ("qsgd-8", Codec::Qsgd { bits: 8, bucket: 512 }),
    ("qsgd-4", Codec::Qsgd { bits: 4, bucket: 512 }),
    ("qsgd-4-48", Codec::Qsgd { bits: 4, bucket: 48 }),
    ("qsgd-3", Codec::Qsgd { bits: 3, bucket: 512 }),
    ("onebit", Codec::OneBit),
    ("terngrad", Codec::TernGrad),
    ("topk-0.01", Codec::TopK { ratio: 0.01 }),
    ("topk-0.1", Codec::TopK { ratio: 0.1 }),
    ("randomk-0.01", Codec::RandomK { ratio: 0.01 }),
    ("dgc-0.01", Codec::Dgc { ratio: 0.01, momentum: 0.9, clip: Some(1.0), warmup_rounds: 0 }),
    ("dgc-0.25", Codec::Dgc { ratio: 0.25, momentum: 0.9, clip: Some(1.0), warmup_rounds: 0 }),
];

/// One chunk at a worker, and its sum at the hub.
struct Chunk {
    codec: Codec,
    values: Vec<f32>,
    state: Vec<f32>,
    payload: Vec<u8>,
    sum: Vec<f32>,
    round: u32,
}

impl Chunk {
    fn new(codec: Codec) -> Self {
        // Each value is a sum of a few random numbers. So there are many small values and few large ones, as
        // in gradients.
        let number = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0;
        Chunk {
            codec,
            values: (0..ELEMENTS).map(|i| (1..5).map(|j| number(i * 5 + j)).product()).collect(),
            state: vec![0.0; codec.state_per_element() * ELEMENTS],
            payload: vec![0; codec.payload_bytes(ELEMENTS)],
            sum: vec![0.0; ELEMENTS],
            round: 0,
        }
    }

    fn pass(&mut self, kernels: &Kernels) -> usize {
        self.round += 1;
        let draw = Draw { seed: 1, rank: 0, round: Round(self.round), chunk: ChunkId(0) };
        let encoded = self.codec.encode(kernels, &self.values, &mut self.state, draw, &mut self.payload);
        self.codec.add(kernels, &self.payload[..encoded.bytes], &mut self.sum);
        encoded.bytes
    }

    fn check(codec: Codec, kernels: &Kernels) {
        let mut chunk = Chunk::new(codec);
        let bytes = chunk.pass(kernels);
        codec.check_payload(ELEMENTS, &chunk.payload[..bytes]).expect("its own payload");
        assert!(chunk.sum.iter().any(|value| *value != 0.0), "{codec:?} {kernels:?}: nothing was added");
    }
}

fn codecs(criterion: &mut Criterion) {
    for (name, codec) in CODECS {
        let mut group = criterion.benchmark_group(name);
        let bytes = ELEMENTS * size_of::<f32>();
        group.throughput(Throughput::BytesDecimal(bytes as u64));
        let (source, mut target) = (vec![1.0f32; ELEMENTS], vec![0.0f32; ELEMENTS]);
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| black_box(&mut target).copy_from_slice(black_box(&source)));
        });
        for kernels in Kernels::available() {
            Chunk::check(codec, kernels);
            let mut chunk = Chunk::new(codec);
            group.bench_function(BenchmarkId::new("encode+add", kernels.name()), |bencher| {
                bencher.iter(|| black_box(&mut chunk).pass(kernels));
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_millis(400))
        .warm_up_time(std::time::Duration::from_millis(100));
    targets = codecs
}
criterion_main!(benches);
