//! The terminals of a page: one in which its commands are run one after the other, and others in which something goes on.

use super::transcript::begins_as_shown;
use crate::process::{Process, bound};
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::io::{PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a command of a page may take. Some compile an adapter from nothing.
const PATIENCE: Duration = Duration::from_secs(600);

/// Stands alone on a line behind the output of a command, with its exit code.
const MARK: &str = "--- the command has ended with";

/// A folder to start in, and what is in the environment.
pub type Setting<'a> = (&'a Path, &'a [(String, String)]);

/// The main terminal: folder, variables and exit codes carry over from command to command.
pub struct Shell {
    process: Process,
    input: PipeWriter,
    /// Lines of its output that were looked at.
    seen: usize,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code.
    pub code: i32,
    /// What it printed, on both ways.
    pub lines: Vec<String>,
}

impl Shell {
    /// Opens it.
    ///
    /// # Errors
    /// If there is no bash.
    pub fn open(setting: Setting<'_>) -> Result<Self> {
        let (output, input) = std::io::pipe().context("no pipe")?;
        let mut command = set(bound(Path::new("bash")), setting);
        let process = Process::start_with(command.args(["--noprofile", "--norc"]), output.into())?;
        Ok(Self { process, input, seen: 0 })
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// If it does not end, or ends the shell.
    pub fn run(&mut self, command: &str) -> Result<Ended> {
        // Quoted, so that an error of syntax is one of this command. Its input is not the shell's.
        let quoted = command.replace('\'', r"'\''");
        writeln!(self.input, "eval '{quoted}' </dev/null 2>&1; __code=$?; printf '\\n{MARK} %s\\n' $__code; (exit $__code)")
            .context("the shell has ended")?;
        let from = self.seen;
        let (mut lines, code) = self
            .process
            .output()
            .wait_for_as_long_as(PATIENCE, "the end of the command", |captured| {
                let (lines, mark) = captured.lines[from..].iter().enumerate().find_map(|(count, line)| {
                    Some((captured.lines[from..from + count].to_vec(), line.strip_prefix(MARK)?.trim().to_owned()))
                })?;
                Some((lines, mark))
            })
            .with_context(|| self.process.errors().text())?;
        self.seen += lines.len() + 1;
        // The line break before the mark, unless the output needed it.
        lines.pop_if(|last| last.is_empty());
        Ok(Ended { code: code.parse().with_context(|| format!("`{code}` is not an exit code"))?, lines })
    }

    /// Where it is.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn folder(&mut self) -> Result<PathBuf> {
        Ok(self.run("pwd; (exit $__code)")?.lines.concat().into())
    }
}

/// A terminal in which one command goes on. It ends with the page.
pub struct Terminal {
    process: Process,
    seen: usize,
}

impl Terminal {
    /// Starts a simple command.
    ///
    /// # Errors
    /// If there is no bash.
    pub fn start(setting: Setting<'_>, command: &str) -> Result<Self> {
        let mut bash = set(bound(Path::new("env")), setting);
        // A terminal does not ignore Ctrl-C, but what is started in the background does. The command takes the place of bash, so that
        // signals reach it.
        bash.args(["--default-signal=INT", "bash", "-c", &format!("exec 2>&1; exec {command}")]);
        Ok(Self { process: Process::start(&mut bash)?, seen: 0 })
    }

    /// Waits until it has printed what is shown, from where the last wait has ended.
    ///
    /// # Errors
    /// If it does not: with what it has printed.
    pub fn wait_for(&mut self, shown: &[String]) -> Result<()> {
        let from = self.seen;
        let what = format!("\n{}\n", shown.join("\n"));
        self.seen += self.process.output().wait_for(&what, |captured| begins_as_shown(shown, &captured.lines[from..]))?;
        Ok(())
    }

    /// Types Ctrl-C and waits until the command has ended.
    ///
    /// # Errors
    /// If it does not end.
    pub fn interrupt(&mut self) -> Result<()> {
        self.process.signal(Signal::INT)?;
        self.process.wait()?;
        Ok(())
    }
}

fn set(mut command: Command, (folder, environment): Setting<'_>) -> Command {
    // What a developer may have set, and a reader has not.
    for name in ["CARGO_TARGET_DIR", "OUTHAUL_CONFIG", "RUST_BACKTRACE", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.current_dir(folder).envs(environment.iter().map(|(name, value)| (name, value)));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_share_a_shell() {
        let folder = tempfile::tempdir().unwrap();
        let mut shell = Shell::open((folder.path(), &[("A".to_owned(), "b c".to_owned())])).unwrap();
        let mut run = |command: &str| {
            let Ended { code, lines } = shell.run(command).unwrap();
            (code, lines.join("|"))
        };
        assert_eq!(run("echo \"it's $A\"; echo error >&2"), (0, "it's b c|error".to_owned()));
        assert_eq!(run("printf 'no end'"), (0, "no end".to_owned()));
        assert_eq!(run("mkdir x && cd x && X=1 && (exit 7)"), (7, String::new()));
        assert_eq!(run("echo $?"), (0, "7".to_owned()));
        assert_eq!(run("cat; echo $X\nbasename $PWD"), (0, "1|x".to_owned()));
        let (code, text) = run("if");
        assert!(code != 0 && text.contains("syntax error"), "{code} {text}");
        assert_eq!(shell.folder().unwrap(), folder.path().canonicalize().unwrap().join("x"));
    }

    #[test]
    fn a_terminal_goes_on_and_is_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("work"), "trap 'echo end; exit' INT; echo one; echo two >&2; while :; do sleep 0.05; done")
            .unwrap();
        let mut terminal = Terminal::start((folder.path(), &[]), "bash work").unwrap();
        terminal.wait_for(&["one".to_owned()]).unwrap();
        terminal.wait_for(&["two".to_owned()]).unwrap();
        terminal.interrupt().unwrap();
        terminal.wait_for(&["end".to_owned()]).unwrap();
        let error = terminal.wait_for(&["three".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("three") && error.contains("the program ended"), "{error}");
    }
}
