//! `postgres://USER@HOST:PORT/DATABASE`.
//!
//! A URL may hold a password, so errors quote nothing of it but the names of its parameters.

use super::model::{Endpoint, Password, ServerUrl, TlsMode};
use percent_encoding::percent_decode_str;
use std::path::PathBuf;

/// What to write, for errors.
pub(super) const EXAMPLE: &str = "\"postgres://user@host:5432/database\"";

/// The port of a URL without one.
const PORT: u16 = 5432;

/// Reads a URL.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(url: &str) -> Result<ServerUrl, String> {
    let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"));
    let rest = rest.ok_or_else(|| format!("is no URL of a PostgreSQL server: write {EXAMPLE}"))?;
    if rest.contains('#') {
        return Err("holds a '#': write it as %23".to_owned());
    }
    let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (credentials, address) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (user, Some(decode(password, "password")?)),
        None => (credentials, None),
    };
    let (user, database) = (decode(user, "user")?, decode(database, "database")?);
    if user.is_empty() {
        return Err(format!("names no user: write {EXAMPLE}"));
    }
    if database.is_empty() || database.contains('/') {
        return Err(format!("names no database: write {EXAMPLE}"));
    }
    let (mut socket, mut tls) = (None, None);
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match (name, decode(value, name)?) {
            ("sslmode", mode) => {
                tls = Some(
                    TlsMode::parse(&mode).ok_or_else(|| format!("has an unknown sslmode: write one of {}", TlsMode::WORDS.join(", ")))?,
                )
            }
            ("host", folder) if folder.starts_with('/') => socket = Some(PathBuf::from(folder)),
            ("host", _) => {
                return Err("has a parameter host that is no folder of a Unix socket: write the host before the database".to_owned());
            }
            (name, _) => {
                return Err(format!(
                    "has the unknown parameter {name:?}: known are sslmode and host (the folder of a Unix socket); what else can be set has keys of its own"
                ));
            }
        }
    }
    let (host, port) = host_and_port(address)?;
    let endpoint = match (socket, host) {
        (Some(folder), None) => Endpoint::Unix(folder.join(format!(".s.PGSQL.{port}"))),
        (Some(_), Some(_)) => return Err("names a host and the folder of a Unix socket: leave one of the two out".to_owned()),
        (None, Some(host)) => Endpoint::Tcp { host, port },
        (None, None) => return Err(format!("names no host: write {EXAMPLE}, or ?host=/run/postgresql for a Unix socket")),
    };
    Ok(ServerUrl { endpoint, user, password: password.map(Password), database, tls })
}

/// The host, if there is one, and the port.
fn host_and_port(address: &str) -> Result<(Option<String>, u16), String> {
    if address.contains(',') {
        return Err(
            "names several hosts: write one; its name is resolved again at each connection, so that it may follow the primary".to_owned()
        );
    }
    let (host, port) = match address.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, port))) => {
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("has brackets around what is no IPv6 address".to_owned());
            }
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        Some(None) => return Err("has a '[' without a ']'".to_owned()),
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let host = decode(host, "host")?;
    let port = match port {
        "" => PORT,
        port => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| "has a port that is no number from 1 to 65535; an IPv6 address needs brackets".to_owned())?,
    };
    Ok(((!host.is_empty()).then_some(host), port))
}

fn decode(part: &str, what: &str) -> Result<String, String> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| format!("has a {what} that is not UTF-8"))?;
    if text.contains('\0') { Err(format!("has a {what} with a NUL character")) } else { Ok(text.into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn urls_are_read() {
        let url = parse("postgres://us%40er:p%2Fw%3A@db.example.com:6432/my%20db?sslmode=verify-ca").unwrap();
        assert_eq!((url.user.as_str(), url.database.as_str(), url.tls), ("us@er", "my db", Some(TlsMode::VerifyCa)));
        assert_eq!(url.password, Some(Password("p/w:".into())));
        assert_eq!(url.endpoint, Endpoint::Tcp { host: "db.example.com".into(), port: 6432 });
        let url = parse("postgresql://u@[::1]/d").unwrap();
        assert_eq!(url.endpoint, Endpoint::Tcp { host: "::1".into(), port: 5432 });
        let url = parse("postgres://u@/d?host=/run/postgresql").unwrap();
        assert_eq!(url.endpoint, Endpoint::Unix("/run/postgresql/.s.PGSQL.5432".into()));
        let url = parse("postgres://u@:5433/d?host=%2Frun").unwrap();
        assert_eq!(url.endpoint, Endpoint::Unix("/run/.s.PGSQL.5433".into()));
    }

    #[test]
    fn what_is_wrong_is_told_without_the_password() {
        for (url, part) in [
            ("mysql://u:hush@h/d", "no URL"),
            ("postgres:u:hush@h/d", "no URL"),
            ("postgres://:hush@h/d", "no user"),
            ("postgres://h/d", "no user"),
            ("postgres://u:hush@h", "no database"),
            ("postgres://u:hush@h/a/b", "no database"),
            ("postgres://u:hush@/d", "no host"),
            ("postgres://u:hush@a,b/d", "several hosts"),
            ("postgres://u:hush@a:1,b:2/d", "several hosts"),
            ("postgres://u:hush@h:x/d", "port"),
            ("postgres://u:hush@h:0/d", "port"),
            ("postgres://u:hush@::1/d", "port"),
            ("postgres://u:hush@[::1/d", "']'"),
            ("postgres://u:hush@[h]/d", "IPv6"),
            ("postgres://u:hush@h/d?sslmode=allow", "verify-full"),
            ("postgres://u:hush@h/d?options=-c", "options"),
            ("postgres://u:hush@h/d?host=/run", "leave one"),
            ("postgres://u:hush@/d?host=run", "folder"),
            ("postgres://u:hush#@h/d", "%23"),
            ("postgres://u:hush%00@h/d", "NUL"),
            ("postgres://u:hush%ff@h/d", "UTF-8"),
        ] {
            let error = parse(url).expect_err(url);
            assert!(error.contains(part) && !error.contains("hush"), "{url}: {error}");
        }
        let shown = format!("{:?}", parse("postgres://u:hush@h/d").unwrap());
        assert!(!shown.contains("hush"), "{shown}");
    }

    proptest! {
        #[test]
        fn any_text_is_judged(url in "postgres://[ -~é]{0,40}") {
            let _ = parse(&url);
        }
    }
}
