//! Values as they are written, and where each came from.

use std::fmt;
use std::time::Duration;

/// A value as it was written, before it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `"text"`
    Text(String),
    /// `["text", …]`
    List(Vec<String>),
    /// `true` or `false`
    Flag(bool),
    /// A whole number.
    Number(u64),
}

impl Value {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Value::Text(text.into())
    }

    pub(super) fn list(items: &[&str]) -> Self {
        Value::List(items.iter().map(|item| (*item).to_owned()).collect())
    }
}

/// The value as TOML.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: &String| toml::Value::String(text.clone());
        match self {
            Value::Text(value) => write!(f, "{}", text(value)),
            Value::List(items) => write!(f, "{}", toml::Value::Array(items.iter().map(text).collect())),
            Value::Flag(value) => write!(f, "{value}"),
            Value::Number(value) => write!(f, "{value}"),
        }
    }
}

/// Where a value came from. A later one goes before an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The config file.
    Config {
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: &'static str,
    },
    /// A flag of the command.
    Flag,
}

impl Source {
    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::Config { .. } => "config",
            Source::Environment { .. } => "environment",
            Source::Flag => "flag",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Config { line } => write!(f, "config line {line}"),
            Source::Environment { variable } => write!(f, "environment {variable}"),
            Source::Default | Source::Flag => f.write_str(self.word()),
        }
    }
}

/// Reads a size such as `50 GiB`: a whole number and B, KiB, MiB, GiB or TiB. In bytes, not zero.
pub(super) fn size_bytes(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let factor: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// Reads a duration such as `15m`: a whole number and ms, s, m, h or d. Not zero.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let factor_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor_ms).map(Duration::from_millis)
}

fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..end].parse().ok()?;
    let unit = &text[end..];
    (number > 0).then_some((number, unit.strip_prefix(' ').unwrap_or(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_numbers_with_a_unit() {
        assert_eq!(size_bytes("50 GiB"), Some(50 << 30));
        assert_eq!(size_bytes("1B"), Some(1));
        assert_eq!(size_bytes("8 KiB"), Some(8192));
        assert_eq!(size_bytes("2MiB"), Some(2 << 20));
        assert_eq!(size_bytes("1 TiB"), Some(1 << 40));
        for text in [
            "",
            "50",
            "GiB",
            "0 GiB",
            "50 GB",
            "50 gib",
            "-1 GiB",
            "1.5 GiB",
            "1  GiB",
            " 1 GiB",
            "1 GiB ",
            "99999999999 TiB",
            "99999999999999999999 B",
        ] {
            assert_eq!(size_bytes(text), None, "{text:?}");
        }
    }

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        assert_eq!(duration("15m"), Some(Duration::from_secs(900)));
        assert_eq!(duration("250 ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("2h"), Some(Duration::from_secs(7200)));
        assert_eq!(duration("30d"), Some(Duration::from_secs(30 * 86_400)));
        for text in ["", "15", "m", "0s", "1 week", "-1s", "1.5h"] {
            assert_eq!(duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn values_are_shown_as_toml() {
        assert_eq!(Value::text("a\"b").to_string(), "'a\"b'");
        assert_eq!(Value::list(&["a", "b"]).to_string(), r#"["a", "b"]"#);
        assert_eq!(Value::Flag(true).to_string(), "true");
        assert_eq!(Value::Number(7).to_string(), "7");
    }
}
