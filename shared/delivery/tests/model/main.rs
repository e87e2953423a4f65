//! Model of the delivery protocol: `outbox` and `ledger` as they run in production, between an agent
//! that crashes, receivers that crash, and a network that loses, repeats and reorders.
//!
//! Time is always [`tidewatch_delivery::Tick::ZERO`], so equal situations are equal states. What is
//! played, what was explored and how to explore more is in `docs/model.md`.

#[cfg(test)]
mod at_once;
#[cfg(test)]
mod checked;
#[cfg(test)]
mod frozen;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod walk;
#[cfg(test)]
mod world;
