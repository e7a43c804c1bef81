//! An answer's body in pieces, which arrive through a channel while they are made.
//!
//! `http_body_util::channel` of version 0.1.5 does not fit here. Its body first looks for a piece, and then
//! checks whether the sender is gone. A last piece that is sent between the two checks is lost, and the body
//! ends too early.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The body. It ends when the sender is gone.
#[derive(Debug)]
pub(crate) struct Pieces(Receiver<Bytes>);

impl Pieces {
    /// Returns the sender, with room for `room` pieces, and the body.
    pub fn new(room: usize) -> (Sender<Bytes>, Self) {
        let (sender, pieces) = channel(room);
        (sender, Pieces(pieces))
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn no_piece_is_lost_however_fast_its_sender_goes() {
        for number in 0..20_000u32 {
            let (sender, body) = Pieces::new(1);
            // Another thread sends the piece at the moment at which the body looks for a piece.
            let sent = tokio::task::spawn_blocking(move || {
                sender.blocking_send(Bytes::copy_from_slice(&number.to_le_bytes())).unwrap();
            });
            let came = body.collect().await.unwrap().to_bytes();
            assert_eq!(came, number.to_le_bytes().as_slice());
            sent.await.unwrap();
        }
    }
}
