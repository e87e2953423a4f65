//! get and list.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    cluster::Cluster,
    log::Key,
    options,
    refusal::Refusal,
    request::{Answer, Listed, Outcome, Request},
    selector::Selector,
};
use crate::{kinds::Kind, object::Stored, schema::shape};

impl Cluster {
    /// Renders an object in the kind's version.
    pub(super) fn render(kind: &Kind, stored: &Stored) -> Value {
        let mut object = stored.render();
        // Other versions have only their own schema's fields.
        if !kind.is_builtin() && object["apiVersion"] != *kind.api_version() {
            shape::prune(&mut object, kind.schema());
        }
        if let Some(map) = object.as_object_mut() {
            map.insert("apiVersion".into(), kind.api_version().into());
            map.insert("kind".into(), kind.kind.clone().into());
        }
        object
    }

    pub(super) fn show(kind: &Kind, stored: &Stored, metadata_only: bool) -> Value {
        if metadata_only { stored.render_metadata() } else { Self::render(kind, stored) }
    }

    pub(super) fn lookup(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Stored>, Refusal> {
        let key = Self::key(kind, namespace, name);
        self.objects.get(&key).cloned().ok_or_else(|| Refusal::not_found(kind, name))
    }

    pub(super) fn get(&self, kind: &Arc<Kind>, request: &Request) -> Result<Outcome, Refusal> {
        let wanted = Self::parse_revision(&request.query.resource_version)?;
        if wanted > self.revision {
            return Err(Refusal::too_large(wanted, self.revision));
        }
        let stored = self.lookup(kind, &request.target.namespace, &request.target.name)?;
        Ok(Self::answer_with(kind, &stored, 200, Vec::new()))
    }

    pub(super) fn answer_with(
        kind: &Arc<Kind>,
        stored: &Stored,
        code: u16,
        warnings: Vec<String>,
    ) -> Outcome {
        let object = Self::render(kind, stored);
        Outcome::Object(Answer { code, object, warnings, kind: Some(Arc::clone(kind)) })
    }

    /// An empty namespace selects all.
    pub(super) fn range<'a>(
        &'a self,
        kind: &Kind,
        namespace: &str,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> {
        let start = Key { resource: Arc::clone(&kind.storage), namespace: namespace.into(), name: "".into() };
        let (resource, namespace) = (Arc::clone(&kind.storage), namespace.to_owned());
        self.objects.range((Bound::Included(start), Bound::Unbounded)).take_while(move |(key, _)| {
            key.resource == resource && (namespace.is_empty() || *key.namespace == *namespace)
        })
    }

    pub(super) fn parse_revision(text: &str) -> Result<u64, Refusal> {
        if text.is_empty() {
            return Ok(0);
        }
        text.parse().map_err(|_| {
            let message = format!(
                "invalid resource version: resourceVersion: Invalid value: {0}: strconv.ParseUint: parsing {0}: invalid syntax",
                Value::from(text)
            );
            Refusal::bad_request(message)
        })
    }

    pub(super) fn list(&self, kind: &Arc<Kind>, request: &Request) -> Result<Outcome, Refusal> {
        let query = &request.query;
        options::of_list(query)?;
        let selector = Selector::parse(&query.label_selector, &query.field_selector, kind)?;
        let wanted = Self::parse_revision(&query.resource_version)?;
        let given = !query.resource_version.is_empty();
        // Kubernetes' cache has no pages.
        let from_cache = query.resource_version == "0";
        let limit = if from_cache { 0 } else { query.limit };
        let exact = match query.resource_version_match.as_str() {
            "" => wanted > 0 && query.limit > 0,
            matching => matching == "Exact",
        };
        let mut after = None;
        let mut revision = if exact { wanted } else { self.revision };
        if !query.continue_token.is_empty() {
            if given && query.resource_version != "0" {
                return Err(Refusal::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let (at, start) = parse_token(&query.continue_token)?;
            (revision, after) = (at.unwrap_or(self.revision), Some(start));
        }
        if wanted > self.revision || revision > self.revision {
            return Err(Refusal::too_large(wanted.max(revision), self.revision));
        }
        let mut objects: BTreeMap<Key, Arc<Stored>> = BTreeMap::new();
        for (key, stored) in self.range(kind, &request.target.namespace) {
            objects.insert(key.clone(), Arc::clone(stored));
        }
        if revision < self.revision && self.log.rewind(&mut objects, revision, &kind.storage).is_none() {
            return Err(match after {
                Some((namespace, name)) => Refusal::expired_page(token(None, &namespace, &name)),
                None => Refusal::expired("The resourceVersion for the provided list is too old."),
            });
        }
        let namespace = &request.target.namespace;
        objects.retain(|key, _| namespace.is_empty() || *key.namespace == **namespace);
        let mut items = Vec::new();
        let mut next = String::new();
        let mut remaining = None;
        let mut left = objects
            .into_iter()
            .filter(|(key, _)| {
                after.as_ref().is_none_or(|(ns, name)| (&*key.namespace, &*key.name) > (ns, name))
            })
            .peekable();
        let mut last = None;
        while let Some((key, stored)) = left.next() {
            if selector.matches_stored(kind, &stored) {
                items.push(Self::show(kind, &stored, query.metadata_only));
            }
            last = Some(key);
            if limit > 0 && items.len() >= limit && left.peek().is_some() {
                next = last
                    .as_ref()
                    .map(|key| token(Some(revision), &key.namespace, &key.name))
                    .unwrap_or_default();
                remaining = selector.is_empty().then(|| left.count());
                break;
            }
        }
        _ = last;
        Ok(Outcome::List(Listed { items, revision, next, remaining, kind: Arc::clone(kind) }))
    }
}

/// Without a revision, it continues at the current one.
fn token(revision: Option<u64>, namespace: &str, name: &str) -> String {
    let start = format!("{namespace}/{name}\u{0}");
    let revision = revision.map_or(json!(-1), |revision| json!(revision));
    BASE64_URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
}

fn parse_token(token: &str) -> Result<(Option<u64>, (String, String)), Refusal> {
    let wrong = || Refusal::bad_request("invalid continue token: continue key is not valid");
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|_| wrong())?;
    let token: Value = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
    let revision = token.get("rv").and_then(Value::as_i64).ok_or_else(wrong)?;
    let start = token.get("start").and_then(Value::as_str).and_then(|start| start.strip_suffix('\u{0}'));
    let (namespace, name) = start.and_then(|start| start.split_once('/')).ok_or_else(wrong)?;
    Ok((revision.try_into().ok(), (namespace.to_owned(), name.to_owned())))
}
