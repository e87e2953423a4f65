//! HTTPS servers of clusters.

mod accept;
mod answer;
mod body;
mod discovery;
mod handle;
mod hosted;
mod openapi;
mod repeated;
mod route;
mod server;
mod stream;
mod table;
mod tls;
mod totals;

pub use hosted::{Hosted, Token};
pub use server::{Server, ServerOptions, StartError};
