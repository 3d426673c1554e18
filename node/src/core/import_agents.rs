//! Sub-agents with files of their own, beside the transcript that they belong to. `docs/PROTOCOL.md` R-PA-6.
//!
//! Each is a source of its own: a session whose genesis names the response that started it, remembered and gone on with as any other.
//! It is imported when the transcript first shows what it gave, so that the tool call can name its session; those that the
//! transcript does not show yet come last. What a file is called comes from the directory, never from words in a transcript, and a
//! sub-agent that was not given is a name without a session.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::entry::Parent;
use throughline_protocol::id::{AgentIri, EntryCid, Principal, SessionId};
use throughline_protocol::transcript::import::SourceRole;

use super::Node;
use super::import::ImportRequest;
use super::import_run::{Imported, Run, Source};
use crate::api::error::{Answer, Problem};

/// Sub-agents that come along with one transcript.
pub const SUB_AGENTS_MAX: usize = 256;
/// Longest name of a sub-agent, in bytes.
pub const SUB_AGENT_NAME_BYTES_MAX: usize = 64;
/// How deep sub-agents of sub-agents are imported on the way; deeper ones come last.
const DEPTH_MAX: usize = 8;

/// The name of a sub-agent, as it stands in the name of its file: ASCII letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentName(String);

impl AgentName {
    /// Reads a name of at most [`SUB_AGENT_NAME_BYTES_MAX`] bytes. None for what could be anything but the middle of a file name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=SUB_AGENT_NAME_BYTES_MAX).contains(&text.len());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (fits && text.bytes().all(plain)).then(|| AgentName(text.to_owned()))
    }

    /// The name in `agent-<name>.jsonl`.
    #[must_use]
    pub fn of_file(name: &str) -> Option<Self> {
        AgentName::parse(name.strip_prefix("agent-")?.strip_suffix(".jsonl")?)
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What all sources of one import share.
pub(super) struct Context<'n> {
    pub(super) node: &'n Node,
    pub(super) request: &'n ImportRequest,
    pub(super) agent: AgentIri,
    pub(super) owner: Principal,
    /// The name of the transcript's file, without its ending.
    pub(super) stem: Option<String>,
}

/// What became of a sub-agent's file.
enum Fate {
    Waiting(PathBuf),
    UnderWay,
    Imported(SessionId),
    /// Nothing in it is a transcript.
    Lost,
}

/// The sub-agents of one transcript.
pub(super) struct Agents<'c, 'n> {
    context: &'c Context<'n>,
    fates: BTreeMap<AgentName, Fate>,
    imported: BTreeMap<AgentName, Imported>,
    lost: Vec<Value>,
    depth: usize,
}

impl<'c, 'n> Agents<'c, 'n> {
    pub(super) fn new(context: &'c Context<'n>) -> Self {
        let files = context.request.sub_agents.iter();
        let fates = files.map(|(name, spool)| (name.clone(), Fate::Waiting(spool.clone()))).collect();
        Agents { context, fates, imported: BTreeMap::new(), lost: Vec::new(), depth: 0 }
    }

    /// Whether the file of a sub-agent was given.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&AgentName> {
        self.fates.keys().find(|known| known.as_str() == name)
    }

    /// The session of a sub-agent, which is imported now unless it was before. None when its file was not given or holds no transcript,
    /// or while it is being imported.
    ///
    /// # Errors
    /// As [`Node::import`], but for a file that is no transcript: that is told in the report.
    pub(super) fn session(&mut self, name: &str, parent: Option<Parent>) -> Answer<Option<EntryCid>> {
        let Some(name) = self.find(name).cloned() else { return Ok(None) };
        let spool = match self.fates.get(&name) {
            Some(Fate::Imported(session)) => return Ok(Some(session.genesis())),
            Some(Fate::Waiting(spool)) if self.depth < DEPTH_MAX => spool.clone(),
            Some(Fate::Waiting(_) | Fate::UnderWay | Fate::Lost) | None => return Ok(None),
        };
        self.fates.insert(name.clone(), Fate::UnderWay);
        self.depth += 1;
        let imported = self.import(&name, &spool, parent);
        self.depth -= 1;
        match imported {
            Ok(imported) => {
                let session = imported.session;
                self.fates.insert(name.clone(), Fate::Imported(session));
                self.imported.insert(name, imported);
                Ok(Some(session.genesis()))
            }
            Err(problem) if problem.code() == Code::InputFormat => {
                self.lost.push(json!({
                    "path": self.path(&name), "code": problem.code().name(), "detail": problem.detail(),
                }));
                self.fates.insert(name, Fate::Lost);
                Ok(None)
            }
            Err(problem) => Err(problem),
        }
    }

    /// Imports those that the transcript did not show; `parent` is where one was started, as far as that is known.
    pub(super) fn finish(&mut self, parent: impl Fn(&AgentName) -> Option<Parent>) -> Answer<()> {
        let waiting =
            |(name, fate): (&AgentName, &Fate)| matches!(fate, Fate::Waiting(_)).then(|| name.clone());
        // One of them may import others on its way.
        for name in self.fates.iter().filter_map(waiting).collect::<Vec<_>>() {
            self.session(name.as_str(), parent(&name))?;
        }
        Ok(())
    }

    /// What became of each, in the order of their names, and the files that were none.
    pub(super) fn into_report(self) -> (Vec<Imported>, Vec<Value>) {
        (self.imported.into_values().collect(), self.lost)
    }

    fn import(&mut self, name: &AgentName, spool: &Path, parent: Option<Parent>) -> Answer<Imported> {
        let source = Source {
            path: self.path(name),
            agent: Some(name.clone()),
            parent,
            role: SourceRole::SubAgent { agent: name.as_str().to_owned(), parent },
        };
        let Context { node, stem, .. } = self.context;
        let known = node.known_source(spool, stem.as_deref(), &source.role)?;
        Run::import(self.context, source, spool, &known, self)
    }

    /// Where the file lay, as the answer says it.
    fn path(&self, name: &AgentName) -> String {
        let beside = Path::new(&self.context.request.path).with_extension("").join("subagents");
        beside.join(format!("agent-{}.jsonl", name.as_str())).display().to_string()
    }
}

/// Refuses more sub-agents than come along, or one that is given twice.
///
/// # Errors
/// `E_TOO_BIG`, `E_API_BODY`.
pub fn check_sub_agents(names: &[AgentName]) -> Answer<()> {
    if names.len() > SUB_AGENTS_MAX {
        let what = format!("expected at most {SUB_AGENTS_MAX} sub-agents, got {}", names.len());
        return Err(Problem::new(Code::TooBig, what));
    }
    let mut sorted: Vec<&AgentName> = names.iter().collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            Err(Problem::new(Code::ApiBody, format!("sub-agent {} is given twice", pair[0].as_str())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_middle_of_a_file_name_and_nothing_else() {
        for (file, name) in [
            ("agent-a1b2c3d.jsonl", Some("a1b2c3d")),
            ("agent-acompact-3f_9.jsonl", Some("acompact-3f_9")),
            ("agent-.jsonl", None),
            ("agent-a.json", None),
            ("agent-a.meta.json", None),
            ("b.jsonl", None),
            ("agent-../../x.jsonl", None),
            ("agent-a/b.jsonl", None),
            ("agent-a:1,b.jsonl", None),
            ("agent-ä.jsonl", None),
        ] {
            assert_eq!(AgentName::of_file(file).as_ref().map(AgentName::as_str), name, "{file}");
        }
        assert!(AgentName::parse(&"a".repeat(SUB_AGENT_NAME_BYTES_MAX)).is_some());
        assert!(AgentName::parse(&"a".repeat(SUB_AGENT_NAME_BYTES_MAX + 1)).is_none());
    }

    #[test]
    fn too_many_and_doubled_sub_agents_are_refused() {
        let named = |at: usize| AgentName::parse(&format!("a{at}")).unwrap();
        let all: Vec<AgentName> = (0..=SUB_AGENTS_MAX).map(named).collect();
        assert!(check_sub_agents(&all[1..]).is_ok());
        assert_eq!(check_sub_agents(&all).unwrap_err().code(), Code::TooBig);
        assert_eq!(check_sub_agents(&[named(1), named(2), named(1)]).unwrap_err().code(), Code::ApiBody);
    }
}
