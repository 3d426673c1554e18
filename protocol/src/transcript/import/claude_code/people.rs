//! Lines of the user: a person's words, words of the tool around the model, and results of tools.

use super::super::draft::{Blob, DraftBody};
use super::super::fit;
use super::Desk;
use super::blocks::{Part, RawResult};
use super::group::Held;
use super::record::Record;
use super::results::{ResultLine, block_of};
use super::seen::{Came, Link};
use super::session::{Entry, Session};
use crate::content::{Block, Content};
use crate::entry::Origin;
use crate::payload::{Attachment, UserWords, Words};

/// Longest title made from a message, in characters.
const TITLE_CHARS_MAX: usize = 80;

impl Session {
    /// Takes a line of the user. Results wait for the open message if they answer it; all else closes it.
    pub(super) fn user(
        &mut self,
        record: &Record<'_>,
        parts: Vec<Part>,
        (came, bytes): (Came, usize),
        desk: &mut Desk,
    ) -> Link {
        let mut results: Vec<RawResult> = Vec::new();
        let mut others = Vec::new();
        for part in parts {
            match part {
                Part::Result(result) => results.push(result),
                Part::Plain(content) => others.push((content, None)),
                Part::Stored(blob) => others.push((fit::media(&blob), Some(blob))),
                Part::Call(call) => others.push((super::blocks::opaque("tool_use", &call.input), None)),
            }
        }
        if !results.is_empty() && others.is_empty() && self.answers_open(&results, bytes) {
            let turn = self.turns.result(record.meta.line);
            if let Some(group) = &mut self.group {
                group.hold(Held::Results(ResultLine::read(record, turn, results)), bytes);
            }
            return Link::Message(turn);
        }
        self.close(desk);
        self.close_boundary(desk);
        self.begin(&record.meta);
        let has_results = !results.is_empty();
        let turn = if has_results {
            let turn = self.turns.result(record.meta.line);
            self.results(ResultLine::read(record, turn, results), desk);
            turn
        } else {
            self.go_on(came, &record.meta, desk);
            desk.report.reachable += 1;
            self.turns.message(record.meta.line)
        };
        if !has_results || !others.is_empty() {
            let index = self.message(record, others, desk);
            self.turns.written(turn, index);
        }
        Link::Message(turn)
    }

    fn answers_open(&self, results: &[RawResult], bytes: usize) -> bool {
        self.group.as_ref().is_some_and(|group| {
            group.has_room(bytes) && results.iter().all(|result| group.asks(&result.provider_id))
        })
    }

    /// Writes a message, as several if it is too large for one. Gives the place of the last.
    fn message(&mut self, record: &Record<'_>, parts: Vec<(Content, Option<Blob>)>, desk: &mut Desk) -> u64 {
        let origin = origin_of(record);
        if origin == Origin::Import && self.titles.current.is_none() && !self.has_begun() {
            self.titles.current = parts.iter().find_map(|(part, _)| title_of(part.words()?));
        }
        let mut blobs = Vec::new();
        let items =
            parts.into_iter().enumerate().map(|(n, (part, blob))| item(n, &part, blob, &mut blobs)).collect();
        let mut last = 0;
        for (nth, (body, attachments)) in fit::split_message(items).into_iter().enumerate() {
            let own = blobs.iter().filter(|blob| attachments.iter().any(|a| a.cid == blob.cid)).cloned();
            let entry = Entry {
                record: record.meta.record.nth(nth),
                ts: record.meta.ts,
                lines: vec![record.meta.line],
                blobs: own.collect(),
            };
            let words = UserWords {
                body,
                attachments,
                source: Some(record.meta.source(&[record.meta.line], None)),
                ..UserWords::default()
            };
            last = self.emit(DraftBody::UserMessage { origin }, Words::UserMessage(words), entry, desk);
        }
        last
    }
}

fn item(n: usize, part: &Content, blob: Option<Blob>, blobs: &mut Vec<Blob>) -> (Block, Option<Attachment>) {
    let block = block_of(&format!("b{}", n + 1), part);
    match blob {
        Some(blob) => {
            let attachment = fit::attachment(&blob);
            blobs.push(blob);
            (block, Some(attachment))
        }
        None => fit::fit_block(block, blobs),
    }
}

/// Who wrote a user line: a person, or the tool around the model.
fn origin_of(record: &Record<'_>) -> Origin {
    let by_tool =
        record.is("isMeta") || record.is("isVisibleInTranscriptOnly") || record.is("isCompactSummary");
    if by_tool { Origin::Hook } else { Origin::Import }
}

/// The first line of a person's words, as a title.
fn title_of(words: &str) -> Option<String> {
    let line = words.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('<'))?;
    let short: String = line.chars().take(TITLE_CHARS_MAX).collect();
    Some(super::super::clean::name(&short, "")).filter(|title| !title.is_empty())
}
