//! Caches parsed layers for all runtimes.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use serde_json::Value;
use tidewatch_oci::ByteLru;
use tokio::sync::Semaphore;

use crate::error::{Error, chain};

/// Estimated bytes of cached layers. A larger layer is parsed each time.
const CACHED: u64 = 64 * 1024 * 1024;
/// The separate limit for layers that runtimes name, so that they cannot evict the others.
const CACHED_FOR_TENANTS: u64 = 8 * 1024 * 1024;
/// Estimated bytes of a JSON value besides its text.
const VALUE: u64 = 96;
/// Layers parsed concurrently.
const PARSED: usize = 8;
/// Number of turns above which unused ones are removed.
const AWAITED: usize = 64;

type Objects = Arc<Vec<Value>>;
/// The lock for reading and parsing one layer.
type Turn = tokio::sync::Mutex<()>;

/// Caches parsed layers.
#[derive(Debug)]
pub(crate) struct Rendered {
    central: Mutex<ByteLru<String, Objects>>,
    tenants: Mutex<ByteLru<String, Objects>>,
    /// Requests for a layer in progress wait for it only. By origin (`local`) and key.
    turns: Mutex<HashMap<(bool, String), Weak<Turn>>>,
    /// Capacity for parsing.
    places: Semaphore,
}

impl Default for Rendered {
    fn default() -> Self {
        Self {
            central: Mutex::new(ByteLru::new(CACHED)),
            tenants: Mutex::new(ByteLru::new(CACHED_FOR_TENANTS)),
            turns: Mutex::default(),
            places: Semaphore::new(PARSED),
        }
    }
}

impl Rendered {
    fn shelf(&self, local: bool) -> &Mutex<ByteLru<String, Objects>> {
        if local { &self.tenants } else { &self.central }
    }

    fn turn(&self, local: bool, key: &str) -> Arc<Turn> {
        let mut turns = self.turns.lock();
        let key = (local, key.to_owned());
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        if turns.len() >= AWAITED {
            turns.retain(|_, turn| turn.strong_count() > 0);
        }
        let turn = Arc::default();
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }

    /// Returns a layer's objects by digest, from the cache or `read`. `local`: a runtime names it.
    pub(super) async fn objects(
        &self,
        local: bool,
        digest: &str,
        media_type: &'static str,
        read: impl Future<Output = Result<Arc<[u8]>, Error>> + Send,
    ) -> Result<Objects, Error> {
        // The media type decides how some old archives are read.
        let key = format!("{media_type} {digest}");
        if let Some(objects) = self.shelf(local).lock().get(&key) {
            return Ok(Arc::clone(objects));
        }
        let turn = self.turn(local, &key);
        let _turn = turn.lock().await;
        if let Some(objects) = self.shelf(local).lock().get(&key) {
            return Ok(Arc::clone(objects));
        }
        let layer = read.await?;
        let _place = self.places.acquire().await.ok();
        // CPU work on up to 32 MiB must not block the I/O threads.
        let parsed = tokio::task::spawn_blocking(move || {
            let tidewatch_oci::Rendered { objects, mistakes, .. } =
                tidewatch_oci::render(&layer, media_type)?;
            let weight = objects.iter().map(weight).sum();
            Ok::<_, tidewatch_oci::RenderError>((objects, mistakes, weight))
        });
        let (objects, mistakes, weight) = parsed
            .await
            .map_err(|_| Error::Final("the module's manifest could not be read".to_owned()))?
            .map_err(|e| {
                Error::Final(format!("the module's manifest ({digest}) cannot be used: {}", chain(&e)))
            })?;
        for mistake in mistakes {
            let detail = mistake.to_string();
            tracing::warn!(layer = digest, detail, "read as other tools read it, though hardly meant so");
        }
        let objects = Arc::new(objects);
        self.shelf(local).lock().insert(key, Arc::clone(&objects), weight);
        Ok(objects)
    }
}

/// Estimated bytes of a value. The parser bounds its depth.
fn weight(value: &Value) -> u64 {
    let below: u64 = match value {
        Value::String(text) => text.len() as u64,
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(members) => members.iter().map(|(key, member)| key.len() as u64 + weight(member)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    VALUE + below
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    const TYPE: &str = "application/yaml";

    fn layer(name: &str) -> Arc<[u8]> {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n").into_bytes().into()
    }

    #[tokio::test]
    async fn a_layer_is_read_and_parsed_once() {
        let (rendered, reads) = (Rendered::default(), AtomicUsize::new(0));
        let ask = |local, digest: &'static str| {
            let (rendered, reads) = (&rendered, &reads);
            async move {
                let read = async {
                    reads.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Ok(layer("a"))
                };
                rendered.objects(local, digest, TYPE, read).await.unwrap()
            }
        };
        let all = futures::future::join_all((0..100).map(|_| ask(false, "d1"))).await;
        assert_eq!(reads.load(Ordering::SeqCst), 1);
        assert!(all.iter().all(|one| Arc::ptr_eq(one, &all[0]) && one[0]["metadata"]["name"] == "a"));
        // A tenant's layer is read with the tenant's credentials.
        ask(true, "d1").await;
        ask(false, "d2").await;
        assert_eq!(reads.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn failed_renders_are_not_cached() {
        let rendered = Rendered::default();
        let broken = async { Ok(Arc::<[u8]>::from(&b"a: ["[..])) };
        let error = rendered.objects(false, "d", TYPE, broken).await.err().unwrap();
        assert!(
            error.to_string().contains("(d) cannot be used")
                && error.retry() == crate::outcome::Next::OnEvent,
            "{error}"
        );
        let unread = async { Err(Error::Final("gone".to_owned())) };
        assert!(rendered.objects(false, "d", TYPE, unread).await.is_err());
        assert!(rendered.objects(false, "d", TYPE, async { Ok(layer("a")) }).await.is_ok());
    }

    #[tokio::test]
    async fn rendered_layers_have_a_size_limit() {
        let rendered = Rendered::default();
        let big = |name: &str| -> Arc<[u8]> {
            let text = "x".repeat(1024 * 1024);
            format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: {text}}}\n")
                .into_bytes()
                .into()
        };
        for digest in 0..20 {
            let read = async { Ok(big("a")) };
            rendered.objects(true, &digest.to_string(), TYPE, read).await.unwrap();
        }
        let shelf = rendered.tenants.lock();
        assert!(shelf.used() <= CACHED_FOR_TENANTS && (1..20).contains(&shelf.len()), "{}", shelf.len());
        assert!(weight(&json!({"ab": ["c", 1]})) == 2 + 4 * VALUE + 1);
    }
}
