//! The programs of a major version: those that are installed, else those that the project zonky publishes in Maven's repository.

use super::Major;
use crate::download;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder with `initdb` and `postgres` of this version.
pub(super) fn find(major: Major) -> Result<PathBuf> {
    match installed(major) {
        Some(folder) => Ok(folder),
        None => downloaded(major).with_context(|| format!("PostgreSQL {major} is not installed")),
    }
}

fn installed(major: Major) -> Option<PathBuf> {
    let known = [
        // Debian and its children; PGDG on Red Hat and its children; Homebrew on both kinds of Mac.
        format!("/usr/lib/postgresql/{major}/bin"),
        format!("/usr/pgsql-{major}/bin"),
        format!("/opt/homebrew/opt/postgresql@{major}/bin"),
        format!("/usr/local/opt/postgresql@{major}/bin"),
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    known.into_iter().map(PathBuf::from).chain(std::env::split_paths(&path)).find(|folder| is_of(folder, major))
}

fn is_of(folder: &Path, major: Major) -> bool {
    let programs = ["initdb", "postgres"].map(|name| folder.join(name));
    if !programs.iter().all(|program| program.is_file()) {
        return false;
    }
    // "postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)"
    let Ok(output) = Command::new(&programs[1]).arg("--version").output() else { return false };
    String::from_utf8_lossy(&output.stdout).contains(&format!("(PostgreSQL) {major}."))
}

fn downloaded(major: Major) -> Result<PathBuf> {
    let system = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "linux-amd64",
        ("linux", "aarch64") => "linux-arm64v8",
        ("macos", "x86_64") => "darwin-amd64",
        ("macos", "aarch64") => "darwin-arm64v8",
        (os, arch) => bail!("there are no binaries for {os} on {arch}: install PostgreSQL {major}"),
    };
    let version = match major {
        Major::V15 => "15.14.0",
        Major::V17 => "17.6.0",
    };
    let name = format!("embedded-postgres-binaries-{system}");
    let folder = download::archive(&format!("postgres-{version}-{system}"), ("io.zonky.test.postgres", &name, version))?;
    Ok(folder.join("bin"))
}
