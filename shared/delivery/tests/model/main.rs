//! Model of the delivery protocol: the production `outbox` and `ledger` with crashing agents and receivers, and a
//! network that loses, repeats and reorders.
//!
//! Time is always [`tidewatch_delivery::Tick::ZERO`], so equal situations are equal states. See `docs/develop/model.md`.

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
