//! Plain HTTP for probes and admin pages.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};

const MAX_PAGE: usize = 16 * 1024 * 1024;

async fn get(url: &str) -> Result<hyper::Response<hyper::body::Incoming>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    client.get(url.parse()?).await.with_context(|| format!("GET {url}"))
}

/// Returns the status of `GET url`.
pub async fn status(url: &str) -> Result<hyper::StatusCode> {
    Ok(get(url).await?.status())
}

/// Posts JSON and returns the status.
pub async fn post(url: &str, body: &serde_json::Value) -> Result<hyper::StatusCode> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = hyper::Request::post(url).body(Full::from(body.to_string()))?;
    Ok(client.request(request).await.with_context(|| format!("POST {url}"))?.status())
}

/// Returns the body of a 200 response.
#[allow(clippy::disallowed_methods, reason = "the body is limited here")]
pub async fn text(url: &str) -> Result<String> {
    let response = get(url).await?;
    ensure!(response.status() == hyper::StatusCode::OK, "GET {url} answered {}", response.status());
    let body =
        Limited::new(response.into_body(), MAX_PAGE).collect().await.map_err(|e| anyhow::anyhow!(e))?;
    Ok(String::from_utf8(body.to_bytes().to_vec())?)
}

/// Returns the JSON body.
pub async fn json(url: &str) -> Result<serde_json::Value> {
    Ok(serde_json::from_str(&text(url).await?)?)
}
