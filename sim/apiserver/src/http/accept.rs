//! Content negotiation.

pub(crate) const JSON: &str = "application/json";
pub(crate) const YAML: &str = "application/yaml";

/// API group of the generic forms.
const META: &str = "meta.k8s.io";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) form: Form,
    /// `apiVersion` of a generic form.
    pub(crate) version: &'static str,
    pub(crate) is_yaml: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Plain,
    Table,
    /// Metadata of one object.
    Metadata,
    MetadataList,
    Discovery,
}

/// The first supported form in `Accept`.
pub(crate) fn negotiate(accept: &str) -> Option<Accepted> {
    if accept.is_empty() {
        return Some(Accepted { form: Form::Plain, version: "", is_yaml: false });
    }
    accept.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next()?;
        let is_yaml = media == YAML;
        if !is_yaml && !matches!(media, JSON | "*/*") {
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
            (Some("Table"), Some(META), Some("v1" | "v1beta1")) => Some(Form::Table),
            (Some("PartialObjectMetadata"), Some(META), Some("v1" | "v1beta1")) => Some(Form::Metadata),
            (Some("PartialObjectMetadataList"), Some(META), Some("v1" | "v1beta1")) => {
                Some(Form::MetadataList)
            }
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => Some(Form::Discovery),
            _ => None,
        };
        let version =
            if parameter("v") == Some("v1beta1") { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" };
        form.map(|form| Accepted { form, version, is_yaml })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_media_type_wins() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let of = |accept| negotiate(accept).map(|accepted| (accepted.form, accepted.is_yaml));
        assert_eq!(of(kubectl), Some((Form::Table, false)));
        assert_eq!(
            of("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"),
            Some((Form::Discovery, false))
        );
        let plain = Some((Form::Plain, false));
        assert_eq!(of("application/vnd.kubernetes.protobuf, application/json"), plain);
        assert_eq!(of("application/yaml;as=Table;v=v1;g=meta.k8s.io"), Some((Form::Table, true)));
        assert_eq!(of(""), plain);
        for none in ["application/vnd.kubernetes.protobuf", "application/*", "application/json;as=Table;v=v1"]
        {
            assert_eq!(of(none), None);
        }
    }
}
