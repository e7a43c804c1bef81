//! The payloads of compressed chunks. A hostile worker writes them, and may change them after the check.

use pbox_core::codec::Codec;
use pbox_core::kernels::Kernels;

/// The number of elements of the largest chunk. It is enough for every form of a payload, and for more than
/// one bucket.
const ELEMENTS: usize = 1100;

/// Runs a codec. The first byte names the codec, the next two its settings, and the next two the number of
/// elements. The rest is the payload.
pub fn run(bytes: &[u8]) {
    let Some((&[which, first, second, low, high], payload)) = bytes.split_first_chunk() else { return };
    let codec = codec(which, first, second);
    let elements = usize::from(u16::from_le_bytes([low, high])) % (ELEMENTS + 1);
    let accepted = codec.check_payload(elements, payload);
    let mut first = None;
    for kernels in Kernels::available() {
        let mut sum = vec![0.0f32; elements];
        codec.add(kernels, payload, &mut sum);
        if accepted.is_ok() && !matches!(codec, Codec::F16 | Codec::Bf16) {
            assert!(sum.iter().all(|value| value.is_finite()), "{codec:?}: accepted but not finite");
        }
        // The compiler chooses the bits of a NaN, so all NaNs count as equal.
        let bits = sum.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() });
        let bits: Vec<u32> = bits.collect();
        assert_eq!(first.get_or_insert_with(|| bits.clone()), &bits, "{codec:?} {kernels:?}");
    }
    match accepted {
        Ok(()) => {
            assert!(payload.len() <= codec.payload_bytes(elements), "{codec:?}: longer than the stated limit")
        }
        Err(error) => assert!(error.to_string().len() < 400, "{error}"),
    }
}

fn codec(which: u8, first: u8, second: u8) -> Codec {
    let ratio = (f32::from(first) + 1.0) / 256.0;
    match which % 8 {
        0 => Codec::F16,
        1 => Codec::Bf16,
        2 => Codec::Qsgd { bits: first % 8 + 1, bucket: u32::from(second) + 1 },
        3 => Codec::OneBit,
        4 => Codec::TernGrad,
        5 => Codec::TopK { ratio },
        6 => Codec::RandomK { ratio },
        _ => Codec::Dgc { ratio, momentum: 0.9, clip: None, warmup_rounds: second.into() },
    }
}
