//! Foreign words made fit for ids and names of an entry.
//!
//! Entry fields are bounded and plain; what does not fit is replaced here and stays as it came in the payload or the
//! segment. A text that a stock Seed daemon would take for one of its own types is not fit either: signing refuses it
//! ([`crate::build::sign`]), and a transcript must not be able to make its import fail.

use crate::build::seed_types_within;
use crate::schema::is_unsafe_char;

/// Longest `id`, in bytes.
const ID_BYTES_MAX: usize = 128;
/// Longest `name`, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The text, if it may stand as an `id`.
pub(super) fn id(text: &str) -> Option<String> {
    let plain = text.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    let fits = (1..=ID_BYTES_MAX).contains(&text.len()) && plain && !looks_like_seed(text);
    fits.then(|| text.to_owned())
}

/// The text as a `name`: without control and bidi characters and cut; `otherwise` when nothing is left.
pub(super) fn name(text: &str, otherwise: &str) -> String {
    let safe: String = text.chars().filter(|c| !is_unsafe_char(*c)).collect();
    let mut name = cut(safe.trim(), NAME_BYTES_MAX).to_owned();
    if looks_like_seed(&name) {
        name = name.replace("dtype", "d-type");
        name = cut(&name, NAME_BYTES_MAX).to_owned();
    }
    if name.is_empty() { otherwise.to_owned() } else { name }
}

/// The first `bytes_max` bytes, or fewer, so that no character is cut.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

fn looks_like_seed(text: &str) -> bool {
    seed_types_within(text.as_bytes()).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain_and_bounded() {
        assert_eq!(id("toolu_1").as_deref(), Some("toolu_1"));
        for bad in ["", "a b", "é", "a\u{7f}", &"x".repeat(129)] {
            assert_eq!(id(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn names_lose_what_a_name_may_not_hold() {
        assert_eq!(name("a\u{202e}b\n", "tool"), "ab");
        assert_eq!(name("\u{0}", "tool"), "tool");
        let long = "é".repeat(200);
        assert_eq!(name(&long, "tool").len(), 256);
    }

    #[test]
    fn a_name_never_makes_signing_fail() {
        // The CBOR of the key "type" and of the text "Change" as they would stand in an entry.
        let hostile = "xdtypefChange";
        assert!(seed_types_within(hostile.as_bytes()).next().is_some());
        assert_eq!(id(hostile), None);
        assert!(seed_types_within(name(hostile, "tool").as_bytes()).next().is_none());
    }
}
