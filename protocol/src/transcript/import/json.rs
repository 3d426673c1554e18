//! JSON of a source line: opened one level at a time, values kept as the text they came in.
//!
//! A value that is not opened is never rewritten, so numbers, key order and escapes survive. Two things that
//! `serde_json` alone refuses occur in the wild and are read here: half of a surrogate pair, which becomes U+FFFD in the
//! text, and a line that holds half a record with a whole one glued to it, of which the whole one is found again.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::value::RawValue;

/// The members of an object; of a key that stands twice, the last.
pub(super) type Object<'a> = BTreeMap<String, &'a RawValue>;

/// Opens an object.
pub(super) fn object(raw: &str) -> Option<Object<'_>> {
    serde_json::from_str(raw).ok()
}

/// Opens an array.
pub(super) fn array(raw: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(raw).ok()
}

/// The text of a string. Half of a surrogate pair becomes U+FFFD.
pub(super) fn text(raw: &str) -> Option<String> {
    let body = raw.strip_prefix('"')?.strip_suffix('"')?;
    serde_json::from_str(raw).ok().or_else(|| unescape(body))
}

/// A whole number that is not negative.
pub(super) fn uint(raw: &str) -> Option<u64> {
    raw.parse().ok()
}

/// The text of a member that is a string.
pub(super) fn text_of(object: &Object<'_>, key: &str) -> Option<String> {
    object.get(key).and_then(|raw| text(raw.get()))
}

/// A member that is a whole number; 0 when it is not there.
pub(super) fn uint_of(object: &Object<'_>, key: &str) -> u64 {
    object.get(key).and_then(|raw| uint(raw.get())).unwrap_or(0)
}

/// Whether a member is true.
pub(super) fn is_true(object: &Object<'_>, key: &str) -> bool {
    object.get(key).is_some_and(|raw| raw.get() == "true")
}

/// A member that is an object.
pub(super) fn object_of<'a>(object_: &Object<'a>, key: &str) -> Option<Object<'a>> {
    object_.get(key).and_then(|raw| object(raw.get()))
}

/// A member as it came, unless it is null.
pub(super) fn raw_of<'a>(object: &Object<'a>, key: &str) -> Option<&'a str> {
    object.get(key).map(|raw| raw.get()).filter(|raw| *raw != "null")
}

/// What stands on a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Scan {
    /// Whole values, as ranges of the line.
    pub(super) values: Vec<Range<usize>>,
    /// What is no value, and why.
    pub(super) lost: Vec<(Range<usize>, &'static str)>,
}

/// Bytes that looking for records in a broken line may read, as a multiple of its length.
const SCAN_FACTOR: usize = 16;

/// Reads the values of a line. After something that is no value it goes on with the next whole record: an object with a
/// `type`. Reading costs at most a fixed multiple of the line's length.
pub(super) fn scan(line: &str) -> Scan {
    let mut scan = Scan::default();
    let mut budget = line.len().saturating_mul(SCAN_FACTOR);
    let mut at = skip_blank(line, 0);
    while at < line.len() {
        match value_end(&line[at..]) {
            Ok(length) => {
                scan.values.push(at..at + length);
                at = skip_blank(line, at + length);
            }
            Err((_, why)) => {
                let resumed =
                    next_record(line, line.ceil_char_boundary(at + 1), &mut budget).unwrap_or(line.len());
                scan.lost.push((at..resumed, why));
                at = resumed;
            }
        }
    }
    scan
}

fn skip_blank(line: &str, at: usize) -> usize {
    line[at..].find(|c: char| !matches!(c, ' ' | '\t' | '\r' | '\n')).map_or(line.len(), |skip| at + skip)
}

/// The length of the value at the start of `rest`; else how many bytes were read, and why it is no value.
fn value_end(rest: &str) -> Result<usize, (usize, &'static str)> {
    let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
    match stream.next() {
        Some(Ok(_)) => Ok(stream.byte_offset()),
        Some(Err(error)) => Err((error.column().max(1), why(&error))),
        None => Err((1, "nothing there")),
    }
}

fn why(error: &serde_json::Error) -> &'static str {
    if !error.is_eof() {
        return "not valid JSON";
    }
    let message = error.to_string();
    match message.strip_prefix("EOF while parsing ") {
        Some(rest) if rest.starts_with("a string") => "ends inside a string",
        Some(rest) if rest.starts_with("an object") => "ends inside an object",
        Some(rest) if rest.starts_with("a list") => "ends inside a list",
        _ => "ends inside a value",
    }
}

/// Where the next whole record begins that fills the rest of the line or is followed by another object.
fn next_record(line: &str, from: usize, budget: &mut usize) -> Option<usize> {
    let mut from = from;
    loop {
        let at = from + line.get(from..)?.find("{\"")?;
        let (cost, whole) = match value_end(&line[at..]) {
            Ok(length) => {
                let rest = line[at + length..].trim_start();
                let is_record = (rest.is_empty() || rest.starts_with('{'))
                    && object(&line[at..at + length])
                        .is_some_and(|object| text_of(&object, "type").is_some());
                (length, is_record)
            }
            Err((cost, _)) => (cost, false),
        };
        if whole {
            return Some(at);
        }
        *budget = budget.checked_sub(cost)?;
        from = at + 1;
    }
}

/// Reads the escapes of a string that was found to be well-formed but for its surrogates.
fn unescape(body: &str) -> Option<String> {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = rest[at + 1..].chars().next()?;
        rest = &rest[at + 1 + escape.len_utf8()..];
        match escape {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            '"' | '\\' | '/' => out.push(escape),
            'u' => rest = unicode(rest, &mut out)?,
            _ => return None,
        }
    }
    out.push_str(rest);
    Some(out)
}

/// Reads the four digits after `\u`, and the other half of a pair if it follows; gives what comes after.
fn unicode<'a>(rest: &'a str, out: &mut String) -> Option<&'a str> {
    let unit = |text: &str| text.get(..4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let first = unit(rest)?;
    let rest = &rest[4..];
    if (0xd800..0xdc00).contains(&first)
        && let Some(second) = rest.strip_prefix("\\u").and_then(unit)
        && (0xdc00..0xe000).contains(&second)
    {
        let point = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        out.push(char::from_u32(point)?);
        return rest.get(6..);
    }
    out.push(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
    Some(rest)
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
