//! What went wrong with TLS, in words that say what to change.

use rustls::{AlertDescription, CertificateError, Error};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// What a text may refer to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// The table of the configuration.
    pub(crate) section: &'a str,
    pub(crate) ca_file: Option<&'a Path>,
    pub(crate) cert_file: Option<&'a Path>,
}

/// A server that hangs up on the first bytes mostly takes them for another protocol.
pub(crate) const HUNG_UP: &str = "the other side hung up during the handshake: does it speak TLS on this port?";

pub(crate) fn text(error: &Error, known: &Known<'_>) -> String {
    match error {
        Error::InvalidCertificate(fault) => certificate(fault, known),
        Error::AlertReceived(alert) => refused(*alert, known),
        Error::InvalidMessage(_) => "what the other side sent is not TLS: does it speak TLS on this port?".to_owned(),
        other => other.to_string(),
    }
}

fn certificate(fault: &CertificateError, known: &Known<'_>) -> String {
    let rfc3339 = |seconds: u64| match UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) {
        Some(time) => humantime::format_rfc3339_seconds(time).to_string(),
        None => format!("{seconds} seconds after 1970"),
    };
    match fault {
        CertificateError::UnknownIssuer => match known.ca_file {
            None => format!(
                "its certificate was issued by an unknown authority: add tls_ca_file = \"FILE.pem\" under [{}] with that authority's certificate",
                known.section
            ),
            Some(file) => format!(
                "its certificate was issued by an unknown authority, which is neither one of the system's nor in tls_ca_file ({})",
                file.display()
            ),
        },
        CertificateError::NotValidForNameContext { expected, presented } if !presented.is_empty() => {
            let presented: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            format!("its certificate is for {}, not for {}", presented.join(", "), expected.to_str())
        }
        CertificateError::ExpiredContext { not_after, .. } => format!("its certificate has expired at {}", rfc3339(not_after.as_secs())),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid before {} by this machine's clock", rfc3339(not_before.as_secs()))
        }
        other => Error::InvalidCertificate(other.clone()).to_string(),
    }
}

/// The name in the debug form that the verifier gives: `DnsName("a.example")`, `IpAddress(127.0.0.1)`.
fn bare(presented: &str) -> &str {
    let inner = presented.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(presented);
    inner.trim_matches('"')
}

fn refused(alert: AlertDescription, known: &Known<'_>) -> String {
    use AlertDescription as Alert;
    let about_us = matches!(
        alert,
        Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
    );
    match known.cert_file {
        Some(file) if about_us => {
            format!("it refuses the client certificate in tls_cert_file ({}), with the alert {alert:?}", file.display())
        }
        None if about_us => {
            format!("it asks for a client certificate (alert {alert:?}): add tls_cert_file and tls_key_file under [{}]", known.section)
        }
        // What servers of TLS 1.2 send for a missing certificate, and for much else (RFC 5246, section 7.4.6).
        None if alert == Alert::HandshakeFailure => format!(
            "it refuses the connection (alert {alert:?}): it has no cipher in common, or asks for a client certificate \
             (tls_cert_file and tls_key_file under [{}])",
            known.section
        ),
        _ => format!("it refuses the connection (alert {alert:?})"),
    }
}

/// The I/O error inside I/O errors: connectors wrap one in another, which `source` does not show.
pub(crate) fn innermost(mut error: &std::io::Error) -> &std::io::Error {
    while let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<std::io::Error>()) {
        error = inner;
    }
    error
}

/// The fault of TLS that an I/O error stands for, if it does.
pub(crate) fn inside(error: &std::io::Error) -> Option<&Error> {
    innermost(error).get_ref().and_then(|inner| inner.downcast_ref::<Error>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{ServerName, UnixTime};

    const BARE: Known<'_> = Known { section: "publishers.kafka", ca_file: None, cert_file: None };

    #[test]
    fn texts_say_what_to_change() {
        let full = Known { ca_file: Some(Path::new("/etc/ca.pem")), cert_file: Some(Path::new("/etc/me.pem")), ..BARE };
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let expired = Error::InvalidCertificate(CertificateError::ExpiredContext {
            time: UnixTime::since_unix_epoch(Duration::from_secs(2_000_000_000)),
            not_after: UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000)),
        });
        let name = Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("b1.example").unwrap(),
            presented: vec!["DnsName(\"localhost\")".into(), "IpAddress(127.0.0.1)".into()],
        });
        for (error, known, text) in [
            (&unknown, &BARE, "add tls_ca_file = \"FILE.pem\" under [publishers.kafka] with that authority's certificate"),
            (&unknown, &full, "neither one of the system's nor in tls_ca_file (/etc/ca.pem)"),
            (&expired, &BARE, "its certificate has expired at 2023-11-14T22:13:20Z"),
            (&name, &BARE, "its certificate is for localhost, 127.0.0.1, not for b1.example"),
            (
                &Error::AlertReceived(AlertDescription::CertificateRequired),
                &BARE,
                "add tls_cert_file and tls_key_file under [publishers.kafka]",
            ),
            (&Error::AlertReceived(AlertDescription::BadCertificate), &BARE, "it asks for a client certificate"),
            (
                &Error::AlertReceived(AlertDescription::UnknownCA),
                &full,
                "refuses the client certificate in tls_cert_file (/etc/me.pem), with the alert UnknownCA",
            ),
            (&Error::AlertReceived(AlertDescription::HandshakeFailure), &BARE, "or asks for a client certificate"),
            (&Error::AlertReceived(AlertDescription::ProtocolVersion), &full, "it refuses the connection (alert ProtocolVersion)"),
            (&Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType), &BARE, "does it speak TLS on this port?"),
        ] {
            let told = super::text(error, known);
            assert!(told.contains(text), "{told}");
        }
    }
}
