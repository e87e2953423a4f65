//! Schemas of Kubernetes' own types, with their API validation. Those of `k8s-openapi` have names and types only.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Channel names: lower-case letters.
pub(crate) const CHANNEL: &str = "^[a-z]+$";
/// Module names: words of three or more lower-case letters; may be empty.
pub(crate) const MODULE_NAME: &str = "^([a-z]{3,}(-[a-z]{3,})*)?$";
/// Whether the CRDs accept `name` as a non-empty module name: the pattern `MODULE_NAME`, at most 64 bytes.
pub fn is_module_name(name: &str) -> bool {
    let is_word = |word: &str| word.len() >= 3 && word.bytes().all(|b| b.is_ascii_lowercase());
    name.len() <= 64 && name.split('-').all(is_word)
}

/// Module versions: a semantic version with at most one pre-release word; may be empty.
pub(crate) const MODULE_VERSION: &str =
    r"^((0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[a-zA-Z-][0-9a-zA-Z-]*)?)?$";

/// `[]Condition`: one per type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "description": "One aspect of the state of the object.",
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "Time of the last change of the status.",
                    "type": "string",
                    "format": "date-time",
                },
                "message": {
                    "description": "Details for display; may be empty.",
                    "type": "string",
                    "maxLength": 32768,
                },
                "observedGeneration": {
                    "description": "metadata.generation that the condition describes.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "reason": {
                    "description": "Reason in one CamelCase word, for programs.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "status": {
                    "description": "True, False or Unknown.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "type": {
                    "description": "Aspect in CamelCase, with or without a DNS prefix.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": concat!(
                        r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
                        r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
                    ),
                },
            },
        },
    })
}

/// `LabelSelector`: server-side apply replaces it as a whole.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchExpressions": {
                "description": "Requirements on labels; all must hold.",
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "description": "Label key.", "type": "string" },
                        "operator": {
                            "description": "In, NotIn, Exists or DoesNotExist.",
                            "type": "string",
                        },
                        "values": {
                            "description": "Values for In and NotIn; empty for the others.",
                            "type": "array",
                            "x-kubernetes-list-type": "atomic",
                            "items": { "type": "string" },
                        },
                    },
                },
            },
            "matchLabels": {
                "description": "Labels with their exact values; all must match.",
                "type": "object",
                "additionalProperties": { "type": "string" },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_follow_the_pattern() {
        assert_eq!(MODULE_NAME, "^([a-z]{3,}(-[a-z]{3,})*)?$", "is_module_name has to follow");
        let longest = "a".repeat(64);
        for name in ["api-gateway", "btp-operator", "abc", &longest] {
            assert!(is_module_name(name), "{name}");
        }
        let longer = "a".repeat(65);
        for name in ["", "s3", "k8s-lib", "ab", "abc-", "-abc", "Abc", "abc_def", "abc--def", &longer] {
            assert!(!is_module_name(name), "{name}");
        }
    }
}
