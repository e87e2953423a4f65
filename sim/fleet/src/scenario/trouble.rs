//! What goes wrong, in the background of a scenario.

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{Group, Share, Time, units};

/// What is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cut {
    /// The way between the runtime and the centre: the receiver does not reach its API server, its agent not the
    /// receiver.
    Centre,
    /// Only the agent's way to the receiver.
    Agent,
}

/// Runtimes are cut off.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Partition {
    /// How many; the seed chooses them.
    #[serde(deserialize_with = "units::somebody")]
    pub runtimes: Share,
    /// Steps of the same group choose the same runtimes; without, each step chooses anew.
    #[serde(default)]
    pub group: Option<Group>,
    /// What is cut.
    pub cut: Cut,
    /// How long.
    #[serde(rename = "for")]
    pub lasts: Time,
}

/// What API servers do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultKind {
    /// Answers take `time`.
    Latency,
    /// 429 with `Retry-After` of `time`.
    TooManyRequests,
    /// 503.
    Unavailable,
    /// 500.
    Internal,
    /// Requests are done and never answered.
    Hang,
    /// Requests are not done and never answered.
    Lost,
    /// Connections end without an answer.
    Drop,
    /// Watches say nothing after `time` and do not end.
    HalfOpen,
    /// Watches break off after `time`.
    BreakOff,
    /// Watches end with 410 after `time`.
    Gone,
    /// Credentials are refused.
    Unauthorized,
    /// The API server restarts: nothing answers, and what is open ends.
    Restart,
    /// The clock is ahead by `time`.
    ClockAhead,
    /// The clock is behind by `time`.
    ClockBehind,
    /// The namespace `kyma-system` is in Terminating, and does not go.
    StuckNamespace,
    /// No workload becomes ready.
    NeverReady,
}

/// Whose requests are hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Whose {
    /// Everybody's.
    #[default]
    All,
    /// The receiver's.
    Receiver,
    /// The agents'.
    Agents,
}

/// Which requests are hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Calls {
    /// All.
    #[default]
    All,
    /// Those that change nothing.
    Reads,
    /// Those that change something.
    Writes,
}

/// Which API servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Where {
    /// Those of runtimes.
    #[default]
    Runtimes,
    /// KCP's.
    Kcp,
}

/// API servers do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// Which.
    #[serde(default)]
    pub at: Where,
    /// How many runtimes; the seed chooses them.
    #[serde(default = "Share::all", deserialize_with = "units::somebody")]
    pub runtimes: Share,
    /// Steps of the same group choose the same runtimes; without, each step chooses anew.
    #[serde(default)]
    pub group: Option<Group>,
    /// Whose requests.
    #[serde(default)]
    pub whose: Whose,
    /// Which requests.
    #[serde(default)]
    pub calls: Calls,
    /// Which share of the requests; the seed chooses them.
    #[serde(default = "Share::all", deserialize_with = "units::somebody")]
    pub share: Share,
    /// What `kind` needs a time for.
    #[serde(default = "Time::second")]
    pub time: Time,
    /// How long.
    #[serde(rename = "for")]
    pub lasts: Time,
}

/// A fault that can be where it is said to be.
pub(super) fn possible<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fault, D::Error> {
    let fault = Fault::deserialize(deserializer)?;
    if fault.at == Where::Kcp && matches!(fault.kind, FaultKind::StuckNamespace | FaultKind::NeverReady) {
        return Err(D::Error::custom("at: stuckNamespace and neverReady are for runtimes only"));
    }
    Ok(fault)
}

/// The registry of modules does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Registry {
    /// How long each answer takes.
    #[serde(default)]
    pub latency: Time,
    /// The status with which it refuses.
    #[serde(default, deserialize_with = "units::refusal")]
    pub refuse: Option<u16>,
    /// What `Retry-After` says then, in whole seconds.
    #[serde(default)]
    pub retry_after: Option<Time>,
    /// How long.
    #[serde(rename = "for")]
    pub lasts: Time,
}
