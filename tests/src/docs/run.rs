//! A page from its first block to the last.

use super::page::{Block, Page};
use super::quotes::Sources;
use super::shell::{Shell, Terminal};
use super::stage::Stage;
use super::transcript::{self, INTERRUPT, Step, is_as_shown};
use super::{links, settings};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What was done with a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Commands that were run.
    pub commands: usize,
    /// Files, configuration, SQL, JSON and quotes that were looked at.
    pub looked_at: usize,
    /// Why blocks were left out.
    pub not_run: Vec<String>,
}

/// Languages that show commands without being run.
const UNRUN: [&str; 4] = ["bash", "sh", "shell", "shell-session"];

/// Runs a page and looks up its links.
///
/// # Errors
/// If anything is not as the page shows it: where, and what was seen.
pub fn run(page: &Page, stage: &mut Stage) -> Result<Told> {
    links::check(page)?;
    let mut run = Run { folder: stage.folder(), shell: None, terminals: BTreeMap::new(), told: Told::default(), stage };
    for block in &page.blocks {
        run.block(block).with_context(|| format!("{}:{}", page.path.display(), block.line))?;
    }
    Ok(run.told)
}

struct Run<'a> {
    stage: &'a mut Stage,
    /// Opened for the first command. Where it is by now is where files are written and terminals start.
    shell: Option<Shell>,
    folder: PathBuf,
    terminals: BTreeMap<String, Terminal>,
    told: Told,
}

impl Run<'_> {
    fn block(&mut self, block: &Block) -> Result<()> {
        let marks = |name: &str| block.marks.get(name).map(String::as_str);
        if let Some(reason) = marks("not-run") {
            if reason.is_empty() || block.language != "console" {
                bail!("not-run wants a reason, and is for console blocks");
            }
            self.told.not_run.push(reason.to_owned());
            return Ok(());
        }
        if let Some(file) = marks("file") {
            self.told.looked_at += 1;
            return self.stage.write(&self.folder, file, &block.text);
        }
        match block.language.as_str() {
            "console" => match marks("terminal") {
                Some(name) => self.terminal(name, &block.text),
                None => self.commands(&block.text),
            },
            "toml" => {
                self.told.looked_at += 1;
                if block.is("parse-only") {
                    block.text.parse::<toml::Table>().context("this is not TOML")?;
                    return Ok(());
                }
                settings::check(self.stage, &block.text)
            }
            "sql" => {
                self.told.looked_at += usize::from(self.stage.run_sql(&block.text)?);
                Ok(())
            }
            "json" => {
                self.told.looked_at += 1;
                serde_json::from_str::<serde_json::Value>(&block.text).context("this is not JSON")?;
                Ok(())
            }
            "jsonl" => {
                self.told.looked_at += 1;
                let each = block.text.lines().map(serde_json::from_str::<serde_json::Value>);
                each.collect::<Result<Vec<_>, _>>().context("a line is not JSON")?;
                Ok(())
            }
            _ if block.is("quoted") => {
                self.told.looked_at += 1;
                Sources::read()?.check(&block.text)
            }
            "" => bail!("the block has no language: write `text` behind its fence where it has none"),
            unrun if UNRUN.contains(&unrun) => bail!("`{unrun}` is not run: write `console`, and `$ ` before commands"),
            _ => Ok(()),
        }
    }

    fn commands(&mut self, text: &str) -> Result<()> {
        let text = self.stage.here(text)?;
        let (above, steps) = transcript::steps(&text)?;
        if !above.is_empty() || steps.is_empty() {
            bail!("a console block begins with a command, `$ ...`");
        }
        let shell = match &mut self.shell {
            Some(shell) => shell,
            none => none.insert(Shell::open(self.stage.setting(&self.folder))?),
        };
        for (at, step) in steps.iter().enumerate() {
            let may_fail = steps.get(at + 1).is_some_and(|next| next.command == "echo $?");
            command(shell, step, may_fail)?;
            self.told.commands += 1;
        }
        self.folder = shell.folder()?;
        Ok(())
    }

    fn terminal(&mut self, name: &str, text: &str) -> Result<()> {
        let text = self.stage.here(text)?;
        let (mut shown, mut steps) = transcript::steps(&text)?;
        if let Some(step) = steps.pop() {
            if !shown.is_empty() || !steps.is_empty() || self.terminals.contains_key(name) {
                bail!("a terminal runs one command, which begins its first block");
            }
            self.terminals.insert(name.to_owned(), Terminal::start(self.stage.setting(&self.folder), &step.command)?);
            self.told.commands += 1;
            shown = step.shown;
        }
        let terminal = self.terminals.get_mut(name).with_context(|| format!("the terminal {name} has no command yet"))?;
        let mut parts = shown.split(|line| line == INTERRUPT);
        terminal.wait_for(parts.next().unwrap_or_default())?;
        for part in parts {
            terminal.interrupt()?;
            terminal.wait_for(part)?;
        }
        Ok(())
    }
}

fn command(shell: &mut Shell, step: &Step, may_fail: bool) -> Result<()> {
    let Step { line, command, shown } = step;
    let place = || format!("line {} of the block: $ {command}", line + 1);
    let ended = shell.run(command).with_context(place)?;
    let seen = || format!("shown:\n{}\nseen:\n{}", shown.join("\n"), ended.lines.join("\n"));
    if ended.code != 0 && !may_fail {
        bail!("{}\nended with {}; {}", place(), ended.code, seen());
    }
    if !is_as_shown(shown, &ended.lines) {
        bail!("{}\nprinted something else; {}", place(), seen());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn run_text(text: &str) -> Result<Told> {
        let page = Page::parse(Path::new("docs/page.md"), text)?;
        run(&page, &mut Stage::relay()?)
    }

    fn fails_with(text: &str, told: &str) {
        let error = format!("{:#}", run_text(text).unwrap_err());
        assert!(error.contains(told), "{error}");
    }

    #[test]
    fn a_page_that_is_as_shown_passes() {
        let told = run_text(
            "```text file=a/b\none\n```\n\n```console\n$ cat a/b\none\n$ cd a && ls\nb\n$ false\n$ echo $?\n1\n```\n\n\
             ```text file=c\ntwo\n```\n\n```console\n$ cat c && cat absent\ntwo\n...\n$ echo $?\n1\n```\n\n\
             ```console terminal=t\n$ sh -c 'cat c; exec sleep 1000'\ntwo\n```\n\n```console terminal=t\n^C\n```\n\n\
             ```json\n{\"a\": 1}\n```\n\n```toml parse-only\na = 1\n```\n\n```console not-run=\"no screen\"\n$ xeyes\n```\n\n```sql\nSELECT\n```\n",
        )
        .unwrap();
        assert_eq!(told, Told { commands: 7, looked_at: 4, not_run: vec!["no screen".to_owned()] });
    }

    #[test]
    fn what_differs_is_told_with_its_place() {
        fails_with(
            "\n```console\n$ true\n$ echo one\ntwo\n```\n",
            "docs/page.md:2: line 2 of the block: $ echo one\nprinted something else; shown:\ntwo\nseen:\none",
        );
        fails_with("```console\n$ echo one\n```\n", "printed something else");
        fails_with("```console\n$ sh -c 'echo one; exit 3'\none\n```\n", "ended with 3");
        fails_with("```console\n$ sh -c 'exit 3'\n$ echo $?\n4\n```\n", "printed something else");
        fails_with("```console terminal=t\n$ echo one\ntwo\n```\n", "the program ended");
    }

    #[test]
    fn slips_of_a_page_are_found() {
        fails_with("```console\nno command\n```\n", "begins with a command");
        fails_with("```sh\nls\n```\n", "`sh` is not run");
        fails_with("```\nls\n```\n", "no language");
        fails_with("```console not-run=\n$ ls\n```\n", "wants a reason");
        fails_with("```json\n{a}\n```\n", "not JSON");
        fails_with("```jsonl\n{}\n{a}\n```\n", "a line is not JSON");
        fails_with("```toml parse-only\na\n```\n", "not TOML");
        fails_with("```text quoted\nno program says this\n```\n", "no source has");
        fails_with("[a](nowhere.md)\n", "docs/page.md:1: the link to nowhere.md leads nowhere");
        fails_with("```console terminal=t\nhello\n```\n", "has no command yet");
    }

    #[test]
    fn configuration_is_checked_by_the_host() {
        let settings = "[databases.main]\nurl = \"sqlite:outbox.db\"\n[storages.outbox]\nplugin = \"sqlite-storage\"\ndatabase = \"main\"";
        let check = |text: &str| -> Result<Told> {
            let page = Page::parse(Path::new("docs/page.md"), text)?;
            run(&page, &mut Stage::relay()?.with_settings(settings)?)
        };
        check("```toml\n[storages.outbox.config]\ntable = \"events\"\n```\n").unwrap();
        let error = format!("{:#}", check("```toml\n[storages.outbox.config]\ntabel = \"events\"\n```\n").unwrap_err());
        assert!(error.contains("tabel") && error.contains("ends with 2"), "{error}");
    }
}
