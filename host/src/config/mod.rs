//! The operator's file, read into a checked configuration.
//!
//! Two passes, as in ripgrep's flags: the text becomes a tree that knows where everything stood ([`section`] reads it), and the
//! tree becomes the [`model`], in which nothing is left to check. Reading does not stop at the first problem: all are
//! reported at once, in the order of the file, each with its line, its key and what to do.

mod adapters;
mod changes;
mod databases;
mod duplicates;
pub mod endpoint;
mod fan_out;
mod grants;
mod json;
pub mod model;
mod outages;
mod patterns;
mod places;
mod postgres_url;
mod problem;
mod registries;
mod relays;
mod resolve;
mod routers;
mod section;
mod sql_name;
mod units;

pub(crate) use changes::changes_relay;
pub use changes::{Fixed, fixed};
pub use databases::{WRITTEN_PASSWORD, written_passwords};
pub use model::Config;
pub use outages::{Warning, warnings};
pub use places::{Place, Places};
pub(crate) use postgres_url::parse as parse_postgres_url;
pub use problem::{Problem, Problems};
pub(crate) use section::check_name;

use std::io;
use std::path::{Path, PathBuf};

/// Largest file that is read, in bytes: far over every real one; a wrong path (a database, say) ends with a clear text.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No such file.
    #[error("there is no configuration file {}: name one with --config, or start from examples/outhaul.toml", .file.display())]
    Absent {
        /// The file.
        file: PathBuf,
    },
    /// It cannot be read.
    #[error("cannot read the configuration file {}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is too large to be one.
    #[error("{} has {bytes} bytes: that is no configuration file (at most {MAX_FILE_BYTES} are read)", .file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// It is no text.
    #[error(
        "{}:{line}: is not UTF-8 (byte {at} of the file): a configuration is a TOML text in UTF-8; save it as that, or name \
         another file with --config", .file.display()
    )]
    NotText {
        /// The file.
        file: PathBuf,
        /// Line of the first byte that is none.
        line: usize,
        /// Its place in the file, from 0.
        at: usize,
    },
    /// It was read, and is wrong.
    #[error(transparent)]
    Invalid(#[from] Problems),
}

/// Reads and checks a configuration file.
///
/// # Errors
/// The file cannot be read, or everything that is wrong with it.
pub fn load(file: &Path) -> Result<Config, ConfigError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ConfigError::Absent { file: file.to_owned() },
        _ => ConfigError::Unreadable { file: file.to_owned(), source },
    };
    let bytes = std::fs::metadata(file).map_err(unreadable)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(ConfigError::TooLarge { file: file.to_owned(), bytes });
    }
    let bytes = std::fs::read(file).map_err(unreadable)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let at = error.valid_up_to();
        let line = 1 + bytes.iter().take(at).filter(|byte| **byte == b'\n').count();
        ConfigError::NotText { file: file.to_owned(), line, at }
    })?;
    Ok(parse(text, file)?)
}

/// Checks the text of a configuration file. `file` names it in errors; relative paths in it are taken from its folder.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(text: &str, file: &Path) -> Result<Config, Problems> {
    resolve::resolve(text, file)
}

#[cfg(test)]
mod tests;
