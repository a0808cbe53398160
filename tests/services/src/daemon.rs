//! A process that is stopped by its id, even by a later run.
//!
//! Its first act is to write its own id and start time into the file `process` of its folder, before it becomes the server: there is no
//! moment at which a server runs that no file tells of. An id alone is not enough to kill by, because the system gives it to
//! somebody else later; together with the start time it names one process.

use crate::ground::Account;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Name of the file in a server's folder that says which process it is.
pub const PROCESS_FILE: &str = "process";

/// Name of the file that says whose server it is: a private one is somebody's only as long as that process lives.
pub const OWNER_FILE: &str = "owner";

/// Name of the file that a server's output goes to.
pub const LOG_FILE: &str = "log";

/// How long a process may take to go before it is killed.
const GRACE: Duration = Duration::from_secs(20);

/// Pause between two looks at a process that is not our child, for which the system has no signal to wait for.
const LOOK: Duration = Duration::from_millis(5);

/// Writes the identity of the shell, which is that of the program after `exec`.
const SCRIPT: &str = r#"{ echo $$; cat /proc/$$/stat 2>/dev/null || ps -o lstart= -p $$; } >"$0" && exec "$@""#;

/// One process, now and for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pid: i32,
    /// Clock ticks since the machine's start on Linux; elsewhere the date that `ps` prints.
    started: String,
}

impl Identity {
    /// The process that asks.
    ///
    /// # Errors
    /// If its start time cannot be found out.
    pub fn own() -> Result<Self> {
        Self::of(std::process::id())
    }

    fn of(pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid)?;
        let started = start_time(pid).with_context(|| format!("process {pid} is gone"))?;
        Ok(Self { pid, started })
    }

    /// Reads a file that [`Daemon::start`] or [`Self::write`] made; none if it is not there or was never finished.
    #[must_use]
    pub fn read(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        let (pid, rest) = text.split_once('\n')?;
        Some(Self { pid: pid.trim().parse().ok()?, started: started_in(rest)? })
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        fs::write(file, format!("{}\n{}\n", self.pid, self.started)).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_time(self.pid).is_some_and(|started| started == self.started)
    }

    /// The processes that it has started.
    ///
    /// # Errors
    /// If `ps` does not tell.
    pub fn children(&self) -> Result<Vec<Self>> {
        let output = Command::new("ps").args(["-A", "-o", "ppid=,pid="]).output().context("cannot run ps")?;
        let table = String::from_utf8(output.stdout).context("ps prints no UTF-8")?;
        let pairs = table.lines().filter_map(|line| line.trim().split_once(' '));
        let children = pairs.filter(|(parent, _)| parent.parse() == Ok(self.pid));
        // Whatever is gone meanwhile is no child any more.
        Ok(children.filter_map(|(_, child)| Self::of(child.trim().parse().ok()?).ok()).collect())
    }

    /// Sends a signal, unless it is gone.
    ///
    /// # Errors
    /// If it may not be signalled.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid).context("not a process id")?;
        if !self.is_alive() {
            return Ok(());
        }
        match kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot send {signal:?} to process {}", self.pid)),
        }
    }

    /// Sends a signal and waits until it is gone; kills it if it does not go.
    ///
    /// # Errors
    /// If it may not be signalled.
    pub fn stop(&self, signal: Signal) -> Result<()> {
        self.signal(signal)?;
        let end = Instant::now() + GRACE;
        while self.is_alive() {
            if Instant::now() > end {
                self.signal(Signal::KILL)?;
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// When a process was started; none if it is gone, also if nobody has asked for its exit code yet.
fn start_time(pid: i32) -> Option<String> {
    if Path::new("/proc/self/stat").exists() {
        return started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    }
    let output = Command::new("ps").args(["-o", "stat=,lstart=", "-p", &pid.to_string()]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (state, started) = text.trim().split_once(' ')?;
    (!state.starts_with('Z')).then(|| started.trim().to_owned())
}

/// The start time in a line of `/proc/PID/stat` (proc(5): field 22; field 2 is the name, in parentheses, and may hold anything),
/// or the text itself.
fn started_in(text: &str) -> Option<String> {
    let Some((_, fields)) = text.rsplit_once(')') else { return (!text.trim().is_empty()).then(|| text.trim().to_owned()) };
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    // Field 3 was the state.
    let started = fields.nth(22 - 4)?;
    (!matches!(state, "Z" | "X")).then(|| started.to_owned())
}

/// A server that this program has started.
pub struct Daemon {
    child: Child,
    identity: Identity,
    log: PathBuf,
}

/// How long a server lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Until somebody stops it: in a group of its own, out of reach of Ctrl-C.
    Detached,
    /// No longer than the thread that starts it, where the kernel can see to that (util-linux has `setpriv --pdeathsig`): the name of
    /// the signal that it gets then.
    Bound(&'static str),
}

impl Daemon {
    /// Starts a program as somebody else, with its output in the file `log` of its folder.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<A: AsRef<OsStr>>(
        folder: &Path,
        account: Option<Account>,
        life: Life,
        program: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        let log = folder.join(LOG_FILE);
        let output =
            fs::OpenOptions::new().create(true).append(true).open(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = match life {
            Life::Bound(signal) if can_bind() => {
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", signal, "--", "sh"]);
                command
            }
            _ => Command::new("sh"),
        };
        command.args(["-c", SCRIPT]).arg(folder.join(PROCESS_FILE)).arg(program).args(arguments);
        command.current_dir(folder).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        if let Some(account) = account {
            account.apply(&mut command);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        match Identity::of(child.id()) {
            Ok(identity) => Ok(Self { child, identity, log }),
            Err(_) => {
                let status = child.wait()?;
                bail!("{} ended at once ({status}); {}", program.display(), last_lines(&log))
            }
        }
    }

    /// Fails if the process has ended, with the end of its log.
    ///
    /// # Errors
    /// If it has.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the server ended ({status}); {}", last_lines(&self.log)),
        }
    }

    /// Waits until a server answers.
    ///
    /// # Errors
    /// If it ends, or does not answer in three minutes: with the end of its log, and the last failure to reach it.
    pub fn wait_until<T>(&mut self, mut answers: impl FnMut() -> Result<T>) -> Result<T> {
        // A broker is up in five seconds on a machine of its own, and took more than sixty on one with twenty times its work.
        const PATIENCE: Duration = Duration::from_secs(180);
        let end = Instant::now() + PATIENCE;
        loop {
            match answers() {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    self.check()?;
                    if Instant::now() > end {
                        let advice = format!("the server does not answer; {}", last_lines(&self.log));
                        return Err(error.context(advice));
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Sends a signal and waits until it has gone.
    ///
    /// # Errors
    /// If it may not be signalled.
    pub fn stop(&mut self, signal: Signal) -> Result<()> {
        // A process that stands still takes no signal but this one and SIGKILL.
        self.identity.signal(Signal::CONT)?;
        self.identity.stop(signal)?;
        self.child.wait().context("cannot wait for the server")?;
        Ok(())
    }
}

/// The end of a log, for an error.
fn last_lines(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(15)..].join("\n");
    format!("the end of {}:\n{last}", log.display())
}

fn can_bind() -> bool {
    static CAN_BIND: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CAN_BIND.get_or_init(|| {
        let tried =
            Command::new("setpriv").args(["--pdeathsig", "KILL", "--", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    })
}

/// Stops what a folder's file tells of, whoever started it, and removes the folder.
///
/// # Errors
/// If the process may not be signalled, or the folder cannot be removed.
pub fn clear(folder: &Path) -> Result<()> {
    if let Some(identity) = Identity::read(&folder.join(PROCESS_FILE)) {
        identity.signal(Signal::CONT)?;
        // PostgreSQL: at once, but its processes and its shared memory go as well. Kafka: the JVM prints its threads and lives, so
        // that the data would be removed under it; therefore SIGKILL for what is not PostgreSQL.
        let signal = if folder.join("data").join("PG_VERSION").exists() { Signal::QUIT } else { Signal::KILL };
        identity.stop(signal)?;
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(folder: &Path, life: Life) -> Daemon {
        Daemon::start(folder, None, life, Path::new("sleep"), ["1000"]).unwrap()
    }

    fn wait_for_file(folder: &Path) -> Identity {
        loop {
            if let Some(identity) = Identity::read(&folder.join(PROCESS_FILE)) {
                return identity;
            }
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn a_daemon_is_known_by_its_file_and_stopped_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = sleeper(folder.path(), Life::Detached);
        let known = wait_for_file(folder.path());
        assert_eq!(&known, daemon.identity());
        assert!(known.is_alive());
        let path = folder.keep();
        clear(&path).unwrap();
        assert!(!known.is_alive() && !path.exists());
        assert!(daemon.check().unwrap_err().to_string().contains("the server ended"));
    }

    #[test]
    fn a_process_with_the_same_id_and_another_start_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = sleeper(folder.path(), Life::Detached);
        wait_for_file(folder.path());
        let other = Identity { started: "1".into(), ..daemon.identity().clone() };
        assert!(!other.is_alive());
        other.stop(Signal::KILL).unwrap();
        daemon.check().unwrap();
        daemon.stop(Signal::TERM).unwrap();
        assert!(!daemon.identity().is_alive());
    }

    #[test]
    fn what_is_bound_ends_with_its_thread() {
        if !can_bind() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let mut daemon = std::thread::spawn(move || {
            let daemon = sleeper(&path, Life::Bound("TERM"));
            wait_for_file(&path);
            daemon
        })
        .join()
        .unwrap();
        assert!(!daemon.child.wait().unwrap().success());
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_hide_the_start_time() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 9 9";
        assert_eq!(started_in(stat).as_deref(), Some("4242"));
        assert_eq!(started_in(&stat.replace(" S ", " Z ")), None);
        assert_eq!(started_in("Sun Nov 29 22:00:00 2026\n").as_deref(), Some("Sun Nov 29 22:00:00 2026"));
        assert_eq!(started_in(" \n"), None);
    }
}
