//! The lines of a record: one JSON object each.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::plan::needs;

/// The format that this program writes, and the only one that it reads: a record is for the code that wrote it, or little newer.
pub const FORMAT: u32 = 2;

/// A line with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped {
    /// Milliseconds since the record began, on one monotonic clock.
    pub at: f64,
    /// What happened.
    #[serde(flatten)]
    pub line: Line,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    /// The first line: who wrote the record, and by which settings.
    Start(Box<Start>),
    /// A watch on KCP told something.
    Kcp(KcpEvent),
    /// An agent's event was taken, after its sender was verified.
    Event(Box<RuntimeEvent>),
    /// Somebody else than engine, KCP or an agent asked for a reconcile.
    Push {
        /// What was asked for, as `Kind/name`.
        key: WorkName,
        /// Its class.
        class: String,
        /// Why, as in the history.
        cause: Option<Value>,
    },
    /// The agent's configuration was asked for anew.
    Configure {
        /// The Kyma.
        kyma: String,
        /// Why.
        cause: Option<Value>,
    },
    /// The whole catalog was asked for anew.
    Catalog {
        /// The Kyma.
        kyma: String,
        /// Why.
        cause: Option<Value>,
    },
    /// What a runtime's way of events is worth.
    Path {
        /// The Kyma.
        kyma: String,
        /// Whether events are proven to arrive.
        proven: bool,
        /// One word.
        reason: String,
        /// For people.
        message: String,
    },
    /// What may be written is another thing from now on.
    Mode {
        /// Its label.
        mode: String,
    },
    /// The policy of maintenance windows was read.
    Windows {
        /// The document.
        text: String,
        /// Which one it is.
        name: String,
    },
    /// A reconcile begins.
    Begin {
        /// Its number in this record.
        work: u64,
        /// What is reconciled.
        key: WorkName,
        /// Its class.
        class: String,
        /// Why, as in the history.
        causes: Vec<Value>,
        /// How many causes there were; the history has the first few.
        #[serde(default)]
        count: usize,
        /// How often one of them came again.
        #[serde(default, skip_serializing_if = "is_zero")]
        repeats: usize,
    },
    /// A reconcile looks at, or changes, what is known of KCP.
    Turn {
        /// The reconcile.
        work: u64,
        /// Where in it.
        place: String,
    },
    /// A reconcile calls an API server.
    Ask(Ask),
    /// What became of a call.
    Answer {
        /// Its number.
        call: u64,
        /// What was answered.
        #[serde(flatten)]
        answer: Answer,
    },
    /// Something that a reconcile has read elsewhere: of a registry, of a kubeconfig.
    Value {
        /// The reconcile.
        work: u64,
        /// What was read.
        what: String,
        /// What it was, or why it could not be read.
        value: Value,
    },
    /// The objects of a module's layer, told once.
    Layer {
        /// Its digest.
        digest: String,
        /// Its objects, without the data of Secrets.
        objects: Vec<Value>,
    },
    /// A reconcile has ended.
    End {
        /// Its number.
        work: u64,
        /// How.
        outcome: String,
        /// What it found.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
        /// In how many seconds the next try is due at the latest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<f64>,
        /// What the clock said each time it was asked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clock: Vec<Timestamp>,
    },
    /// These many lines are missing here: they came faster than they could be written.
    Gap {
        /// How many.
        lines: u64,
    },
    /// The last line of a record that has reached its limit.
    Full {
        /// The limit in bytes.
        limit: u64,
    },
    /// The last line of a record that ended with its program.
    Closed,
}

/// Who wrote a record, and the settings that decide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// See [`FORMAT`].
    pub format: u32,
    /// The program.
    pub program: String,
    /// Its version.
    pub version: String,
    /// The time of `at` 0.
    pub started: Timestamp,
    /// The namespace in KCP.
    pub namespace: String,
    /// The registry of modules.
    pub modules: String,
    /// Reconciles at the same time.
    pub workers: usize,
    /// Reconciles of one runtime at the same time.
    pub per_runtime: usize,
    /// Deadline of a reconcile, in milliseconds.
    pub deadline: u64,
    /// Deadline of a call to a runtime, in milliseconds.
    pub call_deadline: u64,
    /// Users who may watch, besides the agent's service account.
    pub agent_users: Vec<String>,
    /// Modules that only those get who are selected.
    pub restricted_modules: Vec<String>,
    /// The name of the pull secret that runtimes get.
    #[serde(default)]
    pub pull_secret: Option<String>,
    /// Whether a module is as its own resource says.
    pub module_cr_state: bool,
    /// Whether the Go manager's watcher stays in runtimes that are proven.
    #[serde(default)]
    pub keep_watcher: bool,
    /// Least time left of a maintenance window, in milliseconds.
    pub min_window: u64,
    /// Over which time a change of the catalog is spread, in milliseconds.
    pub rollout_window: u64,
    /// For how long a module waits for what it requires without a Warning, in milliseconds; as by default if it is not said.
    #[serde(default = "default_patience")]
    pub patience: u64,
}

/// One event of a watch on KCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KcpEvent {
    /// The kind that is watched.
    pub kind: String,
    /// What happened.
    pub event: KcpChange,
    /// The object's name; empty for a list's begin and end.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The object, without the data of Secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Value>,
    /// Why the object cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a watch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KcpChange {
    /// A list begins.
    Init,
    /// An object of a list.
    InitApply,
    /// A list has ended.
    InitDone,
    /// An object is new or has changed.
    Apply,
    /// An object is gone.
    Delete,
}

/// An agent's event. Of an object it has the name, never its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RuntimeEvent {
    /// The runtime's id, as its certificate says.
    pub runtime: String,
    /// Its Kyma.
    pub kyma: String,
    /// The agent's epoch; `v2` for an event of the older contract.
    pub epoch: String,
    /// The event's number in the epoch.
    pub seq: u64,
    /// The watch.
    pub watch: String,
    /// The object's group.
    pub group: String,
    /// Its version.
    pub version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, if the agent knew it.
    pub uid: String,
    /// Its resource version, if the agent knew it.
    pub resource_version: String,
    /// `changed`, `gone` or `resync`.
    pub change: String,
    /// Whether it was reported because all were.
    pub listed: bool,
    /// The reconciles that it did not ask for: they had read or written that very version, or were in hand. What was news at the end of
    /// one that was in hand is a `push`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_news: Vec<WorkName>,
    /// The reconciles that it was for, if what is known had changed between the look for them and this line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<WorkName>>,
}

/// A reconcile's key in a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkName {
    /// Its kind, as in metrics.
    pub kind: String,
    /// The Kyma it is of; empty for what is about all of them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kyma: String,
    /// The name of what is not named like its Kyma.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A call to an API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ask {
    /// Its number in this record.
    pub call: u64,
    /// The reconcile that makes it.
    pub work: u64,
    /// `kcp`, or `runtime/` and the Kyma's name.
    pub to: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// A hash of what was sent, without the data of Secrets; none for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum Answer {
    /// The server has answered.
    Status {
        /// The status.
        status: u16,
        /// What it sent, without the data of Secrets.
        body: Content,
    },
    /// There was no answer.
    Failed {
        /// Why.
        message: String,
    },
    /// The server asked for patience.
    Throttled {
        /// For how long, in milliseconds.
        retry_after: Option<u64>,
    },
    /// The answer was larger than the limit.
    TooLarge,
    /// Nobody waited for the answer any more.
    Cut,
}

/// The body of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// JSON.
    Json(Value),
    /// Anything else.
    Text(String),
}

/// Words that are `'static` in the engine and come back from a record. As many as a program has; if a damaged record has
/// more, the rest is `other`.
const WORDS: usize = 1024;

/// The same word, kept for as long as the program runs.
pub fn word(text: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock();
    if let Some(known) = known.get(text) {
        return known;
    }
    if known.len() >= WORDS || text.len() > 100 {
        return "other";
    }
    let kept: &'static str = Box::leak(text.to_owned().into_boxed_str());
    known.insert(kept);
    kept
}

pub(crate) fn word_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    String::deserialize(deserializer).map(|text| word(&text))
}

fn default_patience() -> u64 {
    millis(needs::PATIENCE)
}

/// Whole milliseconds, for settings.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// For what is left out of a line.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}
