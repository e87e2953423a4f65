//! HTTP proxies from `receiver.proxy`, else `HTTPS_PROXY` and `NO_PROXY` (lower-case first). They see only TLS.
//!
//! `hyper-util` has a tunnel and a matcher too. Its matcher ignores ports, `*.name`, spaces between entries and invalid
//! URLs, and lets `.name` match the name itself. Its tunnel hides the status of a refusal and bytes after the head.

mod address;
mod bypass;
pub mod tunnel;

pub use address::{Proxy, SettingsError};

use bypass::Bypass;
use serde::Deserialize;

/// The setting `receiver.proxy`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Choice {
    /// No proxy, even if the environment names one.
    Direct,
    /// This proxy for every host.
    Through(Proxy),
}

impl TryFrom<String> for Choice {
    type Error = SettingsError;

    fn try_from(text: String) -> Result<Self, SettingsError> {
        match text.as_str() {
            "direct" => Ok(Self::Direct),
            url => Proxy::parse(url).map(Self::Through),
        }
    }
}

/// Chooses the receiver's proxy. `environment` looks up a variable; it never applies to loopback addresses.
pub fn choose(
    choice: Option<&Choice>,
    environment: impl Fn(&str) -> Option<String>,
    host: &str,
    port: u16,
) -> Result<Option<Proxy>, SettingsError> {
    match choice {
        Some(Choice::Direct) => return Ok(None),
        Some(Choice::Through(proxy)) => return Ok(Some(proxy.clone())),
        None => {}
    }
    let variable = |lower, upper| environment(lower).or_else(|| environment(upper)).filter(|t| !t.is_empty());
    let Some(url) = variable("https_proxy", "HTTPS_PROXY") else { return Ok(None) };
    let bypass = variable("no_proxy", "NO_PROXY").map(|text| Bypass::parse(&text)).unwrap_or_default();
    if bypass::is_loopback(host) || bypass.holds_for(host, port) {
        return Ok(None);
    }
    Proxy::parse(&url).map(Some)
}

#[cfg(test)]
mod tests;
