//! Fan-out on real SQLite files.

mod deliveries;
mod events;
mod log;
mod plans;
mod schema;
mod support;
mod tenants;
