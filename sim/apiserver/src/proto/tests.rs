use proptest::prelude::*;
use serde_json::json;

use super::*;

fn varint(mut number: usize) -> Vec<u8> {
    let mut written = Vec::new();
    while number >= 0x80 {
        written.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    written.push(u8::try_from(number).unwrap());
    written
}

fn field(number: usize, bytes: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(bytes.len()), bytes.to_vec()].concat()
}

fn number(number: usize, value: usize) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let about = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), field(1, &about), field(2, raw)].concat()
}

fn decoded(version: &str, kind: &str, fields: &[Vec<u8>]) -> Value {
    object(&envelope(version, kind, &fields.concat()), "", "").unwrap()
}

#[test]
fn a_protobuf_message_decodes_to_its_json() {
    let metadata = [field(1, b"a"), field(3, b""), field(8, &number(1, 60)), number(10, 0)].concat();
    let data = [field(1, b"k"), field(2, &[0xff, 0])].concat();
    assert_eq!(
        decoded("v1", "Secret", &[field(1, &metadata), field(2, &data), field(3, b"Opaque"), number(5, 0)]),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"k": "/wA="}, "immutable": false,
               "metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:01:00Z", "deletionGracePeriodSeconds": 0}})
    );
}

#[test]
fn int_or_string_and_other_special_values_decode() {
    // Ports may be text; handlers are inlined.
    let port = |value: &[Vec<u8>]| field(2, &field(2, &value.concat()));
    let probe = |value: &[Vec<u8>]| [field(1, &port(value)), number(2, 7)].concat();
    let read = |value: &[Vec<u8>]| value::message("core.v1.Probe", &probe(value)).unwrap();
    assert_eq!(
        read(&[number(1, 0), number(2, 80), field(3, b"")]),
        json!({"httpGet": {"port": 80}, "initialDelaySeconds": 7})
    );
    assert_eq!(read(&[number(1, 1), number(2, 0), field(3, b"web")])["httpGet"], json!({"port": "web"}));
    let schema = "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let either = field(30, &[number(1, 0), field(2, &field(5, b"string"))].concat());
    assert_eq!(value::message(schema, &either).unwrap(), json!({"additionalProperties": {"type": "string"}}));
    let never = [field(30, &number(1, 0)), field(8, &field(1, b"[1]"))].concat();
    assert_eq!(
        value::message(schema, &never).unwrap(),
        json!({"additionalProperties": false, "default": [1]})
    );
    let limits = field(1, &[field(1, b"cpu"), field(2, &field(1, b"10m"))].concat());
    assert_eq!(
        value::message("core.v1.ResourceRequirements", &limits).unwrap(),
        json!({"limits": {"cpu": "10m"}})
    );
    let lease = [field(4, &[number(1, 1), number(2, 1_500)].concat()), number(5, 0)].concat();
    assert_eq!(
        value::message("coordination.v1.LeaseSpec", &lease).unwrap(),
        json!({"renewTime": "1970-01-01T00:00:01.000001Z", "leaseTransitions": 0})
    );
}

#[test]
fn requests_of_certificates_and_tokens_decode() {
    let extra = field(6, &[field(1, b"k"), field(2, &[field(1, b"v"), field(1, b"w")].concat())].concat());
    let spec = [field(1, b"pem"), field(5, b"any"), extra, field(7, b"a.b/c"), number(8, 600)].concat();
    assert_eq!(
        decoded("certificates.k8s.io/v1", "CertificateSigningRequest", &[field(2, &spec)])["spec"],
        json!({"request": "cGVt", "usages": ["any"], "extra": {"k": ["v", "w"]}, "signerName": "a.b/c",
            "expirationSeconds": 600})
    );
    let reference = [field(1, b"Pod"), field(2, b"v1"), field(3, b"p"), field(4, b"u")].concat();
    let spec = [field(1, b"a"), field(3, &reference), number(4, 3607)].concat();
    assert_eq!(
        decoded("authentication.k8s.io/v1", "TokenRequest", &[field(2, &spec)])["spec"],
        json!({"audiences": ["a"], "expirationSeconds": 3607,
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"}})
    );
}

#[test]
fn deep_or_truncated_messages_are_refused() {
    let name = "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
    let nested = |many| (0..many).fold(Vec::new(), |inner, _| field(28, &inner));
    assert!(value::message(name, &nested(99)).is_ok());
    assert_eq!(value::message(name, &nested(2_000)), Err(Malformed::Deep));
    assert_eq!(value::message(name, &number(28, 1)), Err(Malformed::Mismatch(0, "not".into())));
    assert_eq!(object(b"k8s", "v1", "Pod"), Err(Undecodable::NoMagic));
    assert_eq!(object(b"k8s\0", "v1", "Pod"), Err(Undecodable::Empty));
}

proptest! {
    #[test]
    fn decoding_never_panics(raw in prop::collection::vec(any::<u8>(), 0..100), which in 0..4_usize) {
        let kind = ["Pod", "Deployment", "CustomResourceDefinition", "Lease"][which];
        let version = ["v1", "apps/v1", "apiextensions.k8s.io/v1", "coordination.k8s.io/v1"][which];
        _ = object(&envelope(version, kind, &raw), version, kind);
        _ = object(&[MAGIC, &raw].concat(), version, kind);
        _ = delete_options(&envelope("v1", "DeleteOptions", &raw));
    }
}
