//! Encodings of bodies and answers, legacy watches, and invalid credentials.

use serde_json::json;

use crate::pair::{APPLY, Call, JSON, JSON_PATCH, MERGE, STRATEGIC, YAML};

const MAPS: &str = "/api/v1/namespaces/fixed/configmaps";
const FOOS: &str = "/apis/fixed.example.org/v1/namespaces/fixed/foos";
/// Unquoted scalars that YAML converts.
const WORDS: &str = "metadata: {name: y1, labels: {yaml: \"1\"}}\ndata: {a: \"no\", b: \"null\", c: \"0x1f\", d: \"1e3\", e: \"\", \
                     f: \"l1\\nl2\\n\", g: \" x\", h: \"#x\", i: \"a: b\", j: \"2020-01-01\", k: \"~\", l: \"0b1\", m: \"1_000\", \
                     aa: \"a\\tb\", o: \"\\u00e9\", p: \"- x\", q: \"0o7\", r: \"012\", s: \"12:30:45\", t: \"yes\", u: \".5\", \
                     v: \"\\n\", w: \"x \", z: \"y\"}\n";

const TWICE: &str = r#"{"metadata": {"name": "b", "name": "a"}, "data": {"a": "1", "a": "2", "a": "3"}, "data": {"a": "1", "a": "2"},
                     "kind": "ConfigMap", "kind": "ConfigMap", "zap": {"x": 1, "x": 2}, "zap": 1}"#;
const TWICE_CUSTOM: &str = r#"{"apiVersion": "fixed.example.org/v1", "kind": "Foo", "metadata": {"name": "tw"}, "spec": {"a": "x", "a": "y", "al": [{"q": 1, "q": 2}]},
                            "spec": {"a": "z", "zap": {"x": 1, "x": 2}}}"#;
const TWO: &str = r#"{"metadata": {"name": "t", "finalizers": ["a/b", "a/c"]}, "data": {"a": "1"}, MORE}"#;
const TWO_CUSTOM: &str = r#"{"apiVersion": "fixed.example.org/v1", "kind": "Foo", "metadata": {"name": "t"}, "spec": {"a": "x"}, "spec": {"al": []}}"#;
const APPLIED: &str = "apiVersion: v1\nkind: ConfigMap\ndata: {a: \"1\", a: \"2\"}\n";

pub(crate) fn calls() -> Vec<Call> {
    let text =
        |method, path: String, media, text: &str| Call::raw(method, path, media, text.as_bytes().to_vec());
    let twice = |path: &str, media, sent: &str| text("POST", path.to_owned(), media, sent);
    let anybody = |authorization| Call::get("/api/v1/namespaces").with(("authorization", authorization));
    let custom = "{apiVersion: fixed.example.org/v1, kind: Foo, metadata: {name: y1}, spec: {a: x}}";
    let as_form = |path: &str, form: &'static str| Call::get(path).accepting(form);
    let old = |path: &str| Call::get(format!("{path}?timeoutSeconds=1"));
    vec![
        text("POST", MAPS.into(), YAML, WORDS).accepting(YAML),
        text("PUT", format!("{MAPS}/y1"), YAML, "data: {a: b}"),
        text("PUT", format!("{MAPS}/y1"), YAML, "data: {a: b}\nmetadata: {name: y1, labels: {yaml: \"1\"}}"),
        text("POST", MAPS.into(), "application/cbor", "x"),
        text("POST", MAPS.into(), "text/plain", "x"),
        text("POST", FOOS.into(), YAML, custom).accepting(YAML),
        text("PUT", format!("{FOOS}/y1"), YAML, &custom.replace("metadata: {name: y1}, ", "")),
        text("POST", FOOS.into(), "application/cbor", "x"),
        text("DELETE", format!("{FOOS}/y1"), "application/cbor", "x"),
        text("DELETE", format!("{FOOS}/y1"), YAML, "propagationPolicy: Background"),
        // Duplicate names.
        twice(&format!("{MAPS}?dryRun=All"), JSON, TWICE),
        twice(&format!("{MAPS}?dryRun=All&fieldValidation=Strict"), JSON, TWICE),
        twice(&format!("{MAPS}?dryRun=All&fieldValidation=Ignore"), JSON, TWICE),
        twice(
            &format!("{MAPS}?dryRun=All"),
            YAML,
            r#"{"metadata": {"name": "a"}, "data": {"a": "1", "a": "2"}}"#,
        ),
        twice(&format!("{MAPS}?dryRun=All"), YAML, "metadata: {name: a}\ndata:\n  a: x\n  a: z\nzap: 1"),
        twice(
            &format!("{MAPS}?dryRun=All&fieldValidation=Strict"),
            YAML,
            "metadata: {name: a}\ndata:\n  a: x\n  a: z\nzap: 1",
        ),
        twice(&format!("{FOOS}?dryRun=All"), JSON, TWICE_CUSTOM),
        twice(&format!("{FOOS}?dryRun=All&fieldValidation=Strict"), JSON, TWICE_CUSTOM),
        text(
            "PUT",
            format!("{MAPS}/y1?dryRun=All&fieldValidation=Strict"),
            JSON,
            r#"{"metadata": {"name": "y1"}, "data": {"a": "1", "a": "2"}}"#,
        ),
        text(
            "PATCH",
            format!("{MAPS}/y1?dryRun=All"),
            MERGE,
            r#"{"data": {"a": "1", "a": "2"}, "zap": {"b": 1, "b": 2}}"#,
        ),
        text(
            "PATCH",
            format!("{MAPS}/y1?dryRun=All&fieldValidation=Strict"),
            MERGE,
            r#"{"data": {"a": "1", "a": "2"}}"#,
        ),
        text("PATCH", format!("{MAPS}/y1?dryRun=All"), STRATEGIC, r#"{"data": {"a": "1", "a": "2"}}"#),
        text("PATCH", format!("{MAPS}/y1?dryRun=All&fieldManager=x&force=1"), APPLY, APPLIED),
        text(
            "PATCH",
            format!("{MAPS}/y1?dryRun=All&fieldManager=x&force=1&fieldValidation=Strict"),
            APPLY,
            APPLIED,
        ),
        text("DELETE", format!("{MAPS}/y1"), JSON, r#"{"dryRun": ["x"], "dryRun": ["All"]}"#),
        // A null body overrides the query.
        text("POST", MAPS.into(), JSON, r#"{"metadata": {"name": "nulled"}}"#),
        text("POST", MAPS.into(), JSON, "null"),
        text("POST", MAPS.into(), YAML, "null"),
        text("PUT", format!("{MAPS}/nulled"), JSON, "null"),
        text("POST", FOOS.into(), JSON, "null"),
        text("PATCH", format!("{MAPS}/nulled"), MERGE, "null"),
        text("PATCH", format!("{MAPS}/nulled"), MERGE, "[]"),
        text("PATCH", format!("{MAPS}/nulled"), JSON_PATCH, "null"),
        text("PATCH", format!("{MAPS}/nulled"), STRATEGIC, "null"),
        text("PATCH", format!("{MAPS}/nulled?fieldManager=x"), APPLY, "null"),
        text("DELETE", format!("{MAPS}/nulled?dryRun=All"), JSON, "null"),
        Call::get(format!("{MAPS}/nulled")),
        // Fails only for an existing object.
        text("PATCH", format!("{MAPS}/none"), MERGE, "x"),
        text("PATCH", format!("{MAPS}/nulled"), MERGE, "x"),
        text("PATCH", format!("{MAPS}/none"), JSON_PATCH, ""),
        text("PATCH", format!("{MAPS}/nulled"), JSON_PATCH, ""),
        text("PATCH", format!("{MAPS}/none"), "text/plain", "x"),
        text("PATCH", MAPS.into(), "text/plain", "x"),
        text("POST", format!("{MAPS}/nulled"), "text/plain", "x"),
        // Later duplicates win.
        twice(&format!("{MAPS}?dryRun=All"), JSON, &TWO.replace("MORE", r#""data": {"b": "1"}"#)),
        twice(&format!("{MAPS}?dryRun=All"), JSON, &TWO.replace("MORE", r#""data": null"#)),
        twice(
            &format!("{MAPS}?dryRun=All"),
            JSON,
            &TWO.replace("MORE", r#""metadata": {"labels": {"a": "b"}}"#),
        ),
        twice(
            &format!("{MAPS}?dryRun=All"),
            JSON,
            &TWO.replace("MORE", r#""metadata": {"finalizers": ["a/d"]}"#),
        ),
        twice(&format!("{MAPS}?dryRun=All"), YAML, &TWO.replace("MORE", r#""data": {"b": "1"}"#)),
        text(
            "PATCH",
            format!("{MAPS}/nulled?dryRun=All"),
            MERGE,
            r#"{"data": {"a": "1"}, "data": {"b": "1"}}"#,
        ),
        twice(&format!("{FOOS}?dryRun=All"), JSON, TWO_CUSTOM),
        // Only the first document counts.
        twice(&format!("{MAPS}?dryRun=All"), YAML, "metadata: {name: t}\n---\nmetadata: {name: u}\n"),
        twice(&format!("{MAPS}?dryRun=All"), YAML, "# x\n---\nmetadata: {name: t}\n---\n{"),
        twice(&format!("{MAPS}?dryRun=All"), YAML, "metadata: {name: t}\n...\nmore: ["),
        twice(&format!("{MAPS}?dryRun=All"), YAML, "---\n---\nmetadata: {name: t}\n"),
        // Keys that YAML converts.
        twice(
            &format!("{MAPS}?dryRun=All"),
            YAML,
            "metadata: {name: keys}\ndata: {n: a, ON: b, 5: c, 1.5: d, 1e3: e, 0x10: f, \"yes\": g}",
        ),
        twice(&format!("{FOOS}?dryRun=All"), YAML, &custom.replace("{a: x}", "{a: x, m: {off: a, 7: b}}")),
        text(
            "PATCH",
            format!("{MAPS}/keys?dryRun=All&fieldManager=x"),
            APPLY,
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: keys}\ndata: {y: a, \"n\": b}",
        ),
        // YAML numbers have one form.
        twice(
            &format!("{FOOS}?dryRun=All"),
            YAML,
            "apiVersion: fixed.example.org/v1\nkind: Foo\nmetadata: {name: numbers, generation: 2.0}\nspec: {a: x}",
        ),
        as_form(&format!("{MAPS}/y1"), "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
        as_form(&format!("{FOOS}/first"), "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
        as_form(
            &format!("{MAPS}?labelSelector=yaml"),
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        ),
        as_form(
            &format!("{FOOS}?labelSelector=none"),
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        ),
        as_form(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/fixed/roles",
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        ),
        as_form(&format!("{MAPS}/y1"), "application/json;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io"),
        as_form(
            &format!("{MAPS}?labelSelector=yaml"),
            "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
        ),
        as_form(&format!("{MAPS}?labelSelector=yaml"), "application/json;as=Table;v=v1beta1;g=meta.k8s.io"),
        as_form(&format!("{MAPS}/none"), "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
        Call::get("/api").accepting("application/*"),
        Call::get(format!("{MAPS}/y1")).accepting("application/*"),
        Call::get(format!("{MAPS}/y1")).accepting("text/plain"),
        Call::get(format!("{MAPS}/y1")).accepting("application/*;q=0.1,application/json"),
        Call::get("/readyz").accepting("text/plain"),
        Call::get("/api/v1//configmaps"),
        Call::get("/api/v1/namespaces/fixed//configmaps"),
        Call::get("/api/v1/namespaces/fixed/configmaps//y1"),
        Call::get("/api/v1/namespaces//configmaps?labelSelector=yaml"),
        Call::get("/api/v1/namespaces/fixed/configmaps/?labelSelector=yaml"),
        Call::get("/apis/apps/v1//deployments"),
        Call::get(format!("{MAPS}?labelSelector=yaml")).accepting(YAML),
        Call::get(format!("{MAPS}/y1"))
            .accepting("application/yaml;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"),
        Call::get(format!("{MAPS}/none")).accepting(YAML),
        Call::get(format!("{MAPS}?watch=1&timeoutSeconds=1")).accepting(YAML),
        Call::get(format!("{FOOS}?watch=1&timeoutSeconds=1")).accepting(YAML),
        Call::get("/api").accepting("application/cbor"),
        old("/api/v1/watch/namespaces/fixed/serviceaccounts"),
        old("/api/v1/watch/namespaces/fixed/serviceaccounts/default"),
        old("/api/v1/watch/namespaces/fixed/serviceaccounts/none"),
        old("/api/v1/watch/namespaces/fixed"),
        old("/apis/fixed.example.org/v1/watch/namespaces/fixed/foos"),
        old("/apis/fixed.example.org/v1/watch/namespaces/fixed/foos/first"),
        old("/apis/fixed.example.org/v1/watch/foos"),
        old("/apis/apps/v1/watch/statefulsets"),
        old("/api/v1/watch/namespaces/fixed/pods/p/status"),
        old("/api/v1/watch/namespaces/fixed/foos"),
        Call::get(
            "/api/v1/watch/namespaces/fixed/configmaps/y1?timeoutSeconds=1&fieldSelector=metadata.name%3Dz",
        ),
        Call::get(
            "/api/v1/watch/namespaces/fixed/configmaps/y1?timeoutSeconds=1&fieldSelector=metadata.name%3Dy1",
        ),
        Call::get("/api/v1/watch/namespaces/fixed/configmaps/y1?timeoutSeconds=1&labelSelector=none"),
        Call::new("POST", "/api/v1/watch/namespaces/fixed/configmaps", json!({})),
        Call::new("DELETE", "/api/v1/watch/namespaces/fixed/configmaps/y1", json!({})),
        // A single-name watch uses the list path.
        Call::get(format!("{MAPS}/y1?watch=true")),
        anybody(""),
        anybody("Basic Zm9vOmJhcg=="),
        anybody("Bearer"),
        anybody("Bearer  t"),
        anybody("Bearer none"),
        anybody("bearer none"),
        anybody("None at all"),
    ]
}
