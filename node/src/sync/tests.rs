//! Nodes with nodes, over loopback.
#![allow(clippy::large_futures, reason = "a test runs once")]

use throughline_protocol::block::Block;
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Body, Class, Note, Origin, UserMessage};
use throughline_protocol::id::{Cid, Codec, SessionId, UnixMillis};
use throughline_protocol::payload::{Attachment, UserWords, Words};
use throughline_protocol::testing::{self, Reach as Shown, SessionBuilder};
use throughline_protocol::verify::{Inventory, LinkCounts};
use throughline_protocol::wire::chain::{ChainAsk, EntryAt, Payloads, RangeAsk};
use throughline_store::PutBlock;

use super::testbench::*;
use super::*;
use crate::core::PayloadUse;

fn inventory(of: &TestNode, session: SessionId) -> Inventory {
    of.node.inventory(session, &mut |_| ()).unwrap()
}

async fn fetch_over(listen: &str, road: &str) {
    let (a, b) = (TestNode::start(listen).await, TestNode::start(listen).await);
    let builder = session(road, 70);
    a.take(&builder);
    a.hold(&[b.grant(Role::Reader)]);
    let fetched = b.bring(builder.session(), &[a.ticket().await]).await.unwrap();
    assert_eq!(fetched.told.cid, builder.head().entry.cid());
    let row = b.row(builder.session()).unwrap();
    assert_eq!((row.tip.cid, row.summary.verdict.as_str()), (fetched.told.cid, "valid"));
    let transfer = &fetched.transfer;
    assert_eq!(transfer.from.len(), 1);
    assert_eq!((transfer.from[0].road, transfer.from[0].entries), (road, 71));
    assert_eq!((transfer.round_trips, transfer.resumed_from), (2, None));
    assert_eq!(fetched.freshness.peers, Count { asked: 1, answered: 1, agree: 1 });
    assert!(!inventory(&b, builder.session()).is_lacking());
    let reader = b.node.reader().unwrap();
    for built in builder.entries() {
        let payload = built.entry.value().payload.unwrap().cid;
        let held = reader.payload(payload).unwrap();
        assert!(matches!(held, throughline_store::PayloadState::Present(_)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_fetches_a_session_over_tcp() {
    in_time(fetch_over(TCP, "chain-sync/tcp")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_fetches_a_session_over_quic() {
    in_time(fetch_over(QUIC, "chain-sync/quic")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_goes_on_where_the_last_one_ended() {
    in_time(async {
        let (a, b) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        // It follows nothing, so only what is asked for here is fetched.
        let c = TestNode::stranger(TCP).await;
        let builder = session("resumed", 40);
        a.take(&builder.at(15));
        b.take(&builder);
        for node in [&a, &b] {
            node.hold(&[c.grant(Role::Reader)]);
        }
        c.bring(builder.session(), &[a.ticket().await]).await.unwrap();
        let fetched = c.bring(builder.session(), &[b.ticket().await]).await.unwrap();
        assert_eq!((fetched.transfer.resumed_from, fetched.transfer.from[0].entries), (Some(15), 25));
        assert_eq!(c.row(builder.session()).unwrap().tip.cid, builder.head().entry.cid());
        let again = c.bring(builder.session(), &[b.ticket().await]).await.unwrap();
        assert_eq!((again.transfer.resumed_from, again.transfer.from[0].entries), (Some(40), 0));
    })
    .await;
}

/// What a fetch tells of a session is what reading all of it back from the store tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_tells_what_reading_it_back_would() {
    in_time(async {
        let a = TestNode::start(TCP).await;
        let plain = session("told plain", 70);
        let mut anchored = session("told anchored", 9);
        let (account, device) = (anchored.owner.clone(), anchored.device.clone());
        anchored.reference(&account, 6, Shown::Publishes);
        anchored.reference(&device, 8, Shown::Anchors);
        for builder in [plain, anchored] {
            a.take(&builder);
            let c = TestNode::stranger(TCP).await;
            a.hold(&[c.grant(Role::Reader)]);
            let from = [a.ticket().await];
            let cold = c.bring(builder.session(), &from).await.unwrap();
            let told = Some(cold.told.cid);
            let verified = c.node.verify(builder.session(), PayloadUse::Present, told).unwrap();
            let reviewed = c.node.review(builder.session(), PayloadUse::Present, told).unwrap();
            assert_eq!((cold.mode, cold.report.as_ref()), (Use::Adopt, Some(&verified)));
            assert_eq!(reviewed, verified);
            let again = c.bring(builder.session(), &from).await.unwrap();
            assert_eq!(again.report, None, "only a cold fetch saw all of it");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn how_far_a_fetch_is_ends_with_everything() {
    in_time(async {
        let (a, c) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let builder = session("counted", 300);
        a.take(&builder.at(100));
        a.hold(&[c.grant(Role::Reader)]);
        let from = [a.ticket().await];
        for (mode, entries) in [(Use::Adopt, 101), (Use::Audit, 101), (Use::Adopt, 200)] {
            if entries == 200 {
                a.take(&builder);
            }
            let tally = Tally::new();
            let asked = request(builder.session(), &from, mode);
            let fetched = c.network.fetch_counted(asked, Arc::clone(&tally)).await.unwrap();
            let now = tally.now();
            assert_eq!((now.entries, now.entries_total), (entries, Some(entries)), "{mode:?}");
            assert_eq!(fetched.transfer.from[0].entries, entries);
            assert!(now.bytes > 0 && now.bytes <= fetched.transfer.bytes, "{now:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_session_and_an_absent_one_answer_alike() {
    in_time(async {
        let (a, stranger) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let (private, absent) = (session("private", 5), SessionBuilder::new("absent").session());
        a.take(&private);
        let ticket = a.ticket().await;
        let mut answers = Vec::new();
        for session in [private.session(), absent] {
            for mode in [Use::Adopt, Use::Audit] {
                let problem =
                    stranger.network.fetch(request(session, std::slice::from_ref(&ticket), mode)).await;
                let problem = problem.unwrap_err();
                assert_eq!(problem.code(), Code::NotFoundYet);
                answers.push(problem.to_json().to_string().replace(&session.to_string(), "SESSION"));
            }
        }
        answers.dedup();
        assert_eq!(answers.len(), 1, "{answers:?}");

        // Below the fetch, for every request that names a session or a block of it, frame by frame.
        let peer = stranger.network.shared.connect(&a.network.peer_principal().to_string()).await.unwrap();
        let head = &private.head().entry;
        let asks = |session: SessionId| {
            let want = EntryAt { cid: head.cid(), seq: head.value().seq() };
            let payload = head.value().payload.unwrap().cid.cid();
            [
                ChainAsk::Heads { owners: Vec::new(), sessions: vec![session] },
                ChainAsk::Range(RangeAsk { session, want, have: Vec::new(), payloads: Payloads::With }),
                ChainAsk::Control { owner: owner(), have: Vec::new() },
                ChainAsk::Blobs { cids: vec![session.genesis().cid(), head.cid().cid(), payload] },
            ]
        };
        for (private, absent) in asks(private.session()).into_iter().zip(asks(absent)) {
            let hidden = frames(&stranger, peer, private).await;
            let nothing = frames(&stranger, peer, absent).await;
            let anonymous =
                |frames: &str| frames.chars().filter(|c| !c.is_ascii_hexdigit()).collect::<String>();
            if hidden.contains("Blob") {
                assert!(!hidden.contains("bytes: Some"), "{hidden}");
            } else {
                assert_eq!(anonymous(&hidden), anonymous(&nothing));
            }
        }
    })
    .await;
}

/// What a raw request is answered with.
async fn frames(asker: &TestNode, peer: PeerId, ask: ChainAsk) -> String {
    let shared = &asker.network.shared;
    let credentials = shared.credentials(peer, None, None).await.unwrap();
    let mut line = shared.chain(peer, &credentials, ask).await.unwrap();
    let mut told = Vec::new();
    loop {
        match line.next().await {
            Ok(Some(frame)) => told.push(format!("{frame:?}")),
            Ok(None) => return format!("{told:?} end"),
            Err(fault) => return format!("{told:?} {fault}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_ref_shows_its_head_and_what_is_below() {
    in_time(async {
        let (a, stranger) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        let mut builder = session("published", 9);
        let (account, device) = (builder.owner.clone(), builder.device.clone());
        builder.reference(&account, 6, Shown::Publishes);
        builder.reference(&device, 8, Shown::Anchors);
        a.take(&builder);
        let ticket = [a.ticket().await];
        let audited = stranger.network.fetch(request(builder.session(), &ticket, Use::Audit)).await.unwrap();
        assert_eq!(audited.told.cid, builder.entries()[6].entry.cid());
        assert_eq!(audited.told_by, Some(owner()));
        let report = audited.report.unwrap();
        assert_eq!((report.verdict.word(), report.counts.entries), ("valid", 7));
        assert_eq!(report.checks.head.word(), "pass");
        // The private anchor above it does not even show that there is more.
        assert_eq!(report.counts.refs, 1);
        assert!(stranger.row(builder.session()).is_none());

        let peer = stranger.network.shared.connect(&a.network.peer_principal().to_string()).await.unwrap();
        let head = &builder.head().entry;
        let ask = ChainAsk::Range(RangeAsk {
            session: builder.session(),
            want: EntryAt { cid: head.cid(), seq: head.value().seq() },
            have: Vec::new(),
            payloads: Payloads::Without,
        });
        assert!(frames(&stranger, peer, ask).await.contains("E_NOT_FOUND_YET"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn confidential_sessions_are_for_the_owners_nodes_and_the_target_of_a_handoff() {
    in_time(async {
        let (a, b, c) = (TestNode::start(TCP).await, TestNode::start(TCP).await, TestNode::start(TCP).await);
        let mut builder = session("confidential", 3);
        let device = builder.device.clone();
        builder.note(&device, Note::Class(Class::Confidential));
        builder.reference(&device, 4, Shown::Publishes);
        a.take(&builder);
        a.hold(&[b.grant(Role::Writer), c.grant(Role::Agent)]);
        let (session, from) = (builder.session(), [a.ticket().await]);
        assert_eq!(b.bring(session, &from).await.unwrap_err().code(), Code::NotFoundYet);
        c.bring(session, &from).await.unwrap();
        a.network.open_to(session, b.node.principal());
        b.bring(session, &from).await.unwrap();
        a.network.close_to(session, b.node.principal());
        assert_eq!(b.bring(session, &from).await.unwrap_err().code(), Code::NotFoundYet);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_reader_is_a_stranger() {
    in_time(async {
        let (a, b) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let mut builder = session("revoked", 3);
        a.take(&builder);
        let grant = b.grant(Role::Reader);
        a.hold(std::slice::from_ref(&grant));
        a.hold(&[builder.tombstone(&grant, Vec::new())]);
        // It still has the grant, and shows it.
        b.hold(&[grant]);
        let from = [a.ticket().await];
        assert_eq!(b.bring(builder.session(), &from).await.unwrap_err().code(), Code::NotFoundYet);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_asks_everybody_finds_the_fork_and_keeps_nothing() {
    in_time(async {
        let (a, b, auditor) =
            (TestNode::start(TCP).await, TestNode::start(TCP).await, TestNode::start(TCP).await);
        let common = session("told twice", 6);
        let (mut left, mut right) = (common.clone(), common.branch("right"));
        let server = left.server1.clone();
        left.response(&server, "delete the staging bucket", &[]);
        right.response(&server, "list the staging bucket", &[]);
        right.response(&server, "and its parents", &[]);
        a.take(&left);
        b.take(&right);
        for node in [&a, &b] {
            node.hold(&[auditor.grant(Role::Reader)]);
        }
        let mut asked = request(left.session(), &[a.ticket().await, b.ticket().await], Use::Audit);
        asked.peers_min = 2;
        let audited = auditor.network.fetch(asked).await.unwrap();
        assert_eq!(audited.freshness.peers, Count { asked: 2, answered: 2, agree: 1 });
        let report = audited.report.unwrap();
        assert_eq!(report.verdict.word(), "forked");
        assert_eq!(report.fork.unwrap().at.seq.get(), 6);
        assert!(auditor.row(left.session()).is_none());
        assert_eq!(auditor.node.reader().unwrap().stats().unwrap().entries, 0);
        let mut asked = request(left.session(), &[a.ticket().await], Use::Audit);
        asked.peers_min = 2;
        assert_eq!(auditor.network.fetch(asked).await.unwrap_err().code(), Code::Unreachable);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_stand_for_nobody_and_peers_that_are_off_are_told_apart() {
    in_time(async {
        let node = TestNode::start(TCP).await;
        let session = SessionBuilder::new("nowhere").session();
        let unknown = node.bring(session, &["nobody".to_owned()]).await.unwrap_err();
        assert_eq!(unknown.code(), Code::PeerUnknown);
        let gone = {
            let other = TestNode::start(TCP).await;
            let ticket = other.ticket().await;
            other.network.stopped().await;
            ticket
        };
        assert_eq!(node.bring(session, &[gone]).await.unwrap_err().code(), Code::Unreachable);
        assert_eq!(node.bring(session, &[]).await.unwrap_err().code(), Code::NotFoundYet);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_come_with_their_parts_and_only_to_readers() {
    in_time(async {
        let (a, b) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let stranger = TestNode::stranger(TCP).await;
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut builder = SessionBuilder::new("with a file");
        let file = a.node.put_file(&bytes, Some(builder.session())).unwrap();
        assert!(file.blocks > 10);
        let server = builder.server1.clone();
        let attachment = Attachment {
            cid: file.cid,
            size: file.size_bytes,
            media_type: "application/octet-stream".to_owned(),
            name: None,
        };
        let words = UserWords { attachments: vec![attachment], ..UserWords::default() };
        let message = UserMessage { origin: Some(Origin::Trigger), ..UserMessage::default() };
        builder.append(&server, Body::UserMessage(message), Some(Words::UserMessage(words)));
        a.take(&builder);
        a.hold(&[b.grant(Role::Reader)]);
        let from = [a.ticket().await];

        let mut asked = request(builder.session(), &from, Use::Adopt);
        b.network.fetch(asked.clone()).await.unwrap();
        assert!(b.node.reader().unwrap().block(&file.cid).unwrap().is_none(), "nobody asked for files");
        let lacks = inventory(&b, builder.session());
        assert_eq!((lacks.files.missing, lacks.lacking), (1, vec![file.cid]));
        asked.payloads = Wanted::All;
        b.network.fetch(asked.clone()).await.unwrap();
        let whole = LinkCounts { here: 1, ..LinkCounts::default() };
        assert_eq!(inventory(&b, builder.session()).files, whole);
        let mut held = crate::core::Outgoing::open(b.node.reader().unwrap(), file.cid).unwrap().unwrap();
        let mut read = Vec::new();
        while let Some(part) = held.piece().unwrap() {
            read.extend(part);
        }
        assert!(read == bytes, "the file is the same");

        asked.mode = Use::Audit;
        let audited = b.network.fetch(asked).await.unwrap().report.unwrap();
        assert_eq!((audited.inventory.files, audited.problems), (whole, 0));
        stranger.meet("a", &a).await;
        let peer = stranger.network.shared.connect("a").await.unwrap();
        let told = frames(&stranger, peer, ChainAsk::Blobs { cids: vec![file.cid] }).await;
        assert!(told.contains("bytes: None"), "{told}");
    })
    .await;
}

/// A file of many blocks of which one is gone, and one block that nobody ever had: told as missing by every reader, and fetched
/// later from somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_first_peer_lacks_comes_later_from_anyone() {
    in_time(async {
        let (a, b) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let c = TestNode::stranger(TCP).await;
        let mut builder = SessionBuilder::new("with files");
        let server = builder.server1.clone();
        let bytes: Vec<u8> = (0..2_000_000_u32).map(|at| u8::try_from(at % 241).unwrap()).collect();
        let file = b.node.put_file(&bytes, Some(builder.session())).unwrap();
        let nobodys = Cid::sha256(Codec::Raw, b"a file that nobody has");
        let attachment = |cid, size| Attachment {
            cid,
            size,
            media_type: "application/octet-stream".to_owned(),
            name: None,
        };
        let words = UserWords {
            attachments: vec![attachment(file.cid, file.size_bytes), attachment(nobodys, 22)],
            ..UserWords::default()
        };
        let message = UserMessage { origin: Some(Origin::Trigger), ..UserMessage::default() };
        builder.append(&server, Body::UserMessage(message), Some(Words::UserMessage(words)));
        // A has the root of the file and the first block below it.
        let root = b.node.reader().unwrap().block(&file.cid).unwrap().unwrap();
        let first = throughline_protocol::unixfs::links(&root).unwrap()[0];
        for cid in [file.cid, first] {
            let held = b.node.reader().unwrap().block(&cid).unwrap().unwrap();
            let until = UnixMillis::new(u64::MAX >> 16).unwrap();
            let block = Block::check(cid, held).unwrap();
            a.node.store().run(PutBlock::bytes(block, crate::core::now(), until)).unwrap();
        }
        for node in [&a, &b] {
            node.take(&builder);
            node.hold(&[c.grant(Role::Reader)]);
        }
        let session = builder.session();
        let asked = |from: &str, mode| FetchRequest {
            payloads: Wanted::All,
            ..request(session, &[from.to_owned()], mode)
        };
        let (at_a, at_b) = (a.ticket().await, b.ticket().await);
        let both = LinkCounts { missing: 2, ..LinkCounts::default() };
        let audited = c.network.fetch(asked(&at_a, Use::Audit)).await.unwrap().report.unwrap();
        assert_eq!(audited.inventory.files, both);
        let answer = c.network.fetch_answer(asked(&at_a, Use::Adopt), Tally::new()).await.unwrap();
        let files = serde_json::json!({"linked": 2, "here": 0, "missing": 2, "withdrawn": 0, "asked": true});
        assert_eq!(answer["files"], files, "{answer:#}");
        assert_eq!(inventory(&c, session).files, both);
        assert_eq!(c.node.verify(session, PayloadUse::Present, None).unwrap().inventory.files, both);

        // It is held whole by then; words and files are asked for all the same.
        let again = c.network.fetch(asked(&at_b, Use::Adopt)).await.unwrap();
        let one = LinkCounts { here: 1, missing: 1, withdrawn: 0 };
        assert_eq!((inventory(&c, session).files, inventory(&c, session).lacking), (one, vec![nobodys]));
        assert!(again.transfer.bytes > 1_500_000, "{:?}", again.transfer);
        let audited = c.network.fetch(asked(&at_b, Use::Audit)).await.unwrap().report.unwrap();
        assert_eq!(audited.inventory.files, one);
        // What came is not asked for again.
        let third = c.network.fetch(asked(&at_b, Use::Adopt)).await.unwrap();
        assert!(third.transfer.bytes < 10_000, "{:?}", third.transfer);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_book_resolves_and_survives() {
    in_time(async {
        let (a, b) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let known = peers::KnownPeer::of_ticket("server-b", &b.ticket().await).unwrap();
        assert_eq!(peers::add(&a.node, &known).unwrap(), peers::Added::Now);
        assert_eq!(peers::add(&a.node, &known).unwrap(), peers::Added::Before);
        let mut other = known.clone();
        other.principal = testing::key("other").principal();
        let taken = peers::add(&a.node, &other).unwrap_err();
        assert_eq!(taken.code(), Code::Ambiguous);
        assert!(taken.detail().contains(&known.principal.to_string()), "whose it is, in full: {taken}");
        assert!(Code::Ambiguous.title().contains("name") && Code::Ambiguous.advice().contains("peer remove"));
        let reader = a.node.reader().unwrap();
        assert_eq!(peers::resolve(&reader, "server-b").unwrap(), known);
        assert_eq!(peers::resolve(&reader, &b.node.principal().to_string()).unwrap(), known);
        a.network.peers_changed();
        a.until_met(|views| views.iter().any(|view| view.connected && view.alias.is_some())).await;
        assert_eq!(peers::remove(&a.node, "server-b").unwrap(), known);
        let reader = a.node.reader().unwrap();
        assert_eq!(peers::resolve(&reader, "server-b").unwrap_err().code(), Code::PeerUnknown);
    })
    .await;
}
