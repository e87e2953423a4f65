//! kube's watcher hides bookmarks; without them a half-open connection looks idle.

use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use std::sync::Arc;

/// Calls `received` for each successful head, event and bookmark of a watch.
pub(super) fn tapped(client: &Client, received: impl Fn() + Send + Sync + 'static) -> Client {
    let (client, received) = (client.clone(), Arc::new(received));
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, received) = (client.clone(), Arc::clone(&received));
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        async move {
            let response = client.send(request).await?;
            let good = watches && response.status().is_success();
            if good {
                received();
            }
            Ok::<_, kube::Error>(response.map(|body| {
                body.map_frame(move |frame| {
                    if good {
                        received();
                    }
                    frame
                })
            }))
        }
    });
    Client::new(service, namespace)
}
