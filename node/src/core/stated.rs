//! What a stated entry says of other things, held to those that are at hand, before it is signed: `docs/decisions/0038`.
//!
//! A reader takes what the protocol leaves open (`docs/PROTOCOL.md` §Entries, §Payloads), for ever; so the node that signs looks, once, and
//! cheaply: at the draft itself, at the entries that it names, at the sizes of files that are held. It must never refuse what came signed
//! or is imported: others said that, and a recorded transcript may be odd. What cannot be seen from here is no reason to refuse.

use std::collections::{BTreeMap, BTreeSet};

use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::content::{Block, Content};
use throughline_protocol::entry::{Body, Entry, ModelResponse, Note, Outcome, ToolCall};
use throughline_protocol::id::{Cid, Codec, EntryCid, Seq, SessionId};
use throughline_protocol::payload::{Payload, PayloadDraft, Words};
use throughline_protocol::unixfs;
use throughline_protocol::view::EntryDraft;
use throughline_store::{Found, PayloadState, Reader, StoredEntry};

use crate::api::error::{Answer, Problem};

/// Entries after a response among which its tool calls are looked for: twice as many as a response has calls.
const CALLS_WITHIN: u64 = 256;

/// Calls of a response that a refusal lists.
const CALLS_SHOWN: usize = 8;

/// What a tool call is known by (R-EN-8): the response that asked for it, and its id there.
type CallName = (EntryCid, String);

/// Looks at the drafts of one request, in their order.
pub(super) struct Stated<'r> {
    reader: &'r Reader,
    session: SessionId,
    /// How the calls ended that earlier drafts of the request tell of.
    ended: BTreeMap<CallName, Outcome>,
}

impl<'r> Stated<'r> {
    pub(super) fn new(reader: &'r Reader, session: SessionId) -> Self {
        Stated { reader, session, ended: BTreeMap::new() }
    }

    /// Refuses a draft that says of something at hand what is not so.
    ///
    /// # Errors
    /// `E_ANCESTOR` for a `response` that is none and for a span that is not one; `E_SCHEMA_TYPE` for a call that its response did not
    /// ask for; `E_SCHEMA_EXCLUSIVE` for a second end of one call, or a block id that stands twice; `E_SCHEMA_LEN` for another size than
    /// the file has; `E_SCHEMA_TEXT` for a file name that is a path.
    pub(super) fn check(&mut self, draft: &EntryDraft) -> Answer<()> {
        match &draft.body {
            Body::ToolCall(call) => self.check_call(call)?,
            Body::Note(Note::Compaction { from, to }) => {
                self.check_span(*from, *to, draft.payload.as_ref())?
            }
            Body::Genesis(_)
            | Body::UserMessage(_)
            | Body::ModelResponse(_)
            | Body::Note(_)
            | Body::Handoff(_)
            | Body::Seal(_) => {}
        }
        match draft.payload.as_ref().map(|payload| &payload.words) {
            Some(Words::UserMessage(words)) => {
                check_block_ids(&words.body)?;
                for file in &words.attachments {
                    self.check_file("attachment", file.cid, file.size, file.name.as_deref())?;
                }
            }
            Some(Words::ModelResponse(words)) => self.check_media(&words.content)?,
            Some(Words::ToolCall(words)) => self.check_media(&words.content)?,
            Some(_) | None => {}
        }
        Ok(())
    }

    fn check_media(&self, content: &[Content]) -> Answer<()> {
        for part in content {
            if let Content::Media(media) = part {
                self.check_file("media", media.cid, media.size, media.name.as_deref())?;
            }
        }
        Ok(())
    }

    fn check_call(&mut self, call: &ToolCall) -> Answer<()> {
        // Without one the verifier refuses.
        let Some(named) = call.response else { return Ok(()) };
        let (seq, response) = self.response(named)?;
        if let Some(asked) = self.asked(&response, call)?
            && asked != call.name
        {
            let what = format!(
                "expected the tool `{asked}`, which response {seq} asked for as `{}`, got `{}`",
                call.call_id, call.name
            );
            return Err(Problem::new(Code::SchemaType, what));
        }
        let name = (named, call.call_id.clone());
        let before = match self.ended.get(&name) {
            Some(outcome) => Some((*outcome, None)),
            None => self.ended_before(&name, seq)?,
        };
        if let Some((outcome, at)) = before
            && !(outcome == Outcome::Unknown && call.outcome != Outcome::Unknown)
        {
            let at = at.map_or_else(|| "earlier in this request".to_owned(), |at| format!("in entry {at}"));
            let what = format!(
                "expected one end of the call `{}` of response {seq}, which ended {at} ({}): leave this one out",
                call.call_id,
                outcome.word()
            );
            return Err(Problem::new(Code::SchemaExclusive, what));
        }
        self.ended.insert(name, call.outcome);
        Ok(())
    }

    /// The response that a tool call names.
    fn response(&self, named: EntryCid) -> Answer<(Seq, Entry)> {
        let refused = |got: String| {
            let what = format!(
                "expected in `response` the CID of the SessionModelResponse that asked for the call, got {got}"
            );
            Problem::new(Code::Ancestor, what)
        };
        let Some(stored) = self.entry(named)? else {
            return Err(refused(format!("{}, which is no entry of this session", named.short())));
        };
        let entry = Decoded::<Entry>::decode(stored.bytes)?.value().clone();
        if let Body::ModelResponse(_) = entry.body {
            return Ok((stored.seq, entry));
        }
        Err(refused(format!("entry {}, a {}", stored.seq, entry.body.type_name())))
    }

    /// The tool that a response asked for under the id of a call; none when the response's words, which may say so, are not held.
    fn asked(&self, response: &Entry, call: &ToolCall) -> Answer<Option<String>> {
        let Body::ModelResponse(ModelResponse { calls, .. }) = &response.body else { return Ok(None) };
        let listed = calls.iter().find(|asked| asked.call_id == call.call_id);
        if let Some(asked) = listed {
            return Ok(Some(asked.name.clone()));
        }
        let mut ids: BTreeSet<String> = calls.iter().map(|asked| asked.call_id.clone()).collect();
        if let Some(named) = response.payload {
            let PayloadState::Present(bytes) = self.reader.payload(named.cid)? else { return Ok(None) };
            let payload = Payload::check(response, bytes)?;
            for part in payload.content() {
                let Content::ToolCall(asked) = part else { continue };
                if asked.call_id == call.call_id {
                    return Ok(Some(asked.name.clone()));
                }
                ids.insert(asked.call_id.clone());
            }
        }
        let shown: Vec<String> = ids.into_iter().take(CALLS_SHOWN).collect();
        let asked = if shown.is_empty() { "no tool".to_owned() } else { shown.join(", ") };
        let what = format!(
            "expected a `callId` that the response asked for, got `{}`: response {} asked for {asked}",
            call.call_id,
            response.seq()
        );
        Err(Problem::new(Code::SchemaType, what))
    }

    /// How and where a call ended, if it did among the entries after its response. The last end counts.
    fn ended_before(&self, name: &CallName, response: Seq) -> Answer<Option<(Outcome, Option<Seq>)>> {
        let Some(row) = self.reader.session(self.session)? else { return Ok(None) };
        let last = row.tip.seq.min(Seq::new(response.get().saturating_add(CALLS_WITHIN))?);
        let mut found = None;
        for stored in self.reader.entries(self.session, response.next(), last)? {
            let stored = stored?;
            let decoded = Decoded::<Entry>::decode(stored.bytes)?;
            if let Body::ToolCall(call) = &decoded.value().body
                && call.response == Some(name.0)
                && call.call_id == name.1
            {
                found = Some((call.outcome, Some(stored.seq)));
            }
        }
        Ok(found)
    }

    /// A span goes forwards, and what is preserved of it is in it.
    fn check_span(&self, from: EntryCid, to: EntryCid, payload: Option<&PayloadDraft>) -> Answer<()> {
        // What is no entry of the session at all, the verifier refuses.
        let (Some(first), Some(last)) = (self.seq_of(from)?, self.seq_of(to)?) else { return Ok(()) };
        if first > last {
            let what = format!(
                "expected `from` at or before `to`, got entry {first} and entry {last}: exchange them"
            );
            return Err(Problem::new(Code::Ancestor, what));
        }
        let Some(Words::Compaction(words)) = payload.map(|payload| &payload.words) else { return Ok(()) };
        for kept in &words.preserved {
            let seq = self.seq_of(*kept)?;
            if seq.is_none_or(|seq| seq < first || last < seq) {
                let got = seq.map_or_else(
                    || "which is no entry of this session".to_owned(),
                    |seq| format!("entry {seq}"),
                );
                let what = format!(
                    "expected in `preserved` entries {first} to {last}, got {}, {got}: leave it out",
                    kept.short()
                );
                return Err(Problem::new(Code::Ancestor, what));
            }
        }
        Ok(())
    }

    fn seq_of(&self, cid: EntryCid) -> Answer<Option<Seq>> {
        if cid == self.session.genesis() {
            return Ok(Some(Seq::default()));
        }
        Ok(self.entry(cid)?.map(|stored| stored.seq))
    }

    /// An entry that is held of this session.
    fn entry(&self, cid: EntryCid) -> Answer<Option<StoredEntry>> {
        let found = self.reader.entry(cid)?.filter(|(session, _)| *session == self.session);
        Ok(found.map(|(_, stored)| stored))
    }

    /// A file that is held has the size that is stated, and its name is a name.
    fn check_file(&self, what: &str, cid: Cid, stated: u64, name: Option<&str>) -> Answer<()> {
        if let Some(name) = name.filter(|name| is_path(name)) {
            let what = format!("expected the name of the {what} without its directories, got `{name}`");
            return Err(Problem::new(Code::SchemaText, what));
        }
        match size_of(self.reader, cid)? {
            Some(size) if size != stated => {
                let what = format!(
                    "expected the size of the {what} {}, which has {size} bytes, got {stated}",
                    cid.short()
                );
                Err(Problem::new(Code::SchemaLen, what))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// A reader that writes the file where its name says would leave its directory.
fn is_path(name: &str) -> bool {
    matches!(name, "." | "..") || name.contains(['/', '\\'])
}

/// The length of a file in bytes, as far as it can be told from its root block.
fn size_of(reader: &Reader, cid: Cid) -> Answer<Option<u64>> {
    let Some(Found::Block { size_bytes, .. }) = reader.find(&cid)? else { return Ok(None) };
    if cid.codec() != Codec::DagPb {
        return Ok(Some(size_bytes));
    }
    // What cannot be read as a node of a file has no size to compare with.
    Ok(reader.block(&cid)?.and_then(|root| unixfs::file_bytes(&root).ok()))
}

/// Each block of a message has an id of its own, at every depth.
fn check_block_ids(body: &[Block]) -> Answer<()> {
    let mut met = BTreeSet::new();
    let mut waiting: Vec<&Block> = body.iter().collect();
    while let Some(block) = waiting.pop() {
        if !met.insert(block.id.as_str()) {
            let what = format!(
                "expected each block of the message to have an id of its own, got `{}` twice",
                block.id
            );
            return Err(Problem::new(Code::SchemaExclusive, what));
        }
        waiting.extend(&block.children);
    }
    Ok(())
}
