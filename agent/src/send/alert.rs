//! A TLS alert that comes after the handshake, which HTTP/2 passes on as text only.

use super::SendError;
use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};
use tidewatch_tls::HandshakeFailure;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The alert that a stream has received, if any. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Alert(Arc<OnceLock<HandshakeFailure>>);

impl Alert {
    /// The cause of what broke.
    pub(super) fn explain(&self, error: hyper::Error) -> SendError {
        self.0.get().map_or(SendError::Broken(error), |failure| SendError::Refused(*failure))
    }
}

/// What the peer has said by an alert, if that is what the error is.
pub(super) fn received(error: &io::Error) -> Option<HandshakeFailure> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    matches!(tls, rustls::Error::AlertReceived(_)).then(|| HandshakeFailure::from_tls(tls))
}

/// A TLS stream that remembers an alert.
pub(super) struct Heard<S> {
    stream: S,
    alert: Alert,
}

impl<S> Heard<S> {
    pub(super) fn new(stream: S, alert: Alert) -> Self {
        Self { stream, alert }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, alert } = self.get_mut();
        let read = Pin::new(stream).poll_read(cx, buf);
        if let Poll::Ready(Err(error)) = &read
            && let Some(failure) = received(error)
        {
            let _first_counts = alert.0.set(failure);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        if matches!(wrote, Poll::Ready(Err(_))) {
            // The peer reads no more. Its alert may have arrived, and nobody would read it after this.
            let _heard = self.as_mut().poll_read(cx, &mut ReadBuf::new(&mut [0; 64]));
        }
        wrote
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
