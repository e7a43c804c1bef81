//! `GET /v1/speed`: zeros, for a hub that measures the link between two machines. On the control thread, between requests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::pieces::Pieces;
use crate::registry::Refusal;

/// The most transfers at a time: two would share the link, and each would see half of it.
pub(super) const TRANSFERS: usize = 1;
/// The longest transfer, whoever reads it how slowly.
const LONGEST: Duration = Duration::from_millis(100);
/// The largest: what 2.7 Gb/s carry in that time.
const PIECES: usize = 512;
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

pub(super) fn zeros(transfers: Arc<Semaphore>) -> Result<Response, Refusal> {
    let place = transfers.try_acquire_owned().map_err(|_| {
        Refusal::Busy(
            "another hub measures the link to this one, and one may at a time; try again in 100 ms".into(),
        )
    })?;
    let (pieces, body) = Pieces::new(1);
    tokio::spawn(pour(pieces, place));
    let about = [(CONTENT_TYPE, "application/octet-stream"), (CACHE_CONTROL, "no-store")];
    Ok((about, Body::new(body)).into_response())
}

async fn pour(pieces: Sender<Bytes>, _place: OwnedSemaphorePermit) {
    let pouring = async {
        for _ in 0..PIECES {
            if pieces.send(Bytes::from_static(&ZEROS)).await.is_err() {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(LONGEST, pouring).await;
}
