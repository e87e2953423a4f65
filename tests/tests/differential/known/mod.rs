//! Known differences, each with its calls. A vanished difference fails too: remove its row from
//! `docs/develop/fake-apiserver.md`.

mod bodies;
mod kinds;
mod moments;
mod refused;
mod rows;

use std::time::Duration;

use anyhow::Result;
use kube::Client;
use serde_json::{Value, json};
use tidewatch_tests::wait;
use tokio::time::Instant;

use crate::{
    compare,
    pair::{Answer, Call, Memory, Pair, one},
    prepare::prepare,
};

const NAMESPACE: &str = "known";
const GROUP: &str = "known.example.org";
const SOON: Duration = Duration::from_secs(10);
/// With different codes, the whole bodies differ.
const WHOLE_BODY: &str = ".";

/// A row of the table.
struct Known {
    /// The name of the row.
    about: &'static str,
    /// Setup calls that both sides must accept.
    before: Vec<Call>,
    /// The call with different answers.
    call: Call,
    shown: Shown,
}

#[derive(Clone, Copy, Debug)]
enum Shown {
    /// Words in the differences: each difference has one, and each word occurs.
    Words(&'static [&'static str]),
    /// Different codes; 0 is a closed connection.
    Codes([u16; 2]),
    /// A difference that the comparison ignores.
    Both(fn(&Answer, &Answer) -> bool),
}

fn known(about: &'static str, call: Call, shown: Shown) -> Known {
    Known { about, before: Vec::new(), call, shown }
}

impl Known {
    fn after(self, before: Vec<Call>) -> Self {
        Self { before, ..self }
    }

    async fn asked(&self, client: &Client, memory: &mut Memory) -> Result<Answer> {
        match (one(client, &self.call, memory).await, self.shown) {
            (Err(_), Shown::Codes([0, _])) => Ok(Answer::default()),
            (answer, _) => answer,
        }
    }

    /// Makes all calls to one side without pauses; reports rejected setup calls.
    async fn played(&self, client: &Client, found: &mut Vec<String>) -> Result<(Answer, Memory)> {
        let mut memory = Memory::default();
        for call in &self.before {
            let Answer { code, body, .. } = one(client, call, &mut memory).await?;
            let line = || format!("known ({}), before it: {} is {code}: {body}", self.about, call.path);
            found.extend((code >= 300).then(line));
        }
        Ok((self.asked(client, &mut memory).await?, memory))
    }

    /// Returns deviations from the expected difference.
    fn strange(&self, real: &Answer, simulated: &Answer) -> Vec<String> {
        let gone = |is_so: bool| (!is_so).then(|| "is alike by now".to_owned()).into_iter().collect();
        let words = match self.shown {
            Shown::Words(words) => words,
            Shown::Codes(told) if told == [real.code, simulated.code] => return Vec::new(),
            Shown::Codes(told) => return vec![format!("{} and {}, not {told:?}", real.code, simulated.code)],
            Shown::Both(is_so) => return gone(is_so(real, simulated)),
        };
        let lines = compare::answers(real, simulated);
        let more = lines.iter().filter(|line| !words.iter().any(|words| line.contains(words)));
        let gone = words.iter().filter(|words| !lines.iter().any(|line| line.contains(*words)));
        let more = more.map(|line| format!("and more: {line}"));
        more.chain(gone.map(|words| format!("is alike by now: {words}"))).collect()
    }

    /// Verifies it and returns deviations.
    async fn shown(&self, pair: &Pair) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let (mut real, mut memory) = self.played(&pair.real, &mut found).await?;
        let (simulated, _) = self.played(&pair.simulated, &mut found).await?;
        let mut strange = self.strange(&real, &simulated);
        // Earlier changes on the real server can take effect late.
        let began = Instant::now();
        while !self.before.is_empty() && !strange.is_empty() && began.elapsed() < SOON {
            wait::pause().await;
            real = self.asked(&pair.real, &mut memory).await?;
            strange = self.strange(&real, &simulated);
        }
        found.extend(strange.into_iter().map(|line| format!("known ({}): {line}", self.about)));
        Ok(found)
    }
}

pub(crate) async fn run(pair: &Pair) -> Result<Vec<String>> {
    prepare(pair, NAMESPACE, GROUP).await?;
    let (all, brief) = (lasting(), moments::all(0));
    let mut found = Vec::new();
    for known in &all {
        found.extend(known.shown(pair).await?);
    }
    for index in 0..brief.len() {
        found.extend(moments::shown(pair, index).await?);
    }
    found.extend(moments::roles(pair).await?);
    say!("known: {} differences", all.len() + brief.len() + 1);
    Ok(found)
}

/// Permanent differences.
fn lasting() -> Vec<Known> {
    [kinds::all(), bodies::all(), refused::all()].into_iter().flatten().collect()
}

fn core(plural: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{plural}")
}

fn of(group: &str, plural: &str) -> String {
    format!("/apis/{group}/v1/namespaces/{NAMESPACE}/{plural}")
}

fn post(path: impl Into<String>, body: Value) -> Call {
    Call::new("POST", path, body)
}

fn pod(name: &str, more: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name}, "spec": {
        "automountServiceAccountToken": false, "containers": [{"name": "web", "image": "x:1"}]}});
    crate::fixed::merge(&mut pod["spec"], more);
    pod
}

fn workload(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "web", "image": "x:1"}]}}}})
}
