//! Central policy, by which operators fix, forbid or require modules.
//!
//! Stored under `policy.yaml` of the ConfigMap [`NAME`] in KCP. All matching rules apply; for each module, the first wins.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::{Deserialize, Deserializer, de::Error as _};
use tidewatch_api::{CustomResourcePolicy, KymaSpec, Module, names};

use super::{access::selects, versions::VersionRequest};

/// ConfigMap name.
pub const NAME: &str = "tidewatch-policy";
/// Its key.
pub const KEY: &str = "policy.yaml";
const MAX_BYTES: usize = 256 * 1024;
const MAX_RULES: usize = 256;

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// In order of precedence.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// Rule for some Kymas.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Selector for labels in KCP; all Kymas without it.
    #[serde(default, rename = "match", deserialize_with = "selector")]
    pub selector: LabelSelector,
    /// Forbidden modules.
    #[serde(default)]
    pub forbid: Vec<String>,
    /// Required modules.
    #[serde(default)]
    pub require: Vec<String>,
    /// Fixed fields of entries.
    #[serde(default)]
    pub fix: Vec<Fix>,
}

/// Fixed fields of one entry.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fix {
    /// Module name.
    pub name: String,
    /// Channel.
    #[serde(default)]
    pub channel: Option<String>,
    /// Version.
    #[serde(default)]
    pub version: Option<String>,
    /// Default CR creation.
    #[serde(default)]
    pub custom_resource_policy: Option<CustomResourcePolicy>,
    /// Managed flag.
    #[serde(default)]
    pub managed: Option<bool>,
}

/// The library's selector ignores unknown fields, so `match: {plan: trial}` would select all Kymas. So would an empty value.
fn selector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LabelSelector, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Strict {
        match_labels: Option<BTreeMap<String, String>>,
        match_expressions: Option<Vec<Expression>>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Expression {
        key: String,
        operator: String,
        values: Option<Vec<String>>,
    }
    let said: Option<Strict> = Option::deserialize(deserializer)?;
    let Strict { match_labels, match_expressions } = said.ok_or_else(|| {
        D::Error::custom("'match' says nothing: leave it out of a rule that is for all Kymas, or write {}")
    })?;
    let checked = |Expression { key, operator, values }: Expression| {
        let needs_values = match operator.as_str() {
            "In" | "NotIn" => true,
            "Exists" | "DoesNotExist" => false,
            _ => {
                let message =
                    format!("there is no operator '{operator}': use In, NotIn, Exists or DoesNotExist");
                return Err(D::Error::custom(message));
            }
        };
        if needs_values == values.as_ref().is_none_or(Vec::is_empty) {
            let message = format!(
                "{operator} of the label '{key}' {} values",
                if needs_values { "needs" } else { "takes no" }
            );
            return Err(D::Error::custom(message));
        }
        Ok(LabelSelectorRequirement { key, operator, values })
    };
    let match_expressions =
        match_expressions.map(|all| all.into_iter().map(checked).collect()).transpose()?;
    Ok(LabelSelector { match_labels, match_expressions })
}

/// Unusable policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No such key.
    #[error("the ConfigMap {NAME} has no key {KEY}; an empty list of rules is one that says nothing")]
    NoKey,
    /// Too long.
    #[error("the policy has more than {MAX_BYTES} bytes")]
    TooLong,
    /// Too many rules.
    #[error("the policy has more than {MAX_RULES} rules")]
    TooMany,
    /// Invalid. The detail is for operators only, not for users.
    #[error("the policy cannot be read")]
    Unreadable(String),
}

impl PolicyError {
    /// Position of the error on one line, without content.
    #[must_use]
    pub fn detail(&self) -> &str {
        match self {
            Self::Unreadable(detail) => detail,
            _ => "",
        }
    }
}

/// Parses a policy.
pub fn read(text: &str) -> Result<Policy, PolicyError> {
    if text.len() > MAX_BYTES {
        return Err(PolicyError::TooLong);
    }
    let quiet = serde_saphyr::options! { with_snippet: false };
    let detail =
        |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
    let policy: Policy = serde_saphyr::from_str_with_options(text, quiet).map_err(|error| {
        PolicyError::Unreadable(detail(error.render_with_formatter(&serde_saphyr::UserMessageFormatter)))
    })?;
    if policy.rules.len() > MAX_RULES {
        return Err(PolicyError::TooMany);
    }
    Ok(policy)
}

/// Effect of the policy on a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyEffect {
    /// Forbidden modules, listed or installed or not.
    pub forbidden: BTreeSet<String>,
    /// Modules added to the list.
    pub required: BTreeSet<String>,
    /// Changed fields by module, in words.
    pub overruled: BTreeMap<String, String>,
}

/// Applies the policy to a user's list. Forbidden modules stay listed for their status.
///
/// If `offered` rejects a required module's channel or version, an offered one replaces it.
#[must_use]
pub fn apply(
    user: &KymaSpec,
    policy: &Policy,
    labels: &BTreeMap<String, String>,
    offered: impl Fn(&KymaSpec, &Module) -> bool,
) -> (KymaSpec, PolicyEffect) {
    let (mut spec, mut ruled) = (user.clone(), PolicyEffect::default());
    // First verdict: forbidden or required.
    let mut said: BTreeMap<&str, bool> = BTreeMap::new();
    let counting = || policy.rules.iter().filter(|rule| selects(&rule.selector, labels));
    for rule in counting() {
        for module in &rule.forbid {
            said.entry(module).or_insert(true);
        }
        for module in &rule.require {
            said.entry(module).or_insert(false);
        }
    }
    let must: BTreeSet<&str> = said.iter().filter(|(_, forbidden)| !**forbidden).map(|(m, _)| *m).collect();
    for (module, forbidden) in said {
        if forbidden {
            ruled.forbidden.insert(module.to_owned());
        } else if !spec.modules.iter().any(|m| m.name == module) {
            spec.modules.push(Module { name: module.to_owned(), ..Module::default() });
            ruled.required.insert(module.to_owned());
        }
    }
    let mut overruled: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut fixed: BTreeSet<(&str, &str)> = BTreeSet::new();
    let all_fixes = || counting().flat_map(|rule| &rule.fix);
    let numbered: BTreeSet<&str> =
        all_fixes().filter(|fix| fix.version.is_some()).map(|fix| fix.name.as_str()).collect();
    for fix in all_fixes() {
        let Some(entry) = spec.modules.iter_mut().find(|m| m.name == fix.name) else { continue };
        let mut first = |field| fixed.insert((fix.name.as_str(), field));
        if let Some(channel) = &fix.channel
            && first("channel")
        {
            entry.channel = Some(channel.clone());
            // A user's version would bypass the channel.
            if !numbered.contains(fix.name.as_str()) {
                entry.version = None;
            }
        }
        if let Some(version) = &fix.version
            && first("version")
        {
            entry.version = Some(version.clone());
        }
        if let Some(policy) = fix.custom_resource_policy
            && first("policy")
            && entry.custom_resource_policy != policy
        {
            overruled.entry(&fix.name).or_default().push(format!("customResourcePolicy {policy:?}"));
            entry.custom_resource_policy = policy;
        }
        if let Some(managed) = fix.managed
            && first("managed")
            && entry.managed != managed
        {
            overruled.entry(&fix.name).or_default().push(format!("managed: {managed}"));
            entry.managed = managed;
        }
    }
    // Unmanaging would bypass the requirement, unless a rule fixes it.
    for entry in spec.modules.iter_mut().filter(|m| !m.managed) {
        if let Some(module) = must.get(entry.name.as_str())
            && !fixed.contains(&(*module, "managed"))
        {
            entry.managed = true;
            overruled.entry(module).or_default().push("managed: true".to_owned());
        }
    }
    for name in &must {
        let Some(at) = spec.modules.iter().position(|entry| entry.name == *name) else { continue };
        let is_fixed = fixed.contains(&(*name, "channel")) || fixed.contains(&(*name, "version"));
        if is_fixed || offered(&spec, &spec.modules[at]) {
            continue;
        }
        let plain = Module { version: None, channel: None, ..spec.modules[at].clone() };
        let regular = Module { channel: Some(names::DEFAULT_CHANNEL.to_owned()), ..plain.clone() };
        // Without any version, the user's entry and its fault stay.
        if let Some(instead) = [plain, regular].into_iter().find(|entry| offered(&spec, entry)) {
            spec.modules[at] = instead;
        }
    }
    // Only user-made entries can be overruled.
    for theirs in &user.modules {
        let entry = spec.modules.iter().find(|entry| entry.name == theirs.name);
        let version = entry
            .and_then(|entry| instead(&VersionRequest::of(theirs, user), &VersionRequest::of(entry, &spec)));
        let rest = overruled.remove(theirs.name.as_str()).unwrap_or_default();
        let all: Vec<String> = version.into_iter().chain(rest).collect();
        if !all.is_empty() {
            ruled.overruled.insert(theirs.name.clone(), all.join(", "));
        }
    }
    (spec, ruled)
}

fn instead(theirs: &VersionRequest, ruled: &VersionRequest) -> Option<String> {
    match (&theirs.pin, &ruled.pin) {
        _ if theirs == ruled => None,
        (Some(before), Some(now)) => Some(format!("version {now} instead of {before}")),
        (None, Some(now)) => Some(format!("version {now} instead of channel {}", theirs.channel)),
        (Some(before), None) => Some(format!("channel {} instead of version {before}", ruled.channel)),
        (None, None) => Some(format!("channel {} instead of {}", ruled.channel, theirs.channel)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(user: &KymaSpec, policy: &Policy, labels: &BTreeMap<String, String>) -> (KymaSpec, PolicyEffect) {
        apply(user, policy, labels, |_, _| true)
    }

    const POLICY: &str = "
rules:
- match: {matchLabels: {plan: trial}}
  forbid: [crane]
  fix:
  - {name: beacon, channel: regular, customResourcePolicy: Ignore}
- require: [crane, gauge]
  fix:
  - {name: beacon, channel: fast, managed: true}
";

    fn labels(plan: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("plan".to_owned(), plan.to_owned())])
    }

    fn user(modules: &str) -> KymaSpec {
        let modules: Vec<Module> = serde_saphyr::from_str(modules).unwrap();
        KymaSpec { channel: "regular".into(), modules, ..KymaSpec::default() }
    }

    fn entry<'a>(spec: &'a KymaSpec, name: &str) -> &'a Module {
        spec.modules.iter().find(|m| m.name == name).unwrap()
    }

    #[test]
    fn what_is_required_is_not_kept_away_by_what_does_not_exist() {
        let policy = read("rules: [{require: [gauge]}]").unwrap();
        let offered = |spec: &KymaSpec, module: &Module| {
            let channel = module.channel.as_ref().unwrap_or(&spec.channel);
            module.version.as_deref().map_or(channel == "regular", |version| version == "1.0.0")
        };
        let ruled = |channel: &str, entry: &str| {
            let user = KymaSpec { channel: channel.into(), ..user(&format!("[{entry}]")) };
            let (spec, ruled) = apply(&user, &policy, &labels("trial"), offered);
            let got = spec.modules.iter().find(|m| m.name == "gauge").unwrap();
            (VersionRequest::of(got, &spec), ruled.overruled.get("gauge").cloned())
        };
        let regular = VersionRequest { channel: "regular".into(), pin: None };
        let instead = |what: &str| Some(format!("channel regular instead of {what}"));
        for (channel, entry, says) in [
            ("regular", "{name: gauge, channel: none}", instead("none")),
            ("regular", "{name: gauge, version: 9.9.9}", instead("version 9.9.9")),
            ("none", "{name: gauge}", instead("none")),
            ("none", "{name: buoy}", None),
            ("regular", "{name: gauge, channel: regular}", None),
        ] {
            assert_eq!(ruled(channel, entry), (regular.clone(), says), "{channel} {entry}");
        }
        let pinned = ruled("regular", "{name: gauge, version: 1.0.0}");
        assert_eq!(
            (pinned.0.pin.as_deref(), pinned.1),
            (Some("1.0.0"), None),
            "the user's choice of what there is"
        );
    }

    #[test]
    fn the_first_rule_that_says_something_counts() {
        let policy = read(POLICY).unwrap();
        let wanted = user("[{name: beacon, channel: rapid, managed: false}, {name: buoy}]");
        let (spec, ruled) = rule(&wanted, &policy, &labels("trial"));
        assert!(ruled.forbidden.contains("crane") && ruled.required.contains("gauge"));
        assert_eq!(entry(&spec, "beacon").channel.as_deref(), Some("regular"));
        assert!(entry(&spec, "beacon").managed && entry(&spec, "buoy") == entry(&wanted, "buoy"));
        assert_eq!(
            ruled.overruled["beacon"],
            "channel regular instead of rapid, customResourcePolicy Ignore, managed: true"
        );
        let (spec, ruled) = rule(&wanted, &policy, &labels("paid"));
        assert!(ruled.forbidden.is_empty() && ruled.required.len() == 2);
        assert_eq!(entry(&spec, "beacon").channel.as_deref(), Some("fast"));
    }

    #[test]
    fn a_fixed_channel_leaves_no_choice_of_a_version() {
        let of = |policy: &str| {
            rule(&user("[{name: beacon, version: 2.0.0}]"), &read(policy).unwrap(), &labels("paid"))
        };
        let (spec, ruled) = of("rules: [{fix: [{name: beacon, channel: regular}]}]");
        let beacon = entry(&spec, "beacon");
        assert_eq!((beacon.channel.as_deref(), &beacon.version), (Some("regular"), &None));
        assert_eq!(ruled.overruled["beacon"], "channel regular instead of version 2.0.0");
        // Order does not matter.
        let (spec, ruled) =
            of("rules: [{fix: [{name: beacon, channel: regular}, {name: beacon, version: 1.0.0}]}]");
        assert_eq!(entry(&spec, "beacon").version.as_deref(), Some("1.0.0"));
        assert_eq!(ruled.overruled["beacon"], "version 1.0.0 instead of 2.0.0");
    }

    #[test]
    fn what_counts_for_an_entry_without_a_word_of_its_own_is_overruled_as_well() {
        let of = |channel: &str, fix: &str| {
            let mut user = user("[{name: beacon}]");
            user.channel = channel.into();
            let policy = read(&format!("rules: [{{fix: [{{name: beacon, {fix}}}]}}]")).unwrap();
            rule(&user, &policy, &labels("paid")).1.overruled.remove("beacon")
        };
        let fixed = of("fast", "channel: regular");
        assert_eq!(fixed.as_deref(), Some("channel regular instead of fast"), "the Kyma's channel");
        assert_eq!(of("regular", "channel: regular"), None);
        assert_eq!(of("", "channel: regular"), None, "what it is without one");
        let numbered = of("fast", "version: 1.0.0");
        assert_eq!(numbered.as_deref(), Some("version 1.0.0 instead of channel fast"));
    }

    #[test]
    fn what_is_required_cannot_be_given_up_unless_a_rule_says_so() {
        let of = |policy: &str| {
            rule(&user("[{name: beacon, managed: false}]"), &read(policy).unwrap(), &labels("paid"))
        };
        let (spec, ruled) = of("rules: [{require: [beacon]}]");
        assert!(entry(&spec, "beacon").managed);
        assert_eq!(ruled.overruled["beacon"], "managed: true");
        let (spec, ruled) = of("rules: [{require: [beacon], fix: [{name: beacon, managed: false}]}]");
        assert!(!entry(&spec, "beacon").managed && ruled.overruled.is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_no_empty_policy() {
        assert_eq!(read("rules: []").unwrap(), Policy::default());
        for bad in [
            "rules: [{forbids: [a]}]",
            "rules: {}",
            "[",
            "rules: [{match: {plan: trial}}]",
            "rules: [{match: , forbid: [a]}]",
        ] {
            assert!(matches!(read(bad), Err(PolicyError::Unreadable(_))), "{bad}");
        }
        let text = "rules:\n- match: {matchLabels: {plan: trial}}\n  oops: hidden\n";
        let error = read(text).unwrap_err();
        assert_eq!(error.to_string(), "the policy cannot be read", "that is all that users are told");
        let detail = error.detail();
        assert!(detail.contains("line 3") && detail.contains("oops"), "{detail}");
        assert!(
            !detail.contains("hidden") && !detail.contains("trial") && !detail.contains('\n'),
            "{detail}"
        );
        for bad in [
            "operator: NotIn, value: [a]",
            "operator: NotIn",
            "operator: in, values: [a]",
            "operator: Exists, values: [a]",
        ] {
            let text = format!("rules: [{{match: {{matchExpressions: [{{key: plan, {bad}}}]}}}}]");
            assert!(matches!(read(&text), Err(PolicyError::Unreadable(_))), "{bad}");
        }
        assert_eq!(read(&" ".repeat(MAX_BYTES + 1)), Err(PolicyError::TooLong));
        assert_eq!(read(&format!("rules: [{}]", "{},".repeat(MAX_RULES + 1))), Err(PolicyError::TooMany));
    }

    fn any_policy() -> impl Strategy<Value = Policy> {
        let names = || prop::collection::vec("[a-d]", 0..3);
        let fix = ("[a-d]", prop::option::of("[x-z]"), prop::option::of(any::<bool>()));
        let fix = fix.prop_map(|(name, channel, managed)| Fix { name, channel, managed, ..Fix::default() });
        let rule = (names(), names(), prop::collection::vec(fix, 0..3));
        let rule = rule.prop_map(|(forbid, require, fix)| Rule { forbid, require, fix, ..Rule::default() });
        prop::collection::vec(rule, 0..4).prop_map(|rules| Policy { rules })
    }

    proptest! {
        #[test]
        fn ruling_twice_is_ruling_once_and_no_entry_is_lost(
            policy in any_policy(),
            entries in prop::collection::btree_map("[a-f]", prop::option::of("[x-z]"), 0..5),
        ) {
            let modules = entries.into_iter().map(|(name, channel)| Module { name, channel, ..Module::default() });
            let user = KymaSpec { modules: modules.collect(), ..KymaSpec::default() };
            let (once, ruled) = rule(&user, &policy, &BTreeMap::new());
            let (twice, again) = rule(&once, &policy, &BTreeMap::new());
            prop_assert_eq!(&once, &twice);
            prop_assert!(again.overruled.is_empty() && again.required.is_empty());
            for module in &user.modules {
                let entry = once.modules.iter().find(|m| m.name == module.name);
                let named = policy.rules.iter().flat_map(|r| &r.fix).any(|f| f.name == module.name);
                prop_assert!(entry.is_some_and(|e| named || e == module));
            }
            prop_assert!(ruled.forbidden.is_disjoint(&ruled.required));
        }
    }
}
