//! Stands in for the host: keeps what an adapter says, and hands out the secrets that a test has set. One for each thread.

use crate::Outcome;
use crate::log::Level;
use std::cell::RefCell;
use std::collections::HashMap;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// How urgent it is.
    pub level: Level,
    /// Its text.
    pub text: String,
    /// Names and values.
    pub fields: Vec<(String, String)>,
}

#[derive(Debug, Default)]
struct Host {
    lines: Vec<Line>,
    reports: Vec<(u32, Outcome)>,
    secrets: HashMap<String, String>,
}

thread_local! {
    static HOST: RefCell<Host> = RefCell::default();
}

/// Sets a secret of this thread's adapters.
pub fn set_secret(name: &str, value: &str) {
    HOST.with_borrow_mut(|host| host.secrets.insert(name.to_owned(), value.to_owned()));
}

/// What this thread's adapters have logged since it was asked last.
#[must_use]
pub fn take_log() -> Vec<Line> {
    HOST.with_borrow_mut(|host| std::mem::take(&mut host.lines))
}

/// The outcomes reported since they were asked for last.
pub(super) fn take_reports() -> Vec<(u32, Outcome)> {
    HOST.with_borrow_mut(|host| std::mem::take(&mut host.reports))
}

pub(crate) fn write(level: Level, text: &str, fields: &[(String, String)]) {
    let line = Line { level, text: text.to_owned(), fields: fields.to_vec() };
    HOST.with_borrow_mut(|host| host.lines.push(line));
}

pub(crate) fn report(index: u32, outcome: &Outcome) {
    HOST.with_borrow_mut(|host| host.reports.push((index, outcome.clone())));
}

pub(crate) fn secret(name: &str) -> Option<String> {
    HOST.with_borrow(|host| host.secrets.get(name).cloned())
}
