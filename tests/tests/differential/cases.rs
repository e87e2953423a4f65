//! Calls as text: one object that is right, and a line for each thing that is wrong with it.
//!
//! ```text
//! POST /api/v1/namespaces/fixed/configmaps {"metadata": {"name": "a"}}
//!   .                                  the object as it is
//!   /metadata/name "A" -/data /x b*9   with other values, without one, and with a text of nine letters
//! ```
//! Lines that begin with `{` or a name go on with the object. `MERGE`, `STRATEGIC`, `JSON` and `APPLY` are patches, `TABLE` is a GET for people,
//! `WAIT` one that is made until both sides have what it asks for, and `MAKE` a POST of which only the code has to be the same.
//! A line that ends with `=> 201` is one that both sides answer differently, the simulated one with this code.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use tidewatch_tests::wait;

use crate::{
    compare,
    pair::{APPLY, Call, JSON_PATCH, MERGE, Memory, Pair, STRATEGIC, TABLE, one},
    prepare::prepare,
};

const NAMESPACE: &str = "cases";
const LONG: Duration = Duration::from_secs(30);

const WAIT: &str = "WAIT";
const MADE: &str = "made";

macro_rules! texts {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("cases/", $name, ".txt")))),*] };
}

/// All texts by topic.
const TEXTS: &[(&str, &str)] = texts![
    "metadata",
    "owners",
    "versions",
    "formats",
    "embedded",
    "lists",
    "crds",
    "pods",
    "workloads",
    "services",
    "core",
    "access",
    "policies",
    "certificates",
    "webhooks",
    "changes",
    "tables",
    "times",
    "zeros",
    "forms",
    "options",
    "scale",
    "known",
    "deletions",
    "selectors",
];
/// Runs all calls and returns the differences.
pub(crate) async fn run(pair: &Pair) -> Result<Vec<String>> {
    prepare(pair, NAMESPACE, "cases.example.org").await?;
    let mut found = Vec::new();
    for (theme, text) in TEXTS {
        let calls = parse(text).with_context(|| (*theme).to_owned())?;
        for Line { text: line, call, code } in &calls {
            if call.method == WAIT {
                ready(pair, &call.path).await?;
                continue;
            }
            if let Some(code) = code {
                found.extend(
                    known(pair, call, *code)
                        .await?
                        .map(|why| format!("{theme}: {} {}: {line} {why}", call.method, call.path)),
                );
                continue;
            }
            let differences = pair.call(call, &mut Default::default()).await?;
            // `MAKE` compares only the code.
            if call.save == MADE && !differences.iter().any(|found| found.contains("code: ")) {
                continue;
            }
            // The text already shows the object.
            let answers = differences
                .iter()
                .map(|found| found.split_once('\n').map_or(&**found, |(_, found)| found.trim()));
            found.extend(
                answers.map(|found| format!("{theme}: {} {}: {line}\n    {found}", call.method, call.path)),
            );
        }
        say!("{theme}: {} calls", calls.len());
    }
    Ok(found)
}

/// Returns unexpected results of a known difference.
async fn known(pair: &Pair, call: &Call, code: u16) -> Result<Option<String>> {
    let real = one(&pair.real, call, &mut Memory::default()).await?;
    let simulated = one(&pair.simulated, call, &mut Memory::default()).await?;
    if simulated.code != code {
        return Ok(Some(format!("is answered with {}: {}", simulated.code, simulated.body)));
    }
    Ok(compare::answers(&real, &simulated).is_empty().then(|| "is alike by now".to_owned()))
}

/// Waits until both sides serve a path.
async fn ready(pair: &Pair, path: &str) -> Result<()> {
    wait::until("both servers to serve a kind", LONG, || async {
        let call = Call::get(path);
        let real = one(&pair.real, &call, &mut Memory::default()).await?;
        let simulated = one(&pair.simulated, &call, &mut Memory::default()).await?;
        Ok((real.code == 200 && simulated.code == 200).then_some(()))
    })
    .await
}

/// Shared parts of the calls under a heading.
struct Heading<'a> {
    method: &'a str,
    path: &'a str,
    object: String,
    lines: Vec<&'a str>,
}

struct Line<'a> {
    text: &'a str,
    call: Call,
    /// The simulator's code for a known difference.
    code: Option<u16>,
}

/// Splits a line and its expected code.
fn known_code(line: &str) -> Result<(&str, Option<u16>)> {
    match line.rsplit_once("=> ") {
        Some((line, code)) => Ok((line.trim_end(), Some(code.parse()?))),
        None => Ok((line, None)),
    }
}

fn parse(text: &str) -> Result<Vec<Line<'_>>> {
    let mut headings: Vec<Heading<'_>> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let trimmed = line.trim();
        match headings.last_mut() {
            Some(heading) if line.starts_with(' ') && trimmed.starts_with(['{', '"']) => {
                heading.object.push_str(trimmed);
            }
            Some(heading) if line.starts_with(' ') => heading.lines.push(trimmed),
            _ => {
                let mut words = trimmed.splitn(3, ' ');
                let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                let object = words.next().unwrap_or_default().to_owned();
                headings.push(Heading { method, path, object, lines: Vec::new() });
            }
        }
    }
    let mut calls = Vec::new();
    for Heading { method, path, object, lines } in headings {
        let (object, code) = known_code(&object)?;
        let base = if object.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(object).with_context(|| object.to_owned())?
        };
        if lines.is_empty() {
            calls.push(Line { text: "", call: call(method, path, base)?, code });
            continue;
        }
        for line in lines {
            let (text, code) = known_code(line)?;
            let object = changed(base.clone(), text).with_context(|| format!("{path}: {line}"))?;
            calls.push(Line { text, call: call(method, path, object)?, code });
        }
    }
    Ok(calls)
}

fn call(method: &str, path: &str, body: Value) -> Result<Call> {
    Ok(match method {
        "POST" => Call::new("POST", path, body),
        "PUT" => Call::new("PUT", path, body),
        "DELETE" => Call::new("DELETE", path, body),
        "GET" => Call::get(path),
        "MAKE" => Call::new("POST", path, body).saved(MADE),
        WAIT => Call::new(WAIT, path, body),
        "TABLE" => Call::get(path).accepting(TABLE),
        "MERGE" => Call::patch(MERGE, path, body),
        "STRATEGIC" => Call::patch(STRATEGIC, path, body),
        "JSON" => Call::patch(JSON_PATCH, path, body),
        "APPLY" => Call::patch(APPLY, path, body),
        other => bail!("there is no method {other}"),
    })
}

/// Applies a line's changes to the object.
fn changed(mut object: Value, line: &str) -> Result<Value> {
    let mut rest = line;
    while !rest.is_empty() && rest != "." {
        let (pointer, after) = rest.split_once(' ').unwrap_or((rest, ""));
        if let Some(pointer) = pointer.strip_prefix('-') {
            remove(&mut object, pointer);
            rest = after.trim_start();
            continue;
        }
        let (value, after) = value(after.trim_start())?;
        *at(&mut object, pointer)? = value;
        rest = after.trim_start();
    }
    Ok(object)
}

/// Returns a text's leading value and the rest.
fn value(text: &str) -> Result<(Value, &str)> {
    let word = text.split(' ').next().unwrap_or_default();
    if let Some((letters, times)) = word.split_once('*').filter(|_| !word.starts_with(['"', '{', '['])) {
        return Ok((json!(letters.repeat(times.parse()?)), text.strip_prefix(word).unwrap_or_default()));
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = values.next().context("a value is missing")??;
    Ok((value, text.get(values.byte_offset()..).unwrap_or_default()))
}

/// Returns the place of a pointer, created if absent.
fn at<'a>(object: &'a mut Value, pointer: &str) -> Result<&'a mut Value> {
    let mut here = object;
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        here = match here {
            Value::Array(items) => {
                let index = step.parse::<usize>().unwrap_or(items.len());
                if index >= items.len() {
                    items.push(Value::Null);
                }
                let last = items.len() - 1;
                items.get_mut(index.min(last)).context("no such item")?
            }
            other => {
                if !other.is_object() {
                    *other = Value::Object(Map::new());
                }
                other.as_object_mut().context("no object")?.entry(step).or_insert(Value::Null)
            }
        };
    }
    Ok(here)
}

fn remove(object: &mut Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return };
    match object.pointer_mut(parent) {
        Some(Value::Object(map)) => _ = map.remove(&name.replace("~1", "/")),
        Some(Value::Array(items)) => {
            if let Some(index) = name.parse().ok().filter(|index| *index < items.len()) {
                items.remove(index);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_line_changes_an_object() -> Result<()> {
        let changed = changed(json!({"a": {"b": 1}, "l": [1]}), "/a/b {\"x\": 2} -/a/c /l/1 q*3 /n/m null")?;
        assert_eq!(changed, json!({"a": {"b": {"x": 2}}, "l": [1, "qqq"], "n": {"m": null}}));
        let lines = parse("POST /x {\"a\": 1}\n  .\n  /a 2 => 422\n\nPOST /y {} => 201\nGET /y")?;
        let codes: Vec<Option<u16>> = lines.iter().map(|line| line.code).collect();
        assert_eq!(codes, [None, Some(422), Some(201), None]);
        Ok(())
    }
}
