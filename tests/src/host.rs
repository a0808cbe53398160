//! `outhaul run` as a process of its own.

use crate::process::{Process, poll};
use crate::{places, process};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A running host. Killed when dropped.
pub struct Host {
    process: Process,
    admin: SocketAddr,
}

impl Host {
    /// Starts the host and waits until its admin address answers for itself. Needs `[admin]` and `[log] format = "json"` in the
    /// configuration, as [`crate::rig::Rig`] writes them.
    ///
    /// # Errors
    /// If it ends or does not come up: with what it logged.
    pub fn start(config: &Path) -> Result<Self> {
        Self::start_as(config, |_| {})
    }

    /// The same, with something changed about the process: its environment, for instance.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_as(config: &Path, change: impl FnOnce(&mut Command)) -> Result<Self> {
        let process = Self::launch(config, change)?;
        let line = process.errors().wait_for_line("admin address")?;
        let listen = log_field(&line, "listen").with_context(|| format!("no field `listen` in {line}"))?;
        let admin = listen.parse().with_context(|| format!("`{listen}` is not an address"))?;
        Ok(Self { process, admin })
    }

    /// Starts the host and returns at once, so that it can be killed before it is ready.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn launch(config: &Path, change: impl FnOnce(&mut Command)) -> Result<Process> {
        let mut command = process::bound(&places::outhaul()?);
        // The configuration alone decides what is logged.
        command.arg("--config").arg(config).arg("run").env_remove("RUST_LOG");
        change(&mut command);
        Process::start(&mut command)
    }

    /// The process, to wait for lines and to send signals.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// What it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.errors().text()
    }

    /// Base URL of the admin address.
    #[must_use]
    pub fn admin(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// Asks the admin address.
    ///
    /// # Errors
    /// If no answer comes. An answer of any status is none.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let answer = agent().get(format!("{}{path}", self.admin())).call();
        read(answer, path)
    }

    /// Posts nothing to the admin address.
    ///
    /// # Errors
    /// If no answer comes. An answer of any status is none.
    pub fn post(&self, path: &str) -> Result<(u16, String)> {
        let answer = agent().post(format!("{}{path}", self.admin())).send_empty();
        read(answer, path)
    }

    /// Asks the admin address by another method.
    ///
    /// # Errors
    /// If no answer comes. An answer of any status is none.
    pub fn ask(&self, method: &str, path: &str) -> Result<(u16, String)> {
        let request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.admin())).body(())?;
        read(agent().run(request), path)
    }

    /// Sum of a metric over all its labels, or one sample where the name has its labels with it; 0 if there is none yet.
    ///
    /// # Errors
    /// If `/metrics` does not answer, or with something that is no number.
    pub fn metric(&self, name: &str) -> Result<f64> {
        sum_of(&self.metrics()?, name)
    }

    /// Everything that Prometheus would read.
    ///
    /// # Errors
    /// If `/metrics` does not answer.
    pub fn metrics(&self) -> Result<String> {
        let (status, text) = self.get("/metrics")?;
        if status != 200 {
            bail!("/metrics answered {status}");
        }
        Ok(text)
    }

    /// Waits until a metric has at least this value. Metrics cannot be waited for: this asks again and again.
    ///
    /// # Errors
    /// If that does not happen in [`process::PATIENCE`].
    pub fn wait_for_metric(&self, name: &str, value: f64) -> Result<()> {
        poll(&format!("{name} to be {value}"), || Ok(self.metric(name)? >= value))
    }

    /// Waits until an adapter runs with this generation.
    ///
    /// # Errors
    /// If it does not within a while: with the log.
    pub fn wait_for_generation(&self, adapter: &str, generation: u32) -> Result<()> {
        let name = format!("outhaul_adapter_generation{{adapter=\"{adapter}\"}}");
        self.wait_for_metric(&name, f64::from(generation)).with_context(|| self.log())
    }

    /// Sends SIGHUP and waits until the configuration was judged as `applied`, `refused` or `unchanged`.
    ///
    /// # Errors
    /// If it is not within a while: with the log.
    pub fn reload(&mut self, result: &str) -> Result<()> {
        let name = format!("outhaul_config_reloads_total{{result=\"{result}\"}}");
        let before = self.metric(&name)?;
        self.process.signal(Signal::HUP)?;
        self.wait_for_metric(&name, before + 1.0).with_context(|| self.log())
    }

    /// Ends it with SIGTERM and waits until it has gone by itself with exit code 0.
    ///
    /// # Errors
    /// If it does not go, or not in peace.
    pub fn shut_down(mut self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait()?;
        if !status.success() {
            bail!("the host ended with {status} after SIGTERM; it logged:\n{}", self.log());
        }
        Ok(())
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(process::PATIENCE)).build().new_agent()
}

fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>, path: &str) -> Result<(u16, String)> {
    let mut answer = answer.with_context(|| format!("no answer from {path}"))?;
    Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
}

/// Sum of the samples of one metric in the Prometheus text format.
fn sum_of(text: &str, name: &str) -> Result<f64> {
    let mut sum = 0.0;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        if rest.starts_with(['{', ' ']) {
            let value = rest.rsplit(' ').next().unwrap_or_default();
            sum += value.parse::<f64>().with_context(|| format!("not a number: {line}"))?;
        }
    }
    Ok(sum)
}

/// A field of a log line in JSON.
#[must_use]
pub fn log_field(line: &str, name: &str) -> Option<String> {
    let event: Value = serde_json::from_str(line).ok()?;
    let value = event.get("fields").and_then(|fields| fields.get(name)).or_else(|| event.get(name))?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// How long a lease of these tests lasts: short, so that the rows of a killed host come back soon.
pub const SHORT_LEASE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_confused_with_longer_names() {
        let text = "# TYPE a counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 3\na_total_more 100\n";
        assert!((sum_of(text, "a_total").unwrap() - 5.0).abs() < f64::EPSILON);
        assert!((sum_of(text, "a_total{x=\"2\"}").unwrap() - 3.0).abs() < f64::EPSILON);
        assert!(sum_of(text, "b_total").unwrap().abs() < f64::EPSILON);
    }

    #[test]
    fn fields_are_found_nested_and_flat() {
        assert_eq!(log_field(r#"{"fields":{"listen":"127.0.0.1:1"}}"#, "listen").as_deref(), Some("127.0.0.1:1"));
        assert_eq!(log_field(r#"{"pid":7}"#, "pid").as_deref(), Some("7"));
        assert_eq!(log_field("plain text", "listen"), None);
    }
}
