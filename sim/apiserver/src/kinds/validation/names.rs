//! Formats of words and their errors.

use std::net::IpAddr;

use crate::schema::patterns;

const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const ENDS: &str = "and must start and end with an alphanumeric character";

/// Returns errors; empty if valid.
pub(crate) type Format = fn(&str) -> Vec<String>;

fn is(text: &str, pattern: &str) -> bool {
    patterns::compiled(&format!("^(?:{pattern})$")).is_some_and(|regex| regex.is_match(text))
}

fn unlike(about: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{about} (e.g. {}regex used for validation is '{pattern}')", examples.join(" or "))
}

/// `counted` is the unit of `max`.
fn form(text: &str, max: usize, counted: &str, pattern: &str, about: impl FnOnce() -> String) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > max {
        wrong.push(format!("must be no more than {max} {counted}"));
    }
    if !is(text, pattern) {
        wrong.push(about());
    }
    wrong
}

pub(crate) fn subdomain(text: &str) -> Vec<String> {
    form(text, 253, "characters", SUBDOMAIN, || {
        let about =
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.',";
        unlike(&format!("{about} {ENDS}"), SUBDOMAIN, &["example.com"])
    })
}

pub(crate) fn label(text: &str) -> Vec<String> {
    form(text, 63, "characters", LABEL, || {
        let about = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-',";
        unlike(&format!("{about} {ENDS}"), LABEL, &["my-name", "123-abc"])
    })
}

/// A label that is also a host name.
pub(crate) fn host_label(text: &str) -> Vec<String> {
    if text.contains('.') { vec!["must not contain dots".to_owned()] } else { label(text) }
}

pub(crate) fn dns_1035(text: &str) -> Vec<String> {
    form(text, 63, "characters", DNS_1035, || {
        let about = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                     character, and end with an alphanumeric character";
        unlike(about, DNS_1035, &["my-name", "abc-123"])
    })
}

pub(crate) fn label_value(text: &str) -> Vec<String> {
    form(text, 63, "bytes", LABEL_VALUE, || {
        let about =
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.',";
        unlike(&format!("{about} {ENDS}"), LABEL_VALUE, &["MyValue", "my_value", "12345"])
    })
}

/// `name` or `prefix/name`.
pub(crate) fn qualified(text: &str) -> Vec<String> {
    let about = || {
        let about = "must consist of alphanumeric characters, '-', '_' or '.',";
        unlike(&format!("{about} {ENDS}"), QUALIFIED, &["MyName", "my.name", "123-abc"])
    };
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    if name.contains('/') {
        let also = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
        return vec![format!("a valid label key {} {also}", about())];
    }
    let mut wrong = match prefix {
        Some("") => vec!["prefix part must be non-empty".to_owned()],
        Some(prefix) => subdomain(prefix).into_iter().map(|why| format!("prefix part {why}")).collect(),
        None => Vec::new(),
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    }
    wrong.extend(form(name, 63, "bytes", QUALIFIED, about).into_iter().map(|why| format!("name part {why}")));
    wrong
}

pub(crate) fn qualified_lower(text: &str) -> Vec<String> {
    qualified(&text.to_lowercase())
}

pub(crate) fn config_key(text: &str) -> Vec<String> {
    const KEY: &str = "[-._a-zA-Z0-9]+";
    let mut wrong = form(text, 253, "characters", KEY, || {
        let about = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        unlike(about, KEY, &["key.name", "KEY_NAME", "key-name"])
    });
    match text {
        "." | ".." => wrong.push(format!("must not be '{text}'")),
        _ if text.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}

pub(crate) fn variable(text: &str) -> Vec<String> {
    let fits = text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    let about =
        "a valid environment variable name must consist only of printable ASCII characters other than '='";
    if fits { Vec::new() } else { vec![about.to_owned()] }
}

pub(crate) fn port_name(text: &str) -> Vec<String> {
    let all = [
        (text.len() <= 15, "must be no more than 15 characters"),
        (is(text, "[-a-z0-9]+"), "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"),
        (text.bytes().any(|byte| byte.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (!text.contains("--"), "must not contain consecutive hyphens"),
        (!(text.starts_with('-') || text.ends_with('-')), "must not begin or end with a hyphen"),
    ];
    all.iter().filter(|(holds, _)| !holds).map(|(_, why)| (*why).to_owned()).collect()
}

pub(crate) fn header(text: &str) -> Vec<String> {
    const HEADER: &str = "[-A-Za-z0-9]+";
    let about = "a valid HTTP header must consist of alphanumeric characters or '-'";
    if is(text, HEADER) { Vec::new() } else { vec![unlike(about, HEADER, &["X-Header-Name"])] }
}

pub(crate) fn path_segment(text: &str) -> Vec<String> {
    match text {
        "." | ".." => return vec![format!("may not be '{text}'")],
        _ => {}
    }
    ['/', '%']
        .iter()
        .filter(|sign| text.contains(**sign))
        .map(|sign| format!("may not contain '{sign}'"))
        .collect()
}

pub(crate) fn ip(text: &str) -> Vec<String> {
    let wrong = text.parse::<IpAddr>().is_err();
    if wrong {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    } else {
        Vec::new()
    }
}

pub(crate) fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = text.split_once('/')?;
    let (address, length) = (address.parse::<IpAddr>().ok()?, length.parse::<u32>().ok()?);
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, length))
}

/// Left-aligned bits.
pub(crate) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

pub(crate) fn cidr(text: &str) -> Vec<String> {
    let Some((address, length)) = network(text) else {
        return vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()];
    };
    let beyond = bits(address).checked_shl(length).unwrap_or_default() != 0;
    if beyond { vec!["must not have bits set beyond the prefix length".to_owned()] } else { Vec::new() }
}

pub(crate) fn percent(text: &str) -> Vec<String> {
    const PERCENT: &str = "[0-9]+%";
    let about = "a valid percent string must be a numeric string followed by an ending '%'";
    if is(text, PERCENT) { Vec::new() } else { vec![unlike(about, PERCENT, &["1%", "93%"])] }
}

/// Stays in its directory.
pub(crate) fn relative_path(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.starts_with('/') {
        wrong.push("must be a relative path".to_owned());
    }
    wrong.extend(no_way_up(text));
    wrong
}

/// Relative; must not start with `..`.
pub(crate) fn file_path(text: &str) -> Vec<String> {
    let mut wrong = relative_path(text);
    if text.starts_with("..") && !text.starts_with("../") && text != ".." {
        wrong.push("must not start with '..'".to_owned());
    }
    wrong
}

pub(crate) fn no_way_up(text: &str) -> Vec<String> {
    let up = text.split('/').any(|step| step == "..");
    if up { vec!["must not contain '..'".to_owned()] } else { Vec::new() }
}

/// Unqualified finalizers must be Kubernetes' own.
pub(crate) fn finalizer(text: &str) -> Vec<String> {
    let known = ["kubernetes", "orphan", "foregroundDeletion"].contains(&text) || text.contains('/');
    let about = "name is neither a standard finalizer name nor is it fully qualified";
    if known { Vec::new() } else { vec![about.to_owned()] }
}

/// A DNS label in any case.
pub(crate) fn kind(name: &str) -> Vec<String> {
    let wrong = dns_1035(&name.to_lowercase());
    wrong.iter().map(|why| format!("may have mixed case, but should otherwise match: {why}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_format_accepts_only_its_own_words() {
        let table: [(Format, &[&str], &[&str]); 8] = [
            (subdomain, &["a", "a.b-c", "1"], &["A", "", "a..b", "-a"]),
            (label, &["a-b"], &["a.b", "A"]),
            (qualified, &["a", "A_b", "x.y/A_b"], &["", "a b", "/a", "a/", "X.y/a"]),
            (port_name, &["http", "a-1"], &["1", "A", "a--b", "-a", "abcdefghijklmnop"]),
            (config_key, &[".a", "a-b_c"], &["", "..", "..a", "a/b"]),
            (cidr, &["10.0.0.0/8", "fd00::/8", "0.0.0.0/0"], &["10.0.0.1/8", "10.0.0.0/33", "x", "10.0.0.0"]),
            (percent, &["0%", "150%"], &["5", "-5%", "%"]),
            (file_path, &["a/b", "a..b"], &["/a", "a/../b", "..a"]),
        ];
        for (form, good, bad) in table {
            assert!(good.iter().all(|word| form(word).is_empty()), "{good:?}");
            assert!(bad.iter().all(|word| !form(word).is_empty()), "{bad:?}");
        }
    }
}
