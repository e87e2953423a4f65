//! `CertificateSigningRequests`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    names,
    rule::{Field, Rule},
    values::texts,
};
use crate::{
    json::{list, text},
    kinds::certificates,
    schema::cause::Cause,
};

const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
const FAILED: &str = "Failed";
/// Not served by `v1`.
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
/// Bytes.
const MAX_DOMAIN: usize = 253;
/// Bytes: a domain, and a path of a label and a subdomain.
const MAX_SIGNER_NAME: usize = MAX_DOMAIN + 1 + 63 + 1 + 253;

pub(super) const REQUEST: [Field; 9] = [
    ("spec!", Rule::Check(request)),
    ("spec!.usages", Rule::Need("")),
    ("spec!.usages[]", Rule::Only(&USAGES)),
    ("spec!.usages", Rule::Check(once)),
    ("spec!.signerName", Rule::Need("")),
    ("spec!.signerName", Rule::Check(signer)),
    (
        "spec!.expirationSeconds",
        Rule::AtLeast(600, "may not specify a duration less than 600 seconds (10 minutes)"),
    ),
    ("status.conditions", Rule::Check(conditions)),
    ("status.certificate", Rule::Check(certificate)),
];

/// Sorted, as in messages.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn request(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    if let Err(why) = certificates::organizations(&spec["request"]) {
        causes.push(Cause::invalid(&format!("{path}.request"), &spec["request"], &why));
    }
}

fn once(usages: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, usage) in texts(usages).enumerate() {
        if !seen.insert(usage) {
            causes.push(Cause::duplicate(&format!("{path}[{index}]"), &usage.into()));
        }
    }
}

/// `domain/path`. Each part is reported alone.
fn signer(name: &Value, path: &str, causes: &mut Vec<Cause>) {
    let name = name.as_str().unwrap_or_default();
    if name.is_empty() {
        return;
    }
    let mut invalid = |part: &str, why: &str| causes.push(Cause::invalid(path, &part.into(), why));
    if name == LEGACY_SIGNER {
        return invalid(name, "the legacy signerName is not allowed via this API version");
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return invalid(name, why);
    };
    let parts: [(&str, names::Format); 2] = [(domain, names::label), (rest, names::subdomain)];
    for (part, form) in parts {
        let wrong = part.split('.').map(|label| (label, form(label))).find(|(_, wrong)| !wrong.is_empty());
        for (label, why) in wrong.iter().flat_map(|(label, all)| all.iter().map(move |why| (label, why))) {
            invalid(part, &format!("validating label {label:?}: {why}"));
        }
    }
    if !domain.contains('.') {
        invalid(domain, "should be a domain with at least two segments separated by dots");
    }
    for (text, max) in [(domain, MAX_DOMAIN), (name, MAX_SIGNER_NAME)] {
        if text.len() > max {
            causes.push(Cause::too_long(path, max));
        }
    }
}

fn conditions(conditions: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, condition) in list(conditions).iter().enumerate() {
        let at = |field: &str| format!("{path}[{index}].{field}");
        let (kind, status) = (text(condition, "type"), text(condition, "status"));
        if kind.is_empty() {
            causes.push(Cause::required(&at("type"), ""));
        }
        let is_final = [APPROVED, DENIED, FAILED].contains(&kind);
        let allowed: &[&str] = if is_final { &["True"] } else { &["False", "True", "Unknown"] };
        if status.is_empty() {
            causes.push(Cause::required(&at("status"), ""));
        } else if !allowed.contains(&status) {
            causes.push(Cause::unsupported(&at("status"), &status.into(), allowed));
        }
        let opposite = if kind == APPROVED { DENIED } else { APPROVED };
        if [APPROVED, DENIED].contains(&kind) && seen.contains(opposite) {
            let why = "Approved and Denied conditions are mutually exclusive";
            causes.push(Cause::invalid(path, &json!(kind), why));
        }
        if !seen.insert(kind) {
            causes.push(Cause::duplicate(&at("type"), &json!(kind)));
        }
    }
}

fn certificate(certificate: &Value, path: &str, causes: &mut Vec<Cause>) {
    if let Err(why) = certificates::check(certificate) {
        causes.push(Cause::invalid(path, &"<certificate data>".into(), &why));
    }
}

/// Checks a change of the status. Paths other than `/approval` keep the decision.
pub(crate) fn change(before: &Value, after: &Value, subresource: &str, causes: &mut Vec<Cause>) {
    let count = |status: &Value, kind: &str| {
        list(&status["conditions"]).iter().filter(|condition| text(condition, "type") == kind).count()
    };
    let mut forbid = |change: &str, kind: &str| {
        let why = format!("updates may not {change} a condition of type {kind:?}");
        causes.push(Cause::forbidden("status.conditions", &why));
    };
    for kind in [APPROVED, DENIED, FAILED] {
        let (had, has) = (count(before, kind), count(after, kind));
        if has < had {
            forbid("remove", kind);
        }
        if has > had && kind != FAILED && subresource != "approval" {
            forbid("add", kind);
        }
    }
    let had = text(before, "certificate");
    if !had.is_empty() && had != text(after, "certificate") {
        causes.push(Cause::forbidden(
            "status.certificate",
            "updates may not modify existing certificate content",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: fn(&Value, &str, &mut Vec<Cause>), value: &Value) -> Vec<String> {
        let mut causes = Vec::new();
        check(value, "x", &mut causes);
        causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    #[test]
    fn a_signer_name_is_a_domain_and_a_path() {
        for good in ["example.com/a", "kubernetes.io/kube-apiserver-client", "a.b/c.d-e"] {
            assert_eq!(found(signer, &json!(good)), [""; 0], "{good}");
        }
        for bad in ["a", "a.b", "a.b/", "/a", "a/b", "a.b/c/d", "A.b/c", "a.b/C", "a..b/c", LEGACY_SIGNER] {
            assert!(!found(signer, &json!(bad)).is_empty(), "{bad}");
        }
        assert!(!found(signer, &json!(format!("a.{}/b", "b.".repeat(130) + "b"))).is_empty());
        assert_eq!(
            found(signer, &json!("a/b")),
            ["x: Invalid value: \"a\": should be a domain with at least two segments separated by dots"]
        );
    }

    #[test]
    fn conditions_are_unique_and_decisions_are_true() {
        let of = |list: &[(&str, &str)]| {
            let list: Vec<Value> =
                list.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
            found(conditions, &list.into())
        };
        assert_eq!(of(&[(APPROVED, "True"), (FAILED, "True"), ("Other", "Unknown")]), [""; 0]);
        assert_eq!(
            of(&[(APPROVED, "False")]),
            ["x[0].status: Unsupported value: \"False\": supported values: \"True\""]
        );
        assert_eq!(
            of(&[(DENIED, "True"), (APPROVED, "True")]),
            ["x: Invalid value: \"Approved\": Approved and Denied conditions are mutually exclusive"]
        );
        assert_eq!(of(&[("A", "True"), ("A", "True")]), ["x[1].type: Duplicate value: \"A\""]);
        assert_eq!(of(&[("", "")]), ["x[0].type: Required value", "x[0].status: Required value"]);
    }
}
