//! The server's process: made, started, disturbed, stopped.

use super::{Major, PASSWORD, Postgres, USER, binaries, socket_in};
use crate::certificates::{CLIENT, Certificates};
use crate::daemon::{self, Daemon, Life};
use crate::ground::{Account, Ground, free_port};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who may come in how. Everybody needs a password; the client of the certificate needs that instead.
const ACCESS: &str = "local   all all                    scram-sha-256
hostssl all certified 127.0.0.1/32 cert
host    all all       127.0.0.1/32 scram-sha-256
";

/// Options of a test's own server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Wait for the disk at each commit, as servers do in earnest: true. The shared servers do, so that what is measured on them is
    /// true. A killed process loses nothing without it, only a machine without power does: a test that measures nothing may do
    /// without.
    pub fsync: bool,
    /// Shows a certificate that has expired.
    pub expired_certificate: bool,
    /// Takes no TLS at all.
    pub no_tls: bool,
    /// Settings of `postgresql.conf`.
    pub settings: Vec<(String, String)>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { fsync: true, expired_certificate: false, no_tls: false, settings: Vec::new() }
    }
}

/// A server that may be disturbed. Stopped when dropped, and its data removed.
pub struct Server {
    postgres: Postgres,
    daemon: Option<Daemon>,
    folder: PathBuf,
    programs: PathBuf,
    account: Option<Account>,
    life: Life,
    arguments: Vec<String>,
}

impl Server {
    pub(super) fn private(major: Major, options: &ServerOptions) -> Result<Self> {
        let ground = Ground::here()?;
        let account = Account::for_servers()?;
        let folder = ground.private(&format!("postgres-{major}"))?;
        let certificates = Certificates::create(folder.join("certificates"), account)?;
        // SIGINT: fast shut-down.
        Self::create(major, options, folder, certificates, account, Life::Bound("INT"))
    }

    /// Starts a server that goes on when this program has ended.
    ///
    /// # Errors
    /// If it cannot be had, or does not start.
    pub(crate) fn shared(major: Major, folder: PathBuf, certificates: Certificates, account: Option<Account>) -> Result<Postgres> {
        let options = ServerOptions { settings: vec![("max_connections".into(), "300".into())], ..ServerOptions::default() };
        let mut server = Self::create(major, &options, folder, certificates, account, Life::Detached)?;
        server.daemon = None;
        Ok(server.postgres.clone())
    }

    fn create(
        major: Major,
        options: &ServerOptions,
        folder: PathBuf,
        certificates: Certificates,
        account: Option<Account>,
        life: Life,
    ) -> Result<Self> {
        let programs = binaries::find(major)?;
        if let Some(account) = account {
            account.own(&folder)?;
        }
        initialize(&programs, &folder, account)?;
        fs::write(folder.join("data/pg_hba.conf"), ACCESS).context("cannot write pg_hba.conf")?;
        let port = free_port()?;
        let socket = socket_in(&folder);
        let arguments = arguments(&folder, port, socket.as_deref(), options, &certificates);
        let postgres = Postgres { major, port, socket, certificates };
        let mut server = Self { postgres, daemon: None, folder, programs, account, life, arguments };
        server.start_again()?;
        server.postgres.connect("postgres")?.batch_execute(&format!("CREATE ROLE {CLIENT} SUPERUSER LOGIN"))?;
        Ok(server)
    }

    /// `kill -9` of all its processes: the next start recovers.
    ///
    /// # Errors
    /// If it does not run.
    pub fn kill(&mut self) -> Result<()> {
        let sessions = self.daemon.as_ref().context("the server does not run")?.identity().children()?;
        self.end(Signal::KILL)?;
        // They go by themselves when they miss their parent, but until then no new server can start.
        for session in sessions {
            session.stop(Signal::KILL)?;
        }
        Ok(())
    }

    /// Fast shut-down: open transactions are rolled back, connections are closed.
    ///
    /// # Errors
    /// If it does not run.
    pub fn stop(&mut self) -> Result<()> {
        self.end(Signal::INT)
    }

    /// Starts it where it was, on the same port, and waits until it answers.
    ///
    /// # Errors
    /// If it runs, or does not start.
    pub fn start_again(&mut self) -> Result<()> {
        if self.daemon.is_some() {
            bail!("the server runs already");
        }
        let program = self.programs.join("postgres");
        let mut daemon = Daemon::start(&self.folder, self.account, self.life, &program, &self.arguments)?;
        daemon.wait_until(|| self.postgres.connect("postgres").map(drop))?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Stops it and starts it again.
    ///
    /// # Errors
    /// If it does not run, or does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        self.daemon.take().context("the server does not run")?.stop(signal)
    }
}

impl Deref for Server {
    type Target = Postgres;

    fn deref(&self) -> &Postgres {
        &self.postgres
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.life == Life::Detached {
            return;
        }
        if let Some(mut daemon) = self.daemon.take() {
            // Immediate shut-down: nobody wants the data any more.
            let _ = daemon.stop(Signal::QUIT);
        }
        // What is left is removed by the next `services up` or `down`.
        let _ = daemon::clear(&self.folder);
    }
}

fn initialize(programs: &Path, folder: &Path, account: Option<Account>) -> Result<()> {
    let password = folder.join("password");
    fs::write(&password, PASSWORD).context("cannot write the password")?;
    let mut command = Command::new(programs.join("initdb"));
    command.args(["--username", USER, "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync"]);
    command.arg("--pwfile").arg(&password).arg("--pgdata").arg(folder.join("data")).current_dir(folder);
    if let Some(account) = account {
        account.apply(&mut command);
    }
    let output = command.output().context("cannot run initdb")?;
    if !output.status.success() {
        bail!("initdb failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn arguments(folder: &Path, port: u16, socket: Option<&Path>, options: &ServerOptions, certificates: &Certificates) -> Vec<String> {
    let (certificate, key) = if options.expired_certificate {
        (certificates.expired_certificate(), certificates.expired_key())
    } else {
        (certificates.server_certificate(), certificates.server_key())
    };
    let on = |yes: bool| if yes { "on" } else { "off" }.to_owned();
    let text = |path: &Path| path.display().to_string();
    let settings = [
        ("listen_addresses", "127.0.0.1".to_owned()),
        ("port", port.to_string()),
        ("unix_socket_directories", socket.map(text).unwrap_or_default()),
        ("fsync", on(options.fsync)),
        ("ssl", on(!options.no_tls)),
        ("ssl_cert_file", text(&certificate)),
        ("ssl_key_file", text(&key)),
        ("ssl_ca_file", text(&certificates.ca())),
    ];
    let mut arguments = vec!["-D".to_owned(), text(&folder.join("data"))];
    let own = options.settings.iter().map(|(name, value)| (name.as_str(), value.clone()));
    for (name, value) in settings.into_iter().chain(own) {
        arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
    }
    arguments
}
