//! Reads the body of a request within the limits, or refuses the request with an error.
//!
//! Runs on the control thread. Must not depend on the meaning of a body.

use std::sync::Arc;
use std::time::Duration;

use authority::BodyDigest;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use http_body_util::BodyExt;
use pbox_core::control::RefusalCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::limits::ControlLimits;
use super::shown::Shown;
use crate::registry::{Because, Refusal};

/// The number of bytes that are read of one body before other requests have their turn. Without this limit, a
/// client that sends faster than the hub reads would block everybody. Three joins of 16 MB occupied the
/// control thread for a second.
const TURN_BYTES: usize = 256 << 10;

/// A body that was read. Its bytes count against the limit of all bodies until this value is dropped.
#[derive(Debug)]
pub(super) struct Received {
    pub bytes: Vec<u8>,
    _room: Option<OwnedSemaphorePermit>,
}

/// Reads a body of at most `limit` bytes. `room` has a permit for each byte that all bodies together may still use.
pub(super) async fn read(
    request: Request,
    limit: usize,
    limits: &ControlLimits,
    room: &Arc<Semaphore>,
) -> Result<Received, Refusal> {
    let proof = match request.extensions().get() {
        Some(Shown::Proof(proof)) => Some(proof.clone()),
        _ => None,
    };
    let mut parts = Parts::new(request, limit, limits)?;
    let mut digest = BodyDigest::default();
    let (mut bytes, mut held): (_, Option<OwnedSemaphorePermit>) = (Vec::new(), None);
    while let Some(part) = parts.next().await? {
        let permit = Arc::clone(room).try_acquire_many_owned(part.len() as u32).map_err(|_| {
            RefusalCode::Busy.because(format!(
                "other requests hold all of the {} bytes that the hub has for bodies; try again",
                limits.bodies_bytes
            ))
        })?;
        match &mut held {
            None => held = Some(permit),
            Some(held) => held.merge(permit),
        }
        // The proof is checked part by part. For a whole join the check takes a second, in which no other
        // client would get an answer.
        if proof.is_some() {
            digest.update(&part);
        }
        bytes.extend_from_slice(&part);
    }
    if proof.is_some_and(|proof| !proof.is_about(digest)) {
        return Err(Refusal::bad(
            "the body does not fit the request's proof; send the body for which the proof was made",
        ));
    }
    Ok(Received { bytes, _room: held })
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
    /// Creates the reader of a body of at most `limit` bytes.
    pub fn new(request: Request, limit: usize, limits: &'a ControlLimits) -> Result<Self, Refusal> {
        let body: Body = request.into_body();
        // A body whose length in the header is too large is refused before the client sends it.
        if body.size_hint().lower() > limit as u64 {
            return Err(too_large(limit));
        }
        Ok(Parts { body, limit, limits, begun: Instant::now(), seen: 0 })
    }

    /// Returns the next part; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        let Parts { limit, limits, begun, seen, .. } = *self;
        loop {
            let rate = limits.body_bytes_per_s;
            let stall = Instant::now() + limits.body_stall;
            let slowest = begun + limits.body_stall + Duration::from_secs(seen as u64 / rate);
            let frame = match timeout_at(stall.min(slowest), self.body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => return Ok(None),
                Ok(Some(Err(cause))) => {
                    return Err(Refusal::bad(format!("the body was cut off after {seen} bytes: {cause}")));
                }
                Err(_) => {
                    return Err(RefusalCode::Stalled.because(format!(
                        "the body stalled: {seen} bytes came in {:.1} s; the hub waits {:.1} s for the next part, and expects {rate} bytes a second on average",
                        begun.elapsed().as_secs_f64(),
                        limits.body_stall.as_secs_f64()
                    )));
                }
            };
            // Trailers have no meaning here.
            let Ok(part) = frame.into_data() else { continue };
            if part.len() > limit - seen {
                return Err(too_large(limit));
            }
            self.seen += part.len();
            if self.seen / TURN_BYTES > seen / TURN_BYTES {
                // Other connections get their turn before this body is read on.
                yield_now().await;
            }
            return Ok(Some(part));
        }
    }
}

fn too_large(limit: usize) -> Refusal {
    RefusalCode::TooLarge
        .because(format!("the body has more than {limit} bytes, the most that this request may have"))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::Body;
    use hyper::body::Frame;
    use tokio::sync::Semaphore;

    use super::*;

    /// A body whose next part is always available at once.
    struct Fast(usize);

    impl HttpBody for Fast {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let left = self.0.checked_sub(1);
            self.0 = left.unwrap_or(0);
            Poll::Ready(left.map(|_| Ok(Frame::data(Bytes::from_static(&[b'x'; 16 << 10])))))
        }
    }

    #[test]
    fn other_requests_have_their_turn_while_a_long_body_comes() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (limits, room) = (ControlLimits::default(), Arc::new(Semaphore::new(1 << 30)));
            let other = tokio::spawn(async {
                for _ in 0..32 {
                    yield_now().await;
                }
            });
            let request = Request::new(Body::new(Fast(1024)));
            let received = read(request, 16 << 20, &limits, &room).await.unwrap();
            assert_eq!(received.bytes.len(), 16 << 20);
            assert!(other.is_finished(), "the other task has waited for the whole body");
        });
    }
}
