//! The payloads of Slim-DP: pushes, which a hostile worker writes, and answers, which a hostile hub does; both may
//! change after they were checked.

use pbox_core::slim::{Drawer, Explorer, Push, SlimDp, merge, set};
use pbox_core::{ChunkId, Round};

/// Elements of the largest chunk: a set of several words, the last of them not full.
const ELEMENTS: usize = 300;

/// The first bytes are settings, the number of elements and what is in the core; the rest is the payload.
pub fn run(bytes: &[u8]) {
    let Some((&[how, alpha, beta, low, high, dense], payload)) = bytes.split_first_chunk() else { return };
    let part = |byte: u8| (f32::from(byte) + 1.0) / 256.0;
    let explorer = if how & 1 == 0 { Explorer::Keys } else { Explorer::Seeded };
    let slim = SlimDp { explorer, ..SlimDp::new(part(alpha), part(alpha.min(beta))) };
    let elements = usize::from(u16::from_le_bytes([low, high])) % ELEMENTS + 1;
    let mut core = vec![0; set::words(elements)];
    // An odd number spreads them.
    (0..elements).filter(|place| (place * 89) as u8 <= dense).for_each(|place| set::insert(&mut core, place));
    let mut payload = payload.to_vec();
    // No fuzzer guesses a digest.
    if how & 2 == 0 && payload.len() >= 8 {
        payload[..8].copy_from_slice(&set::signature(&core).to_le_bytes());
    }
    pushed(&slim, elements, &core, &payload);
    answered(elements, None, &core, &payload);
    answered(elements, Some(&core), &core, &payload);
}

fn pushed(slim: &SlimDp, elements: usize, core: &[u64], payload: &[u8]) {
    let drawer = Drawer { seed: 1, rank: 2, round: Round(3), chunk: ChunkId(4) };
    let (mut sum, mut set) = (vec![0.0; elements], vec![0; core.len()]);
    // Without a look at what the check said.
    let whole = slim.add_push::<f32>(core, &mut set, drawer, payload, &mut sum);
    let bits = |bytes: &[u8]| canonical(f32::from_le_bytes(bytes.try_into().expect("four bytes")));
    match slim.check_push(elements, 4, Some((core, set::signature(core))), payload) {
        Ok(Push::Whole) => {
            assert!(whole, "added as it was checked");
            let said: Vec<u32> = payload[16..].chunks(4).map(bits).collect();
            assert_eq!(sum.iter().map(|&value| canonical(value)).collect::<Vec<_>>(), said);
        }
        Ok(Push::Set) => {
            assert!(!whole, "added as it was checked");
            let has = |place: &usize| set::has(&set, *place);
            assert!((0..elements).filter(|place| set::has(core, *place)).all(|place| has(&place)));
            assert!((0..elements).filter(|place| !has(place)).all(|place| sum[place] == 0.0));
            if slim.explorer == Explorer::Keys {
                let places = payload[16..].len() - 4 * set::count(&set);
                let said: Vec<u32> = payload[16 + places..].chunks(4).map(bits).collect();
                assert_eq!((0..elements).filter(has).map(|i| canonical(sum[i])).collect::<Vec<_>>(), said);
            }
        }
        Ok(Push::OtherCore) => assert_ne!(payload[..8], set::signature(core).to_le_bytes()),
        Err(error) => assert!(error.to_string().len() < 400, "{error}"),
    }
}

/// As the sum of it with zero is: NaNs' bits are the compiler's choice, and zeros' signs are lost.
fn canonical(value: f32) -> u32 {
    if value.is_nan() { u32::MAX } else { (0.0 + value).to_bits() }
}

fn answered(elements: usize, set: Option<&[u64]>, core: &[u64], payload: &[u8]) {
    let (mut known, mut weights) = (core.to_vec(), vec![0.5f32; elements]);
    match merge(payload, set, &mut known, &mut weights) {
        Ok(current) => {
            assert_eq!(current, payload[..8] == set::signature(&known).to_le_bytes());
            let values = &payload[payload.len() - 4 * set.map_or(elements, set::count)..];
            let said: Vec<u32> =
                values.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
            let place = |place: &usize| set.is_none_or(|set| set::has(set, *place));
            assert_eq!((0..elements).filter(place).map(|i| weights[i].to_bits()).collect::<Vec<_>>(), said);
            assert!(
                (0..elements).filter(|at| !place(at)).all(|at| weights[at] == 0.5),
                "others are left alone"
            );
            assert_eq!(known[known.len() - 1] & !set::there(elements, known.len() - 1), 0);
        }
        Err(error) => {
            assert!(error.to_string().len() < 400, "{error}");
            assert!(known == core && weights.iter().all(|&weight| weight == 0.5), "nothing is changed");
        }
    }
}
