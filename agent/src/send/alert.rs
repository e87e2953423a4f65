//! Keeps TLS alerts after the handshake, which HTTP/2 reports only as text.

use super::error::SendError;
use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};
use tidewatch_tls::HandshakeFailure;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Clone, Debug, Default)]
pub(super) struct Alert(Arc<OnceLock<HandshakeFailure>>);

impl Alert {
    /// Returns the alert if there was one, else a broken connection.
    pub(super) fn explain(&self, error: hyper::Error) -> SendError {
        self.0.get().map_or(SendError::Broken(error), |failure| SendError::Refused(*failure))
    }
}

pub(super) fn received(error: &io::Error) -> Option<HandshakeFailure> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    matches!(tls, rustls::Error::AlertReceived(_)).then(|| HandshakeFailure::from_tls(tls))
}

/// A stream that keeps the first alert it reads.
pub(super) struct AlertObserver<S> {
    stream: S,
    alert: Alert,
}

impl<S> AlertObserver<S> {
    pub(super) fn new(stream: S, alert: Alert) -> Self {
        Self { stream, alert }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AlertObserver<S> {
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

impl<S: AsyncRead + Unpin> AlertObserver<S> {
    /// The peer may have stopped reading after its alert. It must be read now: the failed write ends the connection.
    fn after_write<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(written, Poll::Ready(Err(_))) {
            let _alert = Pin::new(self).poll_read(cx, &mut ReadBuf::new(&mut [0; 64]));
        }
        written
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for AlertObserver<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.after_write(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.after_write(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.after_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use rustls::AlertDescription;
    use tokio::io::AsyncWriteExt;

    use super::*;

    struct Gone;

    fn broken<T>() -> Poll<io::Result<T>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    impl AsyncRead for Gone {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let alert = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
            Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, alert)))
        }
    }

    impl AsyncWrite for Gone {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            broken()
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            broken()
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            broken()
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            broken()
        }

        fn is_write_vectored(&self) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn a_tls_alert_is_read_after_any_failed_write() {
        for write in ["plain", "vectored", "flush"] {
            let alert = Alert::default();
            let mut stream = AlertObserver::new(Gone, alert.clone());
            let failed = match write {
                "plain" => stream.write(b"a").await.is_err(),
                "vectored" => stream.write_vectored(&[io::IoSlice::new(b"a")]).await.is_err(),
                _ => stream.flush().await.is_err(),
            };
            assert!(failed && alert.0.get().is_some(), "{write}");
        }
    }
}
