//! How numbers, times and ids look to a reader, and how durations are read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throughline_protocol::id::{Cid, Principal};

/// Bytes in IEC units: `812 B`, `1.9 MiB`.
#[must_use]
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Tenths of the unit, so that no float is needed; the last unit takes what is left.
    let mut tenths = u128::from(count) * 10;
    let mut unit = "B";
    for next in UNITS {
        if tenths < 10_240 {
            break;
        }
        tenths = (tenths + 512) / 1024;
        unit = next;
    }
    if tenths >= 1000 {
        format!("{} {unit}", tenths / 10)
    } else {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

/// How long something took: `12 ms`, `0.4 s`, `2 min 5 s`.
#[must_use]
pub(crate) fn elapsed(ms: u64) -> String {
    match ms {
        0..100 => format!("{ms} ms"),
        100..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

/// How long ago something was seen: `2 s ago`, `15 min ago`.
#[must_use]
pub(crate) fn ago(ms: u64) -> String {
    match ms {
        0..1_000 => "just now".to_owned(),
        1_000..60_000 => format!("{} s ago", ms / 1000),
        60_000..3_600_000 => format!("{} min ago", ms / 60_000),
        3_600_000..86_400_000 => format!("{} h ago", ms / 3_600_000),
        _ => format!("{} d ago", ms / 86_400_000),
    }
}

/// `1 entry`, `2 entries`.
#[must_use]
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The short form of a CID or principal in an answer; other text stays.
#[must_use]
pub(crate) fn short(text: &str) -> String {
    if let Ok(cid) = text.parse::<Cid>() {
        return cid.short();
    }
    match text.parse::<Principal>() {
        Ok(principal) => principal.short(),
        Err(_) => text.to_owned(),
    }
}

/// The short form of a CID; other text, keys too, stays.
#[must_use]
pub(crate) fn short_cid(text: &str) -> String {
    text.parse::<Cid>().map_or_else(|_| text.to_owned(), |cid| cid.short())
}

/// Milliseconds since 1970 by this machine's clock.
#[must_use]
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time of day of a moment, UTC: `14:02:11`.
#[must_use]
pub(crate) fn time_of_day(ms: u64) -> String {
    let seconds = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Reads a duration: a whole number and `ms`, `s`, `m` or `h`; at least a millisecond, at most a day.
///
/// # Errors
/// What was expected.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration such as 30s (ms, s, m, h), at most 24h".to_owned();
    let end = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(expected)?;
    let number: u64 = text[..end].parse().map_err(|_| expected())?;
    let factor_ms: u64 = match &text[end..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(expected()),
    };
    let ms = number.checked_mul(factor_ms).filter(|ms| (1..=86_400_000).contains(ms)).ok_or_else(expected)?;
    Ok(Duration::from_millis(ms))
}

/// A duration as whole milliseconds.
#[must_use]
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_iec() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_992_294, "1.9 MiB"),
            (1_048_575, "1.0 MiB"),
            (211 * 1024, "211 KiB"),
            (64 << 20, "64.0 MiB"),
            (50 << 30, "50.0 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn times_are_relative() {
        for (ms, text) in [
            (0, "just now"),
            (2_100, "2 s ago"),
            (912_000, "15 min ago"),
            (3_600_000, "1 h ago"),
            (90_000_000, "1 d ago"),
        ] {
            assert_eq!(ago(ms), text);
        }
        for (ms, text) in [
            (12, "12 ms"),
            (402, "0.4 s"),
            (59_999, "59.9 s"),
            (125_000, "2 min 5 s"),
            (8_040_000, "2 h 14 min"),
        ] {
            assert_eq!(elapsed(ms), text);
        }
        assert_eq!(time_of_day(1_767_225_731_000), "00:02:11");
    }

    #[test]
    fn durations_have_a_unit_and_a_bound() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("24h"), Ok(Duration::from_secs(86_400)));
        for text in ["", "30", "s", "0s", "25h", "1d", "-1s", "1.5s", "30 s", "99999999999999999999s"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn ids_are_shortened_for_reading() {
        let cid = Cid::sha256(throughline_protocol::id::Codec::DagCbor, b"a");
        assert_eq!(short(&cid.to_string()), cid.short());
        assert_eq!(short("scratch"), "scratch");
    }
}
