//! An answer that is too long for memory: another thread makes its pieces one by one.
//!
//! Runs on the control thread. Must not know what the pieces mean.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};

use crate::registry::Sent;

struct Pieces {
    sent: Sent,
    left: u64,
}

/// The answer. When its client is gone, the receiver is dropped, and the thread that makes the pieces sees that.
pub(super) fn response(sent: Sent) -> Response {
    let left = sent.bytes;
    let body = Body::new(Pieces { sent, left });
    ([(CONTENT_TYPE, "application/octet-stream")], body).into_response()
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.sent.pieces.poll_recv(context).map(|piece| match piece {
            Some(piece) => {
                self.left -= piece.len() as u64;
                Some(Ok(Frame::data(piece)))
            }
            None if self.left == 0 => None,
            // An error, not an end: the client must not think that it has everything.
            None => Some(Err(std::io::Error::other("the state was cut off"))),
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
