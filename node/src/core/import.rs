//! Importing a transcript: the pure importer makes drafts, this signs and stores them.
//!
//! The source's bytes are kept as a file, one segment a run, so every byte is somewhere. A run is remembered by an
//! idempotency row that is written with its last entries: a second run over the same bytes finds it and changes nothing, one
//! over a file that grew repeats the earlier segments without writing and goes on after them. A draft whose salt is on the chain
//! is there already, so a run that was cut off is simply run again.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use throughline_protocol::block::sha256;
use throughline_protocol::code::Code;
use throughline_protocol::entry::Class;
use throughline_protocol::id::{AgentIri, Cid, ScopePath, SessionId};
use throughline_protocol::transcript::import::{CLAUDE_CODE, ClaudeCode, Options, SourceRole};
use throughline_store::{Scope, Used};

use super::Node;
use super::import_agents::{AgentName, Agents, Context};
use super::import_lines::{feed, file_cid, for_each_line};
use super::import_lives::Life;
use super::import_run::{Imported, Run, Source};
use crate::api::error::{Answer, Problem};

/// Sources of one session id that are told apart.
const VARIANTS_MAX: usize = 64;

/// What to import.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// Where the source came from, for the answer.
    pub path: String,
    /// The agent; none is that of the session that the source became before, else `hm://<owner>/claude-code`.
    pub agent: Option<AgentIri>,
    /// Internal or confidential.
    pub class: Class,
    /// Do everything but store.
    pub dry_run: bool,
    /// Files of sub-agents that lie beside the source, by their names; see [`super::check_sub_agents`].
    pub sub_agents: Vec<(AgentName, PathBuf)>,
}

/// A source as it was met before.
pub(super) struct Known {
    /// What it is remembered by.
    pub(super) id: String,
    /// What was imported of it.
    pub(super) past: Vec<Past>,
}

/// A segment that was imported before.
pub(super) struct Past {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) cid: Cid,
    /// The source's own session, then those of its sub-agents.
    pub(super) sessions: Vec<SessionId>,
    /// The lives that these sessions were begun in, in the same order.
    pub(super) lives: Vec<Option<Life>>,
}

impl Node {
    /// Imports a Claude Code transcript that lies in `spool`, and the sub-agents that come with it.
    ///
    /// # Errors
    /// `E_INPUT_FORMAT` when nothing in it is a transcript, or when the part that was imported before has changed; `E_CAP_MISSING` without a
    /// writer grant; `E_USAGE` for another agent than that of the session that the source became; store errors.
    pub fn import(&self, spool: &Path, request: &ImportRequest) -> Answer<Value> {
        let owner = self.need_owner()?;
        let stem = Path::new(&request.path).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        // Two imports of one source would write the same entries at the same time.
        let _importing = self.import_turn();
        let known = self.known_source(spool, stem.as_deref(), &SourceRole::Session)?;
        let agent = match (&request.agent, self.agent_of(&known)?) {
            (Some(asked), Some((held, session))) if *asked != held => {
                return Err(other_agent(session, &held, asked));
            }
            (_, Some((held, _))) => held,
            (Some(asked), None) => asked.clone(),
            (None, None) => AgentIri::new(owner, Some(ScopePath::parse("/claude-code")?)),
        };
        let context = Context { node: self, request, agent, owner, stem };
        let mut agents = Agents::new(&context);
        let source =
            Source { path: request.path.clone(), agent: None, parent: None, role: SourceRole::Session };
        let main = Run::import(&context, source, spool, &known, &mut agents)?;
        let (others, lost) = agents.into_report();
        self.answer_of(request, main, others, lost)
    }

    /// The answer to an import: the transcript first, then each sub-agent's file.
    fn answer_of(
        &self,
        request: &ImportRequest,
        main: Imported,
        others: Vec<Imported>,
        lost: Vec<Value>,
    ) -> Answer<Value> {
        let (session, created) = (main.session, main.created);
        let written = main.written + others.iter().map(|other| other.written).sum::<u64>();
        let stored = !request.dry_run;
        let anchor = if stored && written > 0 { Some(self.anchor_facts(session)?) } else { None };
        let mut anchored = stored;
        for source in std::iter::once(&main).chain(&others).filter(|_| stored) {
            anchored &= source.anchored || (source.written == 0 && self.is_anchored(source.session)?);
        }
        let mut first = main.told;
        if let Some(subs) = first["subSessions"].as_array_mut() {
            subs.extend(others.iter().map(|other| Value::from(other.session.to_string())));
        }
        let sources: Vec<Value> =
            std::iter::once(first).chain(others.into_iter().map(|other| other.told)).collect();
        Ok(json!({
            "v": 1, "kind": "import", "sources": sources, "lost": lost,
            "created": created, "anchored": anchored,
            "signedBy": self.principal().to_string(), "dryRun": request.dry_run, "anchor": anchor,
        }))
    }

    fn is_anchored(&self, session: SessionId) -> Answer<bool> {
        let row = self.reader()?.session(session)?;
        Ok(row.is_some_and(|row| row.summary.anchored_through.is_some()))
    }

    /// The record of this very source. Files that carry one session id and begin differently are different sources: a copy
    /// that was edited never mixes with what was imported before.
    pub(super) fn known_source(
        &self,
        spool: &Path,
        file_stem: Option<&str>,
        role: &SourceRole,
    ) -> Answer<Known> {
        let options = Options { file_stem: file_stem.map(str::to_owned), role: role.clone() };
        let id = source_id(spool, options)?;
        for variant in 0..VARIANTS_MAX {
            let source = if variant == 0 { id.clone() } else { format!("{id}#{variant}") };
            let past = self.past(&source)?;
            let mut same = true;
            for segment in &past {
                same &= file_cid(spool, segment.offset, segment.length)? == (segment.cid, segment.length);
            }
            if same {
                return Ok(Known { id: source, past });
            }
        }
        Err(Problem::new(
            Code::InputFormat,
            format!("{VARIANTS_MAX} files with the session id of this one differ from it"),
        ))
    }

    /// The agent of the session that a source became, if it is held.
    fn agent_of(&self, known: &Known) -> Answer<Option<(AgentIri, SessionId)>> {
        let Some(session) = known.past.last().and_then(|past| past.sessions.first()) else { return Ok(None) };
        let Some(row) = self.reader()?.session(*session)? else { return Ok(None) };
        Ok(Some((row.agent.parse()?, *session)))
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
            let damaged =
                || Problem::new(Code::StoreCorrupt, "the record of an earlier import is not readable");
            past.push(Past {
                offset: number("offset").ok_or_else(damaged)?,
                length: number("length").ok_or_else(damaged)?,
                cid: row["cid"].as_str().ok_or_else(damaged)?.parse()?,
                sessions: sessions
                    .map(|session| Ok(session.as_str().ok_or_else(damaged)?.parse()?))
                    .collect::<Answer<_>>()?,
                lives: row["lives"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|life| Life::parse(life.as_str()?))
                    .collect(),
            });
        }
    }
}

/// A session's agent stands in its genesis: it is that one, or another session.
fn other_agent(session: SessionId, held: &AgentIri, asked: &AgentIri) -> Problem {
    let what = format!(
        "this transcript is session {} of agent {held} already, got --agent {asked}: a session keeps the agent that it began with",
        session.short()
    );
    Problem::new(Code::Usage, what)
        .with("session", session.to_string())
        .hint("throughline import FILE (without --agent it goes on as that session)")
}

/// The idempotency key of a source's n-th segment.
pub(super) fn segment_key(source: &str, number: usize) -> String {
    format!("import:{CLAUDE_CODE}:{source}:{number}")
}

/// The source's own id of the session: what the importer puts on its first draft.
fn source_id(spool: &Path, options: Options) -> Answer<String> {
    let mut importer = ClaudeCode::new(options);
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
