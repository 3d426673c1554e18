//! Announcements: a new head, a handoff or a revocation, told to everyone on the owner's topic.
//! `docs/PROTOCOL.md` §Announcements, tickets, files.
//!
//! [`check`] decides what a message's own bytes decide, before it is forwarded: size, form, signatures, whose topic, and
//! whether the capability that comes along is one under which its signer may say this. What needs held state — whether
//! that capability was revoked, whether the head is new, whether the session is public — is for the sync engine. A
//! message is a hint: it never moves a head by itself.

use std::sync::Arc;

use super::{Message as _, addresses, blobs, control_blob, texts};
use crate::block::Signed;
use crate::code::{Code, Reject};
use crate::codec::{self, Map};
use crate::control::{Capability, Control, Ref, Role, SessionHead, Tombstone};
use crate::entry::Entry;
use crate::evidence::Exhibit;
use crate::id::{Cid, Epoch, Principal, Seq, SessionId};
use crate::limits;
use crate::schema::{self, Fields};
use crate::sign::VerifyingKeys;

const TOPIC_PREFIX: &str = "/throughline/1/";

/// The topic of an owner's announcements.
#[must_use]
pub fn topic(owner: Principal) -> String {
    format!("{TOPIC_PREFIX}{owner}")
}

/// The owner whose topic this is; none for another topic.
#[must_use]
pub fn topic_owner(topic: &str) -> Option<Principal> {
    topic.strip_prefix(TOPIC_PREFIX)?.parse().ok()
}

/// An announcement as it travels. Its blobs were not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// A Ref, a SessionHandoff or a CapabilityTombstone.
    pub blob: Arc<[u8]>,
    /// The capability that it was signed under, or the grant that it names; at most
    /// [`limits::ANNOUNCEMENT_CONTROL_MAX`].
    pub control: Vec<Arc<[u8]>>,
    /// Where to find more.
    pub hint: Hint,
}

/// What an announcer adds; nothing of it is signed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// Position of the head.
    pub seq: Seq,
    /// Its epoch.
    pub epoch: Epoch,
    /// The iroh endpoint of the announcer.
    pub iroh: Option<[u8; 32]>,
    /// Addresses of peers that have it; at most [`limits::ADDRESSES_MAX`].
    pub providers: Vec<String>,
}

impl super::Message for Message {
    fn to_map(&self) -> Map<'_> {
        let hint = self.hint.to_map();
        Map::new()
            .with("blob", &self.blob[..])
            .with_some("control", (!self.control.is_empty()).then(|| blobs(&self.control)))
            .with_some("hint", (!hint.is_empty()).then_some(hint))
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "announcement", &["blob"])?;
        let control = schema::list(limits::ANNOUNCEMENT_CONTROL_MAX, control_blob);
        Ok(Message {
            blob: fields.need("blob", control_blob)?,
            control: fields.maybe("control", control)?.unwrap_or_default(),
            hint: fields.maybe("hint", schema::map(Hint::from_map))?.unwrap_or_default(),
        })
    }
}

impl Message {
    /// The message's bytes.
    ///
    /// # Errors
    /// `E_TOO_BIG` above [`limits::ANNOUNCEMENT_BYTES_MAX`]: take providers out of the hint.
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let bytes = self.encode_body();
        check_size(&bytes)?;
        Ok(bytes)
    }

    /// Reads a message.
    ///
    /// # Errors
    /// `E_TOO_BIG`, then as [`super::Message::decode_body`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Reject> {
        check_size(bytes)?;
        Message::decode_body(bytes)
    }
}

fn check_size(bytes: &[u8]) -> Result<(), Reject> {
    if bytes.len() <= limits::ANNOUNCEMENT_BYTES_MAX {
        return Ok(());
    }
    let what = format!("expected at most {} bytes, got {}", limits::ANNOUNCEMENT_BYTES_MAX, bytes.len());
    Err(Reject::new(Code::TooBig, what))
}

impl Hint {
    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with_some("seq", (self.seq > Seq::ZERO).then_some(self.seq))
            .with_some("epoch", (self.epoch > Epoch::ZERO).then_some(self.epoch))
            .with_some("iroh", self.iroh.as_ref().map(|key| &key[..]))
            .with_some("providers", (!self.providers.is_empty()).then(|| texts(&self.providers)))
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "hint", &[])?;
        Ok(Hint {
            seq: fields.maybe("seq", super::chain::seq)?.unwrap_or(Seq::ZERO),
            epoch: fields.maybe("epoch", schema::epoch)?.unwrap_or(Epoch::ZERO),
            iroh: fields.maybe("iroh", schema::fixed)?,
            providers: fields.maybe("providers", addresses)?.unwrap_or_default(),
        })
    }
}

/// Reads the evidence of a message, if it is such a message.
///
/// # Errors
/// Size and codec of the message; `E_SCHEMA_EXCLUSIVE` for one that announces something else too; as [`Exhibit::check`].
pub fn evidence(bytes: &[u8], keys: &mut VerifyingKeys) -> Result<Option<Exhibit>, Reject> {
    check_size(bytes)?;
    let (value, _) = codec::decode(bytes, limits::ENTRY_DEPTH_MAX)?;
    let Some(map) = value.as_map() else { return Ok(None) };
    let Some(file) = map.get(EVIDENCE) else { return Ok(None) };
    if map.iter().count() > 1 {
        // So a message tells by its first bytes whether checking it will cost signatures.
        return Err(Reject::new(Code::SchemaExclusive, "expected evidence alone, got more"));
    }
    let file =
        file.as_bytes().ok_or_else(|| Reject::new(Code::SchemaType, "expected bytes in `evidence`"))?;
    Exhibit::check(file, keys).map(Some)
}

/// The message that tells evidence. It holds the whole file, so whoever gets it can judge it before passing it on.
///
/// # Errors
/// `E_TOO_BIG`: then it is not told; who compares heads finds the branches all the same.
pub fn evidence_message(exhibit: &Exhibit) -> Result<Vec<u8>, Reject> {
    let bytes = codec::encode_map(&Map::new().with(EVIDENCE, &exhibit.bytes()[..]));
    check_size(&bytes)?;
    Ok(bytes)
}

/// The key of a message that tells evidence.
const EVIDENCE: &str = "evidence";

/// A checked announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// What is announced.
    pub news: News,
    /// Under what it was signed.
    pub authority: Acting,
    /// The control blobs that came along; each is signed by the owner.
    pub control: Vec<Signed<Control>>,
    /// Where to find more, if the announcer is honest.
    pub hint: Hint,
}

/// What is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A head.
    Head {
        /// The Ref.
        reference: Signed<Ref>,
        /// What it says.
        head: SessionHead,
    },
    /// A handoff.
    Handoff {
        /// The entry.
        entry: Box<Signed<Entry>>,
        /// Its session.
        session: SessionId,
    },
    /// A revocation.
    Tombstone(Signed<Tombstone>),
    /// Evidence: it says itself what it shows, whoever tells it.
    Evidence(Box<Exhibit>),
}

/// Under what an announced blob was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acting {
    /// By the owner.
    Owner,
    /// Under this capability, which came along and fits, revocation apart.
    Under(Cid),
    /// Under this capability, which did not come along.
    Cited(Cid),
}

impl Announcement {
    /// The session that it is about; a tombstone is about none.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        match &self.news {
            News::Head { head, .. } => Some(head.session),
            News::Handoff { session, .. } => Some(*session),
            News::Evidence(exhibit) => Some(exhibit.session()),
            News::Tombstone(_) => None,
        }
    }
}

/// Checks a message on the topic of `owner`.
///
/// # Errors
/// Size, codec and schema of the message, as [`evidence`]; then of each blob size, codec, schema, key and signature; `E_TYPE` for a blob
/// that is not announced; `E_TOPIC` for a blob of another owner; an `E_CAP_…` code for a signer who is not the owner and
/// whose capability is missing or does not fit; `E_REF_MISMATCH` for a Ref that is not a session's.
pub fn check(owner: Principal, bytes: &[u8], keys: &mut VerifyingKeys) -> Result<Announcement, Reject> {
    if let Some(exhibit) = evidence(bytes, keys)? {
        on_topic(owner, exhibit.owner())?;
        let news = News::Evidence(Box::new(exhibit));
        return Ok(Announcement {
            news,
            authority: Acting::Owner,
            control: Vec::new(),
            hint: Hint::default(),
        });
    }
    let message = Message::decode(bytes)?;
    let news = read_news(&message.blob, keys)?;
    let mut control = Vec::with_capacity(message.control.len());
    for bytes in message.control {
        let blob = Signed::<Control>::check(bytes, keys).map_err(|reject| reject.within("control[]"))?;
        on_topic(owner, control_owner(blob.value())?)?;
        control.push(blob);
    }
    let authority = match &news {
        News::Head { reference, head } => {
            on_topic(owner, reference.value().owner())?;
            acting(owner, reference.value(), head.session, &control)?
        }
        News::Handoff { entry, .. } => {
            on_topic(owner, entry.value().owner())?;
            Acting::Owner
        }
        News::Tombstone(tombstone) => {
            on_topic(owner, tombstone.value().signer)?;
            Acting::Owner
        }
        // It is told in a message of its own, which was read above.
        News::Evidence(_) => return Err(Code::Internal.into()),
    };
    Ok(Announcement { news, authority, control, hint: message.hint })
}

fn read_news(bytes: &Arc<[u8]>, keys: &mut VerifyingKeys) -> Result<News, Reject> {
    match codec::type_word(bytes)?.as_deref() {
        Some("Ref") => {
            let reference = Signed::<Ref>::check(Arc::clone(bytes), keys)?;
            let head = reference.value().session_head()?;
            Ok(News::Head { reference, head })
        }
        Some("SessionHandoff") => {
            let entry = Signed::<Entry>::check(Arc::clone(bytes), keys)?;
            let session = entry.value().session(entry.cid());
            Ok(News::Handoff { entry: Box::new(entry), session })
        }
        Some("CapabilityTombstone") => Signed::check(Arc::clone(bytes), keys).map(News::Tombstone),
        _ => Err(Reject::new(Code::Type, "expected a Ref, SessionHandoff or CapabilityTombstone")),
    }
}

fn on_topic(owner: Principal, named: Principal) -> Result<(), Reject> {
    if owner == named {
        return Ok(());
    }
    let what = format!("expected a blob of {}, got one of {}", owner.short(), named.short());
    Err(Reject::new(Code::Topic, what))
}

/// The owner of a blob that comes along: Capabilities and Tombstones are the owner's own.
fn control_owner(control: &Control) -> Result<Principal, Reject> {
    match control {
        Control::Capability(capability) => Ok(capability.signer),
        Control::Tombstone(tombstone) => Ok(tombstone.signer),
        Control::Ref(_) => Err(Reject::new(Code::Type, "expected a Capability or Tombstone in `control`")),
    }
}

/// Whether the Ref's signer may say this, as far as the message tells.
fn acting(
    owner: Principal,
    reference: &Ref,
    session: SessionId,
    control: &[Signed<Control>],
) -> Result<Acting, Reject> {
    if reference.signer == owner {
        return Ok(Acting::Owner);
    }
    let cited = reference.capability.ok_or_else(|| {
        Reject::new(Code::CapMissing, format!("{} cites no capability", reference.signer.short()))
    })?;
    let held = control.iter().find(|blob| cited.matches(blob.bytes()));
    match held.map(Signed::value) {
        Some(Control::Capability(capability)) => {
            check_grant(capability, reference.signer, session)?;
            Ok(Acting::Under(cited))
        }
        Some(Control::Tombstone(_) | Control::Ref(_)) => {
            Err(Reject::new(Code::CapMissing, "the cited capability is something else"))
        }
        None => Ok(Acting::Cited(cited)),
    }
}

/// A Ref is signed by a device or the holder. A path to an agent needs the genesis to be judged; one to a session not.
fn check_grant(capability: &Capability, signer: Principal, session: SessionId) -> Result<(), Reject> {
    let grant = capability.grant()?;
    if grant.delegate != signer {
        return Err(Reject::new(Code::CapMissing, "the capability is another key's"));
    }
    if !matches!(grant.role, Role::Agent | Role::Writer) {
        return Err(Reject::new(Code::CapRole, "expected a device's or a writer's capability"));
    }
    match &grant.scope {
        Some(scope) if scope.as_str().starts_with("/session-") && scope.as_str() != session.path() => {
            Err(Reject::new(Code::CapScope, "the capability is for another session"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "announce_tests.rs"]
mod tests;
