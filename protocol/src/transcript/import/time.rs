//! Times as transcripts write them: RFC 3339, read without a calendar library.

use crate::id::UnixMillis;

/// The time in Unix milliseconds; none when the text is no such time or lies outside 1970 … 2^48 ms.
pub(super) fn millis(text: &str) -> Option<UnixMillis> {
    let bytes = text.as_bytes();
    if bytes.len() < 20 || !text.is_ascii() {
        return None;
    }
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let shaped = separators.iter().all(|(at, separator)| bytes[*at] == *separator);
    if !shaped || !matches!(bytes[10], b'T' | b't' | b' ') {
        return None;
    }
    let field = |from: usize, to: usize| digits(&text[from..to]);
    let (year, month, day) = (field(0, 4)?, field(5, 7)?, field(8, 10)?);
    let (hour, minute, second) = (field(11, 13)?, field(14, 16)?, field(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction_ms, zone) = fraction(&text[19..])?;
    let seconds =
        days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset(zone)?;
    let ms = seconds.checked_mul(1_000)?.checked_add(fraction_ms)?;
    UnixMillis::new(u64::try_from(ms).ok()?).ok()
}

fn digits(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Milliseconds of `.123…`, cut, and what follows.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    let padded: String = rest[..end].chars().chain("000".chars()).take(3).collect();
    (end > 0).then_some((digits(&padded)?, &rest[end..]))
}

/// Seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 {
        return None;
    }
    Some(sign * (digits(hours)? * 3_600 + digits(minutes)? * 60))
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> Option<u64> {
        millis(text).map(UnixMillis::get)
    }

    #[test]
    fn times_are_read() {
        assert_eq!(ms("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(ms("2026-01-01T00:00:00.000Z"), Some(1_767_225_600_000));
        assert_eq!(ms("2026-01-01T00:00:00.1239Z"), Some(1_767_225_600_123));
        assert_eq!(ms("2026-01-01T01:30:00.5+01:30"), Some(1_767_225_600_500));
        assert_eq!(ms("2000-02-29T12:00:00Z"), Some(951_825_600_000));
        assert_eq!(ms("2025-12-31T19:00:00-05:00"), Some(1_767_225_600_000));
    }

    #[test]
    fn other_texts_are_no_times() {
        for bad in [
            "",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-13-01T00:00:00Z",
            "2026-01-01T00:00:00.Z",
            "1969-12-31T23:59:59Z",
            "2026-01-01T00:00:00+1:00",
            "٢026-01-01T00:00:00Z",
            "+026-01-01T00:00:00Z",
        ] {
            assert_eq!(ms(bad), None, "{bad}");
        }
    }
}
