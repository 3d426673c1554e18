//! Groups of entries, taken in one after the other, each while the next one comes.
//!
//! ```text
//!  gathered: entries, in order ─┬─▶ the group ─▶ handed over when the one before is adopted ─▶ taken in, by a thread of its own
//!                               └─▶ files of large payloads ─────────────────────────────────┘ waits for them
//! ```
//!
//! Never two at a time: a group is judged on the chain that the one before it left. After a refusal nothing that came later is
//! taken in, and its files go.

use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use throughline_protocol::block::Signed;
use throughline_protocol::control::Control;
use throughline_protocol::id::SessionId;
use throughline_protocol::verify::Prechecked;
use throughline_store::MadeAhead;

use super::adopting::expect_room;
use super::ahead::{Ahead, lost};
use super::pipeline::Room;
use super::witness::Witness;
use crate::api::error::Answer;
use crate::core::{Arrived, Evaluated, Node};

/// What is adopted in one commit.
#[derive(Default)]
pub(super) struct Group {
    pub(super) entries: Vec<Prechecked>,
    pub(super) controls: Vec<Signed<Control>>,
    /// Of entries and payloads.
    pub(super) bytes: u64,
    /// Room of the frames that it came in.
    pub(super) room: Vec<Room>,
    /// Files of its payloads that are being made.
    pub(super) files: Ahead,
}

impl Group {
    pub(super) fn push(&mut self, entry: Prechecked) {
        self.bytes += entry.signed().bytes().len() as u64;
        self.bytes += entry.payload().map_or(0, |payload| payload.len() as u64);
        self.files.note(&entry);
        self.entries.push(entry);
    }
}

/// Takes groups in.
pub(super) struct Taking {
    node: Node,
    session: SessionId,
    /// Looks on from the genesis, where a report is wanted.
    witness: Option<Witness>,
    last: Option<Evaluated>,
}

impl Taking {
    pub(super) fn new(node: Node, session: SessionId, witness: Option<Witness>) -> Self {
        Taking { node, session, witness, last: None }
    }

    fn take(&mut self, group: Group) -> Answer<()> {
        let Group { entries, controls, files, room, .. } = group;
        if entries.is_empty() && controls.is_empty() {
            return Ok(());
        }
        if !entries.is_empty() {
            // A transfer has no end that is known before: what was adopted stays, the rest is not taken.
            expect_room(&self.node)?;
        }
        let controls = self.owned_controls(controls, &entries)?;
        if let Some(witness) = &mut self.witness {
            witness.saw(&self.node, &controls, &entries)?;
        }
        if entries.is_empty() {
            if !controls.is_empty() {
                self.node.take_controls(controls)?;
            }
            return Ok(());
        }
        // Until the rows that name them are there.
        let files = files.made()?;
        let (count, ahead) = (entries.len(), files.iter().map(MadeAhead::count).sum::<usize>());
        let began = Instant::now();
        let arrived = Arrived { entries, controls, ..Arrived::default() };
        let evaluated = self.node.take_in(self.session, arrived)?;
        tracing::debug!(entries = count, files = ahead, took = ?began.elapsed(), "a group was adopted");
        drop((files, room));
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
    fn owned_controls(
        &self,
        controls: Vec<Signed<Control>>,
        entries: &[Prechecked],
    ) -> Answer<Vec<Signed<Control>>> {
        if controls.is_empty() {
            return Ok(controls);
        }
        let held = self.node.reader()?.session(self.session)?.map(|row| row.owner);
        let genesis = entries.iter().find(|entry| entry.signed().cid() == self.session.genesis());
        let owner = held.or(genesis.map(|genesis| genesis.signed().value().owner()));
        let Some(owner) = owner else { return Ok(Vec::new()) };
        let session = self.session;
        let fits = |control: &Signed<Control>| {
            control.value().is_of(owner)
                && match control.value() {
                    Control::Ref(value) => value.session_head().is_ok_and(|head| head.session == session),
                    Control::Capability(_) | Control::Tombstone(_) => true,
                }
        };
        Ok(controls.into_iter().filter(fits).collect())
    }
}

/// Has groups taken in, one at a time.
pub(super) struct Taker {
    turn: Turn,
}

enum Turn {
    /// Nothing is being taken in.
    Idle(Box<Taking>),
    /// A group of so many bytes is.
    Busy(u64, JoinHandle<Option<Taken>>),
    /// The thread that took one in ended early.
    Lost,
}

/// What comes back of a group.
type Taken = (Box<Taking>, Answer<()>);

impl Taker {
    pub(super) fn new(taking: Taking) -> Self {
        Taker { turn: Turn::Idle(Box::new(taking)) }
    }

    /// Bytes of the group that is being taken in.
    pub(super) fn bytes(&self) -> u64 {
        match self.turn {
            Turn::Busy(bytes, _) => bytes,
            Turn::Idle(_) | Turn::Lost => 0,
        }
    }

    /// Waits for the group before, then begins to take in this one.
    ///
    /// # Errors
    /// Those of the group before; this one is dropped then.
    pub(super) fn begin(&mut self, group: Group) -> Answer<()> {
        let mut taking = self.idle()?;
        let bytes = group.bytes;
        // What is to be done is sent after it: a thread that cannot be had takes nothing along.
        let (send, receive) = sync_channel::<(Box<Taking>, Group)>(1);
        let act = move || {
            let (mut taking, group) = receive.recv().ok()?;
            let taken = taking.take(group);
            Some((taking, taken))
        };
        match Builder::new().name("adopting".to_owned()).spawn(act) {
            Ok(thread) => {
                // It waits for just this.
                let _ = send.send((taking, group));
                self.turn = Turn::Busy(bytes, thread);
                Ok(())
            }
            Err(_) => {
                let taken = taking.take(group);
                self.turn = Turn::Idle(taking);
                taken
            }
        }
    }

    /// Waits for the group before, then takes in this one, here.
    ///
    /// # Errors
    /// Those of either; after one of the group before, this one is dropped.
    pub(super) fn take(&mut self, group: Group) -> Answer<()> {
        let mut taking = self.idle()?;
        let taken = taking.take(group);
        self.turn = Turn::Idle(taking);
        taken
    }

    /// What the last group came to, and who looked on.
    pub(super) fn finish(mut self) -> Answer<(Option<Evaluated>, Option<Witness>)> {
        let taking = self.idle()?;
        Ok((taking.last, taking.witness))
    }

    /// Waits until nothing is being taken in. What comes back is to be put there again.
    fn idle(&mut self) -> Answer<Box<Taking>> {
        match std::mem::replace(&mut self.turn, Turn::Lost) {
            Turn::Idle(taking) => Ok(taking),
            Turn::Busy(_, thread) => {
                let (taking, taken) = thread.join().ok().flatten().ok_or_else(lost)?;
                match taken {
                    Ok(()) => Ok(taking),
                    Err(problem) => {
                        // The next transfer goes on with it.
                        self.turn = Turn::Idle(taking);
                        Err(problem)
                    }
                }
            }
            Turn::Lost => Err(lost()),
        }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        // Nothing goes on behind the back of a transfer that ended.
        if let Turn::Busy(_, thread) = std::mem::replace(&mut self.turn, Turn::Lost) {
            drop(thread.join());
        }
    }
}
