//! The requests between hubs of one job over the control port.
//!
//! Each request is carried out on a task of its own, to its end, even if its client hangs up. Otherwise a job
//! could stay paused forever.

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::routing::{get, post};
use pbox_core::control::parse_from_hub;
use pbox_core::{Round, Share};
use serde::Deserialize;

use super::{Answer, Desk, done, nothing, to_its_end};
use crate::registry::Refusal;

const VERBS: [&str; 9] =
    ["hold", "release", "written", "arrived", "begins", "lost", "checkpoint", "failed", "last"];

/// The parts that every request of a hub has.
#[derive(Deserialize)]
struct Shown {
    secret: String,
}

/// Returns the pages of the other hubs.
pub(super) fn routes() -> Router<Desk> {
    Router::new()
        .route("/v1/jobs/{job}/parts/{hub}/{hubs}", get(parts))
        .route("/v1/jobs/{job}/parts/{hub}/{hubs}/{round}", get(check_part))
        .route("/v1/jobs/{job}/peers/{verb}", post(peers))
}

/// The parts of a path, or the reason why they do not have these types.
type Numbered<T> = Result<Path<T>, PathRejection>;

/// Returns the parts of a path that has numbers.
fn numbered<T>(parts: Numbered<T>) -> Result<T, Refusal> {
    // The path comes from outside, so the error does not repeat the path.
    let wrong =
        |_| Refusal::bad("the path: expected whole numbers below 2^32; see docs/protocol/control-port.md");
    parts.map(|Path(parts)| parts).map_err(wrong)
}

async fn parts(State(desk): State<Desk>, path: Numbered<(String, u32, u32)>) -> Answer {
    let (job, hub, hubs) = numbered(path)?;
    let share = Share { hub, hubs, ..Share::WHOLE };
    let _one_at_a_time = desk.parts.acquire().await;
    done(&desk.registry.parts(job, share, None).await?)
}

async fn check_part(State(desk): State<Desk>, path: Numbered<(String, u32, u32, u32)>) -> Answer {
    let (job, hub, hubs, round) = numbered(path)?;
    let share = Share { hub, hubs, ..Share::WHOLE };
    let _one_at_a_time = desk.parts.acquire().await;
    done(&desk.registry.parts(job, share, Some(Round(round))).await?)
}

async fn peers(
    State(desk): State<Desk>,
    Path((job, verb)): Path<(String, String)>,
    request: Request,
) -> Answer {
    let Some(verb) = VERBS.into_iter().find(|known| *known == verb) else { return super::no_such_page() };
    let received = desk.read(desk.limits.small_bytes, request).await?;
    let registry = desk.registry;
    to_its_end(async move {
        let body = &received.bytes;
        let Shown { secret } = parse_from_hub(verb, body)?;
        if matches!(verb, "failed" | "last") {
            let id = registry.of_peer_at_end(&job, &secret)?;
            return match verb {
                "failed" => done(&registry.failed_elsewhere(id, parse_from_hub(verb, body)?).await?),
                _ => done(&registry.save_part(id, parse_from_hub(verb, body)?).await?),
            };
        }
        let id = registry.of_peer(&job, &secret)?;
        match verb {
            "hold" => done(&registry.held_by_lead(id, parse_from_hub(verb, body)?).await?),
            "release" => nothing(registry.released_by_lead(id, parse_from_hub(verb, body)?).await),
            "written" => done(&registry.written(id, parse_from_hub(verb, body)?).await?),
            "arrived" => nothing(registry.arrived(id, parse_from_hub(verb, body)?)),
            "begins" => nothing(registry.begins(id, parse_from_hub(verb, body)?)),
            "lost" => nothing(registry.lost_elsewhere(id, parse_from_hub(verb, body)?)),
            _ => done(&registry.checkpoint_for_peer(id, parse_from_hub(verb, body)?).await?),
        }
    })
    .await
}
