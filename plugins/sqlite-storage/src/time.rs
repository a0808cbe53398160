//! Times in SQL. Every "now" is the database's, and the same throughout a statement; durations come in as milliseconds.

use outbox_table::config::TimeUnit;

/// Now, in milliseconds since the Unix epoch.
pub(crate) const NOW_MS: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";

/// Now, as the unit stores it.
pub(crate) fn now(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Ms => NOW_MS,
        TimeUnit::Seconds => "unixepoch('subsec')",
        TimeUnit::Text => "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
    }
}

/// So many milliseconds from now, as the unit stores it.
pub(crate) fn later(unit: TimeUnit, millis: &str) -> String {
    match unit {
        TimeUnit::Ms => format!("({NOW_MS} + {millis})"),
        TimeUnit::Seconds => format!("(unixepoch('subsec') + {millis} / 1000.0)"),
        TimeUnit::Text => format!("strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ({millis} / 1000.0) || ' seconds')"),
    }
}

/// A stored time in milliseconds since the Unix epoch; NULL where it cannot be read.
pub(crate) fn millis(unit: TimeUnit, column: &str) -> String {
    match unit {
        TimeUnit::Ms => format!("CAST({column} AS INTEGER)"),
        TimeUnit::Seconds => format!("CAST({column} * 1000 AS INTEGER)"),
        TimeUnit::Text => format!("CAST(unixepoch({column}, 'subsec') * 1000 AS INTEGER)"),
    }
}

/// Whether a stored time has passed. NULL, and what is no time, counts as passed: such a row must not wait for ever. (To SQLite, text and
/// blobs are greater than every number.)
pub(crate) fn passed(unit: TimeUnit, column: &str) -> String {
    match unit {
        TimeUnit::Ms | TimeUnit::Seconds => format!("(typeof({column}) NOT IN ('integer', 'real') OR {column} <= {})", now(unit)),
        TimeUnit::Text => format!("ifnull(unixepoch({column}, 'subsec') <= unixepoch('subsec'), 1)"),
    }
}

/// A time that has long passed, for columns that may not be NULL.
pub(crate) fn long_ago(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Ms => "0",
        TimeUnit::Seconds => "0.0",
        TimeUnit::Text => "'1970-01-01T00:00:00.000Z'",
    }
}
