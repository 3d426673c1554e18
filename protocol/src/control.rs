//! Control blobs: Capability and Ref (Seed's, unchanged) and CapabilityTombstone. `docs/PROTOCOL.md` §Control blobs.
//!
//! Reading says that a blob is well formed. What a capability allows is asked with [`Capability::grant`] and
//! [`Grant::covers`]; whether it still counts is for [`crate::fork`].

use crate::block::{SignatureField, SignedBlob};
use crate::code::{Code, Reject};
use crate::codec::{Map, Value, encode_map, uint as uint_value};
use crate::entry::{check_version_spelling, read_typed, shown_type, type_of};
use crate::id::{AgentIri, Cid, EntryCid, Epoch, Principal, ScopePath, Seq, SessionId, UnixMillis};
use crate::limits;
use crate::schema::{self, Fields};
use crate::sign::SIGNATURE_BYTES;

const HEADER_KEYS: &[&str] = &["ts", "sig", "type", "signer"];

/// `Capability`: Seed's blob, unchanged. As a grant it is signed by the owner and has no audience; without a role and with
/// an audience it is a peer proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// When it was made, as its signer says.
    pub ts: UnixMillis,
    /// Who grants.
    pub signer: Principal,
    /// Who may act.
    pub delegate: Principal,
    /// What they may do; an unknown role decodes and grants nothing.
    pub role: Option<String>,
    /// The part of the account that it is for; none is all of it.
    pub path: Option<String>,
    /// A word for people; with the stock role `WRITER` it tells a session writer.
    pub label: Option<String>,
    /// Who it may be shown to; a grant has none.
    pub audience: Option<Principal>,
}

/// What a grant allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Acts as a device of the owner.
    Agent,
    /// Holds sessions and writes their entries and Refs.
    Writer,
    /// Adds user messages; reads.
    Contributor,
    /// Reads.
    Reader,
}

impl Role {
    /// The word that a capability of ours carries.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Role::Agent => "AGENT",
            Role::Writer => "agent-session-writer",
            Role::Contributor => "agent-session-contributor",
            Role::Reader => "agent-session-reader",
        }
    }
}

/// A capability that was found to be a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who granted.
    pub owner: Principal,
    /// Who may act.
    pub delegate: Principal,
    /// What they may do.
    pub role: Role,
    /// Where: none is everywhere under the owner.
    pub scope: Option<ScopePath>,
}

impl Capability {
    /// Reads it as a grant.
    ///
    /// # Errors
    /// `E_CAP_AUDIENCE` with an audience, `E_CAP_ROLE` for a role that grants nothing here, `E_CAP_SCOPE` for a path that
    /// cannot cover a session (also any path under `AGENT`).
    pub fn grant(&self) -> Result<Grant, Reject> {
        if self.audience.is_some() {
            return Err(Code::CapAudience.into());
        }
        let role = match self.role.as_deref() {
            Some("AGENT") => Role::Agent,
            Some("agent-session-writer") => Role::Writer,
            Some("agent-session-contributor") => Role::Contributor,
            Some("agent-session-reader") => Role::Reader,
            Some("WRITER") if self.label.as_deref() == Some("agent-session-writer") => Role::Writer,
            other => {
                let shown = shown_type(other.unwrap_or("none"));
                return Err(Reject::new(Code::CapRole, format!("expected a session role, got {shown}")));
            }
        };
        let scope = self.path.as_deref().map(ScopePath::parse).transpose()?;
        if role == Role::Agent && scope.is_some() {
            return Err(Reject::new(Code::CapScope, "an AGENT grant has no path"));
        }
        Ok(Grant { owner: self.signer, delegate: self.delegate, role, scope })
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        expect_type(map, "Capability")?;
        let required = [HEADER_KEYS, &["delegate"]].concat();
        let fields = Fields::closed(map, "Capability", &required, &["role", "path", "label", "audience"])?;
        Ok(Capability {
            ts: fields.need("ts", schema::millis)?,
            signer: fields.need("signer", schema::principal)?,
            delegate: fields.need("delegate", schema::principal)?,
            role: fields.maybe("role", schema::text)?,
            path: fields.maybe("path", seed_path)?,
            label: fields.maybe("label", seed_label)?,
            audience: fields.maybe("audience", schema::principal)?,
        })
    }

    fn to_map<'a>(&'a self, signature: &'a [u8; SIGNATURE_BYTES]) -> Map<'a> {
        header(self.ts, self.signer, "Capability", signature)
            .with("delegate", self.delegate)
            .with_some("role", self.role.as_deref())
            .with_some("path", self.path.as_deref())
            .with_some("label", self.label.as_deref())
            .with_some("audience", self.audience)
    }

    /// The canonical bytes with this signature.
    #[must_use]
    pub fn to_bytes(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
        encode_map(&self.to_map(signature))
    }
}

impl Grant {
    /// Whether it reaches a session of `agent`: no path, the agent's path or a segment-wise ancestor of it, or
    /// `/session-<genesis>` itself.
    #[must_use]
    pub fn covers(&self, session: SessionId, agent: &AgentIri) -> bool {
        match &self.scope {
            None => true,
            Some(scope) => {
                scope.as_str() == session.path() || agent.path().is_some_and(|path| scope.covers(path))
            }
        }
    }
}

/// One head that a tombstone keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The session.
    pub genesis: EntryCid,
    /// The entry through which the revoked key's work stays.
    pub head: EntryCid,
    /// Its seq.
    pub seq: Seq,
}

/// `CapabilityTombstone`: the owner revokes a capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// When it was made, as its signer says.
    pub ts: UnixMillis,
    /// Who revokes; only the owner's counts.
    pub signer: Principal,
    /// The revoked capability, by either of its CIDs.
    pub capability: Cid,
    /// Heads of public sessions through which entries stay.
    pub keep: Vec<Keep>,
    /// Why.
    pub reason: Option<String>,
    /// Extension fields.
    pub ext: Option<Map<'static>>,
}

impl Tombstone {
    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        expect_type(map, "CapabilityTombstone")?;
        let required = [HEADER_KEYS, &["capability"]].concat();
        let fields = Fields::closed(map, "CapabilityTombstone", &required, &["keep", "reason", "v", "x"])?;
        check_version_spelling(map)?;
        let keep = schema::map(|map| {
            let fields = Fields::closed(map, "keep[]", &["seq", "head", "genesis"], &[])?;
            Ok(Keep {
                seq: Seq::new(fields.need("seq", schema::uint)?)?,
                head: fields.need("head", schema::entry)?,
                genesis: fields.need("genesis", schema::entry)?,
            })
        });
        let ts = fields.need("ts", schema::millis)?;
        let signer = fields.need("signer", schema::principal)?;
        let capability = fields.need("capability", schema::cap)?;
        let keep: Vec<Keep> =
            fields.maybe("keep", schema::list(limits::TOMBSTONE_KEEP_MAX, keep))?.unwrap_or_default();
        if !keep.is_sorted_by(|a, b| (a.genesis, a.head) < (b.genesis, b.head)) {
            return Err(Reject::new(
                Code::CborNoncanon,
                "`keep` ascends by genesis, then head, without repeats",
            ));
        }
        Ok(Tombstone {
            ts,
            signer,
            capability,
            keep,
            reason: fields.maybe("reason", schema::name)?,
            ext: fields.maybe("x", schema::ext)?,
        })
    }

    fn to_map<'a>(&'a self, signature: &'a [u8; SIGNATURE_BYTES]) -> Map<'a> {
        let keep: Vec<Value<'a>> = self
            .keep
            .iter()
            .map(|keep| {
                let seq = uint_value(keep.seq.get());
                Value::Map(Map::new().with("seq", seq).with("head", keep.head).with("genesis", keep.genesis))
            })
            .collect();
        header(self.ts, self.signer, "CapabilityTombstone", signature)
            .with("capability", self.capability)
            .with_some("keep", (!keep.is_empty()).then_some(keep))
            .with_some("reason", self.reason.as_deref())
            .with_some("x", self.ext.clone())
    }

    /// The canonical bytes with this signature.
    #[must_use]
    pub fn to_bytes(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
        encode_map(&self.to_map(signature))
    }
}

/// `Ref`: Seed's blob, unchanged. For a session it is a signed head; see [`Ref::session_head`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ref {
    /// When it was made, as its signer says.
    pub ts: UnixMillis,
    /// Who signed it.
    pub signer: Principal,
    /// The owning account; Seed may repeat the signer.
    pub space: Option<Principal>,
    /// The capability that a signer who is not the owner acts under.
    pub capability: Option<Cid>,
    /// Where in the owner's space; `/session-<genesis>` for a session.
    pub path: Option<String>,
    /// The heads.
    pub heads: Vec<Cid>,
    /// The genesis of what it refers to.
    pub genesis_blob: Option<Cid>,
    /// For a session: epoch of the head + 1.
    pub generation: u64,
    /// Whether it is private: then it publishes nothing.
    pub private: bool,
    /// Seed's redirect; a session Ref has none.
    pub redirect: Option<Map<'static>>,
}

/// What a session Ref says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionHead {
    /// The session.
    pub session: SessionId,
    /// The head.
    pub head: EntryCid,
    /// The head's epoch.
    pub epoch: Epoch,
}

impl Ref {
    /// The owner that it names: `space`, else the signer.
    #[must_use]
    pub fn owner(&self) -> Principal {
        self.space.unwrap_or(self.signer)
    }

    /// Reads it as a session's Ref.
    ///
    /// # Errors
    /// `E_REF_MISMATCH` unless it has exactly one head, no redirect, a generation, and a path that names its genesis.
    pub fn session_head(&self) -> Result<SessionHead, Reject> {
        let bad = |what: &str| Reject::new(Code::RefMismatch, what);
        if self.redirect.is_some() {
            return Err(bad("a session Ref has no redirect"));
        }
        let [head] = self.heads[..] else {
            return Err(bad("a session Ref has exactly one head"));
        };
        let genesis = self.genesis_blob.ok_or_else(|| bad("a session Ref names its genesis"))?;
        let genesis = EntryCid::try_from(genesis).map_err(|_| bad("genesisBlob is not an entry"))?;
        let session = SessionId::of_genesis(genesis);
        if self.path.as_deref() != Some(session.path().as_str()) {
            return Err(bad("path does not name genesisBlob"));
        }
        let epoch = self.generation.checked_sub(1).ok_or_else(|| bad("generation is the epoch + 1"))?;
        Ok(SessionHead {
            session,
            head: EntryCid::try_from(head).map_err(|_| bad("the head is not an entry"))?,
            epoch: Epoch::new(epoch)?,
        })
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        expect_type(map, "Ref")?;
        let required = [HEADER_KEYS, &["heads"]].concat();
        let optional = ["space", "capability", "path", "genesisBlob", "generation", "visibility", "redirect"];
        let fields = Fields::closed(map, "Ref", &required, &optional)?;
        let redirect = schema::map(|map| Ok(map.clone().into_owned()));
        let value = Ref {
            ts: fields.need("ts", schema::millis)?,
            signer: fields.need("signer", schema::principal)?,
            space: fields.maybe("space", schema::principal)?,
            capability: fields.maybe("capability", schema::cap)?,
            path: fields.maybe("path", seed_path)?,
            // Links are counted before the schema, so there are no more than a blob may have.
            heads: fields.need("heads", schema::list(usize::MAX, schema::block))?,
            genesis_blob: fields.maybe("genesisBlob", schema::block)?,
            generation: fields.maybe("generation", schema::uint)?.unwrap_or(0),
            private: fields.maybe("visibility", schema::word(&[("Private", true)]))?.unwrap_or(false),
            redirect: fields.maybe("redirect", redirect)?,
        };
        let segments = value.path.as_deref().map_or(0, |path| path.matches('/').count());
        if value.private && segments != 1 {
            return Err(Reject::new(Code::SchemaType, "a private Ref has a path of one segment"));
        }
        Ok(value)
    }

    fn to_map<'a>(&'a self, signature: &'a [u8; SIGNATURE_BYTES]) -> Map<'a> {
        header(self.ts, self.signer, "Ref", signature)
            .with_some("space", self.space)
            .with_some("capability", self.capability)
            .with_some("path", self.path.as_deref())
            .with("heads", self.heads.iter().map(|cid| Value::Link(*cid)).collect::<Vec<_>>())
            .with_some("genesisBlob", self.genesis_blob)
            .with_some("generation", (self.generation != 0).then(|| uint_value(self.generation)))
            .with_some("visibility", self.private.then_some("Private"))
            .with_some("redirect", self.redirect.clone())
    }

    /// The canonical bytes with this signature.
    #[must_use]
    pub fn to_bytes(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
        encode_map(&self.to_map(signature))
    }
}

/// A control blob of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// A grant or a peer proof.
    Capability(Capability),
    /// A revocation.
    Tombstone(Tombstone),
    /// A signed head.
    Ref(Ref),
}

impl Control {
    /// Whether it is an owner's capability or tombstone, or a Ref in its name. A peer proof is nobody's.
    #[must_use]
    pub fn is_of(&self, owner: Principal) -> bool {
        match self {
            Control::Capability(capability) => capability.signer == owner && capability.audience.is_none(),
            Control::Tombstone(tombstone) => tombstone.signer == owner,
            Control::Ref(value) => value.owner() == owner,
        }
    }

    /// The canonical bytes with this signature.
    #[must_use]
    pub fn to_bytes(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
        match self {
            Control::Capability(value) => value.to_bytes(signature),
            Control::Tombstone(value) => value.to_bytes(signature),
            Control::Ref(value) => value.to_bytes(signature),
        }
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        match type_of(map)?.as_str() {
            "Capability" => Capability::from_map(map).map(Control::Capability),
            "CapabilityTombstone" => Tombstone::from_map(map).map(Control::Tombstone),
            "Ref" => Ref::from_map(map).map(Control::Ref),
            other => {
                let shown = shown_type(other);
                Err(Reject::new(Code::Type, format!("expected a Capability, Tombstone or Ref, got {shown}")))
            }
        }
    }
}

macro_rules! signed_control {
    ($($type:ident),*) => {
        $(impl SignedBlob for $type {
            fn read(bytes: &[u8]) -> Result<(Self, SignatureField), Reject> {
                read_typed(bytes, limits::CONTROL_BYTES_MAX, |map, _| {
                    let value = $type::from_map(map)?;
                    Ok((value, $type::to_bytes as fn(&$type, &[u8; SIGNATURE_BYTES]) -> Vec<u8>))
                })
            }

            fn signer(&self) -> Principal {
                self.signer
            }
        })*
    };
}

signed_control!(Capability, Tombstone, Ref);

impl SignedBlob for Control {
    fn read(bytes: &[u8]) -> Result<(Self, SignatureField), Reject> {
        read_typed(bytes, limits::CONTROL_BYTES_MAX, |map, _| {
            let value = Control::from_map(map)?;
            Ok((value, Control::to_bytes as fn(&Control, &[u8; SIGNATURE_BYTES]) -> Vec<u8>))
        })
    }

    fn signer(&self) -> Principal {
        match self {
            Control::Capability(value) => value.signer,
            Control::Tombstone(value) => value.signer,
            Control::Ref(value) => value.signer,
        }
    }
}

fn header<'a>(
    ts: UnixMillis,
    signer: Principal,
    type_name: &'static str,
    signature: &'a [u8; SIGNATURE_BYTES],
) -> Map<'a> {
    Map::new().with("ts", ts).with("sig", &signature[..]).with("type", type_name).with("signer", signer)
}

fn expect_type(map: &Map<'_>, expected: &str) -> Result<(), Reject> {
    let found = type_of(map)?;
    if found == expected {
        Ok(())
    } else {
        Err(Reject::new(Code::Type, format!("expected a {expected}, got {}", shown_type(&found))))
    }
}

/// Seed's path rule: begins with a slash, does not end with one, holds no quote, backslash, NUL or line break.
pub(crate) fn seed_path(value: &Value<'_>) -> Result<String, Reject> {
    let path = schema::text(value)?;
    let plain = !path.contains(['\'', '"', '\\', '\0', '\n', '\r', '\t']);
    if path.is_empty() || (path.starts_with('/') && !path.ends_with('/') && plain) {
        Ok(path)
    } else {
        Err(Reject::new(Code::SchemaText, "expected a path such as /notes"))
    }
}

/// Seed's label rule: at most 512 bytes, trimmed.
fn seed_label(value: &Value<'_>) -> Result<String, Reject> {
    let label = schema::text(value)?;
    if label.len() > 512 {
        return Err(Reject::new(Code::SchemaLen, format!("expected at most 512 bytes, got {}", label.len())));
    }
    if label.trim() != label {
        return Err(Reject::new(Code::SchemaText, "white space at an end"));
    }
    Ok(label)
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
