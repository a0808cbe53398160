//! `[databases.NAME]`.

use super::model::{Database, Sqlite};
use super::section::{Located, Section};
use std::path::Path;

/// Reads one database. `folder` is the configuration file's.
pub(super) fn database(section: Section<'_>, folder: &Path) -> Option<Database> {
    let url = section.required("url", "\"sqlite:outbox.db\"");
    let synchronous = section.word("synchronous", &["full", "normal"], "full");
    let path = url.and_then(|url| match sqlite_path(&url) {
        Ok(path) => Some(folder.join(path)),
        Err(error) => {
            section.problem(url.at, "url", error);
            None
        }
    });
    section.finish();
    Some(Database::Sqlite(Sqlite { path: path?, synchronous_full: synchronous.value == "full" }))
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
        return Err(format!("the scheme {scheme:?} is not supported: supported is sqlite, as in \"sqlite:outbox.db\""));
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
