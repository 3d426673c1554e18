//! Tombstones that are kept and were not applied yet: which sessions each may say something new of, and judging those.
//! `docs/PROTOCOL.md` §Selection, R-SE-1; `docs/decisions/0042-a-revocation-is-owed-until-it-is-judged.md`.
//!
//! The store marks a tombstone in the transaction that keeps it. The mark goes when every session that it concerns was judged; a session
//! that cannot be judged is marked in its place and keeps no other from it. What is marked is judged before anything is built on it:
//! when the node starts, when the tombstone comes again, when an entry comes or is to be signed, and after a repair.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::fork::{BlobHash, Controls};
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_protocol::verify::ChainState;
use throughline_store::{NoteJudged, Reader, Wait};

use super::Node;
use super::authority::sessions_of_owner;
use crate::api::error::{Answer, Problem};

/// What became of sessions that were to be judged.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Those that were judged.
    pub(super) judged: BTreeSet<SessionId>,
    /// Those whose verdict changed: `{"session", "from", "to"}`.
    pub(super) changed: Vec<Value>,
    /// Why the first one that could not be judged could not.
    pub(super) failed: Option<Problem>,
    waiting: BTreeMap<SessionId, Wait>,
}

impl Applied {
    pub(super) fn take(&mut self, session: SessionId, judged: Answer<Option<Value>>) {
        match judged {
            Ok(changed) => {
                self.judged.insert(session);
                self.changed.extend(changed);
            }
            Err(problem) => {
                tracing::error!(session = session.short(), "a session is not judged: {problem}");
                let damaged = matches!(problem.code(), Code::StoreCorrupt | Code::IndexCorrupt);
                self.waiting.insert(session, if damaged { Wait::Mend } else { Wait::Start });
                self.failed.get_or_insert(problem.with("session", session.to_string()));
            }
        }
    }

    /// Both.
    pub(super) fn join(&mut self, other: Applied) {
        self.judged.extend(other.judged);
        self.changed.extend(other.changed);
        self.waiting.extend(other.waiting);
        self.failed = self.failed.take().or(other.failed);
    }

    /// What is noted of sessions: those that wait. The mark of one that was judged went with that, in the session's turn; to take
    /// it away here could be to take away one that came since.
    fn noted(&self) -> BTreeMap<SessionId, Option<Wait>> {
        self.waiting.iter().map(|(session, wait)| (*session, Some(*wait))).collect()
    }
}

/// Sessions that could not be judged, of which some are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// All of them.
    All,
    /// Not those that wait for a repair.
    NotDamaged,
}

impl Node {
    /// Applies the tombstones of an owner that were not applied yet.
    ///
    /// # Errors
    /// When the store cannot be read or written at all. What one session fails of is told, and stops no other.
    pub(super) fn judge_owed(&self, owner: Principal) -> Answer<Applied> {
        self.judge_owed_but(owner, None)
    }

    /// As [`Node::judge_owed`]; not a session that was judged since these tombstones, and no others, were owed.
    pub(super) fn judge_owed_but(
        &self,
        owner: Principal,
        judged: Option<(SessionId, &[BlobHash])>,
    ) -> Answer<Applied> {
        let reader = self.reader()?;
        let owed = reader.to_judge(owner)?;
        let mut applied = Applied::default();
        if owed.tombstones.is_empty() {
            return Ok(applied);
        }
        let reach = Reach::of(self.warm().controls(&reader, owner), owner, &owed.tombstones);
        let judged = judged.filter(|(_, under)| *under == owed.tombstones).map(|(session, _)| session);
        applied.judged.extend(judged);
        for session in sessions_of_owner(&reader, owner)? {
            if judged != Some(session) && reach.may_concern(&reader, session) {
                applied.take(session, self.judge_and_tell(session, None));
            }
        }
        let sessions = applied.noted();
        self.store().run(NoteJudged { owner, tombstones: owed.tombstones, sessions })?;
        Ok(applied)
    }

    /// Judges sessions of an owner again that could not be judged.
    ///
    /// # Errors
    /// As [`Node::judge_owed`].
    pub(super) fn judge_waiting(&self, owner: Principal, again: Again) -> Answer<Applied> {
        let reader = self.reader()?;
        let marked = reader.to_judge(owner)?.sessions;
        let (mut applied, mut sessions) = (Applied::default(), BTreeMap::new());
        for (session, wait) in &marked {
            if again == Again::NotDamaged && *wait == Wait::Mend {
                continue;
            }
            if reader.session(*session).is_ok_and(|row| row.is_none_or(|row| row.owner != owner)) {
                // A mark of nothing goes.
                sessions.insert(*session, None);
                continue;
            }
            applied.take(*session, self.judge_and_tell(*session, None));
        }
        sessions.extend(applied.noted());
        if !sessions.is_empty() {
            self.store().run(NoteJudged { owner, tombstones: Vec::new(), sessions })?;
        }
        Ok(applied)
    }

    /// All that is owed to any owner, when the node starts or after a repair. What fails is told, and keeps its mark.
    ///
    /// # Errors
    /// When the store cannot be read at all.
    pub(super) fn judge_all_owed(&self, again: Again) -> Answer<()> {
        for owner in self.reader()?.owners_to_judge()? {
            let judged = self.judge_waiting(owner, again).and_then(|_| self.judge_owed(owner));
            if let Err(problem) = judged {
                tracing::error!(owner = owner.short(), "revocations are not applied yet: {problem}");
            }
        }
        Ok(())
    }

    /// Judges a session that something is to be built on, when a tombstone may concern it that was not applied: the next entry of the
    /// holder would anchor what was revoked. The caller does not have the session's turn.
    ///
    /// # Errors
    /// As [`Node::judge_again`].
    pub(super) fn judge_if_owed(&self, session: SessionId) -> Answer<()> {
        if self.reader()?.is_to_judge(session)? {
            self.judge_and_tell(session, None)?;
        }
        Ok(())
    }
}

/// What tombstones may say something new of.
///
/// A verdict is what [`throughline_protocol::fork::Set::select`] makes of the entries and control blobs of a session, and that asks three things of a
/// tombstone: whether what an entry cites is revoked, whether what a Ref of a device cites is, and which heads it keeps. An entry that is
/// held cites a capability that is held, and its signer is the delegate. So the verdict of a session stays when the delegate signed
/// none of its entries, no Ref in it cites the capability, and the tombstone keeps none of its heads. A capability that is not held
/// is cited by nothing that counts, and one that was revoked before cannot be revoked more.
#[derive(Debug, PartialEq, Eq)]
enum Reach {
    /// Anything: what they say cannot be read.
    All,
    Some {
        delegates: BTreeSet<Principal>,
        /// Those among them that are devices.
        devices: BTreeSet<Principal>,
        /// Sessions of which a head is kept.
        kept: BTreeSet<EntryCid>,
    },
}

impl Reach {
    fn of(
        controls: Answer<impl std::ops::Deref<Target = Controls>>,
        owner: Principal,
        owed: &[BlobHash],
    ) -> Self {
        let Ok(controls) = controls else { return Reach::All };
        let (mut delegates, mut devices, mut kept) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut named, mut before, mut found) = (BTreeSet::new(), BTreeSet::new(), 0);
        for (hash, tombstone) in controls.tombstones().filter(|(_, tombstone)| tombstone.signer == owner) {
            let capability = controls.capability_hash(&tombstone.capability);
            if owed.binary_search(hash).is_err() {
                before.extend(capability);
                continue;
            }
            found += 1;
            named.extend(capability);
            kept.extend(tombstone.keep.iter().map(|keep| keep.genesis));
        }
        if found < owed.len() {
            return Reach::All;
        }
        for (hash, capability) in controls.capabilities() {
            if !named.contains(hash) || before.contains(hash) {
                continue;
            }
            delegates.insert(capability.delegate);
            if capability.grant().is_ok_and(|grant| grant.role == Role::Agent) {
                devices.insert(capability.delegate);
            }
        }
        Reach::Some { delegates, devices, kept }
    }

    /// Whether a session is to be judged; one that cannot be looked at is.
    fn may_concern(&self, reader: &Reader, session: SessionId) -> bool {
        self.look(reader, session).unwrap_or(true)
    }

    fn look(&self, reader: &Reader, session: SessionId) -> Answer<bool> {
        let Reach::Some { delegates, devices, kept } = self else { return Ok(true) };
        if kept.contains(&session.genesis()) {
            return Ok(true);
        }
        if delegates.is_empty() {
            return Ok(false);
        }
        // Who signed what stands beside the chain is not remembered.
        if !reader.side_entries(session, None, 1)?.is_empty() {
            return Ok(true);
        }
        let Some(bytes) = reader.chain_state(session)? else { return Ok(true) };
        let signers = ChainState::from_bytes(&bytes)?.participants();
        if signers.is_none_or(|signers| signers.iter().any(|signer| delegates.contains(signer))) {
            return Ok(true);
        }
        if devices.is_empty() {
            return Ok(false);
        }
        for bytes in reader.refs_of_session(session)? {
            let decoded = Decoded::<Control>::decode(std::sync::Arc::<[u8]>::from(bytes))?;
            if matches!(decoded.value(), Control::Ref(value) if devices.contains(&value.signer)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
#[path = "owed_tests.rs"]
mod tests;
