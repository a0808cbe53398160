//! `[registries."HOST"]`.

use super::adapters::{self, Names};
use super::model::{Credentials, Registry};
use super::section::Section;
use crate::oci::{is_loopback, registry_name};

/// Names of sections are compared with the names in references, which are in lower case.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    match registry_name(name)? {
        lower if lower == name => Ok(()),
        lower => Err(format!("write the registry's name in lower case: {lower:?}")),
    }
}

/// Reads one registry.
pub(super) fn registry(name: &str, section: Section<'_>, names: &Names<'_>) -> Registry {
    let username = section.text("username");
    let password = section.secret("password");
    if let Some(password) = &password {
        adapters::refers(&section, password, "password", "secret", &names.secrets);
    }
    let plain_http = section.flag("plain_http", false);
    let ca_file = adapters::pem_file(&section, "tls_ca_file", names.folder);
    let tls_client = adapters::client_certificate(&section, names.folder);
    if plain_http.value
        && let Some(ca_file) = &ca_file
    {
        section.problem(ca_file.at, "tls_ca_file", "has no effect with plain_http = true: leave one of the two out");
    }
    if plain_http.value && tls_client.is_some() {
        section.problem(plain_http.at, "plain_http", "leaves no TLS to show tls_cert_file in: leave one of the two out");
    }
    let credentials = match (username, password) {
        (Some(username), Some(password)) => {
            if username.value.is_empty() || username.value.contains(':') {
                section.problem(username.at, "username", "is empty or has a ':', which no user name has");
            }
            if plain_http.value && !is_loopback(name) {
                let text = "sends the password in the clear to another machine: leave it out, or the username and password";
                section.problem(plain_http.at, "plain_http", text);
            }
            Some(Credentials { username: username.value.to_owned(), password: password.value.to_owned() })
        }
        (Some(username), None) => {
            section.problem(username.at, "username", "is of no use without its password: add password = { secret = \"NAME\" }");
            None
        }
        (None, Some(password)) => {
            section.problem(password.at, "password", "is of no use without its user: add username = \"NAME\"");
            None
        }
        (None, None) => None,
    };
    section.finish();
    Registry { credentials, plain_http: plain_http.value, tls_ca_file: ca_file.map(|file| file.value), tls_client }
}
