//! Background faults.

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{Group, Share, Time, units};

/// Paths of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cut {
    /// Receiver to API server, and agent to receiver.
    Centre,
    /// Agent to receiver.
    Agent,
}

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Partition {
    /// Share selected by the seed.
    #[serde(deserialize_with = "units::nonzero_share")]
    pub runtimes: Share,
    /// Equal groups select equal runtimes.
    #[serde(default)]
    pub group: Option<Group>,
    /// Paths.
    pub cut: Cut,
    /// Duration.
    #[serde(rename = "for")]
    pub lasts: Time,
}

/// Faults of API servers.
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
    /// Processed, never answered.
    Hang,
    /// Neither processed nor answered.
    Lost,
    /// Connections end unanswered.
    Drop,
    /// Watches are silent after `time`.
    HalfOpen,
    /// Watches break off after `time`.
    BreakOff,
    /// Watches get 410 after `time`.
    Gone,
    /// Credentials are refused.
    Unauthorized,
    /// Requests fail and watches end.
    Restart,
    /// The clock is ahead by `time`.
    ClockAhead,
    /// The clock is behind by `time`.
    ClockBehind,
    /// `kyma-system` stays terminating.
    StuckNamespace,
    /// No workload becomes ready.
    NeverReady,
}

/// Affected users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Caller {
    /// All.
    #[default]
    All,
    /// The receiver.
    Receiver,
    /// The agents.
    Agents,
}

/// Affected requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Calls {
    /// All.
    #[default]
    All,
    /// Reads.
    Reads,
    /// Writes.
    Writes,
}

/// Affected API servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultTarget {
    /// Runtimes.
    #[default]
    Runtimes,
    /// KCP.
    Kcp,
}

/// A fault of API servers.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Fault {
    /// Kind.
    pub kind: FaultKind,
    /// API servers.
    #[serde(default)]
    pub at: FaultTarget,
    /// Share selected by the seed.
    #[serde(default = "Share::all", deserialize_with = "units::nonzero_share")]
    pub runtimes: Share,
    /// Equal groups select equal runtimes.
    #[serde(default)]
    pub group: Option<Group>,
    /// Users.
    #[serde(default, rename = "whose")]
    pub caller: Caller,
    /// Requests.
    #[serde(default)]
    pub calls: Calls,
    /// Share of requests, selected by the seed.
    #[serde(default = "Share::all", deserialize_with = "units::nonzero_share")]
    pub share: Share,
    /// Parameter of `kind`.
    #[serde(default = "Time::second")]
    pub time: Time,
    /// Duration.
    #[serde(rename = "for")]
    pub lasts: Time,
}

/// Rejects faults that KCP cannot have.
pub(super) fn possible<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fault, D::Error> {
    let fault = Fault::deserialize(deserializer)?;
    if fault.at == FaultTarget::Kcp && matches!(fault.kind, FaultKind::StuckNamespace | FaultKind::NeverReady)
    {
        return Err(D::Error::custom("at: stuckNamespace and neverReady are for runtimes only"));
    }
    Ok(fault)
}

/// A fault of the module registry.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Registry {
    /// Latency of answers.
    #[serde(default)]
    pub latency: Time,
    /// Status of refusals.
    #[serde(default, deserialize_with = "units::refusal")]
    pub refuse: Option<u16>,
    /// `Retry-After`, in whole seconds.
    #[serde(default)]
    pub retry_after: Option<Time>,
    /// Duration.
    #[serde(rename = "for")]
    pub lasts: Time,
}
