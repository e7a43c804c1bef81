//! Reads the body of a request within the limits, or refuses it with an error.
//!
//! Runs on the control thread. Must not know what a body means.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use pbox_core::control::ErrorReply;
use tokio::time::{Instant, timeout_at};

use super::json;
use super::limits::ControlLimits;

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the body has more than {limit} bytes, the most that this request may have")]
    TooLarge { limit: usize },
    #[error(
        "the body stalled: {seen} bytes came in {after_s:.1} s; the hub waits {stall_s:.1} s for the next part, and expects {rate} bytes a second on average"
    )]
    Stalled { seen: usize, after_s: f64, stall_s: f64, rate: u64 },
    #[error("other requests hold all of the {limit} bytes that the hub has for bodies; try again")]
    Crowded { limit: usize },
    #[error("the body was cut off after {seen} bytes: {cause}")]
    Broken { seen: usize, cause: axum::Error },
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        let status = match self {
            BodyError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Stalled { .. } => StatusCode::REQUEST_TIMEOUT,
            BodyError::Crowded { .. } => StatusCode::SERVICE_UNAVAILABLE,
            BodyError::Broken { .. } => StatusCode::BAD_REQUEST,
        };
        json(status, &ErrorReply { error: self.to_string() })
    }
}

/// The bytes of all bodies in memory. All requests share this count.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<AtomicUsize>);

/// A body that was read. Its bytes count until it is dropped.
#[derive(Debug)]
pub(super) struct Received {
    pub bytes: Vec<u8>,
    held: Held,
}

impl Received {
    /// Appends a part, if all bodies together stay below the limit.
    fn append(&mut self, part: &[u8], limits: &ControlLimits) -> Result<(), BodyError> {
        // One thread reads all bodies. A body that is dropped on another thread only makes room.
        let others = self.held.0.load(Ordering::Relaxed);
        if others + part.len() > limits.bodies_bytes {
            return Err(BodyError::Crowded { limit: limits.bodies_bytes });
        }
        self.held.0.fetch_add(part.len(), Ordering::Relaxed);
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read(
    request: Request,
    limit: usize,
    limits: &ControlLimits,
    held: &Held,
) -> Result<Received, BodyError> {
    let mut parts = Parts::new(request, limit, limits)?;
    let mut received = Received { bytes: Vec::new(), held: held.clone() };
    while let Some(part) = parts.next().await? {
        received.append(&part, limits)?;
    }
    Ok(received)
}

/// A body that is read part by part, for a caller that does not keep it.
pub(super) struct Parts<'a> {
    body: Body,
    limit: usize,
    limits: &'a ControlLimits,
    begun: Instant,
    seen: usize,
}

impl<'a> Parts<'a> {
    /// Of a body of at most `limit` bytes.
    pub fn new(request: Request, limit: usize, limits: &'a ControlLimits) -> Result<Self, BodyError> {
        let body: Body = request.into_body();
        // If the header says so, the client need not send the body.
        if body.size_hint().lower() > limit as u64 {
            return Err(BodyError::TooLarge { limit });
        }
        Ok(Parts { body, limit, limits, begun: Instant::now(), seen: 0 })
    }

    /// The next part; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        let Parts { limit, limits, begun, seen, .. } = *self;
        loop {
            let rate = limits.body_bytes_per_s;
            let stall = Instant::now() + limits.body_stall;
            let slowest = begun + limits.body_stall + Duration::from_secs(seen as u64 / rate);
            let frame = match timeout_at(stall.min(slowest), self.body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => return Ok(None),
                Ok(Some(Err(cause))) => return Err(BodyError::Broken { seen, cause }),
                Err(_) => {
                    let after_s = begun.elapsed().as_secs_f64();
                    let stall_s = limits.body_stall.as_secs_f64();
                    return Err(BodyError::Stalled { seen, after_s, stall_s, rate });
                }
            };
            // Trailers have no meaning here.
            let Ok(part) = frame.into_data() else { continue };
            if part.len() > limit - seen {
                return Err(BodyError::TooLarge { limit });
            }
            self.seen += part.len();
            return Ok(Some(part));
        }
    }
}
