//! `tidewatch explain`: one runtime's reconciles, or all event paths.

use std::{fmt::Write, time::Duration};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::{
    args::usage,
    clusters::{ADMIN_VARIABLE, admin_url},
    output::{Format, print, seconds},
};

/// 32 records are far smaller.
const MAX_PAGE: usize = 4 * 1024 * 1024;
const DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Runtime id, or name of the Kyma in KCP. Without it, the states of all event paths and the worst
    /// runtimes are shown.
    runtime: Option<String>,
    /// Admin address of the receiver.
    #[arg(long, env = ADMIN_VARIABLE, default_value = "http://127.0.0.1:8080", value_name = "URL", value_parser = admin_url)]
    admin: String,
}

pub(crate) async fn run(explain: Explain, output: Format) -> anyhow::Result<()> {
    let Explain { runtime, admin } = explain;
    let Some(runtime) = runtime else {
        let page = read(&format!("{admin}/runtimes/"), "").await?;
        return match output {
            Format::Json => output.print(&page),
            Format::Text => print(&all(&page)),
        };
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if runtime.is_empty() || !runtime.chars().all(plain) {
        return Err(usage(&format!("'{runtime}' is neither a runtime id nor a Kyma's name")));
    }
    let page = read(&format!("{admin}/runtimes/{runtime}"), &runtime).await?;
    match output {
        Format::Json => output.print(&page),
        Format::Text => print(&text(&page)),
    }
}

async fn read(url: &str, runtime: &str) -> anyhow::Result<Value> {
    tidewatch_oci::install_crypto_provider();
    let client = reqwest::Client::builder().timeout(DEADLINE).build()?;
    let mut response = client
        .get(url)
        .send()
        .await
        .with_context(|| format!("the receiver does not answer at {url}; give --admin"))?;
    match response.status().as_u16() {
        200 => {}
        404 => bail!("the receiver knows no runtime '{runtime}'; is its Kyma registered in KCP?"),
        other => bail!("the receiver answered {other} at {url}"),
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        ensure!(body.len() + chunk.len() <= MAX_PAGE, "the page is larger than {MAX_PAGE} bytes");
        body.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&body)
        .context("the answer is not the receiver's page; is --admin its admin address?")
}

fn all(page: &Value) -> String {
    let states = page["runtimes"].as_object().into_iter().flatten();
    let states: Vec<_> = states.map(|(state, count)| format!("{count} {state}")).collect();
    let mut out = format!("runtimes whose events are: {}\n", states.join(", "));
    out.push_str(held(page));
    if page["pathIll"] == true {
        out.push_str("so many are unproven at once that the path itself must be ill: polls are stretched\n");
    }
    let word = |v: &Value| v.as_str().unwrap_or("-").to_owned();
    let worst = page["worst"].as_array().map_or(&[][..], Vec::as_slice);
    if !worst.is_empty() {
        let _ = writeln!(out, "{:<40} {:<40} {:<12} LAST CANARY", "RUNTIME", "KYMA", "STATE");
    }
    for one in worst {
        let canary = one["canarySeconds"].as_u64().map_or_else(|| no_canary(one), |s| format!("{s} s ago"));
        let state = match word(&one["eventPath"]) {
            state if state == "unknown" && one["heardSeconds"].is_u64() => "heard".to_owned(),
            state => state,
        };
        let (runtime, kyma) = (word(&one["runtime"]), word(&one["kyma"]));
        let _ = writeln!(out, "{runtime:<40} {kyma:<40} {state:<12} {canary}");
    }
    out
}

/// The first canary takes a minute.
fn no_canary(one: &Value) -> String {
    match one["heardSeconds"].as_u64() {
        Some(seconds) => format!("none yet; its agent spoke {seconds} s ago"),
        None => "none since the receiver began".to_owned(),
    }
}

fn header(page: &Value) -> String {
    let mut out = String::new();
    let (agent, time) = (&page["agent"], |value: &Value| value.as_str().map(seconds));
    let path = page["eventPath"].as_str().unwrap_or("not known here: this receiver does not look after it");
    let cause = page["eventPathCause"].as_str().map(|cause| format!(": {cause}")).unwrap_or_default();
    let _ = writeln!(out, "events       {path}{cause}");
    let canary = time(&page["lastCanary"]).unwrap_or_else(|| "none since the receiver began".to_owned());
    let _ = writeln!(out, "last canary  {canary}");
    let connected = match (time(&agent["connectedSince"]), time(&agent["heard"])) {
        (Some(since), _) => format!("connected since {since}"),
        (None, Some(heard)) => format!("silent; last heard at {heard}"),
        (None, None) => "not heard since the receiver began".to_owned(),
    };
    let certificate = time(&agent["certificateEnds"]).map(|end| format!(", its certificate ends at {end}"));
    let _ = writeln!(out, "agent        {connected}{}", certificate.unwrap_or_default());
    let refusal = &agent["lastRefusal"];
    if let Some(message) = refusal["message"].as_str() {
        let count = refusal["count"].as_u64().unwrap_or(1);
        let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
        let _ = writeln!(out, "refused      {message}{times}");
    }
    let modules = page["modules"].as_array().into_iter().flatten();
    let modules: Vec<_> =
        modules.map(|module| format!("{} {}", word(&module["name"]), word(&module["state"]))).collect();
    let modules = if modules.is_empty() { "none".to_owned() } else { modules.join(", ") };
    let _ = writeln!(out, "modules      {modules}\n");
    out
}

fn held(page: &Value) -> &'static str {
    match page["mode"].as_str() {
        Some("paused") => {
            "the engine is paused and writes nothing in runtimes: --pause, or the ConfigMap tidewatch-engine says so\n"
        }
        Some("standby") => "this receiver waits for the Lease and writes nothing; ask the one that works\n",
        _ if page["skipped"] == true => {
            "left alone: its Kyma has the label operator.kyma-project.io/skip-reconciliation; its status is as it was then\n"
        }
        _ => "",
    }
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").to_owned()
}

/// A resync names only a kind.
fn object(value: &Value) -> String {
    let object = word(value);
    match object.strip_suffix([' ', '/']) {
        Some(kind) => format!("any {}", kind.trim_end()),
        None => object,
    }
}

fn because(key: &Value, cause: &Value) -> String {
    match cause["type"].as_str() {
        Some("event") => {
            // v2 events have neither number nor watch.
            let event = match cause["seq"].as_u64() {
                Some(seq) if seq > 0 => format!("event #{seq} ({})", word(&cause["watch"])),
                _ => "a v2 event".to_owned(),
            };
            format!("because of {event}: {}", object(&cause["object"]))
        }
        Some("kcp") => format!("because in KCP: {}, {}", word(&cause["object"]), word(&cause["change"])),
        Some("start") => "because the receiver has started".to_owned(),
        Some("fallbackPoll") => "because its events are not proven to arrive (fallback poll)".to_owned(),
        Some("safetyResync") => "because it was not looked at as a whole for long (safety resync)".to_owned(),
        Some("otherConfiguration") => "because its agent works by another configuration".to_owned(),
        Some("secondLook") => {
            format!("because it was looked at once more after a v2 event: {}", word(&cause["object"]))
        }
        Some("due") => format!("because it was to be looked at again at {}", word(&cause["at"])),
        Some("mode") => format!("because what may be written has changed (now: {})", word(&cause["mode"])),
        Some("retry") => {
            let (of, reason) = (word(&cause["key"]), word(&cause["reason"]).replace('_', " "));
            let what = if *key == cause["key"] { "it".to_owned() } else { of };
            format!("because {what} was tried again (try {}, after: {reason})", cause["attempt"])
        }
        other => format!("because of {}", other.unwrap_or("?")),
    }
}

fn text(page: &Value) -> String {
    let mut out = format!(
        "runtime {} (Kyma {}), {} events wait for their reconcile\n",
        word(&page["runtime"]),
        word(&page["kyma"]),
        page["eventsHeld"]
    );
    out.push_str(held(page));
    out.push_str(&header(page));
    for record in page["reconciles"].as_array().into_iter().flatten() {
        let ms = |v: &Value| v.as_f64().unwrap_or(0.0) * 1000.0;
        let _ = writeln!(
            out,
            "{}  {:<40} {:<8} waited {:.0} ms, took {:.0} ms",
            word(&record["finishedAt"]).get(..23).unwrap_or("?"),
            word(&record["key"]),
            word(&record["outcome"]),
            ms(&record["queuedSeconds"]),
            ms(&record["workSeconds"]),
        );
        let stages = record["stages"].as_array().into_iter().flatten();
        let stages: Vec<_> = stages
            .map(|s| format!("{} {:.0} ms", word(&s["stage"]).replace('_', " "), ms(&s["seconds"])))
            .collect();
        if !stages.is_empty() {
            let _ = writeln!(out, "    {}", stages.join(", "));
        }
        for cause in record["causes"].as_array().into_iter().flatten() {
            let _ = writeln!(out, "    {}", because(&record["key"], cause));
        }
        let (shown, all) =
            (record["causes"].as_array().map_or(0, Vec::len), record["causeCount"].as_u64().unwrap_or(0));
        if all > shown as u64 {
            let _ = writeln!(out, "    and {} more causes", all - shown as u64);
        }
        if let Some(message) = record["message"].as_str() {
            let _ = writeln!(out, "    {message}");
        }
        if let Some(next) = record["nextTrySeconds"].as_f64() {
            let _ = writeln!(out, "    again after {next:.1} s, unless something asks before");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_reconcile_is_shown_with_its_triggers() {
        let page = json!({"runtime": "r", "kyma": "k", "eventsHeld": 2, "eventPath": "proven", "eventPathCause": "events arrive",
            "lastCanary": "2026-01-01T00:00:00Z",
            "agent": {"heard": "2026-01-01T00:00:02Z", "connectedSince": "2025-12-31T23:00:00Z", "certificateEnds": "2026-06-01T00:00:00Z"},
            "modules": [{"name": "oven", "state": "Ready"}, {"name": "sink", "state": "Error"}], "reconciles": [
            {"key": "Kyma/k", "outcome": "failed", "finishedAt": "2026-01-01T00:00:00.123456Z", "queuedSeconds": 0.002,
             "workSeconds": 0.5, "causeCount": 4, "message": "no such module", "nextTrySeconds": 1.5, "causes": [
                {"type": "event", "seq": 7, "watch": "kyma", "object": "Kyma kyma-system/default"},
                {"type": "event", "seq": 8, "watch": "crds", "object": "CustomResourceDefinition.apiextensions.k8s.io "},
                {"type": "kcp", "object": "Kyma/k", "change": "changed"}]},
            {"key": "Kyma/k", "outcome": "done", "finishedAt": "2026-01-01T00:00:02.500Z", "queuedSeconds": 0, "workSeconds": 0,
             "causeCount": 0, "causes": []},
            {"key": "Kyma/k", "outcome": "done", "finishedAt": "2026-01-01T00:00:03.500Z", "queuedSeconds": 0, "workSeconds": 0,
             "causeCount": 1, "causes": [{"type": "event", "seq": 0, "watch": "v2", "object": "Kyma kyma-system/default"}]},
            {"key": "Manifest/m", "outcome": "done", "finishedAt": "2026-01-01T00:00:04.500Z", "queuedSeconds": 0, "workSeconds": 0.5,
             "stages": [{"stage": "read_kcp", "seconds": 0.004}, {"stage": "apply", "seconds": 0.4}],
             "causeCount": 10, "causes": [{"type": "retry", "key": "Manifest/m", "attempt": 3, "reason": "kind_missing"},
                {"type": "retry", "key": "Kyma/k", "attempt": 1, "reason": "waiting"}, {"type": "start"}, {"type": "fallbackPoll"}, {"type": "safetyResync"},
                {"type": "otherConfiguration"}, {"type": "secondLook", "object": "Kyma kyma-system/default"},
                {"type": "due", "at": "2026-01-01T00:00:00Z"}, {"type": "mode", "mode": "live"}, {"type": "another"}]}]});
        insta::assert_snapshot!(text(&page));
    }

    #[test]
    fn all_runtimes_are_counted_and_the_worst_named() {
        let page = json!({"runtimes": {"proven": 7, "unproven": 1}, "pathIll": true, "worst": [
            {"runtime": "r-1", "kyma": "k-1", "eventPath": "unproven", "canarySeconds": null},
            {"runtime": "r-3", "kyma": "k-3", "eventPath": "unknown", "heardSeconds": 4, "canarySeconds": null},
            {"runtime": null, "kyma": "k-2", "eventPath": "proven", "heardSeconds": 1, "canarySeconds": 59}]});
        insta::assert_snapshot!(all(&page));
        let paused = json!({"mode": "paused", "runtimes": {"proven": 2}, "pathIll": false, "worst": []});
        assert!(all(&paused).contains("the engine is paused"), "{}", all(&paused));
    }

    #[test]
    fn a_refused_agent_is_explained_before_anything_else() {
        let page = json!({"runtime": "r", "kyma": "k", "eventsHeld": 0, "eventPath": "unproven",
            "eventPathCause": "the agent was refused", "lastCanary": null, "agent": {"heard": null, "connectedSince": null,
            "certificateEnds": null, "lastRefusal": {"count": 12, "message": "refused (san_mismatch): subject CN=r, issuer CN=f"}},
            "modules": [], "reconciles": []});
        insta::assert_snapshot!(text(&page));
    }

    #[test]
    fn a_skipped_or_paused_runtime_is_reported() {
        let of = |mode: &str, skipped: bool| {
            text(
                &json!({"runtime": "r-1", "kyma": "k", "eventPath": "proven", "eventsHeld": 0, "mode": mode, "skipped": skipped, "reconciles": []}),
            )
        };
        assert!(of("live", true).contains("left alone: its Kyma has the label"), "{}", of("live", true));
        assert!(of("paused", false).contains("paused") && !of("live", false).contains("left alone"));
    }
}
