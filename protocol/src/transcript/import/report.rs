//! What became of every line of a segment.
//!
//! Counts are exact. Lists are bounded: they are kept in memory while a source of any size streams by, and they go into
//! the payload of the `import` note, which holds at most 1 MiB. What a full list left out is counted, and the note says so.

use std::collections::BTreeMap;

use super::clean;
use crate::code::Code;
use crate::id::{Cid, Codec};
use crate::payload::{ImportReport, KeptRaw, Repaired, Segment, Skipped};

/// Losses that are listed.
const LOSSES_MAX: usize = 2_000;
/// Repairs that are listed.
const REPAIRS_MAX: usize = 2_000;
/// Lines kept raw that are listed.
const KEPT_MAX: usize = 8_000;
/// Kinds of lines that are counted one by one; further ones are counted as `other`.
const KINDS_MAX: usize = 256;
/// Longest description of a repair, in bytes.
const WHAT_BYTES_MAX: usize = 160;
/// Longest kind, in bytes.
const KIND_BYTES_MAX: usize = 64;

/// How many lines ended how. Every line of a segment is counted exactly once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// An entry begins with it.
    pub carried: u64,
    /// It is part of an entry that an earlier line began.
    pub joined: u64,
    /// It makes no entry and stays in the segment.
    pub raw: u64,
    /// It could not be read; it stays in the segment.
    pub skipped: u64,
    /// It stood in the source before.
    pub duplicate: u64,
}

impl Tally {
    /// All lines.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.carried + self.joined + self.raw + self.skipped + self.duplicate
    }
}

/// Where a segment lies in its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// First line, counted from 1.
    pub first_line: u64,
    /// Number of lines; the last may have no line end.
    pub lines: u64,
}

/// Bytes that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Line, counted from 1.
    pub line: u64,
    /// First byte in the source.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// `E_JSON` or `E_TOO_BIG`.
    pub code: Code,
    /// What was found, such as `ends inside a string`.
    pub detail: &'static str,
}

/// Something that was put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Line, counted from 1.
    pub line: u64,
    /// What was done. Holds no words of the transcript.
    pub what: String,
}

/// A line that made no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Line, counted from 1.
    pub line: u64,
    /// The source's word for it.
    pub kind: String,
}

/// How many items had no room in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlisted {
    /// Losses.
    pub skipped: u64,
    /// Repairs.
    pub repaired: u64,
    /// Lines kept raw.
    pub raw: u64,
}

/// How the import of one segment went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Where the segment lies.
    pub span: Span,
    /// First byte of the next segment. A last line without a line end is read again then: it may have grown.
    pub next_offset: u64,
    /// Lines by what became of them.
    pub tally: Tally,
    /// Records that hold a part of the conversation. A line that two writers shared has several, so there may be more than lines.
    pub messages: u64,
    /// Those of them that stand in an entry of the log.
    pub reachable: u64,
    /// What could not be read, in file order; at most 2,000.
    pub skipped: Vec<Loss>,
    /// What was put right, in file order; at most 2,000.
    pub repaired: Vec<Repair>,
    /// Lines that made no entry, in file order; at most 8,000.
    pub raw: Vec<Kept>,
    /// All lines that made no entry, counted by kind.
    pub not_carried: BTreeMap<String, u64>,
    /// What the lists above left out.
    pub unlisted: Unlisted,
    /// The version that the source says it was written by.
    pub version: Option<String>,
    /// The source's own id of the session.
    pub session_id: Option<String>,
}

impl Report {
    pub(super) fn skip(&mut self, loss: Loss) {
        if push(&mut self.skipped, loss, LOSSES_MAX) {
            self.unlisted.skipped += 1;
        }
    }

    pub(super) fn repair(&mut self, line: u64, what: impl Into<String>) {
        let what: String = what.into();
        let what = clean::cut(&what, WHAT_BYTES_MAX).to_owned();
        if push(&mut self.repaired, Repair { line, what }, REPAIRS_MAX) {
            self.unlisted.repaired += 1;
        }
    }

    pub(super) fn keep(&mut self, line: u64, kind: &str) {
        let named = clean::name(kind, "unnamed");
        let mut kind = clean::cut(&named, KIND_BYTES_MAX).to_owned();
        if self.not_carried.len() >= KINDS_MAX && !self.not_carried.contains_key(&kind) {
            "other".clone_into(&mut kind);
        }
        *self.not_carried.entry(kind.clone()).or_default() += 1;
        if push(&mut self.raw, Kept { line, kind }, KEPT_MAX) {
            self.unlisted.raw += 1;
        }
    }

    /// Leaves at most `stay` of what was kept of `line`: a line is counted once, also when several records were found on it.
    pub(super) fn settle(&mut self, line: u64, stay: usize) {
        let first = self.raw.iter().rposition(|kept| kept.line != line).map_or(0, |at| at + 1);
        for kept in self.raw.drain((first + stay).min(self.raw.len())..) {
            if let Some(count) = self.not_carried.get_mut(&kept.kind) {
                *count -= 1;
                if *count == 0 {
                    self.not_carried.remove(&kept.kind);
                }
            }
        }
    }

    /// The words of the `import` note. The segment's CID is put in when the note is assembled.
    pub(super) fn words(&self, format: &str) -> ImportReport {
        let mut repaired: Vec<Repaired> = self
            .repaired
            .iter()
            .map(|repair| Repaired { line: repair.line, what: repair.what.clone() })
            .collect();
        if self.unlisted != Unlisted::default() {
            let Unlisted { skipped, repaired: repairs, raw } = self.unlisted;
            let what =
                format!("not listed: {skipped} more skipped, {repairs} more repaired, {raw} more raw lines");
            repaired.push(Repaired { line: self.span.first_line, what });
        }
        ImportReport {
            format: format.to_owned(),
            segments: vec![self.span.segment()],
            skipped: self
                .skipped
                .iter()
                .map(|loss| Skipped {
                    line: loss.line,
                    offset: loss.offset,
                    length: loss.length,
                    reason: loss.code.name().to_owned(),
                })
                .collect(),
            repaired,
            raw: self.raw.iter().map(|kept| KeptRaw { line: kept.line, kind: kept.kind.clone() }).collect(),
        }
    }
}

impl Span {
    pub(super) fn segment(&self) -> Segment {
        Segment {
            cid: Cid::sha256(Codec::Raw, b""),
            offset: self.offset,
            length: self.length,
            first_line: self.first_line,
            lines: self.lines,
        }
    }
}

/// Adds an item to a bounded list; true when there was no room.
fn push<T>(list: &mut Vec<T>, item: T, max: usize) -> bool {
    if list.len() >= max {
        return true;
    }
    list.push(item);
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::encode_map;
    use crate::limits::PAYLOAD_BYTES_MAX;
    use crate::payload::Words;

    #[test]
    fn the_longest_report_fits_into_a_payload() {
        let mut report = Report::default();
        let last = u64::MAX >> 11;
        for n in 0..20_000_u64 {
            let line = last - n;
            report.skip(Loss { line, offset: line, length: line, code: Code::TooBig, detail: "" });
            report.repair(line, "r".repeat(1_000));
            report.keep(line, &format!("{n}{}", "k".repeat(1_000)));
        }
        let words = Words::Import(report.words("claude-code"));
        assert!(encode_map(&words.to_map()).len() + 1_024 < PAYLOAD_BYTES_MAX);
        assert_eq!(report.unlisted, Unlisted { skipped: 18_000, repaired: 18_000, raw: 12_000 });
        assert_eq!(report.not_carried.len(), KINDS_MAX + 1);
        assert_eq!(report.not_carried.values().sum::<u64>(), 20_000);
    }
}
