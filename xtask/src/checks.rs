//! What CI checks besides running the tests: format, lints, dependencies, the frozen WIT package.

use crate::workspace::{GUEST_TARGET, Workspace, step};
use crate::{setup, wit};
use anyhow::Result;
use std::process::{Command, Stdio};

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    step("format", || workspace.cargo(["fmt", "--all", "--check"]))?;
    step("the WIT package is as released", || wit::check(&workspace.root.join("wit")))?;
    setup::run()?;
    step("clippy", || workspace.cargo(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    step("clippy of the adapters, for their target", || {
        let guests = ["plugins", "tests/fixtures", "examples"].map(|folder| workspace.packages_under(folder)).concat();
        let mut line = vec!["clippy", "--target", GUEST_TARGET];
        for package in guests {
            line.extend(["--package", package]);
        }
        line.extend(["--", "--deny", "warnings"]);
        workspace.cargo(line)
    })?;
    dependencies(workspace)
}

/// Compiling these two takes longer than all other checks together, so they run where they are installed.
fn dependencies(workspace: &Workspace) -> Result<()> {
    for (tool, arguments) in [("deny", ["deny", "check"].as_slice()), ("machete", ["machete"].as_slice())] {
        if has_subcommand(tool) {
            step(&format!("cargo {tool}"), || workspace.cargo(arguments))?;
        } else {
            eprintln!("==> cargo {tool}: SKIPPED, it is not installed (cargo install cargo-{tool})");
        }
    }
    Ok(())
}

fn has_subcommand(tool: &str) -> bool {
    let program = format!("cargo-{tool}");
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
