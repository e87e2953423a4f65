//! Rights of roles, and questions to API servers whether a user has them.

use std::fmt;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use serde_json::Value;

/// Concurrent questions to one API server.
const CONCURRENT: usize = 8;
/// Rights that a message names.
const NAMED: usize = 5;

/// One verb on one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    /// Empty: all objects.
    name: String,
    /// Empty: the whole cluster.
    namespace: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, subresource, name, .. } = self;
        write!(f, "{verb} {resource}")?;
        for (mark, text) in [(".", group), ("/", subresource), (" ", name)] {
            if !text.is_empty() {
                write!(f, "{mark}{text}")?;
            }
        }
        Ok(())
    }
}

impl Right {
    /// Rights of a role's rules.
    pub(crate) fn of_rules(rules: &Value, namespace: &str) -> Vec<Self> {
        rules.as_array().into_iter().flatten().flat_map(|rule| Self::of_rule(rule, namespace)).collect()
    }

    fn of_rule(rule: &Value, namespace: &str) -> Vec<Self> {
        let texts = |field: &str| -> Vec<&str> {
            rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        };
        let mut names = texts("resourceNames");
        if names.is_empty() {
            names.push("");
        }
        let mut rights = Vec::new();
        for group in texts("apiGroups") {
            for path in texts("resources") {
                let (resource, subresource) = path.split_once('/').unwrap_or((path, ""));
                for name in &names {
                    rights.extend(texts("verbs").into_iter().map(|verb| Self {
                        verb: verb.to_owned(),
                        group: group.to_owned(),
                        resource: resource.to_owned(),
                        subresource: subresource.to_owned(),
                        name: (*name).to_owned(),
                        namespace: namespace.to_owned(),
                    }));
                }
            }
        }
        rights
    }

    fn attributes(&self) -> ResourceAttributes {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        ResourceAttributes {
            verb: some(&self.verb),
            group: some(&self.group),
            resource: some(&self.resource),
            subresource: some(&self.subresource),
            name: some(&self.name),
            namespace: some(&self.namespace),
            ..ResourceAttributes::default()
        }
    }
}

/// Names the first rights of a list.
pub(crate) fn listed(rights: &[Right]) -> String {
    let named: Vec<_> = rights.iter().take(NAMED).map(ToString::to_string).collect();
    let more = rights.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

/// Returns the rights that the client's own user lacks.
pub(crate) async fn missing_of_self(client: &Client, rights: &[Right]) -> Result<Vec<Right>, kube::Error> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let ask = |right: &Right| {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(right.attributes()),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let (api, review) = (api.clone(), SelfSubjectAccessReview { spec, ..Default::default() });
        async move { api.create(&PostParams::default(), &review).await.map(|answer| answer.status) }
    };
    missing(rights, ask).await
}

/// Returns the rights that a user lacks. Needs the right to create `subjectaccessreviews`.
pub(crate) async fn missing_of_user(
    client: &Client,
    user: &str,
    rights: &[Right],
) -> Result<Vec<Right>, kube::Error> {
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let ask = |right: &Right| {
        let spec = SubjectAccessReviewSpec {
            resource_attributes: Some(right.attributes()),
            user: Some(user.to_owned()),
            groups: Some(groups(user)),
            ..SubjectAccessReviewSpec::default()
        };
        let (api, review) = (api.clone(), SubjectAccessReview { spec, ..Default::default() });
        async move { api.create(&PostParams::default(), &review).await.map(|answer| answer.status) }
    };
    missing(rights, ask).await
}

async fn missing<F>(rights: &[Right], ask: impl Fn(&Right) -> F) -> Result<Vec<Right>, kube::Error>
where
    F: Future<
        Output = Result<Option<k8s_openapi::api::authorization::v1::SubjectAccessReviewStatus>, kube::Error>,
    >,
{
    let asked = rights.iter().map(|right| {
        let answer = ask(right);
        async move { answer.await.map(|status| (right, status.is_some_and(|status| status.allowed))) }
    });
    let answers: Vec<_> = stream::iter(asked).buffered(CONCURRENT).try_collect().await?;
    Ok(answers.into_iter().filter(|(_, allowed)| !allowed).map(|(right, _)| right.clone()).collect())
}

/// Groups that authentication adds to a user.
fn groups(user: &str) -> Vec<String> {
    let mut groups = vec!["system:authenticated".to_owned()];
    if let Some((namespace, _)) =
        user.strip_prefix("system:serviceaccount:").and_then(|name| name.split_once(':'))
    {
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    groups
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_is_split_into_verbs_resources_and_names() {
        let rules = json!([
            {"apiGroups": ["g"], "resources": ["kymas/status"], "verbs": ["patch", "update"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["get"]},
        ]);
        let rights: Vec<_> = Right::of_rules(&rules, "n").iter().map(ToString::to_string).collect();
        assert_eq!(
            rights,
            ["patch kymas.g/status", "update kymas.g/status", "get secrets a", "get secrets b"]
        );
    }

    #[test]
    fn a_message_names_the_first_missing_rights() {
        let right = |verb: &str| Right { verb: verb.into(), resource: "pods".into(), ..Right::default() };
        let rights: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"].map(right).to_vec();
        assert_eq!(listed(&rights[..1]), "a pods");
        assert!(listed(&rights).ends_with("e pods and 2 more"), "{}", listed(&rights));
    }

    #[test]
    fn a_service_account_is_in_the_groups_of_its_namespace() {
        assert_eq!(groups("someone"), ["system:authenticated"]);
        assert_eq!(groups("system:serviceaccount:n:a")[2], "system:serviceaccounts:n");
    }
}
