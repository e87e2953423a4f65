//! Requests for compacted history.

use anyhow::Result;
use serde_json::json;

use crate::pair::{Call, Memory, Pair};

const MAPS: &str = "/api/v1/namespaces/fixed/configmaps";

/// Compacts both stores and returns differences. Must run last among requests for history.
pub(crate) async fn run(pair: &mut Pair) -> Result<Vec<String>> {
    let mut memories = (Memory::default(), Memory::default());
    let mut found = Vec::new();
    let map = |name: &str| Call::new("POST", MAPS, json!({"metadata": {"name": name}}));
    let before = [
        map("expired-a"),
        map("expired-b"),
        Call::get(format!("{MAPS}?limit=1")).saved("page"),
        map("expired-c"),
        map("expired-d").saved("last"),
    ];
    for call in &before {
        found.extend(pair.call(call, &mut memories).await?);
    }
    pair.forget("last", &memories).await?;
    let after = [
        Call::get(format!("{MAPS}?limit=1&continue={{page.next}}")).saved("rest"),
        Call::get(format!("{MAPS}?limit=1&continue={{rest.next}}")),
        Call::get(format!("{MAPS}?limit=1&resourceVersion={{page.rv}}&resourceVersionMatch=Exact")),
        Call::get(format!(
            "{MAPS}?resourceVersion={{page.rv}}&resourceVersionMatch=NotOlderThan&labelSelector=nobody"
        )),
        Call::get(format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={{page.rv}}")),
    ];
    for call in &after {
        found.extend(pair.call(call, &mut memories).await?);
    }
    say!("expired: {} calls", before.len() + after.len());
    Ok(found.into_iter().map(|line| format!("expired: {line}")).collect())
}
