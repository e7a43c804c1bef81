//! The control port: HTTP with JSON, for workers and for people with `curl`.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use pbox_core::control::{
    ErrorReply, HeartbeatRequest, JobState, JoinRequest, LearningRateRequest, LeaveRequest, PROTOCOL,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::registry::{Refusal, Registry};

/// The longest request: a manifest of a million keys.
const MAX_BODY_BYTES: usize = 256 << 20;

const INDEX: &str = "phub-server control port, JSON over HTTP (docs/protocol.md)

GET  /v1/health                     ok while the hub lives
GET  /v1/hub                        version, cores with their work and waiting, jobs
POST /v1/jobs/{job}/join            a worker asks to take part
POST /v1/jobs/{job}/heartbeat       a worker lives, and hears the news
POST /v1/jobs/{job}/learning-rate   a new step size from a round on
POST /v1/jobs/{job}/leave           a worker is done
";

pub(crate) fn router(registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/", get(async || INDEX))
        .route("/v1/health", get(async || "ok\n"))
        .route("/v1/hub", get(hub))
        .route("/v1/jobs/{job}/join", post(join))
        .route("/v1/jobs/{job}/heartbeat", post(heartbeat))
        .route("/v1/jobs/{job}/learning-rate", post(learning_rate))
        .route("/v1/jobs/{job}/leave", post(leave))
        .fallback(async || Refusal::Gone("no such page; GET / lists what there is".into()))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(registry)
}

type Answer = Result<Response, Refusal>;

async fn hub(State(registry): State<Arc<Registry>>) -> Answer {
    Ok(json(StatusCode::OK, &registry.describe()))
}

async fn join(State(registry): State<Arc<Registry>>, Path(job): Path<String>, body: Bytes) -> Answer {
    let value: serde_json::Value = parse("join", &body)?;
    // The version first: another version's request need not have the same fields.
    match value.get("protocol").and_then(serde_json::Value::as_u64) {
        Some(protocol) if protocol == u64::from(PROTOCOL) => {}
        seen => {
            let seen = seen.map_or("none".into(), |seen| seen.to_string());
            return Err(Refusal::Conflict(format!(
                "this hub speaks protocol {PROTOCOL}, the worker {seen}; install the same version at both ends"
            )));
        }
    }
    let request: JoinRequest =
        serde_json::from_value(value).map_err(|error| Refusal::Bad(format!("join: {error}")))?;
    Ok(json(StatusCode::OK, &registry.join(&job, request).await?))
}

async fn heartbeat(State(registry): State<Arc<Registry>>, Path(job): Path<String>, body: Bytes) -> Answer {
    let HeartbeatRequest { token, seen } = parse("heartbeat", &body)?;
    let mut news = registry.heartbeat(&job, &token)?;
    let hold = registry.heartbeat_hold();
    // Ends early on news, and when the job's last worker left.
    let _ = tokio::time::timeout(hold, news.wait_for(|news| news.version > seen)).await.is_ok();
    let reply = news.borrow().clone();
    if matches!(reply.state, JobState::Failed { .. }) {
        registry.told(&job, &token);
    }
    Ok(json(StatusCode::OK, &reply))
}

async fn learning_rate(
    State(registry): State<Arc<Registry>>,
    Path(job): Path<String>,
    body: Bytes,
) -> Answer {
    let LearningRateRequest { token, learning_rate, from_round } = parse("learning-rate", &body)?;
    for core in registry.set_learning_rate(&job, &token, from_round, learning_rate)? {
        core.await.map_err(|_| Refusal::Gone("the hub is stopping".into()))?;
    }
    Ok(json(StatusCode::OK, &serde_json::json!({})))
}

async fn leave(State(registry): State<Arc<Registry>>, Path(job): Path<String>, body: Bytes) -> Answer {
    let LeaveRequest { token, round } = parse("leave", &body)?;
    registry.leave(&job, &token, round)?;
    Ok(json(StatusCode::OK, &serde_json::json!({})))
}

fn parse<T: DeserializeOwned>(what: &str, body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::Bad(format!("{what}: {error}; see docs/protocol.md")))
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut text = serde_json::to_string(body).expect("replies are plain data");
    text.push('\n');
    (status, [("content-type", "application/json")], text).into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Refusal::Bad(error) => (StatusCode::BAD_REQUEST, error),
            Refusal::Conflict(error) => (StatusCode::CONFLICT, error),
            Refusal::Busy(error) => (StatusCode::SERVICE_UNAVAILABLE, error),
            Refusal::Gone(error) => (StatusCode::NOT_FOUND, error),
            Refusal::Exhausted(error) => (StatusCode::INSUFFICIENT_STORAGE, error),
        };
        json(status, &ErrorReply { error })
    }
}
