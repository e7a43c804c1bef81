//! The payloads of Slim-DP: pushes from a hostile worker, and answers from a hostile hub. Each payload may
//! change after the check.

use pbox_core::slim::{Drawer, Explorer, Push, SlimDp, merge, set};
use pbox_core::{ChunkId, Round};

/// The number of elements of the largest chunk. A set has several words, and the last word is not full.
const ELEMENTS: usize = 300;

/// Parses a push. The first bytes are settings, the number of elements, and the significant set. The rest is
/// the payload.
pub fn run(bytes: &[u8]) {
    let Some((&[how, alpha, beta, low, high, dense], payload)) = bytes.split_first_chunk() else { return };
    let part = |byte: u8| (f32::from(byte) + 1.0) / 256.0;
    let explorer = if how & 1 == 0 { Explorer::Keys } else { Explorer::Seeded };
    let slim = SlimDp { explorer, ..SlimDp::new(part(alpha), part(alpha.min(beta))) };
    let elements = usize::from(u16::from_le_bytes([low, high])) % ELEMENTS + 1;
    let mut significant = vec![0; set::words(elements)];
    // An odd factor spreads the elements of the set.
    (0..elements)
        .filter(|place| (place * 89) as u8 <= dense)
        .for_each(|place| set::insert(&mut significant, place));
    let mut payload = payload.to_vec();
    // A fuzzer cannot guess a digest, so the digest is corrected.
    if how & 2 == 0 && payload.len() >= 8 {
        payload[..8].copy_from_slice(&set::signature(&significant).to_le_bytes());
    }
    check_push(&slim, elements, &significant, &payload);
    check_answer(elements, None, &significant, &payload);
    check_answer(elements, Some(&significant), &significant, &payload);
}

fn check_push(slim: &SlimDp, elements: usize, significant: &[u64], payload: &[u8]) {
    let drawer = Drawer { seed: 1, rank: 2, round: Round(3), chunk: ChunkId(4) };
    let (mut sum, mut set) = (vec![0.0; elements], vec![0; significant.len()]);
    // The payload is added even if its check has failed, as a peer may change it after the check.
    let whole = slim.add_push::<f32>(significant, &mut set, drawer, payload, &mut sum);
    let bits = |bytes: &[u8]| canonical(f32::from_le_bytes(bytes.try_into().expect("four bytes")));
    match slim.check_push(elements, 4, Some((significant, set::signature(significant))), payload) {
        Ok(Push::Whole) => {
            assert!(whole, "added as the check said");
            let expected: Vec<u32> = payload[16..].chunks(4).map(bits).collect();
            assert_eq!(sum.iter().map(|&value| canonical(value)).collect::<Vec<_>>(), expected);
        }
        Ok(Push::Set) => {
            assert!(!whole, "added as the check said");
            let has = |place: &usize| set::has(&set, *place);
            assert!((0..elements).filter(|place| set::has(significant, *place)).all(|place| has(&place)));
            assert!((0..elements).filter(|place| !has(place)).all(|place| sum[place] == 0.0));
            if slim.explorer == Explorer::Keys {
                let places = payload[16..].len() - 4 * set::count(&set);
                let expected: Vec<u32> = payload[16 + places..].chunks(4).map(bits).collect();
                assert_eq!(
                    (0..elements).filter(has).map(|i| canonical(sum[i])).collect::<Vec<_>>(),
                    expected
                );
            }
        }
        Ok(Push::OtherSet) => assert_ne!(payload[..8], set::signature(significant).to_le_bytes()),
        Err(error) => assert!(error.to_string().len() < 400, "{error}"),
    }
}

/// Returns the bits of the value plus zero. All NaNs are the same, because the compiler chooses their bits,
/// and zeros lose their sign.
fn canonical(value: f32) -> u32 {
    if value.is_nan() { u32::MAX } else { (0.0 + value).to_bits() }
}

fn check_answer(elements: usize, set: Option<&[u64]>, significant: &[u64], payload: &[u8]) {
    let (mut known, mut weights) = (significant.to_vec(), vec![0.5f32; elements]);
    match merge(payload, set, &mut known, &mut weights) {
        Ok(current) => {
            assert_eq!(current, payload[..8] == set::signature(&known).to_le_bytes());
            let values = &payload[payload.len() - 4 * set.map_or(elements, set::count)..];
            let expected: Vec<u32> =
                values.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
            let place = |place: &usize| set.is_none_or(|set| set::has(set, *place));
            assert_eq!(
                (0..elements).filter(place).map(|i| weights[i].to_bits()).collect::<Vec<_>>(),
                expected
            );
            assert!(
                (0..elements).filter(|at| !place(at)).all(|at| weights[at] == 0.5),
                "other weights do not change"
            );
            assert_eq!(known[known.len() - 1] & !set::there(elements, known.len() - 1), 0);
        }
        Err(error) => {
            assert!(error.to_string().len() < 400, "{error}");
            assert!(
                known == significant && weights.iter().all(|&weight| weight == 0.5),
                "a refused answer changes nothing"
            );
        }
    }
}
