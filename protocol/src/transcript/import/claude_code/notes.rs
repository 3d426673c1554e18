//! What becomes a note: titles, errors of the model provider, compactions, and the report at the end of a segment.

use super::super::draft::{DraftBody, DraftId, RecordKey};
use super::super::{clean, json};
use super::blocks::Part;
use super::group::Held;
use super::record::{Meta, Record};
use super::seen::{Seen, Turn, key_of};
use super::session::{Entry, Session};
use super::{Desk, FORMAT};
use crate::limits::INTEGER_MAX;
use crate::payload::{CompactionWords, Failure, Words};

/// Longest message of an error note, in bytes; the rest stays in the segment.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// Longest summary, in bytes; the rest stays in the segment.
const SUMMARY_BYTES_MAX: usize = 512 * 1024;
/// Entries that one compaction preserves.
const PRESERVED_MAX: usize = 4_096;
/// Titles that may come before the first message.
const LEADING_TITLES_MAX: usize = 1_024;

/// A compaction whose summary has not come yet.
#[derive(Debug)]
pub(super) struct Boundary {
    meta: Meta,
    trigger: Option<String>,
    pre_tokens: Option<u64>,
    to: Option<Turn>,
    preserved: Vec<Turn>,
}

/// What became of a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Titled {
    /// It became a note, or will be the title of the genesis.
    Taken,
    /// It will be part of the genesis beside an earlier one.
    Joined,
    /// It says nothing new.
    Stale,
}

impl Session {
    /// Takes a title line.
    pub(super) fn title(&mut self, record: &Record<'_>, title: &str, desk: &mut Desk) -> Titled {
        let by_person = record.kind == "custom-title";
        let title = clean::name(title, "");
        if title.is_empty() || (self.titles.by_person && !by_person) {
            return Titled::Stale;
        }
        self.titles.by_person |= by_person;
        if self.titles.current.as_ref() == Some(&title) && self.has_begun() {
            return Titled::Stale;
        }
        self.titles.current = Some(title.clone());
        if let Some(group) = self.group.as_mut().filter(|group| group.has_room(title.len())) {
            group.hold(Held::Title(title, record.meta.clone()), 0);
            return Titled::Taken;
        }
        if self.group.is_some() || self.has_begun() {
            self.close(desk);
            self.title_note(title, &record.meta, desk);
            return Titled::Taken;
        }
        self.begin(&record.meta);
        if self.titles.lines.len() >= LEADING_TITLES_MAX {
            return Titled::Stale;
        }
        self.titles.lines.push(record.meta.line);
        if self.titles.lines.len() > 1 { Titled::Joined } else { Titled::Taken }
    }

    /// Writes a title note.
    pub(super) fn title_note(&mut self, title: String, meta: &Meta, desk: &mut Desk) {
        self.emit(DraftBody::Title, Words::Title(title), note_entry(meta), desk);
    }

    /// Writes an error that the tool recorded in the place of a model's message.
    pub(super) fn error(&mut self, record: &Record<'_>, parts: &[Part], desk: &mut Desk) {
        self.close(desk);
        self.begin(&record.meta);
        let words: Vec<&str> = parts
            .iter()
            .filter_map(|part| match part {
                Part::Plain(content) => content.words(),
                Part::Stored(_) | Part::Call(_) | Part::Result(_) => None,
            })
            .collect();
        let message = words.join("\n");
        if message.len() > ERROR_BYTES_MAX {
            desk.report.repair(record.meta.line, "error text cut at 64 KiB; the segment has all of it");
        }
        let raw = json::raw_of(&record.fields, "message").filter(|raw| raw.len() <= ERROR_BYTES_MAX);
        let failure = Failure {
            message: clean::cut(&message, ERROR_BYTES_MAX).to_owned(),
            code: record.text("error").and_then(|code| clean::id(&code)),
            raw: raw.map(str::to_owned),
        };
        self.emit(DraftBody::Error, Words::Error(failure), note_entry(&record.meta), desk);
    }

    /// Takes the boundary of a compaction; its summary is the next line of the conversation.
    pub(super) fn boundary(&mut self, record: &Record<'_>, seen: &Seen, desk: &mut Desk) {
        self.close(desk);
        self.close_boundary(desk);
        self.begin(&record.meta);
        let metadata = json::object_of(&record.fields, "compactMetadata").unwrap_or_default();
        let turn_of = |id: &str| seen.turn(&key_of(id), self.key().number());
        let logical = record.text("logicalParentUuid").and_then(|id| turn_of(&id));
        let kept = json::object_of(&metadata, "preservedMessages")
            .and_then(|kept| kept.get("uuids").and_then(|raw| json::array(raw.get())))
            .unwrap_or_default();
        let mut preserved: Vec<Turn> = kept
            .into_iter()
            .take(PRESERVED_MAX)
            .filter_map(|raw| json::text(raw.get()).and_then(|id| turn_of(&id)))
            .collect();
        preserved.sort_unstable();
        preserved.dedup();
        self.boundary = Some(Boundary {
            meta: record.meta.clone(),
            trigger: json::text_of(&metadata, "trigger").and_then(|trigger| clean::id(&trigger)),
            pre_tokens: json::raw_of(&metadata, "preTokens").and_then(json::uint),
            to: logical.or_else(|| self.turns.tip()),
            preserved,
        });
    }

    /// Writes a compaction that has no summary.
    pub(super) fn close_boundary(&mut self, desk: &mut Desk) {
        if let Some(boundary) = self.boundary.take() {
            self.compaction(&boundary, None, desk);
        }
    }

    /// Takes the summary of a compaction. Whether a boundary came before it.
    pub(super) fn summary(&mut self, record: &Record<'_>, parts: &[Part], desk: &mut Desk) -> bool {
        self.close(desk);
        self.begin(&record.meta);
        let words: Vec<&str> = parts
            .iter()
            .filter_map(|part| match part {
                Part::Plain(content) => content.words(),
                Part::Stored(_) | Part::Call(_) | Part::Result(_) => None,
            })
            .collect();
        let summary = words.join("\n");
        if summary.len() > SUMMARY_BYTES_MAX {
            desk.report.repair(record.meta.line, "summary cut at 512 KiB; the segment has all of it");
        }
        let summary = clean::cut(&summary, SUMMARY_BYTES_MAX).to_owned();
        let (boundary, had) = match self.boundary.take() {
            Some(boundary) => (boundary, true),
            None => {
                let boundary = Boundary {
                    meta: record.meta.clone(),
                    trigger: None,
                    pre_tokens: None,
                    to: self.turns.tip(),
                    preserved: Vec::new(),
                };
                (boundary, false)
            }
        };
        self.compaction(&boundary, Some((summary, record.meta.line)), desk);
        had
    }

    /// Writes a compaction note. Its span begins behind the genesis and ends where calls are answered; without any
    /// conversation before it, it is the genesis.
    fn compaction(&mut self, boundary: &Boundary, summary: Option<(String, u64)>, desk: &mut Desk) {
        let id = |index| DraftId { session: self.key(), index };
        let span = boundary.to.map(|turn| self.turns.draft(self.turns.through_results(turn)));
        let (from, to) = span.map_or((id(0), id(0)), |to| (id(1), id(to)));
        let preserved: Vec<DraftId> =
            boundary.preserved.iter().map(|turn| id(self.turns.draft(*turn))).collect();
        self.preserved = boundary.preserved.iter().copied().collect();
        let mut lines = vec![boundary.meta.line];
        lines.extend(summary.as_ref().map(|(_, line)| *line).filter(|line| *line != boundary.meta.line));
        let words = CompactionWords {
            summary: summary.map(|(summary, _)| summary).filter(|summary| !summary.is_empty()),
            trigger: boundary.trigger.clone(),
            pre_tokens: boundary.pre_tokens.filter(|tokens| (1..=INTEGER_MAX).contains(tokens)),
            opaque: None,
            preserved: Vec::new(),
        };
        let entry = Entry { lines, ..note_entry(&boundary.meta) };
        self.emit(DraftBody::Compaction { from, to, preserved }, Words::Compaction(words), entry, desk);
    }

    /// Writes the note at the end of a segment.
    pub(super) fn import_note(
        &mut self,
        words: crate::payload::ImportReport,
        first_line: u64,
        desk: &mut Desk,
    ) {
        let entry = Entry {
            record: RecordKey::Id(format!("import {first_line}")),
            ts: None,
            lines: Vec::new(),
            blobs: Vec::new(),
        };
        debug_assert_eq!(words.format, FORMAT);
        self.emit(DraftBody::Import, Words::Import(words), entry, desk);
    }
}

fn note_entry(meta: &Meta) -> Entry {
    Entry { record: meta.record.clone(), ts: meta.ts, lines: vec![meta.line], blobs: Vec::new() }
}
