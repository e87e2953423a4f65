//! A gate before the receiver: while closed, everything is lost.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use tidewatch_agent::send::{Channel, Fate, SendError, Transport};
use tidewatch_wire::{Route, v3};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

const CONNECT: Duration = Duration::from_secs(10);

/// A gated transport.
#[derive(Clone)]
pub struct Gated<T> {
    inner: T,
    open: watch::Receiver<bool>,
}

/// A gated connection.
pub struct Through<C> {
    inner: C,
    open: watch::Receiver<bool>,
}

impl<T> Gated<T> {
    /// Passes while `open` is true.
    pub fn new(inner: T, open: watch::Receiver<bool>) -> Self {
        Self { inner, open }
    }
}

impl<T: Transport> Transport for Gated<T> {
    type Connection = Through<T::Connection>;

    async fn connect(self) -> Result<Through<T::Connection>, SendError> {
        let Self { inner, mut open } = self;
        match timeout(CONNECT, open.wait_for(|open| *open)).await {
            Ok(Ok(_)) => {}
            _ => return Err(SendError::Timeout),
        }
        Ok(Through { inner: inner.connect().await?, open })
    }

    fn renewals(&self) -> watch::Receiver<()> {
        self.inner.renewals()
    }

    fn fate(&self, connection: &Self::Connection) -> Fate {
        self.inner.fate(&connection.inner)
    }

    fn set_routes(&self, routes: &BTreeMap<String, Vec<Route>>) {
        self.inner.set_routes(routes);
    }
}

impl<C: Channel> Channel for Through<C> {
    fn not_after(&self) -> Timestamp {
        self.inner.not_after()
    }

    async fn closed(&mut self) -> SendError {
        self.inner.closed().await
    }

    fn post(
        &self,
        request: &v3::Request<'static>,
        deadline: Duration,
    ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<C> {
        let until = Instant::now() + deadline;
        let exchange = self.inner.post(request, deadline);
        let mut open = self.open.clone();
        async move {
            let shut = async {
                // The gate stays open.
                if open.wait_for(|open| !*open).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                () = shut => {
                    sleep_until(until).await;
                    Err(SendError::Timeout)
                }
                answer = exchange => answer,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Fine;

    impl Transport for Fine {
        type Connection = Fine;

        async fn connect(self) -> Result<Fine, SendError> {
            Ok(Fine)
        }

        fn renewals(&self) -> watch::Receiver<()> {
            watch::channel(()).1
        }

        fn fate(&self, _: &Fine) -> Fate {
            Fate::Keep
        }

        fn set_routes(&self, _: &BTreeMap<String, Vec<Route>>) {}
    }

    impl Channel for Fine {
        fn not_after(&self) -> Timestamp {
            Timestamp::MAX
        }

        async fn closed(&mut self) -> SendError {
            SendError::Closed
        }

        fn post(
            &self,
            _: &v3::Request<'static>,
            _: Duration,
        ) -> impl Future<Output = Result<v3::Response, SendError>> + Send + use<> {
            async { Err(SendError::Closed) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_gate_blocks_every_request() {
        let (gate, open) = watch::channel(true);
        let gated = Gated::new(Fine, open);
        let connection = gated.clone().connect().await.ok().unwrap();
        let request = v3::Request::new(tidewatch_wire::Epoch::random());
        let limit = Duration::from_secs(30);
        assert!(matches!(connection.post(&request, limit).await, Err(SendError::Closed)), "it went through");
        gate.send_replace(false);
        let started = Instant::now();
        assert!(matches!(connection.post(&request, limit).await, Err(SendError::Timeout)));
        assert_eq!(started.elapsed(), limit);
        assert!(matches!(gated.clone().connect().await, Err(SendError::Timeout)));
        gate.send_replace(true);
        assert!(gated.connect().await.is_ok());
    }
}
