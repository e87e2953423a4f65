//! Listens to the answers of watch requests, to know that they are alive.
//!
//! kube's watcher keeps bookmarks to itself. They are the only thing that an idle watch says, about once a minute;
//! without them a half-open connection looks like a quiet kind.

use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use std::sync::Arc;

/// A client that calls `heard` whenever something arrives in answer to a watch request: the head of a good answer,
/// an event, a bookmark.
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
