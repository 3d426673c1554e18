//! Groups of entries, taken in one after the other, each while the next one comes.
//!
//! ```text
//!  gathered: entries, in order ─┬─▶ the group ─▶ handed over when the one before is adopted ─▶ taken in, by a thread of its own
//!                               └─▶ files of large payloads ─────────────────────────────────┘ waits for them
//! ```
//!
//! Never two at a time: a group is judged on the chain that the one before it left. After a refusal nothing that came later is
//! taken in, and its files go.
//!
//! What comes last may decide about what came first. A group that does not stand by itself is not judged: it waits, and so does the
//! transfer, until all that it brings was read once ([`super::sink::Preview`]); then it comes again, and each group is judged together with
//! what follows it.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::id::SessionId;
use throughline_protocol::verify::Prechecked;
use throughline_store::MadeAhead;

use super::adopting::expect_room;
use super::ahead::{Ahead, lost};
use super::pipeline::Room;
use super::witness::Witness;
use crate::api::error::{Answer, Problem};
use crate::core::{Arrived, Basis, ControlDigest, Evaluated, Following, Follows, Node, Part};

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
    judging: Judging,
    /// There is no room for what follows: it stands on what was not kept.
    is_full: bool,
    /// The control blobs that were held when something was first not kept, else when the last verdict was made; others may have come since.
    judged_under: Option<ControlDigest>,
}

/// How groups are judged.
enum Judging {
    /// As they come, while each stands by itself.
    AsTheyCome,
    /// One does not: all that comes is to be read first.
    Waits,
    /// Each with what follows it.
    Together(Arc<Following>),
}

/// Whether anything comes after a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    MayCome,
    Nothing,
}

impl Taking {
    pub(super) fn new(node: Node, session: SessionId, witness: Option<Witness>) -> Self {
        let judging = Judging::AsTheyCome;
        Taking { node, session, witness, last: None, judging, is_full: false, judged_under: None }
    }

    fn take(&mut self, group: Group, more: More) -> Answer<()> {
        let Group { entries, controls, files, room, .. } = group;
        if entries.is_empty() && controls.is_empty() || self.is_full {
            return Ok(());
        }
        let follows = match (&self.judging, more) {
            (Judging::Together(following), _) => Follows::Known(Arc::clone(following)),
            (Judging::Waits, _) if !entries.is_empty() => return Err(waits()),
            (Judging::AsTheyCome | Judging::Waits, More::MayCome) => Follows::Unread,
            (Judging::AsTheyCome | Judging::Waits, More::Nothing) => Follows::Nothing,
        };
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
        // Those that come with the group are held afterwards; what comes from elsewhere meanwhile is news.
        let before = if controls.is_empty() { self.digest()? } else { None };
        let arrived = Arrived { entries, controls, follows, ..Arrived::default() };
        let Part::Taken(evaluated) = self.node.take_part(self.session, arrived)? else {
            (self.judging, self.witness) = (Judging::Waits, None);
            return Err(waits());
        };
        if evaluated.dropped > 0 && self.judged_under.is_none() {
            self.judged_under = before.map_or_else(|| self.digest(), |digest| Ok(Some(digest)))?;
        }
        tracing::debug!(entries = count, files = ahead, took = ?began.elapsed(), "a group was adopted");
        drop((files, room));
        if let Some(witness) = &mut self.witness {
            witness.adopted(&evaluated);
        }
        let refused = evaluated.refused.clone();
        self.is_full = evaluated.basis == Basis::Following && evaluated.dropped > 0;
        self.last = Some(evaluated);
        match refused {
            Some((_, reject)) => Err(reject.into()),
            None => Ok(()),
        }
    }

    /// Nothing more comes: makes the verdict on what did, where it was made on more.
    fn settle(&mut self) -> Answer<()> {
        let is_unsettled = |last: &Evaluated| last.basis == Basis::Following || last.dropped > 0;
        if self.last.as_ref().is_some_and(is_unsettled) {
            if self.judged_under.is_none() {
                self.judged_under = self.digest()?;
            }
            self.last = Some(self.node.take_rest(self.session)?);
        }
        Ok(())
    }

    /// Of the control blobs that are held now; none while the session is not.
    fn digest(&self) -> Answer<Option<ControlDigest>> {
        let reader = self.node.reader()?;
        let owner = reader.session(self.session)?.map(|row| row.owner);
        owner.map(|owner| ControlDigest::of(&reader, owner, self.session)).transpose()
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

/// Why a transfer ends before its end, the first time.
fn waits() -> Problem {
    Problem::new(Code::Incomplete, "what came can only be judged together with what follows it")
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
            let taken = taking.take(group, More::MayCome);
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
                let taken = taking.take(group, More::MayCome);
                self.turn = Turn::Idle(taking);
                taken
            }
        }
    }

    /// Waits for the group before, then takes in this one, here: nothing comes after it.
    ///
    /// # Errors
    /// Those of either; after one of the group before, this one is dropped.
    pub(super) fn take(&mut self, group: Group) -> Answer<()> {
        let mut taking = self.idle()?;
        let taken = taking.take(group, More::Nothing).and_then(|()| taking.settle());
        self.turn = Turn::Idle(taking);
        taken
    }

    /// Nothing of what else came is taken in; what was is judged by itself.
    ///
    /// # Errors
    /// When that fails; what the group before came to is not told once more.
    pub(super) fn give_up(&mut self) -> Answer<()> {
        let Ok(mut taking) = self.idle() else {
            let Turn::Idle(taking) = &mut self.turn else { return Ok(()) };
            return taking.settle();
        };
        let settled = taking.settle();
        self.turn = Turn::Idle(taking);
        settled
    }

    /// Whether a group waits for what follows it to be read.
    pub(super) fn waits(&self) -> bool {
        matches!(&self.turn, Turn::Idle(taking) if matches!(taking.judging, Judging::Waits))
    }

    /// Under which control blobs the last verdict was made, where something was not kept.
    pub(super) fn judged_under(&self) -> Option<ControlDigest> {
        match &self.turn {
            Turn::Idle(taking) => taking.judged_under,
            Turn::Busy(..) | Turn::Lost => None,
        }
    }

    /// All that comes has been read: from now on groups are judged together with it.
    ///
    /// # Errors
    /// Those of the group before.
    pub(super) fn judge_together(&mut self, following: Arc<Following>) -> Answer<()> {
        let mut taking = self.idle()?;
        taking.judging = Judging::Together(following);
        self.turn = Turn::Idle(taking);
        Ok(())
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
