//! Foreign text made harmless before a terminal or a log sees it.
//!
//! Transcripts hold whatever a model, a tool or a stranger wrote: escape sequences that move the cursor or fill the
//! clipboard, characters that turn the reading direction, invisible ones. All text of this command line goes through
//! here once, so no command has to think of it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Text that stands within one line: line ends and tabs are escaped too, so it cannot pretend to be another line.
#[must_use]
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    replace(text, is_harmful, |out, c| {
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    })
}

/// Text of several lines: line ends and tabs stay.
#[must_use]
pub(crate) fn block(text: &str) -> Cow<'_, str> {
    replace(
        text,
        |c| is_harmful(c) && c != '\n' && c != '\t',
        |out, c| {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        },
    )
}

/// Serialized JSON: what a terminal could act on becomes a JSON escape, so the value stays the same.
#[must_use]
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    replace(text, is_harmful, |out, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

/// C0, DEL, C1; bidi controls and marks; line separators; the byte order mark; invisible tag characters.
fn is_harmful(c: char) -> bool {
    matches!(
        c,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

fn replace(text: &str, harmful: impl Fn(char) -> bool, write: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(&harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if harmful(c) { write(&mut out, c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_escaped() {
        assert_eq!(line("\x1b]52;c;x\x07"), r"\u{1b}]52;c;x\u{7}");
        assert_eq!(line("a\u{9b}2Jb\x7f"), r"a\u{9b}2Jb\u{7f}");
        assert_eq!(line("user\u{202e}nimda"), r"user\u{202e}nimda");
        assert_eq!(
            line("\u{2066}\u{2069}\u{200f}\u{61c}\u{feff}"),
            r"\u{2066}\u{2069}\u{200f}\u{61c}\u{feff}"
        );
        assert_eq!(line("flag\u{e0041}"), r"flag\u{e0041}");
    }

    #[test]
    fn a_line_holds_no_line_end_and_a_block_does() {
        assert_eq!(line("a\nb\tc\rd"), r"a\u{a}b\u{9}c\u{d}d");
        assert_eq!(block("a\nb\tc\rd"), "a\nb\tc\\u{d}d");
    }

    #[test]
    fn ordinary_text_of_any_script_stays() {
        for text in ["grün ✓ 日本語 שלום مرحبا", "👩\u{200d}💻 ok"] {
            assert!(matches!(line(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn escaped_json_is_the_same_value() {
        let value = serde_json::json!({"t": "a\u{1b}b\u{9b}c\u{202e}d\u{e0041}e\u{7f}\"\\"});
        let text = value.to_string();
        let escaped = json(&text);
        assert!(escaped.is_ascii());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
