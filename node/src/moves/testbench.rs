//! A bench for tests: real nodes with real stores, connected by wires or by networks on loopback.

use std::future::Future;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use throughline_protocol::block::Signed;
use throughline_protocol::build;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Capability, Control, Role};
use throughline_protocol::entry::{Body, Class, Entry, Handoff, Place};
use throughline_protocol::handoff::{Limits, MoveId};
use throughline_protocol::id::{Epoch, Principal, Seq, SessionId, UnixMillis};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::view::EntryDraft;
use zeroize::Zeroizing;

use super::wires::{Wires, copy};
use super::{Begin, Depth, Desk, Leave};
use crate::config::{Config, Key, Overrides, Value as Setting};
use crate::core::damaged::damage_at;
use crate::core::{AppendRequest, CreateRequest, Node, now};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;
use crate::net::NetConfig;
use crate::sync::peers::{self, KnownPeer};
use crate::sync::{Network, SyncLimits};

/// One generous limit for anything that has to happen.
const SOON: Duration = Duration::from_secs(90);

/// Limits under which silence is told soon, and who is only slow is not taken for silent.
pub(super) fn limits() -> Limits {
    Limits {
        retry: Duration::from_millis(10),
        retry_max: Duration::from_millis(40),
        answer_max: Duration::from_secs(2),
        idle_max: Duration::from_secs(3),
        ..Limits::default()
    }
}

/// Three nodes of one owner: servers A and B, and the owner's desktop D.
pub(super) struct Bench {
    pub(super) owner: SigningKey,
    /// What connects them; of no use to those that have a network.
    pub(super) wires: Wires,
    pub(super) a: Node,
    pub(super) b: Node,
    pub(super) d: Node,
    home: TempDir,
}

impl Bench {
    /// All three, with what each has to be granted.
    pub(super) fn new() -> Self {
        let bench = Bench::without_grant_for_b();
        bench.grant(bench.b.principal(), Role::Writer);
        bench
    }

    pub(super) fn without_grant_for_b() -> Self {
        let home = TempDir::new().unwrap();
        let owner = SigningKey::from_seed(&[7; 32]);
        let wires = Wires::default();
        let node = |name: &str| {
            let node = open(home.path().join(name), owner.principal());
            super::attach_with(&node, Arc::new(wires.clone()), limits()).unwrap();
            node
        };
        let (a, b, d) = (node("a"), node("b"), node("d"));
        let bench = Bench { owner, wires, a, b, d, home };
        bench.grant(bench.a.principal(), Role::Writer);
        bench.grant(bench.d.principal(), Role::Agent);
        bench
    }

    /// All three, each with a network on loopback and the others in its address book.
    pub(super) async fn over_network() -> Self {
        let home = TempDir::new().unwrap();
        let owner = SigningKey::from_seed(&[7; 32]);
        let node = |name: &str| open(home.path().join(name), owner.principal());
        let (a, b, d) = (node("a"), node("b"), node("d"));
        let bench = Bench { owner, wires: Wires::default(), a, b, d, home };
        for (delegate, role) in [(&bench.a, Role::Writer), (&bench.b, Role::Writer), (&bench.d, Role::Agent)]
        {
            bench.grant(delegate.principal(), role);
        }
        let mut known = Vec::new();
        for (alias, node) in [("server-a", &bench.a), ("server-b", &bench.b), ("desktop", &bench.d)] {
            known.push(connect(alias, node).await);
        }
        for node in [&bench.a, &bench.b, &bench.d] {
            for peer in known.iter().filter(|peer| peer.principal != node.principal()) {
                peers::add(node, peer).unwrap();
            }
        }
        bench
    }

    /// Ends A as a crash of its machine would, as far as the others see.
    pub(super) async fn unplug_a(&self) {
        self.a.network().unwrap().stopped().await;
    }

    /// Opens A again, with a network.
    pub(super) async fn plug_in_a(&mut self) {
        self.reopen_dir("a", |_| ()).await;
        connect("server-a", &self.a).await;
    }

    /// A grant by the owner, known to all.
    pub(super) fn grant(&self, delegate: Principal, role: Role) {
        let grant = Capability {
            ts: now(),
            signer: self.owner.principal(),
            delegate,
            role: Some(role.word().to_owned()),
            path: None,
            label: None,
            audience: None,
        };
        let signed = build::sign(Control::Capability(grant), &self.owner).unwrap();
        for node in [&self.a, &self.b, &self.d] {
            node.take_controls(vec![signed.clone()]).unwrap();
        }
    }

    /// A session that A holds, with `more` entries after the first two, known to D.
    pub(super) fn session(&self, more: usize) -> SessionId {
        self.session_of(Class::Internal, more)
    }

    /// A session that A alone has.
    pub(super) fn session_known_to_a(&self, more: usize) -> SessionId {
        self.make_session(Class::Internal, more)
    }

    pub(super) fn session_of(&self, class: Class, more: usize) -> SessionId {
        let session = self.make_session(class, more);
        assert!(copy(&self.a, &self.d, session));
        session
    }

    fn make_session(&self, class: Class, more: usize) -> SessionId {
        let request = CreateRequest {
            agent: None,
            title: Some("A session on the move".to_owned()),
            class,
            first_entry: Some(message("begin")),
            key: None,
            dry_run: false,
        };
        let created = self.a.create(&request).unwrap();
        let session = created.answer["session"].as_str().unwrap().parse().unwrap();
        for at in 0..more {
            append(&self.a, session, &format!("more {at}")).unwrap();
        }
        session
    }

    /// Ends a node and opens its directory again.
    pub(super) async fn reopen(&mut self, name: &str) {
        self.reopen_after(name, |_| ()).await;
    }

    /// As [`Bench::reopen`]; meanwhile its disk flips a bit wherever its database has these bytes.
    pub(super) async fn reopen_damaged(&mut self, name: &str, bytes: &[u8]) {
        let node = self.reopen_dir(name, |dir| damage_at(dir, bytes)).await;
        super::attach_with(&node, Arc::new(self.wires.clone()), limits()).unwrap();
    }

    /// As [`Bench::reopen`], with more patience than a test has: silence is not told while it runs.
    pub(super) async fn reopen_patient(&mut self, name: &str) {
        let limits = Limits { idle_max: SOON * 10, ..Limits::default() };
        let node = self.reopen_dir(name, |_| ()).await;
        super::attach_with(&node, Arc::new(self.wires.clone()), limits).unwrap();
    }

    /// As [`Bench::reopen`]; something happens to its store before its moves go on.
    pub(super) async fn reopen_after(&mut self, name: &str, before: impl FnOnce(&Node)) {
        let node = self.reopen_dir(name, |_| ()).await;
        before(&node);
        super::attach_with(&node, Arc::new(self.wires.clone()), limits()).unwrap();
    }

    async fn reopen_dir(&mut self, name: &str, meanwhile: impl FnOnce(&Path)) -> Node {
        let node = match name {
            "a" => &mut self.a,
            _ => &mut self.d,
        };
        let (ended, data) = (node.principal(), node.dirs().data().to_owned());
        node.stop();
        self.wires.lines().nodes.remove(&ended);
        let home = self.home.path().join(name);
        // A second directory stands in until the first one is free again.
        *node = open(self.home.path().join(format!("{name}-away")), self.owner.principal());
        meanwhile(&data);
        let owner = self.owner.principal();
        let reopened = tokio::time::timeout(SOON, async {
            loop {
                match try_open(home.clone(), owner) {
                    Ok(node) => return node,
                    Err(Code::Locked) => tokio::task::yield_now().await,
                    Err(other) => panic!("{other}"),
                }
            }
        });
        *node = reopened.await.unwrap();
        assert_eq!(node.principal(), ended);
        node.clone()
    }

    pub(super) async fn begin(&self, session: SessionId, to: &Node, leave: Leave) -> Value {
        let begin = Begin { session, to: to.principal().to_string(), leave, ask: None, depth: Depth::Begin };
        self.desk().begin(begin).await.unwrap()
    }

    pub(super) fn desk(&self) -> Desk {
        self.d.moves().unwrap()
    }

    /// Waits until the move is in one of these states.
    #[track_caller]
    pub(super) fn until<'a>(
        &'a self,
        told: &'a Value,
        states: &'a [&str],
    ) -> impl Future<Output = Value> + 'a {
        self.until_shown(told, |told| states.contains(&told["state"].as_str().unwrap()))
    }

    /// Waits until the move shows it.
    #[track_caller]
    pub(super) fn until_shown<'a>(
        &'a self,
        told: &'a Value,
        is_so: impl Fn(&Value) -> bool + 'a,
    ) -> impl Future<Output = Value> + 'a {
        let place = Location::caller();
        async move {
            let (session, id) = named(told);
            let reached = async {
                loop {
                    let told = self.desk().wait(session, id, SOON).await.unwrap();
                    if is_so(&told) {
                        return told;
                    }
                    tokio::task::yield_now().await;
                }
            };
            match tokio::time::timeout(SOON, reached).await {
                Ok(told) => told,
                Err(_) => {
                    let seen = self.desk().get(session, id).unwrap();
                    panic!("{place}: expected another state within {SOON:?}, got {seen:#}");
                }
            }
        }
    }

    /// Signs what the move asks for, and hands it in.
    pub(super) async fn sign(&self, told: &Value) -> Value {
        let (session, id) = named(told);
        let signed = self.handoff(&told["sign"]);
        self.desk().give_handoff(session, id, signed.bytes().to_vec()).await.unwrap()
    }

    /// The handoff that these facts ask for, signed by the owner.
    pub(super) fn handoff(&self, facts: &Value) -> Signed<Entry> {
        sign_handoff(&self.owner, facts)
    }

    /// A whole move to the end.
    pub(super) async fn move_to(&self, session: SessionId, to: &Node, leave: Leave) -> Value {
        let begun = self.begin(session, to, leave).await;
        let asked = self.until(&begun, &["needs-handoff", "rolled-back"]).await;
        assert_eq!(asked["state"], "needs-handoff", "{asked:#}");
        self.sign(&asked).await;
        self.until(&begun, &["done", "waiting", "rolled-back", "aborted"]).await
    }
}

/// The handoff that a move's facts ask for.
pub(super) fn sign_handoff(owner: &SigningKey, facts: &Value) -> Signed<Entry> {
    let text = |key: &str| facts[key].as_str();
    let place = Place {
        genesis: text("genesis").unwrap().parse().unwrap(),
        prev: text("prev").unwrap().parse().unwrap(),
        seq: Seq::new(facts["seq"].as_u64().unwrap()).unwrap(),
        epoch: Epoch::new(facts["epoch"].as_u64().unwrap()).unwrap(),
        skip: text("skip").map(|skip| skip.parse().unwrap()),
    };
    let handoff = Handoff {
        holder: Some(text("holder").unwrap().parse().unwrap()),
        grant: text("grant").map(|grant| grant.parse().unwrap()),
        ..Handoff::default()
    };
    let least = UnixMillis::new(facts["notBeforeMs"].as_u64().unwrap()).unwrap();
    let entry = Entry {
        ts: now().max(least),
        signer: owner.principal(),
        authority: None,
        place: Some(place),
        body: Body::Handoff(handoff),
        payload: None,
        ext: None,
    };
    build::sign(entry, owner).unwrap()
}

/// Starts a node's network and desk; what its peers put into their address books.
async fn connect(alias: &str, node: &Node) -> KnownPeer {
    let listen = vec!["/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()];
    let config = NetConfig::loopback(Zeroizing::new(*node.peer_seed().bytes()), listen);
    let pace = SyncLimits { compare_every: Duration::from_millis(500), ..SyncLimits::default() };
    let network = Network::start_with(node, config, pace).await.unwrap();
    let peer = KnownPeer {
        alias: alias.to_owned(),
        principal: node.principal(),
        peer: network.peer_principal(),
        addrs: network.listen_addrs().await,
    };
    node.attach_network(network);
    super::attach(node).unwrap();
    peer
}

/// Waits until a node's store says so.
#[track_caller]
pub(super) fn until_stored<'a>(
    node: &'a Node,
    is_so: impl Fn(&Node) -> bool + 'a,
) -> impl Future<Output = ()> + 'a {
    let place = Location::caller();
    async move {
        let mut commits = node.commits();
        let reached = async {
            while !is_so(node) {
                commits.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(SOON, reached).await.is_err() {
            let seen = node.reader().unwrap().sessions(None, 16);
            panic!("{place}: what is waited for did not come within {SOON:?}; last seen: {seen:#?}");
        }
    }
}

pub(super) fn open(home: PathBuf, owner: Principal) -> Node {
    try_open(home, owner).unwrap()
}

fn try_open(home: PathBuf, owner: Principal) -> Result<Node, Code> {
    let dirs = Dirs::locate(Some(&home), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let overrides = Overrides::default().with_flag(Key::OwnerPrincipal, Setting::text(owner.to_string()));
    let config = Config::load(&dirs, &overrides).unwrap();
    Node::open(dirs, config, "test").map_err(|problem| problem.code())
}

pub(super) fn message(text: &str) -> EntryDraft {
    let block = json!({"id": "b1", "type": "Paragraph", "text": text, "children": []});
    EntryDraft::from_json(&json!({"type": "SessionUserMessage", "origin": "trigger", "body": [block]}))
        .unwrap()
}

/// Appends as the holder, on the node's own head.
pub(super) fn append(node: &Node, session: SessionId, text: &str) -> Result<Value, Code> {
    let base = node.reader().unwrap().session(session).unwrap().unwrap().tip.cid;
    let request =
        AppendRequest { session, base: Some(base), entries: vec![message(text)], key: None, dry_run: false };
    node.append(&request).map(|appended| appended.answer).map_err(|problem| problem.code())
}

pub(super) fn named(told: &Value) -> (SessionId, MoveId) {
    let id = u128::from_str_radix(told["move"].as_str().unwrap(), 16).unwrap();
    (told["session"].as_str().unwrap().parse().unwrap(), MoveId::from_bytes(id.to_be_bytes()))
}
