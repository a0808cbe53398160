//! What the benches share: how criterion is set up, the runtime, and adapters, tables and messages to measure with.
//!
//! - [`places`]: where the built components are
//! - [`components`]: adapters as components, loaded by one engine
//! - [`natives`]: the same adapters as plain Rust
//! - [`messages`]: batches, and how adapters are called with them
//! - [`table`]: a table in SQLite or PostgreSQL, with rows in it
//! - [`options`]: of the command line
//! - [`memory`]: a storage that costs nothing
#![allow(dead_code, unreachable_pub, reason = "each bench uses its part")]
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a bench stops at the first surprise")]

pub mod components;
pub mod memory;
pub mod messages;
pub mod natives;
pub mod options;
pub mod places;
pub mod table;

use criterion::Criterion;
use outhaul::config::{self, Config};
use std::future::Future;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Whether everything is only to be done once, on small tables: `cargo test`, or `cargo bench -- --test`.
pub fn is_smoke() -> bool {
    let has = |name: &str| std::env::args().any(|argument| argument == name);
    has("--test") || !has("--bench")
}

/// The first in a smoke test, else the second.
pub fn scaled<T>(small: T, full: T) -> T {
    if is_smoke() { small } else { full }
}

/// Criterion with shorter runs than its default, as there are many; arguments of the process have precedence.
pub fn criterion() -> Criterion {
    if is_smoke() {
        options::leave_out_unknown();
    }
    let shorter = Criterion::default().sample_size(30).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    shorter.configure_from_args()
}

/// Runs a future on the runtime of the benches, which is what the host has: a thread for each processor.
pub fn run<F: Future>(future: F) -> F::Output {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
    RUNTIME.block_on(future)
}

/// A configuration whose relative paths start at `folder`.
pub fn configuration(text: &str, folder: &Path) -> Config {
    config::parse(&format!("[plugins]\ndir = \"plugins\"\n{text}"), &folder.join("outhaul.toml")).expect("a configuration")
}
