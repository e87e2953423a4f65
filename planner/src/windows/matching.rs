//! Which rule counts for a Kyma.

use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};
use tidewatch_api::names::labels;

use super::{
    policy::{Policy, Rule, Times},
    translate::translated,
};

/// Longest pattern, in bytes: some 200 ids of accounts.
pub(super) const MAX_PATTERN: usize = 8 * 1024;
/// Largest compiled pattern, in bytes: so much, and so much for each byte of its text. A pattern can name what it
/// matches, but not multiply it, and all patterns of a policy together stay in proportion to the file.
const COMPILED_BASE: usize = 16 * 1024;
const COMPILED_PER_BYTE: usize = 64;
/// Deepest nesting of groups.
const MAX_NESTING: u32 = 32;

/// What a rule can look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// The customer's global account.
    GlobalAccountId,
    /// The service plan.
    Plan,
    /// The runtime's region.
    Region,
    /// The region of the platform it belongs to.
    PlatformRegion,
}

impl Field {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::GlobalAccountId, Self::Plan, Self::Region, Self::PlatformRegion];

    /// Its name in the policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GlobalAccountId => "globalAccountID",
            Self::Plan => "plan",
            Self::Region => "region",
            Self::PlatformRegion => "platformRegion",
        }
    }

    /// The label of a Kyma in KCP that has the value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::GlobalAccountId => labels::GLOBAL_ACCOUNT_ID,
            Self::Plan => labels::BROKER_PLAN_NAME,
            Self::Region => labels::REGION,
            Self::PlatformRegion => labels::PLATFORM_REGION,
        }
    }
}

/// A regular expression of a policy, limited in length, nesting and compiled size. Matching takes time linear in
/// the value.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Pattern {
    /// Compiles a pattern; the error says in words for people what is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN {
            return Err(format!("the pattern has {} bytes, the limit is {MAX_PATTERN}", text.len()));
        }
        Ok(Self { text: text.to_owned(), regex: compile(text)? })
    }

    /// The pattern that matches a value only as a whole.
    pub(super) fn anchored(&self) -> Result<Self, String> {
        let text = format!("^(?:{})$", self.text);
        let regex = compile(&text)?;
        Ok(Self { text, regex })
    }

    /// As it is written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches anywhere in `value`.
    #[must_use]
    pub fn is_match(&self, value: &str) -> bool {
        self.regex.is_match(value.as_bytes())
    }

    /// Where it matches first in `value`, in bytes.
    pub(super) fn find(&self, value: &str) -> Option<std::ops::Range<usize>> {
        self.regex.find(value.as_bytes()).map(|found| found.range())
    }
}

/// `\d`, `\w`, `\b` and `(?i)` mean ASCII, as they do in Go. A class with other characters needs Unicode; a label's
/// value has none, but the pattern is still one.
fn compile(text: &str) -> Result<Regex, String> {
    let pattern = translated(text)?;
    let limit = COMPILED_BASE + COMPILED_PER_BYTE * text.len();
    let build = |unicode| {
        RegexBuilder::new(&pattern)
            .unicode(unicode)
            .size_limit(limit)
            .dfa_size_limit(limit)
            .nest_limit(MAX_NESTING)
            .build()
    };
    build(false).or_else(|_| build(true)).map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            format!(
                "the pattern is larger than {limit} bytes when compiled; use fewer or smaller repetitions"
            )
        }
        // The last line says what is wrong, the ones before draw it.
        other => {
            let text = other.to_string();
            let cause = text.lines().last().unwrap_or_default().trim();
            format!("not a regular expression: {}", cause.strip_prefix("error: ").unwrap_or(cause))
        }
    })
}

/// What a rule asks for: any of the patterns that are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    pub(super) patterns: Vec<(Field, Pattern)>,
}

impl Match {
    /// The patterns that are set, in the order of [`Field::ALL`].
    pub fn patterns(&self) -> impl Iterator<Item = (Field, &Pattern)> {
        self.patterns.iter().map(|(field, pattern)| (*field, pattern))
    }

    /// Whether any set pattern matches its value. A value that is missing or empty matches nothing, and nor does a
    /// rule without patterns.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.patterns().any(|(field, pattern)| {
            labels.get(field.label()).is_some_and(|value| !value.is_empty() && pattern.is_match(value))
        })
    }
}

impl Policy {
    /// The first rule that matches, with its index.
    #[must_use]
    pub fn rule_of(&self, labels: &BTreeMap<String, String>) -> Option<(usize, &Rule)> {
        self.rules().iter().enumerate().find(|(_, rule)| rule.matching.matches(labels))
    }

    /// The windows that count, in this order of preference: those of the first rule that matches, the default.
    pub(super) fn windows_of(&self, labels: &BTreeMap<String, String>) -> [&[Times]; 2] {
        [self.rule_of(labels).map_or(&[], |(_, rule)| &rule.windows), self.default_window()]
    }
}
