//! Real services for the tests: PostgreSQL, pgbouncer, Apache Kafka.
