//! What the engine knows of KCP: watched objects, the indexes over them, and which change asks for which
//! reconcile.

mod feed;
mod inlets;
pub mod state;

pub use feed::Feeds;
pub(crate) use feed::SET_RIGHT;
pub(crate) use inlets::{Inlets, Source};
pub use state::{KcpState, PathReport, RuntimeLookup, SecretRef};
