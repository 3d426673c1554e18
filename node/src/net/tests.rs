//! Whole networks on loopback. Everything waits on events, under one generous timeout.

use std::future::Future;
use std::time::Duration;

use throughline_protocol::code::Code;
use throughline_protocol::id::Principal;
use zeroize::Zeroizing;

use super::*;

const TCP: &str = "/ip4/127.0.0.1/tcp/0";
const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

struct Node {
    net: NetHandle,
    events: NetEvents,
}

impl Node {
    async fn start(seed: u8, listen: &str) -> Self {
        Node::with(seed, listen, |_| {}).await
    }

    async fn with(seed: u8, listen: &str, change: impl FnOnce(&mut NetLimits)) -> Self {
        let mut config = NetConfig::loopback(Zeroizing::new([seed; 32]), vec![listen.parse().unwrap()]);
        change(&mut config.limits);
        let (net, events) = spawn(config).unwrap();
        let mut node = Node { net, events };
        node.until(|event| matches!(event, NetEvent::Listening(_)).then_some(())).await;
        node
    }

    /// Waits for the first event that `pick` takes; others are let go.
    async fn until<T>(&mut self, mut pick: impl FnMut(NetEvent) -> Option<T>) -> T {
        loop {
            if let Some(picked) = pick(self.events.recv().await.expect("the network runs")) {
                return picked;
            }
        }
    }

    async fn dial(&self, other: &Node) -> Result<ConnectedPeer, NetError> {
        self.net.dial(other.net.peer_id(), other.net.listen_addrs().await).await
    }

    async fn incoming(&mut self) -> (Protocol, FrameStream) {
        self.until(|event| {
            if let NetEvent::Incoming { protocol, stream, .. } = event {
                Some((protocol, stream))
            } else {
                None
            }
        })
        .await
    }

    async fn gossip(&mut self) -> (GossipId, Principal, Vec<u8>) {
        self.until(|event| {
            if let NetEvent::Gossip { id, owner, data, .. } = event { Some((id, owner, data)) } else { None }
        })
        .await
    }

    async fn gone(&mut self, other: &Node) {
        let who = other.net.peer_id();
        self.until(|event| matches!(event, NetEvent::Disconnected { peer } if peer == who).then_some(()))
            .await;
    }

    /// Waits until this node knows that `other` follows `owner`.
    async fn knows_follower(&self, owner: Principal, other: &Node) {
        while !self.net.followers(owner).await.contains(&other.net.peer_id()) {
            tokio::task::yield_now().await;
        }
    }
}

/// One timeout for everything: it is there to end a hang, not to measure.
async fn in_time(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(180), test).await.expect("the test hangs");
}

async fn exchange_over(listen: &str, transport: Transport) {
    let (a, mut b) = (Node::start(1, listen).await, Node::start(2, listen).await);
    let seen = a.dial(&b).await.unwrap();
    assert_eq!((seen.peer, seen.principal), (b.net.peer_id(), b.net.peer_principal()));
    assert_eq!(seen.transport, transport);
    let seen = b.until(|event| if let NetEvent::Connected(peer) = event { Some(peer) } else { None }).await;
    assert_eq!((seen.peer, seen.transport), (a.net.peer_id(), transport));
    assert_eq!(b.net.connected().await.len(), 1);

    for protocol in Protocol::ALL {
        let mut asker = a.net.open(b.net.peer_id(), protocol).await.unwrap();
        let (question, answer) = (vec![1; 100], vec![2; 1_000_000]);
        asker.write(&question).await.unwrap();
        asker.finish().await.unwrap();
        let (spoken, mut answerer) = b.incoming().await;
        assert_eq!(spoken, protocol);
        assert_eq!(answerer.read().await.unwrap(), Some(question));
        assert_eq!(answerer.read().await.unwrap(), None);
        let answering = async {
            answerer.write(&answer).await.unwrap();
            answerer.finish().await.unwrap();
        };
        let reading = async {
            let read = asker.read().await.unwrap();
            (read, asker.read().await.unwrap())
        };
        let ((), (read, end)) = tokio::join!(answering, reading);
        assert_eq!((read, end), (Some(answer.clone()), None));
    }

    a.net.shutdown().await;
    b.gone(&a).await;
    assert!(b.net.connected().await.is_empty());
    assert_eq!(a.net.subscribe(a.net.peer_principal()).await, Err(NetError::Stopped));
}

#[tokio::test]
async fn frames_go_both_ways_over_tcp() {
    in_time(exchange_over(TCP, Transport::Tcp)).await;
}

#[tokio::test]
async fn frames_go_both_ways_over_quic() {
    in_time(exchange_over(QUIC, Transport::Quic)).await;
}

async fn cap_over(listen: &str) {
    let (a, mut b) = (Node::start(3, listen).await, Node::start(4, listen).await);
    a.dial(&b).await.unwrap();
    let peer = b.net.peer_id();
    // All at once: none within the cap may be lost.
    let opened = futures::future::join_all((0..5).map(|_| a.net.open(peer, Protocol::Chain))).await;
    let mut askers: Vec<_> = opened.into_iter().map(Result::unwrap).collect();
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(b.incoming().await.1);
    }
    for answerer in &mut held {
        answerer.write(b"taken").await.unwrap();
    }
    let mut refused = 0;
    for asker in &mut askers {
        match asker.read().await {
            Ok(Some(frame)) => assert_eq!(frame, b"taken"),
            Ok(None) | Err(FrameError::Io(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((refused, b.net.counts().streams_refused), (1, 1));

    drop(held.pop());
    let mut asker = a.net.open(peer, Protocol::Append).await.unwrap();
    asker.write(b"again").await.unwrap();
    let (protocol, mut answerer) = b.incoming().await;
    assert_eq!(protocol, Protocol::Append);
    assert_eq!(answerer.read().await.unwrap().unwrap(), b"again");
}

#[tokio::test]
async fn streams_over_the_cap_are_dropped_and_their_places_come_back() {
    in_time(async {
        cap_over(TCP).await;
        cap_over(QUIC).await;
    })
    .await;
}

#[tokio::test]
async fn the_cap_over_all_peers_holds() {
    in_time(async {
        let mut hub = Node::with(5, TCP, |limits| limits.streams_max = 2).await;
        let mut held = Vec::new();
        for seed in [6, 7] {
            let node = Node::start(seed, TCP).await;
            node.dial(&hub).await.unwrap();
            let asker = node.net.open(hub.net.peer_id(), Protocol::Chain).await.unwrap();
            held.push((node, asker, hub.incoming().await));
        }
        let late = Node::start(8, TCP).await;
        late.dial(&hub).await.unwrap();
        let mut asker = late.net.open(hub.net.peer_id(), Protocol::Chain).await.unwrap();
        assert!(matches!(asker.read().await, Ok(None) | Err(FrameError::Io(_))));
        assert_eq!(hub.net.counts().streams_refused, 1);
    })
    .await;
}

#[tokio::test]
async fn strangers_leave_places_for_those_that_are_known() {
    in_time(async {
        let mut hub = Node::with(5, TCP, |limits| limits.streams_max = 4).await;
        let ask = async |seed: u8, hub: &Node| {
            let node = Node::start(seed, TCP).await;
            node.dial(hub).await.unwrap();
            let asker = node.net.open(hub.net.peer_id(), Protocol::Chain).await.unwrap();
            (node, asker)
        };
        let mut held = Vec::new();
        for seed in 20..23 {
            let (node, asker) = ask(seed, &hub).await;
            held.push((node, asker, hub.incoming().await));
        }
        let (_late, mut refused) = ask(23, &hub).await;
        assert!(matches!(refused.read().await, Ok(None) | Err(FrameError::Io(_))));
        assert_eq!(hub.net.counts().streams_refused, 1);

        // A known one finds the place that is kept, also one that became known while it was connected, and after a break.
        let friend = Node::start(24, TCP).await;
        friend.dial(&hub).await.unwrap();
        hub.net.know(friend.net.peer_id()).await;
        hub.net.listen_addrs().await;
        let first = friend.net.open(hub.net.peer_id(), Protocol::Chain).await.unwrap();
        let served = hub.incoming().await;
        drop((first, served));
        // Strangers that leave make room for strangers, never more.
        held.pop();
        let (node, asker) = ask(25, &hub).await;
        held.push((node, asker, hub.incoming().await));
        let (_late, mut refused) = ask(26, &hub).await;
        assert!(matches!(refused.read().await, Ok(None) | Err(FrameError::Io(_))));
        let _again = friend.net.open(hub.net.peer_id(), Protocol::Chain).await.unwrap();
        hub.incoming().await;
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_drops_streams_and_stops_nothing() {
    in_time(async {
        let (a, b) = (Node::start(9, TCP).await, Node::with(10, TCP, |limits| limits.events_max = 4).await);
        a.dial(&b).await.unwrap();
        let peer = b.net.peer_id();
        let mut askers = Vec::new();
        for _ in 0..4 {
            askers.push(a.net.open(peer, Protocol::Chain).await.unwrap());
        }
        // Nobody takes events at b; the last stream finds only the part of the queue that is kept.
        let mut last = askers.pop().unwrap();
        assert!(matches!(last.read().await, Ok(None) | Err(FrameError::Io(_))));
        assert!(b.net.counts().streams_dropped >= 1);
        assert_eq!(b.net.connected().await.len(), 1);
    })
    .await;
}

/// a — b — c in a line, all following one owner.
async fn line(owner: Principal, listen: &str, seeds: [u8; 3]) -> (Node, Node, Node) {
    let (a, b, c) = (
        Node::start(seeds[0], listen).await,
        Node::start(seeds[1], listen).await,
        Node::start(seeds[2], listen).await,
    );
    for node in [&a, &b, &c] {
        node.net.subscribe(owner).await.unwrap();
    }
    a.dial(&b).await.unwrap();
    c.dial(&b).await.unwrap();
    a.knows_follower(owner, &b).await;
    b.knows_follower(owner, &a).await;
    b.knows_follower(owner, &c).await;
    c.knows_follower(owner, &b).await;
    (a, b, c)
}

#[tokio::test]
async fn gossip_goes_on_only_when_accepted() {
    in_time(async {
        let owner = Principal::from_key([9; 32]);
        let (a, mut b, mut c) = line(owner, TCP, [11, 12, 13]).await;
        let mut ids = Vec::new();
        for text in ["held back", "ignored", "refused", "passed on"] {
            assert_eq!(a.net.publish(owner, text.into()).await.unwrap(), Published::Sent);
            let (id, on, data) = b.gossip().await;
            assert_eq!((on, data), (owner, text.into()));
            ids.push(id);
        }
        assert_eq!(a.net.publish(owner, "passed on".into()).await.unwrap(), Published::Duplicate);

        // Forwarding keeps the order of verdicts, so had anything gone on by itself, c would have it first.
        b.net.report(ids.remove(3), Verdict::Accept).await;
        b.net.report(ids.remove(2), Verdict::Reject).await;
        b.net.report(ids.remove(1), Verdict::Ignore).await;
        b.net.report(ids.remove(0), Verdict::Accept).await;
        for text in ["passed on", "held back"] {
            let (id, _, data) = c.gossip().await;
            assert_eq!(data, Vec::from(text));
            c.net.report(id, Verdict::Accept).await;
        }
    })
    .await;
}

#[tokio::test]
async fn full_announcements_pass_back_to_back() {
    in_time(async {
        // QUIC hands out bytes across messages, so the router's read buffer holds more than one.
        let owner = Principal::from_key([10; 32]);
        let (a, mut b, _c) = line(owner, QUIC, [14, 15, 16]).await;
        let max = throughline_protocol::limits::ANNOUNCEMENT_BYTES_MAX;
        for byte in 0..12 {
            assert_eq!(a.net.publish(owner, vec![byte; max]).await.unwrap(), Published::Sent);
        }
        for byte in 0..12 {
            assert_eq!(b.gossip().await.2, vec![byte; max]);
        }
        let error = a.net.publish(owner, vec![0; max + 1]).await.unwrap_err();
        assert_eq!(error.code(), Code::TooBig);
    })
    .await;
}

#[tokio::test]
async fn announcements_over_the_limit_go_nowhere() {
    in_time(async {
        let owner = Principal::from_key([12; 32]);
        let (a, mut b, _c) = line(owner, TCP, [25, 26, 27]).await;
        // The handle would refuse it; a peer that means harm does not use our handle.
        let (reply, published) = tokio::sync::oneshot::channel();
        let data = vec![0; throughline_protocol::limits::ANNOUNCEMENT_BYTES_MAX + 1];
        let command = handle::Command::Publish { owner, data, reply };
        a.net.commands.send(command).await.unwrap_or_else(|_| panic!("the network runs"));
        assert_eq!(published.await.unwrap().unwrap(), Published::Sent);
        assert_eq!(a.net.publish(owner, b"small".into()).await.unwrap(), Published::Sent);
        assert_eq!(b.gossip().await.2, b"small");
    })
    .await;
}

#[tokio::test]
async fn charged_peers_are_shut_out_until_unblocked() {
    in_time(async {
        let (mut a, mut b) = (Node::start(17, TCP).await, Node::start(18, TCP).await);
        a.dial(&b).await.unwrap();
        let bad = b.net.peer_id();
        for _ in 0..NetLimits::default().charges_max {
            assert!(a.net.connected().await.iter().any(|peer| peer.peer == bad));
            a.net.charge(bad, Code::SyncUnsolicited).await;
        }
        a.gone(&b).await;
        b.gone(&a).await;
        assert!(matches!(a.dial(&b).await, Err(NetError::Dial { .. })));
        assert_eq!(a.net.open(bad, Protocol::Chain).await.unwrap_err().code(), Code::Unreachable);
        a.net.unblock(bad).await;
        a.dial(&b).await.unwrap();
        a.net.block(bad).await;
        a.gone(&b).await;
    })
    .await;
}

#[tokio::test]
async fn dials_fail_with_a_reason() {
    in_time(async {
        let (a, b) = (Node::start(19, TCP).await, Node::start(20, TCP).await);
        let addrs = b.net.listen_addrs().await;
        let stranger = peer_of(&Node::start(21, TCP).await.net.peer_principal()).unwrap();
        let error = a.net.dial(stranger, addrs.clone()).await.unwrap_err();
        assert!(error.to_string().contains(&b.net.peer_id().to_string()), "{error}");
        assert_eq!(error.code(), Code::Unreachable);
        b.net.shutdown().await;
        assert!(matches!(a.net.dial(b.net.peer_id(), addrs).await, Err(NetError::Dial { .. })));
        let error = a.net.dial(stranger, Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains("no address"), "{error}");
        let error = a.net.open(stranger, Protocol::Chain).await.unwrap_err();
        assert_eq!(error, NetError::NotConnected { peer: stranger });
    })
    .await;
}

#[tokio::test]
async fn only_usable_addresses_are_listened_on() {
    in_time(async {
        let (a, b) = (Node::start(22, TCP).await, Node::start(24, QUIC).await);
        let config = |addr: &str| NetConfig::loopback(Zeroizing::new([23; 32]), vec![addr.parse().unwrap()]);
        let taken = [a.net.listen_addrs().await, b.net.listen_addrs().await].concat();
        let taken: Vec<_> = taken.iter().map(ToString::to_string).collect();
        assert_eq!(taken.len(), 2);
        for addr in
            ["/ip4/0.0.0.0/tcp/0", "/ip4/127.0.0.1/udp/0"].into_iter().chain(taken.iter().map(String::as_str))
        {
            assert!(matches!(spawn(config(addr)), Err(NetError::Listen { .. })), "{addr}");
        }
    })
    .await;
}
