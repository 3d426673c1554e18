//! Which records were seen, and which entry a record that names one of them as parent goes on from.
//!
//! A record costs about 64 bytes here; nothing else of it stays in memory. A file of 1 GiB with records of 1 KiB costs
//! 64 MiB.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::record::Parent;

/// A hash of an id: 128 bits, so a transcript cannot make two ids meet by chance.
pub(super) type Key = [u8; 16];

/// The key of an id.
pub(super) fn key_of(id: &str) -> Key {
    key_of_parts(&[id])
}

/// The key of a text that lies in parts.
pub(super) fn key_of_parts(parts: &[&str]) -> Key {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut key = [0; 16];
    key.copy_from_slice(&digest[..16]);
    key
}

/// Position of an entry among the conversation entries of a session: messages, responses and tool results.
pub(super) type Turn = u32;

/// What a record is to those that name it as parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// A part of the conversation.
    Message(Turn),
    /// No part of it: whoever names it goes on from what it goes on from.
    Hop {
        /// The conversation entry before it.
        turn: Option<Turn>,
        /// Whether it stands where the source left the newest entry: what follows it is another branch.
        branches: bool,
        /// Whether a part of the conversation follows it.
        used: bool,
    },
}

/// A record that was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// Number of its session.
    pub(super) session: u32,
    pub(super) link: Link,
    /// Print of its content.
    pub(super) print: u64,
    /// Whether its id names an entry: another record of that id must be named otherwise.
    pub(super) named: bool,
}

/// From where a record says it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// It names no parent.
    Nowhere,
    /// Its parent is not in the source, or in another session of it.
    Unknown,
    /// From a conversation entry.
    Turn(Turn),
    /// From a conversation entry over a side branch that holds no conversation.
    SideBranch(Option<Turn>),
}

/// All records that were seen.
#[derive(Debug, Default)]
pub(super) struct Seen(BTreeMap<Key, Mark>);

impl Seen {
    pub(super) fn get(&self, key: &Key) -> Option<&Mark> {
        self.0.get(key)
    }

    pub(super) fn insert(&mut self, key: Option<Key>, mark: Mark) {
        if let Some(key) = key {
            let named = mark.named || self.0.get(&key).is_some_and(|held| held.named);
            self.0.insert(key, Mark { named, ..mark });
        }
    }

    /// The conversation entry that a record is, or that stands before it.
    pub(super) fn turn(&self, key: &Key, session: u32) -> Option<Turn> {
        match self.0.get(key).filter(|mark| mark.session == session)?.link {
            Link::Message(turn) => Some(turn),
            Link::Hop { turn, .. } => turn,
        }
    }

    /// The session of a record's parent.
    pub(super) fn session_of(&self, parent: &Parent) -> Option<u32> {
        match parent {
            Parent::None => None,
            Parent::Record(key) => self.0.get(key).map(|mark| mark.session),
        }
    }

    /// From where a part of the conversation in `session` goes on.
    pub(super) fn came(&mut self, parent: &Parent, session: u32) -> Came {
        let Parent::Record(key) = parent else { return Came::Nowhere };
        let Some(mark) = self.0.get_mut(key).filter(|mark| mark.session == session) else {
            return Came::Unknown;
        };
        match &mut mark.link {
            Link::Message(turn) => Came::Turn(*turn),
            Link::Hop { turn, branches, used } => {
                let real = *branches || *used;
                *used = true;
                match (turn, real) {
                    (Some(turn), true) => Came::Turn(*turn),
                    (turn, _) => Came::SideBranch(*turn),
                }
            }
        }
    }

    /// What a record that is no part of the conversation is to those that name it. `tip` is the newest entry, `beside`
    /// says whether going on from a turn leaves out part of the conversation.
    pub(super) fn hop(
        &self,
        parent: &Parent,
        session: u32,
        tip: Option<Turn>,
        beside: impl Fn(Turn) -> bool,
    ) -> Link {
        let plain = Link::Hop { turn: tip, branches: false, used: false };
        let Parent::Record(key) = parent else { return plain };
        match self.0.get(key).filter(|mark| mark.session == session).map(|mark| mark.link) {
            None => plain,
            Some(Link::Message(turn)) => Link::Hop { turn: Some(turn), branches: beside(turn), used: false },
            Some(Link::Hop { turn, branches, used }) => {
                let starts = used && turn.is_some_and(&beside);
                Link::Hop { turn, branches: branches || starts, used: false }
            }
        }
    }
}
