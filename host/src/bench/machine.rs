//! The machine that a bench runs on, and the versions of what it runs: a figure without them says little.
//!
//! Linux tells in /proc and in os-release; elsewhere the plain words of the Rust target stand in.

use super::model::Machine;
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::thread;

/// This machine, as far as the system tells.
#[must_use]
pub fn here() -> Machine {
    let read = |path: &str| fs::read_to_string(path).ok();
    let cpu = read("/proc/cpuinfo").and_then(|text| processor(&text));
    let distribution = read("/etc/os-release").or_else(|| read("/usr/lib/os-release")).and_then(|text| pretty_name(&text));
    let kernel = rustix::system::uname();
    let kernel = format!("{} {}", kernel.sysname().to_string_lossy(), kernel.release().to_string_lossy());
    Machine {
        cpu: cpu.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: thread::available_parallelism().map_or(1, NonZero::get),
        memory_bytes: read("/proc/meminfo").and_then(|text| memory(&text)).unwrap_or(0),
        system: distribution.map_or(kernel.clone(), |distribution| format!("{distribution}, {kernel}")),
    }
}

/// Versions of this program and of what is built into it, by name. A database server's is asked by whoever is connected to it.
#[must_use]
pub fn versions() -> BTreeMap<String, String> {
    let versions =
        [("outhaul", env!("CARGO_PKG_VERSION")), ("wasmtime", crate::plugin::engine_version()), ("SQLite", crate::sql::sqlite_version())];
    versions.map(|(name, version)| (name.to_owned(), version.to_owned())).into()
}

/// The commit that this program was built from, where its build was told: by the variable `OUTHAUL_COMMIT`.
#[must_use]
pub fn commit() -> Option<String> {
    option_env!("OUTHAUL_COMMIT").filter(|commit| !commit.is_empty()).map(str::to_owned)
}

/// The model of the processor from /proc/cpuinfo, which names it differently on each architecture.
fn processor(cpuinfo: &str) -> Option<String> {
    ["model name", "cpu model", "Model", "Hardware"].iter().find_map(|wanted| {
        let value = |line: &str| line.split_once(':').filter(|(name, _)| name.trim() == *wanted).map(|(_, value)| value.trim().to_owned());
        cpuinfo.lines().find_map(value).filter(|value| !value.is_empty())
    })
}

/// Bytes of memory from /proc/meminfo, which counts in KiB.
fn memory(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The name of the distribution from os-release(5).
fn pretty_name(os_release: &str) -> Option<String> {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    let name = name.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_told() {
        let machine = here();
        assert!(!machine.cpu.is_empty() && !machine.system.trim().is_empty(), "{machine:?}");
        assert!(machine.cores > 0, "{machine:?}");
        if cfg!(target_os = "linux") {
            assert!(machine.memory_bytes > 1 << 20, "{machine:?}");
            assert!(machine.system.contains("Linux "), "{machine:?}");
        }
    }

    #[test]
    fn versions_are_numbers() {
        let versions = versions();
        assert_eq!(versions.keys().collect::<Vec<_>>(), ["SQLite", "outhaul", "wasmtime"]);
        for (name, version) in &versions {
            let parts: Vec<_> = version.split('.').map(str::parse::<u32>).collect();
            assert!(parts.len() == 3 && parts.iter().all(Result::is_ok), "{name} {version}");
        }
    }

    #[test]
    fn processors_are_found_under_their_names() {
        let x86 = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7B13\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 7B13\n";
        assert_eq!(processor(x86).unwrap(), "AMD EPYC 7B13");
        assert_eq!(processor("processor : 0\nBogoMIPS : 108.00\nHardware : BCM2835\nModel : Raspberry Pi 4\n").unwrap(), "Raspberry Pi 4");
        assert_eq!(processor("processor : 0\nmodel name :\n"), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        assert_eq!(memory("MemTotal:       24644672 kB\nMemFree: 1 kB\n"), Some(24_644_672 << 10));
        assert_eq!(memory("MemTotal: much\n"), None);
        assert_eq!(memory(""), None);
    }

    #[test]
    fn distributions_have_names() {
        assert_eq!(pretty_name("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n").unwrap(), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(pretty_name("PRETTY_NAME=''\n"), None);
        assert_eq!(pretty_name("NAME=x\n"), None);
    }
}
