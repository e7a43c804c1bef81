//! Packed codes of a few bits. Code `i` of `B` bits is in the bits from `i * B` to `i * B + B - 1` of the bytes. The lowest
//! bit of a byte comes first.
//!
//! Eight codes, which become `B` bytes, are packed at once, in one 64-bit number. Three steps move the codes next to each other.

/// Returns a mask of the lowest `bits` bits in each group of `of` bits.
const fn mask(bits: u32, of: u32) -> u64 {
    let (mut mask, mut at) = (0, 0);
    while at < 64 {
        mask |= (!0 >> (64 - bits)) << at;
        at += of;
    }
    mask
}

/// Returns the number of bytes of `codes` packed codes.
pub(super) fn bytes(codes: usize, bits: u8) -> usize {
    (codes * usize::from(bits)).div_ceil(8)
}

/// Packs the codes, which must be below `2^bits`. `packed` must have the length that [`bytes`] returns.
#[inline(always)]
pub(super) fn pack(bits: u8, codes: &[u8], packed: &mut [u8]) {
    match bits {
        1 => pack_each::<1>(codes, packed),
        2 => pack_each::<2>(codes, packed),
        3 => pack_each::<3>(codes, packed),
        4 => pack_each::<4>(codes, packed),
        5 => pack_each::<5>(codes, packed),
        6 => pack_each::<6>(codes, packed),
        7 => pack_each::<7>(codes, packed),
        _ => packed.copy_from_slice(codes),
    }
}

/// Unpacks the codes. `packed` must have the length that [`bytes`] returns.
#[inline(always)]
pub(super) fn unpack(bits: u8, packed: &[u8], codes: &mut [u8]) {
    match bits {
        1 => unpack_each::<1>(packed, codes),
        2 => unpack_each::<2>(packed, codes),
        3 => unpack_each::<3>(packed, codes),
        4 => unpack_each::<4>(packed, codes),
        5 => unpack_each::<5>(packed, codes),
        6 => unpack_each::<6>(packed, codes),
        7 => unpack_each::<7>(packed, codes),
        _ => codes.copy_from_slice(packed),
    }
}

#[inline(always)]
fn pack_each<const B: usize>(codes: &[u8], packed: &mut [u8]) {
    let (groups, rest) = codes.as_chunks::<8>();
    let (places, last) = packed.as_chunks_mut::<B>();
    for (group, place) in groups.iter().zip(&mut *places) {
        *place = pack_eight::<B>(*group);
    }
    if !rest.is_empty() {
        let mut group = [0; 8];
        group[..rest.len()].copy_from_slice(rest);
        let packed = pack_eight::<B>(group);
        let last = places.get_mut(groups.len()).map_or(last, |place| &mut place[..]);
        last.copy_from_slice(&packed[..last.len()]);
    }
}

#[inline(always)]
fn pack_eight<const B: usize>(codes: [u8; 8]) -> [u8; B] {
    let b = B as u32;
    let mut bits = u64::from_le_bytes(codes);
    bits = bits & const { mask(8, 16) } | (bits & !const { mask(8, 16) }) >> (8 - b);
    bits = bits & const { mask(16, 32) } | (bits & !const { mask(16, 32) }) >> (16 - 2 * b);
    bits = bits & const { mask(32, 64) } | (bits & !const { mask(32, 64) }) >> (32 - 4 * b);
    let bytes = bits.to_le_bytes();
    std::array::from_fn(|i| bytes[i])
}

#[inline(always)]
fn unpack_each<const B: usize>(packed: &[u8], codes: &mut [u8]) {
    let (groups, rest) = codes.as_chunks_mut::<8>();
    let (places, last) = packed.as_chunks::<B>();
    let whole = groups.len();
    for (group, place) in groups.iter_mut().zip(places) {
        *group = unpack_eight::<B>(*place);
    }
    if !rest.is_empty() {
        let last = places.get(whole).map_or(last, |place| &place[..]);
        let mut place = [0; B];
        place[..last.len()].copy_from_slice(last);
        let left = rest.len();
        rest.copy_from_slice(&unpack_eight::<B>(place)[..left]);
    }
}

#[inline(always)]
fn unpack_eight<const B: usize>(packed: [u8; B]) -> [u8; 8] {
    let b = B as u32;
    let mut bytes = [0; 8];
    bytes[..B].copy_from_slice(&packed);
    let mut bits = u64::from_le_bytes(bytes);
    bits =
        bits & const { mask(4 * B as u32, 64) } | (bits & !const { mask(4 * B as u32, 64) }) << (32 - 4 * b);
    bits =
        bits & const { mask(2 * B as u32, 32) } | (bits & !const { mask(2 * B as u32, 32) }) << (16 - 2 * b);
    bits = bits & const { mask(B as u32, 16) } | (bits & !const { mask(B as u32, 16) }) << (8 - b);
    bits.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_lie_one_after_the_other(bits in 1u8..=8, codes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let codes: Vec<u8> = codes.iter().map(|code| code >> (8 - bits)).collect();
            let mut packed = vec![0; bytes(codes.len(), bits)];
            pack(bits, &codes, &mut packed);
            for (i, code) in codes.iter().enumerate() {
                for bit in 0..usize::from(bits) {
                    let at = i * usize::from(bits) + bit;
                    prop_assert_eq!(packed[at / 8] >> (at % 8) & 1, code >> bit & 1, "code {} bit {}", i, bit);
                }
            }
            let mut seen = vec![0; codes.len()];
            unpack(bits, &packed, &mut seen);
            prop_assert_eq!(seen, codes);
        }
    }
}
