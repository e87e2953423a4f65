//! States and related types.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::time;

/// State of a Kyma, a module, a Manifest or a Watcher.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum State {
    /// Work is under way or waiting for something.
    Processing,
    /// Being removed.
    Deleting,
    /// Matches the desired state.
    Ready,
    /// Failed; the message has the reason and the next attempt.
    Error,
    /// Unknown.
    #[default]
    #[serde(rename = "")]
    Empty,
    /// Usable, but the user must act.
    Warning,
    /// Managed by the user.
    Unmanaged,
}

impl State {
    /// Every state, in the CRDs' order.
    pub const ALL: [Self; 7] = [
        Self::Processing,
        Self::Deleting,
        Self::Ready,
        Self::Error,
        Self::Empty,
        Self::Warning,
        Self::Unmanaged,
    ];

    /// The serialized text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "Processing",
            Self::Deleting => "Deleting",
            Self::Ready => "Ready",
            Self::Error => "Error",
            Self::Empty => "",
            Self::Warning => "Warning",
            Self::Unmanaged => "Unmanaged",
        }
    }

    /// Parses a state, also from other vendors' kinds.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// Whether the state is unknown.
    // By reference, as serde's `skip_serializing_if` requires.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub fn is_empty(&self) -> bool {
        *self == Self::Empty
    }

    /// Worst state of all parts: Error, Warning, Processing, else Ready. Other states are ignored.
    #[must_use]
    pub fn aggregate(parts: impl IntoIterator<Item = Self>) -> Self {
        const ORDER: [State; 4] = [State::Ready, State::Processing, State::Warning, State::Error];
        let worst = parts.into_iter().filter_map(|part| ORDER.iter().position(|state| *state == part)).max();
        ORDER[worst.unwrap_or(0)]
    }

    /// [`State::aggregate`] for a Kyma: Ready only if `all_true`.
    ///
    /// The caller picks the conditions. The catalog's is not among them: no module needs the catalog.
    #[must_use]
    pub fn aggregate_with_conditions(parts: impl IntoIterator<Item = Self>, all_true: bool) -> Self {
        match Self::aggregate(parts) {
            Self::Ready if !all_true => Self::Processing,
            state => state,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Last operation, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(!default)]
pub struct LastOperation {
    /// Operation, or the reason for its failure.
    pub operation: String,
    /// Time of the operation.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "time::moment")]
    pub last_update_time: Option<Time>,
}

/// Handling of a module's default custom resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CustomResourcePolicy {
    /// Created with the module, deleted with it.
    #[default]
    CreateAndDelete,
    /// Managed by the user.
    Ignore,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_state_wins() {
        use State::{Deleting, Empty, Error, Processing, Ready, Unmanaged, Warning};
        let cases: [(&[State], State); 7] = [
            (&[], Ready),
            (&[Ready, Unmanaged], Ready),
            (&[Ready, Processing], Processing),
            (&[Warning, Processing], Warning),
            (&[Warning, Error, Processing], Error),
            (&[Error, Warning], Error),
            (&[Deleting, Empty], Ready),
        ];
        for (parts, expected) in cases {
            assert_eq!(State::aggregate(parts.iter().copied()), expected, "{parts:?}");
        }
    }

    #[test]
    fn a_false_condition_only_prevents_ready() {
        assert_eq!(State::aggregate_with_conditions([State::Ready], false), State::Processing);
        assert_eq!(State::aggregate_with_conditions([State::Ready], true), State::Ready);
        assert_eq!(State::aggregate_with_conditions([State::Error], false), State::Error);
    }

    #[test]
    fn state_text_and_wire_format_agree() {
        for state in State::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        assert_eq!(State::parse("Sleeping"), None);
    }
}
