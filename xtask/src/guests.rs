//! Builds the components: every package in plugins/ into target/plugins/, every one in tests/fixtures/ into target/fixtures/.

use crate::workspace::{GUEST_TARGET, Workspace, step};
use anyhow::{Context, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// The profile of the root manifest that makes small components.
const PROFILE: &str = "guest";

pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let groups =
        [(workspace.packages_under("plugins"), workspace.plugins()), (workspace.packages_under("tests/fixtures"), workspace.fixtures())];
    step("build the adapters and the fixtures", || {
        let built = workspace.target.join(GUEST_TARGET).join(PROFILE);
        // Each group by itself, and put in place at once: a fixture may link an adapter's library without the exports that the adapter is
        // built with, and cargo writes both to one file.
        for (packages, folder) in &groups {
            let mut line = vec!["build", "--target", GUEST_TARGET, "--profile", PROFILE];
            for package in packages {
                line.extend(["--package", package]);
            }
            workspace.cargo(line)?;
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
            for package in packages {
                let component = built.join(format!("{}.wasm", package.replace('-', "_")));
                place(&component, &folder.join(format!("{package}.wasm")))?;
            }
        }
        Ok(())
    })
}

/// Copies a file if the copy differs, by rename: a running host that watches the folder never sees half a component.
fn place(from: &Path, to: &Path) -> Result<()> {
    let new = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    match fs::read(to) {
        Ok(old) if old == new => return Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(|| format!("cannot read {}", to.display())),
        _ => {}
    }
    // Not named *.wasm, so that no one takes it for a component.
    let half = to.with_extension("wasm.new");
    fs::write(&half, new).with_context(|| format!("cannot write {}", half.display()))?;
    fs::rename(&half, to).with_context(|| format!("cannot put {} in place", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_replaced_only_if_it_differs() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("built"), folder.path().join("adapter.wasm"));
        fs::write(&from, "one").unwrap();
        place(&from, &to).unwrap();
        let first = fs::metadata(&to).unwrap().modified().unwrap();
        place(&from, &to).unwrap();
        assert_eq!(fs::metadata(&to).unwrap().modified().unwrap(), first);
        fs::write(&from, "two").unwrap();
        place(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no half-written file is left");
    }
}
