//! Durations ("60s", "500ms") and sizes ("64MiB", "64MB") as an operator writes them.

use std::time::Duration;

/// Longest duration in a configuration: anything longer is a slip, and a year in milliseconds fits everywhere.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Reads a duration with its unit.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration > MAX_DURATION => Err(format!("{text} is longer than a year")),
        Ok(duration) => Ok(duration),
        Err(error) => {
            Err(format!("{text:?} is not a duration ({error}): write a number with a unit, such as \"500ms\", \"60s\" or \"5m\""))
        }
    }
}

/// A duration as it would be written.
pub(super) fn show_duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

/// Reads a size: "64MiB" (powers of 1024), "64MB" (powers of 1000), "100B", or a bare number of bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    match text.parse::<bytesize::ByteSize>() {
        Ok(size) => Ok(size.as_u64()),
        Err(_) => Err(format!("{text:?} is not a size: write a number with a unit, such as \"64MiB\" or \"512KiB\", or a number of bytes")),
    }
}

/// A size as it would be written.
pub(super) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        let whole = bytes >> shift;
        if whole > 0 && whole << shift == bytes {
            return format!("{whole}{unit}");
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_need_a_unit_and_an_end() {
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "60", "s", "-1s", "1 fortnight", "9999999999999999999s", "2years"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_know_both_kinds_of_unit() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("64MB"), Ok(64_000_000));
        assert_eq!(size("1.5KiB"), Ok(1536));
        assert_eq!(size("12"), Ok(12));
        for wrong in ["", "MiB", "-1MiB", "64 lines", "NaNMiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_shown_size_reads_back(bytes in 0u64..1 << 50) {
            prop_assert_eq!(size(&show_size(bytes)), Ok(bytes));
        }

        #[test]
        fn a_shown_duration_reads_back(millis in 1u64..31_000_000_000) {
            let value = Duration::from_millis(millis);
            prop_assert_eq!(duration(&show_duration(value)), Ok(value));
        }
    }
}
