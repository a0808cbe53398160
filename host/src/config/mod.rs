//! The operator's file, read into a checked configuration.
//!
//! Two passes, as in ripgrep's flags: the text becomes a tree that knows where everything stood ([`section`] reads it), and the
//! tree becomes the [`model`], in which nothing is left to check. Reading does not stop at the first problem: all are
//! reported at once, in the order of the file, each with its line, its key and what to do.

mod adapters;
mod databases;
mod grants;
mod json;
pub mod model;
mod problem;
mod relays;
mod resolve;
mod section;
mod units;

pub use model::Config;
pub use problem::{Problem, Problems};

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
    Ok(parse(&std::fs::read_to_string(file).map_err(unreadable)?, file)?)
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
