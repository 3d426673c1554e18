//! Importing a transcript: the pure importer makes drafts, this signs and stores them.
//!
//! The source's bytes are kept as a file, one segment a run, so every byte is somewhere. A run is remembered by an
//! idempotency row that is written with its last entries: a second run over the same bytes finds it and changes nothing, one
//! over a file that grew repeats the earlier segments without writing and goes on after them. Entries are a pure function
//! of the source and the node's key, so a run that was cut off is simply run again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::{Value, json};
use throughline_protocol::block::sha256;
use throughline_protocol::build;
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Authority, Body, Class, Entry};
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{AgentIri, Cid, EntryCid, ScopePath, Seq, SessionId};
use throughline_protocol::limits;
use throughline_protocol::payload::{ImportSalts, Salt};
use throughline_protocol::transcript::import::{
    CLAUDE_CODE, ClaudeCode, Draft, DraftId, LINE_BYTES_MAX, Options, Report, SessionKey, Signing,
};
use throughline_protocol::unixfs::{FileBuilder, Layout};
use throughline_protocol::verify::{Prechecked, Pushed, Verifier};
use throughline_store::{AdoptOptions, GuardUse, Idempotency, Scope, Used};

use super::append::Held;
use super::base::{next_place, standing};
use super::controls::{controls_of, grant_of};
use super::evaluate::Arrived;
use super::seal_up::links_of;
use super::{Node, now, shape, summary};
use crate::api::error::{Answer, Problem};

/// Sources of one session id that are told apart.
const VARIANTS_MAX: usize = 64;
/// Entries of one adoption.
const BATCH: usize = 500;

/// What to import.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// Where the source came from, for the answer.
    pub path: String,
    /// The agent; none is `hm://<owner>/claude-code`.
    pub agent: Option<AgentIri>,
    /// Internal or confidential.
    pub class: Class,
    /// Do everything but store.
    pub dry_run: bool,
}

/// A segment that was imported before.
struct Past {
    offset: u64,
    length: u64,
    cid: Cid,
    /// The source's own session, then those of its sub-agents.
    sessions: Vec<SessionId>,
}

impl Node {
    /// Imports a Claude Code transcript that lies in `spool`.
    ///
    /// # Errors
    /// `E_INPUT_FORMAT` when nothing in it is a transcript, or when the part that was imported before has changed; `E_CAP_MISSING` without a
    /// writer grant; store errors.
    pub fn import(&self, spool: &Path, request: &ImportRequest) -> Answer<Value> {
        let owner = self.need_owner()?;
        let agent = match &request.agent {
            Some(agent) => agent.clone(),
            None => AgentIri::new(owner, Some(ScopePath::parse("/claude-code")?)),
        };
        let stem = Path::new(&request.path).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let (source, past) = self.known_source(spool, &source_id(spool, stem.clone())?)?;
        let mut run = Run::begin(self, request, agent, owner, stem)?;
        let offset = run.repeat(spool, &past)?;
        run.new_segment(spool, offset, past.len(), &source)
    }

    /// The record of this very source. Files that carry one session id and begin differently are different sources: a copy
    /// that was edited never mixes with what was imported before.
    fn known_source(&self, spool: &Path, id: &str) -> Answer<(String, Vec<Past>)> {
        for variant in 0..VARIANTS_MAX {
            let source = if variant == 0 { id.to_owned() } else { format!("{id}#{variant}") };
            let past = self.past(&source)?;
            let mut same = true;
            for segment in &past {
                same &= file_cid(spool, segment.offset, segment.length)? == (segment.cid, segment.length);
            }
            if same {
                return Ok((source, past));
            }
        }
        Err(Problem::new(Code::InputFormat, format!("{VARIANTS_MAX} files with the session id of this one differ from it")))
    }

    /// The segments of a source that were imported, in order.
    fn past(&self, source: &str) -> Answer<Vec<Past>> {
        let reader = self.reader()?;
        let mut past: Vec<Past> = Vec::new();
        loop {
            let key = segment_key(source, past.len());
            let Used::Same(result) = reader.idempotency(&Scope::Node, &key, &sha256(key.as_bytes()))? else {
                return Ok(past);
            };
            let row: Value = serde_json::from_slice(&result).unwrap_or_default();
            let number = |name: &str| row[name].as_u64();
            let sessions = row["sessions"].as_array().into_iter().flatten();
            let damaged = || Problem::new(Code::StoreCorrupt, "the record of an earlier import is not readable");
            past.push(Past {
                offset: number("offset").ok_or_else(damaged)?,
                length: number("length").ok_or_else(damaged)?,
                cid: row["cid"].as_str().ok_or_else(damaged)?.parse()?,
                sessions: sessions
                    .map(|session| Ok(session.as_str().ok_or_else(damaged)?.parse()?))
                    .collect::<Answer<_>>()?,
            });
        }
    }
}

/// The idempotency key of a source's n-th segment.
fn segment_key(source: &str, number: usize) -> String {
    format!("import:{CLAUDE_CODE}:{source}:{number}")
}

/// The source's own id of the session: what the importer puts on its first draft.
fn source_id(spool: &Path, stem: Option<String>) -> Answer<String> {
    let mut importer = ClaudeCode::new(Options { file_stem: stem, ..Options::default() });
    let mut first = None;
    for_each_line(spool, 0, u64::MAX, |line| {
        first = feed(&mut importer, line).into_iter().next();
        Ok(first.is_none())
    })?;
    let first = match first {
        Some(first) => Some(first),
        None => importer.end_segment().0.into_iter().next(),
    };
    first.map(|draft| draft.source_session.to_string()).ok_or_else(|| {
        Problem::new(Code::InputFormat, "expected a Claude Code transcript, found no message in it")
            .hint("throughline import FILE --format claude-code")
    })
}

/// A line as the importer takes it: its bytes, or only its length.
enum Line<'a> {
    Whole(&'a [u8]),
    TooLong(u64),
}

fn feed(importer: &mut ClaudeCode, line: Line<'_>) -> Vec<Draft> {
    match line {
        Line::Whole(bytes) => importer.line(bytes),
        Line::TooLong(length) => importer.oversized(length),
    }
}

/// Reads the lines that begin in `offset..end`; `take` says whether to go on. Holds one line in memory.
fn for_each_line(
    spool: &Path,
    offset: u64,
    end: u64,
    mut take: impl FnMut(Line<'_>) -> Answer<bool>,
) -> Answer<()> {
    let io = |error: std::io::Error| Problem::new(Code::StoreIo, format!("reading the source: {error}"));
    let mut file = BufReader::with_capacity(1 << 16, File::open(spool).map_err(io)?);
    file.seek(SeekFrom::Start(offset)).map_err(io)?;
    let mut at = offset;
    let mut line = Vec::new();
    while at < end {
        line.clear();
        let limit = (end - at).min(LINE_BYTES_MAX as u64 + 2);
        let read = file.by_ref().take(limit).read_until(b'\n', &mut line).map_err(io)? as u64;
        if read == 0 {
            return Ok(());
        }
        let is_whole = line.ends_with(b"\n") || at + read >= end || line.len() <= LINE_BYTES_MAX;
        let length = if is_whole { read } else { read + skip_line(&mut file).map_err(io)? };
        let go_on = take(if is_whole { Line::Whole(&line) } else { Line::TooLong(length) })?;
        at += length;
        if !go_on {
            return Ok(());
        }
    }
    Ok(())
}

/// Skips to the end of the line; returns how many bytes that were.
fn skip_line(file: &mut BufReader<File>) -> std::io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = file.fill_buf()?;
        let found = buffer.iter().position(|byte| *byte == b'\n');
        let step = found.map_or(buffer.len(), |at| at + 1);
        if step == 0 {
            return Ok(skipped);
        }
        file.consume(step);
        skipped += step as u64;
        if found.is_some() {
            return Ok(skipped);
        }
    }
}

/// One session that the run writes.
struct Writing {
    verifier: Verifier,
    /// Entries that are held already, which the run only makes again.
    skip: u64,
    session: Option<SessionId>,
    pending: usize,
    written: u64,
}

/// One run over one source.
struct Run<'n> {
    node: &'n Node,
    request: &'n ImportRequest,
    agent: AgentIri,
    controls: Controls,
    authority: Authority,
    salts: ImportSalts,
    importer: ClaudeCode,
    writing: BTreeMap<SessionKey, Writing>,
    entries: BTreeMap<DraftId, EntryCid>,
    /// Salts of drafts that earlier runs wrote, to find their entries.
    earlier: BTreeMap<Salt, Vec<DraftId>>,
    counts: BTreeMap<&'static str, u64>,
    attachments: BTreeMap<Cid, ()>,
}

impl<'n> Run<'n> {
    fn begin(
        node: &'n Node,
        request: &'n ImportRequest,
        agent: AgentIri,
        owner: throughline_protocol::id::Principal,
        stem: Option<String>,
    ) -> Answer<Self> {
        let reader = node.reader()?;
        let controls = controls_of(&reader, owner, None)?;
        let probe = SessionId::of_genesis(EntryCid::from_digest([0; 32]));
        let granted = grant_of(&controls, owner, node.principal(), Role::Writer, Some((probe, &agent)));
        let authority = granted.authority(owner, node.principal(), &agent)?;
        Ok(Run {
            node,
            request,
            controls,
            authority,
            agent,
            salts: ImportSalts::new(&node.key().seed()),
            importer: ClaudeCode::new(Options { file_stem: stem, ..Options::default() }),
            writing: BTreeMap::new(),
            entries: BTreeMap::new(),
            earlier: BTreeMap::new(),
            counts: BTreeMap::new(),
            attachments: BTreeMap::new(),
        })
    }

    /// Feeds the earlier segments again; what comes out is only remembered. Gives where the next segment begins.
    fn repeat(&mut self, spool: &Path, past: &[Past]) -> Answer<u64> {
        let mut next_offset = 0;
        let mut keys = BTreeMap::new();
        for segment in past {
            let mut drafts = Vec::new();
            for_each_line(spool, segment.offset, segment.offset + segment.length, |line| {
                drafts.extend(feed(&mut self.importer, line));
                Ok(true)
            })?;
            let (last, report) = self.importer.end_segment();
            drafts.extend(last);
            next_offset = report.next_offset;
            for draft in &drafts {
                keys.insert(draft.id.session, ());
                self.earlier.entry(draft.salt(&self.salts)).or_default().push(draft.id);
            }
        }
        if let Some(last) = past.last() {
            for (key, session) in keys.into_keys().zip(last.sessions.iter().copied()) {
                self.find_earlier(key, session)?;
            }
        }
        Ok(next_offset)
    }

    /// Finds the entries that earlier drafts became, by the salts of their payloads, and goes on after them.
    fn find_earlier(&mut self, key: SessionKey, session: SessionId) -> Answer<()> {
        use throughline_protocol::block::Decoded;
        use throughline_store::PayloadState;
        let reader = self.node.reader()?;
        let standing = standing(&reader, session)?;
        self.node.may_sign(&reader, &standing)?;
        for stored in reader.entries(session, Seq::ZERO, standing.row.tip.seq)? {
            let stored = stored?;
            let Some(cid) = stored.payload else { continue };
            let PayloadState::Present(bytes) = reader.payload(cid)? else { continue };
            let signed = Decoded::<Entry>::decode(stored.bytes)?.assume_signed();
            let payload = throughline_protocol::payload::Payload::check(signed.value(), bytes)?;
            for id in self.earlier.get(payload.salt()).into_iter().flatten() {
                self.entries.entry(*id).or_insert(stored.cid);
            }
        }
        let controls = controls_of(&reader, standing.row.owner, Some(session))?;
        let verifier = Verifier::resume(standing.state, controls);
        let writing = Writing { verifier, skip: 0, session: Some(session), pending: 0, written: 0 };
        self.writing.insert(key, writing);
        Ok(())
    }

    /// Imports what lies after the earlier segments.
    fn new_segment(mut self, spool: &Path, offset: u64, number: usize, source: &str) -> Answer<Value> {
        let end = std::fs::metadata(spool).map_or(0, |meta| meta.len());
        let (file, length) = self.store_segment(spool, offset, end)?;
        for_each_line(spool, offset, end, |line| {
            for draft in feed(&mut self.importer, line) {
                self.write(&draft, file)?;
            }
            Ok(true)
        })?;
        let (last, report) = self.importer.end_segment();
        for draft in last {
            self.write(&draft, file)?;
        }
        let record = json!({"offset": offset, "length": length, "cid": file.to_string()});
        self.finish(source, number, record, &report, file)
    }

    fn store_segment(&self, spool: &Path, offset: u64, end: u64) -> Answer<(Cid, u64)> {
        if self.request.dry_run || offset >= end {
            return file_cid(spool, offset, end.saturating_sub(offset));
        }
        let mut incoming = self.node.begin_file();
        let length = for_each_chunk(spool, offset, end - offset, |chunk| incoming.push(chunk))?;
        Ok((incoming.finish()?.cid, length))
    }

    /// Signs one draft on its session's chain.
    fn write(&mut self, draft: &Draft, file: Cid) -> Answer<()> {
        let entries = &self.entries;
        let assembled = draft.assemble(&Signing {
            agent: &self.agent,
            salts: &self.salts,
            file,
            entry: &|id| entries.get(&id).copied(),
            agent_session: &|_| None,
        })?;
        let mut body = assembled.body;
        if let Body::Genesis(genesis) = &mut body {
            genesis.class = self.request.class;
        }
        for blob in &draft.blobs {
            if self.attachments.insert(blob.cid, ()).is_none() && !self.request.dry_run {
                self.node.put_file(&blob.bytes)?;
            }
        }
        let key = draft.id.session;
        let controls = self.controls.clone();
        let writing = self.writing.entry(key).or_insert_with(|| Writing {
            verifier: Verifier::begin(controls),
            skip: 0,
            session: None,
            pending: 0,
            written: 0,
        });
        let (bytes, named) = assembled.payload.build(&body, assembled.salt)?;
        let state = writing.verifier.state();
        let not_before = state.map(|state| state.position().ts).unwrap_or_default();
        let entry = Entry {
            ts: assembled.ts.max(not_before),
            signer: self.node.principal(),
            authority: Some(self.authority),
            place: state.map(next_place),
            body,
            payload: Some(named),
            ext: None,
        };
        let signed = build::sign(entry, self.node.key())?;
        let cid = signed.cid();
        *self.counts.entry(kind_word(&signed.value().body)).or_default() += 1;
        if !matches!(writing.verifier.link(Prechecked::of(signed, Some(bytes.into()))?)?, Pushed::Linked(..)) {
            return Err(Problem::new(Code::Internal, "an imported entry did not link to the one before it"));
        }
        if writing.session.is_none() {
            let session = SessionId::of_genesis(cid);
            writing.session = Some(session);
            writing.skip = self.node.reader()?.session(session)?.map_or(0, |row| row.tip.seq.get() + 1);
        }
        writing.pending += 1;
        self.entries.insert(draft.id, cid);
        if writing.pending >= BATCH {
            self.flush(key, None)?;
        }
        Ok(())
    }

    /// Adopts what was signed for a session since the last time.
    fn flush(&mut self, key: SessionKey, idempotency: Option<Idempotency>) -> Answer<()> {
        let Some(writing) = self.writing.get_mut(&key) else { return Ok(()) };
        let Some(session) = writing.session else { return Ok(()) };
        let reader = self.node.reader()?;
        for link in writing.verifier.unsettled().to_vec() {
            let held = Held { reader: &reader, session };
            use throughline_protocol::verify::Ancestry as _;
            writing.verifier.settle(link.target, |link| held.holds(link.target, link.from))?;
        }
        writing.pending = 0;
        let Some(segment) = writing.verifier.take_segment()? else { return Ok(()) };
        if self.request.dry_run {
            writing.written += segment.entries().len() as u64;
            return Ok(());
        }
        let row = reader.session(session)?;
        let last = segment.after().tip().seq.get();
        if last < writing.skip && idempotency.is_none() {
            return Ok(());
        }
        if writing.skip > 0 {
            // A run was cut off here: the same entries again, and those after them.
            writing.skip = 0;
            let entries = segment
                .into_parts()
                .1
                .into_iter()
                .map(|entry| {
                    let (signed, payload) = entry.into_parts();
                    Prechecked::of(signed, payload)
                })
                .collect::<Result<_, _>>()?;
            let evaluated = self.node.take_in(session, Arrived { entries, ..Arrived::default() })?;
            writing.written += evaluated.adopted;
            return Ok(());
        }
        writing.written += segment.entries().len() as u64;
        let options = AdoptOptions {
            guard: GuardUse::Signed(self.node.principal()),
            idempotency,
            links: links_of(segment.entries())?,
            summary: summary::after_extension(row.as_ref(), &segment)?,
            pin: if row.is_none() { self.node.own_pin() } else { None },
            ..AdoptOptions::at(now())
        };
        self.node.store().adopt(segment, options)?;
        Ok(())
    }

    fn finish(
        mut self,
        source: &str,
        number: usize,
        mut record: Value,
        report: &Report,
        file: Cid,
    ) -> Answer<Value> {
        let keys: Vec<SessionKey> = self.writing.keys().copied().filter(|key| *key != SessionKey::MAIN).collect();
        for key in keys {
            self.flush(key, None)?;
        }
        let session = self.writing.get(&SessionKey::MAIN).and_then(|writing| writing.session);
        let session = session.ok_or_else(|| {
            Problem::new(Code::InputFormat, "expected a Claude Code transcript, found no message in it")
        })?;
        let sessions = self.writing.values().filter_map(|writing| writing.session);
        record["sessions"] = sessions.map(|session| session.to_string()).collect::<Vec<_>>().into();
        let key = segment_key(source, number);
        let idempotency = Idempotency {
            scope: Scope::Node,
            request: sha256(key.as_bytes()),
            key,
            result: record.to_string().into_bytes(),
            expires: None,
        };
        self.flush(SessionKey::MAIN, Some(idempotency))?;
        let written: u64 = self.writing.values().map(|writing| writing.written).sum();
        let anchored = written > 0 && !self.request.dry_run && self.anchor_all()?;
        self.answer(session, number == 0 && written > 0, written, anchored, report, file)
    }

    /// Anchors every session that grew with this node's device grant, where it has one.
    fn anchor_all(&self) -> Answer<bool> {
        let mut all = true;
        for writing in self.writing.values().filter(|writing| writing.written > 0) {
            let Some(session) = writing.session else { continue };
            match self.node.device_anchor(session)? {
                Some(anchor) => {
                    self.node.take_controls(vec![anchor])?;
                }
                None => all = false,
            }
            self.node.after_commit(session);
        }
        Ok(all)
    }

    fn answer(
        &self,
        session: SessionId,
        created: bool,
        written: u64,
        anchored: bool,
        report: &Report,
        file: Cid,
    ) -> Answer<Value> {
        let main = self.writing.get(&SessionKey::MAIN).and_then(|writing| writing.verifier.state());
        let head = main.map(|state| shape::mark(&state.tip()));
        let sub_sessions: Vec<String> = self
            .writing
            .iter()
            .filter(|(key, _)| **key != SessionKey::MAIN)
            .filter_map(|(_, writing)| writing.session.map(|session| session.to_string()))
            .collect();
        let counts: serde_json::Map<String, Value> = self
            .counts
            .iter()
            .filter(|_| written > 0)
            .map(|(kind, count)| ((*kind).to_owned(), (*count).into()))
            .collect();
        let stored = !self.request.dry_run;
        let anchor = if stored && written > 0 { Some(self.node.anchor_facts(session)?) } else { None };
        let was_anchored = stored
            && written == 0
            && self.node.reader()?.session(session)?.is_some_and(|row| row.summary.anchored_through.is_some());
        Ok(json!({
            "v": 1, "kind": "import",
            "sources": [{
                "path": self.request.path, "format": CLAUDE_CODE, "version": report.version,
                "fileCid": file.to_string(), "lines": report.tally.total(),
                "session": session.to_string(), "head": head, "created": created,
                "entries": counts, "attachments": self.attachments.len(), "subSessions": sub_sessions,
                "tally": {
                    "carried": report.tally.carried, "joined": report.tally.joined, "raw": report.tally.raw,
                    "skipped": report.tally.skipped, "duplicate": report.tally.duplicate,
                },
                "messages": report.messages, "reachable": report.reachable,
                "skipped": report.skipped.iter().map(|loss| json!({
                    "line": loss.line, "offset": loss.offset, "length": loss.length,
                    "reason": loss.code.name(), "detail": loss.detail, "rawCid": file.to_string(),
                })).collect::<Vec<_>>(),
                "repaired": report.repaired.iter().map(|repair| json!({
                    "line": repair.line, "what": repair.what,
                })).collect::<Vec<_>>(),
                "notCarried": report.not_carried.iter().map(|(what, count)| json!({
                    "what": what, "count": count, "kept": "raw",
                })).collect::<Vec<_>>(),
            }],
            "created": created, "anchored": anchored || was_anchored,
            "signedBy": self.node.principal().to_string(), "dryRun": self.request.dry_run,
            "anchor": anchor,
        }))
    }
}

fn kind_word(body: &Body) -> &'static str {
    match body {
        Body::Genesis(_) => "sessionGenesis",
        Body::UserMessage(_) => "userMessage",
        Body::ModelResponse(_) => "modelResponse",
        Body::ToolCall(_) => "toolCall",
        Body::Note(_) => "sessionNote",
        Body::Handoff(_) => "sessionHandoff",
        Body::Seal(_) => "sessionSeal",
    }
}

/// The CID that a part of a file has when it is stored, and its length.
fn file_cid(spool: &Path, offset: u64, length: u64) -> Answer<(Cid, u64)> {
    let mut builder = FileBuilder::new(Layout::THROUGHLINE);
    let read = for_each_chunk(spool, offset, length, |chunk| {
        drop(builder.push(chunk));
        Ok(())
    })?;
    Ok((builder.finish().1.root, read))
}

fn for_each_chunk(
    spool: &Path,
    offset: u64,
    length: u64,
    mut take: impl FnMut(&[u8]) -> Answer<()>,
) -> Answer<u64> {
    let io = |error: std::io::Error| Problem::new(Code::StoreIo, format!("reading the source: {error}"));
    let mut file = File::open(spool).map_err(io)?;
    file.seek(SeekFrom::Start(offset)).map_err(io)?;
    let mut part = file.take(length);
    let mut chunk = vec![0; limits::FILE_CHUNK_BYTES];
    let mut total = 0;
    loop {
        let read = part.read(&mut chunk).map_err(io)?;
        if read == 0 {
            return Ok(total);
        }
        total += read as u64;
        take(&chunk[..read])?;
    }
}
