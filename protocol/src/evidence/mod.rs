//! Evidence that travels: a small CAR that shows a stranger, who trusts nobody, what a key signed. `docs/PROTOCOL.md` §Evidence.
//!
//! ```text
//!  Set ─judge─▶ charges() ─▶ Charge ─build()─▶ Exhibit ═ bytes ═▶ Exhibit::check() ─▶ Exhibit ─▶ entries() into any other Set
//! ```
//!
//! | kind | roots | what the file holds beside them |
//! | --- | --- | --- |
//! | equivocation | the holder's two entries | genesis, grants, the epoch's opening, both paths down to where they part |
//! | owner equivocation | two openings of one epoch | genesis |
//! | fenced tail | the entry, the opening that ended its epoch | genesis, grants, the epoch's opening, both paths down to where they part |
//! | revoked tail | the entry, the tombstone | genesis, the grant that the tombstone names |
//!
//! [`charges`] decides what there is evidence of; [`Exhibit::check`] decides whether a file is evidence. A file holds nothing but
//! what its claim needs, in one order, so the same claim is the same bytes everywhere. Evidence never decides which history
//! counts: its entries are put into a set like any others, and selection decides.

mod charge;
mod check;
mod file;

use std::fmt;
use std::sync::Arc;

use crate::block::Signed;
use crate::code::{Code, Reject};
use crate::control::{Control, Tombstone};
use crate::entry::Entry;
use crate::fork::{BlobHash, Mark};
use crate::id::{Cid, Codec, Epoch, Principal, Seq, SessionId, UnixMillis};
use crate::verify::{Branch, Check, Checks, Counts, Fork, Inventory, Rank, Report, Tail, TailKind, Verdict};

pub use charge::{Charge, charges};
pub use check::build;
pub use file::has_two_roots;

/// Largest exhibit, in bytes.
pub const EXHIBIT_BYTES_MAX: usize = 1_048_576;
/// Entries of one exhibit. Paths that are longer hold other evidence that is shorter.
pub const EXHIBIT_ENTRIES_MAX: usize = 128;

/// What an exhibit shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A holder signed two entries of one epoch that no history holds together.
    Equivocation,
    /// The owner opened one epoch twice.
    OwnerEquivocation,
    /// A holder's entry is not below the opening that ended its epoch.
    FencedTail,
    /// An entry was signed under a capability that the owner revoked. That nothing anchors it, no file can show.
    RevokedTail,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 4] =
        [Kind::Equivocation, Kind::OwnerEquivocation, Kind::FencedTail, Kind::RevokedTail];

    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Equivocation => "equivocation",
            Kind::OwnerEquivocation => "owner-equivocation",
            Kind::FencedTail => "fenced-tail",
            Kind::RevokedTail => "revoked-tail",
        }
    }

    /// The code that says the same.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Kind::Equivocation => Code::Equivocation,
            Kind::OwnerEquivocation => Code::OwnerEquivocation,
            Kind::FencedTail => Code::Fenced,
            Kind::RevokedTail => Code::Revoked,
        }
    }

    /// The verdict on a session of which this is all that is known.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        match self {
            Kind::Equivocation => Verdict::Forked,
            Kind::OwnerEquivocation => Verdict::Frozen,
            Kind::FencedTail => Verdict::FencedTail,
            Kind::RevokedTail => Verdict::RevokedTail,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Who did what in which epoch of a session: one exhibit of each is enough, however much a key goes on signing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Accusation {
    /// What.
    pub kind: Kind,
    /// In which epoch.
    pub epoch: Epoch,
    /// Whose key.
    pub signer: Principal,
}

/// An entry that an exhibit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Where it stands.
    pub mark: Mark,
    /// Who signed it.
    pub signer: Principal,
    /// When, as its signer claims.
    pub ts: UnixMillis,
}

/// A file of evidence that was checked: everything in it is signed, belongs together and shows what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhibit {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) session: SessionId,
    pub(crate) owner: Principal,
    pub(crate) accusation: Accusation,
    /// One entry, or the two that exclude each other.
    pub(crate) sides: Vec<Side>,
    pub(crate) meet: Option<Mark>,
    pub(crate) tombstone: Option<BlobHash>,
    pub(crate) kept_through: Option<Seq>,
    pub(crate) entries: Vec<Signed<Entry>>,
    pub(crate) controls: Vec<Signed<Control>>,
}

impl Exhibit {
    /// The file: the same bytes for the same claim, whoever makes it.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// The CID of the file, by which it is asked for.
    #[must_use]
    pub fn id(&self) -> Cid {
        Cid::sha256(Codec::Raw, &self.bytes)
    }

    /// The session that it is about.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The session's owner.
    #[must_use]
    pub fn owner(&self) -> Principal {
        self.owner
    }

    /// What it shows.
    #[must_use]
    pub fn accusation(&self) -> Accusation {
        self.accusation
    }

    /// The entry that does not count, or the two that exclude each other, in the order of the roots.
    #[must_use]
    pub fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// The last entry below both sides, where the file shows it.
    #[must_use]
    pub fn meet(&self) -> Option<Mark> {
        self.meet
    }

    /// The tombstone, of a revoked tail.
    #[must_use]
    pub fn tombstone(&self) -> Option<BlobHash> {
        self.tombstone
    }

    /// The signed entries that it holds, genesis first, ascending.
    #[must_use]
    pub fn entries(&self) -> &[Signed<Entry>] {
        &self.entries
    }

    /// The capabilities and the tombstone that it holds.
    #[must_use]
    pub fn controls(&self) -> &[Signed<Control>] {
        &self.controls
    }

    /// What the file alone says of the session, in the words of every verification. The chain as a whole is not in it, so
    /// neither that check nor the head's is made.
    #[must_use]
    pub fn report(&self) -> Report {
        let kind = self.accusation.kind;
        let bytes = self.entries.iter().map(|entry| entry.bytes().len()).sum::<usize>();
        let count = |wanted: fn(&Control) -> bool| {
            self.controls.iter().filter(|control| wanted(control.value())).count() as u64
        };
        Report {
            session: Some(self.session),
            verdict: kind.verdict(),
            checks: Checks {
                hash: Check::Pass,
                chain: Check::Unchecked,
                signature: Check::Pass,
                authority: if kind == Kind::RevokedTail { Check::Fail } else { Check::Pass },
                head: Check::Unchecked,
            },
            counts: Counts {
                blobs: (self.entries.len() + self.controls.len()) as u64,
                entries: self.entries.len() as u64,
                bytes: bytes as u64,
                capabilities: count(|control| matches!(control, Control::Capability(_))),
                tombstones: count(|control| matches!(control, Control::Tombstone(_))),
                refs: 0,
            },
            told: None,
            valid_through: None,
            anchored_through: None,
            pending: 0,
            tail: self.tail(),
            fork: self.fork(),
            evidence: Vec::new(),
            first_problem: None,
            problems: 0,
            inventory: Inventory::default(),
            signers: Vec::new(),
            models: Vec::new(),
        }
    }

    fn tail(&self) -> Option<Tail> {
        let kind = match self.accusation.kind {
            Kind::FencedTail => TailKind::Fenced,
            Kind::RevokedTail => TailKind::Revoked,
            Kind::Equivocation | Kind::OwnerEquivocation => return None,
        };
        let Side { mark, signer, .. } = *self.sides.first()?;
        let tombstone = self.tombstone;
        Some(Tail { kind, from: mark, to: mark, entries: 1, signer, tombstone, last_anchor: None })
    }

    fn fork(&self) -> Option<Fork> {
        let why = match self.accusation.kind {
            Kind::Equivocation | Kind::OwnerEquivocation => self.accusation.kind.code(),
            Kind::FencedTail | Kind::RevokedTail => return None,
        };
        let branch =
            |side: &Side| Branch { head: side.mark, signer: side.signer, rank: Rank::Undecided, why };
        // Where a file does not show where they part, the genesis is what it shows them to share.
        let genesis = Mark { cid: self.session.genesis(), seq: Seq::ZERO, epoch: Epoch::ZERO };
        Some(Fork { at: self.meet.unwrap_or(genesis), branches: self.sides.iter().map(branch).collect() })
    }

    /// The seq through which the tombstone itself keeps this session, of a revoked tail that lies above it.
    #[must_use]
    pub fn kept_through(&self) -> Option<Seq> {
        self.kept_through
    }
}

/// The seq through which a tombstone says that it keeps a session.
fn kept_through(tombstone: &Tombstone, session: SessionId) -> Option<Seq> {
    let own = tombstone.keep.iter().filter(|keep| keep.genesis == session.genesis());
    own.map(|keep| keep.seq).max()
}

fn shows_nothing(what: impl Into<String>) -> Reject {
    Reject::new(Code::Evidence, what)
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
