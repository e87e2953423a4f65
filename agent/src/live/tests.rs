use super::*;
use crate::{
    observe::{condition::Conditions, watch::Shared},
    send::Control,
};
use kube::client::Body;
use serde_json::json;
use std::{collections::BTreeMap, convert::Infallible, time::Duration};
use tempfile::TempDir;
use tidewatch_telemetry::{BuildInfo, metrics::Registry};
use tokio::sync::mpsc;

const FILE: &str = "
runtimeId: runtime-1
receiver: {url: 'https://receiver.example:8443', caFile: ca, certFile: cert, keyFile: key}
adminAddress: 127.0.0.1:0
configMap: {namespace: kyma-system, name: tidewatch-agent-config}
watches:
  - {name: pods, resource: pods, field: spec}
";

struct Bench {
    live: Live,
    conditions: Conditions,
    registry: Registry,
    folder: TempDir,
}

/// Never answers: only the set of watches matters.
fn client() -> Client {
    let service = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<http::Response<Body>, Infallible>>()
    });
    Client::new(service, "default")
}

async fn bench() -> Bench {
    let (changes, _) = mpsc::channel(1);
    let (control, mut controlled) = mpsc::channel::<Control>(1);
    tokio::spawn(async move {
        while let Some(control) = controlled.recv().await {
            control.done.send(0).unwrap();
        }
    });
    let conditions = Conditions::new();
    let registry = Registry::new("t", BuildInfo { name: "t", version: "1", commit: "c" }).unwrap();
    let metrics = Metrics::register(&registry, &conditions).unwrap();
    let status = Configuration::default();
    status.register(&registry).unwrap();
    let clock = || Timestamp::UNIX_EPOCH;
    let shared = Shared {
        changes,
        conditions: conditions.clone(),
        keep_names: tidewatch_delivery::outbox::KeepNames::OfOthers,
        metrics: metrics.clone(),
        clock,
        check_every: Duration::from_mins(1),
        baseline: tokio::sync::watch::channel(crate::observe::message::Baseline::nothing_known()).1,
        resumed: tokio::sync::watch::channel(0).1,
    };
    let supervisor = Supervisor::new(client(), shared, control);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.yaml");
    std::fs::write(&path, FILE).unwrap();
    let file = Config::parse(FILE).unwrap();
    let live = Live::start(file, Some(path), supervisor, &Readiness::new(), status, metrics, clock).await;
    Bench { live, conditions, registry, folder }
}

fn map(text: &str) -> ConfigMap {
    let data = BTreeMap::from([(config::CONFIG_MAP_KEY.to_owned(), text.to_owned())]);
    ConfigMap { data: Some(data), ..ConfigMap::default() }
}

fn text(generation: &str, watches: &[&str]) -> String {
    let watches: Vec<_> =
        watches.iter().map(|name| json!({"name": name, "resource": "services", "field": "status"})).collect();
    json!({"generation": generation, "watches": watches}).to_string()
}

impl Bench {
    async fn map(&mut self, map: impl Into<Option<ConfigMap>>) {
        self.live.map_changed(Ok(map.into())).await;
    }

    async fn file(&mut self, text: &str) {
        std::fs::write(self.folder.path().join("agent.yaml"), text).unwrap();
        self.live.check_file().await;
    }

    fn watches(&self) -> Vec<String> {
        let mut names = Vec::new();
        self.conditions.for_each(|name, _| names.push(name.to_owned()));
        names
    }

    /// State and message.
    fn source(&self, source: &str) -> (String, String) {
        let page = self.live.status.to_json();
        let word = |field: &str| page[source][field].as_str().unwrap_or_default().to_owned();
        let (state, message) = (word("state"), word("message"));
        let series = format!("t_configuration_state{{source=\"{source}\",state=\"{state}\"}} 1");
        assert!(self.registry.encode().unwrap().contains(&series), "{series}");
        (state, message)
    }
}

#[tokio::test]
async fn watches_of_the_config_map_are_added_and_followed() {
    let mut bench = bench().await;
    assert_eq!((bench.watches(), bench.source("configMap").0.as_str()), (vec!["pods".into()], "Waiting"));
    bench.map(None).await;
    assert_eq!((bench.source("configMap").0.as_str(), bench.live.status.generation()), ("Absent", None));
    bench.map(map(&text("g1", &["a", "b"]))).await;
    assert_eq!(bench.watches(), ["a", "b", "pods"]);
    assert_eq!(bench.live.status.generation().as_deref(), Some("g1"));
    assert_eq!(bench.source("configMap"), ("Applied".into(), String::new()));
    bench.map(map(&text("g2", &["b"]))).await;
    assert_eq!(bench.watches(), ["b", "pods"]);
    assert_eq!(bench.live.status.generation().as_deref(), Some("g2"));
    bench.map(None).await;
    assert_eq!(
        (bench.watches(), bench.source("configMap").0.as_str()),
        (vec!["b".into(), "pods".into()], "Gone")
    );
    bench.map(map(&text("g3", &[]))).await;
    assert_eq!((bench.watches(), bench.source("configMap").0.as_str()), (vec!["pods".into()], "Applied"));
}

#[tokio::test]
async fn an_invalid_config_map_changes_nothing_and_is_reported() {
    let mut bench = bench().await;
    bench.map(map(&text("g1", &["a"]))).await;
    let secrets =
        json!({"generation": "g", "watches": [{"name": "s", "resource": "secrets", "field": "spec"}]});
    let cases = [
        (ConfigMap::default(), "has no key watches.yaml"),
        (map("{"), "does not parse"),
        (map("{generation: g, watches: [], more: 1}"), "more"),
        (map(&secrets.to_string()), "secrets are never watched"),
        (map(&text("g", &["pods"])), "is used by another watch"),
        (map(&text("g/", &[])), "generation"),
    ];
    let count = cases.len();
    for (broken, expected) in cases {
        bench.map(broken).await;
        let (state, message) = bench.source("configMap");
        assert!(state == "Refused" && message.contains(expected), "{state}: {message}");
        assert!(message.contains("nothing was changed"), "{message}");
        assert_eq!(
            (bench.watches(), bench.live.status.generation()),
            (vec!["a".into(), "pods".into()], Some("g1".into()))
        );
    }
    let page = bench.registry.encode().unwrap();
    let refused = format!("t_configuration_changes_total{{result=\"refused\",source=\"configMap\"}} {count}");
    assert!(page.contains(&refused), "{page}");
    bench.map(map(&text("g2", &["b"]))).await;
    assert_eq!(
        (bench.watches(), bench.source("configMap").0.as_str()),
        (vec!["b".into(), "pods".into()], "Applied")
    );
}

#[tokio::test]
async fn an_unreadable_config_map_changes_nothing() {
    let mut bench = bench().await;
    bench.map(map(&text("g1", &["a"]))).await;
    let error = |code| {
        let status = kube::core::Status { code, message: "no".into(), ..kube::core::Status::default() };
        watcher::Error::WatchError(Box::new(status))
    };
    for (code, state) in [(403, "Forbidden"), (500, "Unreachable")] {
        bench.live.map_changed(Err(error(code))).await;
        assert_eq!(bench.source("configMap"), (state.to_owned(), "no".to_owned()));
        assert_eq!(bench.watches(), ["a", "pods"]);
    }
}

#[tokio::test]
async fn changes_of_the_config_file_are_applied() {
    let mut bench = bench().await;
    bench.map(map(&text("g1", &["a"]))).await;
    bench.live.check_file().await;
    assert_eq!(bench.source("file"), ("Applied".into(), String::new()), "it is as it was");
    bench.file(&FILE.replace("{name: pods,", "{name: other,")).await;
    assert_eq!(bench.watches(), ["a", "other"]);
    bench.file("nonsense").await;
    let (state, message) = bench.source("file");
    assert!(state == "Refused" && message.contains("does not parse"), "{state}: {message}");
    bench.file(&FILE.replace("{name: pods,", "{name: a,")).await;
    assert!(bench.source("file").1.contains("is used by another watch"), "{:?}", bench.source("file"));
    std::fs::remove_file(bench.folder.path().join("agent.yaml")).unwrap();
    bench.live.check_file().await;
    assert!(bench.source("file").1.contains("cannot be read"), "{:?}", bench.source("file"));
    assert_eq!(bench.watches(), ["a", "other"], "nothing was changed");
    bench.file(&FILE.replace("127.0.0.1:0", "127.0.0.1:1")).await;
    assert_eq!(bench.source("file"), ("Applied".into(), "restart the agent for: adminAddress".into()));
    assert_eq!(bench.watches(), ["a", "pods"]);
    let page = bench.registry.encode().unwrap();
    for (result, times) in [("applied", 2), ("refused", 3)] {
        let series = format!("t_configuration_changes_total{{result=\"{result}\",source=\"file\"}} {times}");
        assert!(page.contains(&series), "{series}: {page}");
    }
}

/// The start check may find the first file, so two are written.
async fn rewritten_twice(bench: Bench, hang_up: bool, limit: Duration) {
    let Bench { live, conditions, registry: _, folder } = bench;
    // Otherwise SIGHUP ends the process.
    let _handler = signal(SignalKind::hangup()).unwrap();
    let drain = tidewatch_drain::Drain::new();
    drain.spawn("live", live.run(client(), drain.watch()));
    let followed = async {
        for name in ["first", "second"] {
            let text = FILE.replace("{name: pods,", &format!("{{name: {name},"));
            std::fs::write(folder.path().join("agent.yaml"), text).unwrap();
            while conditions.get(name).is_none() {
                if hang_up {
                    let pid = std::process::id().to_string();
                    let message = std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap();
                    assert!(message.success());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(limit, followed).await.expect("the file is read again in time");
    assert!(conditions.get("pods").is_none() && conditions.get("first").is_none());
    assert_eq!(drain.shutdown(Duration::from_secs(5)).await, tidewatch_drain::Outcome::Finished);
}

#[tokio::test(start_paused = true)]
async fn the_config_file_is_checked_periodically() {
    let bench = bench().await;
    rewritten_twice(bench, false, CHECK_INTERVAL * 2).await;
}

#[tokio::test]
async fn sighup_triggers_an_immediate_check_of_the_file() {
    let bench = bench().await;
    rewritten_twice(bench, true, CHECK_INTERVAL / 2).await;
}
