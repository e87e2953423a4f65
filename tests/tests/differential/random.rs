//! Random sequences over few names, so that calls meet.

use std::{collections::BTreeMap, fmt};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    pair::{APPLY, Call, JSON_PATCH, MERGE, Memory, Pair, STRATEGIC},
    prepare::prepare,
};

const CALLS: u64 = 20;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Which verb with which feature was tried how often, and how often the answers differed.
#[derive(Debug, Default)]
pub(crate) struct Table(BTreeMap<(&'static str, &'static str), (u64, u64)>);

impl Table {
    /// The counts of both.
    pub(crate) fn add(&mut self, other: Self) {
        for (key, (tried, differ)) in other.0 {
            let counts = self.0.entry(key).or_default();
            counts.0 += tried;
            counts.1 += differ;
        }
    }

    /// The cells that were tried less often.
    pub(crate) fn below(&self, least: u64) -> Vec<String> {
        let few = self.0.iter().filter(|(_, (tried, _))| *tried < least);
        few.map(|((verb, feature), (tried, _))| format!("{verb}, {feature}: tried {tried} times only"))
            .collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:<18} {:>7} {:>7}", "verb", "feature", "tried", "differ")?;
        for ((verb, feature), (tried, differ)) in &self.0 {
            writeln!(f, "{verb:<12} {feature:<18} {tried:>7} {differ:>7}")?;
        }
        Ok(())
    }
}

/// A small generator (xorshift): the same numbers for the same seed, on every machine.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        (0..8).for_each(|_| _ = dice.next());
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, many: u64) -> u64 {
        (self.next() >> 11) % many
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let index = self.below(all.len() as u64);
        &all[usize::try_from(index).unwrap_or_default()]
    }

    fn text(&mut self) -> &'static str {
        self.pick::<&str>(&["1", "2", "x"])
    }
}

/// What is played with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Map,
    Foo,
}

struct Play<'a> {
    dice: Dice,
    kind: Kind,
    base: String,
    group: &'a str,
}

/// Plays the sequence of a seed; returns what differs.
pub(crate) async fn run(pair: &Pair, seed: u64) -> Result<(Vec<String>, Table)> {
    let mut table = Table::default();
    let namespace = format!("random-{seed}");
    let group = "random.example.org";
    let mut dice = Dice::new(seed);
    let kind = *dice.pick(&[Kind::Map, Kind::Foo]);
    prepare(pair, &namespace, group).await?;
    let base = match kind {
        Kind::Map => format!("/api/v1/namespaces/{namespace}/configmaps"),
        Kind::Foo => format!("/apis/{group}/v1/namespaces/{namespace}/foos"),
    };
    let mut play = Play { dice, kind, base, group };
    let mut memories = (Memory::default(), Memory::default());
    let mut found = Vec::new();
    let begin = Call::get(play.base.clone()).saved("begin");
    found.extend(pair.call(&begin, &mut memories).await?);
    for number in 0..CALLS {
        let (verb, feature, call) = play.step();
        let differences = pair.call(&call, &mut memories).await?;
        let counts = table.0.entry((verb, feature)).or_default();
        counts.0 += 1;
        counts.1 += u64::from(!differences.is_empty());
        found.extend(differences.into_iter().map(|line| format!("seed {seed}, call {number}: {line}")));
    }
    let watch = Call::get(format!("{}?watch=1&timeoutSeconds=1&resourceVersion={{begin.rv}}", play.base));
    let differences = pair.call(&watch, &mut memories).await?;
    let counts = table.0.entry(("watch", "whole sequence")).or_default();
    counts.0 += 1;
    counts.1 += u64::from(!differences.is_empty());
    found.extend(differences.into_iter().map(|line| format!("seed {seed}: {line}")));
    Ok((found, table))
}

impl Play<'_> {
    fn object(&mut self, name: &str, partial: bool) -> Value {
        let mut object = match self.kind {
            Kind::Map => json!({"apiVersion": "v1", "kind": "ConfigMap"}),
            Kind::Foo => json!({"apiVersion": format!("{}/v1", self.group), "kind": "Foo"}),
        };
        object["metadata"] = json!({"name": name});
        if self.dice.below(3) == 0 {
            let key = *self.dice.pick(&["p", "q"]);
            object["metadata"]["labels"] = json!({key: self.dice.text()});
        }
        if self.dice.below(6) == 0 {
            object["metadata"]["finalizers"] = json!(["example.org/wait"]);
        }
        let content = self.content(partial);
        object[self.field()] = content;
        object
    }

    fn field(&self) -> &'static str {
        if self.kind == Kind::Map { "data" } else { "spec" }
    }

    fn content(&mut self, partial: bool) -> Value {
        let mut content = json!({});
        if self.kind == Kind::Map {
            for key in ["a", "b", "c"] {
                if self.dice.below(2) == 0 {
                    content[key] = self.dice.text().into();
                }
            }
            return content;
        }
        if !partial || self.dice.below(2) == 0 {
            content["a"] = self.dice.text().into();
        }
        if self.dice.below(3) == 0 {
            content["n"] = self.dice.below(11).into();
        }
        if self.dice.below(3) == 0 {
            content["m"] = json!({*self.dice.pick(&["k", "l"]): self.dice.text()});
        }
        if self.dice.below(3) == 0 {
            content["free"] = json!({*self.dice.pick(&["k", "l"]): {"x": [self.dice.below(3)]}});
        }
        if self.dice.below(3) == 0 {
            content["set"] = json!([self.dice.text(), "s"]);
        }
        if self.dice.below(2) == 0 {
            let mut names = vec!["i", "j", "k"];
            if self.dice.below(2) == 0 {
                names.reverse();
            }
            names.truncate(usize::try_from(1 + self.dice.below(3)).unwrap_or(1));
            let items: Vec<Value> =
                names.iter().map(|name| json!({"name": name, "v": self.dice.text()})).collect();
            content["l"] = items.into();
        }
        if self.dice.below(8) == 0 {
            content["unknown"] = 1.into();
        }
        content
    }

    fn step(&mut self) -> (&'static str, &'static str, Call) {
        let name = *self.dice.pick(&NAMES);
        let path = format!("{}/{name}", self.base);
        let base = self.base.clone();
        let manager = *self.dice.pick(&["one", "two"]);
        let body = match self.dice.below(20) {
            0..4 => return ("create", "", Call::new("POST", base, self.object(name, false)).saved(name)),
            4 => {
                return (
                    "create",
                    "dryRun",
                    Call::new("POST", format!("{base}?dryRun=All"), self.object(name, false)),
                );
            }
            5 => return ("update", "any version", Call::new("PUT", path, self.object(name, false))),
            6 => {
                let mut object = self.object(name, false);
                object["metadata"]["resourceVersion"] = format!("{{{name}.rv}}").into();
                return ("update", "saved version", Call::new("PUT", path, object).saved(name));
            }
            7 => return ("get", "", Call::get(path).saved(name)),
            8 => {
                let query = *self.dice.pick(&[
                    "labelSelector=p",
                    "labelSelector=p%3D1",
                    "limit=1",
                    "fieldSelector=metadata.name%3Da",
                ]);
                return ("list", "selectors, limit", Call::get(format!("{base}?{query}")));
            }
            9 => {
                let options = *self.dice.pick(&["", "?propagationPolicy=Background", "?dryRun=All"]);
                return ("delete", "", Call::new("DELETE", format!("{path}{options}"), Value::Null));
            }
            10 => {
                return (
                    "patch merge",
                    "finalizers",
                    Call::patch(MERGE, path, json!({"metadata": {"finalizers": null}})),
                );
            }
            11 | 12 => {
                let content = self.content(true);
                json!({self.field(): content})
            }
            13 => {
                let value = self.dice.text();
                let place = format!("/{}/{}", self.field(), self.dice.pick(&["a", "b", "z/z"]));
                let op = *self.dice.pick(&["add", "replace", "remove", "test"]);
                return (
                    "patch json",
                    "",
                    Call::patch(JSON_PATCH, path, json!([{"op": op, "path": place, "value": value}])),
                );
            }
            14 if self.kind == Kind::Map => {
                let content = self.content(true);
                return ("patch strategic", "", Call::patch(STRATEGIC, path, json!({"data": content})));
            }
            14 => {
                let state = self.dice.text();
                let body = json!({"status": {"state": state}, "spec": {"a": "ignored"}});
                return ("patch merge", "status", Call::patch(MERGE, format!("{path}/status"), body));
            }
            15 if self.kind == Kind::Foo => {
                let body = json!({"apiVersion": format!("{}/v1", self.group), "kind": "Foo", "status": {"state": self.dice.text()}});
                return (
                    "apply",
                    "status",
                    Call::patch(APPLY, format!("{path}/status?fieldManager={manager}"), body),
                );
            }
            16 | 17 => {
                let object = self.object(name, true);
                return (
                    "apply",
                    "force",
                    Call::patch(APPLY, format!("{path}?fieldManager={manager}&force=true"), object),
                );
            }
            _ => {
                let object = self.object(name, true);
                return ("apply", "", Call::patch(APPLY, format!("{path}?fieldManager={manager}"), object));
            }
        };
        ("patch merge", "content", Call::patch(MERGE, path, body))
    }
}
