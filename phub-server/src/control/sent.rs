//! An answer that is too long to be made at once: its pieces come from a thread that makes them.
//!
//! Runs on the control thread. Must not know what the pieces say.

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

/// The answer; when its client is gone, so is the receiver, and whoever makes pieces sees it.
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
            // Said as an end that is none: the client must not take what it has for a whole.
            None => Some(Err(std::io::Error::other("the state was cut off"))),
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
