//! What the [`Engine`] does when something it asked for goes on, ends or fails.

use std::time::Duration;

use crate::code::{Code, Reject};
use crate::id::{EntryCid, SessionId};

use super::super::range::Charged;
use super::super::{Point, RequestId};
use super::machine::{Arrival, Engine, Range, Session};
use super::{Event, Failure, Head, Output, PeerKey, Quota};

impl Engine {
    pub(super) fn heads_ended(&mut self, request: RequestId) {
        let asked = self.peers.values_mut().find(|peer| peer.heads_request == Some(request));
        match asked {
            Some(peer) => peer.heads_request = None,
            None => self.dropped += 1,
        }
    }

    pub(super) fn control_ended(&mut self, now: Duration, request: RequestId, result: Result<(), Failure>) {
        let asked =
            self.owners.iter_mut().find(|(_, owner)| owner.request.is_some_and(|(id, _)| id == request));
        let Some((id, owner)) = asked else {
            self.dropped += 1;
            return;
        };
        let Some((_, peer)) = owner.request.take() else { return };
        // Fetched or not: the same difference is not asked for again, so that it cannot stop the ranges.
        if let Some(told) = owner.told.get(&peer) {
            owner.fetched.insert(peer, *told);
        }
        let id = *id;
        self.ready.extend(self.sessions.iter().filter(|(_, session)| session.owner == id).map(|(id, _)| *id));
        if let Err(failure) = result {
            self.charge(now, peer, &failure);
        }
    }

    pub(super) fn staged(&mut self, now: Duration, request: RequestId, through: Point, bytes: u64) {
        let window = self.limits.quota_window;
        let Some((id, session)) = self.ranging(request) else { return };
        session.meter.count(now, window, bytes);
        let owner = session.owner;
        let Some(range) = session.range.as_mut() else { return };
        let peer = range.peer;
        range.staged = Some(through);
        if let Some(owner) = self.owners.get_mut(&owner) {
            owner.meter.count(now, window, bytes);
        }
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.meter.count(now, window, bytes);
        }
        self.advance(id);
        self.enforce_quotas(now, id, request, peer);
    }

    fn enforce_quotas(&mut self, now: Duration, id: SessionId, request: RequestId, peer: PeerKey) {
        let Some(session) = self.sessions.get(&id) else { return };
        let peers = self.peers.get(&peer).and_then(|peer| {
            peer.meter.full_until(now, self.limits.quota_window, self.limits.peer_bytes_max)
        });
        let full = self.full(now, session).or_else(|| peers.map(|until| (Quota::Peer, until)));
        if let Some((quota, _)) = full {
            self.event(Event::QuotaFull { session: id, quota });
            let reject = Reject::new(Code::Budget, "a quota of this node is full");
            self.fail(now, request, Failure { reject, charged: Charged::Nobody });
        }
    }

    pub(super) fn range_ended(&mut self, now: Duration, request: RequestId, result: Result<(), Failure>) {
        let Some((id, session)) = self.ranging(request) else { return };
        let Some(range) = session.range.as_mut() else { return };
        match result {
            Ok(()) if range.arrival == Arrival::Running => {
                range.arrival = Arrival::Complete;
                // The head may have been held already: then nothing was staged.
                let is_empty = range.staged.is_none();
                let (peer, want) = (range.peer, range.want);
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.ranges = peer.ranges.saturating_sub(1);
                }
                if is_empty {
                    self.finish(id, peer, want);
                } else {
                    self.advance(id);
                    self.finish_if_whole(id);
                }
            }
            Ok(()) => self.dropped += 1,
            Err(failure) => self.fail(now, request, failure),
        }
    }

    pub(super) fn checked(&mut self, now: Duration, request: RequestId, result: Result<Point, Failure>) {
        let Some((id, session)) = self.ranging(request) else { return };
        let Some(range) = session.range.as_mut() else { return };
        if range.checking.take().is_none() {
            self.dropped += 1;
            return;
        }
        match result {
            Ok(through) => {
                range.checked = Some(through);
                self.advance(id);
            }
            Err(failure) => self.fail(now, request, failure),
        }
    }

    pub(super) fn adopted(&mut self, now: Duration, request: RequestId, result: Result<Head, Reject>) {
        let retry = self.limits.retry;
        let Some((id, session)) = self.ranging(request) else { return };
        let Some(range) = session.range.as_mut() else { return };
        let Some(through) = range.adopting.take() else {
            self.dropped += 1;
            return;
        };
        match result {
            Ok(head) => {
                range.adopted = Some(through);
                session.pause = retry;
                if session.held != Some(head) {
                    session.held = Some(head);
                    self.event(Event::Moved { session: id, head });
                }
                self.advance(id);
                self.finish_if_whole(id);
            }
            Err(reject) => self.fail(now, request, Failure { reject, charged: Charged::Nobody }),
        }
    }

    /// Asks for the next piece of verification and of adoption, one of each at a time.
    fn advance(&mut self, id: SessionId) {
        let Some(range) = self.sessions.get_mut(&id).and_then(|session| session.range.as_mut()) else {
            return;
        };
        let request = range.request;
        if let (None, Some(staged)) = (range.checking, range.staged)
            && range.checked.is_none_or(|checked| checked.seq < staged.seq)
        {
            range.checking = Some(staged);
            self.outputs.push_back(Output::Check { request, session: id, through: staged });
        }
        if let (None, Some(checked)) = (range.adopting, range.checked)
            && range.adopted.is_none_or(|adopted| adopted.seq < checked.seq)
        {
            range.adopting = Some(checked);
            self.outputs.push_back(Output::Adopt { request, session: id, through: checked });
        }
    }

    fn finish_if_whole(&mut self, id: SessionId) {
        let range = self.sessions.get(&id).and_then(|session| session.range.as_ref());
        let whole =
            range.filter(|range| range.arrival == Arrival::Complete && range.adopted == Some(range.want));
        if let Some((peer, want)) = whole.map(|range| (range.peer, range.want)) {
            self.finish(id, peer, want);
        }
    }

    /// A range is adopted to its end. Selection may hold another head than the one that was told: then it is known,
    /// and not asked for again.
    fn finish(&mut self, id: SessionId, peer: PeerKey, want: Point) {
        let (retry, refused_max) = (self.limits.retry, self.limits.refused_max);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(range) = session.range.take() {
            self.ranges.remove(&range.request);
        }
        session.pause = retry;
        session.retry_at = Duration::ZERO;
        if session.held.is_none_or(|held| held.point != want) {
            let tellers: Vec<PeerKey> = session.tellers(want.cid).chain([peer]).collect();
            tellers.into_iter().for_each(|teller| session.refuse(teller, want.cid, refused_max));
        }
        if let (Some(head), false) = (session.held, session.has_news()) {
            self.event(Event::CaughtUp { session: id, head });
        }
        self.ready.extend(self.sessions.keys());
    }

    /// A range failed: charge whom it may concern, keep what is verified, and go on with somebody else or later.
    pub(super) fn fail(&mut self, now: Duration, request: RequestId, failure: Failure) {
        let Some((id, session)) = self.ranging(request) else { return };
        let Some(range) = session.range.take() else { return };
        let (peer, want) = (range.peer, range.want);
        session.resume = range.checked.filter(|checked| range.adopted != Some(*checked));
        let tellers: Vec<PeerKey> = session.tellers(want.cid).collect();
        self.release(&range);
        self.outputs.push_back(Output::CancelRange { request });
        match failure.charged {
            Charged::Sender => self.charge(now, peer, &failure),
            Charged::Teller => {
                for teller in tellers {
                    self.charge(now, teller, &failure);
                    self.refuse(id, teller, want.cid);
                }
            }
            Charged::Nobody => {}
        }
        self.refuse(id, peer, want.cid);
        self.event(Event::Failed { session: id, peer, reject: failure.reject });
        self.pause(now, id);
    }

    /// If somebody else has news it goes on at once; else after a pause, with everybody again.
    fn pause(&mut self, now: Duration, id: SessionId) {
        let (retry_max, peers) = (self.limits.retry_max, &self.peers);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let mut others = session.by_preference().into_iter();
        let has_other =
            others.any(|(peer, _)| peers.get(&peer).is_some_and(|peer| now >= peer.shunned_until));
        if !has_other {
            session.refused.clear();
            session.retry_at = now + session.pause;
            session.pause = (session.pause * 2).min(retry_max);
        }
        self.ready.extend(self.sessions.keys());
    }

    fn refuse(&mut self, id: SessionId, peer: PeerKey, cid: EntryCid) {
        let refused_max = self.limits.refused_max;
        if let Some(session) = self.sessions.get_mut(&id) {
            session.refuse(peer, cid, refused_max);
        }
    }

    fn charge(&mut self, now: Duration, charged: PeerKey, failure: &Failure) {
        if failure.charged == Charged::Nobody {
            return;
        }
        if let Some(peer) = self.peers.get_mut(&charged) {
            peer.shunned_until = now + self.limits.shun;
        }
        self.outputs.push_back(Output::Charge { peer: charged, code: failure.reject.code });
    }

    /// Frees the slots of a range.
    pub(super) fn release(&mut self, range: &Range) {
        self.ranges.remove(&range.request);
        if range.arrival == Arrival::Running
            && let Some(peer) = self.peers.get_mut(&range.peer)
        {
            peer.ranges = peer.ranges.saturating_sub(1);
        }
    }

    /// The session of a range under way; an unknown range is counted.
    fn ranging(&mut self, request: RequestId) -> Option<(SessionId, &mut Session)> {
        let found = self.ranges.get(&request).copied();
        if found.is_none() {
            self.dropped += 1;
        }
        let id = found?;
        self.sessions.get_mut(&id).map(|session| (id, session))
    }
}
