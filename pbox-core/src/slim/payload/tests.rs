//! Payloads to the hub and back, forgotten significant sets, false payloads, and arbitrary bytes.

use super::super::set::words;
use super::*;
use crate::layout::{ChunkId, Round};
use half::bf16;
use proptest::prelude::*;

const ELEMENTS: usize = 300;

fn drawer() -> Drawer {
    Drawer { seed: 1, rank: 2, round: Round(9), chunk: ChunkId(4) }
}

fn significant() -> Vec<u64> {
    let mut significant = vec![0; words(ELEMENTS)];
    (0..ELEMENTS).step_by(10).for_each(|place| insert(&mut significant, place));
    significant
}

fn with(explorer: Explorer) -> SlimDp {
    SlimDp { explorer, ..SlimDp::new(0.3, 0.1) }
}

/// Exchanges values in both directions. The hub's sum has the values that a worker pushed, and the worker gets the weights
/// of the same elements.
fn exchange<E: Element>(explorer: Explorer) {
    let (slim, significant) = (with(explorer), significant());
    let signature = set::signature(&significant);
    let values: Vec<E> = (0..ELEMENTS).map(|place| E::from_f32(place as f32 + 1.0)).collect();
    let mut pushed = vec![0; significant.len()];
    let mut payload = vec![0xaa; payload_bytes(ELEMENTS, size_of::<E>())];
    let bytes = slim.push_set(&significant, &mut pushed, drawer(), &values, &mut payload);
    let explored = count(&pushed) - count(&significant);
    assert_eq!(explored, 60, "(alpha - beta) of all");
    let places = if explorer == Explorer::Keys { (explored * 2).next_multiple_of(8) } else { 0 };
    assert_eq!(bytes, HEADER + places + 90 * size_of::<E>(), "alpha of all values");

    let payload = &payload[..bytes];
    assert_eq!(
        slim.check_push(ELEMENTS, size_of::<E>(), Some((&significant, signature)), payload),
        Ok(Push::Set)
    );
    let (mut at_hub, mut sum) = (vec![0; significant.len()], vec![0.5; ELEMENTS]);
    assert!(!slim.add_push::<E>(&significant, &mut at_hub, drawer(), payload, &mut sum));
    assert_eq!(at_hub, pushed);
    for (place, &sum) in sum.iter().enumerate() {
        let pushed = if has(&pushed, place) { values[place].to_f32() } else { 0.0 };
        assert_eq!(sum, 0.5 + pushed, "element {place}");
    }

    let weights: Vec<E> = (0..ELEMENTS).map(|place| E::from_f32(-(place as f32))).collect();
    let next: Vec<u64> = significant.iter().map(|word| word << 1 & there(64, 0)).collect();
    let mut payload = vec![0; payload_bytes(ELEMENTS, size_of::<E>())];
    let bytes = answer(Some(&at_hub), set::signature(&next), &next, &weights, &mut payload);
    let (mut at_worker, mut merged) = (significant.clone(), values.clone());
    assert_eq!(merge(&payload[..bytes], Some(&pushed), &mut at_worker, &mut merged), Ok(true));
    assert_eq!(at_worker, next);
    for (place, &merged) in merged.iter().enumerate() {
        assert_eq!(
            merged,
            if has(&pushed, place) { weights[place] } else { values[place] },
            "element {place}"
        );
    }
}

#[test]
fn significant_set_and_explorer_go_and_come() {
    for explorer in [Explorer::Keys, Explorer::Seeded] {
        exchange::<f32>(explorer);
        exchange::<bf16>(explorer);
    }
}

#[test]
fn another_significant_set_is_seen_and_mended() {
    let (slim, significant) = (with(Explorer::Seeded), significant());
    let values = vec![1.0f32; ELEMENTS];
    let mut payload = vec![0; payload_bytes(ELEMENTS, 4)];
    let stale = vec![0; significant.len()];
    let mut set = stale.clone();
    let bytes = slim.push_set(&stale, &mut set, drawer(), &values, &mut payload);
    let signature = set::signature(&significant);
    let push = slim.check_push(ELEMENTS, 4, Some((&significant, signature)), &payload[..bytes]);
    assert_eq!(push, Ok(Push::OtherSet));

    let bytes = push_whole(&values, &mut payload);
    assert_eq!(
        slim.check_push(ELEMENTS, 4, Some((&significant, signature)), &payload[..bytes]),
        Ok(Push::Whole)
    );
    let mut sum = vec![0.0; ELEMENTS];
    assert!(slim.add_push::<f32>(&significant, &mut set, drawer(), &payload[..bytes], &mut sum));
    assert_eq!(sum, values);

    // After an answer with the signature of a significant set but without that set, the worker has no set.
    let (mut at_worker, mut weights) = (stale.clone(), vec![0.0; ELEMENTS]);
    let bytes = answer(None, signature, &[], &values, &mut payload);
    let merged = merge(&payload[..bytes], Some(&set), &mut at_worker, &mut weights);
    assert_eq!(merged, Err(SlimPayloadError::Kind { seen: WHOLE }), "the push was a set");
    assert_eq!(merge(&payload[..bytes], None, &mut at_worker, &mut weights), Ok(false));
    assert_eq!(weights, values);
    let bytes = answer(None, signature, &significant, &values, &mut payload);
    assert_eq!(merge(&payload[..bytes], None, &mut at_worker, &mut weights), Ok(true));
    assert_eq!(at_worker, significant);
}

#[test]
fn payloads_that_lie_are_named() {
    let (slim, significant) = (with(Explorer::Keys), significant());
    let signature = set::signature(&significant);
    let values = vec![1.0f32; ELEMENTS];
    let mut payload = vec![0; payload_bytes(ELEMENTS, 4)];
    let mut set = vec![0; significant.len()];
    let bytes = slim.push_set(&significant, &mut set, drawer(), &values, &mut payload);
    payload.truncate(bytes);
    let check = |payload: &[u8]| slim.check_push(ELEMENTS, 4, Some((&significant, signature)), payload);
    let changed = |at: usize, value: u8| {
        let mut payload = payload.clone();
        payload[at] = value;
        check(&payload)
    };
    assert_eq!(check(&payload[..10]), Err(SlimPayloadError::Length { expected: 16, seen: 10 }));
    assert_eq!(check(&payload[..bytes - 4]), Err(SlimPayloadError::Length { expected: 480, seen: 476 }));
    assert_eq!(changed(8, 7), Err(SlimPayloadError::Kind { seen: 7 }));
    assert_eq!(changed(8, 1), Err(SlimPayloadError::Length { expected: 1200, seen: 480 }));
    assert_eq!(changed(12, 200), Err(SlimPayloadError::Explored { seen: 200, expected: slim.explored(270) }));
    assert_eq!(
        changed(HEADER + 3, 0xff),
        Err(SlimPayloadError::Place { place: 0xff00 | u16::from(payload[HEADER + 2]), elements: ELEMENTS })
    );
    assert_eq!(
        changed(HEADER, 0),
        Err(SlimPayloadError::Place { place: 0, elements: ELEMENTS }),
        "of the significant set"
    );

    let bytes = answer(Some(&set), signature, &significant, &values, &mut payload);
    let (mut at_worker, mut weights) = (vec![0; significant.len()], values.clone());
    payload[HEADER] ^= 2;
    let lies = merge(&payload[..bytes], Some(&set), &mut at_worker, &mut weights);
    assert_eq!(lies, Err(SlimPayloadError::SignificantSet), "the signature is of another set");
    payload[HEADER] ^= 2;
    let short = merge(&payload[..bytes - 1], Some(&set), &mut at_worker, &mut weights);
    assert!(matches!(short, Err(SlimPayloadError::Length { .. })));
}

proptest! {
    #[test]
    fn any_bytes_are_borne(payload: Vec<u8>, significant: [u64; 2], elements in 65usize..=128, seeded: bool) {
        let significant = [significant[0], significant[1] & there(elements, 1)];
        let slim = with(if seeded { Explorer::Seeded } else { Explorer::Keys });
        let (mut set, mut sum) = ([0; 2], vec![0.0; elements]);
        let _ = slim.check_push(elements, 4, Some((&significant[..], set::signature(&significant))), &payload);
        slim.add_push::<f32>(&significant, &mut set, drawer(), &payload, &mut sum);
        let (mut at_worker, mut weights) = (significant, vec![0.0f32; elements]);
        let _ = merge(&payload, Some(&set), &mut at_worker, &mut weights);
        let _ = merge(&payload, None, &mut at_worker, &mut weights);
    }
}
