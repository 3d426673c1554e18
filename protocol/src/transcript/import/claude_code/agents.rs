//! Which session of the source a record belongs to: its own, or that of a sub-agent.
//!
//! Older builds write the lines of sub-agents into the session's own file, marked `isSidechain`; newer ones into files of
//! their own. A sub-agent is a session whose genesis names the response that started it.

use std::sync::Arc;

use super::super::clean;
use super::super::draft::{ChildOf, DraftId, RecordKey, SessionKey};
use super::blocks::Part;
use super::record::Record;
use super::session::Session;
use super::{ClaudeCode, SourceRole};

/// Sub-agents of one source that become sessions.
const SESSIONS_MAX: usize = 4_096;

impl ClaudeCode {
    /// The session of a record that is no part of the conversation: the one it is marked for or hangs in.
    pub(super) fn session_of(&self, record: &Record<'_>) -> usize {
        if matches!(self.options.role, SourceRole::SubAgent { .. }) || !record.is("isSidechain") {
            return 0;
        }
        let named = record.text("agentId").and_then(|agent| self.desk.agents.get(&agent).copied());
        let number = named.or_else(|| self.seen.session_of(&record.parent)).unwrap_or(0);
        usize::try_from(number).unwrap_or(0)
    }

    /// The session of a part of the conversation. A sub-agent's begins with its first line; none when there are too many.
    pub(super) fn session_for(&mut self, record: &Record<'_>, parts: &[Part]) -> Option<usize> {
        let number = self.session_of(record);
        let is_side = record.is("isSidechain") && !matches!(self.options.role, SourceRole::SubAgent { .. });
        if number > 0 || !is_side {
            return Some(number);
        }
        if self.sessions.len() >= SESSIONS_MAX {
            return None;
        }
        let agent = record.text("agentId").and_then(|agent| clean::id(&agent));
        Some(self.begin_agent(record, parts, agent))
    }

    /// Begins the session of a sub-agent, behind the response that started it.
    fn begin_agent(&mut self, record: &Record<'_>, parts: &[Part], agent: Option<String>) -> usize {
        let number = self.sessions.len();
        let key = SessionKey(u32::try_from(number).unwrap_or(u32::MAX));
        let name = agent.clone().unwrap_or_else(|| match &record.meta.record {
            RecordKey::Id(id) => id.clone(),
            RecordKey::Line(line) => format!("line-{line}"),
        });
        let source_id = format!("{}/agent-{name}", self.main_id());
        let parent = self.sessions.first_mut().and_then(|main| {
            main.close(&mut self.desk);
            let call = ["parent_tool_use_id", "parentToolUseID"].iter().find_map(|key| record.text(key));
            let words = parts.iter().find_map(|part| match part {
                Part::Plain(content) => content.words(),
                Part::Stored(_) | Part::Call(_) | Part::Result(_) => None,
            });
            let response = main.calls.start(call.as_deref(), words, key).or_else(|| main.newest())?;
            Some(ChildOf::Draft(DraftId { session: SessionKey::MAIN, index: response }))
        });
        self.desk.agents.insert(agent.unwrap_or(name), key.number());
        self.sessions.push(Session::new(key, source_id.into(), parent));
        number
    }

    /// Makes the source's own session, and names it as long as nothing was written under its name.
    pub(super) fn main(&mut self) {
        if self.sessions.first().is_some_and(Session::has_begun) {
            return;
        }
        let (id, parent): (Arc<str>, _) = match &self.options.role {
            SourceRole::Session => (self.main_id().into(), None),
            SourceRole::SubAgent { agent, parent } => {
                (format!("{}/agent-{agent}", self.main_id()).into(), parent.map(ChildOf::Known))
            }
        };
        match self.sessions.first_mut() {
            Some(main) => main.name(id),
            None => self.sessions.push(Session::new(SessionKey::MAIN, id, parent)),
        }
    }

    /// The source's own id of the session.
    fn main_id(&self) -> String {
        let stem = self.options.file_stem.as_deref();
        let by_file = stem.filter(|stem| is_uuid(stem) && matches!(self.options.role, SourceRole::Session));
        let named = by_file.or(self.desk.report.session_id.as_deref()).or(stem).unwrap_or("unnamed");
        clean::cut(named, 256).to_owned()
    }
}

fn is_uuid(text: &str) -> bool {
    let shape = [8, 4, 4, 4, 12];
    let groups: Vec<&str> = text.split('-').collect();
    groups.len() == shape.len()
        && groups
            .iter()
            .zip(shape)
            .all(|(group, len)| group.len() == len && group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
