//! A registry of container images: the distribution project's own, which most others are built on.

use crate::certificates::Certificates;
use crate::daemon::{self, Daemon, Life};
use crate::ground::{Ground, free_port};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

/// The user of a registry that wants one.
pub const USER: &str = "puller";

/// The user's password.
pub const PASSWORD: &str = "let-me-pull";

/// The same as the registry reads it: htpasswd with bcrypt.
const HTPASSWD: &str = "puller:$2a$05$z62t/s5EbL3vuL9xX4eNyOURIbKjBkLhRQIsb/BAqlJ72bNMm9CpO\n";

/// Who may pull, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody, without TLS.
    Open,
    /// The user [`USER`], over TLS.
    Guarded,
}

/// A registry. Stopped when dropped, and its data removed.
pub struct Registry {
    folder: PathBuf,
    port: u16,
    certificates: Certificates,
    program: PathBuf,
    daemon: Option<Daemon>,
}

impl Registry {
    /// Starts one for everybody.
    ///
    /// # Errors
    /// If it is not installed, or does not start.
    pub fn start() -> Result<Self> {
        let program = installed()?;
        let folder = Ground::here()?.private("registry")?;
        let certificates = Certificates::create(folder.join("certificates"), None)?;
        fs::write(folder.join("htpasswd"), HTPASSWD).context("cannot write htpasswd")?;
        let mut registry = Self { folder, port: free_port()?, certificates, program, daemon: None };
        registry.serve(Access::Open)?;
        Ok(registry)
    }

    /// Goes on with other rules, at the same address and with the same content.
    ///
    /// # Errors
    /// If it does not start.
    pub fn serve(&mut self, access: Access) -> Result<()> {
        self.stop()?;
        let file = self.folder.join("config.yml");
        fs::write(&file, self.configuration(access)).context("cannot write config.yml")?;
        let arguments = ["serve".as_ref(), file.as_os_str()];
        let mut daemon = Daemon::start(&self.folder, None, Life::Bound("KILL"), &self.program, arguments)?;
        daemon.wait_until(|| Ok(TcpStream::connect(("127.0.0.1", self.port))?))?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Ends it; what is in it stays.
    ///
    /// # Errors
    /// If it may not be signalled.
    pub fn stop(&mut self) -> Result<()> {
        match self.daemon.take() {
            Some(mut daemon) => daemon.stop(Signal::KILL),
            None => Ok(()),
        }
    }

    /// Its name in references.
    #[must_use]
    pub fn name(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// What it shows of itself where it speaks TLS, and who has signed that.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    /// The file in which it keeps the content of a digest, given in hexadecimal.
    #[must_use]
    pub fn blob(&self, sha256: &str) -> PathBuf {
        let two = sha256.get(..2).unwrap_or_default();
        self.folder.join(format!("data/docker/registry/v2/blobs/sha256/{two}/{sha256}/data"))
    }

    fn configuration(&self, access: Access) -> String {
        let shown = |path: &Path| path.display().to_string();
        let guard = match access {
            Access::Open => String::new(),
            Access::Guarded => format!(
                "  tls:\n    certificate: {}\n    key: {}\nauth:\n  htpasswd:\n    realm: tests\n    path: {}\n",
                shown(&self.certificates.server_certificate()),
                shown(&self.certificates.server_key()),
                shown(&self.folder.join("htpasswd")),
            ),
        };
        format!(
            "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{}\n  \
             secret: of-tests\n{guard}",
            shown(&self.folder.join("data")),
            self.port
        )
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // What is left is removed by the next `services up` or `down`.
        let _ = self.stop().and_then(|()| daemon::clear(&self.folder));
    }
}

fn installed() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian's name, and that of the project.
    let mut places = std::env::split_paths(&path).flat_map(|folder| ["docker-registry", "registry"].map(|name| folder.join(name)));
    match places.find(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => bail!("no registry is installed (Debian: apt-get install docker-registry; elsewhere: distribution's `registry` in PATH)"),
    }
}
