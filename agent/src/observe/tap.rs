//! kube's watcher hides bookmarks; without them a half-open connection looks idle.

use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use std::sync::Arc;

/// Calls `heard` for each successful head, event and bookmark of a watch.
pub(super) fn tapped(client: &Client, heard: impl Fn() + Send + Sync + 'static) -> Client {
    let (client, heard) = (client.clone(), Arc::new(heard));
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, heard) = (client.clone(), Arc::clone(&heard));
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        async move {
            let response = client.send(request).await?;
            let good = watches && response.status().is_success();
            if good {
                heard();
            }
            Ok::<_, kube::Error>(response.map(|body| {
                body.map_frame(move |frame| {
                    if good {
                        heard();
                    }
                    frame
                })
            }))
        }
    });
    Client::new(service, namespace)
}
