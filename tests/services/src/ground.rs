//! Where data lies, as whom the servers run, and which ports they get.

use crate::daemon::{self, Identity, OWNER_FILE};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Somebody else to run a server as: PostgreSQL and pgbouncer refuse to run as root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    user: u32,
    group: u32,
}

impl Account {
    /// `postgres` or, where there is no such user, `nobody`; none if this program is not root and runs servers as itself.
    ///
    /// # Errors
    /// If the machine has neither.
    pub fn for_servers() -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        match ["postgres", "nobody"].into_iter().find_map(Self::named) {
            Some(account) => Ok(Some(account)),
            None => bail!("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody` to run it as"),
        }
    }

    fn named(name: &str) -> Option<Self> {
        let id = |option: &str| -> Option<u32> {
            let output = Command::new("id").args([option, name]).output().ok()?;
            output.status.success().then_some(output.stdout).and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok())
        };
        Some(Self { user: id("-u")?, group: id("-g")? })
    }

    /// Lets a command run as this user.
    pub fn apply(self, command: &mut Command) {
        command.uid(self.user).gid(self.group);
    }

    /// Gives a file or a folder to this user.
    ///
    /// # Errors
    /// If that is refused.
    pub fn own(self, path: &Path) -> Result<()> {
        chown(path, Some(self.user), Some(self.group)).with_context(|| format!("cannot give {} away", path.display()))
    }
}

/// Where servers have their folders.
#[derive(Debug, Clone)]
pub struct Ground {
    /// `services` in the target directory.
    home: PathBuf,
    /// Where the data is: the same, unless the servers' user cannot get there.
    data: PathBuf,
}

impl Ground {
    /// The ground of a target directory.
    ///
    /// # Errors
    /// If its folders cannot be created.
    pub fn of(target: &Path) -> Result<Self> {
        let home = target.join("services");
        create(&home)?;
        let home = home.canonicalize().with_context(|| format!("cannot find {}", home.display()))?;
        let data = match Account::for_servers()? {
            Some(account) if !can_enter(account, &home) => {
                // In a home folder of root, for instance. The same folder the next time, so that a later run can clean up.
                let mut hasher = DefaultHasher::new();
                home.hash(&mut hasher);
                let data = std::env::temp_dir().join(format!("outhaul-services-{:016x}", hasher.finish()));
                create(&data)?;
                data
            }
            _ => home.clone(),
        };
        Ok(Self { home, data })
    }

    /// The ground of the target directory that the running program is in; a temporary folder if it is in none.
    ///
    /// # Errors
    /// If its folders cannot be created.
    pub fn here() -> Result<Self> {
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        // Cargo marks every target directory as a cache.
        let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
        Self::of(target.map_or_else(std::env::temp_dir, Path::to_owned).as_path())
    }

    /// The state file.
    #[must_use]
    pub fn state_file(&self) -> PathBuf {
        self.home.join(crate::state::FILE)
    }

    /// A file to lock: `change` while services start or stop, `users` while somebody needs them.
    #[must_use]
    pub fn lock_file(&self, name: &str) -> PathBuf {
        self.home.join(format!("{name}.lock"))
    }

    /// An empty folder for a service that the tests share.
    ///
    /// # Errors
    /// If it cannot be created, or exists.
    pub fn shared(&self, name: &str) -> Result<PathBuf> {
        let folder = self.data.join(name);
        fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    /// An empty folder for a server of one test. It says whose it is before anything else is in it.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn private(&self, name: &str) -> Result<PathBuf> {
        let folder = tempfile::Builder::new().prefix(&format!("private-{name}-")).tempdir_in(&self.data)?.keep();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        Identity::own()?.write(&folder.join(OWNER_FILE))?;
        Ok(folder)
    }

    /// Whether every process that the tests share still runs.
    ///
    /// # Errors
    /// If the folders cannot be listed.
    pub fn is_alive(&self) -> Result<bool> {
        let mut alive = true;
        for folder in self.folders()? {
            if !folder.join(OWNER_FILE).exists()
                && let Some(process) = Identity::read(&folder.join(daemon::PROCESS_FILE))
            {
                alive &= process.is_alive();
            }
        }
        Ok(alive)
    }

    /// Stops everything that the tests share, and what tests have left behind that are no more.
    ///
    /// # Errors
    /// If something cannot be stopped or removed.
    pub fn clear(&self) -> Result<()> {
        match fs::remove_file(self.state_file()) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("cannot remove the state file"),
            _ => {}
        }
        self.sweep()?;
        for folder in self.folders()? {
            if !folder.join(OWNER_FILE).exists() {
                daemon::clear(&folder)?;
            }
        }
        Ok(())
    }

    /// Stops and removes what tests have left behind that are no more.
    ///
    /// # Errors
    /// If something cannot be stopped or removed.
    pub fn sweep(&self) -> Result<()> {
        for folder in self.folders()? {
            if Identity::read(&folder.join(OWNER_FILE)).is_some_and(|owner| !owner.is_alive()) {
                daemon::clear(&folder)?;
            }
        }
        Ok(())
    }

    fn folders(&self) -> Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        for entry in fs::read_dir(&self.data).with_context(|| format!("cannot list {}", self.data.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            }
        }
        Ok(folders)
    }
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn can_enter(account: Account, folder: &Path) -> bool {
    let mut command = Command::new("test");
    command.arg("-x").arg(folder);
    account.apply(&mut command);
    command.status().is_ok_and(|status| status.success())
}

/// A port of 127.0.0.1 that is free now.
///
/// Not one that the system chooses: those are the ports of outgoing connections as well, and one of them could take the port of a
/// server while a test has it stopped. These are below that range (32768 to 60999 on Linux, 49152 and above elsewhere).
///
/// # Errors
/// If none is found.
pub fn free_port() -> Result<u16> {
    // Until a server has bound it, a port is free for anybody else in this program as well.
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    for _ in 0..1000 {
        let port = rand::random_range(20_000..32_000);
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() && given.insert(port) {
            return Ok(port);
        }
    }
    bail!("no free port from 20000 to 32000 on 127.0.0.1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dead_tests_left_is_removed_and_what_is_in_use_stays() {
        let target = tempfile::tempdir().unwrap();
        let ground = Ground::of(target.path()).unwrap();
        let (mine, left, shared) = (ground.private("a").unwrap(), ground.private("b").unwrap(), ground.shared("c").unwrap());
        fs::write(left.join(OWNER_FILE), "1\n1\n").unwrap();
        fs::write(ground.state_file(), "{}").unwrap();
        ground.sweep().unwrap();
        assert_eq!([mine.exists(), left.exists(), shared.exists(), ground.state_file().exists()], [true, false, true, true]);
        ground.clear().unwrap();
        assert_eq!([mine.exists(), left.exists(), shared.exists(), ground.state_file().exists()], [true, false, false, false]);
        fs::remove_dir_all(mine).unwrap();
    }
}
