//! Refs and tombstones of a session: what they anchor, and whether their signers may make them.
//! `docs/PROTOCOL.md` §Control blobs, §Selection.

use std::collections::{BTreeMap, BTreeSet};

use super::controls::{BlobHash, Controls};
use super::rules::{Linked, Position, SessionFacts, Standing, role_under};
use crate::code::{Code, Reject};
use crate::control::{Ref, Role, SessionHead, Tombstone};
use crate::entry::Class;
use crate::id::{EntryCid, Epoch, Principal};

/// What made an entry an anchor of the owner's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnchoredBy {
    /// A Ref that the account signed.
    OwnerRef,
    /// A `keep` item of a tombstone.
    Keep,
    /// The account signed the entry.
    OwnerEntry,
    /// A Ref that a live device signed.
    DeviceRef,
    /// A live device signed the entry.
    DeviceEntry,
}

impl AnchoredBy {
    /// The word for reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            AnchoredBy::OwnerRef => "owner-ref",
            AnchoredBy::Keep => "keep",
            AnchoredBy::OwnerEntry => "owner-entry",
            AnchoredBy::DeviceRef => "device-ref",
            AnchoredBy::DeviceEntry => "device-entry",
        }
    }
}

/// What an entry anchors, itself and all below it: ANC of §Selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// Nothing.
    None,
    /// It anchors for the chain: a holder whose capability is not revoked signed it.
    Holder,
    /// It anchors for the owner's side too, by this.
    Owner(AnchoredBy),
}

impl Anchor {
    /// The rule, for an entry that is in. `dead` is the tombstone of what it cites.
    pub(crate) fn of(pins: &Pins, linked: &Linked, dead: Option<BlobHash>) -> Self {
        if let Some(by) = pins.anchor(linked.position.cid, linked.position.epoch) {
            return Anchor::Owner(by);
        }
        match (linked.standing, dead) {
            (Standing::Owner, _) => Anchor::Owner(AnchoredBy::OwnerEntry),
            (Standing::Device, None) => Anchor::Owner(AnchoredBy::DeviceEntry),
            (Standing::Holder, None) => Anchor::Holder,
            (Standing::Device | Standing::Holder, Some(_)) | (Standing::Contributor, _) => Anchor::None,
        }
    }

    /// By what it anchors for the owner's side.
    pub(crate) fn by_owner(self) -> Option<AnchoredBy> {
        match self {
            Anchor::Owner(by) => Some(by),
            Anchor::None | Anchor::Holder => None,
        }
    }

    /// Whether a Ref or a `keep` item names it: PIN of §Selection.
    pub(crate) fn is_pin(self) -> bool {
        match self {
            Anchor::Owner(AnchoredBy::OwnerRef | AnchoredBy::Keep | AnchoredBy::DeviceRef) => true,
            Anchor::Owner(AnchoredBy::OwnerEntry | AnchoredBy::DeviceEntry)
            | Anchor::None
            | Anchor::Holder => false,
        }
    }
}

/// The entries of one session that Refs of the account and of live devices, and `keep` items of the account's tombstones,
/// name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    keeps: BTreeSet<EntryCid>,
    refs: BTreeMap<(EntryCid, Epoch), AnchoredBy>,
}

impl Pins {
    /// Collects them from all that is held. Whether the entries are held, and of the epochs named, is not looked at.
    #[must_use]
    pub fn of(session: &SessionFacts, controls: &Controls) -> Self {
        let mut pins = Pins::default();
        for (_, tombstone) in controls.tombstones().filter(|(_, t)| t.signer == session.owner) {
            let kept = tombstone.keep.iter().filter(|keep| keep.genesis == session.id.genesis());
            pins.keeps.extend(kept.map(|keep| keep.head));
        }
        for (_, value) in controls.refs() {
            let Ok(head) = session_head(value, session) else { continue };
            let by = match standing(value, session, controls) {
                Ok(Standing::Owner) => AnchoredBy::OwnerRef,
                Ok(Standing::Device) if is_live(value, session, controls) => AnchoredBy::DeviceRef,
                // A server's Ref is a hint: it never anchors.
                Ok(Standing::Device | Standing::Holder | Standing::Contributor) | Err(_) => continue,
            };
            let held = pins.refs.entry((head.head, head.epoch)).or_insert(by);
            *held = by.min(*held);
        }
        pins
    }

    /// What pins an entry, if anything does. A Ref counts only with the entry's own epoch.
    #[must_use]
    pub fn anchor(&self, cid: EntryCid, epoch: Epoch) -> Option<AnchoredBy> {
        let by_ref = self.refs.get(&(cid, epoch)).copied();
        by_ref.or_else(|| self.keeps.contains(&cid).then_some(AnchoredBy::Keep))
    }

    /// Every pinned entry, ascending, with the epoch that a Ref names.
    pub fn iter(&self) -> impl Iterator<Item = (EntryCid, Option<Epoch>)> + '_ {
        let refs = self.refs.keys().map(|(cid, epoch)| (*cid, Some(*epoch)));
        self.keeps.iter().map(|cid| (*cid, None)).chain(refs)
    }
}

/// Checks a session's Ref against its head: who signs it, what it names, and whether it may publish.
///
/// Tombstones are not looked at: a revoked device's Ref passes here and anchors nothing.
///
/// # Errors
/// `E_CAP_ISSUER`, `E_CAP_MISSING`, `E_CAP_AUDIENCE`, `E_CAP_ROLE`, `E_CAP_SCOPE` or `E_INCOMPLETE` for the signer; `E_REF_MISMATCH` when its fields do not fit
/// the session or the head; `E_NOT_HOLDER` for a server that did not hold the session there; `E_CLASS` when it would
/// publish what the class in force at the head keeps in.
pub fn check_ref(
    value: &Ref,
    session: &SessionFacts,
    head: &Position,
    controls: &Controls,
) -> Result<Standing, Reject> {
    let standing = standing(value, session, controls)?;
    let named = session_head(value, session)?;
    if named.head != head.cid {
        return Err(Reject::new(
            Code::RefMismatch,
            format!("expected head {}, got {}", head.cid.short(), named.head.short()),
        ));
    }
    if named.epoch != head.epoch {
        return Err(Reject::new(
            Code::RefMismatch,
            format!("expected generation {}, got {}", head.epoch.next(), named.epoch.next()),
        ));
    }
    if standing == Standing::Holder && head.holder != Some(value.signer) {
        return Err(Reject::new(
            Code::NotHolder,
            format!("{} does not hold the session at {}", value.signer.short(), head.seq),
        ));
    }
    if !value.private {
        check_publishes(standing, head.class)?;
    }
    Ok(standing)
}

/// Whether a signer of this standing may publish an entry where this class is in force.
///
/// # Errors
/// `E_CLASS`.
pub fn check_publishes(standing: Standing, class: Class) -> Result<(), Reject> {
    let allowed = match standing {
        Standing::Owner | Standing::Device => class != Class::Confidential,
        Standing::Holder => class == Class::Public,
        Standing::Contributor => false,
    };
    if allowed {
        Ok(())
    } else {
        Err(Reject::new(
            Code::Class,
            format!("a Ref of the {} does not publish a {} session", standing.word(), class.word()),
        ))
    }
}

/// Checks that a tombstone is the owner's.
///
/// # Errors
/// `E_TOMB_ISSUER`.
pub fn check_tombstone(tombstone: &Tombstone, owner: Principal) -> Result<(), Reject> {
    if tombstone.signer == owner {
        return Ok(());
    }
    Err(Reject::new(
        Code::TombIssuer,
        format!("expected a tombstone of {}, got one of {}", owner.short(), tombstone.signer.short()),
    ))
}

fn session_head(value: &Ref, session: &SessionFacts) -> Result<SessionHead, Reject> {
    let head = value.session_head()?;
    if head.session == session.id {
        Ok(head)
    } else {
        Err(Reject::new(
            Code::RefMismatch,
            format!("expected session {}, got {}", session.id.short(), head.session.short()),
        ))
    }
}

/// As what a Ref's signer acts.
fn standing(value: &Ref, session: &SessionFacts, controls: &Controls) -> Result<Standing, Reject> {
    if value.owner() != session.owner {
        return Err(Reject::new(
            Code::CapIssuer,
            format!("expected a Ref of {}, got one of {}", session.owner.short(), value.owner().short()),
        ));
    }
    if value.signer == session.owner {
        return Ok(Standing::Owner);
    }
    let Some(cited) = &value.capability else {
        return Err(Reject::new(
            Code::CapMissing,
            format!("{} is not the owner and cites no capability", value.signer.short()),
        ));
    };
    match role_under(session, cited, value.signer, controls)? {
        Role::Agent => Ok(Standing::Device),
        Role::Writer => Ok(Standing::Holder),
        role @ (Role::Contributor | Role::Reader) => {
            Err(Reject::new(Code::CapRole, format!("{} does not sign a Ref", role.word())))
        }
    }
}

fn is_live(value: &Ref, session: &SessionFacts, controls: &Controls) -> bool {
    value.capability.is_none_or(|cited| controls.revoked_by(&cited, session.owner).is_none())
}
