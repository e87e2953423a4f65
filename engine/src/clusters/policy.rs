//! Deny-list of runtime addresses.

use std::{net::IpAddr, str::FromStr};

/// Addresses that no kubeconfig may lead to, such as the control plane's. Names are checked as written; resolved addresses are checked
/// when a connection opens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    denied: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    text: String,
    target: Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Network { address: u128, prefix: u32, v4: bool },
    Host { name: String, port: Option<u16> },
    Address { address: IpAddr, port: Option<u16> },
}

/// A rule that is neither a network, an address nor a host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("deny-list entry '{0}' is not a network, an address or host[:port]; correct it in the configuration")]
pub struct AddressPolicyError(String);

impl AddressPolicy {
    /// Parses rules: `10.0.0.0/8`, `10.1.2.3`, `[fd00::1]:443`, `host` or `host:port`. Without a port, a rule holds for all ports.
    pub fn new<I, S>(denied: I) -> Result<Self, AddressPolicyError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        let denied = denied.into_iter().map(|rule| Rule::parse(rule.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { denied })
    }

    /// The rule that denies this host and port. `host` is a name or an address, without brackets.
    pub fn denies_host(&self, host: &str, port: u16) -> Option<&str> {
        let host = normal_name(host);
        if let Ok(address) = host.parse() {
            return self.denies_address(address, port);
        }
        let hit = |rule: &&Rule| matches!(&rule.target, Target::Host { name, port: denied } if *name == host && denied.is_none_or(|denied| denied == port));
        self.denied.iter().find(hit).map(|rule| rule.text.as_str())
    }

    /// The rule that denies this address and port.
    pub fn denies_address(&self, address: IpAddr, port: u16) -> Option<&str> {
        self.find(address, Some(port))
    }

    /// The rule that denies a resolved address. The port is unknown here, so a rule for one port denies all: too strict is safer than a
    /// bypass.
    pub(super) fn denies_resolved(&self, address: IpAddr) -> Option<&str> {
        self.find(address, None)
    }

    fn find(&self, address: IpAddr, port: Option<u16>) -> Option<&str> {
        let address = address.to_canonical();
        let hit = |rule: &&Rule| match &rule.target {
            Target::Network { address: network, prefix, v4 } => {
                let (bits, width) = bits(address);
                *v4 == address.is_ipv4() && (*prefix == 0 || (bits ^ network) >> (width - prefix) == 0)
            }
            Target::Address { address: denied, port: at } => {
                *denied == address && (at.is_none() || port.is_none() || *at == port)
            }
            Target::Host { .. } => false,
        };
        self.denied.iter().find(hit).map(|rule| rule.text.as_str())
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Self, AddressPolicyError> {
        let error = || AddressPolicyError(text.to_owned());
        let target = if let Some((address, prefix)) = text.split_once('/') {
            let address = IpAddr::from_str(address).map_err(|_| error())?;
            let (bits, width) = bits(address);
            let prefix = prefix.parse().ok().filter(|prefix| *prefix <= width).ok_or_else(error)?;
            Target::Network { address: bits, prefix, v4: address.is_ipv4() }
        } else if let Ok(address) = IpAddr::from_str(text.trim_start_matches('[').trim_end_matches(']')) {
            Target::Address { address: address.to_canonical(), port: None }
        } else {
            let (host, port) = match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port.parse().map_err(|_| error())?)),
                None => (text, None),
            };
            let name = normal_name(host);
            match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
                Ok(address) => Target::Address { address: address.to_canonical(), port },
                Err(_)
                    if name.is_empty()
                        || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) =>
                {
                    return Err(error());
                }
                Err(_) => Target::Host { name, port },
            }
        };
        Ok(Self { text: text.to_owned(), target })
    }
}

fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

fn normal_name(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_rules_deny_matching_hosts() {
        let policy = AddressPolicy::new([
            "10.0.0.0/8",
            "192.168.1.7",
            "192.168.1.8:6443",
            "fd00::/16",
            "[fe80::1]:443",
            "kcp.example",
            "api.example:6443",
        ])
        .unwrap();
        for (host, port, denied) in [
            ("10.255.0.1", 443, true),
            ("11.0.0.1", 443, false),
            ("::ffff:10.0.0.1", 443, true),
            ("192.168.1.7", 1, true),
            ("192.168.1.8", 6443, true),
            ("192.168.1.8", 443, false),
            ("fd00::9", 443, true),
            ("fd01::9", 443, false),
            ("fe80::1", 443, true),
            ("fe80::1", 444, false),
            ("KCP.example.", 443, true),
            ("kcp.example.org", 443, false),
            ("api.example", 6443, true),
            ("api.example", 443, false),
        ] {
            assert_eq!(policy.denies_host(host, port).is_some(), denied, "{host}:{port}");
        }
        assert!(policy.denies_resolved("192.168.1.8".parse().unwrap()).is_some());
        assert!(policy.denies_resolved("192.168.1.9".parse().unwrap()).is_none());
        let all = AddressPolicy::new(["0.0.0.0/0"]).unwrap();
        assert!(all.denies_host("1.2.3.4", 1).is_some() && all.denies_host("::1", 1).is_none());
    }

    #[test]
    fn invalid_address_rules_are_errors() {
        for text in ["", "10.0.0.0/33", "::/129", "x/8", "host:port", "a b", ":443"] {
            assert!(AddressPolicy::new([text]).is_err(), "{text}");
        }
    }
}
