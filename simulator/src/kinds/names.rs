//! What names, keys and values of labels may look like.

use std::sync::LazyLock;

use regex::Regex;

const NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

static PATTERNS: LazyLock<[Option<Regex>; 2]> =
    LazyLock::new(|| [NAME, SUBDOMAIN].map(|pattern| Regex::new(&format!("^({pattern})$")).ok()));

/// Why a label, annotation or finalizer cannot have that key.
pub(crate) fn wrong_label_key(key: &str) -> Option<String> {
    let [named, subdomain] = &*PATTERNS;
    let fits =
        |pattern: &Option<Regex>, text: &str| pattern.as_ref().is_some_and(|regex| regex.is_match(text));
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if prefix.is_some_and(|prefix| prefix.is_empty() || prefix.len() > 253 || !fits(subdomain, prefix)) {
        return Some(format!(
            "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
             and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN}')"
        ));
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 bytes".to_owned());
    }
    (!fits(named, name)).then(|| {
        format!(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
             character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{NAME}')"
        )
    })
}

/// Why a label cannot have that value.
pub(crate) fn wrong_label_value(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    let fits = value.is_empty() || PATTERNS[0].as_ref().is_some_and(|regex| regex.is_match(value));
    (!fits).then(|| {
        format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
             with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '({NAME})?')"
        )
    })
}
