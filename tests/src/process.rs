//! A program that runs beside the test: its output is captured line by line, and every wait ends when something happens.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a wait may take before the test fails: far more than anything takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again, every few milliseconds, until something is so: for what gives no signal, such as a table or a metric.
///
/// # Errors
/// If asking fails, or it is not so after [`PATIENCE`].
pub fn poll(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is_so()? {
        if Instant::now() > end {
            bail!("waited in vain for {what}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A command for a program that does not outlive the thread that starts it: a test run may be killed itself, and what it started
/// would go on for ever. The kernel sees to that, where util-linux can ask it to; elsewhere only the drop of [`Process`] does.
#[must_use]
pub fn bound(program: &Path) -> Command {
    if !can_bind() {
        return Command::new(program);
    }
    let mut command = Command::new(BIND[0]);
    command.args(&BIND[1..]).arg(program);
    command
}

const BIND: [&str; 4] = ["setpriv", "--pdeathsig", "KILL", "--"];

fn can_bind() -> bool {
    static CAN_BIND: OnceLock<bool> = OnceLock::new();
    *CAN_BIND.get_or_init(|| {
        let tried = Command::new(BIND[0]).args(&BIND[1..]).arg("true").stdout(Stdio::null()).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    })
}

/// Processor time that a process has used, in steps of 10 ms: fields 14 and 15 of /proc/PID/stat, in hundredths of a second.
///
/// # Errors
/// If there is no such process.
pub fn processor_time(pid: i32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit(')').next().context("no name in stat")?;
    let ticks = after_name.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// A running program. Killed when dropped.
pub struct Process {
    child: Child,
    pid: Pid,
    output: Output,
    errors: Output,
}

impl Process {
    /// Starts a program with its output captured and nothing to read.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        Self::start_with(command, Stdio::null())
    }

    /// The same, with something to read.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_with(command: &mut Command, input: Stdio) -> Result<Self> {
        let mut child = command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let pid = Pid::from_child(&child);
        let output = Output::capture(child.stdout.take().context("no pipe for the output")?);
        let errors = Output::capture(child.stderr.take().context("no pipe for the errors")?);
        Ok(Self { child, pid, output, errors })
    }

    /// What it printed.
    #[must_use]
    pub fn output(&self) -> &Output {
        &self.output
    }

    /// What it logged.
    #[must_use]
    pub fn errors(&self) -> &Output {
        &self.errors
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid, signal).with_context(|| format!("cannot send {signal:?}"))
    }

    /// Stops it where it is; returns when it stands still.
    ///
    /// # Errors
    /// If it has ended.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid), options)?.context("no status of the process")?;
        if !status.stopped() {
            bail!("the process ended before it could be stopped:\n{}", self.errors.text());
        }
        Ok(())
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// If it has ended.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Ends it as `kill -9` does; returns when it is gone.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill().context("cannot kill the process")?;
        self.child.wait().context("cannot wait for the process")
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// If it is still there after [`PATIENCE`]: with what it logged.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        // Its pipes close when it ends: that can be waited for, with a limit.
        for pipe in [&self.errors, &self.output] {
            pipe.wait_for("the end of the process", |captured| captured.ended.then_some(()))?;
        }
        self.child.wait().context("cannot wait for the process")
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines that a program wrote to one of its pipes.
#[derive(Clone)]
pub struct Output(Arc<(Mutex<Captured>, Condvar)>);

/// What was read so far.
#[derive(Default)]
pub struct Captured {
    /// Lines without their ends.
    pub lines: Vec<String>,
    /// The program has closed the pipe.
    pub ended: bool,
}

impl Output {
    fn capture(pipe: impl Read + Send + 'static) -> Self {
        let output = Self(Arc::default());
        let reader = output.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                let Ok(line) = line else { break };
                reader.lock().lines.push(String::from_utf8_lossy(&line).into_owned());
                reader.0.1.notify_all();
            }
            reader.lock().ended = true;
            reader.0.1.notify_all();
        });
        output
    }

    fn lock(&self) -> MutexGuard<'_, Captured> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything so far.
    #[must_use]
    pub fn text(&self) -> String {
        self.lock().lines.join("\n")
    }

    /// Waits for the first line that has `part` in it.
    ///
    /// # Errors
    /// If it does not come: with everything that came.
    pub fn wait_for_line(&self, part: &str) -> Result<String> {
        self.wait_for(&format!("a line with {part:?}"), |captured| captured.lines.iter().find(|line| line.contains(part)).cloned())
    }

    /// Waits until `look` finds something.
    ///
    /// # Errors
    /// If the program ends or [`PATIENCE`] runs out before: with everything that came.
    pub fn wait_for<T>(&self, what: &str, look: impl Fn(&Captured) -> Option<T>) -> Result<T> {
        self.wait_for_as_long_as(PATIENCE, what, look)
    }

    /// The same for what takes longer than anything else.
    ///
    /// # Errors
    /// If the program ends or the time runs out before: with everything that came.
    pub fn wait_for_as_long_as<T>(&self, limit: Duration, what: &str, look: impl Fn(&Captured) -> Option<T>) -> Result<T> {
        let end = Instant::now() + limit;
        let mut captured = self.lock();
        loop {
            if let Some(found) = look(&captured) {
                return Ok(found);
            }
            let left = end.saturating_duration_since(Instant::now());
            if captured.ended || left.is_zero() {
                let why = if captured.ended { "the program ended" } else { "it did not come in time" };
                bail!("waited for {what}, but {why}; the program wrote:\n{}", captured.lines.join("\n"));
            }
            captured = self.0.1.wait_timeout(captured, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_waited_for_and_the_end_is_noticed() {
        let mut process = Process::start(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"])).unwrap();
        assert_eq!(process.output().wait_for_line("on").unwrap(), "one");
        assert_eq!(process.errors().wait_for_line("two").unwrap(), "two");
        let error = process.output().wait_for_line("three").unwrap_err().to_string();
        assert!(error.contains("the program ended") && error.contains("one"), "{error}");
        assert_eq!(process.wait().unwrap().code(), Some(3));
    }

    #[test]
    fn what_is_bound_ends_with_the_thread_that_started_it() {
        use std::os::unix::process::ExitStatusExt;
        if !can_bind() {
            eprintln!("not tried: no {BIND:?} here");
            return;
        }
        let start = || {
            let process = Process::start(bound(Path::new("sh")).args(["-c", "echo up; exec sleep 1000"])).unwrap();
            // The kernel was asked before that.
            process.output().wait_for_line("up").unwrap();
            process
        };
        let mut process = std::thread::spawn(start).join().unwrap();
        assert_eq!(process.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn a_frozen_process_stands_still_until_thawed() {
        use std::os::unix::process::ExitStatusExt;
        let mut process = Process::start(Command::new("sleep").arg("1000")).unwrap();
        process.freeze().unwrap();
        // Only what moves can end by this.
        process.signal(Signal::TERM).unwrap();
        assert!(!process.has_ended());
        process.thaw().unwrap();
        assert_eq!(process.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    }
}
