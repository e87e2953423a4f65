//! Cache of clients, valid while their Secret is unchanged.

use std::{num::NonZeroUsize, time::Duration};

use lru::LruCache;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::client::RuntimeClient;

/// The version of the Secret a client was built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretVersion {
    /// The Secret's uid; it differs for a recreated Secret.
    pub uid: String,
    /// The Secret's resource version.
    pub resource_version: String,
}

/// Bounded LRU cache of clients by runtime id. A client closes its connections when its last clone is dropped.
#[derive(Debug)]
pub struct ClientCache<C = RuntimeClient> {
    clients: Mutex<LruCache<String, Cached<C>>>,
}

#[derive(Debug)]
struct Cached<C> {
    built_from: SecretVersion,
    client: C,
    used: Instant,
}

/// About 30 KiB each without connections.
const DEFAULT_CAPACITY: NonZeroUsize = NonZeroUsize::new(2000).unwrap();

impl<C: Clone> Default for ClientCache<C> {
    /// Returns a cache of 2,000 clients.
    fn default() -> Self {
        Self::new(DEFAULT_CAPACITY)
    }
}

impl<C: Clone> ClientCache<C> {
    /// Returns a cache of at most `capacity` clients.
    pub fn new(capacity: NonZeroUsize) -> Self {
        Self { clients: Mutex::new(LruCache::new(capacity)) }
    }

    /// Returns the runtime's client of this Secret version, built if needed. `build` runs without the lock; of two concurrent builds, the
    /// later one stays.
    pub fn get_or_build<E>(
        &self,
        runtime: &str,
        version: &SecretVersion,
        build: impl FnOnce() -> Result<C, E>,
    ) -> Result<C, E> {
        if let Some(cached) = self.clients.lock().get_mut(runtime)
            && cached.built_from == *version
        {
            cached.used = Instant::now();
            return Ok(cached.client.clone());
        }
        let outcome = build();
        let mut clients = self.clients.lock();
        match &outcome {
            Ok(client) => {
                let (built_from, client) = (version.clone(), client.clone());
                clients.put(runtime.to_owned(), Cached { built_from, client, used: Instant::now() });
            }
            // The old client belongs to another Secret and must not be used again, even if the build fails.
            Err(_) => drop(clients.pop(runtime)),
        }
        outcome
    }

    /// Removes the runtime's client.
    pub fn invalidate(&self, runtime: &str) {
        let removed = self.clients.lock().pop(runtime);
        // Dropped after the lock: dropping the last clone closes connections.
        drop(removed);
    }

    /// Drops clients that were unused for this long. Their clones stay usable.
    pub fn drop_idle(&self, idle: Duration) {
        let old = |cached: &Cached<C>| cached.used.elapsed() >= idle;
        loop {
            // Dropped without the lock.
            let mut clients = self.clients.lock();
            let is_old = clients.peek_lru().is_some_and(|(_, cached)| old(cached));
            let dropped = if is_old { clients.pop_lru() } else { None };
            drop(clients);
            if dropped.is_none() {
                return;
            }
        }
    }

    /// Number of clients, for a gauge.
    pub fn len(&self) -> usize {
        self.clients.lock().len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn version(uid: &str, resource_version: &str) -> SecretVersion {
        SecretVersion { uid: uid.to_owned(), resource_version: resource_version.to_owned() }
    }

    #[test]
    fn a_client_lives_as_long_as_its_secret() {
        let cache = ClientCache::new(NonZeroUsize::new(10).unwrap());
        let builds = Cell::new(0);
        let get = |runtime: &str, version: &SecretVersion| {
            let build = || {
                builds.set(builds.get() + 1);
                Ok::<_, ()>(builds.get())
            };
            cache.get_or_build(runtime, version, build).unwrap()
        };
        assert_eq!(get("a", &version("u", "1")), 1);
        assert_eq!(get("a", &version("u", "1")), 1);
        assert_eq!(get("b", &version("u", "1")), 2);
        assert_eq!(get("a", &version("u", "2")), 3);
        assert_eq!(get("a", &version("v", "2")), 4);
        cache.invalidate("a");
        assert_eq!(get("a", &version("v", "2")), 5);
        assert_eq!(cache.len(), 2);
    }

    #[test]
    fn a_failed_build_leaves_no_old_client() {
        let cache = ClientCache::new(NonZeroUsize::new(10).unwrap());
        cache.get_or_build("a", &version("u", "1"), || Ok::<_, ()>(1)).unwrap();
        cache.get_or_build("a", &version("u", "2"), || Err(())).unwrap_err();
        assert!(cache.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn drops_idle_clients() {
        let cache = ClientCache::new(NonZeroUsize::new(10).unwrap());
        let get = |runtime| cache.get_or_build(runtime, &version("u", "1"), || Ok::<_, ()>(runtime)).unwrap();
        get("a");
        get("b");
        tokio::time::advance(Duration::from_secs(40)).await;
        get("a");
        tokio::time::advance(Duration::from_secs(30)).await;
        cache.drop_idle(Duration::from_mins(1));
        assert_eq!(cache.len(), 1);
        assert!(cache.get_or_build("a", &version("u", "1"), || Err(())).is_ok());
    }

    #[test]
    fn client_cache_is_bounded() {
        let cache = ClientCache::new(NonZeroUsize::new(2).unwrap());
        for runtime in ["a", "b", "c"] {
            cache.get_or_build(runtime, &version("u", "1"), || Ok::<_, ()>(())).unwrap();
        }
        assert_eq!(cache.len(), 2);
    }
}
