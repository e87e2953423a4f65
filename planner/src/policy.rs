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
    let strict: Option<Strict> = Option::deserialize(deserializer)?;
    let Strict { match_labels, match_expressions } = strict.ok_or_else(|| {
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
    let options = serde_saphyr::options! { with_snippet: false };
    let detail =
        |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
    let policy: Policy = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
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
    let rules: Vec<&Rule> = policy.rules.iter().filter(|rule| selects(&rule.selector, labels)).collect();
    let (forbidden, required) = verdicts(&rules);
    let mut effect =
        PolicyEffect { forbidden: owned(&forbidden), required: BTreeSet::new(), overruled: BTreeMap::new() };
    let mut list = RuledList { spec: user.clone(), ..RuledList::default() };
    for module in &required {
        if !list.spec.modules.iter().any(|entry| entry.name == *module) {
            list.spec.modules.push(Module { name: (*module).to_owned(), ..Module::default() });
            effect.required.insert((*module).to_owned());
        }
    }
    list.fix(&rules.iter().flat_map(|rule| &rule.fix).collect::<Vec<_>>());
    list.manage(&required);
    list.replace_unavailable(&required, offered);
    let RuledList { spec, mut overruled, .. } = list;
    // Only user-made entries can be overruled.
    for user_entry in &user.modules {
        let entry = spec.modules.iter().find(|entry| entry.name == user_entry.name);
        let version = entry.and_then(|entry| {
            version_change(&VersionRequest::of(user_entry, user), &VersionRequest::of(entry, &spec))
        });
        let rest = overruled.remove(user_entry.name.as_str()).unwrap_or_default();
        let all: Vec<String> = version.into_iter().chain(rest).collect();
        if !all.is_empty() {
            effect.overruled.insert(user_entry.name.clone(), all.join(", "));
        }
    }
    (spec, effect)
}

/// Forbidden and required modules; the first rule that names a module decides.
fn verdicts<'p>(rules: &[&'p Rule]) -> (BTreeSet<&'p str>, BTreeSet<&'p str>) {
    let (mut forbidden, mut required) = (BTreeSet::new(), BTreeSet::new());
    for rule in rules {
        forbidden.extend(rule.forbid.iter().map(String::as_str).filter(|module| !required.contains(module)));
        required.extend(rule.require.iter().map(String::as_str).filter(|module| !forbidden.contains(module)));
    }
    (forbidden, required)
}

fn owned(modules: &BTreeSet<&str>) -> BTreeSet<String> {
    modules.iter().map(|module| (*module).to_owned()).collect()
}

/// A user's list under the policy.
#[derive(Default)]
struct RuledList<'p> {
    spec: KymaSpec,
    /// Changed fields by module, in words.
    overruled: BTreeMap<&'p str, Vec<String>>,
    /// Modules with the fields that a rule has fixed.
    fixed: BTreeSet<(&'p str, &'static str)>,
}

impl<'p> RuledList<'p> {
    /// Fixes fields of listed modules; the first fix of a field wins.
    fn fix(&mut self, fixes: &[&'p Fix]) {
        let with_version: BTreeSet<&str> =
            fixes.iter().filter(|fix| fix.version.is_some()).map(|fix| fix.name.as_str()).collect();
        for fix in fixes {
            let name = fix.name.as_str();
            let Some(entry) = self.spec.modules.iter_mut().find(|entry| entry.name == name) else { continue };
            let mut first = |field| self.fixed.insert((name, field));
            if let Some(channel) = &fix.channel
                && first("channel")
            {
                entry.channel = Some(channel.clone());
                // A user's version would bypass the channel.
                if !with_version.contains(name) {
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
                self.overruled.entry(name).or_default().push(format!("customResourcePolicy {policy:?}"));
                entry.custom_resource_policy = policy;
            }
            if let Some(managed) = fix.managed
                && first("managed")
                && entry.managed != managed
            {
                self.overruled.entry(name).or_default().push(format!("managed: {managed}"));
                entry.managed = managed;
            }
        }
    }

    /// Unmanaging would bypass the requirement, unless a rule fixes it.
    fn manage(&mut self, required: &BTreeSet<&'p str>) {
        for entry in self.spec.modules.iter_mut().filter(|entry| !entry.managed) {
            if let Some(module) = required.get(entry.name.as_str())
                && !self.fixed.contains(&(*module, "managed"))
            {
                entry.managed = true;
                self.overruled.entry(module).or_default().push("managed: true".to_owned());
            }
        }
    }

    /// Without any offered version, the user's entry and its fault stay.
    fn replace_unavailable(
        &mut self,
        required: &BTreeSet<&'p str>,
        offered: impl Fn(&KymaSpec, &Module) -> bool,
    ) {
        for name in required {
            let Some(at) = self.spec.modules.iter().position(|entry| entry.name == *name) else { continue };
            let is_fixed = ["channel", "version"].iter().any(|field| self.fixed.contains(&(*name, *field)));
            if is_fixed || offered(&self.spec, &self.spec.modules[at]) {
                continue;
            }
            let plain = Module { version: None, channel: None, ..self.spec.modules[at].clone() };
            let regular = Module { channel: Some(names::DEFAULT_CHANNEL.to_owned()), ..plain.clone() };
            if let Some(entry) = [plain, regular].into_iter().find(|entry| offered(&self.spec, entry)) {
                self.spec.modules[at] = entry;
            }
        }
    }
}

fn version_change(requested: &VersionRequest, effective: &VersionRequest) -> Option<String> {
    match (&requested.pin, &effective.pin) {
        _ if requested == effective => None,
        (Some(before), Some(now)) => Some(format!("version {now} instead of {before}")),
        (None, Some(now)) => Some(format!("version {now} instead of channel {}", requested.channel)),
        (Some(before), None) => Some(format!("channel {} instead of version {before}", effective.channel)),
        (None, None) => Some(format!("channel {} instead of {}", effective.channel, requested.channel)),
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
    fn a_required_module_ignores_unavailable_versions() {
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
        let instead = |cause: &str| Some(format!("channel regular instead of {cause}"));
        for (channel, entry, reported) in [
            ("regular", "{name: gauge, channel: none}", instead("none")),
            ("regular", "{name: gauge, version: 9.9.9}", instead("version 9.9.9")),
            ("none", "{name: gauge}", instead("none")),
            ("none", "{name: buoy}", None),
            ("regular", "{name: gauge, channel: regular}", None),
        ] {
            assert_eq!(ruled(channel, entry), (regular.clone(), reported), "{channel} {entry}");
        }
        let pinned = ruled("regular", "{name: gauge, version: 1.0.0}");
        assert_eq!(
            (pinned.0.pin.as_deref(), pinned.1),
            (Some("1.0.0"), None),
            "the user's choice of what there is"
        );
    }

    #[test]
    fn the_first_matching_rule_wins() {
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
    fn a_fixed_channel_overrides_a_pinned_version() {
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
    fn a_fixed_value_overrides_the_kymas_channel() {
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
    fn required_modules_stay_managed_unless_ruled_otherwise() {
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
    fn an_unreadable_policy_is_not_an_empty_one() {
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
        fn ruling_is_idempotent_and_loses_no_entry(
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
