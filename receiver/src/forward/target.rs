//! Other managers' services, by Watchers. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use kube::ResourceExt;
use tidewatch_api::Watcher;

/// Manager → `host:port`, instead of the Watcher's.
pub type Overrides = BTreeMap<String, String>;

/// Forwarded managers, at most.
pub const MAX_TARGETS: usize = 256;

/// A manager's service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The manager.
    pub manager: String,
    /// `service.namespace.svc:port` of the Watcher.
    pub service: String,
    /// The address to connect to.
    pub address: String,
    /// API group by watch name.
    pub watches: BTreeMap<String, String>,
}

impl Target {
    /// Returns the path for events.
    pub fn path(&self) -> String {
        format!("/v2/{}/event", self.manager)
    }

    /// Returns the `Host` header.
    pub fn host(&self) -> &str {
        &self.service
    }

    /// Returns the API groups of all watches.
    pub fn groups(&self) -> BTreeSet<&str> {
        self.watches.values().map(String::as_str).collect()
    }
}

/// A problem with a Watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetFault {
    /// Manager is no path segment.
    Manager(String),
    /// Invalid service.
    Service(String),
}

impl fmt::Display for TargetFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manager(name) => {
                write!(f, "spec.manager {name:?} must be 1 to 63 of a-z, 0-9, - and ., and not \"engine\"")
            }
            Self::Service(name) => {
                write!(f, "spec.serviceInfo {name:?} must be a Service and a port from 1 to 65535")
            }
        }
    }
}

/// Returns other managers' targets, and faulty Watchers. The first Watcher by namespace and name decides the service.
pub fn targets<'a>(
    watchers: impl IntoIterator<Item = &'a Watcher>,
    own: &str,
    overrides: &Overrides,
    watch_name: impl Fn(&str, &str) -> String,
) -> (BTreeMap<String, Target>, Vec<(String, TargetFault)>) {
    let mut sorted: Vec<&Watcher> =
        watchers.into_iter().filter(|w| w.metadata.deletion_timestamp.is_none()).collect();
    sorted.sort_by_key(|w| (w.namespace(), w.name_any()));
    let (mut found, mut faults) = (BTreeMap::<String, Target>::new(), Vec::new());
    for watcher in sorted {
        let Some(manager) = watcher.manager_name().filter(|m| *m != own) else { continue };
        if !is_name(manager, 63) || matches!(manager, "." | ".." | "engine") {
            faults.push((watcher.name_any(), TargetFault::Manager(shorten(manager))));
            continue;
        }
        let service = &watcher.spec.service_info;
        let full = format!("{}.{}.svc:{}", service.name, service.namespace, service.port);
        let is_service = is_name(&service.name, 63)
            && is_name(&service.namespace, 63)
            && (1..=65_535).contains(&service.port)
            && !service.name.contains('.')
            && !service.namespace.contains('.');
        if !is_service {
            faults.push((watcher.name_any(), TargetFault::Service(shorten(&full))));
            continue;
        }
        if found.len() >= MAX_TARGETS && !found.contains_key(manager) {
            continue;
        }
        let target = found.entry(manager.to_owned()).or_insert_with(|| Target {
            manager: manager.to_owned(),
            address: overrides.get(manager).cloned().unwrap_or_else(|| full.clone()),
            service: full,
            watches: BTreeMap::new(),
        });
        let watch = watch_name(&watcher.namespace().unwrap_or_default(), &watcher.name_any());
        target.watches.insert(watch, watcher.spec.resource_to_watch.group.clone());
    }
    (found, faults)
}

fn is_name(text: &str, longest: usize) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    !text.is_empty() && text.len() <= longest && text.chars().all(allowed)
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use tidewatch_api::{
        WatcherSpec,
        watcher::{Service, WatchableGvr},
    };

    use super::*;

    fn watcher(name: &str, manager: &str, service: (&str, i64), group: &str) -> Watcher {
        let mut watcher = Watcher::new(
            name,
            WatcherSpec {
                manager: manager.into(),
                service_info: Service { name: service.0.into(), namespace: "ops".into(), port: service.1 },
                resource_to_watch: WatchableGvr { group: group.into(), ..WatchableGvr::default() },
                ..WatcherSpec::default()
            },
        );
        watcher.metadata.namespace = Some("kcp-system".into());
        watcher
    }

    fn plan(watchers: &[Watcher]) -> (BTreeMap<String, Target>, Vec<(String, TargetFault)>) {
        let overrides = BTreeMap::from([("elsewhere".to_owned(), "127.0.0.1:9".to_owned())]);
        targets(watchers, "ours", &overrides, |ns, name| format!("{ns}.{name}"))
    }

    #[test]
    fn each_foreign_manager_is_one_target_with_its_watches() {
        let (found, faults) = plan(&[
            watcher("b", "keeper", ("other", 81), "h"),
            watcher("a", "keeper", ("svc", 80), "g"),
            watcher("c", "ours", ("svc", 80), "g"),
            watcher("d", "elsewhere", ("svc", 80), ""),
        ]);
        assert!(faults.is_empty());
        assert_eq!(found.keys().collect::<Vec<_>>(), ["elsewhere", "keeper"]);
        let keeper = &found["keeper"];
        assert_eq!((keeper.address.as_str(), keeper.host()), ("svc.ops.svc:80", "svc.ops.svc:80"));
        assert_eq!(keeper.path(), "/v2/keeper/event");
        let watches = [("kcp-system.a".to_owned(), "g".to_owned()), ("kcp-system.b".into(), "h".into())];
        assert_eq!(keeper.watches, BTreeMap::from(watches));
        assert_eq!(found["elsewhere"].address, "127.0.0.1:9");
        assert_eq!(found["elsewhere"].host(), "svc.ops.svc:80");
    }

    #[test]
    fn invalid_managers_and_services_are_no_targets() {
        for (manager, service) in [
            ("a/b", ("svc", 80)),
            ("..", ("svc", 80)),
            ("engine", ("svc", 80)),
            ("A", ("svc", 80)),
            ("keeper", ("", 80)),
            ("keeper", ("evil.example", 80)),
            ("keeper", ("svc@x", 80)),
            ("keeper", ("svc", 0)),
            ("keeper", ("svc", 65_536)),
        ] {
            let (found, faults) = plan(&[watcher("a", manager, service, "g")]);
            assert!(found.is_empty() && faults.len() == 1, "{manager} {service:?}");
        }
        let mut going = watcher("a", "keeper", ("svc", 80), "g");
        going.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        assert!(plan(&[going]).0.is_empty());
    }
}
