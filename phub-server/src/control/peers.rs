//! What hubs of one job ask of each other over the control port.
//!
//! Each request is carried out on a task of its own, to its end, also if whoever asked hangs up: a job must not stay held.

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use pbox_core::Share;
use pbox_core::control::parse;

use super::{Answer, Desk, json};
use crate::registry::Refusal;

/// The pages of the other hubs.
pub(super) fn routes() -> Router<Desk> {
    Router::new()
        .route("/v1/jobs/{job}/parts/{hub}/{hubs}", get(parts))
        .route("/v1/jobs/{job}/peers/{verb}", post(peers))
}

async fn parts(State(desk): State<Desk>, Path((job, hub, hubs)): Path<(String, u32, u32)>) -> Answer {
    let share = Share { hub, hubs, ..Share::WHOLE };
    Ok(json(StatusCode::OK, &desk.registry.parts(job, share).await?))
}

async fn peers(
    State(desk): State<Desk>,
    Path((job, verb)): Path<(String, String)>,
    request: Request,
) -> Answer {
    let received = desk.small(request).await?;
    let registry = desk.registry;
    let done = tokio::spawn(async move {
        let body = &received.bytes;
        let nothing = serde_json::json!({});
        let answer = match verb.as_str() {
            "hold" => json(StatusCode::OK, &registry.held_by_lead(job, parse("hold", body)?).await?),
            "release" => {
                registry.released_by_lead(job, parse("release", body)?).await?;
                json(StatusCode::OK, &nothing)
            }
            "written" => json(StatusCode::OK, &registry.written(&job, parse("written", body)?).await?),
            "arrived" => {
                registry.arrived_at(&job, parse("arrived", body)?)?;
                json(StatusCode::OK, &nothing)
            }
            "lost" => {
                registry.lost_elsewhere(&job, parse("lost", body)?)?;
                json(StatusCode::OK, &nothing)
            }
            "checkpoint" => {
                json(StatusCode::OK, &registry.checkpoint_for_peer(&job, parse("checkpoint", body)?).await?)
            }
            _ => return Err(Refusal::Gone("no such page; GET / lists what there is".into())),
        };
        Ok(answer)
    });
    let answer: Result<_, Refusal> =
        done.await.unwrap_or_else(|_| Err(Refusal::Gone("the hub could not do it".into())));
    Ok(answer?)
}
