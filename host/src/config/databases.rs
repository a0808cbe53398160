//! `[databases.NAME]`.

use super::adapters::{self, Names};
use super::model::{Config, Database, Postgres, PostgresUrl, Sqlite, TlsMode};
use super::places::Place;
use super::postgres_url;
use super::section::{Located, Range, Section, TextOrSecret};
use std::path::Path;
use std::time::Duration;

/// What is supported, for errors.
const SUPPORTED: &str = "sqlite, as in \"sqlite:outbox.db\", and postgres, as in \"postgres://user@host:5432/database\"";

/// Sessions of one database. A relay uses three or four: it claims and settles at once, counts its backlog, and lends to the admin commands.
const CONNECTIONS: usize = 8;

/// The databases whose password stands in the file, for everybody to see who may read it.
pub fn written_passwords(config: &Config) -> impl Iterator<Item = (&str, Option<Place>)> {
    config.databases.iter().filter_map(|(name, database)| match database {
        Database::Postgres(postgres) if postgres.password_in_file() => {
            Some((name.as_str(), config.places.first([format!("databases.{name}.url")])))
        }
        Database::Postgres(_) | Database::Sqlite(_) => None,
    })
}

/// What to say of them.
pub const WRITTEN_PASSWORD: &str =
    "a password stands in this file: leave it out of the url, and add password = { secret = \"NAME\" } with its [secrets.NAME]";

/// Reads one database.
pub(super) fn database(section: Section<'_>, names: &Names<'_>) -> Option<Database> {
    let url = section.text_or_secret("url", "\"sqlite:outbox.db\"");
    match url {
        Some(url @ Located { value: TextOrSecret::Secret(name), .. }) => {
            adapters::refers(&section, &url.with(name), "url", "secret", &names.secrets);
            postgres(section, Some(PostgresUrl::Secret(name.to_owned())), names)
        }
        Some(Located { value: TextOrSecret::Text(url), at, .. }) if url.starts_with("postgres:") || url.starts_with("postgresql:") => {
            let parsed = postgres_url::parse(url).map_err(|error| section.problem(at, "url", error)).ok();
            postgres(section, parsed.map(PostgresUrl::Written), names)
        }
        Some(url @ Located { value: TextOrSecret::Text(text), .. }) => sqlite(section, Some(&url.with(text)), names.folder),
        None => sqlite(section, None, names.folder),
    }
}

fn sqlite(section: Section<'_>, url: Option<&Located<&str>>, folder: &Path) -> Option<Database> {
    let synchronous = section.word("synchronous", &["full", "normal"], "full");
    let path = url.and_then(|url| match sqlite_path(url) {
        Ok(path) => Some(folder.join(path)),
        Err(error) => {
            section.problem(url.at, "url", error);
            None
        }
    });
    // Without a url it is not known which kind it is, and which keys it has.
    if url.is_some() {
        section.finish();
    }
    Some(Database::Sqlite(Sqlite { path: path?, synchronous_full: synchronous.value == "full", applies_schema: false }))
}

fn postgres(section: Section<'_>, url: Option<PostgresUrl>, names: &Names<'_>) -> Option<Database> {
    let written = match &url {
        Some(PostgresUrl::Written(url)) => Some(url),
        _ => None,
    };
    let password = section.secret("password");
    if let Some(password) = &password {
        adapters::refers(&section, password, "password", "secret", &names.secrets);
        if written.is_some_and(|url| url.password.is_some()) {
            section.problem(password.at, "password", "contradicts the password in the url: leave one of the two out");
        }
    }
    let word = section.word("tls", &TlsMode::WORDS, "verify-full");
    let tls = if word.written { TlsMode::parse(word.value) } else { None };
    if word.written && written.is_some_and(|url| url.tls.is_some()) {
        section.problem(word.at, "tls", "contradicts sslmode in the url: leave one of the two out");
    }
    // The url of a secret may have a mode of its own, which is not known here.
    let mode = tls.or_else(|| written.map(|url| url.tls.unwrap_or_else(|| url.endpoint.default_tls())));
    let ca_file = adapters::pem_file(&section, "tls_ca_file", names.folder);
    if let Some(ca_file) = &ca_file
        && let Some(mode @ (TlsMode::Disable | TlsMode::Prefer | TlsMode::Require)) = mode
    {
        let text = format!("has no effect with tls = {:?}, which verifies nothing: write tls = \"verify-full\"", mode.as_str());
        section.problem(ca_file.at, "tls_ca_file", text);
    }
    let tls_client = adapters::client_certificate(&section, names.folder);
    if tls_client.is_some() && mode == Some(TlsMode::Disable) {
        section.problem_here("has a client certificate (tls_cert_file), and no TLS to show it: leave it out, or change tls");
    }
    let max_connections = section.number("max_connections", CONNECTIONS, Range { min: 1, max: 1000 }).value;
    let connect_timeout = section.duration("connect_timeout", Duration::from_secs(5), false).value;
    section.finish();
    Some(Database::Postgres(Box::new(Postgres {
        url: url?,
        password: password.map(|password| password.value.to_owned()),
        tls,
        tls_ca_file: ca_file.map(|file| file.value),
        tls_client,
        max_connections,
        connect_timeout,
    })))
}

/// The path of `sqlite:PATH`. A URL may hold a password: errors name its scheme only.
fn sqlite_path<'a>(url: &Located<&'a str>) -> Result<&'a str, String> {
    let Some((scheme, path)) = url.value.split_once(':') else {
        return Err("has no scheme: write \"sqlite:PATH\"".to_owned());
    };
    if !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')) {
        // What stands before the first ':' may be a part of a password here.
        return Err("has no scheme: write \"sqlite:PATH\"".to_owned());
    }
    if scheme != "sqlite" {
        return Err(format!("the scheme {scheme:?} is not supported: supported are {SUPPORTED}"));
    }
    if path.starts_with("//") {
        return Err(
            "write the path right after \"sqlite:\", without \"//\": \"sqlite:outbox.db\" or \"sqlite:/var/lib/outbox.db\"".to_owned()
        );
    }
    if path.contains(['?', '#']) {
        return Err("takes no parameters after '?' or '#': write \"sqlite:PATH\"; what can be set has keys of its own".to_owned());
    }
    if path == ":memory:" {
        return Err("a database in memory cannot be shared with its producers: name a file".to_owned());
    }
    if path.is_empty() || path.contains('\0') {
        return Err("names no file: write \"sqlite:PATH\"".to_owned());
    }
    Ok(path)
}
