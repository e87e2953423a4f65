use std::collections::BTreeSet;

use tidewatch_agent::config::{Config, ConfigError, Watch, WatchSet};

use crate::assert_message;

/// The agent's configuration file.
///
/// # Panics
/// If a promise is broken.
pub fn agent_config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse(text) {
        Err(error) => assert_error(&error),
        Ok(config) => {
            let endpoint = config.receiver.endpoint();
            assert!(endpoint.is_ok_and(|(host, _)| !host.is_empty()), "what was checked can be dialled");
            assert!((1..=64).contains(&config.runtime_id.len()) && config.max_objects_per_watch > 0);
            assert!(config.max_kept_names > 0);
            assert!(config.config_map.is_some() || !config.watches.is_empty(), "there is something to watch");
            assert_watches(&config.watches);
        }
    }
}

/// The text of the ConfigMap that says what to watch.
///
/// # Panics
/// If a promise is broken.
pub fn watch_set(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match WatchSet::parse(text) {
        Err(error) => assert_error(&error),
        Ok(set) => {
            assert!((1..=64).contains(&set.generation.len()));
            assert!(set.generation.bytes().all(|byte| byte.is_ascii_alphanumeric()));
            assert_watches(&set.watches);
        }
    }
}

fn assert_error(error: &ConfigError) {
    assert!(std::error::Error::source(error).is_none(), "nothing is read");
    assert_message(&error.to_string());
}

fn assert_watches(watches: &[Watch]) {
    assert!(watches.len() <= 256);
    let names: BTreeSet<&str> = watches.iter().map(|watch| watch.name.as_str()).collect();
    assert_eq!(names.len(), watches.len(), "names are unique");
    for Watch { name, route, group, version, resource, field: _, labels, namespace } in watches {
        assert!((1..=63).contains(&name.len()) && (1..=63).contains(&route.len()));
        assert!(!(group.is_empty() && resource == "secrets"), "secrets are never watched");
        // They become parts of a URL.
        for part in [name, route, group, resource].into_iter().chain(namespace) {
            assert!(
                part.len() <= 253 && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
            );
        }
        assert!(version == "*" || version.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
        assert!(labels.iter().all(|(key, value)| key.len() <= 317 && value.len() <= 63));
    }
    for watch in watches {
        let terms = watch.selector().map_or(0, |selector| selector.split(',').count());
        assert_eq!(terms, watch.labels.len(), "one term for each label");
    }
}
