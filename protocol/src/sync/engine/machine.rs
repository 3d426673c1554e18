//! The machine of the [`Engine`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::code::{Code, Reject};
use crate::id::{EntryCid, Principal, SessionId};

use super::super::range::Charged;
use super::super::{Point, RequestId};
use super::quota::Meter;
use super::{ControlDigest, Event, Failure, Head, Input, Interest, Limits, Output, PeerKey, Quota, Table};

#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) heads_request: Option<RequestId>,
    heads_at: Duration,
    pub(super) ranges: usize,
    pub(super) shunned_until: Duration,
    pub(super) meter: Meter,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) owner: Principal,
    interest: Interest,
    pub(super) held: Option<Head>,
    pub(super) told: BTreeMap<PeerKey, Head>,
    /// Heads that did not stand the check, from whom they came.
    pub(super) refused: VecDeque<(PeerKey, EntryCid)>,
    pub(super) range: Option<Range>,
    /// Verified and still staged from a transfer that broke.
    pub(super) resume: Option<Point>,
    pub(super) retry_at: Duration,
    pub(super) pause: Duration,
    pub(super) meter: Meter,
}

/// One range under way: it arrives, is verified and is adopted at the same time, each behind the one before.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) request: RequestId,
    pub(super) peer: PeerKey,
    pub(super) want: Point,
    pub(super) arrival: Arrival,
    pub(super) staged: Option<Point>,
    pub(super) checked: Option<Point>,
    pub(super) adopted: Option<Point>,
    pub(super) checking: Option<Point>,
    pub(super) adopting: Option<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Running,
    Complete,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Owner {
    pub(super) held: Option<ControlDigest>,
    pub(super) told: BTreeMap<PeerKey, ControlDigest>,
    /// What was fetched from a peer already: the same digest is not fetched twice.
    pub(super) fetched: BTreeMap<PeerKey, ControlDigest>,
    pub(super) request: Option<(RequestId, PeerKey)>,
    pub(super) meter: Meter,
}

/// Where a session stands when something for it could begin.
enum Next {
    Nothing,
    Control(PeerKey),
    Range(PeerKey, Head),
    /// Until then; or until a slot is free.
    Wait(Option<Duration>),
    Full(Quota, Duration),
}

/// The engine. One a node.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(super) limits: Limits,
    pub(super) peers: BTreeMap<PeerKey, Peer>,
    pub(super) sessions: BTreeMap<SessionId, Session>,
    pub(super) owners: BTreeMap<Principal, Owner>,
    pub(super) ranges: BTreeMap<RequestId, SessionId>,
    /// Sessions for which something may begin now.
    pub(super) ready: BTreeSet<SessionId>,
    pub(super) outputs: VecDeque<Output>,
    requests: u64,
    pub(super) dropped: u64,
}

impl Engine {
    /// An engine that follows nothing and knows nobody.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Engine {
            limits,
            peers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            owners: BTreeMap::new(),
            ranges: BTreeMap::new(),
            ready: BTreeSet::new(),
            outputs: VecDeque::new(),
            requests: 0,
            dropped: 0,
        }
    }

    /// Answers to requests that are not under way, and heads of sessions that are not followed. For a counter.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The head that is held of a followed session.
    #[must_use]
    pub fn held(&self, session: SessionId) -> Option<Head> {
        self.sessions.get(&session).and_then(|session| session.held)
    }

    /// The followed sessions and why each is, for the `heads` request.
    pub fn followed(&self) -> impl Iterator<Item = (SessionId, Interest)> + '_ {
        self.sessions.iter().map(|(id, session)| (*id, session.interest))
    }

    /// What has to be done next, in order. Call until it gives `None` after each [`Engine::handle`].
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is due, on the clock of `now`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let heads = self.peers.values().filter(|peer| peer.heads_request.is_none()).map(|peer| peer.heads_at);
        let retries = self.sessions.values().filter(|session| session.range.is_none() && session.has_news());
        // Those that wait for a slot become ready when one is free; they need no clock.
        let retries = retries.map(|session| session.retry_at).filter(|at| *at > Duration::ZERO);
        heads.chain(retries).min()
    }

    /// Takes one input. `now` is the time since some fixed moment, from a clock that never goes back.
    pub fn handle(&mut self, now: Duration, input: Input) {
        match input {
            Input::PeerUp { peer } => self.peer_up(now, peer),
            Input::PeerDown { peer } => self.peer_down(now, peer),
            Input::Follow { session, owner, interest, held } => self.follow(session, owner, interest, held),
            Input::Unfollow { session } => self.unfollow(session),
            Input::HeadSeen { peer, session, head } => self.head_seen(peer, session, head),
            Input::ControlSeen { peer, owner, told } => self.control_seen(peer, owner, told),
            Input::ControlHeld { owner, held } => {
                if let Some(owner) = self.owners.get_mut(&owner) {
                    owner.held = Some(held);
                }
            }
            Input::HeadsEnded { request } => self.heads_ended(request),
            Input::ControlEnded { request, result } => self.control_ended(now, request, result),
            Input::Staged { request, through, bytes } => self.staged(now, request, through, bytes),
            Input::RangeEnded { request, result } => self.range_ended(now, request, result),
            Input::Checked { request, result } => self.checked(now, request, result),
            Input::Adopted { request, result } => self.adopted(now, request, result),
            Input::Held { session, head } => self.held_moved(session, head),
            Input::Tick => {}
        }
        self.begin_what_is_due(now);
    }

    // ---- peers and what is followed ----------------------------------------------------------------------------

    fn peer_up(&mut self, now: Duration, peer: PeerKey) {
        if self.peers.contains_key(&peer) {
            return;
        }
        if self.peers.len() >= self.limits.peers_max {
            return self.event(Event::TableFull { table: Table::Peers });
        }
        let fresh = Peer {
            heads_request: None,
            heads_at: now,
            ranges: 0,
            shunned_until: Duration::ZERO,
            meter: Meter::default(),
        };
        self.peers.insert(peer, fresh);
    }

    fn peer_down(&mut self, now: Duration, peer: PeerKey) {
        if self.peers.remove(&peer).is_none() {
            return;
        }
        let lost: Vec<RequestId> = self
            .sessions
            .values()
            .filter_map(|session| session.range.as_ref())
            .filter(|range| range.peer == peer && range.arrival == Arrival::Running)
            .map(|range| range.request)
            .collect();
        for request in lost {
            let reject = Reject::new(Code::Unreachable, "the peer is gone");
            self.fail(now, request, Failure { reject, charged: Charged::Nobody });
        }
        for session in self.sessions.values_mut() {
            session.told.remove(&peer);
        }
        for owner in self.owners.values_mut() {
            owner.told.remove(&peer);
            owner.fetched.remove(&peer);
            if owner.request.take_if(|(_, from)| *from == peer).is_some() {
                self.ready.extend(self.sessions.keys());
            }
        }
    }

    fn follow(&mut self, id: SessionId, owner: Principal, interest: Interest, held: Option<Head>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.interest = session.interest.min(interest);
            return;
        }
        if self.sessions.len() >= self.limits.sessions_max {
            return self.event(Event::TableFull { table: Table::Sessions });
        }
        let session = Session {
            owner,
            interest,
            held,
            told: BTreeMap::new(),
            refused: VecDeque::new(),
            range: None,
            resume: None,
            retry_at: Duration::ZERO,
            pause: self.limits.retry,
            meter: Meter::default(),
        };
        self.sessions.insert(id, session);
        self.owners.entry(owner).or_default();
        // Nobody was asked about it yet.
        for peer in self.peers.values_mut() {
            // Due at once, or as soon as the comparison under way has ended.
            peer.heads_at = Duration::ZERO;
        }
    }

    fn unfollow(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.ready.remove(&id);
        if let Some(range) = session.range {
            self.release(&range);
            self.outputs.push_back(Output::CancelRange { request: range.request });
        }
        if !self.sessions.values().any(|other| other.owner == session.owner) {
            self.owners.remove(&session.owner);
        }
    }

    fn head_seen(&mut self, peer: PeerKey, id: SessionId, head: Head) {
        let is_known = self.peers.contains_key(&peer);
        let Some(session) = self.sessions.get_mut(&id).filter(|_| is_known) else {
            self.dropped += 1;
            return;
        };
        if session.told.len() >= self.limits.tellers_max && !session.told.contains_key(&peer) {
            return self.event(Event::TableFull { table: Table::Heads });
        }
        let before = session.told.insert(peer, head);
        if before != Some(head) {
            // Somebody has something new: no reason to sit out a pause that was for others.
            session.retry_at = Duration::ZERO;
            self.ready.insert(id);
        }
    }

    fn control_seen(&mut self, peer: PeerKey, id: Principal, told: ControlDigest) {
        let is_known = self.peers.contains_key(&peer);
        let Some(owner) = self.owners.get_mut(&id).filter(|_| is_known) else {
            self.dropped += 1;
            return;
        };
        if owner.told.len() >= self.limits.tellers_max && !owner.told.contains_key(&peer) {
            return self.event(Event::TableFull { table: Table::Digests });
        }
        owner.told.insert(peer, told);
        self.ready.extend(self.sessions.iter().filter(|(_, session)| session.owner == id).map(|(id, _)| *id));
    }

    fn held_moved(&mut self, id: SessionId, head: Head) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.held = Some(head);
            self.ready.insert(id);
        }
    }

    // ---- what begins -------------------------------------------------------------------------------------------

    fn begin_what_is_due(&mut self, now: Duration) {
        self.ask_heads(now);
        for (id, session) in &mut self.sessions {
            if session.range.is_none() && session.retry_at > Duration::ZERO && now >= session.retry_at {
                session.retry_at = Duration::ZERO;
                self.ready.insert(*id);
            }
        }
        for id in self.ready.clone() {
            self.begin(now, id);
        }
    }

    fn ask_heads(&mut self, now: Duration) {
        let due = self.peers.iter().filter(|(_, peer)| peer.heads_request.is_none() && now >= peer.heads_at);
        let due: Vec<PeerKey> = due.map(|(key, _)| *key).collect();
        for key in due {
            let request = self.request();
            if let Some(peer) = self.peers.get_mut(&key) {
                peer.heads_request = Some(request);
                // Set before the answer, so that a follow in between asks again.
                peer.heads_at = now + self.limits.heads_interval;
                self.outputs.push_back(Output::AskHeads { request, peer: key });
            }
        }
    }

    fn begin(&mut self, now: Duration, id: SessionId) {
        let next = self.next(now, id);
        let is_settled = !matches!(next, Next::Wait(None));
        if is_settled {
            self.ready.remove(&id);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        match next {
            Next::Nothing | Next::Wait(None) => {}
            Next::Wait(Some(until)) => session.retry_at = until,
            Next::Full(quota, until) => {
                session.retry_at = until;
                self.event(Event::QuotaFull { session: id, quota });
            }
            Next::Control(peer) => {
                let owner = session.owner;
                self.fetch_control(peer, owner);
            }
            Next::Range(peer, head) => self.fetch_range(id, peer, head),
        }
    }

    /// The best thing to do for a session now.
    fn next(&self, now: Duration, id: SessionId) -> Next {
        let Some(session) = self.sessions.get(&id) else { return Next::Nothing };
        if session.range.is_some() || !session.has_news() {
            return Next::Nothing;
        }
        if now < session.retry_at {
            return Next::Wait(Some(session.retry_at));
        }
        if let Some((quota, until)) = self.full(now, session) {
            return Next::Full(quota, until);
        }
        let mut wait = Next::Nothing;
        for (peer, head) in session.by_preference() {
            match self.able(now, peer) {
                Able::Now => return self.control_first(session, peer, head),
                Able::At(until) => wait = wait.sooner(Some(until)),
                Able::WithSlot => wait = Next::Wait(None),
            }
        }
        wait
    }

    /// A difference in control blobs is fetched before the entries that may need them.
    fn control_first(&self, session: &Session, peer: PeerKey, head: Head) -> Next {
        let Some(owner) = self.owners.get(&session.owner) else { return Next::Range(peer, head) };
        if owner.is_behind(peer) {
            return if owner.request.is_some() { Next::Wait(None) } else { Next::Control(peer) };
        }
        Next::Range(peer, head)
    }

    fn able(&self, now: Duration, key: PeerKey) -> Able {
        let Some(peer) = self.peers.get(&key) else { return Able::WithSlot };
        if now < peer.shunned_until {
            return Able::At(peer.shunned_until);
        }
        let window = self.limits.quota_window;
        if let Some(until) = peer.meter.full_until(now, window, self.limits.peer_bytes_max) {
            return Able::At(until);
        }
        let has_slot =
            peer.ranges < self.limits.peer_ranges_max && self.ranges.len() < self.limits.ranges_max;
        if has_slot { Able::Now } else { Able::WithSlot }
    }

    pub(super) fn full(&self, now: Duration, session: &Session) -> Option<(Quota, Duration)> {
        let (window, limits) = (self.limits.quota_window, &self.limits);
        let owner = self.owners.get(&session.owner);
        let own = session.meter.full_until(now, window, limits.session_bytes_max);
        let owners = owner.and_then(|owner| owner.meter.full_until(now, window, limits.owner_bytes_max));
        own.map(|until| (Quota::Session, until)).or_else(|| owners.map(|until| (Quota::Owner, until)))
    }

    fn fetch_control(&mut self, peer: PeerKey, id: Principal) {
        let request = self.request();
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.request = Some((request, peer));
            self.outputs.push_back(Output::FetchControl { request, peer, owner: id });
        }
    }

    fn fetch_range(&mut self, id: SessionId, peer: PeerKey, head: Head) {
        let request = self.request();
        let (Some(session), Some(held)) = (self.sessions.get_mut(&id), self.peers.get_mut(&peer)) else {
            return;
        };
        held.ranges += 1;
        self.ranges.insert(request, id);
        let (want, resume) = (head.point, session.resume.take());
        session.range = Some(Range {
            request,
            peer,
            want,
            arrival: Arrival::Running,
            staged: None,
            checked: resume,
            adopted: None,
            checking: None,
            adopting: None,
        });
        self.outputs.push_back(Output::FetchRange { request, peer, session: id, want, resume });
    }

    pub(super) fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId::new(self.requests)
    }
}

/// Whether a range can be asked of a peer.
enum Able {
    Now,
    At(Duration),
    WithSlot,
}

impl Next {
    /// The earlier of two waits.
    fn sooner(self, other: Option<Duration>) -> Self {
        match (self, other) {
            (Next::Wait(Some(held)), Some(until)) => Next::Wait(Some(held.min(until))),
            (Next::Nothing, until) => Next::Wait(until),
            (held, _) => held,
        }
    }
}

impl Session {
    /// Told heads that are news and did not fail: the latest first, then by peer.
    pub(super) fn by_preference(&self) -> Vec<(PeerKey, Head)> {
        let news = self.told.iter().filter(|(peer, head)| {
            head.is_news_to(self.held.as_ref()) && !self.refused.contains(&(**peer, head.point.cid))
        });
        let mut news: Vec<(PeerKey, Head)> = news.map(|(peer, head)| (*peer, *head)).collect();
        news.sort_by_key(|(peer, head)| std::cmp::Reverse((head.epoch, head.point.seq, *peer)));
        news
    }

    pub(super) fn has_news(&self) -> bool {
        !self.by_preference().is_empty()
    }

    pub(super) fn tellers(&self, cid: EntryCid) -> impl Iterator<Item = PeerKey> + '_ {
        self.told.iter().filter(move |(_, head)| head.point.cid == cid).map(|(peer, _)| *peer)
    }

    pub(super) fn refuse(&mut self, peer: PeerKey, cid: EntryCid, max: usize) {
        if self.refused.contains(&(peer, cid)) {
            return;
        }
        if self.refused.len() >= max.max(1) {
            self.refused.pop_front();
        }
        self.refused.push_back((peer, cid));
    }
}

impl Owner {
    /// Whether a peer told control blobs that differ from ours, and that difference was not fetched yet.
    fn is_behind(&self, peer: PeerKey) -> bool {
        self.told
            .get(&peer)
            .is_some_and(|told| self.held != Some(*told) && self.fetched.get(&peer) != Some(told))
    }
}

#[cfg(test)]
#[path = "../engine_tests.rs"]
mod tests;
