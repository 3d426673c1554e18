//! Askers that want more than they may have: each gets exactly what it would get if nothing were here.
#![allow(clippy::large_futures, reason = "a test runs once")]

use std::sync::Arc;

use serde_json::json;
use throughline_protocol::block::Block as Blob;
use throughline_protocol::clock::Apart;
use throughline_protocol::code::Code;
use throughline_protocol::content::Block;
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Body, Class, Origin, UserMessage};
use throughline_protocol::id::{Cid, UnixMillis};
use throughline_protocol::payload::{Attachment, UserWords, Words};
use throughline_protocol::testing::{self, Party, Reach as Shown, SessionBuilder};
use throughline_protocol::unixfs;
use throughline_protocol::wire::append::{AppendAnswer, AppendRequest};
use throughline_protocol::wire::chain::{ChainAnswer, ChainAsk, EntryAt, Payloads, RangeAsk};
use throughline_protocol::wire::handoff::{HandoffRequest, HandoffStep, MoveId};
use throughline_protocol::wire::{Credentials, ErrorCode};

use crate::core::{SignedAppend, now};
use crate::sync::fault::PeerFault;
use crate::sync::policy::{Asker, Gate, Party as Standing};
use crate::sync::testbench::*;

/// What a raw request is answered with.
async fn ask(asker: &TestNode, of: &TestNode, ask: ChainAsk) -> Result<Vec<ChainAnswer>, PeerFault> {
    let shared = &asker.network.shared;
    let peer = crate::net::peer_of(&of.network.peer_principal()).unwrap();
    let credentials = shared.credentials(peer, None, None).await.unwrap();
    let mut line = shared.chain(peer, &credentials, ask).await.unwrap();
    let mut told = Vec::new();
    while let Some(frame) = line.next().await? {
        told.push(frame);
    }
    Ok(told)
}

/// Asks for all of a session.
fn whole(builder: &SessionBuilder) -> ChainAsk {
    let entry = &builder.head().entry;
    let want = EntryAt { cid: entry.cid(), seq: entry.value().seq() };
    let (session, have) = (builder.session(), Vec::new());
    ChainAsk::Range(RangeAsk { session, want, have, payloads: Payloads::With })
}

async fn append_as(asker: &TestNode, to: &TestNode, builder: &SessionBuilder) -> AppendAnswer {
    let built = builder.head();
    let request = AppendRequest {
        credentials: Credentials::default(),
        entry: Arc::clone(built.entry.bytes()),
        payload: built.payload.clone(),
    };
    asker.network.request_append(to.node.principal(), request).await.unwrap()
}

/// A session that `holder` holds and that went on, and the same one as `writer` wrote to it meanwhile.
fn gone_on(
    holder: &TestNode,
    label: &str,
    class: Class,
    writer: &Arc<Party>,
) -> (SessionBuilder, SessionBuilder) {
    let own = holder.node.principal();
    let mut builder = SessionBuilder::with_genesis(label, |genesis| {
        genesis.holder = Some(own);
        genesis.class = class;
    });
    let owner = builder.owner.clone();
    builder.user(&owner, "before");
    let mut late = builder.clone().branch("late");
    late.user(writer, "never put in order");
    builder.user(&owner, "after");
    builder.user(&owner, "and after that");
    (builder, late)
}

fn expect_not_found(answer: &AppendAnswer, what: &str) {
    match answer {
        AppendAnswer::Error(error) => {
            assert_eq!(error.code(), &ErrorCode::Known(Code::NotFoundYet), "{what}");
        }
        AppendAnswer::Accepted(_) | AppendAnswer::Conflict { .. } => panic!("{what}: {answer:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_somebody_else_signed_opens_no_session() {
    in_time(async {
        let (holder, stranger) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let contributor = SessionBuilder::new("any").contributor;
        let (builder, late) = gone_on(&holder, "replayed", Class::Internal, &contributor);
        holder.take(&builder);
        holder.hold(&[holder.grant(Role::Writer)]);
        stranger.meet("holder", &holder).await;
        expect_not_found(&append_as(&stranger, &holder, &late).await, "one that was never ordered");
        expect_not_found(&append_as(&stranger, &holder, &builder).await, "one that was");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_tells_nothing_of_what_its_asker_may_not_read() {
    in_time(async {
        let (holder, writer) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let grant = writer.grant(Role::Contributor);
        // It passes on what another contributor signed: it is in both sessions itself.
        let contributor = SessionBuilder::new("any").contributor;
        let (closed, closed_late) = gone_on(&holder, "closed", Class::Confidential, &contributor);
        let (open, open_late) = gone_on(&holder, "open", Class::Internal, &contributor);
        holder.take(&closed);
        holder.take(&open);
        holder.hold(&[holder.grant(Role::Writer), grant]);
        writer.meet("holder", &holder).await;
        expect_not_found(&append_as(&writer, &holder, &closed_late).await, "confidential");
        let AppendAnswer::Conflict { base, between } = append_as(&writer, &holder, &open_late).await else {
            panic!("a contributor of a session that it may read is told what to sign on");
        };
        assert_eq!((base.prev, between.len()), (open.head().entry.cid(), 2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_holder_reads_no_more() {
    in_time(async {
        let (desktop, server) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let grant = server.grant(Role::Writer);
        let owner = SessionBuilder::new("any").owner;
        let (mut builder, _) = gone_on(&server, "taken away", Class::Confidential, &owner);
        desktop.take(&builder);
        desktop.hold(std::slice::from_ref(&grant));
        server.meet("desktop", &desktop).await;
        assert!(!ask(&server, &desktop, whole(&builder)).await.unwrap().is_empty());
        desktop.hold(&[builder.tombstone(&grant, Vec::new())]);
        let told = ask(&server, &desktop, whole(&builder)).await;
        assert_eq!(told.err().map(|refused| refused.reject.code), Some(Code::NotFoundYet));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_part_names_no_other_session() {
    in_time(async {
        let (node, stranger) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let mut builder = session("published part", 3);
        let account = builder.owner.clone();
        builder.reference(&account, 3, Shown::Publishes);
        node.take(&builder);
        let hidden = SessionBuilder::new("hidden").session();
        let server = builder.server1.key.principal();
        let elsewhere = testing::capability(&account.key, server, Role::Writer, Some(&hidden.path()));
        let here = testing::capability(&account.key, server, Role::Writer, Some(&builder.session().path()));
        node.hold(&[elsewhere.clone(), here.clone()]);
        stranger.meet("node", &node).await;
        let told = ask(&stranger, &node, whole(&builder)).await.unwrap();
        let controls: Vec<Arc<[u8]>> = told
            .into_iter()
            .flat_map(|frame| if let ChainAnswer::Control(blobs) = frame { blobs } else { Vec::new() })
            .collect();
        assert!(controls.contains(here.bytes()), "what the entries may cite comes along");
        assert!(!controls.contains(elsewhere.bytes()), "a grant for another session does not");
    })
    .await;
}

/// Attaches a file to a session, as its server.
fn attach(builder: &mut SessionBuilder, cid: Cid, size: u64) {
    let attachment = Attachment { cid, size, media_type: "application/octet-stream".to_owned(), name: None };
    let words = UserWords { attachments: vec![attachment], ..UserWords::default() };
    let message = UserMessage { origin: Some(Origin::Trigger), ..UserMessage::default() };
    let server = builder.server1.clone();
    builder.append(&server, Body::UserMessage(message), Some(Words::UserMessage(words)));
}

/// Bytes of a file in several blocks, all different.
fn large_file() -> Vec<u8> {
    (0..1_500_000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// The blocks of a file that a node has, its root first.
fn blocks_of(node: &TestNode, root: Cid) -> Vec<Blob> {
    let reader = node.node.reader().unwrap();
    let block = |cid: Cid| Blob::check(cid, reader.block(&cid).unwrap().unwrap()).unwrap();
    let root = block(root);
    let parts = unixfs::parts(&root.cid(), root.bytes());
    std::iter::once(root).chain(parts.into_iter().map(block)).collect()
}

/// Which of these blocks an asker is given.
async fn given(asker: &TestNode, of: &TestNode, cids: &[Cid]) -> Vec<bool> {
    let told = ask(asker, of, ChainAsk::Blobs { cids: cids.to_vec() }).await.unwrap();
    told.iter().map(|frame| matches!(frame, ChainAnswer::Blob { bytes: Some(_), .. })).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_leaves_only_under_a_session_that_brought_it() {
    in_time(async {
        let (node, reader) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let (mut hidden, mut shown) = (SessionBuilder::new("hides it"), SessionBuilder::new("shows it"));
        let bytes = large_file();
        let file = node.node.put_file(&bytes, None).unwrap();
        let blocks = blocks_of(&node, file.cid);
        let (root, secret, free) = (blocks[0].cid(), blocks[1].cid(), blocks[2].cid());
        node.node.put_blocks(hidden.session(), vec![blocks[1].clone()]).unwrap();
        node.node.put_blocks(shown.session(), vec![blocks[0].clone(), blocks[2].clone()]).unwrap();
        // Each names what the other one brought, and a word of the other one's too.
        attach(&mut hidden, secret, 262_144);
        attach(&mut hidden, root, file.size_bytes);
        attach(&mut shown, root, file.size_bytes);
        attach(&mut shown, secret, 262_144);
        node.take(&hidden);
        node.take(&shown);
        let account = testing::key("account");
        let path = shown.session().path();
        node.hold(&[testing::capability(&account, reader.node.principal(), Role::Reader, Some(&path))]);
        reader.meet("node", &node).await;
        let cids = [root, secret, free];
        assert_eq!(given(&reader, &node, &cids).await, [true, false, true]);
        // As a raw block by another name it is the same block.
        let other = Cid::sha256(throughline_protocol::id::Codec::DagPb, blocks[1].bytes());
        assert_eq!(given(&reader, &node, &[other]).await, [false]);
        node.node.put_blocks(shown.session(), vec![blocks[1].clone()]).unwrap();
        assert_eq!(given(&reader, &node, &cids).await, [true, true, true]);
        // A file that nobody brought leaves under none.
        let loose = node.node.put_file(b"loose", None).unwrap();
        assert_eq!(given(&reader, &node, &[loose.cid]).await, [false]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_keep_what_a_published_part_brought_whatever_others_name() {
    in_time(async {
        let (node, stranger) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let (mut shown, mut hidden) = (session("published", 1), SessionBuilder::new("internal"));
        let file = node.node.put_file(&large_file(), Some(shown.session())).unwrap();
        let late = node.node.put_file(b"after what is published", Some(shown.session())).unwrap();
        attach(&mut shown, file.cid, file.size_bytes);
        let account = shown.owner.clone();
        shown.reference(&account, 2, Shown::Publishes);
        attach(&mut shown, late.cid, late.size_bytes);
        attach(&mut hidden, file.cid, file.size_bytes);
        node.take(&shown);
        node.take(&hidden);
        stranger.meet("node", &node).await;
        let mut cids: Vec<Cid> = blocks_of(&node, file.cid).iter().map(Blob::cid).collect();
        assert_eq!(given(&stranger, &node, &cids).await, vec![true; cids.len()]);
        cids = vec![cids[1], late.cid];
        assert_eq!(
            given(&stranger, &node, &cids).await,
            [false, false],
            "a part without its file; a newer file"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_an_entry_are_pulled_from_its_sender_before_it_is_ordered() {
    in_time(async {
        let (holder, desktop) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let own = holder.node.principal();
        let mut builder = SessionBuilder::with_genesis("with files", |genesis| genesis.holder = Some(own));
        for node in [&holder, &desktop] {
            node.take(&builder);
            node.hold(&[holder.grant(Role::Writer), desktop.grant(Role::Agent)]);
        }
        desktop.meet("holder", &holder).await;
        let owner = builder.owner.clone();
        let send = async |cid: Cid, builder: &mut SessionBuilder| {
            let before = builder.clone();
            let attachment = Attachment { cid, size: 1, media_type: "text/plain".to_owned(), name: None };
            let words = UserWords { attachments: vec![attachment], ..UserWords::default() };
            builder.append(
                &owner,
                Body::UserMessage(UserMessage::default()),
                Some(Words::UserMessage(words)),
            );
            let built = builder.head();
            let append = SignedAppend {
                session: builder.session(),
                entry: Arc::clone(built.entry.bytes()),
                payload: built.payload.clone(),
                grants: Vec::new(),
                dry_run: false,
            };
            let answer = desktop.network.forward_append(&append).await;
            if answer.is_err() {
                *builder = before;
            }
            answer
                .map(|_| ())
                .map_err(|problem| (problem.code(), problem.detail().replace(&cid.to_string(), "CID")))
        };
        let session = builder.session();
        let other = SessionBuilder::new("another one").session();
        // Nobody has it; the holder has it for another session; the sender has it for another session.
        let nobodys = Blob::of(throughline_protocol::id::Codec::Raw, &b"nobody's"[..]).cid();
        let there = holder.node.put_file(b"of another session", Some(other)).unwrap().cid;
        let elsewhere = desktop.node.put_file(b"for another session", Some(other)).unwrap().cid;
        let mut refused = Vec::new();
        for cid in [nobodys, there, elsewhere] {
            refused.push(send(cid, &mut builder).await.unwrap_err());
        }
        assert_eq!(refused[0].0, Code::InputNotFound);
        assert!(refused.iter().all(|answer| *answer == refused[0]), "{refused:?}");
        assert_eq!(holder.row(session).unwrap().tip.seq.get(), 0);

        let file = desktop.node.put_file(&large_file(), Some(session)).unwrap();
        send(file.cid, &mut builder).await.unwrap();
        assert_eq!(holder.row(session).unwrap().tip.seq.get(), 1);
        assert!(holder.node.has_file(Some(session), file.cid).unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_of_the_askers_own_tells_no_held_session_from_an_absent_one() {
    in_time(async {
        let (node, asker) = (TestNode::stranger(TCP).await, TestNode::stranger(TCP).await);
        let held = session("held here", 2);
        node.take(&held);
        asker.meet("node", &node).await;
        let own = testing::key("nobody's account");
        let grants = [(node.node.principal(), Role::Writer), (asker.node.principal(), Role::Agent)]
            .map(|(delegate, role)| Arc::clone(testing::capability(&own, delegate, role, None).bytes()));
        let mut answers = Vec::new();
        for session in [held.session(), SessionBuilder::new("absent").session()] {
            let request = HandoffRequest {
                credentials: Credentials { auth: None, grants: grants.to_vec() },
                move_id: MoveId::from_bytes([7; 16]),
                session,
                step: HandoffStep::Status,
            };
            answers.push(asker.network.request_handoff(node.node.principal(), request).await.unwrap());
        }
        assert_eq!(answers[0], answers[1]);
    })
    .await;
}

/// A message that is signed again on a new head, because its answer was lost, was in order already: the answer names the entry that it
/// became, also once others have said more, as on the holder's own machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_sent_again_is_answered_with_the_entry_that_it_became() {
    in_time(async {
        let (holder, desktop) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let own = holder.node.principal();
        let mut builder = SessionBuilder::with_genesis("sent again", |genesis| genesis.holder = Some(own));
        let owner = builder.owner.clone();
        for node in [&holder, &desktop] {
            node.take(&builder);
            node.hold(&[holder.grant(Role::Writer), desktop.grant(Role::Agent)]);
        }
        desktop.meet("holder", &holder).await;
        let send = async |builder: &SessionBuilder| {
            let built = builder.head();
            let append = SignedAppend {
                session: builder.session(),
                entry: Arc::clone(built.entry.bytes()),
                payload: built.payload.clone(),
                grants: Vec::new(),
                dry_run: false,
            };
            desktop.network.forward_append(&append).await.unwrap().expect("the holder orders it").answer
        };
        let say = |builder: &mut SessionBuilder| {
            let paragraph = Block::paragraph("b1", "once");
            let client_message_id = Some("m-1".to_owned());
            let words = UserWords { body: vec![paragraph], client_message_id, ..UserWords::default() };
            builder.append(&owner, Body::UserMessage(UserMessage::default()), Some(Words::UserMessage(words)))
        };
        let first = say(&mut builder);
        let accepted = send(&builder).await;
        let expected = |replayed: bool| {
            json!({
                "v": 1, "kind": "append", "session": builder.session().to_string(),
                "entries": [{"cid": first.to_string(), "seq": 1, "type": "SessionUserMessage"}],
                "head": {"cid": first.to_string(), "seq": 1}, "epoch": 0, "replayed": replayed, "durable": true,
                "holder": own.to_string(),
            })
        };
        let (once, twice) = (expected(false), expected(true));
        assert_eq!(accepted, once);
        builder.user(&owner, "and something else");
        assert_eq!(send(&builder).await["head"]["seq"], 2);
        assert_ne!(say(&mut builder), first);
        assert_eq!(send(&builder).await, twice);
        assert_eq!(holder.row(builder.session()).unwrap().tip.seq.get(), 2);
    })
    .await;
}

const HOURS_MS: u64 = 3 * 60 * 60 * 1000;

fn hours_ahead() -> UnixMillis {
    UnixMillis::new(now().get() + HOURS_MS).unwrap()
}

/// How the clock of a peer stands to this node's, as `status` shows it.
async fn clock_of(node: &TestNode, peer: &TestNode) -> Option<Apart> {
    let peers = node.network.peers().await;
    peers.iter().find(|view| view.peer == peer.network.peer_principal()).and_then(|view| view.apart)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_whose_clock_is_wrong_is_told_so_and_learns_nothing_else() {
    in_time(async {
        let holder = TestNode::start(TCP).await;
        let (late, stranger) =
            (TestNode::with_clock(TCP, Some(owner()), hours_ahead).await, TestNode::stranger(TCP).await);
        let device = late.grant(Role::Agent);
        holder.hold(std::slice::from_ref(&device));
        late.hold(&[device]);
        let (held, mut open) = (session("held", 3), public("open", 3));
        let account = open.owner.clone();
        open.reference(&account, 3, Shown::Publishes);
        holder.take(&held);
        holder.take(&open);
        let absent = session("absent", 3);
        late.meet("holder", &holder).await;
        stranger.meet("holder", &holder).await;

        // Absent and private are one answer, as for a stranger: another one, with the time that the holder's clock shows.
        for builder in [&held, &absent] {
            let fault = ask(&late, &holder, whole(builder)).await.unwrap_err();
            assert_eq!(fault.reject.code, Code::PeerProof, "{fault}");
            assert!(fault.apart.is_some());
            assert_eq!(
                ask(&stranger, &holder, whole(builder)).await.unwrap_err().reject.code,
                Code::NotFoundYet
            );
            expect_clock(&append_as(&late, &holder, builder).await);
        }
        // What anybody may have comes all the same.
        assert_eq!(ask(&late, &holder, whole(&open)).await, ask(&stranger, &holder, whole(&open)).await);

        // Both sides show it, and whoever asks is told what it is and what helps.
        let seen = clock_of(&holder, &late).await.unwrap();
        assert!(seen.is_ahead() && seen.ms().abs_diff(HOURS_MS) < 120_000, "{seen}");
        let seen = clock_of(&late, &holder).await.unwrap();
        assert!(!seen.is_ahead() && seen.ms().abs_diff(HOURS_MS) < 120_000, "{seen}");
        let problem = late.bring(held.session(), &["holder".to_owned()]).await.unwrap_err();
        assert_eq!(
            (problem.code(), problem.fact("peer")),
            (Code::PeerProof, Some(&json!("holder"))),
            "{problem}"
        );
        assert!(
            problem.detail().contains("2 h 59 min behind") || problem.detail().contains("3 h 0 min behind")
        );
        assert_eq!(clock_of(&holder, &stranger).await, None);
        assert!(late.bring(open.session(), &["holder".to_owned()]).await.is_ok());
    })
    .await;
}

fn expect_clock(answer: &AppendAnswer) {
    let AppendAnswer::Error(error) = answer else { panic!("{answer:?}") };
    assert_eq!(error.code(), &ErrorCode::Known(Code::PeerProof));
    assert!(error.clock().is_some());
}

/// What a stranger is told takes the same work whether a private session is here or not: nothing of its owner is loaded.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_told_before_an_owners_controls_are_loaded() {
    in_time(async {
        let (holder, stranger) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let (private, absent) = (session("private", 2), session("absent", 2));
        holder.take(&private);
        let (reader, shared) = (holder.node.reader().unwrap(), &holder.network.shared);
        let key = stranger.network.peer_principal();
        for principal in [None, Some(stranger.node.principal())] {
            let peer = crate::net::peer_of(&key).unwrap();
            let asker = Asker { peer, peer_key: key, principal, grants: Vec::new(), apart: None };
            let mut gate = Gate::new(&reader, &asker, &shared.targets, &shared.classes);
            for builder in [&private, &absent] {
                assert!(gate.head(builder.session()).unwrap().is_none());
                assert!(gate.disclosed(owner()).unwrap().is_empty());
                assert_eq!(gate.party_to(owner()).unwrap(), Standing::Stranger);
            }
            assert!(gate.owners.is_empty(), "{principal:?}");
        }
    })
    .await;
}
