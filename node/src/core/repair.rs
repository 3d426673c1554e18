//! `fsck --repair`: what is damaged comes back from peers, what only repeats other rows is written anew.
//!
//! It asks for what it lacks by hash, so nothing that comes has to be believed; signatures and chains are checked again by the
//! `fsck` that follows. What says something of its own and was only here is not guessed: it is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::id::{Cid, Principal};
use throughline_store::{Damage, Fsck, Mend};

use super::{Node, now};
use crate::api::error::Answer;
use crate::sync::BlobsCame;

/// Damaged blobs that one act of repair puts back at once; what is beyond stays for the next one.
const BLOBS_MAX: usize = 4_096;

impl Node {
    /// Hashes everything that is stored and verifies every chain again.
    ///
    /// # Errors
    /// When the database cannot be read at all; damage is listed.
    pub fn fsck(&self) -> Answer<Value> {
        Ok(found(&self.store().fsck()?))
    }

    /// What `fsck` finds damaged, by the owner of the session that it belongs to.
    ///
    /// # Errors
    /// When the database cannot be read at all.
    pub fn damaged(&self) -> Answer<BTreeMap<Option<Principal>, BTreeSet<Damage>>> {
        let reader = self.reader()?;
        let mut by_owner: BTreeMap<Option<Principal>, BTreeSet<Damage>> = BTreeMap::new();
        for damage in self.store().fsck()?.damaged.into_iter().take(BLOBS_MAX) {
            let row = damage.session().and_then(|session| reader.session(session).ok().flatten());
            by_owner.entry(row.map(|row| row.owner).or(self.owner())).or_default().insert(damage);
        }
        Ok(by_owner)
    }

    /// Puts blobs back where they were damaged, and writes the index and the counters anew. Returns how many blobs.
    ///
    /// # Errors
    /// When the store refuses.
    pub fn mend(&self, damaged: &BTreeSet<Damage>, came: &BlobsCame) -> Answer<usize> {
        let bytes_of = |damage: &Damage| {
            let block = came.blocks.iter().find(|block| block.cid().digest() == damage.digest())?;
            Some((*damage, Arc::clone(block.bytes())))
        };
        let blobs: Vec<_> = damaged.iter().filter_map(bytes_of).collect();
        let count = blobs.len();
        self.store().run(Mend { blobs, at: now() })?;
        Ok(count)
    }
}

/// The CIDs that damaged blobs may be asked for by.
#[must_use]
pub fn cids_of(damaged: &BTreeSet<Damage>) -> BTreeSet<Cid> {
    damaged.iter().flat_map(Damage::cids).collect()
}

fn found(found: &Fsck) -> Value {
    let problems: Vec<Value> = found
        .problems
        .iter()
        .map(|problem| {
            json!({
                "code": problem.code.name(),
                "session": problem.session.map(|session| session.to_string()),
                "detail": problem.what,
            })
        })
        .collect();
    json!({
        "v": 1, "kind": "fsck",
        "checked": {
            "sessions": found.sessions, "entries": found.entries, "blocks": found.blocks,
            "controls": found.controls,
        },
        "problemCount": found.problem_count,
        "problems": problems,
        "repairable": found.damaged.len(),
    })
}
