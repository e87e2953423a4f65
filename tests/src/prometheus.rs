//! Prometheus beside the programs of a test, and the queries of the chart's dashboards.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{Harness, Process, http, ports, wait};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/charts/tidewatch/files");
/// Covers a test from its first scrape on. Grafana's value is at least four scrape intervals.
const RATE_INTERVAL: &str = "10m";
const SOON: Duration = Duration::from_mins(1);

/// A program to scrape, with the labels that the Prometheus operator gives to its pod.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The Service or the `PodMonitor`.
    pub job: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// `http://127.0.0.1:port`
    pub admin: &'a str,
}

/// A Prometheus with the chart's alert rules.
#[derive(Debug)]
pub struct Prometheus {
    url: String,
    process: Process,
}

/// A dashboard of the chart.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Its title.
    pub title: String,
    /// Variables that it queries: name, metric and label.
    pub variables: Vec<[String; 3]>,
    /// Panels' titles and queries.
    pub panels: Vec<(String, String)>,
}

impl Prometheus {
    /// Builds Prometheus if necessary, starts it, and waits until it has scraped all targets. Its data goes with it.
    pub async fn start(harness: &Harness, name: &str, targets: &[Target<'_>]) -> Result<Self> {
        let program = harness.tools()?.extra("prometheus")?;
        let jobs = targets.iter().map(|Target { job, namespace, admin }| {
            let address = admin.trim_start_matches("http://");
            json!({"job_name": job, "static_configs": [{
                "targets": [address], "labels": {"namespace": namespace, "pod": job, "container": job}}]})
        });
        // Every JSON text is YAML.
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [Path::new(CHART).join("alerts.yaml").canonicalize()?],
            "scrape_configs": jobs.collect::<Vec<_>>(),
        });
        let config = harness.write(&format!("{name}/prometheus.json"), &config.to_string())?;
        let data = config.with_file_name("prometheus-data");
        let address = format!("127.0.0.1:{}", ports::free()?);
        let args = vec![
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", data.display()),
            format!("--web.listen-address={address}"),
        ];
        let mut spec = harness.spec(&format!("{name}/prometheus"), &program, args);
        spec.scratch = Some(data);
        let this = Self { url: format!("http://{address}"), process: Process::start(&spec)? };
        let all = targets.len();
        this.process
            .ready(&format!("to scrape {all} targets"), SOON, || async {
                let up = this.query("up == 1").await?;
                Ok((up.len() == all).then_some(()))
            })
            .await?;
        Ok(this)
    }

    async fn get(&self, path: &str) -> Result<Value> {
        http::json(&format!("{}/api/v1/{path}", self.url)).await
    }

    /// Returns the series of an instant query.
    pub async fn query(&self, query: &str) -> Result<Vec<Value>> {
        let page =
            self.get(&format!("query?query={}", encoded(query))).await.with_context(|| query.to_owned())?;
        let result = page["data"]["result"].as_array();
        Ok(result.with_context(|| format!("{query}: {page}"))?.clone())
    }

    /// Returns the panels and variables that show nothing, with their queries. A series without any number shows nothing.
    pub async fn without_data(&self, dashboard: &Dashboard) -> Result<Vec<String>> {
        let mut missing = Vec::new();
        let mut values = vec![("$__rate_interval".to_owned(), RATE_INTERVAL.to_owned())];
        let title = &dashboard.title;
        for [name, metric, label] in &dashboard.variables {
            let found = self.query(&format!("group by ({label}) ({metric})")).await?;
            match found.first().and_then(|series| series["metric"][label].as_str()) {
                Some(value) => values.push((format!("${name}"), value.to_owned())),
                None => missing.push(format!("{title}, variable {name}: label_values({metric}, {label})")),
            }
        }
        for (panel, query) in &dashboard.panels {
            let asked =
                values.iter().fold(query.clone(), |query, (variable, value)| query.replace(variable, value));
            let is_number = |series: &Value| series["value"][1].as_str().is_some_and(|value| value != "NaN");
            if !self.query(&asked).await?.iter().any(is_number) {
                missing.push(format!("{title}, panel {panel}: {asked}"));
            }
        }
        Ok(missing)
    }

    /// Waits until it has evaluated all of the chart's alert rules. Returns their number.
    pub async fn evaluates_rules(&self) -> Result<usize> {
        wait::until("every rule to be evaluated", SOON, || async {
            let page = self.get("rules").await?;
            let groups = page["data"]["groups"].as_array().into_iter().flatten();
            let rules: Vec<&Value> = groups.filter_map(|group| group["rules"].as_array()).flatten().collect();
            let ill: Vec<&&Value> = rules.iter().filter(|rule| rule["health"] != "ok").collect();
            ensure!(ill.is_empty() && !rules.is_empty(), "{ill:#?}");
            Ok(Some(rules.len()))
        })
        .await
    }
}

/// Reads the chart's dashboards. Blocks briefly.
pub fn dashboards() -> Result<Vec<Dashboard>> {
    let mut files: Vec<_> = fs::read_dir(Path::new(CHART).join("dashboards"))?.collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::path);
    files.iter().map(|file| read(&serde_json::from_str(&fs::read_to_string(file.path())?)?)).collect()
}

fn read(dashboard: &Value) -> Result<Dashboard> {
    let title = dashboard["title"].as_str().context("a dashboard has no title")?.to_owned();
    let mut variables = Vec::new();
    for variable in dashboard["templating"]["list"].as_array().into_iter().flatten() {
        if variable["type"] == "query" {
            variables.push(queried(variable).with_context(|| format!("{title}: the variable {variable}"))?);
        }
    }
    let mut panels = Vec::new();
    collect(dashboard, &mut panels);
    Ok(Dashboard { title, variables, panels })
}

/// Reads `label_values(metric, label)`.
fn queried(variable: &Value) -> Option<[String; 3]> {
    let query = variable["query"]["query"].as_str().or_else(|| variable["query"].as_str())?;
    let (metric, label) = query.strip_prefix("label_values(")?.strip_suffix(')')?.split_once(", ")?;
    Some([variable["name"].as_str()?, metric, label].map(str::to_owned))
}

/// Rows contain panels.
fn collect(of: &Value, panels: &mut Vec<(String, String)>) {
    for panel in of["panels"].as_array().into_iter().flatten() {
        let title = panel["title"].as_str().unwrap_or_default();
        for target in panel["targets"].as_array().into_iter().flatten() {
            panels.push((title.to_owned(), target["expr"].as_str().unwrap_or_default().to_owned()));
        }
        collect(panel, panels);
    }
}

fn encoded(query: &str) -> String {
    query.bytes().fold(String::new(), |text, byte| text + &format!("%{byte:02X}"))
}
