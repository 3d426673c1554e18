//! One session while its lines come in: the order of its entries, and from where each goes on.
//!
//! The log is linear. What the source keeps as a tree becomes the entries in file order, with a `rewind` note wherever
//! the source goes on from an earlier message than the newest.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::super::draft::{Blob, ChildOf, Draft, DraftBody, DraftId, RecordKey, SessionKey};
use super::super::fit;
use super::Desk;
use super::blocks::{self, Part};
use super::calls::Calls;
use super::group::{Group, Held, Message};
use super::notes::Boundary;
use super::record::Meta;
use super::seen::{Came, Key, Link, Turn};
use super::{API, PROVIDER};
use crate::content::Content;
use crate::entry::{Call, Model, ModelResponse, Usage};
use crate::id::UnixMillis;
use crate::limits::INTEGER_MAX;
use crate::payload::{GenesisWords, ResponseWords, Words};

/// Closed messages that are remembered: a line of one that comes late continues it.
const CLOSED_MAX: usize = 4_096;
/// Largest `usageRaw`, in bytes.
const USAGE_BYTES_MAX: usize = 64 * 1024;
/// Tool results that are looked over to tell a rewind from results of one response.
const RESULTS_BESIDE_MAX: usize = 1_024;

/// The conversation entries of a session, in order.
#[derive(Debug, Default)]
pub(super) struct Turns(Vec<TurnEntry>);

#[derive(Clone, Copy, Debug)]
struct TurnEntry {
    /// Place of its last draft in the session.
    draft: u64,
    line: u64,
    is_result: bool,
}

impl Turns {
    pub(super) fn tip(&self) -> Option<Turn> {
        self.0.len().checked_sub(1).and_then(|tip| Turn::try_from(tip).ok())
    }

    /// Adds a message or response.
    pub(super) fn message(&mut self, line: u64) -> Turn {
        self.add(TurnEntry { draft: 0, line, is_result: false })
    }

    /// Adds a tool's result.
    pub(super) fn result(&mut self, line: u64) -> Turn {
        self.add(TurnEntry { draft: 0, line, is_result: true })
    }

    fn add(&mut self, entry: TurnEntry) -> Turn {
        self.0.push(entry);
        // A source of 2^32 messages would be larger than any that a disk holds.
        Turn::try_from(self.0.len() - 1).unwrap_or(Turn::MAX)
    }

    /// Says where the entry of a turn came to stand.
    pub(super) fn written(&mut self, turn: Turn, draft: u64) {
        if let Some(entry) = self.0.get_mut(turn as usize) {
            entry.draft = draft;
        }
    }

    /// Says that a result turned out to be a message.
    pub(super) fn is_message(&mut self, turn: Turn) {
        if let Some(entry) = self.0.get_mut(turn as usize) {
            entry.is_result = false;
        }
    }

    /// Place of the draft of a turn.
    pub(super) fn draft(&self, turn: Turn) -> u64 {
        self.0.get(turn as usize).map_or(0, |entry| entry.draft)
    }

    fn line(&self, turn: Turn) -> u64 {
        self.0.get(turn as usize).map_or(0, |entry| entry.line)
    }

    /// Whether going on from a turn leaves out part of the conversation. Results alone are no part that can be left out:
    /// parallel calls of one response are answered in lines that name each other or the response, as it happens.
    pub(super) fn beside(&self, turn: Turn) -> bool {
        let after = self.0.get(turn as usize + 1..).unwrap_or_default();
        after.len() > RESULTS_BESIDE_MAX || after.iter().any(|entry| !entry.is_result)
    }

    /// The last of the results that follow a turn directly, else the turn.
    pub(super) fn through_results(&self, turn: Turn) -> Turn {
        let after = self.0.get(turn as usize + 1..).unwrap_or_default();
        let results = after.iter().take(RESULTS_BESIDE_MAX).take_while(|entry| entry.is_result).count();
        turn.saturating_add(Turn::try_from(results).unwrap_or(0))
    }
}

/// What an entry is made from, beside body and words.
pub(super) struct Entry {
    pub(super) record: RecordKey,
    pub(super) ts: Option<UnixMillis>,
    pub(super) lines: Vec<u64>,
    pub(super) blobs: Vec<Blob>,
}

/// A session of the source.
#[derive(Debug)]
pub(super) struct Session {
    key: SessionKey,
    source_id: Arc<str>,
    parent: Option<ChildOf>,
    next: u64,
    ts: UnixMillis,
    pub(super) turns: Turns,
    pub(super) calls: Calls,
    pub(super) group: Option<Group>,
    closed: VecDeque<(Key, Usage)>,
    pub(super) boundary: Option<Boundary>,
    /// What the newest compaction keeps: going on from it is no rewind.
    pub(super) preserved: BTreeSet<Turn>,
    pub(super) titles: Titles,
    /// Whether the segment at hand added an entry.
    pub(super) grew: bool,
}

/// The titles of a session so far.
#[derive(Debug, Default)]
pub(super) struct Titles {
    /// The one that holds.
    pub(super) current: Option<String>,
    /// A title that a person gave; the tool's own ones no longer count.
    pub(super) by_person: bool,
    /// Lines of titles that came before anything else.
    pub(super) lines: Vec<u64>,
    /// The source record of the first words, for the genesis.
    pub(super) first: Option<Meta>,
}

impl Session {
    pub(super) fn new(key: SessionKey, source_id: Arc<str>, parent: Option<ChildOf>) -> Self {
        Session {
            key,
            source_id,
            parent,
            next: 0,
            ts: UnixMillis::default(),
            turns: Turns::default(),
            calls: Calls::default(),
            group: None,
            closed: VecDeque::new(),
            boundary: None,
            preserved: BTreeSet::new(),
            titles: Titles::default(),
            grew: false,
        }
    }

    /// Names it anew.
    pub(super) fn name(&mut self, source_id: Arc<str>) {
        self.source_id = source_id;
    }

    pub(super) fn key(&self) -> SessionKey {
        self.key
    }

    /// Whether its genesis was written.
    pub(super) fn has_begun(&self) -> bool {
        self.next > 0
    }

    /// Place of the newest draft.
    pub(super) fn newest(&self) -> Option<u64> {
        self.next.checked_sub(1)
    }

    /// Writes a draft, after the genesis if there is none yet. Gives its place.
    pub(super) fn emit(&mut self, body: DraftBody, words: Words, entry: Entry, desk: &mut Desk) -> u64 {
        if self.next == 0 {
            self.genesis(entry.ts, desk);
        }
        self.write(body, words, entry, desk)
    }

    /// Writes the genesis if titles wait for it and nothing else has come.
    pub(super) fn begin_if_titled(&mut self, desk: &mut Desk) {
        if !self.has_begun() && !self.titles.lines.is_empty() {
            self.genesis(None, desk);
        }
    }

    fn genesis(&mut self, ts: Option<UnixMillis>, desk: &mut Desk) {
        let source = self.titles.first.as_ref().map(|meta| {
            let mut source = meta.source(&[], None);
            // The genesis stands for the whole source.
            source.id = super::super::clean::id(&self.source_id);
            source
        });
        let words = GenesisWords {
            title: self.titles.current.clone(),
            source,
            environment: Some(desk.environment.clone())
                .filter(|environment| *environment != Default::default()),
        };
        let lines = std::mem::take(&mut self.titles.lines);
        let entry = Entry { record: RecordKey::Line(0), ts, lines, blobs: Vec::new() };
        self.write(DraftBody::Genesis { parent: self.parent }, Words::Genesis(words), entry, desk);
    }

    fn write(&mut self, body: DraftBody, words: Words, entry: Entry, desk: &mut Desk) -> u64 {
        self.ts = entry.ts.map_or(self.ts, |ts| ts.max(self.ts));
        let index = self.next;
        self.next += 1;
        self.grew = true;
        desk.out.push(Draft {
            id: DraftId { session: self.key, index },
            record: entry.record,
            source_session: Arc::clone(&self.source_id),
            ts: self.ts,
            lines: entry.lines,
            body,
            words,
            blobs: entry.blobs,
        });
        index
    }

    /// Decides from where a message goes on; writes a rewind note when that is not the newest one.
    pub(super) fn go_on(&mut self, came: Came, meta: &Meta, desk: &mut Desk) {
        let Some(tip) = self.turns.tip() else { return };
        let from = self.turns.line(tip);
        let what = match came {
            Came::Turn(turn) if !self.turns.beside(turn) || self.preserved.contains(&turn) => return,
            Came::SideBranch(turn) if turn.is_none_or(|turn| !self.turns.beside(turn)) => return,
            Came::Turn(turn) => return self.rewind(turn, meta, desk),
            Came::SideBranch(_) => format!("parent is a side branch without words, relinked to line {from}"),
            Came::Nowhere => format!("no parent named, goes on from line {from}"),
            Came::Unknown => format!("parent missing, relinked to line {from}"),
        };
        desk.report.repair(meta.line, what);
    }

    fn rewind(&mut self, turn: Turn, meta: &Meta, desk: &mut Desk) {
        let to = DraftId { session: self.key, index: self.turns.draft(turn) };
        let reason = format!("the source goes on from line {}", self.turns.line(turn));
        let entry = Entry {
            record: meta.record.derived("rewind"),
            ts: meta.ts,
            lines: vec![meta.line],
            blobs: Vec::new(),
        };
        self.emit(DraftBody::Rewind { to }, Words::Rewind(Some(reason)), entry, desk);
    }

    /// Takes a line of a model's message: joins it to the open group, or opens one. Gives what it is to others, and
    /// whether it began an entry.
    pub(super) fn assistant(
        &mut self,
        message: &Message<'_>,
        parts: Vec<Part>,
        meta: &Meta,
        (came, bytes): (Came, usize),
        desk: &mut Desk,
    ) -> (Link, bool) {
        let open = self.group.as_ref().is_some_and(|group| group.key == message.key && group.has_room(bytes));
        if !open {
            self.close(desk);
            self.close_boundary(desk);
            self.begin(meta);
            let counted =
                self.closed.iter().rev().find(|(key, _)| *key == message.key).map(|(_, usage)| *usage);
            if counted.is_some() {
                desk.report.repair(
                    meta.line,
                    "late line of a message that was closed: a further response of its group",
                );
            } else {
                self.go_on(came, meta, desk);
            }
            let turn = self.turns.message(meta.line);
            self.group = Some(Group::open(message, meta.clone(), turn, counted.unwrap_or_default()));
        }
        let Some(group) = &mut self.group else { return (Link::Message(0), false) };
        group.join(meta.line, message, parts, bytes);
        (Link::Message(group.turn), !open)
    }

    /// Remembers the first record of the session.
    pub(super) fn begin(&mut self, meta: &Meta) {
        if self.titles.first.is_none() {
            self.titles.first = Some(meta.clone());
        }
    }

    /// Writes the open message and what waits for it.
    pub(super) fn close(&mut self, desk: &mut Desk) {
        let Some(mut group) = self.group.take() else { return };
        let held = std::mem::take(&mut group.held);
        self.respond(group, desk);
        for held in held {
            match held {
                Held::Results(line) => self.results(line, desk),
                Held::Title(title, meta) => self.title_note(title, &meta, desk),
            }
        }
    }

    fn respond(&mut self, group: Group, desk: &mut Desk) {
        desk.report.reachable += group.lines.len() as u64;
        let usage = bounded(group.usage.unwrap_or(group.counted));
        if self.closed.len() >= CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back((group.key, usage));
        let mut usage_raw = group.usage_raw.filter(|raw| raw.len() <= USAGE_BYTES_MAX);
        let mut parts = fit::split_response(group.content).into_iter().enumerate().peekable();
        let mut asked = group.asked.iter();
        while let Some((nth, content)) = parts.next() {
            let is_last = parts.peek().is_none();
            let calls = calls_of(&content);
            let count = calls.len();
            let body = ModelResponse {
                model: Model {
                    provider: PROVIDER.to_owned(),
                    id: group.model.clone(),
                    api: Some(API.to_owned()),
                },
                calls,
                // Counted once per message, with its last part.
                usage: if is_last { blocks::usage_beyond(usage, group.counted) } else { Usage::default() },
                stop_reason: group.stop_reason.clone().filter(|_| is_last),
                status: None,
                config: None,
                duration_ms: 0,
            };
            let words = ResponseWords {
                content,
                error: None,
                usage_raw: if is_last { usage_raw.take() } else { None },
                source: Some(group.meta.source(&group.lines, group.id.as_deref())),
            };
            let own = fit::blobs_of(&words.content, &group.blobs);
            let entry = Entry {
                record: group.meta.record.nth(nth),
                ts: group.meta.ts,
                lines: group.lines.clone(),
                blobs: own,
            };
            let index = self.emit(DraftBody::ModelResponse(body), Words::ModelResponse(words), entry, desk);
            self.turns.written(group.turn, index);
            for asked in asked.by_ref().take(count) {
                self.calls.ask(index, asked);
            }
        }
    }
}

/// Counts within what an entry can hold.
fn bounded(usage: Usage) -> Usage {
    let bound = |count: u64| count.min(INTEGER_MAX);
    Usage {
        input: bound(usage.input),
        output: bound(usage.output),
        cache_read: bound(usage.cache_read),
        cache_write: bound(usage.cache_write),
        cache_write_1h: bound(usage.cache_write_1h),
        reasoning: bound(usage.reasoning),
    }
}

fn calls_of(content: &[Content]) -> Vec<Call> {
    content
        .iter()
        .filter_map(|part| match part {
            Content::ToolCall(call) => Some(Call { call_id: call.call_id.clone(), name: call.name.clone() }),
            Content::Text(_)
            | Content::Reasoning(_)
            | Content::Media(_)
            | Content::Refusal(_)
            | Content::Opaque(_)
            | Content::Unknown(_) => None,
        })
        .collect()
}
