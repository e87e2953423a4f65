//! Counts answered requests for tests.

use std::{collections::BTreeMap, fmt::Write as _};

use parking_lot::Mutex;

use crate::store::{PatchKind, Request, Verb};

/// Later series are ignored. Expected: some 30 kinds with ten verbs.
const MAX_SERIES: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct RequestTotals(Mutex<BTreeMap<Series, u64>>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    verb: &'static str,
    group: String,
    resource: String,
    subresource: String,
}

impl RequestTotals {
    pub(super) fn count(&self, request: &Request) {
        let target = &request.target;
        let series = Series {
            verb: verb(&request.verb),
            group: target.group.clone(),
            resource: target.resource.clone(),
            subresource: target.subresource.clone(),
        };
        let mut totals = self.0.lock();
        if totals.len() < MAX_SERIES || totals.contains_key(&series) {
            *totals.entry(series).or_default() += 1;
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = "# TYPE apiserver_request_total counter\n".to_owned();
        for (Series { verb, group, resource, subresource }, count) in self.0.lock().iter() {
            let _ = writeln!(
                text,
                "apiserver_request_total{{group=\"{group}\",resource=\"{resource}\",\
                 subresource=\"{subresource}\",verb=\"{verb}\"}} {count}"
            );
        }
        text
    }
}

/// Kube-apiserver's label.
const fn verb(verb: &Verb) -> &'static str {
    match verb {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create(_) => "POST",
        Verb::Update(_) => "PUT",
        Verb::Patch(PatchKind::Apply, _) => "APPLY",
        Verb::Patch(..) => "PATCH",
        Verb::Delete(_) => "DELETE",
        Verb::DeleteCollection(_) => "DELETECOLLECTION",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::{
        authz::User,
        store::{Query, Target},
    };

    #[test]
    fn requests_are_counted_by_verb_and_resource() {
        let totals = RequestTotals::default();
        let request = |verb| Request {
            user: Arc::new(User::admin("admin")),
            agent: String::new(),
            verb,
            target: Target { version: "v1".into(), resource: "configmaps".into(), ..Target::default() },
            query: Query::default(),
        };
        let apply = || request(Verb::Patch(PatchKind::Apply, Value::Null));
        for request in [apply(), apply(), request(Verb::Get)] {
            totals.count(&request);
        }
        let line = |verb: &str, count| {
            format!("{{group=\"\",resource=\"configmaps\",subresource=\"\",verb=\"{verb}\"}} {count}\n")
        };
        let text = totals.text();
        assert!(text.contains(&line("APPLY", 2)) && text.contains(&line("GET", 1)), "{text}");
    }
}
