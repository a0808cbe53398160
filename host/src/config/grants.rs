//! Entries of `allow_hosts` and `allow_networks`.

use super::model::HostGrant;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reads `host:port`, `*.domain:port`, `host:*` or `[IPv6]:port`.
pub(super) fn host(entry: &str) -> Result<HostGrant, String> {
    if entry.contains("://") || entry.contains(['/', '@', '?', '#', ' ']) {
        let kind = if entry.contains("://") { "is a URL" } else { "is not host:port" };
        return Err(match bare_host(entry) {
            Some(bare) => format!("{kind}: write the host and its port only, \"{bare}\""),
            None => format!("{kind}: write the host and its port only, without path, user name, password and spaces"),
        });
    }
    if entry.parse::<Ipv6Addr>().is_ok() {
        return Err(format!("{entry:?}: write an IPv6 address in brackets and with its port, \"[{entry}]:443\""));
    }
    let Some((host, port)) = entry.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) else {
        return Err(format!("{entry:?} has no port: write \"{entry}:443\", or \"{entry}:*\" for any port"));
    };
    let port = match port {
        "*" => None,
        port => match port.parse::<u16>() {
            Ok(port) if port > 0 => Some(port),
            _ => return Err(format!("{entry:?}: {port:?} is not a port (1 to 65535, or *)")),
        },
    };
    Ok(HostGrant { host: host_name(host).map_err(|reason| format!("{entry:?}: {reason}"))?, port })
}

/// `host:port` of what may be a URL; none where it is not clear what the host is. A URL may hold a password before the last `@` of
/// its authority, and a token behind it: nothing of either may be repeated.
fn bare_host(entry: &str) -> Option<String> {
    let (scheme, rest) = entry.split_once("://").unwrap_or(("https", entry));
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // A password that was not encoded may hold a '/': what is before it is not the host then.
    if tail.contains('@') || authority.contains(' ') {
        return None;
    }
    let bare = authority.rsplit('@').next()?;
    let port = if scheme.eq_ignore_ascii_case("http") { 80 } else { 443 };
    [bare.to_owned(), format!("{bare}:{port}")].into_iter().find(|bare| host(bare).is_ok())
}

fn host_name(host: &str) -> Result<String, String> {
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        let address: Ipv6Addr = address.parse().map_err(|_| format!("{address:?} is not an IPv6 address"))?;
        return Ok(address.to_string());
    }
    if host == "*" || host.parse::<Ipv4Addr>().is_ok() {
        return Ok(host.to_owned());
    }
    let host = host.to_ascii_lowercase();
    let name = host.strip_prefix("*.").unwrap_or(&host);
    if !name.is_ascii() {
        return Err("write a name that is not ASCII in its xn-- form".to_owned());
    }
    let label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(fits)
    };
    if name.len() > 253 || !name.split('.').all(label) {
        return Err(format!("{name:?} is not a host name (a `*` may stand only for everything before the first dot)"));
    }
    // "1.2.3" or "256.0.0.1" are no names, and resolvers read them in surprising ways.
    if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(format!("{name:?} is neither an IPv4 address nor a name"));
    }
    Ok(host)
}

/// Reads `address/prefix`, or one address.
pub(super) fn network(entry: &str) -> Result<IpNet, String> {
    if let Ok(address) = entry.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    let network: IpNet =
        entry.parse().map_err(|_| format!("{entry:?} is not an address range: write it as in \"10.0.0.0/8\" or \"fd00::/8\""))?;
    if network.trunc() != network {
        return Err(format!("{entry:?} has bits set after its prefix: did you mean \"{}\"?", network.trunc()));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read() {
        let grant = |host: &str, port| Ok(HostGrant { host: host.to_owned(), port });
        assert_eq!(host("Hooks.Example.com:443"), grant("hooks.example.com", Some(443)));
        assert_eq!(host("*.example.com:443"), grant("*.example.com", Some(443)));
        assert_eq!(host("hooks_1.internal:*"), grant("hooks_1.internal", None));
        assert_eq!(host("*:443"), grant("*", Some(443)));
        assert_eq!(host("127.0.0.1:8080"), grant("127.0.0.1", Some(8080)));
        assert_eq!(host("[0:0::1]:8080"), grant("::1", Some(8080)));
    }

    #[test]
    fn wrong_hosts_say_what_to_write() {
        for (entry, expected) in [
            ("https://hooks.example.com/x", "\"hooks.example.com:443\""),
            ("http://hooks.example.com:8080", "\"hooks.example.com:8080\""),
            ("hooks.example.com", "\"hooks.example.com:443\""),
            ("::1", "\"[::1]:443\""),
            ("[::1]", "has no port"),
            ("a:0", "not a port"),
            ("a:70000", "not a port"),
            ("a.*:443", "not a host name"),
            ("*x.com:443", "not a host name"),
            ("a..b:443", "not a host name"),
            ("http://hooks.example.com", "\"hooks.example.com:80\""),
            ("hooks.example.com/x:443", "\"hooks.example.com:443\""),
            ("a b:443", "is not host:port"),
            ("заказы.рф:443", "xn--"),
            ("256.0.0.1:80", "neither"),
            ("", "has no port"),
        ] {
            let error = host(entry).unwrap_err();
            assert!(error.contains(expected), "{entry}: {error}");
        }
    }

    #[test]
    fn passwords_and_tokens_are_never_repeated() {
        for (entry, expected) in [
            ("https://user:hunter2@h.example:443/", "\"h.example:443\""),
            ("https://user:hunter2@@h.example/x", "\"h.example:443\""),
            ("https://hunter2@[::1]:8443", "\"[::1]:8443\""),
            ("user:hunter2@h.example:443", "\"h.example:443\""),
            ("https://user:hun/ter2@h.example", "without path"),
            ("https://user:hunter2/@h.example", "without path"),
            ("https://h.example/?token=hunter2", "\"h.example:443\""),
            ("h.example:443#hunter2", "\"h.example:443\""),
        ] {
            let error = host(entry).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hun"), "{entry}: {error}");
        }
    }

    #[test]
    fn networks_are_read() {
        assert_eq!(network("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(network("10.1.2.3").unwrap().to_string(), "10.1.2.3/32");
        assert!(network("10.1.2.3/8").unwrap_err().contains("\"10.0.0.0/8\""));
        assert!(network("10.0.0.0/64").is_err());
    }
}
