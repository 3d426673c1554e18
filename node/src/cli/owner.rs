//! Owner acts: the owner key is opened here, in the command, and signs here. The node is handed signed bytes only.

use std::sync::Arc;

use serde_json::Value;
use throughline_protocol::build;
use throughline_protocol::code::Code;
use throughline_protocol::codec::{Map, encode_map};
use throughline_protocol::control::{Capability, Keep, Ref, Role, Tombstone};
use throughline_protocol::entry::{Body, Class, Entry, Handoff, Note, Place};
use throughline_protocol::id::{Cid, EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use throughline_protocol::sign::SigningKey;

use super::args::OwnerArgs;
use super::context::Context;
use super::link::Api;
use super::names::Names;
use super::{format, refusal, view};
use crate::api::error::{Answer, Problem};
use crate::keys::OwnerKeyFile;

/// What a Ref does beside anchoring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It publishes its head and the head's ancestors.
    Publishes,
    /// It publishes nothing.
    Private,
}

/// The opened owner key.
#[derive(Clone)]
pub(crate) struct Owner {
    key: Arc<SigningKey>,
}

impl Owner {
    /// Opens the owner key of this node; asks for the passphrase if it has one.
    ///
    /// # Errors
    /// `E_OWNER_KEY` where there is none, `E_PROMPT` when nobody can be asked, `E_PASSPHRASE`, or what reading the file
    /// gives.
    pub(crate) fn unlock(ctx: &Context, args: OwnerArgs) -> Answer<Self> {
        let file = file(ctx)?;
        let passphrase = if file.is_encrypted() {
            let source = ctx.passphrase_source(args);
            let prompt = format!("Passphrase of the owner key {}: ", file.principal().short());
            Some(ctx.while_asking(|| source.existing(&prompt)).map_err(refusal::passphrase)?)
        } else {
            None
        };
        let seed = file.unlock(passphrase.as_ref()).map_err(refusal::key)?;
        Ok(Owner::new(seed.signing_key()))
    }

    /// With an opened key.
    #[must_use]
    pub(crate) fn new(key: SigningKey) -> Self {
        Owner { key: Arc::new(key) }
    }

    /// The account.
    #[must_use]
    pub(crate) fn principal(&self) -> Principal {
        self.key.principal()
    }

    /// Signs a grant.
    ///
    /// # Errors
    /// `E_CAP_SCOPE`, `E_SCHEMA_TEXT` or `E_SCHEMA_LEN` for a path or label that no capability may hold.
    pub(crate) fn capability(
        &self,
        delegate: Principal,
        role: Role,
        path: Option<String>,
        label: Option<String>,
    ) -> Answer<Vec<u8>> {
        let capability = Capability {
            ts: now()?,
            signer: self.principal(),
            delegate,
            role: Some(role.word().to_owned()),
            path,
            label,
            audience: None,
        };
        capability.grant().map_err(Problem::from)?;
        self.sign(capability)
    }

    /// Signs a revocation that keeps what public sessions hold through these heads.
    ///
    /// # Errors
    /// `E_SCHEMA_TEXT` or `E_SCHEMA_LEN` for a reason that no tombstone may hold.
    pub(crate) fn tombstone(
        &self,
        capability: Cid,
        mut keep: Vec<Keep>,
        reason: Option<String>,
    ) -> Answer<Vec<u8>> {
        keep.sort_by_key(|keep| (keep.genesis, keep.head));
        self.sign(Tombstone { ts: now()?, signer: self.principal(), capability, keep, reason, ext: None })
    }

    /// Signs a Ref at the head that `facts` (`{"session","head":{"cid"},"epoch"}`) name.
    ///
    /// # Errors
    /// `E_CID` when the facts name none.
    pub(crate) fn anchor(&self, facts: &Value, reach: Reach) -> Answer<Vec<u8>> {
        let session: SessionId = view::text(facts, "/session").parse().map_err(Problem::from)?;
        let head: Cid = view::text(facts, "/head/cid").parse().map_err(Problem::from)?;
        self.sign(Ref {
            ts: now()?,
            signer: self.principal(),
            space: None,
            capability: None,
            path: Some(session.path()),
            heads: vec![head],
            genesis_blob: Some(session.genesis().cid()),
            generation: view::number(facts, "/epoch").saturating_add(1),
            private: reach == Reach::Private,
            redirect: None,
        })
    }

    /// Signs the note that makes a session public from here on; `base` is the API's answer about the next entry.
    ///
    /// # Errors
    /// When `base` names no place.
    pub(crate) fn publish_note(&self, base: &Value) -> Answer<Vec<u8>> {
        let epoch = view::number(base, "/epoch");
        self.entry(base, epoch, Body::Note(Note::Class(Class::Public)))
    }

    /// Signs the handoff that `facts` (`"sign"` of a move) ask for. There is no way back from handing it over.
    ///
    /// # Errors
    /// When the facts name no place or no holder.
    pub(crate) fn handoff(&self, facts: &Value) -> Answer<Vec<u8>> {
        let holder: Principal = view::text(facts, "/holder").parse().map_err(Problem::from)?;
        let grant =
            view::at(facts, "/grant").as_str().map(str::parse::<Cid>).transpose().map_err(Problem::from)?;
        let handoff = Handoff { holder: Some(holder), grant, ..Handoff::default() };
        self.entry(facts, view::number(facts, "/epoch"), Body::Handoff(handoff))
    }

    fn entry(&self, base: &Value, epoch: u64, body: Body) -> Answer<Vec<u8>> {
        let link = |pointer: &str| view::text(base, pointer).parse::<EntryCid>().map_err(Problem::from);
        let prev = link("/prev")?;
        let skip = view::at(base, "/skip")
            .as_str()
            .map(str::parse::<EntryCid>)
            .transpose()
            .map_err(Problem::from)?;
        let ts = format::now_ms().max(view::number(base, "/notBeforeMs"));
        self.sign(Entry {
            ts: UnixMillis::new(ts).map_err(Problem::from)?,
            signer: self.principal(),
            authority: None,
            place: Some(Place {
                genesis: link("/genesis")?,
                prev,
                seq: Seq::new(view::number(base, "/seq")).map_err(Problem::from)?,
                epoch: Epoch::new(epoch).map_err(Problem::from)?,
                skip: skip.filter(|skip| *skip != prev),
            }),
            body,
            payload: None,
            ext: None,
        })
    }

    fn sign<T: build::Writable>(&self, value: T) -> Answer<Vec<u8>> {
        let signed = build::sign(value, &self.key).map_err(Problem::from)?;
        Ok(signed.bytes().to_vec())
    }
}

/// The owner key file of this node, not opened.
///
/// # Errors
/// `E_OWNER_KEY` where there is none.
pub(crate) fn file(ctx: &Context) -> Answer<OwnerKeyFile> {
    ctx.expect_initialised()?;
    OwnerKeyFile::inspect(ctx.dirs()).map_err(|error| {
        if error.code() != Code::KeyfileMissing {
            return refusal::key(error);
        }
        let keys = ctx.dirs().keys();
        match ctx.config().map(|config| config.owner.principal) {
            Ok(Some(owner)) => {
                let detail = format!(
                    "this machine serves the owner {owner} and has no owner key in {}: only the machine that has it can sign this",
                    keys.display()
                );
                let hint = "throughline key import FILE, or run this on the machine that has the owner key";
                Problem::new(Code::OwnerKey, detail).hint(hint)
            }
            Ok(None) | Err(_) => {
                let detail = format!("expected the owner key in {}, got none, and no owner is configured", keys.display());
                let hint = "throughline init --owner new, or throughline key import FILE";
                Problem::new(Code::OwnerKey, detail).hint(hint)
            }
        }
    })
}

/// Where the owner signs when it is not here: the machines of the owner that are known by name, else whoever has the key.
#[must_use]
pub(crate) fn elsewhere(ctx: &Context, api: &Api<'_>, names: &Names) -> Option<String> {
    if OwnerKeyFile::inspect(ctx.dirs()).is_ok() {
        return None;
    }
    let owner = ctx.config().ok()?.owner.principal?.to_string();
    let granted = api.get("/v1/capabilities?state=active").unwrap_or_default();
    let devices = view::items(&granted, "/items").iter().filter(|item| {
        let is_named = !view::text(item, "/alias").is_empty();
        is_named && view::text(item, "/owner") == owner && view::text(item, "/role") == Role::Agent.word()
    });
    let devices: Vec<String> = devices.map(|item| names.who(view::text(item, "/delegate"))).collect();
    Some(match devices.as_slice() {
        [] => format!("on the machine that has the owner key ({owner})"),
        devices => format!("on a machine of the owner: {}", devices.join(", ")),
    })
}

/// The owner key file, for an act on a session that only its owner signs. `shown` is the session as the API shows it, or
/// nothing for one that is not held here; `command` is what the owner would run elsewhere.
///
/// # Errors
/// `E_OWNER_KEY` where that owner's key is not, with who could do it and how.
pub(crate) fn file_for(
    ctx: &Context,
    shown: &Value,
    command: impl FnOnce() -> String,
) -> Answer<OwnerKeyFile> {
    let own = file(ctx);
    let Ok(account) = view::text(shown, "/owner").parse::<Principal>() else { return own };
    let here = match own {
        Ok(file) if file.principal() == account => return Ok(file),
        Ok(file) => format!("the owner key here is that of {}", file.principal().short()),
        Err(problem) if problem.code() == Code::OwnerKey => "there is no owner key here".to_owned(),
        Err(problem) => return Err(problem),
    };
    let detail = format!("only {}, who owns the session, can sign this; {here}", account.short());
    Err(Problem::new(Code::OwnerKey, detail)
        .with("session", view::text(shown, "/session"))
        .with("owner", account.to_string())
        .hint(format!("where the key of {account} is: {}", command())))
}

/// The append frame of an entry without a payload.
#[must_use]
pub(crate) fn append_frame(entry: &[u8]) -> Vec<u8> {
    encode_map(&Map::new().with("entry", entry))
}

fn now() -> Answer<UnixMillis> {
    UnixMillis::new(format::now_ms()).map_err(Problem::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use throughline_protocol::block::Signed;
    use throughline_protocol::control::Control;
    use throughline_protocol::sign::VerifyingKeys;

    use super::*;

    fn owner() -> Owner {
        Owner::new(SigningKey::from_seed(&[1; 32]))
    }

    fn read<T: throughline_protocol::block::SignedBlob + Clone>(bytes: Vec<u8>) -> T {
        Signed::<T>::check(bytes, &mut VerifyingKeys::default()).unwrap().value().clone()
    }

    #[test]
    fn an_anchor_is_a_session_ref_at_the_head() {
        let (genesis, head) = (EntryCid::of(b"g"), EntryCid::of(b"h"));
        let facts =
            json!({"session": genesis.to_string(), "head": {"cid": head.to_string(), "seq": 4}, "epoch": 2});
        for reach in [Reach::Private, Reach::Publishes] {
            let Control::Ref(reference) = read(owner().anchor(&facts, reach).unwrap()) else {
                panic!("a Ref")
            };
            let said = reference.session_head().unwrap();
            assert_eq!((said.session.genesis(), said.head, said.epoch.get()), (genesis, head, 2));
            assert_eq!(reference.private, reach == Reach::Private);
        }
    }

    #[test]
    fn a_grant_is_one_that_can_be_cited() {
        let delegate = SigningKey::from_seed(&[2; 32]).principal();
        let bytes = owner().capability(delegate, Role::Agent, None, Some("device".into())).unwrap();
        assert_eq!(read::<Capability>(bytes).grant().unwrap().role, Role::Agent);
        let refused = owner().capability(delegate, Role::Agent, Some("/scout".into()), None).unwrap_err();
        assert_eq!(refused.code(), Code::CapScope);
    }

    #[test]
    fn a_handoff_stands_where_the_move_says() {
        let holder = SigningKey::from_seed(&[3; 32]).principal();
        let prev = EntryCid::of(b"p").to_string();
        let facts = json!({
            "genesis": EntryCid::of(b"g").to_string(), "prev": prev, "seq": 58, "epoch": 1, "holder": holder.to_string(),
            "grant": Cid::sha256(throughline_protocol::id::Codec::DagCbor, b"c").to_string(),
            "notBeforeMs": 281_474_976_710_000_u64, "skip": prev,
        });
        let entry: Entry = read(owner().handoff(&facts).unwrap());
        assert_eq!((entry.seq().get(), entry.epoch().get(), entry.ts.get()), (58, 1, 281_474_976_710_000));
        assert_eq!(entry.place.unwrap().skip, None);
        let Body::Handoff(handoff) = entry.body else { panic!("a handoff") };
        assert_eq!(handoff.holder, Some(holder));
        assert!(handoff.grant.is_some());
    }

    #[test]
    fn what_a_tombstone_keeps_is_sorted() {
        let keep = |name: &[u8]| Keep {
            genesis: EntryCid::of(name),
            head: EntryCid::of(b"h"),
            seq: Seq::ZERO.next(),
        };
        let capability = Cid::sha256(throughline_protocol::id::Codec::DagCbor, b"c");
        let items = vec![keep(b"1"), keep(b"2"), keep(b"3")];
        let mut reversed = items.clone();
        reversed.reverse();
        for keep in [items, reversed] {
            let tombstone: Tombstone =
                read(owner().tombstone(capability, keep, Some("moved".into())).unwrap());
            assert_eq!(tombstone.keep.len(), 3);
        }
    }
}
