//! Adopting a session as it comes, a group of entries at a time.
//!
//! A group is large enough that its commit costs little beside it, and small enough that the next ones are verified and received
//! meanwhile. What was adopted stays when the transfer ends early: the next one goes on after it. Nothing else is stored.

use std::time::Instant;

use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::id::{EntryCid, Principal, Seq, SessionId};
use throughline_protocol::verify::{Prechecked, Report};

use super::Wanted;
use super::pipeline::{AHEAD_BYTES_MAX, Room};
use super::witness::Witness;
use crate::api::error::{Answer, Problem};
use crate::core::{Arrived, Evaluated, Node};
use crate::sync::ask::is_of_owner;

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
    controls: Vec<Signed<Control>>,
    entries: Vec<Prechecked>,
    bytes: u64,
    bytes_max: u64,
    /// Room of the frames that the group came in.
    room: Vec<Room>,
    /// Looks on from the genesis, where a report is wanted.
    witness: Option<Witness>,
    missing: Missing,
    pub(super) adopted: u64,
    pub(super) last: Option<Evaluated>,
}

/// Which entries have something that may have to be asked for after the transfer.
#[derive(Clone, Debug)]
pub(super) struct Missing {
    wanted: Wanted,
    /// The chain up to here was held before: it was not looked at.
    pub(super) held_through: Option<Seq>,
    /// Entries that came without their payload, or that name files.
    pub(super) noted: Vec<Seq>,
    /// How many of them came without their payload.
    absent: u64,
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
    fn note(&mut self, entry: &Prechecked) {
        if self.wanted == Wanted::None {
            return;
        }
        let is_absent = entry.signed().value().payload.is_some() && entry.payload().is_none();
        self.absent += u64::from(is_absent);
        if is_absent || (self.wanted == Wanted::All && !entry.files().is_empty()) {
            self.noted.push(entry.signed().value().seq());
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
            node,
            session,
            owner,
            controls: Vec::new(),
            entries: Vec::new(),
            bytes: 0,
            bytes_max,
            room: Vec::new(),
            witness,
            missing: Missing { wanted, held_through, noted: Vec::new(), absent: 0 },
            adopted: 0,
            last: None,
        })
    }

    pub(super) fn controls(&mut self, controls: Vec<Signed<Control>>) {
        self.controls.extend(controls);
    }

    pub(super) fn entries(&mut self, entries: Vec<Prechecked>, room: Option<Room>) -> Answer<()> {
        self.room.extend(room);
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
            self.bytes += entry.signed().bytes().len() as u64;
            self.bytes += entry.payload().map_or(0, |payload| payload.len() as u64);
            self.entries.push(entry);
            if self.entries.len() >= GROUP_ENTRIES || self.bytes >= self.bytes_max {
                self.flush()?;
            }
        }
        // Many small frames take more room than their bytes; others wait for it.
        if self.room.iter().map(Room::taken).sum::<u64>() >= GROUP_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Adopts the group.
    pub(super) fn flush(&mut self) -> Answer<()> {
        let flushed = self.adopt();
        // Also when it was refused: it is not kept.
        self.room.clear();
        flushed
    }

    fn adopt(&mut self) -> Answer<()> {
        if self.entries.is_empty() && self.controls.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        if !entries.is_empty() {
            // A transfer has no end that is known before: what was adopted stays, the rest is not taken.
            expect_room(&self.node)?;
        }
        let controls = self.owned_controls(&entries)?;
        if let Some(witness) = &mut self.witness {
            witness.saw(&self.node, &controls, &entries)?;
        }
        if entries.is_empty() {
            if !controls.is_empty() {
                self.node.take_controls(controls)?;
            }
            return Ok(());
        }
        let (count, began) = (entries.len(), Instant::now());
        let arrived = Arrived { entries, controls, ..Arrived::default() };
        let evaluated = self.node.take_in(self.session, arrived)?;
        tracing::debug!(entries = count, took = ?began.elapsed(), "a group was adopted");
        self.adopted += evaluated.adopted;
        if let Some(witness) = &mut self.witness {
            witness.adopted(&evaluated);
        }
        let refused = evaluated.refused.clone();
        self.last = Some(evaluated);
        match refused {
            Some((_, reject)) => Err(reject.into()),
            None => Ok(()),
        }
    }

    /// The blobs that belong to this session's owner; nothing else is stored.
    fn owned_controls(&mut self, entries: &[Prechecked]) -> Answer<Vec<Signed<Control>>> {
        let controls = std::mem::take(&mut self.controls);
        if controls.is_empty() {
            return Ok(controls);
        }
        let held = self.node.reader()?.session(self.session)?.map(|row| row.owner);
        let genesis = entries.iter().find(|entry| entry.signed().cid() == self.session.genesis());
        let owner = held.or(genesis.map(|genesis| genesis.signed().value().owner()));
        let Some(owner) = owner else { return Ok(Vec::new()) };
        let session = self.session;
        let fits = |control: &Signed<Control>| {
            is_of_owner(control.value(), owner)
                && match control.value() {
                    Control::Ref(value) => value.session_head().is_ok_and(|head| head.session == session),
                    Control::Capability(_) | Control::Tombstone(_) => true,
                }
        };
        Ok(controls.into_iter().filter(fits).collect())
    }

    pub(super) fn locator(&self) -> Answer<Vec<EntryCid>> {
        let reader = self.node.reader()?;
        match reader.session(self.session)? {
            Some(_) => Ok(reader.locator(self.session)?),
            None => Ok(Vec::new()),
        }
    }

    /// What may have to be asked for, and what was verified on the way if all of it was seen.
    pub(super) fn finish(self) -> Answer<(Missing, Option<Evaluated>, Option<Report>)> {
        // A payload that did not come along may be here, or come afterwards.
        let report = match self.witness {
            Some(witness) if self.missing.absent == 0 => witness.report(&self.node)?,
            Some(_) | None => None,
        };
        Ok((self.missing, self.last, report))
    }
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
