//! The words of a tail that a handoff cut off come back, as new entries on the head that counts. `docs/decisions/0053`.
//!
//! The tail stays where it is, as evidence. Each new entry names the one that it repeats as its `source`, so what has come back is
//! read from the chain and a second run goes on where the first one ended. Whoever holds the session signs each entry as what it
//! was. A device of the owner that does not hold it can sign messages only: its entries are messages of a participant, which the
//! holder puts in order. What was revoked does not come back by this, nor do notes: they were about the other history.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::content::{Block, Content};
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Body, Entry, Origin, UserMessage};
use throughline_protocol::id::{EntryCid, Seq, SessionId};
use throughline_protocol::limits;
use throughline_protocol::payload::{
    Attachment, Participant, Payload, PayloadDraft, Source, UserWords, Words,
};
use throughline_protocol::verify::Verifier;
use throughline_protocol::view::EntryDraft;
use throughline_store::{PayloadState, Reader, SideStatus};

use super::append::{AppendRequest, Held};
use super::append_signed::SignedAppend;
use super::base::{Standing, need_session};
use super::controls::{Granted, controls_of, grant_of};
use super::seal_up::sign_on;
use super::{Node, now, random};
use crate::api::error::Answer;

/// The `format` of a source that is an entry of this session.
const FORMAT: &str = "throughline";
/// Entries of the tail that are read at a time.
const PAGE: usize = 256;

/// What there is to bring back, and by whom it would be signed.
#[derive(Debug)]
pub struct BringBack {
    session: SessionId,
    signer: SignerRole,
    /// Oldest first.
    pending: Vec<Cut>,
    /// What does not come back, and why.
    left: Vec<(EntryCid, Seq, &'static str)>,
    /// New entries by the ones that they repeat.
    returned: BTreeMap<EntryCid, EntryCid>,
}

/// As what this node signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignerRole {
    Holder,
    Device,
}

/// An entry of the tail, with its words.
#[derive(Debug)]
struct Cut {
    cid: EntryCid,
    entry: Entry,
    payload: Payload,
}

impl BringBack {
    /// The answer: what came back, what is left, or what would be.
    #[must_use]
    pub fn answer(&self, made: &[(EntryCid, Value)], dry_run: bool) -> Value {
        let made: BTreeMap<_, _> = made.iter().map(|(cid, new)| (*cid, new)).collect();
        let entries = self.pending.iter().filter(|cut| dry_run || made.contains_key(&cut.cid)).map(|cut| {
            json!({
                "of": cut.cid.to_string(), "ofSeq": cut.entry.seq().get(), "type": cut.entry.body.type_name(),
                "entry": made.get(&cut.cid).map_or(Value::Null, |new| (*new).clone()),
            })
        });
        let left = self
            .left
            .iter()
            .map(|(cid, seq, why)| json!({"of": cid.to_string(), "ofSeq": seq.get(), "why": why}));
        json!({
            "v": 1, "kind": "fork-returned", "session": self.session.to_string(), "dryRun": dry_run,
            "signedAs": match self.signer { SignerRole::Holder => "holder", SignerRole::Device => "device" },
            "entries": entries.collect::<Vec<_>>(), "left": left.collect::<Vec<_>>(),
            "returnedBefore": self.returned.len(),
            "pending": if dry_run { self.pending.len() } else { self.pending.len() - made.len() },
        })
    }

    /// Whether the holder is another node, which puts in order what this one signs.
    #[must_use]
    pub fn is_for_the_holder(&self) -> bool {
        self.signer == SignerRole::Device
    }
}

impl Node {
    /// Looks what of the cut tail of a session has not come back, and whether this node may sign it.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`; where this node neither holds the session nor is a device of its owner, or may not sign now, what
    /// [`Node::append`] refuses.
    pub fn cut_words(&self, session: SessionId) -> Answer<BringBack> {
        self.judge_if_owed(session)?;
        let reader = self.reader()?;
        let standing = self.standing(&reader, session)?;
        let signer = self.signer_role(&reader, &standing)?;
        let mut tail = Vec::new();
        let mut after = None;
        loop {
            let page = reader.side_entries(session, after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.cid);
            tail.extend(page.into_iter().filter(|side| side.status == SideStatus::Fenced));
        }
        tail.sort_by_key(|side| (side.seq, side.cid));
        let from = tail.first().map(|side| side.seq);
        let returned = match from {
            Some(from) => returned(&reader, session, from, standing.row.tip.seq)?,
            None => BTreeMap::new(),
        };
        let (mut pending, mut left) = (Vec::new(), Vec::new());
        for side in tail.into_iter().filter(|side| !returned.contains_key(&side.cid)) {
            let entry = Decoded::<Entry>::decode(side.bytes)?.value().clone();
            let words = match entry.body {
                Body::UserMessage(_) | Body::ModelResponse(_) | Body::ToolCall(_) => side.payload,
                Body::Genesis(_) | Body::Note(_) | Body::Handoff(_) | Body::Seal(_) => {
                    left.push((side.cid, side.seq, "a note of the other history"));
                    continue;
                }
            };
            match payload_of(&reader, &entry, words)? {
                Some(payload) => pending.push(Cut { cid: side.cid, entry, payload }),
                None => left.push((side.cid, side.seq, "its words are not here")),
            }
        }
        Ok(BringBack { session, signer, pending, left, returned })
    }

    fn signer_role(&self, reader: &Reader, standing: &Standing) -> Answer<SignerRole> {
        let Err(refusal) = self.may_sign(reader, standing) else { return Ok(SignerRole::Holder) };
        let owner = standing.row.owner;
        let controls = controls_of(reader, owner, None)?;
        let granted = grant_of(&controls, owner, self.principal(), Role::Agent, None);
        match (refusal.code(), granted) {
            (Code::NotHolder | Code::Retired, Granted::Live(_)) => Ok(SignerRole::Device),
            (Code::NotHolder | Code::Retired, _) => {
                let (session, this) = (standing.row.session.short(), self.principal());
                let fix = format!("where the owner key is: throughline move {session} --to {this}");
                Err(refusal.hint(fix))
            }
            _ => Err(refusal),
        }
    }

    /// Signs what is to come back as holder, entry after entry, each with its commit.
    ///
    /// # Errors
    /// As [`Node::append`]; what was signed before stays, and the next run goes on after it.
    pub fn return_as_holder(&self, what: &BringBack) -> Answer<Vec<(EntryCid, Value)>> {
        let mut returned = what.returned.clone();
        let mut base = need_session(&self.reader()?, what.session)?.tip.cid;
        let mut made = Vec::new();
        for cut in &what.pending {
            let appended = self.append(&AppendRequest {
                session: what.session,
                base: Some(base),
                entries: vec![cut.as_it_was(&returned)],
                key: None,
                dry_run: false,
            })?;
            let entry = appended.answer["entries"][0].clone();
            base = entry["cid"].as_str().unwrap_or_default().parse()?;
            returned.insert(cut.cid, base);
            made.push((cut.cid, entry));
        }
        Ok(made)
    }

    /// Signs what is to come back as messages of a device, one on the other, for the holder to put in order: at most
    /// [`limits::APPEND_ENTRIES_MAX`].
    ///
    /// # Errors
    /// When one can't be signed, as where its words with their source are larger than a payload may be.
    pub fn return_as_device(&self, what: &BringBack) -> Answer<Vec<(EntryCid, SignedAppend)>> {
        let session = what.session;
        let reader = self.reader()?;
        let Standing { row, state } = self.standing(&reader, session)?;
        let controls = controls_of(&reader, row.owner, None)?;
        let granted = grant_of(&controls, row.owner, self.principal(), Role::Agent, None);
        let authority = granted.authority(row.owner, self.principal(), state.agent())?;
        let mut verifier = Verifier::resume(state, controls).with_ancestry(Held { reader: &reader, session });
        let cuts: Vec<&Cut> = what.pending.iter().take(limits::APPEND_ENTRIES_MAX).collect();
        for cut in &cuts {
            sign_on(&mut verifier, &cut.as_a_message(), Some(authority), now(), random()?, self.key())?;
        }
        let Some(segment) = verifier.finish()? else { return Ok(Vec::new()) };
        let signed = segment.entries().iter().map(|entry| SignedAppend {
            session,
            entry: Arc::clone(entry.signed().bytes()),
            payload: entry.payload().cloned(),
            grants: Vec::new(),
            dry_run: false,
        });
        Ok(cuts.into_iter().map(|cut| cut.cid).zip(signed).collect())
    }
}

impl Cut {
    fn source(&self) -> Source {
        Source {
            format: FORMAT.to_owned(),
            file: self.cid.cid(),
            line: 1,
            lines: Vec::new(),
            id: None,
            ts: None,
            group: None,
            parent: None,
        }
    }

    /// The entry again, on another history. What it names there that came back is named here by its new place.
    fn as_it_was(&self, returned: &BTreeMap<EntryCid, EntryCid>) -> EntryDraft {
        let mut body = self.entry.body.clone();
        let mut words = self.payload.words().clone();
        let source = Some(self.source());
        match (&mut body, &mut words) {
            (Body::ModelResponse(_), Words::ModelResponse(words)) => words.source = source,
            (Body::ToolCall(call), Words::ToolCall(words)) => {
                words.source = source;
                call.response = call.response.map(|asked| returned.get(&asked).copied().unwrap_or(asked));
            }
            _ => return self.as_a_message(),
        }
        EntryDraft { body, payload: Some(PayloadDraft::new(words)), ext: self.entry.ext.clone() }
    }

    /// The words as a message of whoever or whatever said them.
    fn as_a_message(&self) -> EntryDraft {
        let by = |id: &str, role: &str| {
            Some(Participant { id: id.to_owned(), role: Some(role.to_owned()), channel: None })
        };
        let mut words = match (&self.entry.body, self.payload.words()) {
            (Body::ModelResponse(response), _) => self.flattened(by(&response.model.id, "assistant")),
            (Body::ToolCall(call), _) => self.flattened(by(&call.name, "tool")),
            (_, Words::UserMessage(words)) => {
                let signer = self.entry.signer.to_string();
                let participant = words.participant.clone().or_else(|| by(&signer, "user"));
                UserWords { participant, ..words.clone() }
            }
            _ => self.flattened(None),
        };
        words.envelope = None;
        words.source = Some(self.source());
        // The holder knows a message that is sent again by this.
        words.client_message_id = Some(format!("returned-{}", self.cid));
        EntryDraft {
            body: Body::UserMessage(UserMessage {
                origin: Some(Origin::Import),
                answers: None,
                envelope: None,
            }),
            payload: Some(PayloadDraft::new(Words::UserMessage(words))),
            ext: None,
        }
    }

    fn flattened(&self, participant: Option<Participant>) -> UserWords {
        let media = self.payload.content().iter().filter_map(|content| {
            let Content::Media(media) = content else { return None };
            Some(Attachment {
                cid: media.cid,
                name: media.name.clone(),
                size: media.size,
                media_type: media.media_type.clone(),
            })
        });
        UserWords {
            body: vec![Block::paragraph("1", self.payload.text())],
            context: None,
            attachments: media.collect(),
            participant,
            client_message_id: None,
            envelope: None,
            source: None,
        }
    }
}

/// What of the tail has come back: the entries of the chain that name one as their source.
fn returned(reader: &Reader, session: SessionId, from: Seq, to: Seq) -> Answer<BTreeMap<EntryCid, EntryCid>> {
    let mut found = BTreeMap::new();
    for stored in reader.entries(session, from, to)? {
        let stored = stored?;
        let entry = Decoded::<Entry>::decode(stored.bytes)?;
        let Some(payload) = payload_of(reader, entry.value(), stored.payload)? else { continue };
        if let Some(source) = payload.source().filter(|source| source.format == FORMAT)
            && let Ok(of) = EntryCid::try_from(source.file)
        {
            found.insert(of, stored.cid);
        }
    }
    Ok(found)
}

fn payload_of(reader: &Reader, entry: &Entry, cid: Option<EntryCid>) -> Answer<Option<Payload>> {
    let Some(cid) = cid else { return Ok(None) };
    match reader.payload(cid)? {
        PayloadState::Present(bytes) => Ok(Some(Payload::check(entry, bytes)?)),
        PayloadState::Absent | PayloadState::Dropped => Ok(None),
    }
}
