//! Rule selection.

use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};
use tidewatch_api::names::labels;

use super::{
    policy::{Policy, Rule, WindowTimes},
    translate::translated,
};

/// Bytes: about 200 account ids.
pub(super) const MAX_PATTERN: usize = 8 * 1024;
/// Compiled bytes: a base, and a share per byte of text, which limits repetition.
const COMPILED_BASE: usize = 16 * 1024;
const COMPILED_PER_BYTE: usize = 64;
const MAX_NESTING: u32 = 32;

/// Matchable value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Customer's global account.
    GlobalAccountId,
    /// Service plan.
    Plan,
    /// Runtime's region.
    Region,
    /// Platform's region.
    PlatformRegion,
}

impl Field {
    /// All fields.
    pub const ALL: [Self; 4] = [Self::GlobalAccountId, Self::Plan, Self::Region, Self::PlatformRegion];

    /// Name in the policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GlobalAccountId => "globalAccountID",
            Self::Plan => "plan",
            Self::Region => "region",
            Self::PlatformRegion => "platformRegion",
        }
    }

    /// Kyma label in KCP.
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

/// Regular expression, limited in length, nesting and size; matching is linear.
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
    /// Compiles; errors are readable.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > MAX_PATTERN {
            return Err(format!("the pattern has {} bytes, the limit is {MAX_PATTERN}", text.len()));
        }
        Ok(Self { text: text.to_owned(), regex: compile(text)? })
    }

    /// Matches only whole values.
    pub(super) fn anchored(&self) -> Result<Self, String> {
        let text = format!("^(?:{})$", self.text);
        let regex = compile(&text)?;
        Ok(Self { text, regex })
    }

    /// Original text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Matches anywhere in `value`.
    #[must_use]
    pub fn is_match(&self, value: &str) -> bool {
        self.regex.is_match(value.as_bytes())
    }

    /// First match, in bytes.
    pub(super) fn find(&self, value: &str) -> Option<std::ops::Range<usize>> {
        self.regex.find(value.as_bytes()).map(|found| found.range())
    }
}

/// `\d`, `\w`, `\b` and `(?i)` mean ASCII, as in Go. Non-ASCII classes need Unicode, and are valid.
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
        // The cause is on the last line, below a drawing.
        other => {
            let text = other.to_string();
            let cause = text.lines().last().unwrap_or_default().trim();
            format!("not a regular expression: {}", cause.strip_prefix("error: ").unwrap_or(cause))
        }
    })
}

/// Alternative patterns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    pub(super) patterns: Vec<(Field, Pattern)>,
}

impl Match {
    /// Patterns in [`Field::ALL`] order.
    pub fn patterns(&self) -> impl Iterator<Item = (Field, &Pattern)> {
        self.patterns.iter().map(|(field, pattern)| (*field, pattern))
    }

    /// Returns whether any pattern matches; missing or empty values never do.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.patterns().any(|(field, pattern)| {
            labels.get(field.label()).is_some_and(|value| !value.is_empty() && pattern.is_match(value))
        })
    }
}

impl Policy {
    /// First matching rule and its index.
    #[must_use]
    pub fn rule_of(&self, labels: &BTreeMap<String, String>) -> Option<(usize, &Rule)> {
        self.rules().iter().enumerate().find(|(_, rule)| rule.matching.matches(labels))
    }

    /// Windows of the first matching rule, then the default.
    pub(super) fn windows_of(&self, labels: &BTreeMap<String, String>) -> [&[WindowTimes]; 2] {
        [self.rule_of(labels).map_or(&[], |(_, rule)| &rule.windows), self.default_window()]
    }
}
