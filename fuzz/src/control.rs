//! Bodies of the control port. The first byte chooses the kind of the body.
//!
//! A body that parses is checked as the hub checks it. If it is valid, it must parse to the same value after
//! it is written again. This module must not depend on HTTP.

use pbox_core::control::{
    Answer, ArrivedRequest, BeginsRequest, CheckpointRequest, CompareRequest, ErrorReply, FailedReply,
    FailedRequest, HeartbeatReply, HeartbeatRequest, HoldReply, HoldRequest, HubReply, JoinReply,
    LastRequest, LearningRateRequest, LeaveRequest, LostRequest, MAX_PORTS, OfferReply, OfferRequest,
    OptimizerRequest, ParseError, PartsReply, PrioritiesRequest, ReleaseRequest, WrittenReply,
    WrittenRequest, check_job_name, parse, parse_from_hub, parse_join,
};
use pbox_core::{Below, Key, Layout, Wire};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Parses a request. The first byte is the kind, the remaining bytes are the body.
pub fn run(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    match kind % 27 {
        0 => join(body),
        1 => request::<HeartbeatRequest>("heartbeat", body, |_| true),
        2 => request::<LearningRateRequest>("learning-rate", body, |r| r.learning_rate.is_finite()),
        3 => request::<LeaveRequest>("leave", body, |_| true),
        4 => let_in(body),
        5 => answer::<HeartbeatReply>(body),
        6 => reply::<HubReply>(body),
        7 => reply::<ErrorReply>(body),
        8 => {
            let name = String::from_utf8_lossy(body);
            if let Err(error) = check_job_name(&name) {
                assert!(error.to_string().len() < 1000);
            }
        }
        // Requests between hubs of one job.
        9 => of_hub::<HoldRequest>("hold", body),
        10 => of_hub::<ReleaseRequest>("release", body),
        11 => of_hub::<WrittenRequest>("written", body),
        12 => of_hub::<ArrivedRequest>("arrived", body),
        13 => of_hub::<LostRequest>("lost", body),
        14 => of_hub::<CheckpointRequest>("checkpoint", body),
        15 => answer::<HoldReply>(body),
        16 => answer::<WrittenReply>(body),
        17 => answer::<PartsReply>(body),
        18 => request::<OfferRequest>("offer", body, |_| true),
        19 => answer::<OfferReply>(body),
        20 => of_hub::<FailedRequest>("failed", body),
        21 => of_hub::<LastRequest>("last", body),
        22 => answer::<FailedReply>(body),
        23 => request::<OptimizerRequest>("optimizer", body, is_plain),
        25 => request::<PrioritiesRequest>("priorities", body, |_| true),
        24 => of_hub::<BeginsRequest>("begins", body),
        _ => request::<CompareRequest>("compare", body, |_| true),
    }
}

/// Whether all numbers of the request can be written as JSON.
fn is_plain(request: &OptimizerRequest) -> bool {
    let mut keys = request.keys.iter().flat_map(|keys| keys.iter().flatten());
    let groups = request.groups.iter().flat_map(|groups| &groups.optimizers);
    let mut optimizers = groups.chain([&request.optimizer]);
    optimizers.all(|each| each.check().is_ok()) && keys.all(|each| each.is_finite())
}

fn join(body: &[u8]) {
    let request = match parse_join(body) {
        Ok(request) => request,
        Err(error) => return check_length(&error),
    };
    let terms = &request.terms;
    let valid = terms.check().is_ok();
    check_round_trip(&request, valid);
    // A layout with millions of chunks is valid, but takes too long to compute here.
    let bytes: u64 = terms.keys.iter().filter_map(|key| key.bytes()).fold(0, u64::saturating_add);
    if valid
        && terms.chunk_bytes > 0
        && bytes / (terms.chunk_bytes as u64) < 10_000
        && let Ok(wire) = Wire::of_terms(terms)
    {
        assert_eq!(wire.layout().model_bytes(), bytes);
    }
    assert!(!valid || terms.first_difference(terms).is_none());
}

fn request<T: DeserializeOwned + Serialize>(what: &'static str, body: &[u8], valid: impl Fn(&T) -> bool) {
    match parse::<T>(what, body) {
        Ok(request) => check_round_trip(&request, valid(&request)),
        Err(error) => check_length(&error),
    }
}

fn of_hub<T: DeserializeOwned + Serialize>(what: &'static str, body: &[u8]) {
    match parse_from_hub::<T>(what, body) {
        Ok(request) => check_round_trip(&request, true),
        Err(error) => check_length(&error),
    }
}

fn reply<T: DeserializeOwned + Serialize>(body: &[u8]) {
    if let Ok(reply) = serde_json::from_slice::<T>(body) {
        check_round_trip(&reply, true);
    }
}

/// Checks an answer of a hub, whose numbers may be valid or not.
fn answer<T: Answer + Serialize>(body: &[u8]) {
    if let Ok(answer) = serde_json::from_slice::<T>(body) {
        check_round_trip(&answer, true);
        if let Err(why) = answer.check() {
            assert!(why.len() < 1000, "{why}");
        }
    }
}

/// Checks that a joiner can handle the answer.
fn let_in(body: &[u8]) {
    answer::<JoinReply>(body);
    let Ok(reply) = serde_json::from_slice::<JoinReply>(body) else { return };
    if reply.check().is_ok() {
        assert!(reply.ports <= MAX_PORTS && reply.cores.len() <= reply.ports as usize);
        let layout = Layout::new(vec![Key::f32("a", [100])], 64).expect("a small layout");
        if let Some(Ok(placements)) = reply.above.map(|above| above.placements(&layout)) {
            Below::new(&placements, reply.cores.len().max(1));
        }
    }
}

/// Checks that a valid value can be written and parsed again.
fn check_round_trip<T: DeserializeOwned + Serialize>(value: &T, valid: bool) {
    let written = serde_json::to_value(value).expect("plain data");
    if valid {
        let parsed: T = serde_json::from_value(written.clone()).expect("a valid value parses again");
        assert_eq!(serde_json::to_value(&parsed).expect("plain data"), written);
    }
}

fn check_length(error: &ParseError) {
    assert!(error.to_string().len() < 4000, "an error that repeats its input");
}
