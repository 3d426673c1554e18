//! Adopting a session as it comes, a group of entries at a time.
//!
//! A group is large enough that its commit costs little beside it, and small enough that the next ones are verified and received
//! meanwhile. While one is taken in ([`super::taking`]) the next is gathered, and its large payloads become files
//! ([`super::ahead`]). What was adopted stays when the transfer ends early: the next one goes on after it. Nothing else is stored.

use std::collections::BTreeSet;
use std::sync::Arc;

use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::id::{EntryCid, Principal, Seq, SessionId};
use throughline_protocol::verify::Prechecked;

use super::Wanted;
use super::pipeline::{AHEAD_BYTES_MAX, Room};
use super::taking::{Group, Taker, Taking};
use super::witness::Witness;
use crate::api::error::{Answer, Problem};
use crate::core::{ControlDigest, Evaluated, Following, Node};

/// Entries that are adopted in one commit.
const GROUP_ENTRIES: usize = 1_024;
/// Bytes that are adopted in one commit; the staging quota may be smaller. A quarter of what may be under way, so that the
/// next groups are received and verified meanwhile.
const GROUP_BYTES: u64 = AHEAD_BYTES_MAX as u64 / 4;

/// Adopts what comes.
pub(super) struct Adopting {
    node: Node,
    session: SessionId,
    /// Only a session of this owner is taken.
    owner: Option<Principal>,
    /// What comes after the group that is being taken in.
    group: Group,
    taker: Taker,
    bytes_max: u64,
    missing: Missing,
}

/// Which entries have something that may have to be asked for after the transfer.
#[derive(Clone, Debug)]
pub(super) struct Missing {
    wanted: Wanted,
    /// The chain up to here was held before: it was not looked at.
    pub(super) held_through: Option<Seq>,
    /// Entries that came without their payload, or that name files.
    pub(super) noted: BTreeSet<Seq>,
    /// How many of them came without their payload.
    absent: u64,
    /// Config blocks that the noted entries name, so that only the first entry of each is looked at.
    configs: BTreeSet<EntryCid>,
}

/// Whether somebody wants to be told what was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// A report, with the head that was told.
    Report(EntryCid),
    /// Nothing.
    Nothing,
}

impl Missing {
    /// What these entries may lack.
    pub(super) fn of(wanted: Wanted, noted: BTreeSet<Seq>) -> Self {
        Missing { wanted, held_through: None, noted, absent: 0, configs: BTreeSet::new() }
    }

    fn note(&mut self, entry: &Prechecked) {
        if self.wanted == Wanted::None {
            return;
        }
        let value = entry.signed().value();
        let is_absent = value.payload.is_some() && entry.payload().is_none();
        self.absent += u64::from(is_absent);
        let config = config_of(value);
        let is_new = config.is_some_and(|config| self.configs.insert(config));
        let has_files = entry.files().len() > usize::from(config.is_some());
        if is_absent || is_new || (self.wanted == Wanted::All && has_files) {
            self.noted.insert(value.seq());
        }
    }
}

impl Adopting {
    pub(super) fn new(
        node: Node,
        session: SessionId,
        owner: Option<Principal>,
        wanted: Wanted,
        told: Told,
    ) -> Answer<Self> {
        expect_room(&node)?;
        let bytes_max = node.config().limits.staging_bytes_max.min(GROUP_BYTES);
        let held_through = node.reader()?.session(session)?.map(|row| row.tip.seq);
        let witness = match (held_through, told) {
            (None, Told::Report(head)) => Some(Witness::new(session, head)),
            (Some(_), _) | (None, Told::Nothing) => None,
        };
        Ok(Adopting {
            group: Group::default(),
            taker: Taker::new(Taking::new(node.clone(), session, witness)),
            node,
            session,
            owner,
            bytes_max,
            missing: Missing { held_through, ..Missing::of(wanted, BTreeSet::new()) },
        })
    }

    pub(super) fn controls(&mut self, controls: Vec<Signed<Control>>) {
        self.group.controls.extend(controls);
    }

    pub(super) fn entries(&mut self, entries: Vec<Prechecked>, room: Option<Room>) -> Answer<()> {
        self.group.room.extend(room);
        for entry in entries {
            let value = entry.signed().value();
            if let Some(owner) = self.owner
                && value.owner() != owner
            {
                let what =
                    format!("expected a session of {}, got one of {}", owner.short(), value.owner().short());
                return Err(Problem::new(Code::Refused, what));
            }
            self.missing.note(&entry);
            self.group.push(entry);
            if self.group.files.is_batch(self.bytes_max) {
                self.make_files()?;
            }
            if self.group.entries.len() >= GROUP_ENTRIES || self.group.bytes >= self.bytes_max {
                self.hand_over()?;
            }
        }
        // Many small frames take more room than their bytes; others wait for it.
        if self.group.room.iter().map(Room::taken).sum::<u64>() >= GROUP_BYTES {
            self.hand_over()?;
        }
        Ok(())
    }

    /// Begins to make files of payloads that came: of a session that is held, since nothing is stored of one that is not allowed,
    /// and where the store has room for all that is under way. The others are made when their group is adopted.
    fn make_files(&mut self) -> Answer<()> {
        let under_way = self.taker.bytes() + self.group.bytes;
        let reader = self.node.reader()?;
        let has_room =
            reader.stats()?.bytes().saturating_add(under_way) <= self.node.config().limits.store_bytes_max;
        if has_room && reader.session(self.session)?.is_some() {
            self.group.files.begin(self.node.store());
        } else {
            self.group.files.leave();
        }
        Ok(())
    }

    /// Has the group taken in while the next one comes.
    fn hand_over(&mut self) -> Answer<()> {
        self.make_files()?;
        let group = std::mem::take(&mut self.group);
        self.taker.begin(group)
    }

    /// Adopts everything that came. What is refused, and what came after it, is not kept.
    pub(super) fn flush(&mut self) -> Answer<()> {
        let group = std::mem::take(&mut self.group);
        self.taker.take(group)
    }

    /// What was not handed over is dropped: something before it was not taken.
    pub(super) fn give_up(&mut self) -> Answer<()> {
        self.group = Group::default();
        self.taker.give_up()
    }

    /// Whether what came can only be judged together with what follows it.
    pub(super) fn waits(&self) -> bool {
        self.taker.waits()
    }

    /// Under which control blobs the last verdict was made, where something was not kept.
    pub(super) fn judged_under(&self) -> Option<ControlDigest> {
        self.taker.judged_under()
    }

    /// All that comes was read; now it comes again.
    pub(super) fn judge_together(&mut self, following: Arc<Following>) -> Answer<()> {
        self.taker.judge_together(following)
    }

    pub(super) fn locator(&self) -> Answer<Vec<EntryCid>> {
        let reader = self.node.reader()?;
        match reader.session(self.session)? {
            Some(_) => Ok(reader.locator(self.session)?),
            None => Ok(Vec::new()),
        }
    }

    /// What may have to be asked for, and who saw what was verified on the way, if all of it was seen.
    pub(super) fn finish(self) -> Answer<(Missing, Option<Evaluated>, Option<Witness>)> {
        let (last, witness) = self.taker.finish()?;
        // A payload that did not come along may be here, or come afterwards.
        let witness = witness.filter(|_| self.missing.absent == 0);
        Ok((self.missing, last, witness))
    }
}

/// The config block that an entry names.
pub(super) fn config_of(entry: &Entry) -> Option<EntryCid> {
    if let Body::ModelResponse(response) = &entry.body { response.config } else { None }
}

/// Refuses to take more once the store holds what it may.
pub(super) fn expect_room(node: &Node) -> Answer<()> {
    let (held, most) = (node.reader()?.stats()?.bytes(), node.config().limits.store_bytes_max);
    if held < most {
        return Ok(());
    }
    let what = format!("the store holds {held} bytes, at most {most} may be held");
    Err(Problem::new(Code::Quota, what).hint("throughline config show"))
}

#[cfg(test)]
#[path = "adopting_tests.rs"]
mod tests;
