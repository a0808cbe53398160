//! Compiled code on disk that is not as it was written: told, not run, and made afresh. Every way in which a file can be unfit is in
//! the unit tests of `host/src/plugin/cache.rs`; here it is the whole process.

use anyhow::{Context, Result};
use outhaul_tests::receiver::Receiver;
use outhaul_tests::rig::{Config, Rig};
use std::fs;
use std::path::PathBuf;

/// The cache files of a rig.
fn compiled(rig: &Rig) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(rig.path().join("cache")).context("no cache")? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

#[test]
fn a_file_with_one_flipped_byte_is_made_afresh() -> Result<()> {
    let receiver = Receiver::accepting()?;
    let rig = Rig::new(&Config::to(receiver.address())?.set("plugins.cache", "cache"))?;
    rig.run(&["check"])?.success()?;
    let good: Vec<(PathBuf, Vec<u8>)> =
        compiled(&rig)?.into_iter().map(|file| Ok((file.clone(), fs::read(file)?))).collect::<Result<_>>()?;
    assert_eq!(good.len(), 2, "a storage and a publisher");
    for (file, content) in &good {
        let mut bad = content.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        fs::write(file, bad)?;
    }
    rig.outbox()?.add("orders", None, b"x")?;
    let mut host = rig.host()?;
    receiver.wait_for_accepted(1)?;
    for (file, content) in &good {
        let name = file.file_name().context("a name")?.to_string_lossy().into_owned();
        let line = host.process().errors().wait_for_line(&name)?;
        assert!(line.contains("compiled code is not used and made afresh: its digest is wrong"), "{line}");
        assert!(line.contains("\"level\":\"WARN\""), "{line}");
        assert_eq!(fs::read(file)?.len(), content.len(), "written anew");
    }
    host.shut_down()?;
    let checked = rig.run(&["check"])?;
    assert!(!checked.errors.contains("made afresh"), "{}", checked.errors);
    Ok(())
}
