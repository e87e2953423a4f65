//! Kinds and random objects.

use serde_json::{Value, json};

use super::dice::Dice;
use crate::fixed::{job, merge};

/// The group of custom resources.
pub(crate) const GROUP: &str = "random.example.org";

/// A kind of object that no controller changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Map,
    Secret,
    /// Suspended, so that its status stays unchanged.
    Job,
    /// A custom resource with status and scale subresources.
    Foo,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Map, Self::Secret, Self::Job, Self::Foo];

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Map => "configmaps",
            Self::Secret => "secrets",
            Self::Job => "cronjobs",
            Self::Foo => "foos",
        }
    }

    pub(crate) fn is_builtin(self) -> bool {
        self != Self::Foo
    }

    pub(crate) fn has_status(self) -> bool {
        matches!(self, Self::Job | Self::Foo)
    }

    pub(crate) fn base(self, namespace: &str) -> String {
        let api = match self {
            Self::Map | Self::Secret => "/api/v1".to_owned(),
            Self::Job => "/apis/batch/v1".to_owned(),
            Self::Foo => format!("/apis/{GROUP}/v1"),
        };
        format!("{api}/namespaces/{namespace}/{}", self.plural())
    }

    /// Returns the type and name.
    pub(crate) fn named(self, name: &str) -> Value {
        let (version, kind) = match self {
            Self::Map => ("v1".to_owned(), "ConfigMap"),
            Self::Secret => ("v1".to_owned(), "Secret"),
            Self::Job => ("batch/v1".to_owned(), "CronJob"),
            Self::Foo => (format!("{GROUP}/v1"), "Foo"),
        };
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}})
    }
}

/// A random object; `partial` can omit required fields.
pub(crate) fn object(dice: &mut Dice, kind: Kind, name: &str, partial: bool) -> Value {
    let mut object = kind.named(name);
    if dice.one_of(3) {
        object["metadata"]["labels"] = json!({*dice.pick(&["p", "q"]): dice.text()});
    }
    if dice.one_of(6) {
        object["metadata"]["finalizers"] = json!(["example.org/wait"]);
    }
    if dice.one_of(6) {
        object["metadata"]["annotations"] = json!({"example.org/note": dice.text()});
    }
    merge(&mut object, content(dice, kind, partial));
    object
}

pub(crate) fn content(dice: &mut Dice, kind: Kind, partial: bool) -> Value {
    match kind {
        Kind::Map => json!({"data": words(dice)}),
        Kind::Secret if dice.one_of(3) => json!({"stringData": words(dice)}),
        Kind::Secret => {
            let encoded = |word: &str| if word == "x" { "eA==" } else { "MQ==" };
            let words = words(dice);
            let words = words.as_object().into_iter().flatten();
            let data: Value = words
                .map(|(key, word)| (key.clone(), Value::from(encoded(word.as_str().unwrap_or_default()))))
                .collect();
            json!({"data": data})
        }
        Kind::Job => json!({"spec": job_spec(dice, partial)}),
        Kind::Foo => json!({"spec": foo_spec(dice, partial)}),
    }
}

fn words(dice: &mut Dice) -> Value {
    let mut words = json!({});
    for key in ["a", "b", "c"] {
        if dice.one_of(2) {
            words[key] = dice.text().into();
        }
    }
    words
}

fn job_spec(dice: &mut Dice, partial: bool) -> Value {
    let mut containers = vec![json!({"name": "web", "image": format!("x:{}", dice.text())})];
    if dice.one_of(2) {
        containers[0]["env"] = json!([{"name": *dice.pick(&["A", "B"]), "value": dice.text()}]);
    }
    if dice.one_of(3) {
        containers[0]["ports"] = json!([{"containerPort": 80 + dice.below(2)}]);
    }
    if dice.one_of(3) {
        containers[0]["resources"] =
            json!({"limits": {"cpu": *dice.pick(&["1000m", "2"]), "memory": "1024Mi"}});
    }
    if dice.one_of(2) {
        containers.push(json!({"name": "side", "image": "y", "command": ["run", dice.text()]}));
        if dice.one_of(2) {
            containers.reverse();
        }
    }
    let mut spec = if partial && dice.one_of(2) {
        json!({"jobTemplate": {"spec": {"template": {"spec": {}}}}})
    } else {
        job("", json!({"volumes": []}))["spec"].take()
    };
    spec["jobTemplate"]["spec"]["template"]["spec"]["containers"] = containers.into();
    if dice.one_of(3) {
        spec["schedule"] = (*dice.pick(&["0 0 2 2 *", "@yearly"])).into();
    }
    spec["suspend"] = true.into();
    spec
}

fn foo_spec(dice: &mut Dice, partial: bool) -> Value {
    let mut spec = json!({});
    if !partial || dice.one_of(2) {
        spec["a"] = dice.text().into();
    }
    if dice.one_of(3) {
        spec["n"] = dice.below(11).into();
    }
    if dice.one_of(3) {
        spec["r"] = (1 + dice.below(10)).into();
    }
    if dice.one_of(3) {
        spec["m"] = json!({*dice.pick(&["k", "l"]): dice.text()});
    }
    if dice.one_of(3) {
        spec["free"] = json!({*dice.pick(&["k", "l"]): {"x": [dice.below(3)]}});
    }
    if dice.one_of(3) {
        spec["set"] = json!([dice.text(), "s"]);
    }
    if dice.one_of(2) {
        let mut names = vec!["i", "j", "k"];
        if dice.one_of(2) {
            names.reverse();
        }
        names.truncate(usize::try_from(1 + dice.below(3)).unwrap_or(1));
        let items: Vec<Value> = names.iter().map(|name| json!({"name": name, "v": dice.text()})).collect();
        spec["l"] = items.into();
    }
    if dice.one_of(8) {
        spec["unknown"] = 1.into();
    }
    spec
}
