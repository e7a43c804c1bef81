//! A decoder that follows `docs/formats.md` value by value and bit by bit.

use super::*;

/// A reader of a payload from its start.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        *bytes
    }

    fn f32(&mut self) -> f32 {
        f32::from_le_bytes(self.bytes())
    }

    /// Reads codes of `width` bits, padded with zeros to a whole byte.
    fn codes(&mut self, count: usize, width: usize) -> Vec<usize> {
        let (packed, rest) = self.0.split_at((count * width).div_ceil(8));
        self.0 = rest;
        let bit = |at: usize| usize::from(packed[at / 8] >> (at % 8) & 1);
        (0..count).map(|i| (0..width).map(|b| bit(i * width + b) << b).sum()).collect()
    }
}

fn read(codec: Codec, n: usize, payload: &[u8]) -> Vec<f32> {
    let mut payload = Reader(payload);
    let values = match codec {
        Codec::F16 => (0..n).map(|_| f16::from_le_bytes(payload.bytes()).to_f32()).collect(),
        Codec::Bf16 => (0..n).map(|_| bf16::from_le_bytes(payload.bytes()).to_f32()).collect(),
        Codec::Qsgd { bits, bucket } => {
            let scales: Vec<f32> = (0..n.div_ceil(bucket as usize)).map(|_| payload.f32()).collect();
            let codes = payload.codes(n, bits.into());
            let scale = |i| scales[i / bucket as usize];
            codes.iter().enumerate().map(|(i, code)| qsgd(*code, bits, scale(i))).collect()
        }
        Codec::OneBit => {
            (0..n.div_ceil(512)).flat_map(|bucket| onebit(&mut payload, n - bucket * 512)).collect()
        }
        Codec::TernGrad => {
            let (scale, s) = (payload.f32(), n.div_ceil(5));
            let bytes = payload.codes(s, 8);
            let digit = |i: usize| bytes[i % s] / 3usize.pow((i / s) as u32) % 3;
            (0..n).map(|i| [-scale, 0.0, scale][digit(i)]).collect()
        }
        Codec::TopK { .. } | Codec::Dgc { .. } => sparse(&mut payload, n),
        Codec::RandomK { ratio } => randomk(&mut payload, n, ratio),
    };
    assert!(payload.0.is_empty(), "{codec:?}: {} bytes too many", payload.0.len());
    values
}

fn qsgd(code: usize, bits: u8, scale: f32) -> f32 {
    let sign = 1 << (bits - 1);
    let magnitude = match bits {
        1 => scale,
        _ => (code % sign) as f32 * (1.0 / (sign - 1) as f32) * scale,
    };
    if code >= sign { -magnitude } else { magnitude }
}

fn onebit(payload: &mut Reader, left: usize) -> Vec<f32> {
    let means = [payload.f32(), payload.f32()];
    payload.codes(left.min(512), 1).into_iter().map(|code| means[code]).collect()
}

fn sparse(payload: &mut Reader, n: usize) -> Vec<f32> {
    let count = u32::from_le_bytes(payload.bytes()) as usize;
    let width = if n <= 65_536 { 2 } else { 4 };
    let forms = [4 + count * (width + 4), 4 + n.div_ceil(8) + 4 * count, 4 + 4 * n];
    let least = *forms.iter().min().unwrap();
    let places: Vec<usize> = match forms.iter().position(|bytes| *bytes == least).unwrap() {
        0 => payload.codes(count, 8 * width),
        1 => (0..n).zip(payload.codes(n, 1)).filter_map(|(i, bit)| (bit == 1).then_some(i)).collect(),
        _ => (0..n).collect(),
    };
    assert_eq!(places.len(), count);
    scattered(payload, n, places)
}

fn randomk(payload: &mut Reader, n: usize, ratio: f32) -> Vec<f32> {
    let [low, high] = [(); 2].map(|()| u32::from_le_bytes(payload.bytes()));
    let at = |x: u32| {
        let a = x.wrapping_mul(0x9e37_79b9).wrapping_add(low);
        let b = (a ^ a >> 16).wrapping_mul(0x21f0_aaad).wrapping_add(high);
        let c = (b ^ b >> 15).wrapping_mul(0xd35a_2d97);
        u128::from(c ^ c >> 15)
    };
    let (n, k) = (n as u128, ((ratio * n as f32).ceil() as u128).max(1).min(n as u128));
    let (run, below) = (|i| i * n / k, |r: u128, m: u128| (r * m) >> 32);
    let place = |i| (below(at(u32::MAX), n) + run(i) + below(at(i as u32), run(i + 1) - run(i))) % n;
    scattered(payload, n as usize, (0..k).map(|i| place(i) as usize).collect())
}

fn scattered(payload: &mut Reader, n: usize, places: Vec<usize>) -> Vec<f32> {
    let mut values = vec![0.0; n];
    places.into_iter().for_each(|place| values[place] = payload.f32());
    values
}

fn agrees(codec: Codec, values: &[f32], draw: Draw) {
    let mut state = state(codec, values);
    let (payload, _) = encode(codec, Kernels::detect(), values, &mut state, draw);
    let seen = decode(codec, Kernels::detect(), &payload, values.len());
    // Sums start with zero, so a negative zero loses its sign.
    let expected: Vec<f32> = read(codec, values.len(), &payload).iter().map(|value| 0.0 + value).collect();
    assert_eq!(bits(&seen), bits(&expected), "{codec:?}");
}

proptest! {
    #[test]
    fn payloads_are_what_the_protocol_says(codec in codecs(), values in any_values(1500), chunk: u32, round in 0u32..12) {
        agrees(codec, &values, Draw { chunk: ChunkId(chunk), round: Round(round), ..DRAW });
    }
}

#[test]
fn indices_of_large_chunks_have_32_bits() {
    let values: Vec<f32> = (0..70_000).map(|i| (i as f32).sin()).collect();
    for codec in all() {
        agrees(codec, &values, DRAW);
    }
}
