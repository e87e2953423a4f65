//! get and list.

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    log::Key,
    options,
    refusal::Refusal,
    render::show,
    request::{Listed, Outcome, Request, answer_with},
    selector::Selector,
    state::State,
    target::ListOptions,
};
use crate::{kinds::Kind, object::Stored};

pub(super) fn get(state: &State, kind: &Arc<Kind>, request: &Request) -> Result<Outcome, Refusal> {
    let wanted = options::revision(&request.query.list.resource_version)?;
    if wanted > state.objects.revision() {
        return Err(Refusal::too_large(wanted, state.objects.revision()));
    }
    let stored = state.objects.lookup(kind, &request.target.namespace, &request.target.name)?;
    Ok(answer_with(kind, &stored, 200, Vec::new()))
}

pub(super) fn list(state: &State, kind: &Arc<Kind>, request: &Request) -> Result<Outcome, Refusal> {
    let query = &request.query;
    options::of_list(query)?;
    let selector = Selector::parse(&query.list.label_selector, &query.list.field_selector, kind)?;
    let start = Start::of(&query.list, state.objects.revision())?;
    // Kubernetes' cache has no pages.
    let from_cache = query.list.resource_version == "0";
    let limit = if from_cache { 0 } else { query.list.limit };
    let mut items = Vec::new();
    let mut next = String::new();
    let mut remaining = None;
    let mut objects = objects_at(state, kind, &request.target.namespace, &start)?.into_iter().peekable();
    while let Some((key, stored)) = objects.next() {
        if selector.matches_stored(kind, &stored) {
            items.push(show(kind, &stored, query.metadata_only));
        }
        if limit > 0 && items.len() >= limit && objects.peek().is_some() {
            next = token(Some(start.revision), &key.namespace, &key.name);
            remaining = selector.is_empty().then(|| objects.count());
            break;
        }
    }
    Ok(Outcome::List(Listed { items, revision: start.revision, next, remaining, kind: Arc::clone(kind) }))
}

/// First object and revision of a list page.
struct Start {
    revision: u64,
    after: Option<Position>,
}

/// Namespace and name of the last object of a page.
struct Position {
    namespace: String,
    name: String,
}

impl Start {
    /// `current`: the cluster's revision.
    fn of(options: &ListOptions, current: u64) -> Result<Self, Refusal> {
        let wanted = options::revision(&options.resource_version)?;
        let exact = match options.resource_version_match.as_str() {
            "" => wanted > 0 && options.limit > 0,
            matching => matching == "Exact",
        };
        let mut start = Self { revision: if exact { wanted } else { current }, after: None };
        if !options.continue_token.is_empty() {
            if !matches!(options.resource_version.as_str(), "" | "0") {
                return Err(Refusal::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            start = parse_token(&options.continue_token, current)?;
        }
        if wanted.max(start.revision) > current {
            return Err(Refusal::too_large(wanted.max(start.revision), current));
        }
        Ok(start)
    }
}

/// Objects from the start on, as of its revision.
fn objects_at(
    state: &State,
    kind: &Kind,
    namespace: &str,
    start: &Start,
) -> Result<BTreeMap<Key, Arc<Stored>>, Refusal> {
    let all = state.objects.range(kind, namespace);
    let mut objects: BTreeMap<Key, Arc<Stored>> =
        all.map(|(key, stored)| (key.clone(), Arc::clone(stored))).collect();
    let log = state.objects.log();
    if start.revision < state.objects.revision()
        && log.rewind(&mut objects, start.revision, &kind.storage).is_none()
    {
        return Err(match &start.after {
            Some(Position { namespace, name }) => Refusal::expired_page(token(None, namespace, name)),
            None => Refusal::expired("The resourceVersion for the provided list is too old."),
        });
    }
    objects.retain(|key, _| {
        let is_later = |after: &Position| (&*key.namespace, &*key.name) > (&*after.namespace, &*after.name);
        (namespace.is_empty() || *key.namespace == *namespace) && start.after.as_ref().is_none_or(is_later)
    });
    Ok(objects)
}

/// Without a revision, it continues at the current one.
fn token(revision: Option<u64>, namespace: &str, name: &str) -> String {
    let start = format!("{namespace}/{name}\u{0}");
    let revision = revision.map_or(json!(-1), |revision| json!(revision));
    BASE64_URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
}

fn parse_token(token: &str, current: u64) -> Result<Start, Refusal> {
    let wrong = || Refusal::bad_request("invalid continue token: continue key is not valid");
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|_| wrong())?;
    let token: Value = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
    let revision = token.get("rv").and_then(Value::as_i64).ok_or_else(wrong)?;
    let start = token.get("start").and_then(Value::as_str).and_then(|start| start.strip_suffix('\u{0}'));
    let (namespace, name) = start.and_then(|start| start.split_once('/')).ok_or_else(wrong)?;
    let after = Position { namespace: namespace.to_owned(), name: name.to_owned() };
    Ok(Start { revision: revision.try_into().unwrap_or(current), after: Some(after) })
}
