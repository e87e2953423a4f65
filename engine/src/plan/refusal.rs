//! Why an API server refuses a change, as far as its words tell.

/// Parts of the messages of API servers that refuse a change of a field that is set once. There is no code for it: all of them are
/// a 422 with `Invalid`, as is a value that is simply wrong.
const IMMUTABLE: [&str; 9] = [
    "is immutable",
    "may not change once set",
    "cannot change roleRef",
    "updates to statefulset spec for fields other than",
    // Of PriorityClasses, StorageClasses and Pods.
    "may not be changed in an update",
    "updates to parameters are forbidden",
    "updates to provisioner are forbidden",
    "updates to reclaimPolicy are forbidden",
    "pod updates may not change fields other than",
];

/// Whether a change was refused because a field can only be set when the object is made.
#[must_use]
pub fn is_immutable(message: &str) -> bool {
    immutable_words(message).is_some()
}

/// The words of a message that say so.
#[must_use]
pub fn immutable_words(message: &str) -> Option<&'static str> {
    IMMUTABLE.iter().find(|part| message.contains(**part)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_is_not_an_immutable_field() {
        assert!(is_immutable(
            "Deployment.apps \"a\" is invalid: spec.selector: Invalid value: …: field is immutable"
        ));
        assert!(is_immutable("updates to statefulset spec for fields other than 'replicas' are forbidden"));
        assert!(is_immutable("RoleBinding is invalid: roleRef: Invalid value: …: cannot change roleRef"));
        assert!(is_immutable(
            "PriorityClass \"a\" is invalid: value: Forbidden: may not be changed in an update."
        ));
        assert!(is_immutable(
            "StorageClass \"a\" is invalid: parameters: Forbidden: updates to parameters are forbidden."
        ));
        assert!(!is_immutable("Deployment.apps \"a\" is invalid: spec.replicas: must be greater than 0"));
    }
}
