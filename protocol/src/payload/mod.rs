//! Payloads: the words of an entry, in a block of their own. `docs/PROTOCOL.md` §Payloads.
//!
//! [`Payload::check`] decides whether bytes are the payload that an entry names: their length and hash, the strict
//! encoding, and the fields that the entry's type (and a note's kind) allows. A payload has no type of its own, so it is
//! never read without its entry. Whether it may be held at all — redaction, class — is decided above.
//!
//! It never parses what is text by rule: tool inputs, outputs, raw records.

mod config;
mod parts;
mod salts;
mod words;

use std::sync::Arc;

pub use config::ConfigBlock;
pub use parts::{
    Attachment, Environment, Failure, ImportReport, KeptRaw, Participant, Repaired, Segment, Skipped, Source,
};
pub use salts::{ImportSalts, RecordId};
pub(crate) use words::keys as word_keys;
pub use words::{CompactionWords, GenesisWords, ResponseWords, ToolWords, UserWords, Words};

use crate::block::sha256;
use crate::code::{Code, Reject};
use crate::codec::{self, Map, Value, encode_map};
use crate::content::{Block, Content};
use crate::entry::{Body, Entry, PayloadRef};
use crate::id::{Cid, EntryCid};
use crate::limits;
use crate::schema;

/// The salt of a payload or config block. It goes when the words go, so the CID that stays confirms no guess.
pub type Salt = [u8; 32];

/// The payload of one entry: bytes that were checked against it, and what they say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    words: Words,
    salt: Salt,
    ext: Option<Map<'static>>,
    bytes: Arc<[u8]>,
    cid: EntryCid,
}

impl Payload {
    /// Checks that `bytes` are the payload of `entry`.
    ///
    /// # Errors
    /// `E_SCHEMA_UNKNOWN` for an entry without one, `E_TOO_BIG` above 1 MiB, `E_SCHEMA_LEN` for another length than the
    /// entry says, `E_CID_MISMATCH` for another hash or an `envelope` that the entry does not name; else what the codec
    /// and the schema refuse.
    pub fn check(entry: &Entry, bytes: impl Into<Arc<[u8]>>) -> Result<Self, Reject> {
        let bytes = bytes.into();
        let Some(named) = entry.payload else {
            return Err(Reject::new(Code::SchemaUnknown, "the entry names no payload"));
        };
        check_size(&bytes)?;
        if bytes.len() as u64 != named.size {
            let what = format!("expected a payload of {} bytes, got {}", named.size, bytes.len());
            return Err(Reject::new(Code::SchemaLen, what));
        }
        let cid = EntryCid::of(&bytes);
        if cid != named.cid {
            let what = format!("bytes given for payload {} hash to something else", named.cid.short());
            return Err(Reject::new(Code::CidMismatch, what));
        }
        let payload = Payload::read(&entry.body, bytes, cid)?;
        payload.check_envelope(&entry.body)?;
        Ok(payload)
    }

    /// Reads bytes that hash to `cid` as the payload of an entry with this body, whatever the entry names.
    fn read(body: &Body, bytes: Arc<[u8]>, cid: EntryCid) -> Result<Self, Reject> {
        let (value, facts) = codec::decode_payload(&bytes)?;
        let Value::Map(map) = &value else {
            return Err(Reject::new(Code::SchemaType, "expected a payload to be a map"));
        };
        if facts.non_ascii_key {
            return Err(Reject::new(Code::SchemaKey, "a key of the payload is not ASCII"));
        }
        let words = words::read(body, map, (&["salt"], &["x"]))?;
        let fields = schema::Fields::open(map, "payload", &["salt"])?;
        let salt = fields.need("salt", schema::fixed::<32>)?;
        let ext = fields.maybe("x", schema::ext)?;
        if facts.null {
            return Err(Reject::new(Code::SchemaNull, "null in a payload"));
        }
        if encode(&words, salt, ext.as_ref()) != *bytes {
            return Err(Reject::new(Code::CborNoncanon, "writing the payload again gives other bytes"));
        }
        Ok(Payload { words, salt, ext, bytes, cid })
    }

    /// A relayed message carries the action that its entry names by hash; no other message carries one.
    fn check_envelope(&self, body: &Body) -> Result<(), Reject> {
        let Body::UserMessage(message) = body else { return Ok(()) };
        let Words::UserMessage(words) = &self.words else { return Ok(()) };
        match (message.envelope, &words.envelope) {
            (None, None) => Ok(()),
            (Some(hash), Some(envelope)) if sha256(envelope) == hash => Ok(()),
            (Some(_), Some(_)) => {
                Err(Reject::new(Code::CidMismatch, "`envelope` does not hash to what the entry names"))
            }
            (Some(_), None) => Err(Reject::new(Code::SchemaMissing, "a relayed message needs `envelope`")),
            (None, Some(_)) => {
                Err(Reject::new(Code::SchemaExclusive, "`envelope` stands with origin relayed only"))
            }
        }
    }

    /// What it says.
    #[must_use]
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Its salt.
    #[must_use]
    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    /// Its extension fields.
    #[must_use]
    pub fn ext(&self) -> Option<&Map<'static>> {
        self.ext.as_ref()
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// What its entry calls it.
    #[must_use]
    pub fn named(&self) -> PayloadRef {
        PayloadRef { cid: self.cid, size: self.bytes.len() as u64 }
    }

    /// The title that a genesis or a title note sets.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        match &self.words {
            Words::Genesis(words) => words.title.as_deref(),
            Words::Title(title) => Some(title),
            Words::UserMessage(_)
            | Words::ModelResponse(_)
            | Words::ToolCall(_)
            | Words::Compaction(_)
            | Words::Rewind(_)
            | Words::Error(_)
            | Words::Import(_) => None,
        }
    }

    /// The words a person reads, flattened: of a message its blocks, of a response and a tool call their text, of a note
    /// its title, summary, reason or message. Empty when there are none.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.words {
            Words::Genesis(words) => words.title.clone().unwrap_or_default(),
            Words::UserMessage(words) => Block::flatten(&words.body),
            Words::ModelResponse(words) => flatten(&words.content),
            Words::ToolCall(words) if words.content.is_empty() => {
                words.error.clone().or_else(|| words.output.clone()).unwrap_or_default()
            }
            Words::ToolCall(words) => flatten(&words.content),
            Words::Title(title) => title.clone(),
            Words::Compaction(words) => words.summary.clone().unwrap_or_default(),
            Words::Rewind(reason) => reason.clone().unwrap_or_default(),
            Words::Error(failure) => failure.message.clone(),
            Words::Import(_) => String::new(),
        }
    }

    /// The content of a response, or what the model saw of a tool's result.
    #[must_use]
    pub fn content(&self) -> &[Content] {
        match &self.words {
            Words::ModelResponse(words) => &words.content,
            Words::ToolCall(words) => &words.content,
            Words::Genesis(_)
            | Words::UserMessage(_)
            | Words::Title(_)
            | Words::Compaction(_)
            | Words::Rewind(_)
            | Words::Error(_)
            | Words::Import(_) => &[],
        }
    }

    /// The attachments of a message.
    #[must_use]
    pub fn attachments(&self) -> &[Attachment] {
        if let Words::UserMessage(words) = &self.words { &words.attachments } else { &[] }
    }

    /// The files that it names: attachments, media, the bytes that an import was made from. A link that can be no file is left out.
    #[must_use]
    pub fn files(&self) -> Vec<Cid> {
        self.file_links().filter(Cid::is_file).collect()
    }

    /// Refuses words that call something a file that can be none. Whoever signs or orders them looks; what is in order stands.
    ///
    /// # Errors
    /// `E_CID_CODEC`.
    pub fn check_files(&self) -> Result<(), Reject> {
        match self.file_links().find(|cid| !cid.is_file()) {
            None => Ok(()),
            Some(cid) => {
                let what =
                    format!("expected a file to be named by a raw or dag-pb CID under sha2-256, got {cid}");
                Err(Reject::new(Code::CidCodec, what))
            }
        }
    }

    /// All that it calls a file.
    fn file_links(&self) -> impl Iterator<Item = Cid> {
        let attached = self.attachments().iter().map(|attachment| attachment.cid);
        let shown = self
            .content()
            .iter()
            .filter_map(|content| if let Content::Media(media) = content { Some(media.cid) } else { None });
        let imported = self.import_report().map(|report| report.segments.iter().map(|segment| segment.cid));
        attached.chain(shown).chain(imported.into_iter().flatten())
    }

    /// The record that the entry was imported from.
    #[must_use]
    pub fn source(&self) -> Option<&Source> {
        match &self.words {
            Words::Genesis(words) => words.source.as_ref(),
            Words::UserMessage(words) => words.source.as_ref(),
            Words::ModelResponse(words) => words.source.as_ref(),
            Words::ToolCall(words) => words.source.as_ref(),
            Words::Title(_)
            | Words::Compaction(_)
            | Words::Rewind(_)
            | Words::Error(_)
            | Words::Import(_) => None,
        }
    }

    /// The report of an import note.
    #[must_use]
    pub fn import_report(&self) -> Option<&ImportReport> {
        if let Words::Import(report) = &self.words { Some(report) } else { None }
    }
}

/// Words on their way into a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadDraft {
    /// What it will say.
    pub words: Words,
    /// Extension fields.
    pub ext: Option<Map<'static>>,
}

impl PayloadDraft {
    /// A draft that says `words`.
    #[must_use]
    pub fn new(words: Words) -> Self {
        PayloadDraft { words, ext: None }
    }

    /// A draft from the fields of a payload of an entry with this body, without `salt`.
    ///
    /// # Errors
    /// What the schema refuses.
    pub fn from_fields(body: &Body, fields: &Map<'_>) -> Result<Self, Reject> {
        let words = words::read(body, fields, (&[], &["x"]))?;
        let ext = schema::Fields::open(fields, "payload", &[])?.maybe("x", schema::ext)?;
        Ok(PayloadDraft { words, ext })
    }

    /// Writes it and checks the result as the payload of an entry with this body. Gives the bytes and what the entry
    /// calls them.
    ///
    /// # Errors
    /// As [`Payload::check`].
    pub fn build(&self, body: &Body, salt: Salt) -> Result<(Vec<u8>, PayloadRef), Reject> {
        let bytes = encode(&self.words, salt, self.ext.as_ref());
        check_size(&bytes)?;
        let payload = Payload::read(body, bytes.as_slice().into(), EntryCid::of(&bytes))?;
        payload.check_envelope(body)?;
        if payload.words != self.words {
            let what = format!("the words are not those of a {}", body.type_name());
            return Err(Reject::new(Code::SchemaType, what));
        }
        Ok((bytes, payload.named()))
    }
}

impl From<Words> for PayloadDraft {
    fn from(words: Words) -> Self {
        PayloadDraft::new(words)
    }
}

fn encode(words: &Words, salt: Salt, ext: Option<&Map<'static>>) -> Vec<u8> {
    encode_map(&words.to_map().with("salt", &salt[..]).with_some("x", ext.cloned()))
}

fn check_size(bytes: &[u8]) -> Result<(), Reject> {
    if bytes.len() <= limits::PAYLOAD_BYTES_MAX {
        return Ok(());
    }
    let what =
        format!("expected at most {} bytes of payload, got {}", limits::PAYLOAD_BYTES_MAX, bytes.len());
    Err(Reject::new(Code::TooBig, what))
}

fn flatten(content: &[Content]) -> String {
    content.iter().filter_map(Content::words).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
