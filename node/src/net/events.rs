//! What the network tells: a bounded queue that the swarm never waits for, and counts of what it had to drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libp2p::{Multiaddr, PeerId};
use throughline_protocol::id::Principal;
use tokio::sync::mpsc;

use super::frames::FrameStream;
use super::gossip::GossipId;
use super::peers::ConnectedPeer;
use super::streams::Protocol;

/// Something that happened on the network.
#[derive(Debug)]
pub enum NetEvent {
    /// The first connection with a peer is there.
    Connected(ConnectedPeer),
    /// The last connection with a peer is gone.
    Disconnected {
        /// Who left.
        peer: PeerId,
    },
    /// The node now listens on this address.
    Listening(Multiaddr),
    /// A message arrived on an owner's topic and waits for its verdict.
    Gossip {
        /// What to give back with the verdict.
        id: GossipId,
        /// Who passed it on; not necessarily who wrote it.
        from: PeerId,
        /// The owner whose topic it came on.
        owner: Principal,
        /// The announcement, at most 16 KiB, not yet looked at.
        data: Vec<u8>,
    },
    /// A peer opened a stream.
    Incoming {
        /// Who.
        peer: PeerId,
        /// What for.
        protocol: Protocol,
        /// The stream; it holds one of the peer's places until it is dropped.
        stream: FrameStream,
    },
}

/// The receiving end of the queue.
#[derive(Debug)]
pub struct NetEvents {
    pub(super) receiver: mpsc::Receiver<NetEvent>,
}

impl NetEvents {
    /// The next event, or nothing once the network is shut down and the queue is empty.
    pub async fn recv(&mut self) -> Option<NetEvent> {
        self.receiver.recv().await
    }
}

/// How much was dropped or refused since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounts {
    /// Gossip messages dropped because the queue was full.
    pub gossip_dropped: u64,
    /// Incoming streams dropped because the queue was full.
    pub streams_dropped: u64,
    /// Incoming streams refused because the peer, or all peers, had their places taken.
    pub streams_refused: u64,
    /// Connection events lost because even the kept part of the queue was full; [`super::NetHandle::connected`] is
    /// right regardless.
    pub events_lost: u64,
    /// Charges against peers.
    pub charges: u64,
}

/// The live counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) gossip_dropped: AtomicU64,
    pub(super) streams_dropped: AtomicU64,
    pub(super) streams_refused: Arc<AtomicU64>,
    pub(super) events_lost: AtomicU64,
    pub(super) charges: AtomicU64,
}

impl Counters {
    /// The counts now.
    pub(super) fn snapshot(&self) -> NetCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NetCounts {
            gossip_dropped: read(&self.gossip_dropped),
            streams_dropped: read(&self.streams_dropped),
            streams_refused: read(&self.streams_refused),
            events_lost: read(&self.events_lost),
            charges: read(&self.charges),
        }
    }
}

/// Adds one to a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The sending end: what peers can cause at will may not use the last quarter of the queue, so that connection
/// events still fit when peers flood it.
pub(super) struct EventSink {
    sender: mpsc::Sender<NetEvent>,
    kept: usize,
}

impl EventSink {
    /// A queue of `events_max` events.
    pub(super) fn new(events_max: usize) -> (Self, NetEvents) {
        let events_max = events_max.max(4);
        let (sender, receiver) = mpsc::channel(events_max);
        (EventSink { sender, kept: events_max / 4 }, NetEvents { receiver })
    }

    /// Queues what a peer caused at will; false when there is no room for it.
    pub(super) fn offer(&self, event: NetEvent) -> bool {
        self.sender.capacity() > self.kept && self.sender.try_send(event).is_ok()
    }

    /// Queues a connection event; false when even the kept part is full.
    pub(super) fn tell(&self, event: NetEvent) -> bool {
        self.sender.try_send(event).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_leave_room_for_connection_events() {
        let (sink, mut events) = EventSink::new(8);
        let peer = PeerId::random();
        let offered = (0..20).filter(|_| sink.offer(NetEvent::Disconnected { peer })).count();
        let told = (0..20).filter(|_| sink.tell(NetEvent::Disconnected { peer })).count();
        assert_eq!((offered, told), (6, 2));
        events.receiver.close();
        assert!(!sink.tell(NetEvent::Disconnected { peer }));
    }
}
