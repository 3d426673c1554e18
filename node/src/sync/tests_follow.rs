//! Keeping up: announcements, revocations, appends that are passed on, handoff requests.
#![allow(clippy::large_futures, reason = "a test runs once")]

use std::sync::Mutex;

use serde_json::json;
use throughline_protocol::block::Signed;
use throughline_protocol::build;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::entry::{Authority, Body, Class, Entry, Note, PayloadRef, Place, UserMessage};
use throughline_protocol::id::{EntryCid, SessionId, UnixMillis};
use throughline_protocol::testing::{self, SessionBuilder};
use throughline_protocol::view::EntryDraft;
use throughline_protocol::wire::announce::{Hint, Message as AnnounceMessage};
use throughline_protocol::wire::chain::{ChainAsk, ChainRequest};
use throughline_protocol::wire::handoff::{HandoffState, HandoffStatus, HandoffStep, MoveId};
use throughline_protocol::wire::{Credentials, ErrorCode, Message as _};
use throughline_store::PinDepth;

use super::peers::{self, KnownPeer};
use super::testbench::*;
use super::*;
use crate::core::{AppendRequest as Append, ControlKind, CreateRequest, Keeping};

fn message(text: &str) -> EntryDraft {
    let block = json!({"id": "b1", "type": "Paragraph", "text": text, "children": []});
    EntryDraft::from_json(&json!({"type": "SessionUserMessage", "origin": "trigger", "body": [block]}))
        .unwrap()
}

/// A session that a node began as its holder.
fn begin(node: &TestNode) -> SessionId {
    let request = CreateRequest {
        agent: None,
        title: Some("followed".to_owned()),
        class: Class::Internal,
        first_entry: Some(message("first")),
        key: None,
        dry_run: false,
    };
    node.node.create(&request).unwrap().answer["session"].as_str().unwrap().parse().unwrap()
}

fn append(node: &TestNode, session: SessionId, text: &str) -> EntryCid {
    let base = Some(node.row(session).unwrap().tip.cid);
    let request = Append { session, base, entries: vec![message(text)], key: None, dry_run: false };
    node.node.append(&request).unwrap();
    node.row(session).unwrap().tip.cid
}

/// A server and the owner's desktop, which knows it. The grants are known to the server only.
async fn server_and_desktop() -> (TestNode, TestNode) {
    let (server, desktop) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
    let grants = [server.grant(Role::Writer), desktop.grant(Role::Agent)];
    server.hold(&grants);
    desktop.hold(&grants[1..]);
    (server, desktop)
}

fn tip_is(session: SessionId, cid: EntryCid) -> impl Fn(&Node) -> bool {
    move |node| node.reader().unwrap().session(session).unwrap().is_some_and(|row| row.tip.cid == cid)
}

/// 4,200 grants and their revocations: more than one request can name, and than is stored at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_of_many_grants_is_learned_whole() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let (builder, mut revoking) = (session("of many grants", 3), SessionBuilder::new("revoking"));
        let (account, reader) = (testing::key("account"), testing::key("a reader").principal());
        let mut controls = Vec::new();
        for number in 0..4_200 {
            let path = format!("/agent-{number}");
            let grant = testing::capability(&account, reader, Role::Reader, Some(&path));
            controls.push(revoking.tombstone(&grant, Vec::new()));
            controls.push(grant);
        }
        for node in [&server, &desktop] {
            // Of an owner without a session here much less is kept.
            node.take(&builder);
        }
        server.hold(&controls);
        let held = |node: &Node| node.reader().unwrap().control_hashes(owner()).unwrap();
        desktop.meet("server", &server).await;
        desktop.until(|node| held(node) == held(&server.node)).await;
        assert!(held(&desktop.node).len() > 8_400);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_follows_its_owners_sessions_and_anchors_them() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let session = begin(&server);
        let first = server.row(session).unwrap().tip.cid;
        desktop.meet("server", &server).await;
        desktop.until(tip_is(session, first)).await;
        // The anchor reaches the server: a later revocation cuts nothing below it.
        let anchored = |node: &Node| {
            let row = node.reader().unwrap().session(session).unwrap().unwrap();
            row.summary.anchored_through == Some(row.tip.seq)
        };
        desktop.until(anchored).await;
        server.network.compare_with(&desktop.network.peer_principal().to_string()).await.unwrap();
        server.until(anchored).await;
        server.until_proven(&desktop).await;
        // From now on commits are told: no timer runs in this test.
        let second = append(&server, session, "second");
        desktop.until(tip_is(session, second)).await;
        let third = append(&server, session, "third");
        desktop.until(tip_is(session, third)).await;
        let is_equal = |views: &[PeerView]| {
            let tip = desktop.row(session).unwrap().tip;
            let told = views.iter().find_map(|view| view.replica(session, tip));
            told.is_some_and(|told| told["relation"] == "equal" && told["alias"] == "server")
        };
        desktop.until_met(is_equal).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_connects_is_told_nothing_and_follows_nothing() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let stranger = TestNode::stranger(TCP).await;
        let session = begin(&server);
        stranger.meet("server", &server).await;
        desktop.meet("server", &server).await;
        server.until_proven(&stranger).await;
        server.until_proven(&desktop).await;
        let told = append(&server, session, "told");
        desktop.until(tip_is(session, told)).await;
        assert!(stranger.row(session).is_none());
        assert_eq!(stranger.node.reader().unwrap().stats().unwrap().controls, 0);
        assert!(stranger.network.peers().await.iter().all(|view| view.heads.is_empty()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_keeps_is_no_question_to_a_stranger() {
    in_time(async {
        let server = TestNode::start(TCP).await;
        server.hold(&[server.grant(Role::Writer)]);
        let session = begin(&server);
        let mut shown = SessionBuilder::new("shown to all");
        let account = shown.owner.clone();
        shown.reference(&account, 0, testing::Reach::Publishes);
        server.take(&shown);
        // Somebody connects who proves nothing and notes what the server asks.
        let mut seed = zeroize::Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).unwrap();
        let (stranger, mut events) = net::spawn(NetConfig::loopback(seed, Vec::new())).unwrap();
        let peer = net::peer_of(&server.network.peer_principal()).unwrap();
        stranger.dial(peer, server.network.listen_addrs().await).await.unwrap();
        let mut stream = loop {
            if let net::NetEvent::Incoming { stream, .. } = events.recv().await.unwrap() {
                break stream;
            }
        };
        let request = ChainRequest::decode_body(&stream.read().await.unwrap().unwrap()).unwrap();
        let ChainAsk::Heads { owners, sessions } = request.ask else { panic!("expected heads") };
        assert!(!sessions.contains(&session), "an internal session");
        assert_eq!(sessions, [shown.session()], "what anybody may read is asked of anybody");
        assert!(owners.is_empty(), "{owners:?}");
    })
    .await;
}

/// A Ref travels without the place of what it names, and `status` showed seq 0 beside `equal`.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_told_without_its_place_has_that_of_the_entry() {
    in_time(async {
        let (server, desktop) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let mut held = session("told without a place", 3);
        server.take(&held);
        desktop.take(&held);
        desktop.meet("server", &server).await;
        let peer = desktop.network.shared.connect("server").await.unwrap();
        let account = Arc::clone(&held.owner);
        let tell = async |held: &mut SessionBuilder, seq: usize| {
            let reference = held.reference(&account, seq, testing::Reach::Anchors);
            let (blob, control) = (Arc::clone(reference.bytes()), Vec::new());
            let message = AnnounceMessage { blob, control, hint: Hint::default() }.encode().unwrap();
            news::take_announced(&desktop.network.shared, peer, message.into()).await.unwrap();
            let tip = desktop.row(held.session()).unwrap().tip;
            let views = desktop.network.peers().await;
            let told = views.iter().find_map(|view| view.replica(held.session(), tip)).expect("a told head");
            (told["head"]["seq"].clone(), told["relation"].clone())
        };
        assert_eq!(tell(&mut held, 2).await, (json!(2), json!("behind")));
        assert_eq!(tell(&mut held, 3).await, (json!(3), json!("equal")));
        // Of one that is not held nothing is known but its name.
        held.user(&account, "later");
        assert_eq!(tell(&mut held, 4).await, (json!(3), json!("equal")), "the place is not made up");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_takes_no_session_of_another_owner_and_blames_nobody_for_showing_it() {
    in_time(async {
        let (server, _) = server_and_desktop().await;
        let mut public = session("public", 3);
        let device = public.device.clone();
        // Nobody tells the owner with the head, so the session has to be looked into.
        public.reference(&device, 3, testing::Reach::Publishes);
        server.take(&public);
        let key = testing::key("another account");
        let other = TestNode::with_owner(TCP, Some(key.principal())).await;
        other.hold(&[testing::capability(&key, other.node.principal(), Role::Agent, None)]);
        other.meet("server", &server).await;
        let seen = |views: &[PeerView]| views.iter().any(|view| !view.heads.is_empty());
        // The Ref with the head says whose it is.
        let peer = other.network.shared.connect("server").await.unwrap();
        let head = throughline_protocol::sync::Point {
            cid: public.head().entry.cid(),
            seq: public.head().entry.value().seq(),
        };
        let key = net::principal_of(&peer).unwrap();
        let fetched = other
            .network
            .shared
            .follow_up(
                public.session(),
                fetch::Provider::connected(peer, key),
                other.node.owner(),
                PinDepth::Files,
            )
            .await;
        assert_eq!(fetched.unwrap_err().code(), Code::Refused);
        assert!(other.row(public.session()).is_none());
        assert_eq!(other.network.counts().charges, 0);
        assert_eq!(other.node.reader().unwrap().stats().unwrap().entries, 0);
        other.until_met(seen).await;
        let views = other.network.peers().await;
        let told = views.iter().flat_map(|view| &view.heads).find(|told| told.session == public.session());
        assert_eq!(told.map(|told| (told.head.cid, told.head.seq)), Some((head.cid, head.seq)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_and_revocations_of_others_reach_connected_nodes() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let session = begin(&server);
        desktop.meet("server", &server).await;
        let tip = server.row(session).unwrap().tip.cid;
        desktop.until(tip_is(session, tip)).await;
        desktop.until_proven(&server).await;
        // Two grants to others: the tombstone brings the one that it revokes, the other one comes by the digest only.
        let revoked = testing::capability(&testing::key("account"), owner(), Role::Reader, None);
        let other = testing::key("a reader").principal();
        let granted = testing::capability(&testing::key("account"), other, Role::Reader, None);
        let tombstone = SessionBuilder::new("revoking").tombstone(&revoked, Vec::new());
        let controls = [revoked, granted, tombstone];
        desktop.hold(&controls);
        let blobs = controls.iter().map(|control| Arc::clone(control.bytes())).collect();
        let told = desktop.network.tell_controls(owner(), blobs).await;
        // The server was seen to agree; the reader was never seen.
        assert_eq!((told.peers, told.pending), (1, 1));
        let is_held = |node: &Node, control: &Signed<Control>| {
            node.reader().unwrap().control(&control.cid().cid()).unwrap().is_some()
        };
        server.until(|node| controls.iter().all(|control| is_held(node, control))).await;
        assert_eq!(server.row(session).unwrap().summary.verdict, "valid", "nothing of the session is cut");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_holder_is_told_so_and_both_sides_cut_what_was_not_anchored() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let session = begin(&server);
        desktop.meet("server", &server).await;
        let first = server.row(session).unwrap().tip;
        let anchored = move |node: &Node| {
            let row = node.reader().unwrap().session(session).unwrap();
            row.is_some_and(|row| row.summary.anchored_through == Some(first.seq))
        };
        desktop.until(anchored).await;
        server.until_proven(&desktop).await;
        desktop.until_proven(&server).await;
        // The next anchor may come a minute after the first one.
        let last = append(&server, session, "not anchored");
        desktop.until(tip_is(session, last)).await;

        let tombstone = SessionBuilder::new("revoking").tombstone(&server.grant(Role::Writer), Vec::new());
        desktop.hold(std::slice::from_ref(&tombstone));
        // Published too, so that it would come; but what is counted is that the holder took it.
        let told = desktop.network.tell_controls(owner(), vec![Arc::clone(tombstone.bytes())]).await;
        assert_eq!((told.peers, told.pending), (1, 0));
        let cut = move |node: &Node| {
            let row = node.reader().unwrap().session(session).unwrap().unwrap();
            row.summary.verdict == "revoked-tail" && row.summary.head.is_some_and(|head| head == first)
        };
        desktop.until(cut).await;
        server.until(cut).await;
        assert!(server.node.reader().unwrap().control(&tombstone.cid().cid()).unwrap().is_some());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_never_had_a_grant_is_not_told_of_a_revocation() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let stranger = TestNode::stranger(TCP).await;
        desktop.hold(&[server.grant(Role::Writer)]);
        desktop.meet("stranger", &stranger).await;
        desktop.until_proven(&stranger).await;
        let tombstone = SessionBuilder::new("revoking").tombstone(&server.grant(Role::Writer), Vec::new());
        desktop.hold(std::slice::from_ref(&tombstone));
        let told = desktop.network.tell_controls(owner(), vec![Arc::clone(tombstone.bytes())]).await;
        assert_eq!((told.peers, told.pending), (0, 1));
        assert_eq!(stranger.node.reader().unwrap().stats().unwrap().controls, 0);
    })
    .await;
}

/// A message that a node signs as a device on a session's head, as it has it.
fn as_device(node: &TestNode, session: SessionId, text: &str) -> SignedAppend {
    let body = Body::UserMessage(UserMessage::default());
    let words: EntryDraft = EntryDraft::from_json(&json!({
        "type": "SessionUserMessage",
        "body": [{"id": "b1", "type": "Paragraph", "text": text, "children": []}],
    }))
    .unwrap();
    let payload = words.payload.unwrap().build(&body, [7; 32]).unwrap();
    sign_as_device(node, session, body, Some(payload))
}

fn sign_as_device(
    node: &TestNode,
    session: SessionId,
    body: Body,
    payload: Option<(Vec<u8>, PayloadRef)>,
) -> SignedAppend {
    let grant = node.grant(Role::Agent);
    let reader = node.node.reader().unwrap();
    let state = reader.chain_state(session).unwrap().unwrap();
    let state = throughline_protocol::verify::ChainState::from_bytes(&state).unwrap();
    let (tip, (_, skip)) = (state.tip(), state.path().next_skip());
    let entry = Entry {
        ts: UnixMillis::new(now_ms().max(state.position().ts.get())).unwrap(),
        signer: node.node.principal(),
        authority: Some(Authority { space: owner(), capability: grant.cid().cid() }),
        place: Some(Place {
            genesis: session.genesis(),
            prev: tip.cid,
            seq: tip.seq.next(),
            epoch: tip.epoch,
            skip: (skip != tip.cid).then_some(skip),
        }),
        body,
        payload: payload.as_ref().map(|(_, named)| *named),
        ext: None,
    };
    let signed = build::sign(entry, node.node.key()).unwrap();
    SignedAppend {
        session,
        entry: Arc::clone(signed.bytes()),
        payload: payload.map(|(bytes, _)| bytes.into()),
        grants: Vec::new(),
        dry_run: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_go_to_the_holder_and_conflicts_come_back() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let session = begin(&server);
        desktop.meet("server", &server).await;
        let tip = server.row(session).unwrap().tip.cid;
        desktop.until(tip_is(session, tip)).await;
        let first = as_device(&desktop, session, "hello");
        let appended = desktop.network.forward_append(&first).await.unwrap().unwrap();
        assert_eq!((appended.answer["head"]["seq"].as_u64(), appended.replayed), (Some(2), false));
        let tip = server.row(session).unwrap().tip.cid;
        desktop.until(tip_is(session, tip)).await;
        // Sent once more, it is the same entry.
        assert!(desktop.network.forward_append(&first).await.unwrap().unwrap().replayed);

        let late = as_device(&desktop, session, "late");
        append(&server, session, "meanwhile");
        let moved = desktop.network.forward_append(&late).await.unwrap_err();
        assert_eq!(moved.code(), Code::HeadMoved);
        let head = server.row(session).unwrap().tip;
        let base = moved.fact("signingBase").unwrap();
        assert_eq!(base["prev"], head.cid.to_string());
        assert_eq!(base["seq"], head.seq.get() + 1);
        assert_eq!(moved.fact("between").unwrap().as_array().unwrap().len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_write_is_not_told_that_a_session_is_there() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let session = begin(&server);
        desktop.meet("server", &server).await;
        let tip = server.row(session).unwrap().tip.cid;
        desktop.until(tip_is(session, tip)).await;
        let grant = desktop.grant(Role::Agent);
        let entry = as_device(&desktop, session, "hello");
        let mut revoking = SessionBuilder::new("revoking the desktop");
        server.hold(&[revoking.tombstone(&grant, Vec::new())]);
        let refused = desktop.network.forward_append(&entry).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFoundYet);
        let elsewhere = session_elsewhere(&desktop, session).await;
        assert_eq!(refused.detail(), elsewhere);
    })
    .await;
}

/// What the server says about an entry of a session that it does not have.
async fn session_elsewhere(desktop: &TestNode, known: SessionId) -> String {
    let builder = session("elsewhere", 1);
    let server = desktop.row(known).unwrap().summary.holder.unwrap();
    let request = AppendRequest {
        credentials: Credentials::default(),
        entry: Arc::clone(builder.head().entry.bytes()),
        payload: None,
    };
    match desktop.network.request_append(server, request).await.unwrap() {
        AppendAnswer::Error(error) => {
            assert_eq!(error.code(), &ErrorCode::Known(Code::NotFoundYet));
            error.detail().map_or(Code::NotFoundYet.title().to_owned(), str::to_owned)
        }
        other @ (AppendAnswer::Accepted(_) | AppendAnswer::Conflict { .. }) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn news_of_public_sessions_reach_strangers_that_keep_them() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let session = begin(&server);
        desktop.meet("server", &server).await;
        let tip = server.row(session).unwrap().tip.cid;
        desktop.until(tip_is(session, tip)).await;
        // Opened up by the owner's device; from the next entry on the holder's Refs publish.
        let note = sign_as_device(&desktop, session, Body::Note(Note::Class(Class::Public)), None);
        desktop.network.forward_append(&note).await.unwrap().unwrap();
        append(&server, session, "for everybody");
        let mirror = TestNode::stranger(TCP).await;
        let pin =
            throughline_store::Pin { since: UnixMillis::new(now_ms()).unwrap(), depth: PinDepth::Payloads };
        let pinned = throughline_store::SetPin { session, pin: Some(pin), at: pin.since };
        mirror.node.store().run(pinned).unwrap();
        mirror.meet("server", &server).await;
        // Whose session it is, and so which topic tells of it, is learned from a comparison that shows it published; the
        // first one may come before the holder's Ref.
        let mut patience = Duration::from_secs(1);
        while tokio::time::timeout(patience, server.until_followed_by(&mirror)).await.is_err() {
            mirror.network.compare_with("server").await.unwrap();
            patience *= 2;
        }
        let mut number = 0;
        while mirror.row(session).is_none() {
            number += 1;
            append(&server, session, &format!("heard {number}"));
            mirror.network.compare_with("server").await.unwrap();
            tokio::task::yield_now().await;
        }
        // News is a hint: what comes while a comparison is under way may be passed over, what comes later is not.
        let mut patience = Duration::from_secs(1);
        loop {
            number += 1;
            let last = append(&server, session, &format!("told on the topic {number}"));
            if tokio::time::timeout(patience, mirror.until(tip_is(session, last))).await.is_ok() {
                break;
            }
            patience *= 2;
        }
        assert_eq!(mirror.network.counts().charges, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_topic_of_an_owner_that_is_not_followed_any_more_is_left() {
    in_time(async {
        let mut shown =
            SessionBuilder::with_genesis("kept for a while", |genesis| genesis.class = Class::Public);
        let account = shown.owner.clone();
        shown.reference(&account, 0, testing::Reach::Publishes);
        let (server, mirror) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        server.take(&shown);
        mirror.take(&shown);
        let at = UnixMillis::new(now_ms()).unwrap();
        let pin = |pin| throughline_store::SetPin { session: shown.session(), pin, at };
        let kept = throughline_store::Pin { since: at, depth: PinDepth::Payloads };
        mirror.node.store().run(pin(Some(kept))).unwrap();
        mirror.meet("server", &server).await;
        server.until_followed_by(&mirror).await;
        mirror.node.store().run(pin(None)).unwrap();
        mirror.network.compare_with("server").await.unwrap();
        while !server.network.shared.net.followers(owner()).await.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

struct Handler(Mutex<Vec<Option<Principal>>>);

impl HandoffHandler for Handler {
    fn handle(&self, asker: Asker, _: HandoffRequest) -> BoxFuture<'static, HandoffAnswer> {
        self.0.lock().unwrap().push(asker.principal);
        Box::pin(async { HandoffAnswer::State(HandoffStatus::of(HandoffState::Retired)) })
    }

    fn ended(&self, _: SessionId, _: Arc<[u8]>) -> BoxFuture<'static, Answer<()>> {
        Box::pin(async { Ok(()) })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_grants_were_revoked_anchors_nothing() {
    in_time(async {
        let server = TestNode::start(TCP).await;
        let mut builder = session("anchored by whom", 2);
        server.take(&builder);
        let account = builder.owner.clone();
        let anchor = builder.reference(&account, 2, testing::Reach::Anchors);
        let take = || server.node.take_control(ControlKind::Ref, anchor.bytes(), Keeping::DryRun);
        let grant = server.grant(Role::Writer);
        server.hold(std::slice::from_ref(&grant));
        take().unwrap();
        assert!(!server.node.is_revoked_by(owner()).unwrap());
        // The owner's key signed it, on a machine that the owner gave up.
        server.hold(&[builder.tombstone(&grant, Vec::new())]);
        assert_eq!(take().unwrap_err().code(), Code::Revoked);
        assert!(server.node.is_revoked_by(owner()).unwrap());
    })
    .await;
}

/// Tells what openings were shown to it.
struct Left(tokio::sync::mpsc::UnboundedSender<EntryCid>);

impl HandoffHandler for Left {
    fn handle(&self, _: Asker, _: HandoffRequest) -> BoxFuture<'static, HandoffAnswer> {
        Box::pin(async { HandoffAnswer::State(HandoffStatus::of(HandoffState::Retired)) })
    }

    fn ended(&self, _: SessionId, opening: Arc<[u8]>) -> BoxFuture<'static, Answer<()>> {
        self.0.send(EntryCid::of(&opening)).unwrap();
        Box::pin(async { Ok(()) })
    }
}

/// A holder of epoch 0 that was off while the owner opened epochs 1 and 2, and that may read nothing when it comes back: the
/// session is confidential, or its grant was revoked.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_left_is_told_what_ended_its_epoch_and_nothing_else() {
    in_time(async {
        for is_revoked in [false, true] {
            let (left, other) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
            let (sender, mut shown) = tokio::sync::mpsc::unbounded_channel();
            left.network.serve_handoffs(Arc::new(Left(sender)));
            let grant = left.grant(Role::Writer);
            let mut builder = SessionBuilder::with_genesis("left behind", |genesis| {
                genesis.holder = Some(left.node.principal());
                genesis.class = if is_revoked { Class::Internal } else { Class::Confidential };
            });
            let (owner_of, first, second) =
                (builder.owner.clone(), builder.server1.clone(), builder.server2.clone());
            builder.user(&owner_of, "before");
            for node in [&left, &other] {
                node.hold(&[grant.clone(), other.grant(Role::Agent)]);
            }
            left.take(&builder);
            let ended = builder.handoff(Some(&first));
            builder.user(&owner_of, "not for those who were left");
            let latest = builder.handoff(Some(&second));
            if is_revoked {
                builder.tombstone(&grant, Vec::new());
            }
            other.take(&builder);

            // Whichever of them dials: what differs is found when they meet.
            if is_revoked {
                left.meet("other", &other).await;
            } else {
                let known = KnownPeer::of_ticket("other", &other.ticket().await).unwrap();
                peers::add(&left.node, &known).unwrap();
                other.meet("left", &left).await;
            }
            assert_eq!(shown.recv().await, Some(ended));
            let peer = net::peer_of(&other.network.peer_principal()).unwrap();
            let shared = &left.network.shared;
            let credentials = shared.credentials(peer, Some(owner()), None).await.unwrap();
            let (mut got, asked) = (Vec::new(), [latest.cid(), ended.cid()]);
            shared.ask_blocks(peer, &credentials, &asked, SOON, &mut got).await.unwrap();
            assert_eq!(got.iter().map(|block| block.cid()).collect::<Vec<_>>(), [ended.cid()]);
            let fetched = left.bring(builder.session(), &["other".to_owned()]).await;
            assert_eq!(fetched.unwrap_err().code(), Code::NotFoundYet);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owners_side_moves_sessions() {
    in_time(async {
        let (server, desktop) = server_and_desktop().await;
        let stranger = TestNode::stranger(TCP).await;
        let reader = TestNode::start(TCP).await;
        server.hold(&[reader.grant(Role::Writer)]);
        let session = begin(&server);
        let handler = Arc::new(Handler(Mutex::default()));
        server.network.serve_handoffs(Arc::clone(&handler) as Arc<dyn HandoffHandler>);
        let request = |session| HandoffRequest {
            credentials: Credentials::default(),
            move_id: MoveId::from_bytes([1; 16]),
            session,
            step: HandoffStep::Status,
        };
        for node in [&desktop, &stranger, &reader] {
            node.meet("server", &server).await;
        }
        let ask = async |node: &TestNode, session| {
            node.network.request_handoff(server.node.principal(), request(session)).await.unwrap()
        };
        let retired = HandoffAnswer::State(HandoffStatus::of(HandoffState::Retired));
        assert_eq!(ask(&desktop, session).await, retired);
        let absent = SessionBuilder::new("absent").session();
        for node in [&stranger, &reader] {
            let (hidden, nothing) = (ask(node, session).await, ask(node, absent).await);
            assert_eq!(hidden, nothing);
            assert!(matches!(hidden, HandoffAnswer::Error(_)));
        }
        assert_eq!(*handler.0.lock().unwrap(), [Some(desktop.node.principal())]);
    })
    .await;
}
