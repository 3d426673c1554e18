//! The targets, by what they read.

pub(super) mod api;
pub(super) mod blobs;
pub(super) mod claude;
pub(super) mod files;
pub(super) mod frames;
pub(super) mod payloads;
pub(super) mod select;
pub(super) mod texts;
pub(super) mod values;

use throughline_protocol::code::Reject;

/// Text that is shown to people holds no control characters, whatever the bytes held.
fn check_reject(reject: &Reject) {
    let shown = reject.to_string();
    assert!(shown.len() < 1_024, "a refusal of {} bytes", shown.len());
    assert!(!shown.chars().any(char::is_control), "a control character in {shown:?}");
}

/// Splits off the first byte, which says how to read the rest.
fn choice(data: &[u8]) -> Option<(usize, &[u8])> {
    data.split_first().map(|(first, rest)| (usize::from(*first), rest))
}

/// Both are the same bytes; says where they begin to differ, not all of both.
fn same_bytes(written: &[u8], read: &[u8]) {
    if written != read {
        let at = written.iter().zip(read).position(|(a, b)| a != b).unwrap_or(written.len().min(read.len()));
        panic!("written again, the bytes differ from byte {at} on ({} for {})", written.len(), read.len());
    }
}
