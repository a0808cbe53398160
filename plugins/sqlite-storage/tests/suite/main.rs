//! The storage on real SQLite files, natively: the same code as in the component.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests stop at the first surprise; clippy takes functions beside the tests for something else"
)]

mod existing_tables;
mod fan_out;
mod faults;
mod own_table;
mod support;
mod waiting;
mod workers;
