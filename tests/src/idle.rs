//! `make idle`: counts requests in the audit logs while nothing changes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use kube::Api;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidewatch_api::{
    Kyma, State,
    names::{KCP_NAMESPACE, RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE},
};
use tokio::time::Instant;

use crate::{
    Harness, Lifetime,
    cluster::audit,
    env::Environment,
    fleet,
    harness::target_folder,
    report::{Line, Reporter, Terminal},
    story::{RUNTIMES, World, set_modules},
};

/// User agents of receiver and agent.
const PROGRAMS: [&str; 2] = ["tidewatch-receiver", "tidewatch-agent"];
/// Time until the installation's effects end, including the first canaries.
pub const SETTLING: Duration = Duration::from_mins(3);
const READS: [&str; 3] = ["get", "list", "watch"];

/// One kind of request and its count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Asked {
    /// The control plane.
    pub cluster: String,
    /// The part of `User-Agent` before the first `/`.
    pub program: String,
    /// The audit log's verb.
    pub verb: String,
    /// The resource with subresource and group, or a non-resource path.
    pub resource: String,
    /// Number of requests.
    pub times: u64,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Idle {
    /// Observed seconds.
    pub seconds: u64,
    /// Requests of the product's programs, most frequent first.
    pub asked: Vec<Asked>,
    /// The engine's writes in runtimes. Goal: 0.
    pub engine_writes: u64,
    /// The engine's most frequent read in a single runtime. Goal: at most 1.
    pub engine_reads: u64,
    /// The engine's writes in KCP besides its Lease. Goal: 0.
    pub engine_kcp_writes: u64,
}

impl Idle {
    fn of(asked: BTreeMap<Asked, u64>, seconds: u64) -> Self {
        let mut asked: Vec<Asked> =
            asked.into_iter().map(|(asked, times)| Asked { times, ..asked }).collect();
        asked.sort_by(|a, b| b.times.cmp(&a.times).then_with(|| a.cmp(b)));
        let engine = |asked: &&Asked| asked.program == PROGRAMS[0];
        let is_read = |asked: &Asked| READS.contains(&asked.verb.as_str());
        let sum = |which: &dyn Fn(&Asked) -> bool| {
            asked.iter().filter(engine).filter(|a| which(a)).map(|a| a.times).sum::<u64>()
        };
        let runtimes: Vec<&str> =
            asked.iter().map(|a| a.cluster.as_str()).filter(|cluster| *cluster != "kcp").collect();
        let reads = runtimes.iter().map(|runtime| sum(&|a| a.cluster == *runtime && is_read(a)));
        Self {
            seconds,
            engine_writes: sum(&|a| a.cluster != "kcp" && !is_read(a)),
            engine_reads: reads.max().unwrap_or_default(),
            engine_kcp_writes: sum(&|a| {
                a.cluster == "kcp" && !is_read(a) && !a.resource.starts_with("leases.")
            }),
            asked,
        }
    }

    /// Returns whether all goals are met.
    #[must_use]
    pub const fn is_met(&self) -> bool {
        self.engine_writes == 0 && self.engine_reads <= 1 && self.engine_kcp_writes == 0
    }

    /// Formats a table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text =
            String::from("| control plane | program | verb | resource | times |\n|---|---|---|---|---|\n");
        for Asked { cluster, program, verb, resource, times } in &self.asked {
            let _ = writeln!(text, "| {cluster} | {program} | {verb} | {resource} | {times} |");
        }
        let Self { seconds, engine_writes, engine_reads, engine_kcp_writes, .. } = self;
        let _ = writeln!(
            text,
            "\nIn {seconds} s without a change the engine wrote {engine_writes} times in runtimes (goal 0), read {engine_reads} \
             times in one (goal at most 1), and wrote {engine_kcp_writes} times in KCP besides its Lease (goal 0)."
        );
        text
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    #[serde(default)]
    user_agent: String,
    #[serde(default, rename = "requestURI")]
    request_uri: String,
    object_ref: Option<ObjectRef>,
    request_received_timestamp: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    api_group: String,
}

/// Counts the programs' requests since then; returns the engine's total over the whole log.
fn count(
    cluster: &str,
    log: impl BufRead,
    since: Timestamp,
    asked: &mut BTreeMap<Asked, u64>,
) -> Result<u64> {
    let mut of_engine = 0;
    for line in log.lines() {
        let line = line.context("the audit log cannot be read")?;
        let event: Event =
            serde_json::from_str(&line).with_context(|| format!("no event of an audit log: {line:.200}"))?;
        let program = event.user_agent.split('/').next().unwrap_or_default();
        of_engine += u64::from(program == PROGRAMS[0]);
        if event.request_received_timestamp < since || !PROGRAMS.contains(&program) {
            continue;
        }
        let path = event.request_uri.split('?').next().unwrap_or_default().to_owned();
        let resource = event.object_ref.map_or(path, |o| {
            let slash = if o.subresource.is_empty() { "" } else { "/" };
            let dot = if o.api_group.is_empty() { "" } else { "." };
            format!("{}{slash}{}{dot}{}", o.resource, o.subresource, o.api_group)
        });
        let (cluster, program, verb) = (cluster.to_owned(), program.to_owned(), event.verb);
        *asked.entry(Asked { cluster, program, verb, resource, times: 0 }).or_default() += 1;
    }
    Ok(of_engine)
}

/// Returns the engine's writes since then, such as `patch deployments.apps (2)`.
pub(crate) fn writes_of_engine(harness: &Harness, cluster: &str, since: Timestamp) -> Result<Vec<String>> {
    let logs = [(cluster, audit::log(harness, cluster))];
    let asked = found(&logs, since, 0)?.asked.into_iter();
    let writes = asked.filter(|a| a.program == PROGRAMS[0] && !READS.contains(&a.verb.as_str()));
    Ok(writes.map(|Asked { verb, resource, times, .. }| format!("{verb} {resource} ({times})")).collect())
}

fn found(logs: &[(&str, PathBuf)], since: Timestamp, seconds: u64) -> Result<Idle> {
    let mut asked = BTreeMap::new();
    for (cluster, path) in logs {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        if count(cluster, BufReader::new(file), since, &mut asked)? == 0 {
            bail!(
                "{} has no request of the engine, which has worked there: that it has none would be no news",
                path.display()
            );
        }
    }
    Ok(Idle::of(asked, seconds))
}

/// Starts the demo's fleet with its module, waits for `settling`, observes for `time`, and reports the
/// requests.
pub fn main(settling: Duration, time: Duration, terminal: &Terminal) -> Result<Idle> {
    let folder: &Path = &target_folder().join("idle");
    let _none_before = std::fs::remove_dir_all(folder);
    // Can block on a build of the control planes.
    let harness = Harness::new(folder, Lifetime::WithUs)?.with_audit();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot make a runtime")?;
    runtime.block_on(async {
        tokio::select! {
            result = run((settling, time), harness, terminal) => result,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })
}

async fn run((settling, time): (Duration, Duration), harness: Harness, terminal: &Terminal) -> Result<Idle> {
    terminal.working("starting etcd, a registry and three control planes");
    let env = Environment::start(harness).await?;
    // Production settings: polling and the twice-daily resync are on.
    let arguments = ["--fallback-poll=120", "--safety-resync=43200", "--rollout-window=300"];
    let world = World::start_with(&env, terminal, arguments.map(str::to_owned).to_vec()).await?;
    let runtime = env.runtime1.client()?;
    set_modules(&runtime, &json!([{"name": "lighthouse"}])).await?;
    let kymas: Api<Kyma> = Api::namespaced(runtime, RUNTIME_NAMESPACE);
    fleet::kyma_where(kymas, RUNTIME_KYMA_NAME, "the module to be Ready", |k| {
        k.module_status("lighthouse").is_some_and(|m| m.state == State::Ready)
    })
    .await?;
    fleet::kyma_in_state(&env.kcp.client()?, KCP_NAMESPACE, RUNTIMES[0].0, State::Ready).await?;
    fleet::settled(&world.receiver).await?;
    left_alone("settling", settling, terminal).await;
    let since = Timestamp::now();
    left_alone("nothing is changed", time, terminal).await;
    let clusters = [&env.kcp, &env.runtime1, &env.runtime2];
    let logs = clusters.map(|cluster| (cluster.name(), audit::log(&env.harness, cluster.name())));
    found(&logs, since, time.as_secs())
}

pub(crate) async fn left_alone(what: &str, time: Duration, reporter: &dyn Reporter) {
    let begun = Instant::now();
    loop {
        let left = time.saturating_sub(begun.elapsed());
        if left.is_zero() {
            break;
        }
        reporter.working(&format!("{what}: {} s to go", left.as_secs()));
        tokio::time::sleep(left.min(Duration::from_secs(10))).await;
    }
    reporter.done(Line {
        what: format!("{what} for {} s", time.as_secs()),
        took: begun.elapsed(),
        seq: None,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(program: &str, verb: &str, resource: &str, group: &str, second: u32) -> String {
        let reference = if resource.is_empty() {
            serde_json::Value::Null
        } else {
            json!({"resource": resource, "apiGroup": group, "apiVersion": "v1", "name": "x"})
        };
        json!({"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "stage": "ResponseStarted",
               "verb": verb, "userAgent": program, "requestURI": "/apis/apps/v1?timeout=1s", "objectRef": reference,
               "requestReceivedTimestamp": format!("2026-01-01T00:00:{second:02}.000001Z")})
        .to_string()
    }

    fn idle(logs: &[(&str, &[String])]) -> Idle {
        let since = "2026-01-01T00:00:30Z".parse().unwrap();
        let mut asked = BTreeMap::new();
        for (cluster, lines) in logs {
            let of_engine = count(cluster, lines.join("\n").as_bytes(), since, &mut asked).unwrap();
            let wanted = lines.iter().filter(|line| line.contains("tidewatch-receiver")).count();
            assert_eq!(of_engine, wanted as u64, "whenever they were made");
        }
        Idle::of(asked, 30)
    }

    #[test]
    fn requests_after_the_start_are_counted_by_program() {
        let engine = |verb: &str, resource: &str, group: &str, second| {
            line("tidewatch-receiver/1.0", verb, resource, group, second)
        };
        let quiet = [
            engine("patch", "deployments", "apps", 29),
            line("kubectl/v1", "patch", "deployments", "apps", 40),
            line("tidewatch-agent/1.0", "patch", "leases", "coordination.k8s.io", 40),
            line("tidewatch-agent/1.0", "patch", "leases", "coordination.k8s.io", 50),
            engine("get", "kymas", "operator.kyma-project.io", 41),
        ];
        let kcp = [engine("update", "leases", "coordination.k8s.io", 40), engine("get", "", "", 40)];
        let found = idle(&[("runtime1", &quiet), ("kcp", &kcp)]);
        assert!(found.is_met(), "{found:?}");
        let first = &found.asked[0];
        assert_eq!((first.program.as_str(), first.times), ("tidewatch-agent", 2));
        assert!(found.asked.iter().any(|asked| asked.resource == "/apis/apps/v1"), "what is no resource");
        assert!(
            found
                .table()
                .contains("| runtime1 | tidewatch-receiver | get | kymas.operator.kyma-project.io | 1 |")
        );

        let with = |more: String| [&quiet[..], &[more]].concat();
        assert!(!idle(&[("runtime1", &with(engine("patch", "deployments", "apps", 31)))]).is_met());
        assert!(!idle(&[("runtime1", &with(engine("list", "pods", "", 31)))]).is_met(), "read twice");
        assert!(!idle(&[("kcp", &with(engine("patch", "manifests", "x", 31)))]).is_met());
        assert!(count("kcp", "no event".as_bytes(), Timestamp::UNIX_EPOCH, &mut BTreeMap::new()).is_err());
    }
}
