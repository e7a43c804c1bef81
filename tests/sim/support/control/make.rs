//! Makes a simulated hub and its job with the same requests, in the same order, as a real hub does. `ask` counts every
//! request to a hub.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::input::{Begin, EndJoin, Find, HubOf, PromiseJoin, Release, Reserve};
use coordinator::{Files, Found, Hub, JobSpec, LateLimits, Made, Promise, Quotas, Request, Settings};
use pbox_core::{JobId, JobTerms, KeyId, NumbersByRound, Piece, Round, Share};

use super::{SECRET, known_to};
use crate::counts::count;

/// The time after which a worker that delays a round is lost.
pub(super) const LATE: Duration = Duration::from_secs(100);
/// The memory that reading a join needs, in bytes.
const JOIN_BYTES: u64 = 1000;

/// A piece of a key, for each hub that owns chunks. Which piece it is does not matter: the control only asks whether a
/// hub has a piece.
const PIECE: Piece = Piece { key: KeyId(0), chunks: 0..1, elements: 0..16 };

/// Gives a hub an input, and counts the input.
pub(super) fn ask<R: Request>(hub: &mut Hub, request: R, now: Instant) -> R::Answer {
    let path = std::any::type_name::<R>();
    count(path.rsplit("::").next().unwrap_or(path), 1);
    hub.ask(request, now)
}

/// Returns a hub with a single job, which begins with a round.
pub(super) fn hub_of(
    (id, name): (JobId, String),
    terms: &Arc<JobTerms>,
    share: Share,
    made: Made,
    ((first, numbers), files): ((Round, NumbersByRound), &Files),
    now: Instant,
) -> Hub {
    let late = LateLimits { warning: LATE / 2, limit: Some(LATE) };
    let mut hub = Hub::new(Settings { jobs_limit: 1, quotas: Quotas::default(), late });
    for former in 0..id.0 {
        // A reserved job uses up its number even if it is never made. So the loop uses up the numbers below
        // `id`.
        let name = former.to_string();
        ask(&mut hub, Reserve { name: name.clone() }, now);
        ask(&mut hub, Release { name }, now);
    }
    ask(&mut hub, PromiseJoin { bytes: JOIN_BYTES, memory: None }, now).expect("there is room");
    let find = Find { name: name.clone(), owner: None };
    assert_eq!(ask(&mut hub, find.clone(), now), Ok(Found::Free(id)));
    assert_eq!(ask(&mut hub, find.clone(), now), Ok(Found::Reserved), "the job is being made");
    ask(&mut hub, Promise::new(&name, terms, JOIN_BYTES, None), now).expect("there is room");
    ask(&mut hub, Release { name: name.clone() }, now);
    let of_hub = HubOf {
        share,
        names: Vec::new(),
        pieces: Vec::from_iter((made.owners > 0).then_some(PIECE)),
        secret: SECRET,
        first_round: first,
        files: known_to(share.hub, files),
    };
    let spec = JobSpec { id, name, terms: Arc::clone(terms), made };
    ask(&mut hub, Begin { spec, hub: of_hub, from: (first, numbers) }, now);
    ask(&mut hub, EndJoin { bytes: JOIN_BYTES }, now);
    assert_eq!((ask(&mut hub, find, now), hub.promised()), (Ok(Found::Job), 0));
    hub
}
