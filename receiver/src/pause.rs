//! An operator's ConfigMap that pauses all writes to runtimes.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;

use crate::{config_map, switch::Switch};

/// The ConfigMap's name.
pub const NAME: &str = "tidewatch-engine";
const KEY: &str = "paused";

/// Returns whether the ConfigMap pauses the engine: any value but a clear no does.
pub fn is_paused(map: Option<&ConfigMap>) -> bool {
    let value = map.and_then(|map| map.data.as_ref()).and_then(|data| data.get(KEY));
    value.is_some_and(|value| !matches!(value.trim(), "" | "false" | "no" | "off" | "0"))
}

/// Watches the ConfigMap. `always` pauses regardless.
pub async fn follow(client: Client, namespace: String, always: bool, switch: Switch) {
    if always {
        tracing::warn!("paused by --pause: nothing is written in runtimes");
        switch.paused(true);
        return std::future::pending().await;
    }
    let mut last = None;
    let apply = |map: Option<&ConfigMap>| {
        let paused = is_paused(map);
        if last.replace(paused) != Some(paused) {
            tracing::info!(paused, "the ConfigMap {NAME} decides whether the engine writes to runtimes");
            switch.paused(paused);
        }
    };
    config_map::follow(client, &namespace, NAME, apply).await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn any_value_but_false_or_off_pauses() {
        let of = |value: &str| {
            is_paused(Some(&ConfigMap {
                data: Some(BTreeMap::from([(KEY.to_owned(), value.to_owned())])),
                ..ConfigMap::default()
            }))
        };
        assert!(!is_paused(None) && !is_paused(Some(&ConfigMap::default())));
        assert!(of("true") && of("yes please"));
        assert!(!of("false") && !of(" off\n") && !of(""));
    }
}
