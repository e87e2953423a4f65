//! Compares answers except for current times, uids, resourceVersions, random names and errors of Go's JSON
//! package. `docs/develop/fake-apiserver.md` lists the exclusions.

use std::net::IpAddr;

use jiff::SignedDuration;
use serde_json::{Map, Value, json};

use crate::pair::Answer;

const DAY: SignedDuration = SignedDuration::from_hours(24);

pub(crate) fn answers(real: &Answer, simulated: &Answer) -> Vec<String> {
    let mut found = Vec::new();
    if real.code != simulated.code {
        found.push(format!("code: {} and simulated {}: {}", real.code, simulated.code, simulated.body));
    }
    if real.media != simulated.media {
        found.push(format!("content-type: {} and simulated {}", real.media, simulated.media));
    }
    values(&normal(&real.body, ""), &normal(&simulated.body, ""), "", &mut found);
    // The real server adds warnings to rejections too.
    if real.code < 300 && real.warnings != simulated.warnings {
        found.push(format!("warnings: {:?} and simulated {:?}", real.warnings, simulated.warnings));
    }
    found
}

fn values(real: &Value, simulated: &Value, path: &str, found: &mut Vec<String>) {
    match (real, simulated) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (name, value) in ours {
                match theirs.get(name) {
                    Some(other) => values(value, other, &format!("{path}.{name}"), found),
                    None => found.push(format!("{path}.{name}: simulated lacks {}", short(value))),
                }
            }
            for (name, value) in theirs.iter().filter(|(name, _)| !ours.contains_key(*name)) {
                found.push(format!("{path}.{name}: only simulated {}", short(value)));
            }
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            for (index, (value, other)) in ours.iter().zip(theirs).enumerate() {
                values(value, other, &format!("{path}[{index}]"), found);
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            let first = ours.iter().zip(theirs).take_while(|(value, other)| value == other).count();
            let at = |items: &[Value]| items.get(first).map_or_else(|| "nothing".to_owned(), short);
            let [many, others] = [ours.len(), theirs.len()];
            found.push(format!(
                "{path}: {many} and simulated {others}; [{first}]: {} and simulated {}",
                at(ours),
                at(theirs)
            ));
        }
        _ if real != simulated => {
            found.push(format!("{path}: {} and simulated {}", short(real), short(simulated)));
        }
        _ => {}
    }
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(400).collect()
}

/// Removes natural differences.
pub(crate) fn normal(value: &Value, name: &str) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(name, _)| *name != "storageVersionHash");
            // Column descriptions are ignored.
            let column = map.contains_key("priority") && map.contains_key("format");
            let kept = kept.filter(|(name, _)| !(column && *name == "description"));
            let mut map: Map<String, Value> =
                kept.map(|(name, value)| (key(name), normal(value, name))).collect();
            // Go writes an empty list as null or `[]`, depending on its source.
            if map.get("items").is_some_and(Value::is_null) {
                map.insert("items".to_owned(), json!([]));
            }
            root_ca(&mut map);
            Value::Object(map)
        }
        Value::Array(items) => {
            let items = items.iter().filter(|event| !is_late_bookmark(event));
            let mut items: Vec<Value> = items.map(|item| normal(item, name)).collect();
            match name {
                // Sorted by second, which can differ between the sides.
                "managedFields" => items.sort_by_key(|item| {
                    let text =
                        |field: &str| item.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
                    (text("operation"), text("manager"), text("subresource"), text("apiVersion"))
                }),
                // The real server iterates maps in random order and repeats causes.
                "causes" => {
                    items.sort_by_key(Value::to_string);
                    items.dedup();
                }
                _ => {}
            }
            Value::Array(items)
        }
        // The sides are seconds apart.
        Value::String(text) if name == "cells" && is_age(text) => "AGE".into(),
        Value::Number(port) if name == "nodePort" && is_node_port(&port.to_string()) => "PORT".into(),
        Value::String(text) => Value::String(plain(text, name)),
        other => other.clone(),
    }
}

/// `managedFields` identifies owners by uid.
fn key(name: &str) -> String {
    if name.starts_with(r#"k:{"uid":"#) { r#"k:{"uid":"U"}"#.to_owned() } else { name.to_owned() }
}

/// The content of `kube-root-ca.crt` is specific to the cluster.
fn root_ca(map: &mut Map<String, Value>) {
    let is =
        map.get("metadata").and_then(|metadata| metadata.get("name")) == Some(&json!("kube-root-ca.crt"));
    if !is {
        return;
    }
    if let Some(Value::Object(metadata)) = map.get_mut("metadata") {
        metadata.remove("managedFields");
        metadata.remove("annotations");
    }
    if let Some(Value::Object(data)) = map.get_mut("data") {
        data.remove("ca.crt");
    }
}

/// Bookmarks after the initial events have no fixed time.
fn is_late_bookmark(event: &Value) -> bool {
    event.get("type") == Some(&json!("BOOKMARK")) && event.pointer("/object/metadata/annotations").is_none()
}

/// A displayed age below ten minutes: an object of this test.
fn is_age(text: &str) -> bool {
    let (minutes, seconds) = text.split_once('m').unwrap_or(("0", text));
    let number =
        |text: &str| text.parse::<u64>().ok().filter(|_| text.starts_with(|c: char| c.is_ascii_digit()));
    let seconds = if seconds.is_empty() { Some(0) } else { seconds.strip_suffix('s').and_then(number) };
    let age = number(minutes)
        .zip(seconds)
        .map(|(minutes, seconds)| minutes.saturating_mul(60).saturating_add(seconds));
    text.ends_with(['s', 'm']) && age.is_some_and(|age| age < 600)
}

/// Removes node ports from a Service's column.
fn without_node_ports(text: &str) -> String {
    let port = |port: &str| match port.split_once([':', '/']) {
        Some((inner, rest)) if rest.split('/').next().is_some_and(is_node_port) => {
            let protocol = rest.split_once('/').map_or("", |(_, protocol)| protocol);
            format!("{inner}:PORT/{protocol}")
        }
        _ => port.to_owned(),
    };
    text.split(',').map(port).collect::<Vec<_>>().join(",")
}

fn is_node_port(text: &str) -> bool {
    text.parse().is_ok_and(|port: u32| (30_000..32_768).contains(&port))
}

/// Whether a time belongs to this run and so differs between the sides.
fn is_now(time: jiff::Timestamp) -> bool {
    time.duration_since(jiff::Timestamp::now()).abs() < DAY
}

fn plain(text: &str, name: &str) -> String {
    match name {
        "resourceVersion" if !matches!(text, "" | "0") => return "RV".into(),
        "continue" if !text.is_empty() => return "TOKEN".into(),
        "clusterIP" | "clusterIPs" | "cells" if text.parse::<IpAddr>().is_ok() => return "IP".into(),
        "name" if text.starts_with("gen-") => return "gen-".into(),
        _ => {}
    }
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        // Each store has its own prefix and revisions.
        if word.starts_with('/') && words.last().is_some_and(|last| last == "Key:") {
            words.push("FOLDER".to_owned());
            continue;
        }
        if words.last().is_some_and(|last| last == "record") && word.starts_with('(') && !word.contains('-') {
            words.push("(RV)".to_owned());
            continue;
        }
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let replaced = if bare.starts_with("gen-") {
            word.replace(bare, "gen-")
        } else if bare.parse().is_ok_and(is_now) {
            // Keeps whether the time has fractions.
            word.replace(bare, &format!("T{}", bare.len()))
        } else if bare.parse::<uuid::Uuid>().is_ok() {
            word.replace(bare, "U")
        } else if name == "cells" {
            without_node_ports(word)
        } else {
            word.to_owned()
        };
        words.push(replaced);
    }
    let text = words.join(" ");
    if name != "message" {
        return text;
    }
    message(text)
}

fn message(text: String) -> String {
    let mut text = structures(text);
    // Diffs show internal structures.
    if let (Some(begin), Some(end)) = (text.find("\n@@ "), text.rfind('\n')) {
        text.replace_range(begin..=end, "");
    }
    for (begin, shown) in [
        ("Timeout: Too large resource version", "too large"),
        ("invalid continue token", "invalid token"),
        ("too old resource version: ", "too old"),
        ("error decoding patch: ", "undecodable patch"),
        ("the patch cannot be read", "undecodable patch"),
        ("the object provided is unrecognized", "unrecognized"),
        ("couldn't get version/kind", "unrecognized"),
        ("406: Not Acceptable", "406"),
    ] {
        if text.starts_with(begin) {
            return shown.to_owned();
        }
    }
    if let Some((before, _)) = text.split_once("patch: Invalid value:") {
        return format!("{before} undecodable");
    }
    if text.starts_with("Invalid value: \"{\\\"") {
        return "Invalid value: the patched object".to_owned();
    }
    // Go names the innermost struct and the Go type of each place.
    if let Some((before, _)) = text.split_once("parsing time ") {
        return format!("{before} undecodable");
    }
    if let Some((before, after)) = text.split_once("Go struct field ") {
        let field = after.split_once('.').map_or(after, |(_, field)| field);
        // The message may or may not include the number.
        let before = before
            .split_once(" number ")
            .map_or(before, |(before, _)| before)
            .trim_end_matches("number into ");
        return format!("{before} {}", field.split(" of type ").next().unwrap_or(field));
    }
    // Managers are sorted by second, which can differ between the sides.
    if let Some((head, managers)) =
        text.split_once("conflicts: ").filter(|_| text.starts_with("Apply failed"))
    {
        let mut lines: Vec<&str> = managers.lines().collect();
        lines.sort_unstable();
        return format!("{head}\n{}", lines.join("\n"));
    }
    if let Some((before, list)) = text.split_once("is invalid: [") {
        let mut causes: Vec<&str> = list.trim_end_matches(']').split(", ").collect();
        causes.sort_unstable();
        causes.dedup();
        return format!("{before}is invalid: {}", causes.join(", "));
    }
    text
}

/// Removes displayed internal structures.
fn structures(mut text: String) -> String {
    let mut from = 0;
    while let Some(found) =
        text.get(from..).and_then(|rest| rest.find("value: {").or_else(|| rest.find("value: [{")))
    {
        let begin = from + found + "value: ".len();
        let tail = text.get(begin..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_str(tail).into_iter::<Value>();
        let read = values.next().is_some_and(|value| value.is_ok());
        let length = if read { values.byte_offset() } else { 1 };
        text.replace_range(begin..begin + length, "STRUCTURE");
        from = begin;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cluster_specific_differences_are_ignored() {
        let answer = |revision: &str, value: &str| Answer {
            code: 200,
            media: String::new(),
            body: json!({"metadata": {"resourceVersion": revision, "creationTimestamp": "2026-01-01T00:00:00Z"}, "data": {"a": value}}),
            warnings: Vec::new(),
        };
        assert!(answers(&answer("1", "x"), &answer("7", "x")).is_empty());
        assert_eq!(answers(&answer("1", "x"), &answer("1", "y")), [r#".data.a: "x" and simulated "y""#]);
    }

    #[test]
    fn only_values_of_this_run_are_ignored() {
        let [now, old] = [jiff::Timestamp::now().to_string(), "2020-01-01T00:00:00Z".to_owned()];
        assert_ne!(plain(&now, ""), now);
        assert_eq!(plain(&old, ""), old);
        for (text, age) in [("5s", true), ("2m5s", true), ("9m", true), ("10m", false), ("6y80d", false)] {
            assert_eq!(is_age(text), age, "{text}");
        }
        for text in ["d", "hd", "500m", "s", "m", "", "+5s", "5", "1m5"] {
            assert!(!is_age(text), "{text}");
        }
        assert_eq!([plain("None", "clusterIP"), plain("10.0.0.7", "clusterIP")], ["None", "IP"]);
        assert_eq!(plain("80:31136/TCP,81/UDP", "cells"), "80:PORT/TCP,81/UDP");
        let data = json!({"data": {"ca.crt": "x"}, "metadata": {"name": "a"}});
        assert_eq!(normal(&data, ""), data);
    }
}
