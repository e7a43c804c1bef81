//! The default size of a model's chunks. Pure functions.

use super::{DEFAULT_CHUNK_BYTES, Key};

/// The limit on the chunks of a model with the default size. A core with its own NIC has a receive request for each of its
/// chunks, and a queue of mlx5 has 32,768 requests. The limit is for two such cores, with room for other messages.
const MOST_CHUNKS: u64 = 64_000;
/// The largest chunk size that is allowed.
pub(super) const LARGEST: usize = 1 << 30;

/// Returns the default chunk size. It is 32 KiB for models up to 2.1 GB. For larger models, and for models with
/// thousands of keys, it is the next power of two with few enough chunks for a NIC. Beyond 32,000 keys, a NIC may have
/// too few requests.
pub fn default_chunk_bytes(keys: &[Key]) -> usize {
    let total = keys.iter().filter_map(Key::bytes).fold(0, u64::saturating_add);
    // Each key may have a small last chunk in addition.
    let full = MOST_CHUNKS - (keys.len() as u64).min(MOST_CHUNKS / 2);
    let wanted = total.div_ceil(full).min(LARGEST as u64) as usize;
    wanted.next_power_of_two().max(DEFAULT_CHUNK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Dtype, Layout};
    use crate::models::{MODELS, model};
    use crate::place::Placement;

    /// The receive requests for chunks in a queue of mlx5. Other messages use the rest.
    const REQUESTS: u32 = 32_768 - 112;

    /// Returns the keys of a decoder: embeddings, and in each layer the matrices `of_layer` (attention and feed-forward part)
    /// and two norms.
    fn decoder(dtype: Dtype, vocabulary: u64, width: u64, layers: u64, of_layer: &[[u64; 2]]) -> Vec<Key> {
        let key = |name: String, shape: &[u64]| Key::new(dtype, name, shape.to_vec());
        let layer = |layer| {
            let matrices = of_layer.iter().enumerate();
            let matrices = matrices.map(move |(number, shape)| key(format!("{layer}.{number}"), shape));
            matrices.chain((0..2).map(move |norm| key(format!("{layer}.norm{norm}"), &[width])))
        };
        let first = key("embeddings".into(), &[vocabulary, width]);
        std::iter::once(first).chain((0..layers).flat_map(layer)).collect()
    }

    fn gpt2_xl() -> Vec<Key> {
        decoder(Dtype::F32, 50_257, 1600, 48, &[[1600, 4800], [1600, 1600], [1600, 6400], [6400, 1600]])
    }

    fn of_7b(dtype: Dtype) -> Vec<Key> {
        let (square, wide) = ([4096, 4096], [4096, 11_008]);
        decoder(dtype, 2 * 32_000, 4096, 32, &[square, square, square, square, wide, wide, wide])
    }

    fn of_70b() -> Vec<Key> {
        let (square, narrow, wide) = ([8192, 8192], [8192, 1024], [8192, 28_672]);
        decoder(Dtype::BF16, 2 * 32_000, 8192, 80, &[square, narrow, narrow, square, wide, wide, wide])
    }

    #[test]
    fn the_chunks_of_any_model_fit_two_lanes_of_a_nic() {
        // Each key has a last chunk of 64 bytes.
        let small_last = (0..1939).map(|key| Key::f32(format!("{key}"), [(33 * 32_768 + 64) / 4])).collect();
        let large = [
            ("1939 keys, f32", small_last, 0.524, 64),
            ("GPT-2 XL, f32", gpt2_xl(), 1.557, 128),
            ("7B, bf16", of_7b(Dtype::BF16), 6.74, 256),
            ("7B, f32", of_7b(Dtype::F32), 6.74, 512),
            ("70B, bf16", of_70b(), 68.98, 4096),
        ];
        for (name, keys, billions, kib) in large {
            let elements: u64 = keys.iter().filter_map(Key::elements).sum();
            assert!((elements as f64 / 1e9 - billions).abs() < 0.01, "{name}: {elements} parameters");
            let chunk_bytes = default_chunk_bytes(&keys);
            assert_eq!(chunk_bytes, kib << 10, "{name}");
            let layout = Layout::new(keys, chunk_bytes).unwrap();
            let lane = *Placement::new(&layout, 2).capacities().iter().max().unwrap();
            assert!(lane <= REQUESTS, "{name}: a lane of {lane} chunks");
        }
    }

    #[test]
    fn small_models_keep_small_chunks() {
        for name in MODELS {
            assert_eq!(default_chunk_bytes(&model(name).unwrap().keys), DEFAULT_CHUNK_BYTES, "{name}");
        }
        assert_eq!(default_chunk_bytes(&[]), DEFAULT_CHUNK_BYTES);
        let of = |bytes: u64| default_chunk_bytes(&[Key::f32("a", [bytes / 4])]);
        let most = MOST_CHUNKS * DEFAULT_CHUNK_BYTES as u64;
        let most = most - DEFAULT_CHUNK_BYTES as u64; // one key
        assert_eq!([of(most), of(most + 4)], [DEFAULT_CHUNK_BYTES, 2 * DEFAULT_CHUNK_BYTES]);
        let many = vec![Key::f32("a", [8]); 100_000];
        assert_eq!(default_chunk_bytes(&many), DEFAULT_CHUNK_BYTES);
        assert_eq!(of(u64::MAX), LARGEST, "which is refused for other reasons");
    }
}
