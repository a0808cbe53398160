//! The storage on real SQLite files, natively: the same code as in the component.

mod existing_tables;
mod own_table;
mod support;
mod waiting;
mod workers;
