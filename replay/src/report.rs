//! What a replay finds.

use serde::Serialize;
use tidewatch_engine::Cause;

/// A reconcile that was done again.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// When it began, in milliseconds of the record.
    pub began: f64,
    /// When it ended; `None` if it had not when the record ended.
    pub ended: Option<f64>,
    /// What was reconciled, as `Kind/name`.
    pub key: String,
    /// The Kyma.
    pub kyma: String,
    /// Why.
    pub causes: Vec<Cause>,
    /// How it ended.
    pub outcome: String,
    /// What it found.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// In how many seconds the next try is due at the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<f64>,
    /// What it called, in order.
    pub calls: Vec<Call>,
}

/// A call of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// `kcp`, or `runtime/` and the Kyma's name.
    pub to: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// What became of it: a status, or a word.
    pub answer: String,
}

/// Something that was done differently than in the record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// When, in milliseconds of the record.
    pub at: f64,
    /// In which reconcile.
    pub key: String,
    /// Its Kyma.
    pub kyma: String,
    /// What was done, or not done.
    pub what: String,
    /// What the record has instead.
    pub recorded: Vec<String>,
}

/// Something that a replay tells, in the order in which it was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Item {
    /// A reconcile.
    Decision(Decision),
    /// A difference.
    Divergence(Divergence),
    /// Something about the record itself.
    Note {
        /// When, in milliseconds of the record.
        at: f64,
        /// What.
        text: String,
    },
}

impl Item {
    /// The Kyma it is about; empty for what is about all of them.
    #[must_use]
    pub fn kyma(&self) -> &str {
        match self {
            Self::Decision(decision) => &decision.kyma,
            Self::Divergence(divergence) => &divergence.kyma,
            Self::Note { .. } => "",
        }
    }
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replayed {
    /// What was found, in order.
    pub items: Vec<Item>,
    /// Reconciles.
    pub decisions: usize,
    /// Differences.
    pub divergences: usize,
}
