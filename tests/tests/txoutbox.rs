//! Somebody else's contract: the 20 tests of txoutbox 0.2.2 against our storages, through `outhaul plugin drive`. The Python side is in
//! `tests/txoutbox`.

use anyhow::{Context, Result, bail};
use outhaul_services::{Major, or_skip};
use outhaul_tests::places;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Tests of the contract.
const TESTS: usize = 20;

/// A Python with the packages of `requirements.txt`, made once for each state of that file.
fn python() -> Result<PathBuf> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = places::target()?.join("txoutbox");
    let (python, made_from) = (folder.join("bin").join("python"), folder.join("requirements.txt"));
    let requirements = sources().join("requirements.txt");
    let wanted = fs::read(&requirements).context("cannot read the requirements")?;
    // Written last: whatever was interrupted is made anew.
    if fs::read(&made_from).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let pip =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:", "--requirement"];
    run(Command::new(&python).args(pip).arg(&requirements))?;
    fs::write(&made_from, wanted)?;
    Ok(python)
}

fn sources() -> PathBuf {
    places::checkout().join("tests").join("txoutbox")
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if !output.status.success() {
        bail!("{command:?} failed ({}):\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    }
    Ok(text(&output.stdout))
}

/// Runs the contract.
fn pytest(python: &Path, component: &Path, options: &[&str]) -> Result<Command> {
    let mut drive = vec![places::outhaul()?.display().to_string(), "plugin".into(), "drive".into(), component.display().to_string()];
    drive.extend(options.iter().map(|option| (*option).to_owned()));
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "-q", "-rs"]).current_dir(sources());
    pytest.env("OUTHAUL_DRIVE", serde_json::to_string(&drive)?).env("PYTHONDONTWRITEBYTECODE", "1").env_remove("PYTEST_ADDOPTS");
    pytest.env("XDG_CACHE_HOME", places::compiled()?);
    Ok(pytest)
}

/// That all of it passes, and looks at how many of its tests have run.
fn contract(python: &Path, plugin: &str, options: &[&str]) -> Result<()> {
    let component = places::plugins()?.join(format!("{plugin}.wasm"));
    let report = run(&mut pytest(python, &component, options)?)?;
    let summary = report.lines().last().unwrap_or_default();
    assert!(summary.starts_with(&format!("{TESTS} passed in ")), "{plugin}: {report}");
    Ok(())
}

#[test]
fn sqlite_storage_keeps_the_contract_of_txoutbox() -> Result<()> {
    let Some(python) = or_skip(python()) else { return Ok(()) };
    contract(&python, "sqlite-storage", &[])
}

#[test]
fn postgres_storage_keeps_the_contract_of_txoutbox() -> Result<()> {
    let Some(python) = or_skip(python()) else { return Ok(()) };
    for server in Major::ALL.into_iter().filter_map(outhaul_services::postgres) {
        let database = server.create_database()?;
        contract(&python, "postgres-storage", &["--database", &database.url()])
            .with_context(|| format!("on PostgreSQL {}", server.major))?;
    }
    Ok(())
}

#[test]
fn a_storage_that_breaks_the_order_fails_the_contract_of_txoutbox() -> Result<()> {
    let Some(python) = or_skip(python()) else { return Ok(()) };
    let component = places::fixtures()?.join("wrong-storage.wasm");
    for fault in ["loses-order", "forgets-chain"] {
        let output = pytest(&python, &component, &["--set", &format!("fault = {fault:?}")])?.output()?;
        let report = String::from_utf8_lossy(&output.stdout);
        // 1: tests were run, and some failed.
        assert!(output.status.code() == Some(1) && report.contains(" failed, "), "{fault}: {report}");
    }
    Ok(())
}
