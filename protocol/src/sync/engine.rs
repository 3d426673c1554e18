//! Whom to compare heads with, when and how many at once, and which of the heads that are told are worth a transfer.
//! `docs/PROTOCOL.md` R-FI-5, R-FI-6.
//!
//! ```text
//!  connected, timer, announcement ─▶ Hint ─▶ waits for a place ─▶ Compare ─▶ Compared ─▶ done, or once more
//!                                     ▲                              │ heads were told
//!                                     │                              ▼
//!                       Settled ◀─ Busy: is being fetched ◀─ weigh: Fetch | Leave ─▶ Failed ─▶ pause, Charge
//! ```
//!
//! A hint says that a peer may have something; it is never believed, only acted on. The engine must never lose one: after
//! each hint of a peer that stays, a comparison with it begins. It must never have two comparisons with one peer under way,
//! and neither strangers nor one known party, with however many keys and however slow, must ever hold all places. What a comparison finds
//! and what is held is not its business: who runs it asks the store, and comes back with how it ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::claims::{Claims, Failed};
use crate::code::Code;
use crate::id::{EntryCid, Principal, SessionId};

/// A peer on the network: its connection key in principal form.
pub type PeerKey = Principal;

/// Whether a peer is known: by the address book, or as a party to the node's owner that proved to be it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is, and this principal stands behind it; its connection key where it proved no other.
    Known(Principal),
    /// It is anybody.
    Stranger,
}

/// What is compared with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything that is followed.
    All,
    /// One session, and its owner's control blobs.
    Session(SessionId),
}

impl Scope {
    /// What covers both.
    fn with(self, other: Option<Scope>) -> Scope {
        match other {
            Some(other) if other != self => Scope::All,
            Some(_) | None => self,
        }
    }
}

/// How a comparison ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It went through, or ended for a reason that does not pass by itself.
    Done,
    /// The peer was busy or the line broke: it is tried again soon.
    MayPass,
}

/// What happens to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A connected peer may have something: it connected, announced something, or the timer says so.
    Hint {
        /// Who.
        peer: PeerKey,
        /// As what it stands now.
        standing: Standing,
        /// What it may have.
        scope: Scope,
    },
    /// A peer is not connected any more. What is under way with it ends by itself.
    Left {
        /// Who.
        peer: PeerKey,
    },
    /// The answer to [`Output::Compare`].
    Compared {
        /// With whom.
        peer: PeerKey,
        /// How it ended.
        end: End,
    },
    /// A peer has news of a session that is being fetched from another already.
    Busy {
        /// Who.
        peer: PeerKey,
        /// As what it stands now.
        standing: Standing,
        /// Of which session.
        session: SessionId,
    },
    /// A transfer of a session has ended, however it did.
    Settled {
        /// Which session.
        session: SessionId,
    },
    /// What a peer claimed came to nothing: see [`Engine::weigh`].
    Failed {
        /// Who.
        peer: PeerKey,
        /// As what it stands now.
        standing: Standing,
        /// Of which session.
        session: SessionId,
        /// The head that it told.
        head: EntryCid,
        /// What it is to blame for; none when nobody is, as for a slow line.
        fault: Option<Code>,
    },
    /// What a peer claimed proved true.
    Kept {
        /// Who.
        peer: PeerKey,
    },
    /// Time has passed; due at [`Engine::poll_timeout`].
    Tick,
}

/// What the engine wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Compare with a peer; [`Input::Compared`] answers, exactly once.
    Compare {
        /// With whom.
        peer: PeerKey,
        /// What.
        scope: Scope,
    },
    /// A peer did what no honest one goes on doing.
    Charge {
        /// Who.
        peer: PeerKey,
        /// What.
        code: Code,
    },
}

/// What a told head of a session that is not held is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// A transfer.
    Fetch,
    /// Nothing now: it or its teller's last one came to nothing a short time ago.
    Leave,
}

/// Bounds of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Comparisons under way, in all.
    pub places: usize,
    /// Comparisons with strangers under way; fewer than `places`.
    pub places_of_strangers: usize,
    /// Comparisons with one known principal under way, over all of its connections; fewer than `places`.
    pub places_of_one: usize,
    /// Peers with whom something is under way or waits. More than the network connects to; beyond it a hint is dropped, and
    /// the timer's finds what it was about.
    pub peers_max: usize,
    /// How often a comparison that [`End::MayPass`] ended is tried again.
    pub retries: u32,
    /// The pause before the first of these; it doubles.
    pub retry: Duration,
    /// Pairs of session and peer that wait for a transfer to end; beyond it the timer's comparison finds what they have.
    pub busy_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            places: 8,
            places_of_strangers: 6,
            places_of_one: 4,
            peers_max: 1_024,
            retries: 3,
            retry: Duration::from_millis(100),
            busy_max: 4_096,
        }
    }
}

/// What goes on with one peer. There is none for a peer with whom nothing does.
#[derive(Clone, Debug)]
struct Peer {
    standing: Standing,
    state: State,
    /// What is to be compared when its turn comes.
    next: Option<Scope>,
    /// Comparisons in a row that may pass.
    attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is in the queue for a place.
    Queued,
    /// It has a place, counted by what it stood as when it got it.
    Running(Scope, Standing),
    /// It gets into the queue at that time.
    Pausing(Duration),
}

/// The engine. One a node.
#[derive(Clone, Debug)]
pub struct Engine {
    limits: Limits,
    peers: BTreeMap<PeerKey, Peer>,
    /// First come, first served, each kind for its own places.
    queue: VecDeque<PeerKey>,
    /// As what those stand that have a place.
    running: Vec<Standing>,
    busy: BTreeMap<(SessionId, PeerKey), Standing>,
    claims: Claims,
    outputs: VecDeque<Output>,
}

impl Engine {
    /// An engine with whom nothing goes on.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Engine {
            limits,
            peers: BTreeMap::new(),
            queue: VecDeque::new(),
            running: Vec::new(),
            busy: BTreeMap::new(),
            claims: Claims::default(),
            outputs: VecDeque::new(),
        }
    }

    /// What has to be done next, in order. Call until it gives `None` after each [`Engine::handle`].
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is due, on the clock of `now`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let pauses = self.peers.values().filter_map(|peer| match peer.state {
            State::Pausing(until) => Some(until),
            State::Queued | State::Running(..) => None,
        });
        pauses.min()
    }

    /// Whether a head that a peer tells, of a session that is not held, is worth a transfer now. R-FI-5.
    #[must_use]
    pub fn weigh(
        &self,
        now: Duration,
        who: (PeerKey, Standing),
        session: SessionId,
        head: EntryCid,
    ) -> Weight {
        if self.claims.is_due(who, session, head, now) { Weight::Fetch } else { Weight::Leave }
    }

    /// Takes one input. `now` is the time since some fixed moment, from a clock that never goes back.
    pub fn handle(&mut self, now: Duration, input: Input) {
        match input {
            Input::Hint { peer, standing, scope } => self.hint(peer, standing, scope),
            Input::Left { peer } => self.left(peer),
            Input::Compared { peer, end } => self.compared(now, peer, end),
            Input::Busy { peer, standing, session } => self.wait_for(peer, standing, session),
            Input::Settled { session } => self.settled(session),
            Input::Failed { peer, standing, session, head, fault } => {
                let failed = self.claims.failed((peer, standing), session, head, now);
                if let (Failed::Charge, Some(code)) = (failed, fault) {
                    self.outputs.push_back(Output::Charge { peer, code });
                }
            }
            Input::Kept { peer } => self.claims.kept(peer),
            Input::Tick => {}
        }
        self.end_pauses(now);
        self.fill_places();
    }

    fn hint(&mut self, key: PeerKey, standing: Standing, scope: Scope) {
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.standing = standing;
            peer.next = Some(scope.with(peer.next));
            return;
        }
        if self.peers.len() >= self.limits.peers_max {
            return;
        }
        self.peers.insert(key, Peer { standing, state: State::Queued, next: Some(scope), attempts: 0 });
        self.queue.push_back(key);
    }

    fn left(&mut self, key: PeerKey) {
        self.busy.retain(|(_, peer), _| *peer != key);
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.next = None;
        // Nobody is there to try again with.
        peer.attempts = self.limits.retries;
        if !matches!(peer.state, State::Running(..)) {
            self.peers.remove(&key);
            self.queue.retain(|queued| *queued != key);
        }
    }

    fn compared(&mut self, now: Duration, key: PeerKey, end: End) {
        let found = self.peers.get_mut(&key).and_then(|peer| match peer.state {
            State::Running(scope, standing) => Some((peer, scope, standing)),
            State::Queued | State::Pausing(_) => None,
        });
        let Some((peer, scope, standing)) = found else { return };
        if let Some(at) = self.running.iter().position(|running| *running == standing) {
            self.running.swap_remove(at);
        }
        if end == End::MayPass && peer.attempts < self.limits.retries {
            let pause = self.limits.retry.saturating_mul(1 << peer.attempts.min(16));
            peer.attempts += 1;
            peer.next = Some(scope.with(peer.next));
            peer.state = State::Pausing(now.saturating_add(pause));
            return;
        }
        peer.attempts = 0;
        if peer.next.is_some() {
            peer.state = State::Queued;
            self.queue.push_back(key);
        } else {
            self.peers.remove(&key);
        }
    }

    fn wait_for(&mut self, peer: PeerKey, standing: Standing, session: SessionId) {
        if self.busy.len() < self.limits.busy_max || self.busy.contains_key(&(session, peer)) {
            self.busy.insert((session, peer), standing);
        }
    }

    fn settled(&mut self, session: SessionId) {
        let mut these: Vec<(PeerKey, Standing)> = self
            .busy
            .iter()
            .filter(|((of, _), _)| *of == session)
            .map(|((_, peer), standing)| (*peer, *standing))
            .collect();
        // Whoever comes first fetches it, and the others wait again.
        these.sort_by_key(|(_, standing)| *standing == Standing::Stranger);
        for (peer, standing) in these {
            self.busy.remove(&(session, peer));
            self.hint(peer, standing, Scope::Session(session));
        }
    }

    fn end_pauses(&mut self, now: Duration) {
        for (key, peer) in &mut self.peers {
            if matches!(peer.state, State::Pausing(until) if now >= until) {
                peer.state = State::Queued;
                self.queue.push_back(*key);
            }
        }
    }

    fn fill_places(&mut self) {
        let mut waiting = VecDeque::new();
        while let Some(key) = self.queue.pop_front() {
            let Some(peer) = self.peers.get_mut(&key) else { continue };
            let alike = self.running.iter().filter(|running| **running == peer.standing).count();
            let most = match peer.standing {
                Standing::Known(_) => self.limits.places_of_one,
                Standing::Stranger => self.limits.places_of_strangers,
            };
            let has_place = self.running.len() < self.limits.places && alike < most;
            let Some(scope) = peer.next.take_if(|_| has_place) else {
                waiting.push_back(key);
                continue;
            };
            peer.state = State::Running(scope, peer.standing);
            self.running.push(peer.standing);
            self.outputs.push_back(Output::Compare { peer: key, scope });
        }
        self.queue = waiting;
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
