//! The suite, which each of the test programs beside this folder runs on one major version.

mod existing_tables;
mod fan_out;
mod faults;
mod own_table;
mod races;
mod settings;
mod support;
mod waiting;
mod workers;
