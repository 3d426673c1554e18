//! What to fetch, from whom, and when again. `docs/PROTOCOL.md` §Sync policy.
//!
//! ```text
//!  followed session, a peer told a newer head
//!     │  the peer's control blobs of the owner differ ─▶ FetchControl ─▶ ControlEnded
//!     ▼
//!  FetchRange ─▶ Staged* ─▶ Check ─▶ Checked ─▶ Adopt ─▶ Adopted      (pipelined; one of each at a time)
//!     │ fails                                                 │
//!     ▼                                                       ▼
//!  another peer that told a newer head, at once; else a pause that doubles       held head moves on
//! ```
//!
//! It decides by what was told and by what is held, and by nothing else. It must never fetch a session that is not
//! followed, never have two ranges of one session under way, and never take a told head for true: only what is adopted
//! moves the held head. Every request it makes is answered exactly once by the driver, or ends with the peer's
//! connection.

mod ends;
mod machine;
mod quota;

use std::time::Duration;

use crate::code::{Code, Reject};
use crate::id::{Epoch, Principal, SessionId};

use super::range::Charged;
use super::{Point, RequestId};

pub use machine::Engine;

/// A peer on the network: its peer key in principal form.
pub type PeerKey = Principal;

/// A head and its epoch, as somebody tells it or as it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The entry.
    pub point: Point,
    /// Its epoch.
    pub epoch: Epoch,
}

impl Head {
    /// Whether it would be news to one who holds `held`: a later epoch, more entries, or another entry at the same
    /// place, which is evidence of a fork.
    #[must_use]
    pub fn is_news_to(&self, held: Option<&Head>) -> bool {
        let Some(held) = held else { return true };
        let (told, mine) = ((self.epoch, self.point.seq), (held.epoch, held.point.seq));
        told > mine || (told == mine && self.point.cid != held.point.cid)
    }
}

/// Count and digest of an owner's capabilities and tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlDigest {
    /// How many.
    pub count: u64,
    /// sha-256 over their ascending hashes.
    pub digest: [u8; 32],
}

/// Why a session is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interest {
    /// It is this node's own.
    Own,
    /// The user pinned it.
    Pinned,
    /// The user asked for it, once.
    Wanted,
}

/// Why something ended without success, and who is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason.
    pub reject: Reject,
    /// Who is charged.
    pub charged: Charged,
}

/// What happens to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A peer is connected.
    PeerUp {
        /// Which.
        peer: PeerKey,
    },
    /// A peer is gone. Its requests have ended.
    PeerDown {
        /// Which.
        peer: PeerKey,
    },
    /// A session is to be kept up with, or fetched.
    Follow {
        /// Which.
        session: SessionId,
        /// Its owner.
        owner: Principal,
        /// Why.
        interest: Interest,
        /// What is held of it.
        held: Option<Head>,
    },
    /// A session is not followed any more.
    Unfollow {
        /// Which.
        session: SessionId,
    },
    /// A peer told a head: in answer to [`Output::AskHeads`], by gossip or by an announcement.
    HeadSeen {
        /// Who.
        peer: PeerKey,
        /// Of which session.
        session: SessionId,
        /// What.
        head: Head,
    },
    /// A peer told which control blobs of an owner it has.
    ControlSeen {
        /// Who.
        peer: PeerKey,
        /// Whose.
        owner: Principal,
        /// What.
        told: ControlDigest,
    },
    /// This node's control blobs of an owner changed, or were counted for the first time.
    ControlHeld {
        /// Whose.
        owner: Principal,
        /// What is held.
        held: ControlDigest,
    },
    /// The answer to [`Output::AskHeads`] is complete, or will not come. What it told came before.
    HeadsEnded {
        /// Which.
        request: RequestId,
    },
    /// The answer to [`Output::FetchControl`] is complete (its blobs are adopted), or will not come.
    ControlEnded {
        /// Which.
        request: RequestId,
        /// How it ended.
        result: Result<(), Failure>,
    },
    /// Entries of a range are staged, up to a settled one.
    Staged {
        /// Which range.
        request: RequestId,
        /// The settled entry.
        through: Point,
        /// Bytes that came since the last report.
        bytes: u64,
    },
    /// The answer to [`Output::FetchRange`] is complete, or will not be.
    RangeEnded {
        /// Which.
        request: RequestId,
        /// How it ended.
        result: Result<(), Failure>,
    },
    /// The answer to [`Output::Check`].
    Checked {
        /// Which range.
        request: RequestId,
        /// Verified up to here, or why not.
        result: Result<Point, Failure>,
    },
    /// The answer to [`Output::Adopt`].
    Adopted {
        /// Which range.
        request: RequestId,
        /// The head that is held now, or why nothing was adopted.
        result: Result<Head, Reject>,
    },
    /// The held head moved by an append or by another road.
    Held {
        /// Of which session.
        session: SessionId,
        /// Where to.
        head: Head,
    },
    /// Time has passed; due at [`Engine::poll_timeout`].
    Tick,
}

/// What the engine wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Compare heads and control digests of everything followed with a peer.
    AskHeads {
        /// To answer by.
        request: RequestId,
        /// Whom.
        peer: PeerKey,
    },
    /// Fetch, verify and adopt an owner's control blobs that are not held.
    FetchControl {
        /// To answer by.
        request: RequestId,
        /// From whom.
        peer: PeerKey,
        /// Whose.
        owner: Principal,
    },
    /// Fetch a range. The driver adds the locator of what is verified, staging included.
    FetchRange {
        /// To answer by.
        request: RequestId,
        /// From whom.
        peer: PeerKey,
        /// Of which session.
        session: SessionId,
        /// Up to here.
        want: Point,
        /// What an earlier transfer verified and staging still holds: it goes on after this.
        resume: Option<Point>,
    },
    /// Stop a range. It needs no answer any more.
    CancelRange {
        /// Which.
        request: RequestId,
    },
    /// Verify what is staged.
    Check {
        /// Of which range.
        request: RequestId,
        /// Of which session.
        session: SessionId,
        /// Up to here.
        through: Point,
    },
    /// Adopt what is verified.
    Adopt {
        /// Of which range.
        request: RequestId,
        /// Of which session.
        session: SessionId,
        /// Up to here.
        through: Point,
    },
    /// A peer did what no honest one does.
    Charge {
        /// Which.
        peer: PeerKey,
        /// What.
        code: Code,
    },
    /// Something that others may want to know.
    Event(Event),
}

/// What others may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The held head moved.
    Moved {
        /// Of which session.
        session: SessionId,
        /// Where to.
        head: Head,
    },
    /// Nothing that was told is news any more.
    CaughtUp {
        /// Which session.
        session: SessionId,
        /// What is held.
        head: Head,
    },
    /// A transfer failed; it is tried again.
    Failed {
        /// Which session.
        session: SessionId,
        /// From whom.
        peer: PeerKey,
        /// Why.
        reject: Reject,
    },
    /// A quota is full; nothing more is fetched until its window ends (`E_BUDGET`).
    QuotaFull {
        /// Which session waits.
        session: SessionId,
        /// Whose quota it is.
        quota: Quota,
    },
    /// A table is full; what would have gone into it was dropped (`E_QUOTA`).
    TableFull {
        /// Which.
        table: Table,
    },
}

/// Whose quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// The session's.
    Session,
    /// The owner's, over all sessions.
    Owner,
    /// The peer's, over all sessions.
    Peer,
}

/// The tables of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Connected peers.
    Peers,
    /// Followed sessions.
    Sessions,
    /// Heads told for one session.
    Heads,
    /// Control digests told for one owner.
    Digests,
}

/// Bounds of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connected peers.
    pub peers_max: usize,
    /// Followed sessions.
    pub sessions_max: usize,
    /// Peers whose head is remembered, per session; and whose digest is, per owner.
    pub tellers_max: usize,
    /// Heads that failed and are not asked for again, per session; the oldest is forgotten first.
    pub refused_max: usize,
    /// Ranges under way, in all.
    pub ranges_max: usize,
    /// Ranges under way, per peer.
    pub peer_ranges_max: usize,
    /// How often heads are compared with a connected peer.
    pub heads_interval: Duration,
    /// First pause of a session after a failure when no other peer has it; doubles up to `retry_max`.
    pub retry: Duration,
    /// Longest pause.
    pub retry_max: Duration,
    /// How long a charged peer is not asked for ranges.
    pub shun: Duration,
    /// The window of the quotas below.
    pub quota_window: Duration,
    /// Bytes per session and window.
    pub session_bytes_max: u64,
    /// Bytes per owner and window.
    pub owner_bytes_max: u64,
    /// Bytes per peer and window.
    pub peer_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            peers_max: 320,
            sessions_max: 16_384,
            tellers_max: 32,
            refused_max: 32,
            ranges_max: 64,
            peer_ranges_max: 4,
            heads_interval: Duration::from_secs(60),
            retry: Duration::from_secs(1),
            retry_max: Duration::from_secs(300),
            shun: Duration::from_secs(600),
            quota_window: Duration::from_secs(3_600),
            session_bytes_max: 4 << 30,
            owner_bytes_max: 16 << 30,
            peer_bytes_max: 16 << 30,
        }
    }
}
