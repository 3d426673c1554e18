//! From a draft to what is signed: CIDs take the place of draft ids.

use super::draft::{Child, ChildOf, Draft, DraftBody, DraftId};
use super::{CLAUDE_CODE, SessionKey};
use crate::code::{Code, Reject};
use crate::entry::{Body, Genesis, Note, Parent, ToolCall, UserMessage};
use crate::id::{AgentIri, Cid, EntryCid, UnixMillis};
use crate::payload::{ImportSalts, PayloadDraft, Salt, Source, Words};

/// What a caller knows that a draft does not.
pub struct Signing<'a> {
    /// The agent that the session is filed under.
    pub agent: &'a AgentIri,
    /// Salts and nonces of the node that imports.
    pub salts: &'a ImportSalts,
    /// The stored segment that the draft's lines lie in.
    pub file: Cid,
    /// The entry that a draft became.
    pub entry: &'a dyn Fn(DraftId) -> Option<EntryCid>,
    /// The genesis of a sub-agent's session that has a file of its own, by the source's id of it.
    pub agent_session: &'a dyn Fn(&str) -> Option<EntryCid>,
}

/// An entry's own fields and its words, ready for header, place and signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// The entry's own fields.
    pub body: Body,
    /// Its words.
    pub payload: PayloadDraft,
    /// The salt of its payload.
    pub salt: Salt,
    /// Its time.
    pub ts: UnixMillis,
}

impl Draft {
    /// Puts CIDs in the place of draft ids, the segment in that of its file.
    ///
    /// # Errors
    /// `E_INCOMPLETE` when `signing` knows no entry for a draft that it links.
    pub fn assemble(&self, signing: &Signing<'_>) -> Result<Assembled, Reject> {
        let mut words = self.words.clone();
        self.place(&mut words, signing)?;
        Ok(Assembled {
            body: self.body(signing)?,
            payload: words.into(),
            salt: self.salt(signing.salts),
            ts: self.ts,
        })
    }

    fn body(&self, signing: &Signing<'_>) -> Result<Body, Reject> {
        let entry = |id: DraftId| known(signing, id);
        Ok(match &self.body {
            DraftBody::Genesis { parent } => Body::Genesis(Genesis {
                agent: signing.agent.clone(),
                nonce: signing.salts.nonce(CLAUDE_CODE, &self.source_session),
                holder: None,
                class: crate::entry::Class::Internal,
                parent: parent.map(|parent| parent_of(signing, parent)).transpose()?,
                continues: None,
            }),
            DraftBody::UserMessage { origin } => {
                Body::UserMessage(UserMessage { origin: Some(*origin), answers: None, envelope: None })
            }
            DraftBody::ModelResponse(response) => Body::ModelResponse(response.clone()),
            DraftBody::ToolCall { name, call_id, outcome, response, child, duration_ms } => {
                Body::ToolCall(ToolCall {
                    name: name.clone(),
                    call_id: call_id.clone(),
                    outcome: *outcome,
                    response: Some(entry(*response)?),
                    produced: Vec::new(),
                    child: match child {
                        Some(Child::Session(session)) => Some(entry(genesis_of(*session))?),
                        Some(Child::Agent(agent)) => (signing.agent_session)(agent),
                        None => None,
                    },
                    duration_ms: *duration_ms,
                })
            }
            DraftBody::Title => Body::Note(Note::Title),
            DraftBody::Error => Body::Note(Note::Error),
            DraftBody::Compaction { from, to, .. } => {
                Body::Note(Note::Compaction { from: entry(*from)?, to: entry(*to)? })
            }
            DraftBody::Rewind { to } => Body::Note(Note::Rewind { to: entry(*to)? }),
            DraftBody::Import => Body::Note(Note::Import),
        })
    }

    fn place(&self, words: &mut Words, signing: &Signing<'_>) -> Result<(), Reject> {
        let set = |source: &mut Option<Source>| {
            if let Some(source) = source {
                source.file = signing.file;
            }
        };
        match words {
            Words::Genesis(words) => set(&mut words.source),
            Words::UserMessage(words) => set(&mut words.source),
            Words::ModelResponse(words) => set(&mut words.source),
            Words::ToolCall(words) => set(&mut words.source),
            Words::Import(report) => {
                for segment in &mut report.segments {
                    segment.cid = signing.file;
                }
            }
            Words::Compaction(words) => {
                if let DraftBody::Compaction { preserved, .. } = &self.body {
                    words.preserved =
                        preserved.iter().map(|id| known(signing, *id)).collect::<Result<_, _>>()?;
                }
            }
            Words::Title(_) | Words::Rewind(_) | Words::Error(_) => {}
        }
        Ok(())
    }
}

fn genesis_of(session: SessionKey) -> DraftId {
    DraftId { session, index: 0 }
}

fn known(signing: &Signing<'_>, id: DraftId) -> Result<EntryCid, Reject> {
    (signing.entry)(id).ok_or_else(|| {
        let what = format!("no entry for draft {} of session {}", id.index, id.session.number());
        Reject::new(Code::Incomplete, what)
    })
}

fn parent_of(signing: &Signing<'_>, parent: ChildOf) -> Result<Parent, Reject> {
    match parent {
        ChildOf::Known(parent) => Ok(parent),
        ChildOf::Draft(id) => {
            Ok(Parent { session: known(signing, genesis_of(id.session))?, entry: known(signing, id)? })
        }
    }
}
