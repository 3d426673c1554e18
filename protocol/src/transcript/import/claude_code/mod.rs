//! Claude Code session files (`~/.claude/projects/…/<session>.jsonl`). `docs/PROTOCOL.md` §Payloads.
//!
//! The format is internal to its tool and changes, so nothing is taken for granted: a line that this importer does not
//! know stays in the segment and is counted, never refused. What it decides:
//!
//! | source | entry |
//! | --- | --- |
//! | assistant lines of one message id | one response; last usage, last stop reason; more than one when it would not fit, or when a line comes after it was closed |
//! | `tool_result` block | tool call of the response that asked; `toolUseResult` is its `output`, as it came |
//! | a result whose call is nowhere | message of origin `hook` with a block `ToolResult`, and a repair in the report |
//! | a person's line | message of origin `import` |
//! | meta lines | message of origin `hook` |
//! | compact boundary and its summary | note `compaction` |
//! | summary, ai-title, custom-title | title of the genesis, later a note `title` |
//! | API error written as an assistant line | note `error` |
//! | a line that goes on from an older message | note `rewind`, then its entry |
//! | lines of a sub-agent | a session of their own |
//! | all else | stays raw |
//!
//! A missing parent, a dead side branch and a root in the middle are linked to the newest message and reported. A record
//! that stands twice is left out; one that only shares its uuid with another is kept.
//!
//! Memory: about 64 bytes for each record, 100 for each tool call, the open message (8 MiB at most) and the line at hand.

mod agents;
mod blocks;
mod calls;
mod group;
mod notes;
mod people;
mod record;
mod results;
mod seen;
mod session;

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::clean;
use super::draft::{Draft, SessionKey};
use super::json;
use super::report::{Loss, Report, Span};
use crate::block::sha256;
use crate::code::Code;
use crate::content::Content;
use crate::entry::Parent as ParentEntry;
use crate::payload::Environment;
use blocks::Part;
use group::Message;
use notes::Titled;
use record::{Parent, Place, Record};
use seen::{Came, Link, Mark, Seen};
use session::Session;

/// The name of the format, in sources, import notes and salts.
pub const FORMAT: &str = "claude-code";
/// Longest line that is read, in bytes. A longer one is reported and stays in the segment.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest text of the environment, in bytes.
const ENVIRONMENT_BYTES_MAX: usize = 4_096;
/// Tools that a genesis lists.
const TOOLS_MAX: usize = 256;

const PROVIDER: &str = "anthropic";
const API: &str = "messages";
/// What the tool names the model of a line that it wrote itself.
const SYNTHETIC: &str = "<synthetic>";

/// What an importer is told beside the lines.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The file's name without its ending. It names the session when it is a UUID, and when no line does.
    pub file_stem: Option<String>,
    /// Whose transcript it is.
    pub role: SourceRole,
}

/// Whose transcript a source is.
#[derive(Clone, Debug, Default)]
pub enum SourceRole {
    /// A session. Lines of sub-agents in it become sessions of their own.
    #[default]
    Session,
    /// A sub-agent with a file of its own (`subagents/agent-<id>.jsonl`): all lines are one session.
    SubAgent {
        /// The source's id of the sub-agent.
        agent: String,
        /// The response that started it, when it is known.
        parent: Option<ParentEntry>,
    },
}

/// What drafts and reports are put on while a line is worked on.
#[derive(Debug, Default)]
struct Desk {
    out: Vec<Draft>,
    report: Report,
    environment: Environment,
    /// Sessions of sub-agents, by the source's id of them.
    agents: BTreeMap<String, u32>,
}

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Carried,
    Joined,
    Raw,
    Duplicate,
}

/// The last line of the segment before, when it had no line end.
#[derive(Clone, Copy, Debug)]
struct Unended {
    hash: [u8; 32],
}

/// Reads a Claude Code transcript line by line. See [`super`] for how to go on with a file that grew.
#[derive(Debug)]
pub struct ClaudeCode {
    options: Options,
    sessions: Vec<Session>,
    seen: Seen,
    desk: Desk,
    /// Number of the next line, counted from 1.
    line: u64,
    /// Offset of the next line.
    offset: u64,
    last: Option<(u64, Unended)>,
    unended: Option<Unended>,
}

impl ClaudeCode {
    /// An importer at the start of a source.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut importer = ClaudeCode {
            options,
            sessions: Vec::new(),
            seen: Seen::default(),
            desk: Desk::default(),
            line: 1,
            offset: 0,
            last: None,
            unended: None,
        };
        importer.begin_segment();
        importer
    }

    /// Takes the next line, with its line end if it has one, and gives the drafts that are complete now. A line longer than
    /// [`LINE_BYTES_MAX`] need not be read whole: see [`ClaudeCode::oversized`].
    pub fn line(&mut self, line: &[u8]) -> Vec<Draft> {
        let body = line.strip_suffix(b"\n").unwrap_or(line);
        if body.len() > LINE_BYTES_MAX {
            return self.oversized(line.len() as u64);
        }
        let hash = if body.len() == line.len() || self.unended.is_some() { sha256(body) } else { [0; 32] };
        if self.unended.take().is_some_and(|unended| unended.hash == hash) {
            self.count(Some(Fate::Duplicate));
        } else {
            let fate = self.read(body);
            self.count(fate);
        }
        self.last = (body.len() == line.len()).then_some((line.len() as u64, Unended { hash }));
        self.advance(line.len() as u64);
        std::mem::take(&mut self.desk.out)
    }

    /// Takes note of a line that is longer than [`LINE_BYTES_MAX`]; `length` counts its line end.
    pub fn oversized(&mut self, length: u64) -> Vec<Draft> {
        self.unended = None;
        self.lose(0, length, (Code::TooBig, "longer than 64 MiB"));
        self.count(None);
        self.last = None;
        self.advance(length);
        std::mem::take(&mut self.desk.out)
    }

    /// Ends a segment: what is open is written, and each session that grew gets its import note. Gives these drafts and how
    /// the segment went. Lines fed afterwards begin the next segment, at [`Report::next_offset`].
    pub fn end_segment(&mut self) -> (Vec<Draft>, Report) {
        for session in &mut self.sessions {
            session.close(&mut self.desk);
            session.close_boundary(&mut self.desk);
            session.begin_if_titled(&mut self.desk);
        }
        let report = &mut self.desk.report;
        report.span.lines = self.line - report.span.first_line;
        report.span.length = self.offset - report.span.offset;
        if let Some((length, unended)) = self.last.take() {
            // The line may be half written: it is read again when the file has grown.
            self.offset -= length;
            self.line -= 1;
            self.unended = Some(unended);
        }
        report.next_offset = self.offset;
        self.import_notes();
        let drafts = std::mem::take(&mut self.desk.out);
        let report = std::mem::take(&mut self.desk.report);
        self.begin_segment();
        self.desk.report.version.clone_from(&report.version);
        self.desk.report.session_id.clone_from(&report.session_id);
        (drafts, report)
    }

    fn begin_segment(&mut self) {
        self.desk.report.span = Span { offset: self.offset, length: 0, first_line: self.line, lines: 0 };
        for session in &mut self.sessions {
            session.grew = false;
        }
    }

    fn import_notes(&mut self) {
        let span = self.desk.report.span;
        let fed = self.desk.report.tally.total() > self.desk.report.tally.duplicate;
        for session in &mut self.sessions {
            let is_main = session.key() == SessionKey::MAIN;
            let has_news = session.grew || (is_main && fed && session.has_begun());
            if !has_news {
                continue;
            }
            // The whole report stands in the source's own session; a sub-agent's names the segment.
            let words = if is_main {
                self.desk.report.words(FORMAT)
            } else {
                Report { span, ..Report::default() }.words(FORMAT)
            };
            session.import_note(words, span.first_line, &mut self.desk);
        }
    }

    fn advance(&mut self, length: u64) {
        self.line += 1;
        self.offset += length;
    }

    fn count(&mut self, fate: Option<Fate>) {
        let tally = &mut self.desk.report.tally;
        match fate {
            Some(Fate::Carried) => tally.carried += 1,
            Some(Fate::Joined) => tally.joined += 1,
            Some(Fate::Raw) => tally.raw += 1,
            Some(Fate::Duplicate) => tally.duplicate += 1,
            None => tally.skipped += 1,
        }
    }

    fn lose(&mut self, start: u64, length: u64, (code, detail): (Code, &'static str)) {
        let (line, offset) = (self.line, self.offset + start);
        self.desk.report.skip(Loss { line, offset, length, code, detail });
    }

    /// Reads a line; none when nothing on it could be read.
    fn read(&mut self, body: &[u8]) -> Option<Fate> {
        let (skipped, body) = match body.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) if self.offset == 0 => (3, rest),
            _ => (0, body),
        };
        let text = String::from_utf8_lossy(body);
        if let Cow::Owned(_) = text {
            self.desk.report.repair(self.line, "bytes that are no UTF-8 replaced by U+FFFD");
        }
        let scan = json::scan(&text);
        if scan.values.is_empty() && scan.lost.is_empty() {
            self.desk.report.keep(self.line, "blank");
            return Some(Fate::Raw);
        }
        for (range, why) in &scan.lost {
            // Replaced bytes move what follows them: then the whole line is told.
            let (start, length) = match text {
                Cow::Borrowed(_) => (skipped + range.start as u64, range.len()),
                Cow::Owned(_) => (skipped, body.len()),
            };
            self.lose(start, length as u64, (Code::Json, why));
        }
        if !scan.lost.is_empty() && !scan.values.is_empty() {
            self.desk.report.repair(self.line, "a whole record was found beside a broken one");
        }
        let mut best = None;
        for (nth, range) in scan.values.into_iter().enumerate() {
            let fate = self.record(&text[range], Place { line: self.line, nth });
            best = better(best, fate);
        }
        self.desk.report.settle(self.line, usize::from(best == Some(Fate::Raw)));
        best
    }

    /// Takes one record.
    fn record(&mut self, raw: &str, place: Place) -> Fate {
        let Some(mut record) = Record::read(raw, place) else {
            let kind = if raw.starts_with('{') { "untyped" } else { "value" };
            self.desk.report.keep(place.line, kind);
            return Fate::Raw;
        };
        if let Some(mark) = record.uuid.and_then(|uuid| self.seen.get(&uuid)) {
            if mark.print == record.print {
                self.desk.report.repair(place.line, "a copy of an earlier record, left out");
                return Fate::Duplicate;
            }
            if mark.named {
                record.name_by_line(place);
                self.desk.report.repair(place.line, "its uuid names an earlier record too, both kept");
            }
        }
        self.look_around(&record);
        self.main();
        match record.kind.as_str() {
            "user" | "assistant" => self.conversation(record, raw.len()),
            "summary" | "ai-title" | "custom-title" => self.title(&record),
            "system" if record.text("subtype").as_deref() == Some("compact_boundary") => {
                let number = self.session_of(&record);
                if let Some(session) = self.sessions.get_mut(number) {
                    session.boundary(&record, &self.seen, &mut self.desk);
                }
                self.hop(&record, number, (Parent::None, true));
                Fate::Carried
            }
            _ => self.keep_raw(&record),
        }
    }

    /// Notes what is said of the session as a whole.
    fn look_around(&mut self, record: &Record<'_>) {
        let report = &mut self.desk.report;
        let bounded = |text: String| clean::cut(&text, ENVIRONMENT_BYTES_MAX).to_owned();
        let filled = |key: &str| record.text(key).filter(|text| !text.is_empty()).map(bounded);
        report.version = report.version.take().or_else(|| filled("version"));
        report.session_id = report.session_id.take().or_else(|| filled("sessionId"));
        let environment = &mut self.desk.environment;
        environment.cwd = environment.cwd.take().or_else(|| filled("cwd"));
        environment.branch = environment.branch.take().or_else(|| filled("gitBranch"));
        if environment.tools.is_empty() && record.text("subtype").as_deref() == Some("init") {
            let tools = json::raw_of(&record.fields, "tools").and_then(json::array).unwrap_or_default();
            let names = tools.into_iter().filter_map(|tool| json::text(tool.get()));
            environment.tools = names.take(TOOLS_MAX).map(|tool| clean::name(&tool, "unnamed")).collect();
        }
    }

    fn keep_raw(&mut self, record: &Record<'_>) -> Fate {
        let number = self.session_of(record);
        self.hop(record, number, (record.parent.clone(), false));
        self.desk.report.keep(record.meta.line, &record.label());
        Fate::Raw
    }

    /// Remembers a record that is no part of the conversation; `parent` is none for one that goes on from the newest.
    fn hop(&mut self, record: &Record<'_>, number: usize, (parent, named): (Parent, bool)) {
        let Some(session) = self.sessions.get(number) else { return };
        let key = session.key().number();
        let turns = &session.turns;
        let link = self.seen.hop(&parent, key, turns.tip(), |turn| turns.beside(turn));
        self.seen.insert(record.uuid, Mark { session: key, link, print: record.print, named });
    }

    fn title(&mut self, record: &Record<'_>) -> Fate {
        let number = self.session_of(record);
        let words = ["summary", "aiTitle", "customTitle", "title"].iter().find_map(|key| record.text(key));
        let titled = match (self.sessions.get_mut(number), words) {
            (Some(session), Some(words)) => session.title(record, &words, &mut self.desk),
            _ => Titled::Stale,
        };
        match titled {
            Titled::Taken => {
                self.hop(record, number, (record.parent.clone(), true));
                Fate::Carried
            }
            Titled::Joined => Fate::Joined,
            Titled::Stale => self.keep_raw(record),
        }
    }

    fn conversation(&mut self, record: Record<'_>, bytes: usize) -> Fate {
        let message = json::object_of(&record.fields, "message")
            .filter(|message| json::text_of(message, "role").as_deref() == Some(record.kind.as_str()));
        let Some((message, content)) =
            message.and_then(|message| message.get("content").map(|raw| raw.get()).map(|raw| (message, raw)))
        else {
            return self.malformed(&record);
        };
        let message = Message::read(message, &record);
        let Some(parts) = blocks::parts(content, &message.model) else { return self.malformed(&record) };
        self.remark(&record, &parts);
        let number = match self.session_for(&record, &parts) {
            Some(number) => number,
            None => {
                self.desk.report.repair(record.meta.line, "too many sub-agents: kept raw");
                return self.keep_raw(&record);
            }
        };
        let is_error = message.model == SYNTHETIC
            && (record.is("isApiErrorMessage") || record.text("error").is_some() || says_api_error(&parts));
        if is_error || record.is("isCompactSummary") {
            return self.beside(&record, number, &parts, is_error);
        }
        self.desk.report.messages += 1;
        let key = self.sessions.get(number).map_or(0, |session| session.key().number());
        let came = self.seen.came(&record.parent, key);
        let (link, begins) = match self.sessions.get_mut(number) {
            Some(session) => turn(session, &record, &message, parts, (came, bytes), &mut self.desk),
            None => return self.malformed(&record),
        };
        self.seen.insert(record.uuid, Mark { session: key, link, print: record.print, named: true });
        if begins { Fate::Carried } else { Fate::Joined }
    }

    /// Takes an error or the summary of a compaction: a note, and no part of the conversation.
    fn beside(&mut self, record: &Record<'_>, number: usize, parts: &[Part], is_error: bool) -> Fate {
        let joined = match self.sessions.get_mut(number) {
            Some(session) if is_error => {
                session.error(record, parts, &mut self.desk);
                false
            }
            Some(session) => session.summary(record, parts, &mut self.desk),
            None => false,
        };
        let parent = if is_error { record.parent.clone() } else { Parent::None };
        self.hop(record, number, (parent, true));
        if joined { Fate::Joined } else { Fate::Carried }
    }

    fn malformed(&mut self, record: &Record<'_>) -> Fate {
        let number = self.session_of(record);
        self.hop(record, number, (record.parent.clone(), false));
        self.desk.report.repair(record.meta.line, "a message that is not well formed, kept raw");
        self.desk.report.keep(record.meta.line, &format!("{}/malformed", record.kind));
        Fate::Raw
    }

    /// Reports what a reader of the entry should know.
    fn remark(&mut self, record: &Record<'_>, parts: &[Part]) {
        let unsigned = |part: &&Part| matches!(part, Part::Plain(Content::Reasoning(r)) if r.signature.is_none() && r.redacted.is_none());
        if parts.iter().any(|part| unsigned(&part)) {
            self.desk
                .report
                .repair(record.meta.line, "reasoning without a signature: no model takes it back");
        }
        let broken = |content: &Content| matches!(content, Content::Opaque(opaque) if matches!(opaque.kind.as_str(), "image" | "document"));
        let is_broken = |part: &Part| match part {
            Part::Plain(content) => broken(content),
            Part::Result(result) => result.content.iter().any(broken),
            Part::Stored(_) | Part::Call(_) => false,
        };
        if parts.iter().any(is_broken) {
            self.desk
                .report
                .repair(record.meta.line, "an image or document without inline bytes, kept as it came");
        }
    }
}

/// Gives a part of the conversation to its session. What it is to others, and whether it begins an entry.
fn turn(
    session: &mut Session,
    record: &Record<'_>,
    message: &Message<'_>,
    parts: Vec<Part>,
    (came, bytes): (Came, usize),
    desk: &mut Desk,
) -> (Link, bool) {
    if record.kind == "assistant" {
        session.assistant(message, parts, &record.meta, (came, bytes), desk)
    } else {
        (session.user(record, parts, (came, bytes), desk), true)
    }
}

/// Of the records of one line, the fate that says most.
fn better(held: Option<Fate>, fate: Fate) -> Option<Fate> {
    let rank = |fate: Fate| match fate {
        Fate::Carried => 3,
        Fate::Joined => 2,
        Fate::Raw => 1,
        Fate::Duplicate => 0,
    };
    held.filter(|held| rank(*held) >= rank(fate)).or(Some(fate))
}

fn says_api_error(parts: &[Part]) -> bool {
    parts.iter().any(|part| {
        matches!(part, Part::Plain(content) if content.words().is_some_and(|words| words.starts_with("API Error")))
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
