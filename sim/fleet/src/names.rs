//! Names in a simulated fleet.

/// KCP's cluster.
pub const KCP: &str = "kcp";
/// User of the receiver.
pub const RECEIVER_USER: &str = "tidewatch-receiver";
/// `User-Agent` of agents.
pub const AGENT: &str = "tidewatch-agent";
/// User of an agent.
pub const AGENT_USER: &str = "system:serviceaccount:kyma-system:tidewatch-agent";

/// Name of a runtime's Kyma and cluster.
pub fn kyma(runtime: usize) -> String {
    format!("sim-{runtime:05}")
}

/// Whether `name` has the form of [`kyma`].
pub fn is_kyma(name: &str) -> bool {
    name.strip_prefix("sim-")
        .is_some_and(|number| number.len() >= 5 && number.bytes().all(|b| b.is_ascii_digit()))
}

/// A runtime's ID.
pub fn id(runtime: usize) -> String {
    format!("runtime-{runtime:05}")
}

/// An agent's token.
pub fn agent_token(secret: &str, runtime: usize) -> String {
    format!("{secret}-agent-{runtime}")
}
