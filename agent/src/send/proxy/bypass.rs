//! `NO_PROXY`: hosts dialled directly.

use super::address::split_port;
use std::net::IpAddr;

/// Hosts of later entries use the proxy.
const MAX_ENTRIES: usize = 1000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bypass(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    All,
    /// Includes subdomains; a leading dot excludes the name itself.
    Name {
        name: String,
        itself: bool,
        port: Option<u16>,
    },
    Address {
        address: IpAddr,
        port: Option<u16>,
    },
    Network {
        address: IpAddr,
        prefix: u32,
    },
}

pub(super) fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|a| a.to_canonical().is_loopback())
}

impl Bypass {
    /// Parses `*`, `name`, `.name`, `*.name`, addresses and CIDR networks. Names and addresses may have ports.
    /// Invalid entries are ignored.
    pub(super) fn parse(text: &str) -> Self {
        let entries = text.split([',', ' ']).filter(|entry| !entry.is_empty()).take(MAX_ENTRIES);
        Self(entries.filter_map(Entry::parse).collect())
    }

    /// Whether `host` (without brackets) is dialled directly.
    pub(super) fn holds_for(&self, host: &str, port: u16) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let at = |entry: Option<u16>| entry.is_none_or(|entry| entry == port);
        self.0.iter().any(|entry| match (entry, address) {
            (Entry::All, _) => true,
            (Entry::Name { name, itself, port }, None) => {
                let below = host.strip_suffix(name.as_str()).is_some_and(|before| before.ends_with('.'));
                (below || (*itself && host == *name)) && at(*port)
            }
            (Entry::Address { address: entry, port }, Some(address)) => *entry == address && at(*port),
            (Entry::Network { address: network, prefix }, Some(address)) => {
                contains(*network, *prefix, address)
            }
            (Entry::Name { .. }, Some(_)) | (Entry::Address { .. } | Entry::Network { .. }, None) => false,
        })
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::All);
        }
        if let Some((address, prefix)) = text.split_once('/') {
            let address: IpAddr = address.parse().ok()?;
            let prefix = prefix.parse().ok()?;
            return (prefix <= bits(address)).then_some(Self::Network { address, prefix });
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(Self::Address { address: address.to_canonical(), port: None });
        }
        let (host, port) = split_port(text)?;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address { address: address.to_canonical(), port });
        }
        let host = host.strip_prefix('*').unwrap_or(host);
        let name = host.trim_matches('.').to_ascii_lowercase();
        (!name.is_empty()).then_some(Self::Name { name, itself: !host.starts_with('.'), port })
    }
}

const fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn contains(network: IpAddr, prefix: u32, address: IpAddr) -> bool {
    let number = |address| match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    };
    let different = number(network) ^ number(address);
    network.is_ipv4() == address.is_ipv4() && different.checked_shr(bits(network) - prefix).unwrap_or(0) == 0
}
