//! Tool calls that responses asked for, by the provider's id, so that results find them wherever they stand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::super::draft::SessionKey;
use super::seen::{Key, key_of};

/// Calls under one provider id that are remembered. Ids repeat when a conversation is moved between programs.
const SAME_ID_MAX: usize = 8;
/// Tasks for sub-agents that are remembered to find the call of a sub-agent without an id.
const TASKS_MAX: usize = 256;

/// A call that a response asked for.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Place of the response's draft in its session.
    pub(super) response: u64,
    pub(super) name: Arc<str>,
    /// The id in our log.
    pub(super) call_id: Box<str>,
    /// The session of the sub-agent that it started.
    pub(super) child: Option<SessionKey>,
    answered: bool,
}

#[derive(Debug)]
struct Task {
    prompt: Key,
    call: Key,
}

/// The calls of one session.
#[derive(Debug, Default)]
pub(super) struct Calls {
    by_id: BTreeMap<Key, Vec<Call>>,
    names: BTreeMap<Arc<str>, ()>,
    tasks: VecDeque<Task>,
}

impl Calls {
    /// Remembers a call.
    pub(super) fn ask(&mut self, response: u64, asked: &Asked) {
        let name = match self.names.get_key_value(asked.name.as_str()) {
            Some((name, ())) => Arc::clone(name),
            None => {
                let name: Arc<str> = asked.name.as_str().into();
                self.names.insert(Arc::clone(&name), ());
                name
            }
        };
        let calls = self.by_id.entry(asked.provider).or_default();
        if calls.len() >= SAME_ID_MAX {
            calls.remove(0);
        }
        calls.push(Call {
            response,
            name,
            call_id: asked.call_id.as_str().into(),
            child: None,
            answered: false,
        });
        if let Some(prompt) = asked.prompt {
            if self.tasks.len() >= TASKS_MAX {
                self.tasks.pop_front();
            }
            self.tasks.push_back(Task { prompt, call: asked.provider });
        }
    }

    /// The call that a result belongs to: the first open one of that id, else the newest.
    pub(super) fn answer(&mut self, provider_id: &str) -> Option<Call> {
        let calls = self.by_id.get_mut(&key_of(provider_id))?;
        let at = calls.iter().position(|call| !call.answered).or(calls.len().checked_sub(1))?;
        let call = calls.get_mut(at)?;
        call.answered = true;
        Some(call.clone())
    }

    /// The response whose call started a sub-agent: by the call's id, else by the task's words, else the newest task that
    /// is still open. The call remembers the session.
    pub(super) fn start(&mut self, id: Option<&str>, prompt: Option<&str>, child: SessionKey) -> Option<u64> {
        let open = |calls: &BTreeMap<Key, Vec<Call>>, key: &Key| {
            calls.get(key).is_some_and(|calls| calls.iter().any(free))
        };
        let prompt = prompt.map(key_of);
        let by_words =
            self.tasks.iter().find(|task| Some(task.prompt) == prompt && open(&self.by_id, &task.call));
        let newest = || self.tasks.iter().rev().find(|task| open(&self.by_id, &task.call));
        let key = id
            .map(key_of)
            .filter(|key| self.by_id.contains_key(key))
            .or_else(|| by_words.or_else(newest).map(|task| task.call))?;
        let calls = self.by_id.get_mut(&key)?;
        let at = calls.iter().position(free).or(calls.len().checked_sub(1))?;
        let call = calls.get_mut(at)?;
        call.child = Some(child);
        Some(call.response)
    }
}

fn free(call: &Call) -> bool {
    !call.answered && call.child.is_none()
}

/// A call as its response holds it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Key of the provider's id.
    pub(super) provider: Key,
    pub(super) call_id: String,
    pub(super) name: String,
    /// Key of the task that a sub-agent is given.
    pub(super) prompt: Option<Key>,
}
