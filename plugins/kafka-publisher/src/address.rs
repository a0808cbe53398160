//! Where a broker listens: `host:port`, as configured, or as the cluster's metadata advertise it.

use std::fmt;

/// Host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Address {
    /// Parses `host:port` and `[::1]:port`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let problem = || format!("`{text}` must be \"host:port\", such as \"kafka-1.example.com:9092\"");
        let (host, port) = text.rsplit_once(':').ok_or_else(problem)?;
        let port: u16 = port.parse().ok().filter(|port| *port != 0).ok_or_else(problem)?;
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) if inner.contains(':') => inner,
            None if !host.contains([':', '[', ']']) => host,
            _ => return Err(problem()),
        };
        if host.is_empty() || host.contains(|character: char| character.is_whitespace() || matches!(character, '/' | '@' | ',')) {
            return Err(problem());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["kafka:9092", "10.0.0.1:1", "[::1]:9092"] {
            assert_eq!(Address::parse(good).unwrap().to_string(), good);
        }
        for bad in ["", "kafka", ":9092", "kafka:0", "kafka:x", "kafka:70000", "::1:9092", "[a]:1", "kafka://a:1", "a b:1", "a:1,b:2"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
