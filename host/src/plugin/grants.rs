//! What an adapter may reach. Two keys: its manifest requests a capability, and the operator grants hosts, networks, databases
//! and secrets. Everything else is denied, with the line of configuration that would allow it.

use crate::config::model::{Grants, HostGrant};
use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest list that a denial repeats, in entries: past it, only the missing entry is named.
const MAX_REPEATED: usize = 8;

/// Longest name of a host (RFC 1035, section 2.3.4), and of anything else that a guest may ask for, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// Why something was denied, and what would allow it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Denial {
    /// The host is not in `allow_hosts`.
    #[error("{0}")]
    Host(String),
    /// The host is, but the address behind it may not be reached.
    #[error("{0}")]
    Address(String),
    /// The manifest does not ask for the capability.
    #[error("{0}")]
    NotRequested(String),
    /// It cannot be the name of anything, and is not repeated: the guest has made it up.
    #[error("{what} is denied to [{section}]: what it asks for is not a name (over {MAX_NAME_BYTES} bytes, or with control characters)")]
    NotAName {
        /// Of what.
        what: &'static str,
        /// The table of the configuration.
        section: String,
    },
}

/// The capabilities that a manifest can request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Requests over HTTP to granted hosts.
    Http,
    /// TCP connections to granted hosts.
    Tcp,
    /// Granted databases.
    Databases,
    /// Granted secrets.
    Secrets,
}

impl fmt::Display for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Databases => "databases",
            Self::Secrets => "secrets",
        })
    }
}

/// What one adapter may reach: the operator's grants, as far as the manifest requests them.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    /// The table of the configuration: `publishers.webhooks`.
    section: String,
    grants: Grants,
    requests: Vec<Request>,
}

impl Policy {
    pub(super) fn new(section: String, grants: Grants, requests: Vec<Request>) -> Self {
        Self { section, grants, requests }
    }

    /// The operator's keys that have no effect because the manifest does not request what they grant.
    pub(super) fn unused_grants(&self) -> Vec<String> {
        let mut unused = Vec::new();
        if !self.connects() {
            let hosts = !self.grants.hosts.is_empty() || !self.grants.networks.is_empty();
            let tls = self.grants.tls_ca_file.is_some() || self.grants.tls_client.is_some();
            for keys in [hosts.then_some("allow_hosts, allow_networks"), tls.then_some("tls_ca_file, tls_cert_file, tls_key_file")] {
                unused.extend(keys.map(|keys| format!("{keys} (requests neither http nor tcp)")));
            }
        }
        if !self.grants.databases.is_empty() && !self.requested(Request::Databases) {
            unused.push("database (does not request databases)".to_owned());
        }
        if !self.grants.secrets.is_empty() && !self.requested(Request::Secrets) {
            unused.push("allow_secrets (does not request secrets)".to_owned());
        }
        unused
    }

    pub(super) fn requested(&self, request: Request) -> bool {
        self.requests.contains(&request)
    }

    /// Whether the manifest requests connections to other machines at all.
    pub(super) fn connects(&self) -> bool {
        self.requested(Request::Http) || self.requested(Request::Tcp)
    }

    /// The table of the configuration.
    pub(super) fn section(&self) -> &str {
        &self.section
    }

    /// Comes before everything that repeats a name.
    fn check_name(&self, what: &'static str, name: &str) -> Result<(), Denial> {
        if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return Err(Denial::NotAName { what, section: self.section.clone() });
        }
        Ok(())
    }

    fn check_requested(&self, request: Request, what: &str) -> Result<(), Denial> {
        if self.requested(request) {
            return Ok(());
        }
        Err(Denial::NotRequested(format!(
            "{what} is denied to [{}]: the manifest of its component does not request \"{request}\"",
            self.section
        )))
    }

    /// Whether `host:port` is granted: by name, or, where `host` is an IP address, as that address.
    pub(super) fn check_host(&self, via: Request, host: &str, port: u16) -> Result<(), Denial> {
        self.check_name("a host", host)?;
        let target = authority(host, port);
        self.check_requested(via, &target)?;
        if !self.grants.hosts.iter().any(|grant| grants_host(grant, host, port)) {
            return Err(self.host_denied(&target));
        }
        match literal(host) {
            Some(address) => self.check_address(host, address, port),
            None => Ok(()),
        }
    }

    /// Whether `host` is granted on any port: for a look-up of its addresses, where the port is not known yet.
    pub(super) fn check_look_up(&self, via: Request, host: &str) -> Result<(), Denial> {
        self.check_name("a host", host)?;
        self.check_requested(via, host)?;
        if literal(host).is_some() || !self.ports(host).is_empty() {
            return Ok(());
        }
        Err(self.host_denied(&format!("{host}:PORT")))
    }

    fn host_denied(&self, target: &str) -> Denial {
        Denial::Host(format!(
            "{target} is not granted: {} under [{}]",
            line("allow_hosts", self.grants.hosts.iter().map(shown), target),
            self.section
        ))
    }

    /// Whether the address that a granted host resolved to may be connected to.
    pub(super) fn check_address(&self, host: &str, address: IpAddr, port: u16) -> Result<(), Denial> {
        let address = address.to_canonical();
        let Some(class) = class(address) else { return Ok(()) };
        let by_network = self.grants.networks.iter().any(|network| network.contains(&address));
        let by_entry = self.grants.hosts.iter().any(|grant| grants_literal(grant, address, port));
        if by_network || by_entry {
            return Ok(());
        }
        let wanted = IpNet::from(address).to_string();
        Err(Denial::Address(format!(
            "{} is denied: its address {address} is {class}; {} under [{}]",
            authority(host, port),
            line("allow_networks", self.grants.networks.iter().map(ToString::to_string), &wanted),
            self.section
        )))
    }

    /// Whether `host` is granted on any port, also where it is an address: for the server that a TLS connection is said to lead to.
    pub(super) fn check_server(&self, via: Request, host: &str) -> Result<(), Denial> {
        self.check_look_up(via, host)?;
        let Some(address) = literal(host) else { return Ok(()) };
        if self.grants.hosts.iter().any(|grant| grant.host == "*" || literal(&grant.host) == Some(address)) {
            return Ok(());
        }
        Err(self.host_denied(&format!("{}:PORT", shown_host(host))))
    }

    /// Every port on which a granted name may be reached; none in the list: any port.
    pub(super) fn ports(&self, host: &str) -> Vec<Option<u16>> {
        self.grants.hosts.iter().filter(|grant| grants_name(grant, host)).map(|grant| grant.port).collect()
    }

    pub(super) fn check_database(&self, name: &str) -> Result<(), Denial> {
        self.check_name("a database", name)?;
        self.check_requested(Request::Databases, &format!("database \"{name}\""))?;
        if self.grants.databases.iter().any(|granted| granted == name) {
            return Ok(());
        }
        Err(Denial::Host(format!("database \"{name}\" is not granted: set database = \"{name}\" under [{}]", self.section)))
    }

    pub(super) fn check_secret(&self, name: &str) -> Result<(), Denial> {
        self.check_name("a secret", name)?;
        self.check_requested(Request::Secrets, &format!("secret \"{name}\""))?;
        if self.grants.secrets.iter().any(|granted| granted == name) {
            return Ok(());
        }
        Err(Denial::Host(format!(
            "secret \"{name}\" is not granted: {} under [{}]",
            line("allow_secrets", self.grants.secrets.iter().cloned(), name),
            self.section
        )))
    }

    pub(super) fn grants(&self) -> &Grants {
        &self.grants
    }
}

/// `add KEY = [...]` where the key is absent, `set KEY = [...]` with what is there already otherwise.
fn line(key: &str, present: impl Iterator<Item = String>, wanted: &str) -> String {
    let mut entries: Vec<String> = present.collect();
    let verb = if entries.is_empty() { "add" } else { "set" };
    if entries.len() >= MAX_REPEATED {
        return format!("add \"{wanted}\" to {key}");
    }
    entries.push(wanted.to_owned());
    let entries: Vec<String> = entries.iter().map(|entry| toml::Value::String(entry.clone()).to_string()).collect();
    format!("{verb} {key} = [{}]", entries.join(", "))
}

fn shown(grant: &HostGrant) -> String {
    let host = shown_host(&grant.host);
    match grant.port {
        Some(port) => format!("{host}:{port}"),
        None => format!("{host}:*"),
    }
}

/// `host:port`, IPv6 addresses in brackets.
pub(super) fn authority(host: &str, port: u16) -> String {
    format!("{}:{port}", shown_host(host))
}

fn shown_host(host: &str) -> String {
    match literal(host) {
        Some(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.to_owned(),
    }
}

/// The address, if `host` is one (IPv6 with or without brackets).
fn literal(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn grants_host(grant: &HostGrant, host: &str, port: u16) -> bool {
    if grant.port.is_some_and(|granted| granted != port) {
        return false;
    }
    match literal(host) {
        Some(address) => grant.host == "*" || literal(&grant.host) == Some(address),
        None => grants_name(grant, host),
    }
}

fn grants_name(grant: &HostGrant, host: &str) -> bool {
    // One dot at the end makes a name absolute and means the same host.
    let host = host.strip_suffix('.').unwrap_or(host);
    match grant.host.strip_prefix("*.") {
        Some(domain) => host
            .len()
            .checked_sub(domain.len())
            .and_then(|start| Some((host.get(..start)?, host.get(start..)?)))
            .is_some_and(|(below, tail)| below.len() > 1 && below.ends_with('.') && tail.eq_ignore_ascii_case(domain)),
        None => grant.host == "*" || grant.host.eq_ignore_ascii_case(host),
    }
}

fn grants_literal(grant: &HostGrant, address: IpAddr, port: u16) -> bool {
    grant.port.is_none_or(|granted| granted == port) && literal(&grant.host) == Some(address)
}

/// What kind of address it is, if it is not a public one: such addresses need a grant of their own, because a public name can be
/// made to point at them (IANA special-purpose registries, RFC 6890).
fn class(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => class_v4(address),
        IpAddr::V6(address) => class_v6(address),
    }
}

fn class_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, ..) => Some("unspecified"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("private"),
        (100, 64..=127, _) => Some("shared by a carrier (RFC 6598)"),
        (127, ..) => Some("loopback"),
        (169, 254, _) => Some("link-local"),
        (192, 0, 0) => Some("reserved for protocols"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("for documentation"),
        (192, 88, 99) => Some("a 6to4 relay"),
        (198, 18 | 19, _) => Some("for benchmarks"),
        (224..=239, ..) => Some("multicast"),
        (240..=255, ..) => Some("reserved"),
        _ => None,
    }
}

fn class_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    // Addresses that carry an IPv4 address are as public as that one is: IPv4-compatible, NAT64 (RFC 6052), 6to4 (RFC 3056).
    let embedded = match segments {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some((high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some((high, low)),
        [0x2002, high, low, ..] => Some((high, low)),
        _ => None,
    };
    if let Some((high, low)) = embedded {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        return class_v4(Ipv4Addr::new(a, b, c, d));
    }
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        [0x64, 0xff9b, 1, ..] => Some("local-use NAT64"),
        [0x100, 0, 0, 0, ..] => Some("discard-only"),
        [0x2001, 0..=0x1ff, ..] => Some("reserved for protocols"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some("for documentation"),
        [first, ..] if first & 0xfe00 == 0xfc00 => Some("unique local"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some("link-local"),
        [first, ..] if first & 0xffc0 == 0xfec0 => Some("site-local"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("multicast"),
        [first, ..] if first & 0xe000 != 0x2000 => Some("not global unicast"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy(hosts: &[(&str, Option<u16>)], networks: &[&str]) -> Policy {
        let grants = Grants {
            hosts: hosts.iter().map(|(host, port)| HostGrant { host: (*host).into(), port: *port }).collect(),
            networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
            ..Grants::default()
        };
        Policy::new("publishers.webhooks".into(), grants, vec![Request::Http])
    }

    fn denied(result: Result<(), Denial>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn names_match_exactly_below_a_domain_or_all() {
        let policy = policy(&[("hooks.example.com", Some(443)), ("*.example.org", None)], &[]);
        for (host, port, granted) in [
            ("hooks.example.com", 443, true),
            ("HOOKS.example.com", 443, true),
            ("hooks.example.com.", 443, true),
            ("hooks.example.com", 80, false),
            ("evil-hooks.example.com", 443, false),
            ("a.b.example.org", 8080, true),
            ("example.org", 443, false),
            ("evilexample.org", 443, false),
            (".example.org", 443, false),
            ("é.example.org", 443, true),
        ] {
            assert_eq!(policy.check_host(Request::Http, host, port).is_ok(), granted, "{host}:{port}");
        }
    }

    #[test]
    fn a_denial_prints_the_line_to_add() {
        assert_eq!(
            denied(policy(&[], &[]).check_host(Request::Http, "hooks.example.com", 443)),
            "hooks.example.com:443 is not granted: add allow_hosts = [\"hooks.example.com:443\"] under [publishers.webhooks]"
        );
        assert_eq!(
            denied(policy(&[("a.example", None)], &[]).check_host(Request::Http, "::1", 80)),
            "[::1]:80 is not granted: set allow_hosts = [\"a.example:*\", \"[::1]:80\"] under [publishers.webhooks]"
        );
        assert_eq!(
            denied(policy(&[("a.example", None)], &["192.168.0.0/16"]).check_address("a.example", "10.1.2.3".parse().unwrap(), 80)),
            "a.example:80 is denied: its address 10.1.2.3 is private; set allow_networks = [\"192.168.0.0/16\", \"10.1.2.3/32\"] under \
             [publishers.webhooks]"
        );
    }

    #[test]
    fn an_address_entry_grants_that_address_and_a_name_does_not() {
        let policy = policy(&[("127.0.0.1", Some(8080)), ("localhost", Some(8080)), ("[::1]", None)], &[]);
        assert_eq!(policy.check_host(Request::Http, "127.0.0.1", 8080), Ok(()));
        assert_eq!(policy.check_host(Request::Http, "[::1]", 99), Ok(()));
        assert!(policy.check_host(Request::Http, "127.0.0.1", 8081).is_err());
        assert!(policy.check_host(Request::Http, "127.0.0.2", 8080).is_err());
        assert_eq!(policy.check_host(Request::Http, "localhost", 8080), Ok(()));
        // The name resolves to an address that is granted on that port; another one is not.
        assert_eq!(policy.check_address("localhost", "127.0.0.1".parse().unwrap(), 8080), Ok(()));
        assert!(policy.check_address("localhost", "127.0.0.2".parse().unwrap(), 8080).is_err());
    }

    #[test]
    fn a_server_that_is_an_address_must_be_granted_too() {
        let policy = policy(&[("10.0.0.1", Some(9093)), ("[::1]", None), ("kafka.example.com", Some(9093))], &[]);
        for granted in ["10.0.0.1", "::1", "[::1]", "kafka.example.com"] {
            assert_eq!(policy.check_server(Request::Http, granted), Ok(()), "{granted}");
        }
        assert!(denied(policy.check_server(Request::Http, "10.0.0.2")).starts_with("10.0.0.2:PORT is not granted: "));
        assert!(denied(policy.check_server(Request::Http, "::2")).starts_with("[::2]:PORT is not granted: "));
        assert!(policy.check_server(Request::Http, "b.example.com").is_err());
        // Looking up an address gives what is known already.
        assert_eq!(policy.check_look_up(Request::Http, "10.0.0.2"), Ok(()));
    }

    #[test]
    fn any_host_does_not_mean_any_address() {
        let policy = policy(&[("*", None)], &[]);
        assert_eq!(policy.check_host(Request::Http, "93.184.216.34", 80), Ok(()));
        assert!(denied(policy.check_host(Request::Http, "169.254.169.254", 80)).contains("link-local"));
    }

    #[test]
    fn private_addresses_are_told_from_public_ones() {
        for private in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "64:ff9b::a00:1",
            "2002:a00:1::",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "ff02::1",
            "fec0::1",
            "2001:db8::1",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
        ] {
            assert!(class(private.parse().unwrap()).is_some(), "{private}");
        }
        for public in [
            "1.1.1.1",
            "93.184.216.34",
            "172.32.0.1",
            "100.128.0.1",
            "2606:2800:220:1::1",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "192.0.1.1",
        ] {
            assert_eq!(class(public.parse().unwrap()), None, "{public}");
        }
    }

    #[test]
    fn what_the_manifest_does_not_request_is_not_given() {
        let grants = Grants { secrets: vec!["key".into()], databases: vec!["main".into()], ..Grants::default() };
        let policy = Policy::new("storages.outbox".into(), grants, vec![Request::Databases]);
        assert_eq!(policy.check_database("main"), Ok(()));
        assert_eq!(denied(policy.check_database("b")), "database \"b\" is not granted: set database = \"b\" under [storages.outbox]");
        assert!(denied(policy.check_secret("key")).contains("does not request \"secrets\""));
        assert_eq!(policy.unused_grants(), ["allow_secrets (does not request secrets)"]);
        let grants = Grants { tls_ca_file: Some("ca.pem".into()), ..Grants::default() };
        let unused = |requests| Policy::new("storages.outbox".into(), grants.clone(), requests).unused_grants();
        assert_eq!(unused(vec![]), ["tls_ca_file, tls_cert_file, tls_key_file (requests neither http nor tcp)"]);
        assert!(unused(vec![Request::Tcp]).is_empty());
    }

    #[test]
    fn what_is_no_name_is_denied_without_being_repeated() {
        // Everything is granted, so that only the name can be at fault.
        let grants = Grants {
            hosts: vec![HostGrant { host: "*".into(), port: None }],
            databases: vec!["ma\nin".into()],
            secrets: vec!["ke\ny".into()],
            ..Grants::default()
        };
        let requests = vec![Request::Http, Request::Tcp, Request::Databases, Request::Secrets];
        let policy = Policy::new("storages.outbox".into(), grants, requests);
        let unrequested = Policy::new("storages.outbox".into(), Grants::default(), Vec::new());
        for policy in [&policy, &unrequested] {
            for name in ["x".repeat(5 << 20), "x".repeat(256), "ma\nin".into(), "ke\ny".into(), "a\u{1b}[2J".into(), "a\u{85}b".into()] {
                for result in [
                    policy.check_host(Request::Http, &name, 80),
                    policy.check_look_up(Request::Tcp, &name),
                    policy.check_database(&name),
                    policy.check_secret(&name),
                ] {
                    let text = denied(result);
                    assert!(text.contains("is not a name") && text.contains("[storages.outbox]") && text.len() < 200, "{text:.300}");
                    assert!(!text.contains(&name) && !text.contains(char::is_control), "{text:.300}");
                }
            }
        }
        assert_eq!(policy.check_host(Request::Http, &"x".repeat(255), 80), Ok(()));
    }

    proptest! {
        #[test]
        fn matching_never_panics(host in "\\PC{0,40}", grant in "\\PC{0,20}", port in any::<u16>()) {
            let grant = HostGrant { host: grant, port: None };
            let _ = grants_host(&grant, &host, port);
        }
        #[test]
        fn a_mapped_address_is_as_public_as_its_own(bits in any::<u32>()) {
            let address = Ipv4Addr::from_bits(bits);
            prop_assert_eq!(class(IpAddr::V4(address)), class(IpAddr::V6(address.to_ipv6_mapped())));
        }
    }
}
