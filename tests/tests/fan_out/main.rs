//! Fan-out through the real binary, on SQLite and on PostgreSQL: one event, many destinations.

mod delivery;
mod expansion;
mod in_short;
mod integrity;
mod keys;
mod results;
mod routers;
mod runs;
mod status;
mod subscriptions;
mod sweep;
mod tables;
mod tenants;
