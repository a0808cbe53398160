//! Fan-out: events into deliveries, and what becomes of them.

mod deliveries;
mod events;
mod log;
mod plans;
mod racing;
mod schema;
mod support;
mod tenants;
