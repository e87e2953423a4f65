//! Parsing of bodies and its errors.

use serde_json::json;

use super::{
    GROUP, Known,
    Shown::{Both, Words},
    WHOLE_BODY, core, known, of, post,
};
use crate::pair::{Call, JSON, JSON_PATCH, YAML};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// A ConfigMap with a label `x: y` and a numeric name.
const NUMBERED: &[u8] =
    b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0d\x0a\x0b\x0a\x01m\x5a\x06\x08\x01x\x12\x01y";
/// Exceeds the number of reported errors.
const MANY: usize = 17;

pub(super) fn all() -> Vec<Known> {
    let maps = core("configmaps?dryRun=All");
    let send = |media, text: &str| Call::raw("POST", &*maps, media, text.as_bytes().to_vec());
    let twice: Vec<String> = (0..MANY).map(|key| format!(r#""k{key}": "1", "k{key}": "2""#)).collect();
    let twice = format!(r#"{{"metadata": {{"name": "m"}}, "data": {{{}}}}}"#, twice.join(", "));
    let yaml = |rest: &str| format!("metadata:\n  name: twice\n{rest}");
    let map = |metadata| post(&*maps, json!({"metadata": metadata, "zap": 1}));
    let duplicates = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "b"}]}});
    let counted = format!(
        r#"{{"apiVersion": "{GROUP}/v1", "kind": "Foo", "metadata": {{"name": "f"}}, "spec": {{"a": "x", "r": 2.0}}}}"#
    );
    // The comparison ignores these.
    let other_words = Both(|real, simulated| {
        real.code == simulated.code && real.code >= 400 && real.body["message"] != simulated.body["message"]
    });
    vec![
        known("bodies that are cut off", send(JSON, r#"{"a""#), other_words),
        known(
            "warnings beside refusals",
            map(json!({"name": "M"})),
            Both(|real, simulated| {
                real.code == 422
                    && simulated.code == 422
                    && real.warnings.len() == 1
                    && simulated.warnings.is_empty()
            }),
        ),
        known(
            "numbers that are too large",
            send(JSON, r#"{"metadata": {"name": "m"}, "zap": 1e999}"#),
            Words(&["code: 201 and simulated 400", WHOLE_BODY, "warnings: "]),
        ),
        known("many things that JSON says twice", send(JSON, &twice), Words(&["warnings: "])),
        known(
            "several things that YAML says twice",
            send(YAML, &yaml("data:\n  a: b\n  a: c\n  d: e\n  d: f\n")),
            Words(&["warnings: "]),
        ),
        known(
            "keys of YAML that are the same truth",
            send(YAML, &yaml("data:\n  n: a\n  no: b\n")),
            Words(&["warnings: "]),
        ),
        known(
            "duplicate fields of a JSON patch",
            Call::raw(
                "PATCH",
                core("serviceaccounts/default?dryRun=All"),
                JSON_PATCH,
                br#"[{"op": "test", "op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]"#.to_vec(),
            ),
            Words(&["warnings: "]),
        ),
        known(
            "duplicate fields beside unknown ones",
            send(JSON, r#"{"metadata": {"name": "m"}, "zap": 1, "data": {"a": "b", "a": "c"}}"#),
            Words(&["warnings: "]),
        ),
        known(
            "protobuf with numbers in maps",
            Call::raw("POST", &*maps, PROTOBUF, NUMBERED.to_vec()),
            Words(&["code: 201 and simulated 400", WHOLE_BODY]),
        ),
        known(
            "whole numbers with a point where replicas are",
            Call::raw("POST", format!("{}?dryRun=All", of(GROUP, "foos")), JSON, counted.into_bytes()),
            Words(&["code: 422 and simulated 201", WHOLE_BODY]),
        ),
        known("structures in messages", post(core("services?dryRun=All"), duplicates), other_words),
    ]
}
