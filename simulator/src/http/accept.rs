//! In which form a client wants its answer.

use serde_json::Value;

use super::answer::{JSON, YAML};
use crate::object::meta::object;

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is.
    Plain,
    /// For people.
    Table,
    /// Only metadata.
    Metadata,
    /// Only metadata, of a list.
    MetadataList,
    /// Aggregated discovery.
    Discovery,
}

/// The first form in `Accept` that there is, and whether it is to be in YAML; `None`: none of them.
pub(crate) fn negotiate(accept: &str) -> Option<(Form, bool)> {
    if accept.is_empty() {
        return Some((Form::Plain, false));
    }
    accept.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next()?;
        let is_yaml = media == YAML;
        if !is_yaml && !matches!(media, JSON | "*/*" | "application/*" | "text/*" | "text/plain") {
            return None;
        }
        let parameter = |name: &str| {
            range
                .split(';')
                .filter_map(|part| part.trim().split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value)
        };
        let form = match (parameter("as"), parameter("g"), parameter("v")) {
            (None, ..) => Some(Form::Plain),
            (Some("Table"), _, Some("v1" | "v1beta1")) => Some(Form::Table),
            (Some("PartialObjectMetadata"), _, Some("v1")) => Some(Form::Metadata),
            (Some("PartialObjectMetadataList"), _, Some("v1")) => Some(Form::MetadataList),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => Some(Form::Discovery),
            _ => None,
        };
        form.map(|form| (form, is_yaml))
    })
}

/// Only the metadata of an object.
pub(crate) fn metadata_of(mut whole: Value) -> Value {
    let metadata = whole.get_mut("metadata").map(Value::take).unwrap_or_default();
    let (kind, version) = ("PartialObjectMetadata".into(), "meta.k8s.io/v1".into());
    object([("kind", kind), ("apiVersion", version), ("metadata", metadata)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_form_is_taken() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(negotiate(kubectl), Some((Form::Table, false)));
        assert_eq!(
            negotiate(
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
            ),
            Some((Form::Discovery, false))
        );
        let plain = Some((Form::Plain, false));
        assert_eq!(negotiate("application/vnd.kubernetes.protobuf, application/json"), plain);
        assert_eq!(negotiate("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(negotiate("application/yaml;as=Table;v=v1;g=meta.k8s.io"), Some((Form::Table, true)));
        assert_eq!(negotiate(""), plain);
    }
}
