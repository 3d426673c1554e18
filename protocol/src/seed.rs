//! Seed's Change, Comment, Contact and Profile, as far as a session cites them or is cited. `docs/PROTOCOL.md`
//! §Control blobs.
//!
//! They are read strictly at the top — closed fields, Seed's own defaults left out — and kept as they came below it:
//! a `body` is open and may hold null. What such a blob does in Seed is not decided here; of its content only `context`
//! means something to a session. Capability and Ref, which do, are in [`crate::control`].

use crate::block::{SignatureField, SignedBlob};
use crate::build::Writable;
use crate::code::{Code, Reject};
use crate::codec::{self, Map, Value, encode_map};
use crate::control::seed_path;
use crate::entry::{shown_type, signature_field, type_of};
use crate::id::{Cid, EntryCid, Principal, SessionId, UnixMillis};
use crate::limits;
use crate::schema::{self, Fields};
use crate::sign::SIGNATURE_BYTES;

/// Which of Seed's documents it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SeedKind {
    /// A change of a document.
    Change,
    /// A comment on one.
    Comment,
    /// An entry of an address book.
    Contact,
    /// What an account says of itself.
    Profile,
}

impl SeedKind {
    /// The blob's type name.
    #[must_use]
    pub fn type_name(self) -> &'static str {
        match self {
            SeedKind::Change => "Change",
            SeedKind::Comment => "Comment",
            SeedKind::Contact => "Contact",
            SeedKind::Profile => "Profile",
        }
    }

    /// The kind with this type name.
    #[must_use]
    pub fn of(type_name: &str) -> Option<Self> {
        [SeedKind::Change, SeedKind::Comment, SeedKind::Contact, SeedKind::Profile]
            .into_iter()
            .find(|kind| kind.type_name() == type_name)
    }
}

/// One of Seed's documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedBlob {
    kind: SeedKind,
    ts: UnixMillis,
    signer: Principal,
    context: Option<Context>,
    /// All fields but the signature.
    fields: Map<'static>,
}

/// The session that a Change or Comment says it came from. A claim: the session's tool call has to name the blob too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The response that asked.
    pub response: EntryCid,
    /// Its session.
    pub session: SessionId,
}

impl SeedBlob {
    /// A blob from its fields, without `sig`.
    ///
    /// # Errors
    /// What the schema refuses.
    pub fn new(fields: Map<'static>) -> Result<Self, Reject> {
        if fields.contains("sig") {
            return Err(Reject::new(Code::SchemaExclusive, "the signature is added by signing"));
        }
        let type_name = type_of(&fields)?;
        let kind = SeedKind::of(&type_name).ok_or_else(|| {
            Reject::new(Code::Type, format!("expected a blob of Seed's, got {}", shown_type(&type_name)))
        })?;
        let context = match kind {
            SeedKind::Change => check_change(&fields)?,
            SeedKind::Comment => check_comment(&fields)?,
            SeedKind::Contact => check_contact(&fields)?,
            SeedKind::Profile => check_profile(&fields)?,
        };
        let header = Fields::open(&fields, kind.type_name(), HEADER_KEYS)?;
        let ts = header.need("ts", schema::millis)?;
        let signer = header.need("signer", schema::principal)?;
        Ok(SeedBlob { kind, ts, signer, context, fields })
    }

    /// Which it is.
    #[must_use]
    pub fn kind(&self) -> SeedKind {
        self.kind
    }

    /// When it was made, as its signer says.
    #[must_use]
    pub fn ts(&self) -> UnixMillis {
        self.ts
    }

    /// All fields but the signature.
    #[must_use]
    pub fn fields(&self) -> &Map<'static> {
        &self.fields
    }

    /// The response and session that it cites: in its `context`, else (for daemons that refuse that field) in attributes
    /// `["context","0"]` and `["context","1"]` of a Change.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        self.context.or_else(|| attribute_context(&self.fields))
    }

    fn to_bytes(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
        let map: Map<'_> = self.fields.clone();
        encode_map(&map.with("sig", &signature[..]))
    }
}

impl SignedBlob for SeedBlob {
    fn read(bytes: &[u8]) -> Result<(Self, SignatureField), Reject> {
        let map = open_seed(bytes)?;
        let mut fields = map.clone();
        fields.remove("sig");
        let blob = SeedBlob::new(fields.into_owned()).map_err(|reject| {
            // What is unknown, no ASCII or no type of Seed's is told before what is missing; all else after it.
            let first = matches!(
                reject.code,
                Code::SchemaKey | Code::SchemaUnknown | Code::SchemaMissing | Code::Type
            );
            if first || map.contains("sig") {
                return reject;
            }
            Reject::new(Code::SchemaMissing, "a signed blob needs `sig`")
        })?;
        let signature = signature_field(bytes, &map)?;
        if blob.to_bytes(&signature.signature) != bytes {
            return Err(Reject::new(Code::CborNoncanon, "writing the blob again gives other bytes"));
        }
        Ok((blob, signature))
    }

    fn signer(&self) -> Principal {
        self.signer
    }
}

impl Writable for SeedBlob {
    fn write(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
        self.to_bytes(signature)
    }
}

/// Size and codec of a blob of any type: at most one raw block, 64 levels.
pub(crate) fn open_seed(bytes: &[u8]) -> Result<Map<'_>, Reject> {
    if bytes.len() > limits::RAW_BLOCK_BYTES_MAX {
        let what = format!("expected at most {} bytes, got {}", limits::RAW_BLOCK_BYTES_MAX, bytes.len());
        return Err(Reject::new(Code::TooBig, what));
    }
    match codec::decode_payload(bytes)? {
        (Value::Map(map), _) => Ok(map),
        _ => Err(Reject::new(Code::SchemaType, "expected a map")),
    }
}

const HEADER_KEYS: &[&str] = &["ts", "type", "signer"];

/// The fields of a type, none of which is its signature.
fn closed<'m>(
    map: &'m Map<'static>,
    what: &'static str,
    required: &[&str],
    optional: &[&str],
) -> Result<Fields<'m, 'static>, Reject> {
    let fields = Fields::closed(map, what, &[HEADER_KEYS, required].concat(), optional)?;
    // The first fields of every blob, so the first that are judged.
    fields.need("ts", schema::millis)?;
    fields.need("signer", schema::principal)?;
    Ok(fields)
}

fn check_change(map: &Map<'static>) -> Result<Option<Context>, Reject> {
    let fields = closed(map, "Change", &[], &["genesis", "deps", "depth", "body", "context"])?;
    fields.maybe("genesis", schema::block)?;
    fields.maybe("deps", schema::list(usize::MAX, schema::block))?;
    fields.maybe("depth", schema::uint)?;
    fields.lax("body", schema::map(|_| Ok(())))?;
    fields.maybe("context", read_context)
}

fn check_comment(map: &Map<'static>) -> Result<Option<Context>, Reject> {
    let optional =
        ["id", "space", "capability", "version", "threadRoot", "replyParent", "visibility", "context"];
    let fields = closed(map, "Comment", &["body", "path"], &optional)?;
    fields.maybe("id", schema::text)?;
    fields.maybe("space", schema::principal)?;
    fields.maybe("capability", schema::cap)?;
    fields.need("path", seed_path)?;
    fields.lax("version", schema::list(usize::MAX, schema::block))?;
    let root = fields.maybe("threadRoot", schema::block)?;
    let parent = fields.maybe("replyParent", schema::block)?;
    fields.need("body", |value| {
        value.as_list().map(|_| ()).ok_or_else(|| Reject::new(Code::SchemaType, "expected an array"))
    })?;
    fields.maybe("visibility", schema::word(&[("Private", ())]))?;
    let context = fields.maybe("context", read_context)?;
    if parent.is_some() && root.is_none() {
        return Err(Reject::new(Code::SchemaMissing, "a reply needs `threadRoot`"));
    }
    Ok(context)
}

fn check_contact(map: &Map<'static>) -> Result<Option<Context>, Reject> {
    let fields = closed(map, "Contact", &[], &["id", "account", "subject", "name", "subscribe"])?;
    fields.maybe("id", schema::text)?;
    fields.maybe("account", schema::principal)?;
    fields.maybe("subject", schema::principal)?;
    fields.maybe("name", schema::text)?;
    fields.maybe("subscribe", schema::map(|_| Ok(())))?;
    Ok(None)
}

fn check_profile(map: &Map<'static>) -> Result<Option<Context>, Reject> {
    let fields = closed(map, "Profile", &[], &["account", "alias", "name", "avatar", "description"])?;
    fields.maybe("account", schema::principal)?;
    fields.maybe("alias", schema::principal)?;
    fields.maybe("name", schema::text)?;
    fields.maybe("avatar", schema::text)?;
    fields.maybe("description", schema::text)?;
    Ok(None)
}

fn read_context(value: &Value<'static>) -> Result<Context, Reject> {
    let two = |links: usize| {
        Reject::new(Code::SchemaLen, format!("expected a response and a genesis, got {links} links"))
    };
    if let Some(links) = value.as_list().map(<[_]>::len).filter(|links| *links != 2) {
        return Err(two(links));
    }
    match schema::list(2, schema::entry)(value)?[..] {
        [response, genesis] => Ok(Context { response, session: SessionId::of_genesis(genesis) }),
        ref links => Err(two(links.len())),
    }
}

/// The context that `SetAttributes` ops of a Change give, the last one of each winning.
fn attribute_context(change: &Map<'_>) -> Option<Context> {
    let ops = change.get("body")?.as_map()?.get("ops")?.as_list()?;
    let cited = |index: &str| {
        ops.iter()
            .filter_map(|op| op.as_map()?.get("attrs")?.as_list())
            .flatten()
            .filter_map(|attribute| cited_at(attribute, index))
            .next_back()
    };
    Some(Context { response: cited("0")?, session: SessionId::of_genesis(cited("1")?) })
}

fn cited_at(attribute: &Value<'_>, index: &str) -> Option<EntryCid> {
    let attribute = attribute.as_map()?;
    match attribute.get("key")?.as_list()? {
        [Value::Text(first), Value::Text(second)] if first == "context" && second == index => {}
        _ => return None,
    }
    let cid: Cid = attribute.get("value")?.as_text()?.strip_prefix("ipfs://")?.parse().ok()?;
    EntryCid::try_from(cid).ok()
}

#[cfg(test)]
#[path = "seed_tests.rs"]
mod tests;
