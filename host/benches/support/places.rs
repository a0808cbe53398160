//! Where the built components are: beside the running program, whatever the target directory is called, or where the environment says.

use std::path::PathBuf;

/// Folder of the adapters' components.
pub fn plugins() -> PathBuf {
    components("OUTHAUL_PLUGINS", "plugins")
}

/// Folder of the fixtures' components.
pub fn fixtures() -> PathBuf {
    components("OUTHAUL_FIXTURES", "fixtures")
}

/// Folder of compiled code, shared with the tests.
pub fn compiled() -> PathBuf {
    target().join("compiled")
}

/// The target directory: benches are in the folder `deps` of a profile's folder.
fn target() -> PathBuf {
    let program = std::env::current_exe().expect("a path of this program");
    program.ancestors().nth(3).expect("a target directory").to_owned()
}

fn components(variable: &str, name: &str) -> PathBuf {
    let folder = std::env::var_os(variable).map_or_else(|| target().join(name), PathBuf::from);
    assert!(folder.is_dir(), "there are no components in {}: run `cargo xtask guests`, or set {variable}", folder.display());
    folder
}
