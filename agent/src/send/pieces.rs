//! A receiver's buffer (8 KiB at first) grows to the largest frame and stays so; default frames cost 12 KiB per
//! connection.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// In bytes; below half of the receiver's buffer, so that it never grows.
const PIECE: usize = 4_000;

#[derive(Debug)]
pub(super) struct Pieces(Bytes);

impl From<Vec<u8>> for Pieces {
    fn from(body: Vec<u8>) -> Self {
        Self(body.into())
    }
}

impl From<Bytes> for Pieces {
    fn from(body: Bytes) -> Self {
        Self(body)
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.len().min(PIECE);
        let piece = self.0.split_to(next);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn pieces_are_small_and_add_up_to_the_body() {
        for size in [0, 1, PIECE, PIECE + 1, 5 * PIECE, 70_001] {
            let whole: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap_or_default()).collect();
            let mut body = Pieces::from(whole.clone());
            assert_eq!(body.size_hint().exact(), Some(size as u64), "what the receiver is told before");
            let mut sent = Vec::new();
            while !body.is_end_stream() {
                let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
                assert!((1..=PIECE).contains(&piece.len()));
                sent.extend_from_slice(&piece);
            }
            assert!(body.frame().await.is_none());
            assert_eq!(sent, whole);
        }
    }
}
