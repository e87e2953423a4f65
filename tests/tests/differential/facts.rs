//! Compares the simulator's table of list types and merge keys with the published schema.

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::pair::{Call, Memory, Pair, one};

const KEYWORDS: [&str; 5] = [
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
];

pub(crate) async fn compare(pair: &Pair) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let index = one(&pair.simulated, &Call::get("/openapi/v3"), &mut Memory::default()).await?.body;
    let paths = index.get("paths").and_then(Value::as_object).context("no OpenAPI")?;
    let mut compared = 0;
    for path in paths.keys() {
        let call = Call::get(format!("/openapi/v3/{path}"));
        let real = one(&pair.real, &call, &mut Memory::default()).await?.body;
        let simulated = one(&pair.simulated, &call, &mut Memory::default()).await?.body;
        let (real, simulated) = (schemas(&real), schemas(&simulated));
        for (name, schema) in &simulated {
            let Some(theirs) = real.get(name) else { continue };
            compared += 1;
            place(theirs, schema, name, &mut found);
            let fields = |schema: &Value| {
                schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default()
            };
            let ours = fields(schema);
            for (field, value) in fields(theirs) {
                match ours.get(&field) {
                    Some(mine) => place(&value, mine, &format!("{name}.{field}"), &mut found),
                    None => found.push(format!("{name}.{field}: simulated lacks it")),
                }
            }
        }
    }
    say!("{compared} schemas have the same lists, maps and merge keys");
    Ok(found)
}

fn schemas(document: &Value) -> Map<String, Value> {
    document.pointer("/components/schemas").and_then(Value::as_object).cloned().unwrap_or_default()
}

fn place(real: &Value, simulated: &Value, at: &str, found: &mut Vec<String>) {
    for keyword in KEYWORDS {
        let (real, simulated) = (real.get(keyword), simulated.get(keyword));
        if real != simulated {
            found.push(format!("{at}: {keyword} is {real:?} and simulated {simulated:?}"));
        }
    }
}
