//! What verification found, in the words that people and programs read. `docs/PROTOCOL.md` §Verification.
//!
//! A report says *valid through* and *anchored through*. It never says complete or latest: what nobody showed cannot be known.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::inventory::Inventory;
use crate::code::{Code, Fault, Reject};
use crate::fork::{AnchoredBy, BlobHash, Evidence, Mark, Standing, State};
use crate::id::{Cid, EntryCid, Epoch, Principal, Seq, SessionId};

/// The one word. When several apply, the first in this order does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// A blob is not what it has to be, or the genesis is not authorized.
    Corrupt,
    /// Blobs that are needed to judge are missing.
    Incomplete,
    /// The owner opened one epoch twice or anchored two histories.
    Frozen,
    /// The holder signed two histories.
    Forked,
    /// Entries of a revoked key were cut off.
    RevokedTail,
    /// A holder signed on after its epoch had ended.
    FencedTail,
    /// Valid, and the session has ended.
    Sealed,
    /// Valid.
    Valid,
}

/// What is wrong with what was given, at worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Something is missing, or newer than this program.
    Gap,
    /// Something breaks a rule.
    Fault,
}

impl Verdict {
    /// The first of the words that applies: R-VE-3.
    #[must_use]
    pub fn of(state: State, tail: Option<TailKind>, flaw: Option<Flaw>) -> Self {
        match (flaw, state, tail) {
            (Some(Flaw::Fault), ..) | (_, State::Invalid, _) => Verdict::Corrupt,
            (Some(Flaw::Gap), ..) | (_, State::Incomplete, _) => Verdict::Incomplete,
            (_, State::Frozen, _) => Verdict::Frozen,
            (_, State::Forked, _) => Verdict::Forked,
            (_, State::RevokedUnanchored, _) | (_, _, Some(TailKind::Revoked)) => Verdict::RevokedTail,
            (_, _, Some(TailKind::Fenced)) => Verdict::FencedTail,
            (_, State::Sealed, None) => Verdict::Sealed,
            (_, State::Ok, None) => Verdict::Valid,
        }
    }

    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Corrupt => "corrupt",
            Verdict::Incomplete => "incomplete",
            Verdict::Frozen => "frozen",
            Verdict::Forked => "forked",
            Verdict::RevokedTail => "revoked-tail",
            Verdict::FencedTail => "fenced-tail",
            Verdict::Sealed => "sealed",
            Verdict::Valid => "valid",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How one check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// It holds for everything that was given.
    Pass,
    /// It does not hold.
    Fail,
    /// It could not be made: something is missing, or nobody told a head.
    Unchecked,
}

impl Check {
    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Check::Pass => "pass",
            Check::Fail => "fail",
            Check::Unchecked => "unchecked",
        }
    }
}

/// The five checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Every blob hashes to its CID.
    pub hash: Check,
    /// The prev links form one unbroken chain back to the genesis.
    pub chain: Check,
    /// Every signature verifies against its signer.
    pub signature: Check,
    /// Every entry was signed by a key that the owner had authorized there.
    pub authority: Check,
    /// Selection returns the head that was told.
    pub head: Check,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blobs given, payloads included.
    pub blobs: u64,
    /// Entries whose signature verified.
    pub entries: u64,
    /// Their bytes, payloads included.
    pub bytes: u64,
    /// Capabilities.
    pub capabilities: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Refs.
    pub refs: u64,
}

/// Something that is wrong or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The blob, when it is known which.
    pub cid: Option<EntryCid>,
    /// Its seq, when that is known.
    pub seq: Option<Seq>,
    /// What is wrong.
    pub reject: Reject,
}

impl Problem {
    /// Whether nothing is wrong with what is here: something is missing, or newer than this program.
    #[must_use]
    pub fn is_gap(&self) -> bool {
        self.reject.fault() == Fault::None
    }
}

/// Entries that do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Why.
    pub kind: TailKind,
    /// The lowest of them.
    pub from: Mark,
    /// The highest of them.
    pub to: Mark,
    /// How many.
    pub entries: u64,
    /// Who signed the lowest.
    pub signer: Principal,
    /// The tombstone that cut it.
    pub tombstone: Option<BlobHash>,
    /// The deepest anchor below it.
    pub last_anchor: Option<Mark>,
}

/// Why a tail does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TailKind {
    /// Its key was revoked and nothing anchors it.
    Revoked,
    /// Its epoch had ended.
    Fenced,
}

impl TailKind {
    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            TailKind::Revoked => "revoked",
            TailKind::Fenced => "fenced",
        }
    }
}

/// Histories that exclude each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The last entry that they share.
    pub at: Mark,
    /// The histories.
    pub branches: Vec<Branch>,
}

/// One history of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its entry that shows the fork.
    pub head: Mark,
    /// Who signed that.
    pub signer: Principal,
    /// What became of it.
    pub rank: Rank,
    /// `EV_EQUIVOCATION` or `EV_OWNER_EQUIVOCATION`.
    pub why: Code,
}

/// What became of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rank {
    /// The head descends from it.
    Kept,
    /// The head does not.
    Rejected,
    /// The owner has to decide.
    Undecided,
}

impl Rank {
    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Rank::Kept => "kept",
            Rank::Rejected => "rejected",
            Rank::Undecided => "undecided",
        }
    }
}

/// One signer's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerPart {
    /// Who.
    pub principal: Principal,
    /// As what.
    pub standing: Standing,
    /// Under which capability; the owner under none.
    pub capability: Option<Cid>,
    /// How many entries.
    pub entries: u64,
    /// In which epochs, ascending; the first [`EPOCHS_MAX`] only.
    pub epochs: BTreeSet<Epoch>,
}

/// One model's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// The model provider.
    pub provider: String,
    /// The model.
    pub id: String,
    /// How many responses.
    pub responses: u64,
}

/// Epochs listed of one signer.
pub const EPOCHS_MAX: usize = 1_024;
/// Models listed in one report.
pub const MODELS_MAX: usize = 256;

/// What verification found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The session; none when no genesis was found and none was named.
    pub session: Option<SessionId>,
    /// The word.
    pub verdict: Verdict,
    /// The five checks.
    pub checks: Checks,
    /// How much was looked at.
    pub counts: Counts,
    /// The head that was told.
    pub told: Option<EntryCid>,
    /// The head that selection returns, and so the entry up to which all is valid; in a dispute the last one that is in none.
    pub valid_through: Option<Mark>,
    /// The deepest entry up to it that the owner or a live device signed or anchored.
    pub anchored_through: Option<(Mark, AnchoredBy)>,
    /// Valid entries above the head.
    pub pending: u64,
    /// Entries that do not count.
    pub tail: Option<Tail>,
    /// Histories that exclude each other.
    pub fork: Option<Fork>,
    /// Evidence of equivocation.
    pub evidence: Vec<Evidence>,
    /// The first thing that is wrong or missing.
    pub first_problem: Option<Problem>,
    /// How many things are.
    pub problems: u64,
    /// What is here of the words and files that the entries name.
    pub inventory: Inventory,
    /// Who signed entries that are in.
    pub signers: Vec<SignerPart>,
    /// Which models answered.
    pub models: Vec<ModelPart>,
}

/// Counts signers as entries go by.
#[derive(Clone, Debug, Default)]
pub(super) struct SignerTally(BTreeMap<SignerKey, SignerPart>);

type SignerKey = (Principal, Standing, Option<Cid>);

impl SignerTally {
    pub(super) fn count(
        &mut self,
        principal: Principal,
        standing: Standing,
        capability: Option<Cid>,
        epoch: Epoch,
    ) {
        let part = self.0.entry((principal, standing, capability)).or_insert_with(|| SignerPart {
            principal,
            standing,
            capability,
            entries: 0,
            epochs: BTreeSet::new(),
        });
        part.entries += 1;
        if part.epochs.len() < EPOCHS_MAX {
            part.epochs.insert(epoch);
        }
    }

    /// The parts, the largest first.
    pub(super) fn parts(&self) -> Vec<SignerPart> {
        let mut parts: Vec<SignerPart> = self.0.values().cloned().collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.entries));
        parts
    }
}

/// Which check a refusal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Hash,
    Signature,
    Chain,
    Authority,
}

const SIGNATURE_CODES: &[Code] = &[
    Code::Sig,
    Code::SigLayout,
    Code::KeyCodec,
    Code::KeyPoint,
    Code::KeyNoncanon,
    Code::KeySmall,
    Code::KeyTorsion,
];
const AUTHORITY_CODES: &[Code] = &[
    Code::CapMissing,
    Code::CapIssuer,
    Code::CapAudience,
    Code::CapRole,
    Code::CapScope,
    Code::NotHolder,
    Code::EpochGap,
    Code::ClassDowngrade,
];

impl Layer {
    pub(super) fn of(code: Code) -> Self {
        if code == Code::CidMismatch {
            Layer::Hash
        } else if SIGNATURE_CODES.contains(&code) {
            Layer::Signature
        } else if AUTHORITY_CODES.contains(&code) {
            Layer::Authority
        } else {
            // A blob that is not what it should be breaks the chain at its place.
            Layer::Chain
        }
    }
}
