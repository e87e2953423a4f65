//! What things are called in a simulated fleet.

/// KCP's cluster.
pub const KCP: &str = "kcp";
/// The user that the receiver is in KCP and in each runtime.
pub const RECEIVER_USER: &str = "tidewatch-receiver";
/// What agents send as `User-Agent`.
pub const AGENT: &str = "tidewatch-agent";
/// The user that an agent is in its runtime.
pub const AGENT_USER: &str = "system:serviceaccount:kyma-system:tidewatch-agent";

/// The runtime's Kyma in KCP, and its cluster.
pub fn kyma(runtime: usize) -> String {
    format!("sim-{runtime:05}")
}

/// Whether that is a name of [`kyma`].
pub fn is_kyma(name: &str) -> bool {
    name.strip_prefix("sim-")
        .is_some_and(|number| number.len() >= 5 && number.bytes().all(|b| b.is_ascii_digit()))
}

/// The runtime's id.
pub fn id(runtime: usize) -> String {
    format!("runtime-{runtime:05}")
}

/// An agent's token.
pub fn agent_token(secret: &str, runtime: usize) -> String {
    format!("{secret}-agent-{runtime}")
}
