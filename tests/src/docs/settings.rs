//! Configuration that a page shows in parts: put together with what the stage has, nothing may be wrong with it.

use super::shell::Shell;
use super::stage::Stage;
use anyhow::{Context, Result, bail};
use toml::{Table, Value};

const FILE: &str = "outhaul.toml";

/// Adds a part to the configuration of the stage, creates the tables that it wants, and runs `outhaul check`.
///
/// # Errors
/// If it is not TOML, or something is wrong with it: what `outhaul` says.
pub fn check(stage: &mut Stage, text: &str) -> Result<()> {
    let part: Table = stage.here(text)?.parse().context("this is not TOML")?;
    let whole = over(stage.settings().clone(), part);
    let folder = stage.checks();
    std::fs::write(folder.join(FILE), whole.to_string())?;
    let mut shell = Shell::open(stage.setting(&folder))?;
    for command in ["outhaul schema --apply", "outhaul check"] {
        let ended = shell.run(command)?;
        if ended.code != 0 {
            bail!("`{command}` ends with {}:\n{}\nfor\n{whole}", ended.code, ended.lines.join("\n"));
        }
    }
    Ok(())
}

/// The values of `part` in place of those of `whole`; tables are merged, unless the part shows an adapter from its `plugin` on.
fn over(mut whole: Table, part: Table) -> Table {
    for (name, value) in part {
        let value = match (whole.remove(&name), value) {
            (Some(Value::Table(whole)), Value::Table(part)) if !part.contains_key("plugin") => Value::Table(over(whole, part)),
            (_, value) => value,
        };
        whole.insert(name, value);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_merged() {
        let table = |text: &str| text.parse::<Table>().unwrap();
        let whole = over(table("a = { b = 1, c = 2 }\nd = [1]"), table("a = { c = 3 }\nd = [2]\ne = 4"));
        assert_eq!(whole, table("a = { b = 1, c = 3 }\nd = [2]\ne = 4"));
        let whole = over(table("a = { b = { plugin = 1, c = 2 } }"), table("a = { b = { plugin = 3 } }"));
        assert_eq!(whole, table("a = { b = { plugin = 3 } }"));
    }
}
