//! What the machine does not have comes from Maven's repository, once: everything works without a network after that.
//!
//! Maven is what every Java machine has, it follows the mirrors and proxies that its user has set, and it checks the checksums. What
//! is fetched is put beside nothing else: one folder per thing and version, shared by all checkouts of this user.

use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version of Maven's own plugin that fetches.
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1";

/// An artifact of Maven's repository: group, name, version.
pub type Artifact<'a> = (&'a str, &'a str, &'a str);

/// Fetches artifacts with everything that they need, as jars. Returns their folder.
///
/// # Errors
/// If they are not there yet and cannot be fetched: what to install.
pub fn jars(name: &str, artifacts: &[Artifact<'_>]) -> Result<PathBuf> {
    once(name, |folder| maven(folder, artifacts, "copy-dependencies"))
}

/// Fetches one artifact that is a jar around a `.txz` archive, and unpacks both. Returns the folder with what was in the archive.
///
/// # Errors
/// If it is not there yet and cannot be fetched: what to install.
pub fn archive(name: &str, artifact: Artifact<'_>) -> Result<PathBuf> {
    once(name, |folder| {
        let jar = folder.with_extension("jar.d");
        remove(&jar)?;
        maven(&jar, &[artifact], "unpack-dependencies")?;
        let mut files = fs::read_dir(&jar)?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let archive = files.find(|path| path.extension().is_some_and(|extension| extension == "txz")).context("no archive in the jar")?;
        fs::create_dir_all(folder)?;
        let status = Command::new("tar").arg("xJf").arg(&archive).arg("-C").arg(folder).status().context("cannot run tar")?;
        if !status.success() {
            bail!("tar cannot unpack {} ({status}): it needs xz (Debian: apt-get install xz-utils)", archive.display());
        }
        remove(&jar)
    })
}

/// Makes a folder of the cache, if it is not there yet: under a lock, and put in place when it is complete.
fn once(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = cache()?;
    let folder = cache.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let lock = File::create(cache.join(format!("{name}.lock"))).with_context(|| format!("cannot write in {}", cache.display()))?;
    lock.lock().context("cannot lock the cache")?;
    if folder.is_dir() {
        return Ok(folder);
    }
    let half = cache.join(format!("{name}.half"));
    remove(&half)?;
    make(&half)?;
    fs::rename(&half, &folder).with_context(|| format!("cannot put {} in place", folder.display()))?;
    Ok(folder)
}

/// Of this user, shared by checkouts; of the machine if the user is root, whose own folders the servers' user cannot read.
fn cache() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/cache/outhaul-services"));
    }
    let folder = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = folder.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    Ok(folder.context("neither HOME nor XDG_CACHE_HOME is set, so there is no place for downloads")?.join("outhaul-services"))
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(|| format!("cannot remove {}", folder.display())),
        _ => Ok(()),
    }
}

fn maven(into: &Path, artifacts: &[Artifact<'_>], goal: &str) -> Result<()> {
    let pom = tempfile::tempdir()?;
    let file = pom.path().join("pom.xml");
    fs::write(&file, pom_of(artifacts))?;
    // --strict-checksums: a wrong checksum is a failure, not a warning.
    let output = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "--strict-checksums", "--file"])
        .arg(&file)
        .arg(format!("{PLUGIN}:{goal}"))
        .arg(format!("-DoutputDirectory={}", into.display()))
        .args(["-DincludeScope=runtime", "-Dmdep.unpack.excludes=META-INF/**"])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("it is fetched by Maven, which is not installed (Debian: apt-get install maven; macOS: brew install maven)")
        }
        Err(error) => return Err(error).context("cannot run mvn"),
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout);
        let first: Vec<&str> = said.lines().filter(|line| line.contains("ERROR")).take(3).collect();
        bail!("mvn cannot fetch {} ({}): {}", artifacts.first().map_or("", |artifact| artifact.1), output.status, first.join(" "));
    }
    Ok(())
}

fn pom_of(artifacts: &[Artifact<'_>]) -> String {
    let dependencies: String = artifacts
        .iter()
        .map(|(group, name, version)| {
            format!("<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>")
        })
        .collect();
    format!(
        "<project><modelVersion>4.0.0</modelVersion><groupId>outhaul</groupId><artifactId>services</artifactId><version>1</version>\
         <packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pom_names_each_artifact() {
        let pom = pom_of(&[("g", "a", "1"), ("h", "b", "2")]);
        assert_eq!(pom.matches("<dependency>").count(), 2);
        assert!(pom.contains("<groupId>h</groupId><artifactId>b</artifactId><version>2</version>"), "{pom}");
    }
}
