//! One run of an import: drafts become signed entries, a batch a commit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::block::{Signed, sha256};
use throughline_protocol::build;
use throughline_protocol::clock;
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Authority, Body, Entry, Parent};
use throughline_protocol::fork::{Controls, Holds};
use throughline_protocol::id::{AgentIri, Cid, EntryCid, Seq, SessionId};
use throughline_protocol::payload::{Payload, Salt};
use throughline_protocol::transcript::import::{
    Assembled, CLAUDE_CODE, Child, ClaudeCode, Draft, DraftBody, DraftId, Options, Report, SessionKey,
    Signing, SourceRole,
};
use throughline_protocol::verify::{Ancestry as _, Prechecked, Pushed, Verifier};
use throughline_store::{AdoptOptions, GuardUse, Idempotency, Naming, PayloadState, PutAnswer, Scope};
use zeroize::Zeroizing;

use super::append::Held;
use super::base::{next_place, standing};
use super::controls::{controls_of, grant_of};
use super::import::{ImportRequest, Known, Past, segment_key};
use super::import_agents::{AgentName, Agents, Context};
use super::import_lines::{feed, file_cid, for_each_chunk, for_each_line};
use super::import_lives::{Life, Lives};
use super::scene::from_store;
use super::seal_up::links_of;
use super::{Node, now, shape, summary};
use crate::api::error::{Answer, Problem};

/// Entries of one adoption.
const BATCH: usize = 500;

/// One session that the run writes.
struct Writing {
    verifier: Verifier,
    session: SessionId,
    /// Entries that are on the chain, by the salts of their payloads: drafts with these are written already.
    held: BTreeMap<Salt, EntryCid>,
    /// In a dry run: what would be on the chain.
    made: BTreeSet<EntryCid>,
    pending: usize,
    written: u64,
}

impl Writing {
    fn new(session: SessionId, verifier: Verifier) -> Self {
        let (held, made) = (BTreeMap::new(), BTreeSet::new());
        Writing { verifier, session, held, made, pending: 0, written: 0 }
    }
}

/// A file that is imported.
pub(super) struct Source {
    /// Where it came from, for the answer.
    pub(super) path: String,
    /// The sub-agent whose it is; none is the transcript itself.
    pub(super) agent: Option<AgentName>,
    /// The response that started the sub-agent, as far as known when its session begins.
    pub(super) parent: Option<Parent>,
    pub(super) role: SourceRole,
}

/// What a source became.
pub(super) struct Imported {
    pub(super) session: SessionId,
    pub(super) created: bool,
    pub(super) written: u64,
    pub(super) anchored: bool,
    /// The element of `sources` in the answer.
    pub(super) told: Value,
}

/// One run over one source.
pub(super) struct Run<'n> {
    node: &'n Node,
    request: &'n ImportRequest,
    source: Source,
    agent: AgentIri,
    controls: Controls,
    authority: Authority,
    lives: Lives,
    /// Sessions that the source would have become under the first salts, and may have become in an earlier life of the data directory.
    elsewhere: Vec<SessionId>,
    importer: ClaudeCode,
    writing: BTreeMap<SessionKey, Writing>,
    entries: BTreeMap<DraftId, EntryCid>,
    counts: BTreeMap<&'static str, u64>,
    attachments: BTreeSet<Cid>,
    /// The responses whose calls started sub-agents with files of their own.
    starts: BTreeMap<String, DraftId>,
}

impl<'n> Run<'n> {
    /// Imports a source: repeats what was imported of it before, then takes what is new.
    pub(super) fn import(
        context: &Context<'n>,
        source: Source,
        spool: &Path,
        known: &Known,
        agents: &mut Agents<'_, '_>,
    ) -> Answer<Imported> {
        let options = Options { file_stem: context.stem.clone(), role: source.role.clone() };
        let mut run = Run::begin(context, source, options)?;
        let offset = run.repeat(spool, &known.past, agents)?;
        run.new_segment(spool, offset, &segment_key(&known.id, known.past.len()), agents)
    }

    fn begin(context: &Context<'n>, source: Source, options: Options) -> Answer<Self> {
        let Context { node, request, agent, owner, .. } = context;
        let (node, owner, agent) = (*node, *owner, agent.clone());
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
            lives: Lives::new(Zeroizing::new(*node.key().seed()), reader.guard_life()?.map(Life::new)),
            elsewhere: Vec::new(),
            source,
            importer: ClaudeCode::new(options),
            writing: BTreeMap::new(),
            entries: BTreeMap::new(),
            counts: BTreeMap::new(),
            attachments: BTreeSet::new(),
            starts: BTreeMap::new(),
        })
    }

    /// Feeds the earlier segments again; what comes out is only remembered. Gives where the next segment begins.
    fn repeat(&mut self, spool: &Path, past: &[Past], agents: &Agents<'_, '_>) -> Answer<u64> {
        let Some(newest) = past.last() else { return Ok(0) };
        let mut next_offset = 0;
        for (number, life) in (0..).zip(&newest.lives) {
            if let Some(life) = life {
                self.lives.put(SessionKey::numbered(number), *life);
            }
        }
        let mut earlier: BTreeMap<SessionKey, Vec<(Salt, DraftId)>> = BTreeMap::new();
        for segment in past {
            let mut note = |lives: &Lives, draft: &Draft| {
                let salt = draft.salt(lives.salts(draft.id.session));
                earlier.entry(draft.id.session).or_default().push((salt, draft.id));
                if let Some((name, response)) = started(draft).filter(|(name, _)| agents.knows(name)) {
                    self.starts.insert(name.to_owned(), response);
                }
            };
            for_each_line(spool, segment.offset, segment.offset + segment.length, |line| {
                feed(&mut self.importer, line).iter().for_each(|draft| note(&self.lives, draft));
                Ok(true)
            })?;
            let (last, report) = self.importer.end_segment();
            last.iter().for_each(|draft| note(&self.lives, draft));
            next_offset = report.next_offset;
        }
        for ((key, drafts), session) in earlier.into_iter().zip(newest.sessions.iter().copied()) {
            self.go_on(key, session)?;
            let held = self.writing.get(&key).map(|writing| &writing.held);
            let found = |salt| held.and_then(|held| held.get(salt)).copied();
            self.entries.extend(drafts.iter().filter_map(|(salt, id)| Some((*id, found(salt)?))));
        }
        Ok(next_offset)
    }

    /// Goes on at the tip of a session that is held, and learns what is on its chain.
    fn go_on(&mut self, key: SessionKey, session: SessionId) -> Answer<()> {
        let reader = self.node.reader()?;
        let standing = standing(&reader, session)?;
        let controls = controls_of(&reader, standing.row.owner, None)?;
        let mut writing = Writing::new(session, Verifier::resume(standing.state, controls));
        for stored in reader.entries(session, Seq::ZERO, standing.row.tip.seq)? {
            let stored = stored?;
            let Some(cid) = stored.payload else { continue };
            let PayloadState::Present(bytes) = reader.payload(cid)? else { continue };
            let signed = from_store(stored.bytes)?;
            writing.held.insert(*Payload::check(signed.value(), bytes)?.salt(), stored.cid);
        }
        self.writing.insert(key, writing);
        Ok(())
    }

    /// Imports what lies after the earlier segments. `record` is the key under which the run is remembered.
    fn new_segment(
        mut self,
        spool: &Path,
        offset: u64,
        record: &str,
        agents: &mut Agents<'_, '_>,
    ) -> Answer<Imported> {
        let end = std::fs::metadata(spool).map_or(0, |meta| meta.len());
        let (file, length) = self.store_segment(spool, offset, end)?;
        for_each_line(spool, offset, end, |line| {
            for draft in feed(&mut self.importer, line) {
                self.write(&draft, file, agents)?;
            }
            Ok(true)
        })?;
        let (last, report) = self.importer.end_segment();
        for draft in last {
            self.write(&draft, file, agents)?;
        }
        let main = self.writing.get(&SessionKey::MAIN).map(|writing| writing.session).ok_or_else(|| {
            Problem::new(Code::InputFormat, "expected a Claude Code transcript, found no message in it")
        })?;
        self.flush_all(record, json!({"offset": offset, "length": length, "cid": file.to_string()}))?;
        let written: u64 = self.writing.values().map(|writing| writing.written).sum();
        let anchored = written > 0 && !self.request.dry_run && self.anchor_all()?;
        if self.source.agent.is_none() {
            agents.finish(|name| self.parent_at(*self.starts.get(name.as_str())?))?;
        }
        let created = offset == 0 && written > 0;
        let told = self.told(main, created, file, &report);
        Ok(Imported { session: main, created, written, anchored, told })
    }

    fn store_segment(&self, spool: &Path, offset: u64, end: u64) -> Answer<(Cid, u64)> {
        if self.request.dry_run || offset >= end {
            return file_cid(spool, offset, end.saturating_sub(offset));
        }
        let mut incoming = self.node.begin_file(None);
        let length = for_each_chunk(spool, offset, end - offset, |chunk| incoming.push(chunk))?;
        Ok((incoming.finish()?.cid, length))
    }

    /// Signs one draft on its session's chain, unless it is there.
    fn write(&mut self, draft: &Draft, file: Cid, agents: &mut Agents<'_, '_>) -> Answer<()> {
        let key = draft.id.session;
        let child = match started(draft) {
            Some((name, response)) => agents.session(name, self.parent_at(response))?,
            None => None,
        };
        if self.is_written(draft) {
            return Ok(());
        }
        let (mut signed, mut payload) = self.sign(draft, file, child)?;
        if !self.writing.contains_key(&key) {
            let session = SessionId::of_genesis(signed.cid());
            let is_held = |session| Ok::<_, Problem>(self.node.reader()?.session(session)?.is_some());
            let mut is_known = is_held(session)?;
            if !is_known && self.lives.begins_anew(key) {
                // What was signed under the first salts is dropped here, and never leaves.
                self.elsewhere.push(session);
                (signed, payload) = self.sign(draft, file, child)?;
                is_known = is_held(SessionId::of_genesis(signed.cid()))?;
            }
            let session = SessionId::of_genesis(signed.cid());
            if is_known {
                // An earlier run was cut off after it had begun this session.
                self.go_on(key, session)?;
                self.entries.insert(draft.id, signed.cid());
                return Ok(());
            }
            self.writing.insert(key, Writing::new(session, Verifier::begin(self.controls.clone())));
        }
        let (cid, kind) = (signed.cid(), kind_word(&signed.value().body));
        self.put_blobs(draft)?;
        self.put(key, Prechecked::of(signed, Some(payload))?)?;
        *self.counts.entry(kind).or_default() += 1;
        self.entries.insert(draft.id, cid);
        Ok(())
    }

    /// The entry of a draft after the tip of its session, and its payload.
    fn sign(&self, draft: &Draft, file: Cid, child: Option<EntryCid>) -> Answer<(Signed<Entry>, Arc<[u8]>)> {
        let key = draft.id.session;
        let entries = &self.entries;
        let Assembled { mut body, payload, salt, ts, .. } = draft.assemble(&Signing {
            agent: &self.agent,
            salts: self.lives.salts(key),
            file,
            entry: &|id| entries.get(&id).copied(),
            agent_session: &|_| child,
        })?;
        if let Body::Genesis(genesis) = &mut body {
            genesis.class = self.request.class;
        }
        let (bytes, named) = payload.build(&body, salt)?;
        let state = self.writing.get(&key).and_then(|writing| writing.verifier.state());
        let not_before = state.map(|state| state.position().ts).unwrap_or_default();
        let entry = Entry {
            ts: clock::written(ts, not_before),
            signer: self.node.principal(),
            authority: Some(self.authority),
            place: state.map(next_place),
            body,
            payload: Some(named),
            ext: None,
        };
        Ok((build::sign(entry, self.node.key())?, bytes.into()))
    }

    /// Where a sub-agent was started, once the response is on its chain.
    fn parent_at(&self, response: DraftId) -> Option<Parent> {
        let session = self.writing.get(&response.session)?.session;
        Some(Parent { session: session.genesis(), entry: *self.entries.get(&response)? })
    }

    /// Whether a draft's entry is on the chain: then only the draft's id is noted.
    fn is_written(&mut self, draft: &Draft) -> bool {
        let Some(writing) = self.writing.get(&draft.id.session) else { return false };
        let held = writing.held.get(&draft.salt(self.lives.salts(draft.id.session))).copied();
        if let Some(cid) = held {
            self.entries.insert(draft.id, cid);
        }
        held.is_some()
    }

    fn put_blobs(&mut self, draft: &Draft) -> Answer<()> {
        for blob in &draft.blobs {
            if self.attachments.insert(blob.cid) && !self.request.dry_run {
                self.node.put_file(&blob.bytes, None)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, key: SessionKey, entry: Prechecked) -> Answer<()> {
        let Some(writing) = self.writing.get_mut(&key) else { return Err(Code::Internal.into()) };
        if self.request.dry_run {
            writing.made.insert(entry.signed().cid());
        }
        if !matches!(writing.verifier.link(entry)?, Pushed::Linked(..)) {
            return Err(Problem::new(Code::Internal, "an imported entry did not link to the one before it"));
        }
        writing.pending += 1;
        if writing.pending >= BATCH { self.flush(key, None) } else { Ok(()) }
    }

    /// Adopts the rest; the source's own session last, with the record that the run is done.
    fn flush_all(&mut self, record: &str, mut done: Value) -> Answer<()> {
        let others: Vec<SessionKey> =
            self.writing.keys().copied().filter(|key| *key != SessionKey::MAIN).collect();
        for key in others {
            self.flush(key, None)?;
        }
        let is_empty = done["length"] == 0;
        let sessions = self.writing.values().map(|writing| writing.session.to_string());
        done["sessions"] = sessions.collect::<Vec<_>>().into();
        let lives = self.writing.keys().map(|key| self.lives.of(*key).map(|life| life.to_string()));
        done["lives"] = lives.collect::<Vec<_>>().into();
        let record = Idempotency {
            scope: Scope::Node,
            request: sha256(record.as_bytes()),
            key: record.to_owned(),
            result: done.to_string().into_bytes(),
            expires: None,
        };
        self.flush(SessionKey::MAIN, (!is_empty).then_some(record))
    }

    /// Adopts what was signed for a session since the last time.
    fn flush(&mut self, key: SessionKey, record: Option<Idempotency>) -> Answer<()> {
        let Some(writing) = self.writing.get_mut(&key) else { return Ok(()) };
        let session = writing.session;
        let _turn = self.node.turn(session);
        let reader = self.node.reader()?;
        let held = Held { reader: &reader, session };
        for link in writing.verifier.unsettled().to_vec() {
            let made = writing.made.contains(&link.target);
            let holds = |link: &throughline_protocol::verify::UnsettledLink| {
                if made { Holds::Yes } else { held.holds(link.target, link.from) }
            };
            writing.verifier.settle(link.target, holds)?;
        }
        writing.pending = 0;
        let segment = writing.verifier.take_segment()?;
        let row = reader.session(session)?;
        if segment.is_some() && row.is_some() {
            self.node.may_sign(&reader, &standing(&reader, session)?)?;
        }
        writing.written += segment.as_ref().map_or(0, |segment| segment.entries().len() as u64);
        match (segment, record) {
            _ if self.request.dry_run => {}
            (None, None) => {}
            // The last entries went with an earlier batch.
            (None, Some(record)) => {
                self.node.store().run(PutAnswer(record))?;
            }
            (Some(segment), record) => {
                let options = AdoptOptions {
                    guard: GuardUse::Signed(self.node.principal()),
                    idempotency: record,
                    links: links_of(&reader, session, segment.entries(), Naming::Brings)?.links,
                    naming: Naming::Brings,
                    summary: summary::after_extension(&reader, row.as_ref(), &segment)?,
                    pin: if row.is_none() { self.node.own_pin() } else { None },
                    ..AdoptOptions::at(now())
                };
                self.node.store().adopt(segment, options)?;
            }
        }
        Ok(())
    }

    /// Anchors every session that grew with this node's device grant, where it has one.
    fn anchor_all(&self) -> Answer<bool> {
        let mut all = true;
        for writing in self.writing.values().filter(|writing| writing.written > 0) {
            match self.node.device_anchor(writing.session)? {
                Some(anchor) => {
                    self.node.take_controls(vec![anchor])?;
                }
                None => all = false,
            }
            self.node.after_commit(writing.session);
        }
        Ok(all)
    }

    /// The element of `sources` in the answer.
    fn told(&self, session: SessionId, created: bool, file: Cid, report: &Report) -> Value {
        let main = self.writing.get(&SessionKey::MAIN).and_then(|writing| writing.verifier.state());
        let head = main.map(|state| shape::mark(&state.tip()));
        let sub_sessions: Vec<String> = self
            .writing
            .iter()
            .filter(|(key, _)| **key != SessionKey::MAIN)
            .map(|(_, writing)| writing.session.to_string())
            .collect();
        let counts: serde_json::Map<String, Value> =
            self.counts.iter().map(|(kind, count)| ((*kind).to_owned(), (*count).into())).collect();
        let parent = self
            .source
            .parent
            .map(|parent| json!({"session": parent.session.to_string(), "entry": parent.entry.to_string()}));
        json!({
                "path": self.source.path, "agent": self.source.agent.as_ref().map(AgentName::as_str), "parent": parent,
                "format": CLAUDE_CODE, "version": report.version,
                "fileCid": file.to_string(), "lines": report.tally.total(),
                "session": session.to_string(), "head": head, "created": created,
                "class": main.map(|state| state.class().word()),
                "elsewhere": self.elsewhere.iter().map(SessionId::to_string).collect::<Vec<_>>(),
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
        })
    }
}

/// The sub-agent with a file of its own whose result a draft is, and the response that asked for it.
fn started(draft: &Draft) -> Option<(&str, DraftId)> {
    match &draft.body {
        DraftBody::ToolCall { child: Some(Child::Agent(name)), response, .. } => Some((name, *response)),
        DraftBody::ToolCall { .. }
        | DraftBody::Genesis { .. }
        | DraftBody::UserMessage { .. }
        | DraftBody::ModelResponse(_)
        | DraftBody::Title
        | DraftBody::Error
        | DraftBody::Compaction { .. }
        | DraftBody::Rewind { .. }
        | DraftBody::Import => None,
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
