//! Publishes messages to Apache Kafka, as a publisher adapter of outhaul.
