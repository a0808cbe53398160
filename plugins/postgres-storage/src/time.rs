//! Times in SQL. Every "now" is the database's; durations come in as milliseconds.
//!
//! What is compared is the start of the statement, the same throughout it; what is written is the time of day itself, which is later than
//! that by as long as a row was waited for, so that no delay comes out shorter than it was asked for.

use crate::ops::{CONCAT, EQ, GT, LE, LT, MINUS, PLUS, TIMES, text};

/// How a column holds times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// `timestamp with time zone`.
    Zoned,
    /// `timestamp without time zone`, taken as UTC.
    Unzoned,
    /// Numbers: milliseconds since the Unix epoch. `true`: the type has NaN.
    Millis(bool),
    /// Numbers: seconds since the Unix epoch. `true`: the type has NaN.
    Seconds(bool),
    /// ISO 8601; UTC unless it has an offset.
    Text,
}

const STATEMENT: &str = "pg_catalog.statement_timestamp()";
const OF_DAY: &str = "pg_catalog.clock_timestamp()";
/// Numbers beyond these are no times: 285,000 years from now, in milliseconds.
const MOST_MILLIS: &str = "9000000000000000";
const MOST_SECONDS: &str = "9000000000000";

/// Date, month, day, time of day, hours and minutes of the offset. Every text that matches is a time, but for days past the end of a
/// month, which [`instant`] counts on. No backslashes: `standard_conforming_strings` may be off.
const ISO_8601: &str = "^ *((?!0000)[0-9]{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])\
(?:[Tt ]((?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.][0-9]{1,6})?)?)[0-9]* *\
(?:[Zz]|([+-](?:0[0-9]|1[0-5]))(?::?([0-5][0-9]))?)?)? *$";

fn millis_of(instant: &str) -> String {
    format!("CAST(pg_catalog.floor((EXTRACT(EPOCH FROM {instant}) {TIMES} 1000)) AS bigint)")
}

/// The start of the statement, in milliseconds since the Unix epoch: worked out once.
pub(crate) fn now_ms() -> String {
    format!("(SELECT {})", millis_of(STATEMENT))
}

/// Now, as the column stores it.
pub(crate) fn now(clock: Clock) -> String {
    stored(clock, OF_DAY)
}

/// So many milliseconds (an SQL expression) from now, as the column stores it.
pub(crate) fn later(clock: Clock, millis: &str) -> String {
    stored(clock, &format!("({OF_DAY} {PLUS} (CAST({millis} AS bigint) {TIMES} INTERVAL '1 millisecond'))"))
}

fn stored(clock: Clock, instant: &str) -> String {
    match clock {
        Clock::Zoned => instant.to_owned(),
        Clock::Unzoned => format!("({instant} AT TIME ZONE 'UTC')"),
        Clock::Millis(_) => millis_of(instant),
        Clock::Seconds(_) => format!("EXTRACT(EPOCH FROM {instant})"),
        Clock::Text => format!("pg_catalog.to_char(({instant} AT TIME ZONE 'UTC'), 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"),
    }
}

/// A stored time in milliseconds since the Unix epoch; NULL where it cannot be read, or is infinite.
pub(crate) fn millis(clock: Clock, column: &str) -> String {
    let within = |most: &str, factor: &str| {
        format!(
            "CASE WHEN CAST({column} AS numeric) {GT} -{most} AND CAST({column} AS numeric) {LT} {most} \
             THEN CAST((CAST({column} AS numeric) {TIMES} {factor}) AS bigint) END"
        )
    };
    match clock {
        Clock::Zoned | Clock::Unzoned => {
            // Of double precision, which takes a third of the time of numeric (measured). Half a microsecond more, so that floor does not fall below
            // what is a whole number: that is enough for the next hundred years, and then some times are a millisecond off.
            let millis = format!("((pg_catalog.date_part('epoch', {column}) {TIMES} 1000) {PLUS} 0.0005)");
            format!("CASE WHEN pg_catalog.isfinite({column}) THEN CAST(pg_catalog.floor({millis}) AS bigint) END")
        }
        Clock::Millis(_) => within(MOST_MILLIS, "1"),
        Clock::Seconds(_) => within(MOST_SECONDS, "1000"),
        Clock::Text => millis_of(&instant(column)),
    }
}

/// Whether a stored time has passed. NULL, and what is no time, counts as passed: such a row must not wait for ever.
pub(crate) fn passed(clock: Clock, column: &str) -> String {
    let number = |nan: bool, now: &str| {
        let nan = if nan { format!(" OR {column} {EQ} 'NaN'") } else { String::new() };
        format!("({column} IS NULL{nan} OR {column} {LE} (SELECT {now}))")
    };
    match clock {
        Clock::Zoned => format!("({column} IS NULL OR {column} {LE} {STATEMENT})"),
        Clock::Unzoned => format!("({column} IS NULL OR {column} {LE} ({STATEMENT} AT TIME ZONE 'UTC'))"),
        Clock::Millis(nan) => number(nan, &millis_of(STATEMENT)),
        Clock::Seconds(nan) => number(nan, &format!("EXTRACT(EPOCH FROM {STATEMENT})")),
        Clock::Text => format!("coalesce({} {LE} {STATEMENT}, true)", instant(column)),
    }
}

/// A text as an instant; NULL where it is no time.
fn instant(column: &str) -> String {
    let number = |at: u8| format!("CAST(r.m[{at}] AS integer)");
    let interval = |text: &str| format!("CAST({text} AS interval)");
    let offset = format!("coalesce(r.m[5], '+00') {CONCAT} ':' {CONCAT} coalesce(r.m[6], '00')");
    format!(
        "(SELECT CASE WHEN r.m IS NOT NULL THEN ((((pg_catalog.make_date({}, {}, 1) {PLUS} ({} {MINUS} 1)) {PLUS} {}) AT TIME ZONE 'UTC') \
         {MINUS} {}) END FROM (SELECT pg_catalog.regexp_match({}, '{ISO_8601}') AS m OFFSET 0) AS r)",
        number(1),
        number(2),
        number(3),
        interval("coalesce(r.m[4], '00:00')"),
        interval(&format!("({offset})")),
        text(column)
    )
}

/// A time that has long passed, for columns that may not be NULL.
pub(crate) fn long_ago(clock: Clock) -> &'static str {
    match clock {
        Clock::Zoned | Clock::Unzoned => "'epoch'",
        Clock::Millis(_) | Clock::Seconds(_) => "0",
        Clock::Text => "'1970-01-01T00:00:00.000Z'",
    }
}
