//! An outbox in PostgreSQL, as a storage adapter of outhaul.
