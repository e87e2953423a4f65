//! A plain HTTP GET, for readiness only.

use anyhow::Result;
use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

/// The status of `GET url`; the body is not read.
pub(crate) async fn status(url: &str) -> Result<hyper::StatusCode> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    Ok(client.get(url.parse()?).await?.status())
}
