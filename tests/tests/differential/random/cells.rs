//! Cells of the table: a verb, a feature, and an attempt.

use serde_json::{Value, json};

use super::{
    content::{Kind, content, object},
    dice::Dice,
    table::Cell,
};
use crate::pair::{APPLY, Call, JSON_PATCH, MERGE, PARTIAL, PARTIAL_LIST, STRATEGIC, TABLE};

const NAMES: [&str; 3] = ["a", "b", "c"];

pub(super) struct Step {
    pub(super) cell: Cell,
    /// Applicable kinds.
    pub(super) on: fn(Kind) -> bool,
    /// Applies to all kinds.
    pub(super) is_general: bool,
    /// Usually leaves an object.
    pub(super) sows: bool,
    pub(super) calls: fn(&mut Dice, Kind, &str) -> Vec<Call>,
}

type Calls = fn(&mut Dice, Kind, &str) -> Vec<Call>;

const fn step(verb: &'static str, feature: &'static str, calls: Calls) -> Step {
    Step { cell: (verb, feature), on: |_| true, is_general: true, sows: false, calls }
}

const fn sowing(verb: &'static str, feature: &'static str, calls: Calls) -> Step {
    Step { sows: true, ..step(verb, feature, calls) }
}

const fn only(on: fn(Kind) -> bool, verb: &'static str, feature: &'static str, calls: Calls) -> Step {
    Step { on, is_general: false, ..step(verb, feature, calls) }
}

fn is_foo(kind: Kind) -> bool {
    kind == Kind::Foo
}

/// All cells except the endings.
pub(super) const CELLS: [Step; 52] = [
    sowing("create", "plain", |dice, kind, base| {
        let name = name(dice);
        vec![Call::new("POST", base, object(dice, kind, name, false)).saved(name)]
    }),
    sowing("apply", "plain", |dice, kind, base| vec![apply(dice, kind, base, "")]),
    sowing("apply", "force", |dice, kind, base| vec![apply(dice, kind, base, "&force=true")]),
    step("create", "dryRun", |dice, kind, base| vec![create(dice, kind, base, "dryRun=All")]),
    step("create", "fieldValidation", |dice, kind, base| {
        let how = *dice.pick(&["fieldValidation=Strict", "fieldValidation=Ignore"]);
        let mut call = create(dice, kind, base, how);
        call.body["unheard"] = 1.into();
        vec![call]
    }),
    step("create", "generateName", |dice, kind, base| {
        let mut body = object(dice, kind, "", false);
        body["metadata"]["name"].take();
        body["metadata"]["generateName"] = "gen-".into();
        vec![Call::new("POST", format!("{base}?dryRun=All"), body)]
    }),
    step("create", "wrong value", |dice, kind, base| {
        let mut call = create(dice, kind, base, "dryRun=All");
        let labels = *dice.pick(&["-", "no spaces", "a_b.c-d"]);
        call.body["metadata"]["labels"] = json!({"p": labels});
        vec![call]
    }),
    step("update", "any version", |dice, kind, base| {
        let name = name(dice);
        vec![Call::new("PUT", format!("{base}/{name}"), object(dice, kind, name, false))]
    }),
    step("update", "version read", |dice, kind, base| {
        let name = name(dice);
        vec![Call::get(format!("{base}/{name}")).saved(name), put(dice, kind, base, name)]
    }),
    step("update", "version passed", |dice, kind, base| {
        let name = name(dice);
        let path = format!("{base}/{name}");
        let label = json!({"metadata": {"labels": {"p": dice.text(), "passed": dice.text()}}});
        let read = Call::get(path.clone()).saved(name);
        vec![read, Call::patch(MERGE, path, label), put(dice, kind, base, name)]
    }),
    step("update", "uid", |dice, kind, base| {
        let name = name(dice);
        let mut call = put(dice, kind, base, name);
        call.body["metadata"]["uid"] = json!("6e94b08b-d0ce-4eb4-82c1-f272f48599da");
        vec![call]
    }),
    step("update", "dryRun", |dice, kind, base| {
        let name = name(dice);
        vec![Call::new("PUT", format!("{base}/{name}?dryRun=All"), object(dice, kind, name, false))]
    }),
    only(Kind::has_status, "update", "status", |dice, kind, base| {
        let name = name(dice);
        let mut call = put(dice, kind, base, name);
        call.path.push_str("/status");
        call.body["status"] = status(dice, kind);
        vec![Call::get(format!("{base}/{name}")).saved(name), call]
    }),
    only(is_foo, "update", "scale", |dice, _, base| {
        let name = name(dice);
        let path = format!("{base}/{name}/scale");
        let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name},
                           "spec": {"replicas": replicas(dice)}});
        vec![Call::new("PUT", path, scale)]
    }),
    step("get", "plain", |dice, _, base| {
        let name = name(dice);
        vec![Call::get(format!("{base}/{name}")).saved(name)]
    }),
    step("get", "Table", |dice, _, base| vec![Call::get(path(dice, base)).accepting(TABLE)]),
    step("get", "metadata only", |dice, _, base| vec![Call::get(path(dice, base)).accepting(PARTIAL)]),
    only(is_foo, "get", "scale", |dice, _, base| vec![Call::get(path(dice, base) + "/scale")]),
    only(Kind::has_status, "get", "status", |dice, _, base| vec![Call::get(path(dice, base) + "/status")]),
    step("list", "label selector", |dice, _, base| {
        let selectors = ["p", "p%3D1", "!p", "p+in+(1,2)", "p!%3Dx,q", "p+notin+(x)", "-p", "p%3E1"];
        vec![asked(dice, base, "labelSelector=", &selectors)]
    }),
    step("list", "field selector", |dice, _, base| {
        let selectors = ["metadata.name%3Da", "metadata.name!%3Da", "metadata.namespace%3Dx", "spec.a%3D1"];
        vec![asked(dice, base, "fieldSelector=", &selectors)]
    }),
    step("list", "limit", |dice, _, base| {
        vec![Call::get(format!("{base}?limit={}{}", 1 + dice.below(2), dice.pick(&["", "&labelSelector=p"])))]
    }),
    step("list", "continue", |dice, kind, base| {
        let first = Call::get(format!("{base}?limit=1")).saved("page");
        let between = create(dice, kind, base, "fieldManager=between");
        vec![first, between, Call::get(format!("{base}?limit={}&continue={{page.next}}", dice.below(3)))]
    }),
    step("list", "resourceVersion", |dice, _, base| {
        let versions = [
            // A cached read can be stale.
            "resourceVersion=0&labelSelector=nobody",
            "resourceVersion={begin.rv}&resourceVersionMatch=Exact",
            "resourceVersion={begin.rv}&resourceVersionMatch=Exact&limit=1",
            "resourceVersion={begin.rv}&resourceVersionMatch=NotOlderThan&labelSelector=nobody",
            "resourceVersion=0&resourceVersionMatch=Exact",
            "resourceVersionMatch=NotOlderThan",
        ];
        vec![asked(dice, base, "", &versions)]
    }),
    step("list", "Table", |dice, _, base| {
        let include = *dice.pick(&["", "?includeObject=None", "?includeObject=Object"]);
        vec![Call::get(format!("{base}{include}")).accepting(TABLE)]
    }),
    step("list", "metadata only", |_, _, base| vec![Call::get(base).accepting(PARTIAL_LIST)]),
    step("list", "wrong parameter", |dice, _, base| {
        let wrong = [
            "limit=x",
            "timeoutSeconds=x",
            "limit=-1",
            "resourceVersion=x",
            "watch=false&limit=y",
            "sendInitialEvents=true",
        ];
        vec![asked(dice, base, "", &wrong)]
    }),
    step("watch", "selectors", |dice, _, base| {
        let selector =
            *dice.pick(&["labelSelector=p", "labelSelector=p%3D1", "fieldSelector=metadata.name%3Da"]);
        vec![Call::get(watch(base, &format!("{selector}&resourceVersion={{begin.rv}}")))]
    }),
    step("watch", "initial events, bookmarks", |_, _, base| {
        let how = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        vec![Call::get(watch(base, how))]
    }),
    step("watch", "metadata only", |_, _, base| {
        vec![Call::get(watch(base, "resourceVersion={begin.rv}")).accepting(PARTIAL)]
    }),
    step("watch", "Table", |_, _, base| {
        vec![Call::get(watch(base, "resourceVersion={begin.rv}")).accepting(TABLE)]
    }),
    step("watch", "wrong parameter", |dice, _, base| {
        let wrong = *dice.pick(&[
            "resourceVersion=x",
            "sendInitialEvents=true",
            "resourceVersionMatch=Exact",
            "labelSelector=-",
        ]);
        vec![Call::get(watch(base, wrong))]
    }),
    step("delete", "plain", |dice, _, base| vec![Call::new("DELETE", path(dice, base), Value::Null)]),
    step("delete", "dryRun", |dice, _, base| {
        vec![Call::new("DELETE", path(dice, base) + "?dryRun=All", Value::Null)]
    }),
    step("delete", "preconditions", |dice, _, base| {
        let name = name(dice);
        let path = format!("{base}/{name}");
        let body = match dice.below(3) {
            0 => json!({"preconditions": {"uid": format!("{{{name}.uid}}")}}),
            1 => json!({"preconditions": {"resourceVersion": format!("{{{name}.rv}}")}}),
            _ => json!({"preconditions": {"resourceVersion": "1"}}),
        };
        vec![Call::get(path.clone()).saved(name), Call::new("DELETE", path, body)]
    }),
    step("deletecollection", "selector", |dice, _, base| {
        let how = *dice.pick(&[
            "labelSelector=p%3D1",
            "labelSelector=q",
            "fieldSelector=metadata.name%3Dc",
            "labelSelector=p&dryRun=All",
        ]);
        vec![Call::new("DELETE", format!("{base}?{how}"), Value::Null)]
    }),
    step("deletecollection", "body", |dice, _, base| {
        let body = dice
            .pick(&[
                json!({"dryRun": ["All"]}),
                json!({"preconditions": {"resourceVersion": "1"}}),
                json!({"propagationPolicy": "Background"}),
            ])
            .clone();
        vec![Call::new("DELETE", format!("{base}?labelSelector=p%3D1"), body)]
    }),
    step("patch merge", "content", |dice, kind, base| {
        let path = path(dice, base);
        vec![Call::patch(MERGE, path, content(dice, kind, true))]
    }),
    step("patch merge", "finalizers", |dice, _, base| {
        let finalizers = dice.pick(&[Value::Null, json!(["example.org/wait"]), json!(["none"])]).clone();
        vec![Call::patch(MERGE, path(dice, base), json!({"metadata": {"finalizers": finalizers}}))]
    }),
    step("patch merge", "metadata", |dice, _, base| {
        let metadata = dice
            .pick(&[
                json!({"labels": {"p": null}}),
                json!({"labels": {"p": "2"}}),
                json!({"annotations": null}),
                json!({"uid": "6e94b08b-d0ce-4eb4-82c1-f272f48599da"}),
                json!({"name": "other"}),
                json!({"resourceVersion": "1"}),
                json!({"generation": 9, "creationTimestamp": null}),
                json!({"managedFields": []}),
            ])
            .clone();
        vec![Call::patch(MERGE, path(dice, base), json!({"metadata": metadata}))]
    }),
    step("patch merge", "owners", |dice, kind, base| {
        let owners = owners(dice, kind);
        let path = format!("{}?fieldManager={}", path(dice, base), manager(dice));
        let mut patch = if dice.one_of(2) { content(dice, kind, true) } else { json!({}) };
        patch["metadata"] = json!({"managedFields": owners});
        vec![Call::patch(MERGE, path, patch)]
    }),
    step("patch merge", "dryRun", |dice, kind, base| {
        vec![Call::patch(MERGE, path(dice, base) + "?dryRun=All", content(dice, kind, true))]
    }),
    only(Kind::has_status, "patch merge", "status", |dice, kind, base| {
        let body = json!({"status": status(dice, kind), "metadata": {"labels": {"p": dice.text()}}});
        vec![Call::patch(MERGE, path(dice, base) + "/status", body)]
    }),
    only(is_foo, "patch merge", "scale", |dice, _, base| {
        let body = json!({"spec": {"replicas": replicas(dice)}});
        vec![Call::patch(MERGE, path(dice, base) + "/scale", body)]
    }),
    step("patch json", "content", |dice, kind, base| {
        let field = if matches!(kind, Kind::Map | Kind::Secret) { "data" } else { "spec" };
        let place = format!("/{field}/{}", dice.pick(&["a", "b", "z/z"]));
        let op = *dice.pick(&["add", "replace", "remove", "test"]);
        vec![Call::patch(
            JSON_PATCH,
            path(dice, base),
            json!([{"op": op, "path": place, "value": dice.text()}]),
        )]
    }),
    step("patch json", "metadata", |dice, _, base| {
        let op = dice
            .pick(&[
                json!({"op": "add", "path": "/metadata/labels", "value": {"p": "1"}}),
                json!({"op": "remove", "path": "/metadata/labels"}),
                json!({"op": "test", "path": "/metadata/labels/p", "value": "1"}),
                json!({"op": "move", "from": "/metadata/labels", "path": "/metadata/annotations"}),
                json!({"op": "copy", "from": "/metadata/name", "path": "/metadata/generateName"}),
                json!({"op": "fly", "path": "/metadata"}),
            ])
            .clone();
        vec![Call::patch(JSON_PATCH, path(dice, base), json!([op]))]
    }),
    only(Kind::is_builtin, "patch strategic", "content", |dice, kind, base| {
        vec![Call::patch(STRATEGIC, path(dice, base), content(dice, kind, true))]
    }),
    only(
        |kind| kind == Kind::Job,
        "patch strategic",
        "lists by key",
        |dice, _, base| {
            let container = dice
            .pick(&[
                json!({"name": "web", "image": "x:9"}),
                json!({"name": "side", "$patch": "delete"}),
                json!({"name": "web", "env": [{"name": "A", "value": "9"}, {"name": "B", "$patch": "delete"}]}),
                json!({"name": "web", "ports": null}),
                json!({"name": "new", "image": "n", "ports": [{"containerPort": 90}]}),
            ])
            .clone();
            let body = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [container]}}}}}});
            vec![Call::patch(STRATEGIC, path(dice, base), body)]
        },
    ),
    only(
        |kind| kind == Kind::Foo,
        "patch strategic",
        "refused",
        |dice, kind, base| vec![Call::patch(STRATEGIC, path(dice, base), content(dice, kind, true))],
    ),
    step("apply", "dryRun", |dice, kind, base| vec![apply(dice, kind, base, "&dryRun=All")]),
    only(Kind::has_status, "apply", "status", |dice, kind, base| {
        let name = name(dice);
        let mut body = kind.named(name);
        body["status"] = status(dice, kind);
        let manager = manager(dice);
        vec![Call::patch(APPLY, format!("{base}/{name}/status?fieldManager={manager}"), body)]
    }),
    step("apply", "nothing more", |dice, kind, base| {
        let name = name(dice);
        let manager = manager(dice);
        vec![Call::patch(APPLY, format!("{base}/{name}?fieldManager={manager}"), kind.named(name))]
    }),
];

fn name(dice: &mut Dice) -> &'static str {
    dice.pick::<&str>(&NAMES)
}

fn manager(dice: &mut Dice) -> &'static str {
    dice.pick::<&str>(&["one", "two"])
}

/// Zero, or more than objects have. A /scale write without change is a known difference.
fn replicas(dice: &mut Dice) -> u64 {
    if dice.one_of(4) { 0 } else { 20 + dice.below(9) }
}

fn path(dice: &mut Dice, base: &str) -> String {
    format!("{base}/{}", name(dice))
}

fn create(dice: &mut Dice, kind: Kind, base: &str, query: &str) -> Call {
    let name = name(dice);
    Call::new("POST", format!("{base}?{query}"), object(dice, kind, name, false))
}

/// A PUT with the last read version.
fn put(dice: &mut Dice, kind: Kind, base: &str, name: &'static str) -> Call {
    let mut object = object(dice, kind, name, false);
    object["metadata"]["resourceVersion"] = format!("{{{name}.rv}}").into();
    Call::new("PUT", format!("{base}/{name}"), object).saved(name)
}

fn apply(dice: &mut Dice, kind: Kind, base: &str, query: &str) -> Call {
    let (name, manager) = (name(dice), manager(dice));
    Call::patch(APPLY, format!("{base}/{name}?fieldManager={manager}{query}"), object(dice, kind, name, true))
}

/// Random `managedFields` of a client.
fn owners(dice: &mut Dice, kind: Kind) -> Value {
    let version = kind.named("")["apiVersion"].clone();
    let top = if matches!(kind, Kind::Map | Kind::Secret) { "f:data" } else { "f:spec" };
    let owner = |dice: &mut Dice| {
        let all = [json!({"f:a": {}}), json!({".": {}, "f:b": {}}), json!({"f:a": {}, "f:z": {"f:y": {}}})];
        let fields = dice.pick(&all).clone();
        let version = if dice.one_of(9) { json!("other/v9") } else { version.clone() };
        json!({
            "manager": manager(dice), "operation": dice.pick(&["Apply", "Update", "Update", "Apply", "apply"]), "apiVersion": version,
            "fieldsType": "FieldsV1", "fieldsV1": {top: fields},
        })
    };
    match dice.below(6) {
        0 => json!([{}]),
        1 => json!([owner(dice), owner(dice)]),
        2 => json!([owner(dice), owner(dice), owner(dice)]),
        _ => json!([owner(dice)]),
    }
}

/// A list in one of several forms.
fn asked(dice: &mut Dice, base: &str, query: &str, ways: &[&str]) -> Call {
    Call::get(format!("{base}?{query}{}", dice.pick(ways)))
}

fn watch(base: &str, how: &str) -> String {
    format!("{base}?watch=1&timeoutSeconds=1&{how}")
}

fn status(dice: &mut Dice, kind: Kind) -> Value {
    match kind {
        Kind::Job => {
            json!({"lastScheduleTime": *dice.pick(&["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])})
        }
        _ => json!({"state": dice.text()}),
    }
}
