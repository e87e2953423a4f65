//! Reports API servers' answers, for metrics.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt, future::BoxFuture};
use http::{Method, Request, Response, StatusCode};
use tower::{Layer, Service};

/// Callback at the end of each request: its method and status code; `None` without an answer.
pub type Answered = Arc<dyn Fn(&Method, Option<StatusCode>) + Send + Sync>;

/// Client layer that calls [`Answered`].
#[derive(Clone)]
pub struct CountedLayer(Answered);

impl CountedLayer {
    /// Returns a layer that calls `answered`.
    pub const fn new(answered: Answered) -> Self {
        Self(answered)
    }
}

impl std::fmt::Debug for CountedLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CountedLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for CountedLayer {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, answered: Arc::clone(&self.0) }
    }
}

/// Service of [`CountedLayer`].
#[derive(Clone)]
pub struct Counted<S> {
    inner: S,
    answered: Answered,
}

impl<S> std::fmt::Debug for Counted<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counted").finish_non_exhaustive()
    }
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (method, answered) = (request.method().clone(), Arc::clone(&self.answered));
        let answer = self.inner.call(request);
        answer.inspect(move |result| answered(&method, result.as_ref().ok().map(Response::status))).boxed()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn records_each_response_and_each_missing_response() {
        let answers = Arc::new(Mutex::new(Vec::new()));
        let recorder = Arc::clone(&answers);
        let layer =
            CountedLayer::new(Arc::new(move |method, code| recorder.lock().push((method.clone(), code))));
        let service = layer.layer(tower::service_fn(|request: Request<u16>| async move {
            let code = StatusCode::from_u16(*request.body()).map_err(|_| "no answer")?;
            Ok::<_, &str>(Response::builder().status(code).body(()).unwrap())
        }));
        for (method, code) in [(Method::GET, 200), (Method::PATCH, 409), (Method::DELETE, 0)] {
            let request = Request::builder().method(method).body(code).unwrap();
            let _answer = service.clone().oneshot(request).await;
        }
        let wanted = [
            (Method::GET, Some(StatusCode::OK)),
            (Method::PATCH, Some(StatusCode::CONFLICT)),
            (Method::DELETE, None),
        ];
        assert_eq!(*answers.lock(), wanted);
    }
}
