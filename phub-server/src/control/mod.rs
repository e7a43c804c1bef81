//! The control port: HTTP with JSON, for workers and for people with `curl`.

mod body;
mod limits;
mod peers;
mod sent;
mod serve;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use pbox_core::control::{
    ErrorReply, HeartbeatRequest, JobState, LearningRateRequest, LeaveRequest, ParseError, parse, parse_join,
};
use serde::Serialize;

use crate::registry::{Refusal, Registry};
use body::{BodyError, Held, Parts, Received};

pub use limits::ControlLimits;
pub(crate) use serve::serve;

const INDEX: &str = "phub-server control port, JSON over HTTP (docs/protocol.md)

GET  /v1/health                     ok while the hub lives
GET  /v1/hub                        version, cores with their work and waiting, jobs
POST /v1/jobs/{job}/join            a worker asks to take part
POST /v1/jobs/{job}/heartbeat       a worker lives, and gets the news
POST /v1/jobs/{job}/learning-rate   a new step size from a round on
POST /v1/jobs/{job}/checkpoint      write the job's state to its file now (no body)
GET  /v1/jobs/{job}/state           the job's state, as a checkpoint file
POST /v1/jobs/{job}/state?token=... rank 0 brings the state that a new job begins with
POST /v1/jobs/{job}/leave           a worker is done
GET  /v1/jobs/{job}/parts/{hub}/{hubs}   the rounds whose checkpoint this hub has a part of
POST /v1/jobs/{job}/peers/{verb}    the other hubs of a job, with its secret
";

/// What each handler needs.
#[derive(Clone, Debug)]
struct Desk {
    registry: Arc<Registry>,
    limits: ControlLimits,
    held: Held,
}

impl Desk {
    /// Reads a request of a few fields.
    async fn small(&self, request: Request) -> Result<Received, BodyError> {
        body::read(request, self.limits.small_bytes, &self.limits, &self.held).await
    }
}

pub(crate) fn router(registry: Arc<Registry>, limits: ControlLimits) -> Router {
    Router::new()
        .route("/", get(async || INDEX))
        .route("/v1/health", get(async || "ok\n"))
        .route("/v1/hub", get(hub))
        .route("/v1/jobs/{job}/join", post(join))
        .route("/v1/jobs/{job}/heartbeat", post(heartbeat))
        .route("/v1/jobs/{job}/learning-rate", post(learning_rate))
        .route("/v1/jobs/{job}/checkpoint", post(checkpoint))
        .route("/v1/jobs/{job}/state", get(state).post(bring_state))
        .route("/v1/jobs/{job}/leave", post(leave))
        .merge(peers::routes())
        .fallback(async || Refusal::Gone("no such page; GET / lists what there is".into()))
        .with_state(Desk { registry, limits, held: Held::default() })
}

type Answer = Result<Response, Denial>;

async fn hub(State(desk): State<Desk>) -> Answer {
    Ok(json(StatusCode::OK, &desk.registry.describe()))
}

async fn join(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let Desk { registry, limits, held } = desk;
    let received = body::read(request, limits.join_bytes, &limits, &held).await?;
    // Parsing has its own thread: a manifest may have 256 MiB, and this thread answers all heartbeats.
    let parsing = tokio::task::spawn_blocking(move || parse_join(&received.bytes));
    let request = parsing.await.map_err(|_| Refusal::Gone("the hub could not do it".into()))??;
    Ok(json(StatusCode::OK, &registry.join(job, request).await?))
}

async fn heartbeat(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let received = desk.small(request).await?;
    let registry = desk.registry;
    let HeartbeatRequest { token, seen } = parse("heartbeat", &received.bytes)?;
    drop(received);
    let mut news = registry.heartbeat(&job, &token)?;
    let hold = registry.heartbeat_hold();
    // Ends early when there are news, and when the job's last worker leaves.
    let _ = tokio::time::timeout(hold, news.wait_for(|news| news.version > seen)).await.is_ok();
    let reply = news.borrow().clone();
    if matches!(reply.state, JobState::Failed { .. }) {
        registry.told(&job, &token);
    }
    Ok(json(StatusCode::OK, &reply))
}

async fn learning_rate(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let received = desk.small(request).await?;
    let LearningRateRequest { token, learning_rate, from_round } = parse("learning-rate", &received.bytes)?;
    for core in desk.registry.set_learning_rate(&job, &token, from_round, learning_rate)? {
        core.await.map_err(|_| Refusal::Gone("the hub is stopping".into()))?;
    }
    Ok(json(StatusCode::OK, &serde_json::json!({})))
}

async fn checkpoint(State(desk): State<Desk>, Path(job): Path<String>) -> Answer {
    Ok(json(StatusCode::OK, &desk.registry.checkpoint(&job).await?))
}

async fn state(State(desk): State<Desk>, Path(job): Path<String>) -> Answer {
    Ok(sent::response(desk.registry.state(&job).await?))
}

async fn bring_state(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let Desk { registry, limits, .. } = desk;
    let token = request.uri().query().and_then(|query| query.strip_prefix("token=")).unwrap_or_default();
    let mut coming = registry.state_comes(&job, token)?;
    let mut parts = Parts::new(request, coming.bytes(), &limits)?;
    while let Some(part) = parts.next().await? {
        coming.append(&part);
    }
    Ok(json(StatusCode::OK, &registry.begin_with(coming)?))
}

async fn leave(State(desk): State<Desk>, Path(job): Path<String>, request: Request) -> Answer {
    let received = desk.small(request).await?;
    let LeaveRequest { token, round } = parse("leave", &received.bytes)?;
    desk.registry.leave(&job, &token, round).await?;
    Ok(json(StatusCode::OK, &serde_json::json!({})))
}

/// Why a request failed: its body did not come, or the registry refused.
enum Denial {
    Body(BodyError),
    Registry(Refusal),
}

impl From<BodyError> for Denial {
    fn from(error: BodyError) -> Self {
        Denial::Body(error)
    }
}

impl From<ParseError> for Denial {
    fn from(error: ParseError) -> Self {
        Denial::Registry(error.into())
    }
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Denial::Registry(refusal)
    }
}

impl IntoResponse for Denial {
    fn into_response(self) -> Response {
        match self {
            Denial::Body(error) => error.into_response(),
            Denial::Registry(refusal) => refusal.into_response(),
        }
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut text = serde_json::to_string(body).expect("replies are plain data");
    text.push('\n');
    (status, [("content-type", "application/json")], text).into_response()
}

impl From<ParseError> for Refusal {
    fn from(error: ParseError) -> Self {
        match error {
            ParseError::Malformed { .. } => Refusal::Bad(error.to_string()),
            ParseError::Protocol { .. } => Refusal::Conflict(error.to_string()),
        }
    }
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
