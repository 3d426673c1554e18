//! A bench for tests: real nodes on loopback, and a server that lies.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use throughline_protocol::block::Signed;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::entry::Class;
use throughline_protocol::id::{Principal, SessionId, UnixMillis};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::testing::{self, SessionBuilder};
use throughline_protocol::ticket::{PeerTicket, Ticket};
use throughline_protocol::verify::Prechecked;
use throughline_protocol::wire::Message as _;
use throughline_protocol::wire::chain::{ChainAnswer, ChainAsk, ChainRequest, HeadState, Payloads, RangeAsk};
use throughline_store::SessionRow;
use tokio::sync::Barrier;
use zeroize::Zeroizing;

use super::peers::{self, KnownPeer};
use super::*;
use crate::config::{Config, Key, Overrides, Value as Setting};
use crate::core::{Arrived, now};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;
use crate::net::{FrameStream, NetEvent, NetHandle, Protocol};

pub(super) const TCP: &str = "/ip4/127.0.0.1/tcp/0";
pub(super) const QUIC: &str = "/ip4/127.0.0.1/udp/0/quic-v1";

/// The longest that one thing is waited for. It only ends what hangs, on a slow machine too.
pub(super) const SOON: Duration = Duration::from_secs(90);

/// One timeout for a whole test, for what is waited for without one of its own.
pub(super) async fn in_time(test: impl Future<Output = ()>) {
    tokio::time::timeout(4 * SOON, test).await.expect("the test hangs");
}

/// Waits for `reached`; says where it was waited for and what `seen` shows when that takes too long.
async fn soon(place: &Location<'_>, reached: impl Future<Output = ()>, seen: impl AsyncFnOnce() -> String) {
    if tokio::time::timeout(SOON, reached).await.is_err() {
        panic!("{place}: what is waited for did not come within {SOON:?}; last seen: {}", seen().await);
    }
}

/// A node with a network.
pub(super) struct TestNode {
    pub(super) node: Node,
    pub(super) network: Network,
    _home: TempDir,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.network.shutdown();
    }
}

impl TestNode {
    /// A node that works for the account, and compares with its peers when it connects and when it is told to only.
    pub(super) async fn start(listen: &str) -> Self {
        TestNode::with_owner(listen, Some(owner())).await
    }

    /// A node that works for nobody.
    pub(super) async fn stranger(listen: &str) -> Self {
        TestNode::with_owner(listen, None).await
    }

    pub(super) async fn with_owner(listen: &str, owner: Option<Principal>) -> Self {
        TestNode::with(listen, owner, quiet(), |_| {}).await
    }

    /// A node whose clock shows something else, as far as proofs go.
    pub(super) async fn with_clock(
        listen: &str,
        owner: Option<Principal>,
        clock: fn() -> UnixMillis,
    ) -> Self {
        TestNode::with(listen, owner, SyncLimits { clock, ..quiet() }, |_| {}).await
    }

    /// A node at this pace, with its bounds changed.
    pub(super) async fn with(
        listen: &str,
        owner: Option<Principal>,
        limits: SyncLimits,
        change: impl FnOnce(&mut NetConfig),
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
        dirs.create().unwrap();
        let keys = NodeKeys::load_or_create(&dirs).unwrap();
        let seed = Zeroizing::new(*keys.peer().bytes());
        let mut overrides = Overrides::default();
        if let Some(owner) = owner {
            overrides = overrides.with_flag(Key::OwnerPrincipal, Setting::text(owner.to_string()));
        }
        let config = Config::load(&dirs, &overrides).unwrap();
        let node = Node::open(dirs, config, "test").unwrap();
        let mut config = NetConfig::loopback(seed, vec![listen.parse().unwrap()]);
        change(&mut config);
        let network = Network::start_with(&node, config, limits).await.unwrap();
        node.attach_network(network.clone());
        TestNode { node, network, _home: home }
    }

    /// The capability that makes this node a party of the account's sessions.
    pub(super) fn grant(&self, role: Role) -> Signed<Control> {
        testing::capability(&testing::key("account"), self.node.principal(), role, None)
    }

    /// Stores control blobs.
    pub(super) fn hold(&self, controls: &[Signed<Control>]) {
        self.node.take_controls(controls.to_vec()).unwrap();
    }

    /// Takes in a whole session.
    pub(super) fn take(&self, builder: &SessionBuilder) {
        let checked =
            |built: &testing::Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
        let entries = builder.entries().iter().map(checked).collect();
        let controls = builder.controls().to_vec();
        let arrived = Arrived { entries, controls, ..Arrived::default() };
        let evaluated = self.node.take_in(builder.session(), arrived).unwrap();
        assert_eq!(evaluated.refused, None);
    }

    pub(super) fn row(&self, session: SessionId) -> Option<SessionRow> {
        self.node.reader().unwrap().session(session).unwrap()
    }

    pub(super) async fn ticket(&self) -> String {
        let addresses = self.network.listen_addrs().await.iter().map(ToString::to_string).collect();
        let (principal, peer) = (self.node.principal(), self.network.peer_principal());
        Ticket::Peer(PeerTicket { principal, peer, addresses }).to_string()
    }

    /// Puts the other node into this one's address book and connects.
    pub(super) async fn meet(&self, alias: &str, other: &TestNode) {
        let known = KnownPeer::of_ticket(alias, &other.ticket().await).unwrap();
        peers::add(&self.node, &known).unwrap();
        self.network.compare_with(alias).await.unwrap();
    }

    /// Waits until the store says so.
    #[track_caller]
    pub(super) fn until<'a>(&'a self, is_so: impl Fn(&Node) -> bool + 'a) -> impl Future<Output = ()> + 'a {
        let place = Location::caller();
        let reached = async move {
            let mut commits = self.node.commits();
            while !is_so(&self.node) {
                commits.changed().await.unwrap();
            }
        };
        soon(place, reached, async || format!("{:#?}", self.node.reader().unwrap().sessions(None, 16)))
    }

    /// Waits until the network says so; it has no events for this.
    #[track_caller]
    pub(super) fn until_met<'a>(
        &'a self,
        is_so: impl Fn(&[PeerView]) -> bool + 'a,
    ) -> impl Future<Output = ()> + 'a {
        let place = Location::caller();
        let reached = async move {
            while !is_so(&self.network.peers().await) {
                tokio::task::yield_now().await;
            }
        };
        soon(place, reached, async || format!("{:#?}", self.network.peers().await))
    }

    /// Waits until this node knows that the other follows the account's topic.
    #[track_caller]
    pub(super) fn until_followed_by<'a>(&'a self, other: &'a TestNode) -> impl Future<Output = ()> + 'a {
        let place = Location::caller();
        let followers = || self.network.shared.net.followers(owner());
        let reached = async move {
            let peer = net::peer_of(&other.network.peer_principal()).unwrap();
            while !followers().await.contains(&peer) {
                tokio::task::yield_now().await;
            }
        };
        soon(place, reached, async move || format!("{:?}", followers().await))
    }

    /// Waits until the other node proved who it is over its connection with this one.
    #[track_caller]
    pub(super) fn until_proven<'a>(&'a self, other: &'a TestNode) -> impl Future<Output = ()> + 'a {
        let place = Location::caller();
        let reached = async move {
            let contacts = &self.network.shared.contacts;
            while contacts.principal_of(other.network.peer_principal()) != Some(other.node.principal()) {
                tokio::task::yield_now().await;
            }
        };
        soon(place, reached, async || format!("{:#?}", self.network.peers().await))
    }

    pub(super) async fn bring(&self, session: SessionId, from: &[String]) -> Answer<Fetched> {
        self.network.fetch(request(session, from, Use::Adopt)).await
    }
}

/// The pace of a node that compares when it connects and when it is told to only.
pub(super) fn quiet() -> SyncLimits {
    SyncLimits { compare_every: Duration::from_secs(3_600), ..SyncLimits::default() }
}

pub(super) fn owner() -> Principal {
    testing::key("account").principal()
}

pub(super) fn request(session: SessionId, from: &[String], mode: Use) -> FetchRequest {
    FetchRequest {
        session,
        from: from.to_vec(),
        payloads: Wanted::Referenced,
        idle: Some(SOON),
        mode,
        peers_min: 0,
    }
}

/// A session of `entries` entries after its genesis.
pub(super) fn session(label: &str, entries: usize) -> SessionBuilder {
    of_entries(SessionBuilder::new(label), entries)
}

/// The same, that may be published.
pub(super) fn public(label: &str, entries: usize) -> SessionBuilder {
    of_entries(SessionBuilder::with_genesis(label, |genesis| genesis.class = Class::Public), entries)
}

fn of_entries(mut builder: SessionBuilder, entries: usize) -> SessionBuilder {
    let server = builder.server1.clone();
    for number in 0..entries {
        builder.user(&server, &format!("message {number}"));
    }
    builder
}

/// What a lying server answers to a range request, given what an honest one would.
pub(super) type Lie = Arc<dyn Fn(Vec<ChainAnswer>) -> Script + Send + Sync>;

/// Frames, then how the answer ends.
pub(super) struct Script {
    pub(super) frames: Vec<ChainAnswer>,
    pub(super) then: Then,
}

/// How a lying answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// As it should.
    End,
    /// It begins anew with the last frame, for ever.
    Repeat,
    /// It says nothing more and keeps the line open.
    Silence,
}

/// A server that is connected like any other and answers ranges as `lie` says.
pub(super) struct Liar {
    net: NetHandle,
}

impl Liar {
    /// It claims the head of `builder` and takes the honest answer from an honest node's wire.
    pub(super) async fn start(builder: &SessionBuilder, lie: Lie) -> Self {
        Liar::start_after(builder, lie, None).await
    }

    /// As [`Liar::start`]; a range is answered once all who wait at the barrier were asked.
    pub(super) async fn start_after(builder: &SessionBuilder, lie: Lie, met: Option<Arc<Barrier>>) -> Self {
        Liar::start_with(random_seed(), builder, lie, met).await
    }

    /// As [`Liar::start`], under a key that comes before another one: whoever wants such a key tries until it has one.
    pub(super) async fn start_below(builder: &SessionBuilder, lie: Lie, other: Principal) -> Self {
        let mut seed = random_seed();
        while SigningKey::from_seed(&seed).principal() >= other {
            seed = random_seed();
        }
        Liar::start_with(seed, builder, lie, None).await
    }

    async fn start_with(
        seed: Zeroizing<[u8; 32]>,
        builder: &SessionBuilder,
        lie: Lie,
        met: Option<Arc<Barrier>>,
    ) -> Self {
        let (net, mut events) = net::spawn(NetConfig::loopback(seed, vec![TCP.parse().unwrap()])).unwrap();
        while !matches!(events.recv().await, Some(NetEvent::Listening(_))) {}
        let builder = Arc::new(builder.clone());
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                if let NetEvent::Incoming { protocol: Protocol::Chain, stream, .. } = event {
                    tokio::spawn(lie_to(stream, Arc::clone(&builder), Arc::clone(&lie), met.clone()));
                }
            }
        });
        Liar { net }
    }

    pub(super) async fn ticket(&self) -> String {
        let addresses = self.net.listen_addrs().await.iter().map(ToString::to_string).collect();
        let peer = self.net.peer_principal();
        Ticket::Peer(PeerTicket { principal: peer, peer, addresses }).to_string()
    }
}

fn random_seed() -> Zeroizing<[u8; 32]> {
    let mut seed = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *seed).unwrap();
    seed
}

async fn lie_to(mut stream: FrameStream, builder: Arc<SessionBuilder>, lie: Lie, met: Option<Arc<Barrier>>) {
    let body = stream.read().await.unwrap().unwrap();
    let request = ChainRequest::decode_body(&body).unwrap();
    let script = match request.ask {
        ChainAsk::Heads { .. } => Script { frames: vec![heads(&builder)], then: Then::End },
        ChainAsk::Range(ask) => {
            if let Some(met) = met {
                met.wait().await;
            }
            lie(honest_range(&builder, &ask))
        }
        ChainAsk::Control { .. } | ChainAsk::Blobs { .. } | ChainAsk::Announce { .. } => {
            Script { frames: Vec::new(), then: Then::End }
        }
    };
    // The asker may leave at any time: that is what it should do.
    for frame in &script.frames {
        if stream.write(&frame.encode_body()).await.is_err() {
            return;
        }
    }
    match (script.then, script.frames.last()) {
        (Then::Repeat, Some(last)) => while stream.write(&last.encode_body()).await.is_ok() {},
        (Then::Silence, _) => while let Ok(Some(_)) = stream.read().await {},
        (Then::End | Then::Repeat, _) => {
            let _ = stream.write(&ChainAnswer::End.encode_body()).await;
            let _ = stream.finish().await;
        }
    }
    if script.then == Then::Silence {
        std::future::pending::<()>().await;
    }
}

fn heads(builder: &SessionBuilder) -> ChainAnswer {
    let head = &builder.head().entry;
    let state = HeadState {
        session: builder.session(),
        head: head.cid(),
        seq: head.value().seq(),
        epoch: head.value().epoch(),
        reference: None,
    };
    ChainAnswer::Heads { owners: Vec::new(), sessions: vec![state] }
}

/// What an honest server sends that has the whole session: path, control blobs, one entry a frame.
fn honest_range(builder: &SessionBuilder, ask: &RangeAsk) -> Vec<ChainAnswer> {
    let entries = builder.entries();
    let base = entries.iter().rposition(|built| ask.have.contains(&built.entry.cid()));
    let missing = &entries[base.map_or(0, |base| base + 1)..];
    let seqs = throughline_protocol::sync::range::path_seqs(
        builder.head().entry.value().seq(),
        throughline_protocol::id::Seq::new(base.unwrap_or(0) as u64).unwrap(),
    );
    let path = seqs.map(|seq| {
        let at = usize::try_from(seq.get()).unwrap();
        Arc::clone(entries[at].entry.bytes())
    });
    let controls = builder.controls().iter().map(|control| Arc::clone(control.bytes())).collect();
    let mut frames = vec![ChainAnswer::Path(path.collect()), ChainAnswer::Control(controls)];
    frames.extend(missing.iter().map(|built| {
        let item = throughline_protocol::wire::chain::EntryItem {
            entry: Arc::clone(built.entry.bytes()),
            payload: built.payload.clone().filter(|_| ask.payloads == Payloads::With),
        };
        ChainAnswer::Entries(vec![item])
    }));
    frames
}

/// Milliseconds since the epoch, for entries signed in tests.
pub(super) fn now_ms() -> u64 {
    now().get()
}
