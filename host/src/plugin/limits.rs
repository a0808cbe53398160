//! What an instance may use, and what it means in words when it used too much.

use crate::config::model::Limits;
use std::fmt;
use wasmtime::{ResourceLimiter, Trap};

/// Elements of one table: far above what compilers emit, far below what would hurt (8 bytes each).
const TABLE_ELEMENTS: usize = 1 << 20;

/// Core instances, tables and memories of one component: a component made by any known tool has below ten of each.
const PARTS: usize = 64;

/// Memory of one instance, all its linear memories together.
#[derive(Debug)]
pub(super) struct InstanceLimits {
    memory_bytes: usize,
    used: usize,
}

impl InstanceLimits {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { memory_bytes: limits.memory_bytes, used: 0 }
    }
}

/// A limit was reached: a trap with a text that names the key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LimitReached(String);

impl fmt::Display for LimitReached {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for LimitReached {}

impl ResourceLimiter for InstanceLimits {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let used = self.used.saturating_add(desired.saturating_sub(current));
        if used > self.memory_bytes {
            return Err(LimitReached(format!("wants more memory than {} (limits.memory)", Size(self.memory_bytes))).into());
        }
        self.used = used;
        Ok(true)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS {
            return Err(LimitReached(format!("wants a table of more than {TABLE_ELEMENTS} elements")).into());
        }
        Ok(true)
    }

    fn instances(&self) -> usize {
        PARTS
    }
    fn tables(&self) -> usize {
        PARTS
    }
    fn memories(&self) -> usize {
        PARTS
    }
}

/// A number of bytes as an operator would write it.
pub(super) struct Size(pub(super) usize);

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => write!(out, "{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => write!(out, "{} KiB", bytes >> 10),
            bytes => write!(out, "{bytes} bytes"),
        }
    }
}

/// What ended a guest's call, in an operator's words.
pub(super) fn describe(error: &wasmtime::Error, limits: &Limits) -> String {
    if let Some(limit) = error.downcast_ref::<LimitReached>() {
        return limit.to_string();
    }
    if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        return format!("exited with status {}", exit.0);
    }
    let text = format!("{:#}", error.root_cause());
    // The engine's own type for this is private.
    if text.contains("fuel allocated for hostcalls") {
        return format!("handed over more than {} at once (limits.returned_bytes)", Size(limits.returned_bytes));
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => "overflowed its stack".to_owned(),
        Some(Trap::UnreachableCodeReached) => "panicked (unreachable code)".to_owned(),
        Some(Trap::Interrupt) => "was interrupted".to_owned(),
        Some(trap) => format!("trapped: {trap}"),
        None => format!("trapped: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_share_one_limit() {
        let mut limits = InstanceLimits::new(&Limits { memory_bytes: 3 << 16, ..Limits::default() });
        assert!(limits.memory_growing(0, 1 << 16, None).unwrap());
        assert!(limits.memory_growing(0, 2 << 16, None).unwrap());
        let error = limits.memory_growing(1 << 16, 2 << 16, None).unwrap_err();
        assert_eq!(describe(&error, &Limits::default()), "wants more memory than 192 KiB (limits.memory)");
    }

    #[test]
    fn traps_are_told_in_words() {
        assert_eq!(describe(&Trap::StackOverflow.into(), &Limits::default()), "overflowed its stack");
        assert_eq!(describe(&wasmtime::Error::msg("lost"), &Limits::default()), "trapped: lost");
    }
}
