//! Values as PostgreSQL writes them, out of their binary form.
//!
//! What adapters compare and store must not depend on the form in which a client asks for it: every text here is the one that a cast
//! to `text` gives, in a session whose time zone is UTC. The tests hold them against a real server.

use std::fmt::Write as _;

/// Bytes that are not what their type says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unreadable;

/// Days from 0000-03-01, where the leap day ends a year, to 2000-01-01, where PostgreSQL begins to count.
const DAYS_TO_2000: i64 = 730_425;

const MICROS_A_DAY: i64 = 24 * 3600 * 1_000_000;

/// A value of fixed length.
pub(super) fn array<const N: usize>(value: &[u8]) -> Result<[u8; N], Unreadable> {
    value.try_into().map_err(|_| Unreadable)
}

/// `1.5`, `1e+20`: the shortest that reads as the same number.
pub(super) fn float8(value: f64) -> String {
    float(&format!("{value:e}"), 15)
}

/// The same in single precision.
pub(super) fn float4(value: f32) -> String {
    float(&format!("{value:e}"), 6)
}

/// Out of `-1.25e-7`. From 10 to the power of `digits` on, and below 0.0001, PostgreSQL writes an exponent.
fn float(shortest: &str, digits: i32) -> String {
    let Some((mantissa, exponent)) = shortest.split_once('e') else {
        return match shortest {
            "inf" => "Infinity".to_owned(),
            "-inf" => "-Infinity".to_owned(),
            other => other.to_owned(),
        };
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..digits).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let all: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let before = usize::try_from(exponent + 1).unwrap_or(0);
    if before == 0 {
        let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
        format!("{sign}0.{}{all}", "0".repeat(zeros))
    } else if before >= all.len() {
        format!("{sign}{all}{}", "0".repeat(before - all.len()))
    } else {
        let (whole, fraction) = all.split_at(before);
        format!("{sign}{whole}.{fraction}")
    }
}

/// Digits in groups of four: their number, the weight of the first, the sign, digits behind the point, and the groups.
pub(super) fn numeric(value: &[u8]) -> Result<String, Unreadable> {
    let (words, rest) = value.as_chunks::<2>();
    let [count, weight, sign, scale, groups @ ..] = words else { return Err(Unreadable) };
    let [count, sign, scale] = [count, sign, scale].map(|word| u16::from_be_bytes(*word));
    if !rest.is_empty() || usize::from(count) != groups.len() {
        return Err(Unreadable);
    }
    let mut out = String::new();
    match sign {
        0 => {}
        0x4000 => out.push('-'),
        0xC000 => return Ok("NaN".to_owned()),
        0xD000 => return Ok("Infinity".to_owned()),
        0xF000 => return Ok("-Infinity".to_owned()),
        _ => return Err(Unreadable),
    }
    let weight = i32::from(i16::from_be_bytes(*weight));
    // A group that is not there is zero.
    let group = |power: i32| {
        let found = usize::try_from(weight - power).ok().and_then(|index| groups.get(index));
        found.map_or(0, |group| u16::from_be_bytes(*group))
    };
    if weight < 0 {
        out.push('0');
    } else {
        let _ = write!(out, "{}", group(weight));
        for power in (0..weight).rev() {
            let _ = write!(out, "{:04}", group(power));
        }
    }
    if scale > 0 {
        let mut fraction = String::new();
        for power in 1..=i32::from(scale.div_ceil(4)) {
            let _ = write!(fraction, "{:04}", group(-power));
        }
        fraction.truncate(scale.into());
        let _ = write!(out, ".{fraction}");
    }
    Ok(out)
}

/// In groups of 8, 4, 4, 4 and 12 digits.
pub(super) fn uuid(bytes: [u8; 16]) -> String {
    let mut out = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// `\x00ff`.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 + bytes.len() * 2);
    out.push_str("\\x");
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Days since 2000-01-01.
pub(super) fn date(days: i32) -> String {
    match days {
        i32::MAX => "infinity".to_owned(),
        i32::MIN => "-infinity".to_owned(),
        days => {
            let (day, era) = calendar(days.into());
            day + era
        }
    }
}

/// Microseconds since 2000-01-01; `zone` is written behind.
pub(super) fn timestamp(micros: i64, zone: &str) -> String {
    match micros {
        i64::MAX => return "infinity".to_owned(),
        i64::MIN => return "-infinity".to_owned(),
        _ => {}
    }
    let (day, era) = calendar(micros.div_euclid(MICROS_A_DAY));
    let micros = micros.rem_euclid(MICROS_A_DAY);
    let seconds = micros / 1_000_000;
    let mut out = format!("{day} {:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if micros % 1_000_000 > 0 {
        let fraction = format!(".{:06}", micros % 1_000_000);
        out.push_str(fraction.trim_end_matches('0'));
    }
    out + zone + era
}

/// Year, month and day, and ` BC` for years before the first.
fn calendar(days: i64) -> (String, &'static str) {
    let days = days + DAYS_TO_2000;
    // The calendar repeats after 400 years.
    let (cycle, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // From March on.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + cycle * 400 + next;
    // There is no year zero.
    let (year, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    (format!("{year:04}-{month:02}-{day:02}"), era)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn floats_are_written_with_an_exponent_where_the_server_does() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (-1.25, "-1.25"),
            (0.0001, "0.0001"),
            (0.000_012, "1.2e-05"),
            (123_456_789_012_345.0, "123456789012345"),
            (1e15, "1e+15"),
            (1e300, "1e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(float8(value), text);
        }
        assert_eq!((float4(0.1), float4(1e6), float4(100_000.0)), ("0.1".to_owned(), "1e+06".to_owned(), "100000".to_owned()));
    }

    #[test]
    fn times_are_written_in_their_era() {
        assert_eq!((date(0), date(-1), date(59)), ("2000-01-01".into(), "1999-12-31".into(), "2000-02-29".into()));
        assert_eq!((date(-730_119), date(i32::MIN)), ("0001-01-01".into(), "-infinity".into()));
        assert_eq!(date(-730_120), "0001-12-31 BC");
        assert_eq!(timestamp(-1, "+00"), "1999-12-31 23:59:59.999999+00");
        assert_eq!(timestamp(1_500_000, ""), "2000-01-01 00:00:01.5");
    }

    #[test]
    fn what_is_no_number_is_unreadable() {
        for bytes in [&b""[..], b"\0\x01\0\0\0\0\0\0", b"\0\0\0\0\x12\x34\0\0", b"\0\0\0\0\0\0\0\0\0"] {
            assert_eq!(numeric(bytes), Err(Unreadable), "{bytes:?}");
        }
        assert_eq!(numeric(b"\0\0\0\0\0\0\0\x02"), Ok("0.00".to_owned()));
    }

    proptest! {
        #[test]
        fn any_bytes_and_numbers_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..40), days: i32, micros: i64, real: f64) {
            let _ = numeric(&bytes);
            prop_assert!(!date(days).is_empty() && !timestamp(micros, "").is_empty());
            let read: f64 = float8(real).parse().unwrap();
            prop_assert!(read == real || real.is_nan());
        }
    }
}
