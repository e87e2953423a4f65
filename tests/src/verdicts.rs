//! Checks CRDs against a table of valid and invalid objects on a real API server.
//!
//! CRDs get a temporary API group, so checks run beside real kinds and each other.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tidewatch_api::names::VERSION;

/// The raw table.
const TABLE: &str = include_str!("../fixtures/crds/verdicts.yaml");
/// The table of fields that only Tidewatch's CRDs have.
const EXTENSIONS: &str = include_str!("../fixtures/crds/extensions.yaml");

/// Origin of the CRDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Tidewatch: both tables apply.
    Ours,
    /// The Go lifecycle manager: Tidewatch's fields are accepted and pruned.
    Theirs,
}

/// Timeout until the API server serves new CRDs.
const ESTABLISH_TIMEOUT: Duration = Duration::from_mins(1);
/// Poll interval for new CRDs.
const RETRY: Duration = Duration::from_millis(50);
/// Requests in flight.
const CONCURRENCY: usize = 8;
/// Longest repeated text; the API server rejects larger objects.
const MAX_REPEAT: u64 = 1 << 20;
/// Longest displayed answer, in characters.
const MAX_SHOWN: usize = 400;

/// The API server's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Stored, after pruning and defaulting.
    Accept,
    /// Refused as invalid.
    Reject,
}

/// A row: an object and its verdict.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Unique name of case and object.
    pub name: String,
    /// The kinds with this verdict.
    pub kind: OneOrMore,
    /// The verdict.
    pub verdict: Verdict,
    /// Reject: part of the API server's message, usually the field path.
    #[serde(default)]
    pub at: String,
    /// The rule.
    pub why: String,
    /// Whether to judge the status subresource.
    #[serde(default)]
    pub status: bool,
    /// Accept: JSON pointers and values in the answer; null means absent.
    #[serde(default)]
    pub expect: BTreeMap<String, Value>,
    /// The object; [`check`] completes it.
    pub object: Value,
}

/// One kind or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// One kind.
    One(String),
    /// Several.
    More(Vec<String>),
}

impl OneOrMore {
    /// The kinds.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(kind) => std::slice::from_ref(kind),
            Self::More(kinds) => kinds,
        }
    }
}

/// An unexpected verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Name of the case.
    pub case: String,
    /// Kind of the object.
    pub kind: String,
    /// The expected verdict and its rule.
    pub expected: String,
    /// The API server's answer.
    pub got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): expected {}; got {}", self.case, self.kind, self.expected, self.got)
    }
}

/// Parses the table for one set of CRDs.
///
/// # Errors If the table is invalid; names the place.
pub fn table(whose: Whose) -> Result<Vec<Case>> {
    let mut cases: Vec<Case> = serde_saphyr::from_str(TABLE).context("read fixtures/crds/verdicts.yaml")?;
    let mut ours: Vec<Case> =
        serde_saphyr::from_str(EXTENSIONS).context("read fixtures/crds/extensions.yaml")?;
    if whose == Whose::Theirs {
        ours.retain(|case| case.verdict == Verdict::Accept);
        for case in &mut ours {
            case.expect.values_mut().for_each(|value| *value = Value::Null);
        }
    }
    cases.extend(ours);
    for case in &mut cases {
        expand(&mut case.object).with_context(|| format!("case {}", case.name))?;
        ensure!(
            (case.verdict == Verdict::Reject) != case.at.is_empty(),
            "case {}: `at` belongs to a reject, and every reject has one",
            case.name
        );
    }
    Ok(cases)
}

/// Applies `crds`, submits every row of their kinds, and returns the mismatches. Cleans up.
///
/// # Errors The API server is unreachable, refuses the CRDs, or does not serve them within a minute.
pub async fn check(
    client: &Client,
    crds: &[CustomResourceDefinition],
    whose: Whose,
) -> Result<Vec<Mismatch>> {
    let cases = table(whose)?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let meta = ObjectMeta { generate_name: Some("verdicts-".into()), ..ObjectMeta::default() };
    let namespace = namespaces
        .create(&PostParams::default(), &Namespace { metadata: meta, ..Namespace::default() })
        .await
        .context("create a namespace for the verdicts")?
        .name_any();
    let trial = Trial { client, group: format!("{namespace}.example.org"), namespace };

    let definitions: Vec<_> = crds.iter().map(|crd| trial.moved(crd)).collect();
    let outcome = async {
        trial.install(&definitions).await?;
        trial.judge_all(&cases, &definitions).await
    }
    .await;
    // Cleans up after failures too; the first error counts.
    let cleaned = trial.remove(&definitions).await;
    let mismatches = outcome?;
    cleaned?;
    Ok(mismatches)
}

/// A check's namespace and API group.
struct Trial<'a> {
    client: &'a Client,
    namespace: String,
    group: String,
}

impl Trial<'_> {
    /// The definition in this trial's group.
    fn moved(&self, crd: &CustomResourceDefinition) -> CustomResourceDefinition {
        let mut moved = crd.clone();
        moved.metadata = ObjectMeta {
            name: Some(format!("{}.{}", crd.spec.names.plural, self.group)),
            ..ObjectMeta::default()
        };
        moved.spec.group.clone_from(&self.group);
        moved.status = None;
        moved
    }

    fn api(&self, crd: &CustomResourceDefinition) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk(&self.group, VERSION, &crd.spec.names.kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, &crd.spec.names.plural);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    async fn install(&self, crds: &[CustomResourceDefinition]) -> Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for crd in crds {
            api.create(&PostParams::default(), crd)
                .await
                .with_context(|| format!("create the CRD of {}", crd.spec.names.kind))?;
        }
        let served = async {
            for crd in crds {
                await_condition(api.clone(), &crd.name_any(), is_crd_established()).await?;
                // The API server sets Established just before it serves the CRD.
                let objects = self.api(crd);
                let mut tick = tokio::time::interval(RETRY);
                loop {
                    match objects.list(&ListParams::default().limit(1)).await {
                        Ok(_) => break,
                        Err(kube::Error::Api(status)) if status.code == 404 => tick.tick().await,
                        Err(error) => return Err(error.into()),
                    };
                }
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(ESTABLISH_TIMEOUT, served)
            .await
            .with_context(|| format!("the CRDs are not served after {ESTABLISH_TIMEOUT:?}"))?
    }

    /// Without a controller-manager the namespace stays terminating, so its name is never reused.
    async fn remove(&self, crds: &[CustomResourceDefinition]) -> Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for crd in crds {
            gone(api.delete(&crd.name_any(), &DeleteParams::default()).await.map(drop))?;
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        gone(namespaces.delete(&self.namespace, &DeleteParams::default()).await.map(drop))
    }

    async fn judge_all(&self, cases: &[Case], crds: &[CustomResourceDefinition]) -> Result<Vec<Mismatch>> {
        let trials = cases.iter().flat_map(|case| {
            let kinds = case.kind.as_slice();
            crds.iter().filter(|crd| kinds.contains(&crd.spec.names.kind)).map(move |crd| (case, crd))
        });
        let found: Vec<Option<Mismatch>> = stream::iter(trials)
            .map(|(case, crd)| async move {
                let answer = self
                    .ask(case, crd)
                    .await
                    .with_context(|| format!("case {} ({})", case.name, crd.spec.names.kind))?;
                anyhow::Ok(mismatch(case, &crd.spec.names.kind, &answer))
            })
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Returns the object as stored, or the rejection.
    async fn ask(&self, case: &Case, crd: &CustomResourceDefinition) -> Result<Answer> {
        let api = self.api(crd);
        let mut object = case.object.clone();
        object["apiVersion"] = format!("{}/{VERSION}", self.group).into();
        object["kind"] = crd.spec.names.kind.clone().into();
        object["metadata"]["name"] = case.name.clone().into();
        let mut object: DynamicObject = serde_json::from_value(object)?;
        if !case.status {
            let dry_run = PostParams { dry_run: true, field_manager: None };
            return answer(api.create(&dry_run, &object).await);
        }

        // The status subresource needs an existing object, so no dry run is possible.
        let status = object.data.as_object_mut().and_then(|data| data.remove("status"));
        match api.create(&PostParams::default(), &object).await {
            Ok(created) => object.metadata = created.metadata,
            refused => return Ok(answer(refused)?.map_err(|why| format!("without its status: {why}"))),
        }
        if let Some(status) = status {
            object.data["status"] = status;
        }
        let said = answer(api.replace_status(&case.name, &PostParams::default(), &object).await);
        gone(api.delete(&case.name, &DeleteParams::default()).await.map(drop))?;
        said
    }
}

/// The stored object, or the message of an invalid one.
type Answer = Result<Value, String>;

fn answer(result: kube::Result<DynamicObject>) -> Result<Answer> {
    match result {
        Ok(object) => Ok(Ok(serde_json::to_value(object)?)),
        Err(kube::Error::Api(status)) if status.code == 422 => Ok(Err(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

fn gone(result: kube::Result<()>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other?),
    }
}

fn mismatch(case: &Case, kind: &str, answer: &Answer) -> Option<Mismatch> {
    let (expected, got) = match (case.verdict, answer) {
        (Verdict::Accept, Ok(object)) => {
            let (path, value) = case
                .expect
                .iter()
                .find(|(path, value)| object.pointer(path).unwrap_or(&Value::Null) != *value)?;
            (format!("{value} at {path}"), object.pointer(path).unwrap_or(&Value::Null).to_string())
        }
        (Verdict::Reject, Err(message)) if message.contains(&case.at) => return None,
        (Verdict::Accept, Err(message)) => ("an accept".to_owned(), message.clone()),
        (Verdict::Reject, Err(message)) => (format!("a reject that names {}", case.at), message.clone()),
        (Verdict::Reject, Ok(_)) => (format!("a reject that names {}", case.at), "an accept".to_owned()),
    };
    Some(Mismatch {
        case: case.name.clone(),
        kind: kind.to_owned(),
        expected: format!("{expected} ({})", case.why),
        got: got.chars().take(MAX_SHOWN).collect(),
    })
}

/// Expands each `{$repeat: [text, times, prefix]}`.
fn expand(value: &mut Value) -> Result<()> {
    match value {
        Value::Object(map) => {
            let Some(repeat) = map.get("$repeat") else {
                return map.values_mut().try_for_each(expand);
            };
            let (text, times, prefix) = match repeat.as_array().map(Vec::as_slice) {
                Some([text, times]) => (text.as_str(), times.as_u64(), Some("")),
                Some([text, times, prefix]) => (text.as_str(), times.as_u64(), prefix.as_str()),
                _ => (None, None, None),
            };
            let (Some(text), Some(times @ 0..=MAX_REPEAT), Some(prefix)) = (text, times, prefix) else {
                bail!("$repeat is [text, times] or [text, times, prefix], not {repeat}");
            };
            *value = json!(format!("{prefix}{}", text.repeat(usize::try_from(times)?)));
            Ok(())
        }
        Value::Array(list) => list.iter_mut().try_for_each(expand),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_verdict_table_covers_every_kind() {
        let cases = table(Whose::Ours).unwrap();
        let names: BTreeSet<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), cases.len(), "names are unique");
        for crd in tidewatch_api::crds::all() {
            let kind = &crd.spec.names.kind;
            let of_kind = |verdict| {
                cases
                    .iter()
                    .filter(|case| case.verdict == verdict && case.kind.as_slice().contains(kind))
                    .count()
            };
            assert!(of_kind(Verdict::Accept) >= 3, "{kind} has too few good objects");
            assert!(of_kind(Verdict::Reject) >= 10, "{kind} has too few bad objects");
        }
    }

    #[test]
    fn repeat_markers_are_expanded() {
        let mut value = json!({ "a": [{ "$repeat": ["xy", 3] }, { "$repeat": ["x", 1, "p"] }] });
        expand(&mut value).unwrap();
        assert_eq!(value, json!({ "a": ["xyxyxy", "px"] }));
        for wrong in [json!(["x"]), json!(["x", u64::MAX]), json!("x"), json!(["x", -1])] {
            expand(&mut json!({ "$repeat": wrong })).unwrap_err();
        }
    }

    #[test]
    fn verdict_mismatches_are_detected() {
        let case = |verdict: &str, expect: Value| -> Case {
            let at = if verdict == "reject" { "spec.a" } else { "" };
            serde_json::from_value(json!({
                "name": "n", "kind": "K", "verdict": verdict, "at": at, "why": "w", "expect": expect, "object": {}
            }))
            .unwrap()
        };
        let stored: Answer = Ok(json!({ "spec": { "a": 1 } }));
        let refused = |at: &str| -> Answer { Err(format!("{at}: Invalid")) };
        let accept = case("accept", json!({ "/spec/a": 1, "/spec/b": null }));
        assert_eq!(mismatch(&accept, "K", &stored), None);
        assert_eq!(mismatch(&accept, "K", &refused("spec.a")).unwrap().got, "spec.a: Invalid");
        assert_eq!(mismatch(&case("accept", json!({ "/spec/a": null })), "K", &stored).unwrap().got, "1");
        let reject = case("reject", json!({}));
        assert_eq!(mismatch(&reject, "K", &refused("spec.a")), None);
        assert!(mismatch(&reject, "K", &refused("spec.b")).is_some(), "refused for another reason");
        assert_eq!(mismatch(&reject, "K", &stored).unwrap().got, "an accept");
    }
}
