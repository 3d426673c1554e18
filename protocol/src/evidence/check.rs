//! Whether a file shows what its roots claim. Nothing but the file is looked at.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::file::Blobs;
use super::{Accusation, Charge, EXHIBIT_ENTRIES_MAX, Exhibit, Kind, Side, kept_through, shows_nothing};
use crate::block::Signed;
use crate::code::{Code, Reject};
use crate::control::Control;
use crate::entry::{Body, Entry};
use crate::fork::{
    BlobHash, Controls, Mark, SessionFacts, Skeleton, begin, check_signed_as_holder, role_under,
};
use crate::id::{Cid, EntryCid, Epoch, Principal, Seq};
use crate::sign::VerifyingKeys;

/// Makes the file for a charge. `entry` and `control` give the bytes of blobs whose signatures were checked, a capability by the
/// CID that was cited.
///
/// # Errors
/// `E_INCOMPLETE` when a blob is not given; else as [`Exhibit::check`], which every file that is made passes. What
/// [`super::charges`] gives passes it.
pub fn build(
    charge: &Charge,
    mut entry: impl FnMut(EntryCid) -> Option<Arc<[u8]>>,
    mut control: impl FnMut(&Cid) -> Option<Arc<[u8]>>,
) -> Result<Exhibit, Reject> {
    let missing = |cid: Cid| Reject::new(Code::Incomplete, format!("{} is not held", cid.short()));
    let mut keys = VerifyingKeys::default();
    let mut blobs = Blobs::default();
    let mut cited: BTreeSet<Cid> = BTreeSet::new();
    for cid in &charge.entries {
        let bytes = entry(*cid).ok_or_else(|| missing(cid.cid()))?;
        let signed = Signed::<Entry>::check(bytes, &mut keys)?;
        cited.extend(signed.value().capability());
        blobs.put_entry(signed);
    }
    cited.extend(charge.tombstone.map(|hash| EntryCid::from_digest(hash).cid()));
    for cid in cited {
        let bytes = control(&cid).ok_or_else(|| missing(cid))?;
        blobs.put_control(Signed::<Control>::check(bytes, &mut keys)?)?;
    }
    Exhibit::check(blobs.write(charge.roots), &mut keys)
}

impl Exhibit {
    /// Checks a file of evidence, with nothing but the file.
    ///
    /// # Errors
    /// `E_TOO_BIG`, `E_CAR_…`, `E_BUDGET`; what a blob in it is refused for; `E_SESSION_MISMATCH`; an `E_CAP_…` code for a key that
    /// had no permission to sign what it signed; `E_EVIDENCE` when it does not show what its roots claim; `E_CAR_ORDER` when it holds
    /// more or less than its claim takes, or in another order.
    pub fn check(bytes: impl Into<Arc<[u8]>>, keys: &mut VerifyingKeys) -> Result<Self, Reject> {
        let bytes = bytes.into();
        let (roots, blobs) = Blobs::read(&bytes, keys)?;
        let case = Case::open(roots, &blobs)?;
        let found = case.judge()?;
        let mut entries = found.entries.clone();
        entries.insert(case.facts.id.genesis());
        case.holds_just(&entries, found.tombstone)?;
        if blobs.write(roots) != bytes[..] {
            return Err(Reject::new(
                Code::CarOrder,
                "expected the blocks of evidence in their order, each once",
            ));
        }
        Ok(Exhibit {
            session: case.facts.id,
            owner: case.facts.owner,
            accusation: found.accusation,
            sides: found.sides,
            meet: found.meet,
            tombstone: found.tombstone,
            kept_through: found.kept_through,
            entries: blobs.entries().cloned().collect(),
            controls: blobs.controls().cloned().collect(),
            bytes,
        })
    }
}

/// The blobs of a file, with what the genesis fixed.
struct Case<'a> {
    roots: [EntryCid; 2],
    blobs: &'a Blobs,
    facts: SessionFacts,
    /// Who held the session first.
    first_holder: Option<Principal>,
    controls: Controls,
}

/// What a file shows, and which of its entries it takes.
struct Found {
    accusation: Accusation,
    sides: Vec<Side>,
    meet: Option<Mark>,
    tombstone: Option<BlobHash>,
    kept_through: Option<Seq>,
    entries: BTreeSet<EntryCid>,
}

impl<'a> Case<'a> {
    fn open(roots: [EntryCid; 2], blobs: &'a Blobs) -> Result<Self, Reject> {
        let genesis = blobs.entries().next().ok_or_else(|| shows_nothing("the file holds no entry"))?;
        let mut controls = Controls::new();
        blobs.controls().for_each(|control| {
            controls.insert(control);
        });
        let (facts, linked) = begin(&Skeleton::of(genesis), &controls)?;
        for entry in blobs.entries() {
            let named = entry.value().session(entry.cid());
            if named != facts.id {
                let what = format!("expected session {}, got {}", facts.id.short(), named.short());
                return Err(Reject::new(Code::SessionMismatch, what));
            }
        }
        Ok(Case { roots, blobs, facts, first_holder: linked.position.holder, controls })
    }

    fn judge(&self) -> Result<Found, Reject> {
        let accused = self.need(self.roots[0])?;
        if let Some(control) = self.blobs.control(self.roots[1]) {
            return self.revoked(accused, control);
        }
        let other = self.need(self.roots[1])?;
        let (epoch, next) = (accused.value().epoch(), accused.value().epoch().next());
        match (self.opens(accused), self.opens(other)) {
            (true, true) if other.value().epoch() == epoch => self.owner_equivocation(accused, other),
            (_, true) if other.value().epoch() == next => self.fenced(accused, other),
            (false, false) if other.value().epoch() == epoch => self.equivocation(accused, other),
            _ => Err(shows_nothing("its two roots do not exclude each other")),
        }
    }

    fn equivocation(&self, a: &Signed<Entry>, b: &Signed<Entry>) -> Result<Found, Reject> {
        let signer = a.value().signer;
        ascending(a, b)?;
        if b.value().signer != signer {
            return Err(shows_nothing("its two entries have two signers"));
        }
        let (mut entries, meet) = self.paths(a, b)?;
        if meet == a.cid() || meet == b.cid() {
            return Err(shows_nothing("one of its entries is below the other"));
        }
        entries.insert(self.opening_of(a, signer)?);
        self.expect_epoch(&entries, a.value().epoch(), None)?;
        self.signed_as_holder(a)?;
        self.signed_as_holder(b)?;
        Ok(self.found(Kind::Equivocation, &[a, b], Some(meet), entries))
    }

    fn owner_equivocation(&self, a: &Signed<Entry>, b: &Signed<Entry>) -> Result<Found, Reject> {
        ascending(a, b)?;
        if a.value().prev() == Some(b.cid()) || b.value().prev() == Some(a.cid()) {
            return Err(shows_nothing("one of its openings stands on the other"));
        }
        let entries = BTreeSet::from([a.cid(), b.cid()]);
        Ok(self.found(Kind::OwnerEquivocation, &[a, b], None, entries))
    }

    fn fenced(&self, tail: &Signed<Entry>, opening: &Signed<Entry>) -> Result<Found, Reject> {
        let (mut entries, meet) = self.paths(tail, opening)?;
        if meet == tail.cid() {
            return Err(shows_nothing("the entry is below the opening"));
        }
        entries.insert(self.opening_of(tail, tail.value().signer)?);
        self.expect_epoch(&entries, tail.value().epoch(), Some(opening.cid()))?;
        self.signed_as_holder(tail)?;
        Ok(self.found(Kind::FencedTail, &[tail, opening], Some(meet), entries))
    }

    fn revoked(&self, entry: &Signed<Entry>, control: &Signed<Control>) -> Result<Found, Reject> {
        let Control::Tombstone(tombstone) = control.value() else {
            return Err(shows_nothing("its second root is no tombstone"));
        };
        let (signer, owner) = (entry.value().signer, self.facts.owner);
        let cited = entry.value().capability().filter(|_| signer != owner);
        let cited = cited.ok_or_else(|| shows_nothing("the entry was signed under no capability"))?;
        if tombstone.signer != owner || self.controls.revoked_by(&cited, owner) != Some(control.hash()) {
            return Err(shows_nothing("the tombstone does not revoke what the entry was signed under"));
        }
        role_under(&self.facts, &cited, signer, &self.controls)?;
        let kept_through = kept_through(tombstone, self.facts.id);
        if kept_through.is_some_and(|kept| kept >= entry.value().seq()) {
            return Err(shows_nothing("the tombstone keeps the session through that entry"));
        }
        let mut found = self.found(Kind::RevokedTail, &[entry], None, BTreeSet::from([entry.cid()]));
        found.tombstone = Some(control.hash());
        found.kept_through = kept_through;
        Ok(found)
    }

    fn found(
        &self,
        kind: Kind,
        sides: &[&Signed<Entry>],
        meet: Option<EntryCid>,
        entries: BTreeSet<EntryCid>,
    ) -> Found {
        let side = |entry: &&Signed<Entry>| Side {
            mark: mark(entry),
            signer: entry.value().signer,
            ts: entry.value().ts,
        };
        let (epoch, signer) = sides
            .first()
            .map_or((Epoch::ZERO, self.facts.owner), |entry| (entry.value().epoch(), entry.value().signer));
        Found {
            accusation: Accusation { kind, epoch, signer },
            sides: sides.iter().map(side).collect(),
            meet: meet.and_then(|cid| self.blobs.entry(cid)).map(mark),
            tombstone: None,
            kept_through: None,
            entries,
        }
    }

    /// Walks down from both entries to the one where they part; returns all on the way, and that one.
    fn paths(&self, a: &Signed<Entry>, b: &Signed<Entry>) -> Result<(BTreeSet<EntryCid>, EntryCid), Reject> {
        let (mut a, mut b) = (a, b);
        let mut walked = BTreeSet::from([a.cid(), b.cid()]);
        for _ in 0..2 * EXHIBIT_ENTRIES_MAX {
            match a.value().seq().cmp(&b.value().seq()) {
                _ if a.cid() == b.cid() => return Ok((walked, a.cid())),
                std::cmp::Ordering::Less => b = self.below(b)?,
                std::cmp::Ordering::Greater => a = self.below(a)?,
                std::cmp::Ordering::Equal => (a, b) = (self.below(a)?, self.below(b)?),
            }
            walked.extend([a.cid(), b.cid()]);
        }
        Err(shows_nothing("its entries part too far down"))
    }

    fn below(&self, entry: &Signed<Entry>) -> Result<&'a Signed<Entry>, Reject> {
        let prev = entry.value().prev().ok_or_else(|| shows_nothing("its entries never meet"))?;
        let below = self.need(prev)?;
        if below.value().seq().next() != entry.value().seq() {
            let what = format!("entry {} stands on entry {}", entry.value().seq(), below.value().seq());
            return Err(Reject::new(Code::Seq, what));
        }
        Ok(below)
    }

    fn need(&self, cid: EntryCid) -> Result<&'a Signed<Entry>, Reject> {
        self.blobs.entry(cid).ok_or_else(|| shows_nothing(format!("{} is not in the file", cid.short())))
    }

    fn opens(&self, entry: &Signed<Entry>) -> bool {
        let value = entry.value();
        value.signer == self.facts.owner && value.authority.is_none() && value.body.may_open()
    }

    /// The entry that made `signer` the holder of an entry's epoch.
    fn opening_of(&self, entry: &Signed<Entry>, signer: Principal) -> Result<EntryCid, Reject> {
        let epoch = entry.value().epoch();
        let (opening, holder) = if epoch == Epoch::ZERO {
            (self.facts.id.genesis(), self.first_holder)
        } else {
            let opened =
                self.blobs.entries().find(|found| found.value().epoch() == epoch && self.opens(found));
            let opened = opened.ok_or_else(|| shows_nothing(format!("nothing in it opens epoch {epoch}")))?;
            (opened.cid(), holder_of(opened.value()))
        };
        if holder != Some(signer) {
            let what = format!("{} did not hold the session in epoch {epoch}", signer.short());
            return Err(Reject::new(Code::NotHolder, what));
        }
        Ok(opening)
    }

    /// All of these entries are of one epoch, but the opening that ended it.
    fn expect_epoch(
        &self,
        entries: &BTreeSet<EntryCid>,
        epoch: Epoch,
        opening: Option<EntryCid>,
    ) -> Result<(), Reject> {
        let other = entries
            .iter()
            .filter(|cid| Some(**cid) != opening)
            .filter_map(|cid| self.blobs.entry(*cid))
            .find(|entry| entry.value().epoch() != epoch);
        other.map_or(Ok(()), |entry| {
            Err(shows_nothing(format!("entry {} is of another epoch", entry.cid().short())))
        })
    }

    fn signed_as_holder(&self, entry: &Signed<Entry>) -> Result<(), Reject> {
        check_signed_as_holder(&self.facts, &Skeleton::of(entry), &self.controls)
    }

    /// The file holds the entries that its claim takes, the capabilities that they cite, the tombstone, and nothing else.
    fn holds_just(&self, entries: &BTreeSet<EntryCid>, tombstone: Option<BlobHash>) -> Result<(), Reject> {
        let mut wanted: BTreeSet<EntryCid> = tombstone.map(EntryCid::from_digest).into_iter().collect();
        for entry in self.blobs.entries() {
            if !entries.contains(&entry.cid()) {
                let what = format!("{} is not needed for what the file shows", entry.cid().short());
                return Err(Reject::new(Code::CarOrder, what));
            }
            if let Some(cited) = entry.value().capability() {
                let hash = self.controls.capability_hash(&cited).ok_or_else(|| {
                    shows_nothing(format!("capability {} is not in the file", cited.short()))
                })?;
                wanted.insert(EntryCid::from_digest(hash));
            }
        }
        match self.blobs.controls().find(|control| !wanted.contains(&control.cid())) {
            None => Ok(()),
            Some(control) => {
                let what = format!("{} is not needed for what the file shows", control.cid().short());
                Err(Reject::new(Code::CarOrder, what))
            }
        }
    }
}

fn ascending(a: &Signed<Entry>, b: &Signed<Entry>) -> Result<(), Reject> {
    if mark(a) < mark(b) {
        return Ok(());
    }
    Err(Reject::new(Code::CarOrder, "expected the lower of the two entries as the first root"))
}

fn mark(entry: &Signed<Entry>) -> Mark {
    Mark { seq: entry.value().seq(), epoch: entry.value().epoch(), cid: entry.cid() }
}

/// Whom an opening makes the holder.
fn holder_of(entry: &Entry) -> Option<Principal> {
    match &entry.body {
        Body::Handoff(handoff) => handoff.holder,
        Body::Genesis(_)
        | Body::UserMessage(_)
        | Body::ModelResponse(_)
        | Body::ToolCall(_)
        | Body::Note(_)
        | Body::Seal(_) => None,
    }
}
