//! Scenarios: steps on a fleet, in YAML (`docs/develop/scenarios.md`).

mod trouble;
mod units;

use std::{fmt, path::Path};

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::{MessageFormatter as _, UserMessageFormatter};
pub use trouble::{Caller, Calls, Cut, Fault, FaultKind, FaultTarget, Partition, Registry};
pub use units::{Group, Rate, Share, Time};

/// Largest file, in bytes.
const MAX_FILE: usize = 256 * 1024;
/// Most steps.
const MAX_STEPS: usize = 1_000;

/// A scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Scenario {
    /// Name.
    pub name: String,
    /// Purpose, in a sentence.
    #[serde(default)]
    pub about: String,
    /// Initially registered runtimes.
    #[serde(default = "Share::all")]
    pub start: Share,
    /// Whether the engine installs the agents, which request their certificates. By default they have certificates from the start.
    #[serde(default)]
    pub enrolment: bool,
    /// Limit for changes beside a fault.
    #[serde(default)]
    pub goal: Option<Goal>,
    /// Steps, in order.
    #[serde(deserialize_with = "steps")]
    pub steps: Vec<Step>,
}

/// Limit for changes beside a fault: `times` as long, and `plus`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Goal {
    /// Factor of the p99, 1 to 1000.
    #[serde(deserialize_with = "units::times")]
    pub times: f32,
    /// Additional time.
    #[serde(default)]
    pub plus: Time,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Waits until all is as desired and acknowledged.
    Ready(Within),
    /// Like `Ready`, but a timeout is no error: the oracle counts differences.
    Settle(Within),
    /// Waits for proven event paths.
    Proven(Within),
    /// Waits until the receiver is idle.
    Idle(Within),
    /// Waits.
    Wait(Time),
    /// Registers more runtimes.
    Enrol(Enrol),
    /// Rotates the CA.
    Rotate(Rotate),
    /// Changes runtimes.
    Change(Change),
    /// Releases new module versions.
    Bump(Bump),
    /// Restarts the receiver.
    Receiver(Receiver),
    /// Restarts agents.
    Agents(Agents),
    /// Cuts runtimes off.
    Partition(Partition),
    /// Breaks API servers.
    Fault(#[serde(deserialize_with = "trouble::possible")] Fault),
    /// Breaks the registry.
    Registry(Registry),
}

/// A time limit.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Within {
    /// Limit.
    pub within: Time,
}

/// Registration of runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Enrol {
    /// Share to reach.
    pub runtimes: Share,
    /// Runtimes per second.
    pub rate: Rate,
}

/// A rotation of the CA, until its end.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Rotate {
    /// Limit.
    pub within: Time,
    /// Changes during the rotation.
    #[serde(default)]
    pub meanwhile: Option<Change>,
}

/// Changes by users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// Drift of a Deployment, to be reverted.
    Drift,
    /// Deletion of a Deployment, to be restored.
    Delete,
    /// A module on the user's list.
    Toggle,
    /// The Kyma's channel.
    Channel,
}

/// Changes in unaffected runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Others {
    /// Before the fault.
    Without,
    /// Beside the fault.
    Beside,
}

/// A change of runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Change {
    /// Kind.
    #[serde(rename = "what")]
    pub action: ChangeKind,
    /// Share selected by the seed.
    #[serde(deserialize_with = "units::nonzero_share")]
    pub runtimes: Share,
    /// Equal groups select equal runtimes.
    #[serde(default)]
    pub group: Option<Group>,
    /// Per second; by default all at once.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// Unaffected runtimes, measured separately.
    #[serde(default)]
    pub others: Option<Others>,
}

/// New module versions in a channel.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Bump {
    /// Number of modules, from the first.
    #[serde(deserialize_with = "units::at_least_one")]
    pub modules: usize,
    /// Channel.
    #[serde(default)]
    pub channel: Channel,
}

/// A channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Channel {
    /// The initial channel.
    #[default]
    Regular,
    /// The other one.
    Fast,
}

impl Channel {
    /// Name in a Kyma.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Fast => "fast",
        }
    }

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Regular => Self::Fast,
            Self::Fast => Self::Regular,
        }
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum How {
    /// SIGTERM.
    Restart,
    /// SIGKILL.
    Kill,
}

/// A restart of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Receiver {
    /// How it ends.
    #[serde(rename = "do")]
    pub how: How,
    /// Downtime.
    #[serde(default)]
    pub down: Time,
    /// Changes during the downtime.
    #[serde(default)]
    pub meanwhile: Option<Change>,
}

/// A restart of agents.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Agents {
    /// How they end.
    #[serde(rename = "do")]
    pub how: How,
    /// Share selected by the seed.
    #[serde(deserialize_with = "units::nonzero_share")]
    pub runtimes: Share,
    /// Equal groups select equal runtimes.
    #[serde(default)]
    pub group: Option<Group>,
}

/// Reasons to reject a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// Neither a file nor a shipped scenario.
    #[error(
        "there is no scenario '{name}': it is no file, and those that are shipped are {}",
        shipped_names()
    )]
    Unknown {
        /// Requested name.
        name: String,
    },
    /// The file cannot be read.
    #[error("the scenario {0} cannot be read")]
    Read(String, #[source] std::io::Error),
    /// It is too large.
    #[error("the scenario {0} is larger than {MAX_FILE} bytes; is it the right file?")]
    TooLarge(String),
    /// It needs more modules.
    #[error(
        "the scenario {scenario} is about {wanted} modules, and each runtime has {modules}; give --modules {wanted}"
    )]
    TooFew {
        /// Scenario.
        scenario: String,
        /// Needed modules.
        wanted: usize,
        /// Available modules.
        modules: usize,
    },
    /// Invalid content.
    #[error("{file}:{}: {problem} (docs/develop/scenarios.md has all of it)", Position(*.position))]
    Wrong {
        /// File.
        file: String,
        /// Line and column, from 1.
        position: Option<(u64, u64)>,
        /// Problem and allowed values.
        problem: String,
    },
}

struct Position(Option<(u64, u64)>);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((line, column)) => write!(f, "{line}:{column}"),
            None => f.write_str("?"),
        }
    }
}

/// Shipped scenarios: name and text.
pub const SHIPPED: [(&str, &str); 13] = [
    ("steady", include_str!("../../scenarios/steady.yaml")),
    ("storm", include_str!("../../scenarios/storm.yaml")),
    ("channel-bump", include_str!("../../scenarios/channel-bump.yaml")),
    ("rollout", include_str!("../../scenarios/rollout.yaml")),
    ("receiver-restart", include_str!("../../scenarios/receiver-restart.yaml")),
    ("changed-while-down", include_str!("../../scenarios/changed-while-down.yaml")),
    ("one-bad-runtime", include_str!("../../scenarios/one-bad-runtime.yaml")),
    ("stuck-namespace", include_str!("../../scenarios/stuck-namespace.yaml")),
    ("never-ready", include_str!("../../scenarios/never-ready.yaml")),
    ("registry-429", include_str!("../../scenarios/registry-429.yaml")),
    ("region-outage", include_str!("../../scenarios/region-outage.yaml")),
    ("enrolment", include_str!("../../scenarios/enrolment.yaml")),
    ("certificates", include_str!("../../scenarios/certificates.yaml")),
];

fn shipped_names() -> String {
    SHIPPED.map(|(name, _)| name).join(", ")
}

impl Scenario {
    /// Loads a shipped scenario or a file.
    pub fn load(name: &str) -> Result<Self, ScenarioError> {
        if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        if !path.exists() {
            return Err(ScenarioError::Unknown { name: name.to_owned() });
        }
        let size = std::fs::metadata(path).map_err(|e| ScenarioError::Read(name.to_owned(), e))?.len();
        if size > MAX_FILE as u64 {
            return Err(ScenarioError::TooLarge(name.to_owned()));
        }
        let bytes = std::fs::read(path).map_err(|e| ScenarioError::Read(name.to_owned(), e))?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Self::parse(name, text),
            Err(error) => Err(ScenarioError::Wrong {
                file: name.to_owned(),
                position: Some(position_of(bytes.get(..error.valid_up_to()).unwrap_or_default())),
                problem: "this is no text in UTF-8; is it the right file?".to_owned(),
            }),
        }
    }

    /// Parses a text; `file` is for messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let wrong = |position, problem| ScenarioError::Wrong { file: file.to_owned(), position, problem };
        let scenario: Self = serde_saphyr::from_str(text).map_err(|error| {
            let position = error.location().map(|at| (at.line(), at.column()));
            wrong(position, plain(error.without_snippet()))
        })?;
        let rotates = scenario.steps.iter().any(|step| matches!(step, Step::Rotate(_)));
        if rotates && !scenario.enrolment {
            return Err(wrong(None, "the step 'rotate' needs 'enrolment: true'".to_owned()));
        }
        Ok(scenario)
    }

    /// Checks the number of modules.
    pub fn fits(&self, modules: usize) -> Result<(), ScenarioError> {
        let bumped = |step: &Step| if let Step::Bump(bump) = step { bump.modules } else { 0 };
        match self.steps.iter().map(bumped).max() {
            Some(wanted) if wanted > modules => {
                Err(ScenarioError::TooFew { scenario: self.name.clone(), wanted, modules })
            }
            _ => Ok(()),
        }
    }
}

fn steps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Step>, D::Error> {
    let steps = Vec::deserialize(deserializer)?;
    if steps.is_empty() || steps.len() > MAX_STEPS {
        return Err(D::Error::custom(format!("steps: 1 to {MAX_STEPS} steps are allowed")));
    }
    Ok(steps)
}

impl Step {
    /// Whether the Lease must expire before the next receiver works.
    pub fn kills(&self) -> bool {
        matches!(self, Self::Receiver(Receiver { how: How::Kill, .. }))
    }

    /// Whether it needs this program's receiver or agents.
    pub fn needs_ours(&self) -> bool {
        matches!(
            self,
            Self::Receiver(_)
                | Self::Agents(_)
                | Self::Partition(_)
                | Self::Proven(_)
                | Self::Idle(_)
                | Self::Rotate(_)
        )
    }

    /// A short description.
    pub fn words(&self) -> String {
        match self {
            Self::Ready(Within { within }) => format!("ready (at most {within})"),
            Self::Settle(Within { within }) => format!("settle (at most {within})"),
            Self::Proven(Within { within }) => format!("proven (at most {within})"),
            Self::Idle(Within { within }) => format!("idle (at most {within})"),
            Self::Wait(time) => format!("wait {time}"),
            Self::Enrol(Enrol { runtimes, rate }) => {
                format!("enrol up to {runtimes} of the runtimes, {rate}")
            }
            Self::Change(change) => change.words(),
            Self::Bump(Bump { modules, channel }) => {
                format!("next version of {modules} modules in channel {}", channel.name())
            }
            Self::Receiver(Receiver { how, down, meanwhile }) => {
                format!("receiver: {}, down for {down}{}", word(how), meanwhile_words(*meanwhile))
            }
            Self::Rotate(Rotate { within, meanwhile }) => {
                format!("rotation of the CA (at most {within}){}", meanwhile_words(*meanwhile))
            }
            Self::Agents(Agents { how, runtimes, .. }) => {
                format!("agents: {} {runtimes}", word(how))
            }
            Self::Partition(Partition { runtimes, cut, lasts, .. }) => {
                format!("{runtimes} of the runtimes cut off ({}) for {lasts}", word(cut))
            }
            Self::Fault(Fault { kind, runtimes, share, lasts, at, .. }) => {
                let at = if *at == FaultTarget::Kcp {
                    "KCP".to_owned()
                } else {
                    format!("{runtimes} of the runtimes")
                };
                format!("{} at {at}, {share} of the calls, for {lasts}", word(kind))
            }
            Self::Registry(Registry { lasts, .. }) => format!("a bad registry for {lasts}"),
        }
    }
}

fn meanwhile_words(change: Option<Change>) -> String {
    change.map_or_else(String::new, |change| format!("; meanwhile {}", change.words()))
}

impl Change {
    fn words(&self) -> String {
        let action = word(&self.action);
        self.rate.map_or_else(
            || format!("{action} in {} at once", self.runtimes),
            |rate| format!("{action} in {}, {rate}", self.runtimes),
        )
    }
}

fn word(choice: &impl fmt::Debug) -> String {
    let name = format!("{choice:?}");
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Line and column, from 1.
fn position_of(before: &[u8]) -> (u64, u64) {
    let lines = before.split(|byte| *byte == b'\n');
    let column = lines.clone().next_back().map_or(0, |line| String::from_utf8_lossy(line).chars().count());
    (lines.count() as u64, column as u64 + 1)
}

fn plain(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    let text = match error {
        Error::Eof { .. } => "this ends too early; a scenario has a name and steps".to_owned(),
        Error::DuplicateMappingKey { key, .. } => match key {
            Some(key) => format!("'{key}' is here twice"),
            None => "the same field is here twice".to_owned(),
        },
        Error::ExpectedMappingEndAfterEnumVariantValue { .. } => {
            "a step does one thing; the next begins with '- '".to_owned()
        }
        Error::Unexpected { expected: "mapping start", .. } => {
            "fields are missing here, as in 'ready: {within: 5m}'".to_owned()
        }
        Error::Unexpected { expected: "sequence start", .. } => {
            "a list is missing here, one '- ' for each".to_owned()
        }
        Error::Unexpected { expected: "string scalar", .. } => "a word is missing here".to_owned(),
        Error::MultipleDocuments { .. } => "a file is one scenario; a '---' begins another one".to_owned(),
        Error::UnknownAnchor { .. } => "there is no '&' of this name before it".to_owned(),
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            format!("'{variant}' is not known here; it is one of {}", expected.join(", "))
        }
        Error::SerdeUnknownField { field, expected, .. } => {
            format!("'{field}' is not known here; there are {}", expected.join(", "))
        }
        Error::SerdeMissingField { field, .. } => format!("'{field}' is missing"),
        Error::InvalidScalar { ty, .. } if ty.starts_with('u') => {
            "a whole number is missing here, 0 or more".to_owned()
        }
        other => UserMessageFormatter.format_message(other).into_owned(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

#[cfg(test)]
mod tests;
