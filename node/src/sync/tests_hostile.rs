//! Servers that lie. Whatever they send, nothing that does not verify is stored, the lie has a code, and the liar is charged.
#![allow(clippy::large_futures, reason = "a test runs once")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use throughline_protocol::control::Role;
use throughline_protocol::entry::Note;
use throughline_protocol::sync::engine::{Standing, Weight};
use throughline_protocol::testing::{self, SessionBuilder};
use throughline_protocol::ticket::{PeerTicket, Ticket};
use throughline_protocol::wire::chain::{ChainAnswer, EntryItem};

use super::testbench::*;
use super::*;

/// Frames before the entries: path and control blobs.
const HEAD_FRAMES: usize = 2;
const ENTRIES: usize = 40;
/// How long somebody who says nothing is waited for: as long as a slow machine may take to connect and to hear a head.
const SILENCE: Duration = Duration::from_secs(10);

struct Outcome {
    code: Code,
    /// Entries that were stored.
    stored: u64,
    charges: u64,
}

/// What a node does that asks the liar alone, then the liar and an honest server.
async fn ask_liar(label: &str, then: Then, change: fn(&mut Vec<ChainAnswer>)) -> Outcome {
    let builder = session(label, ENTRIES);
    let lie: Lie = Arc::new(move |mut frames| {
        change(&mut frames);
        Script { frames, then }
    });
    let (liar, honest) = (Liar::start(&builder, lie).await, TestNode::start(TCP).await);
    let asker = TestNode::start(TCP).await;
    honest.take(&builder);
    honest.hold(&[asker.grant(Role::Reader)]);
    // Only who falls silent is waited for to the end.
    let idle = if then == Then::Silence { SILENCE } else { SOON };
    let asked =
        |from: &[String]| FetchRequest { idle: Some(idle), ..request(builder.session(), from, Use::Adopt) };
    let alone = asked(&[liar.ticket().await]);
    let problem = asker.network.fetch(alone).await.unwrap_err();
    let stored = asker.node.reader().unwrap().stats().unwrap().entries;
    let charges = charges_of(&asker).await;
    assert!(problem.fact("peer").is_some(), "the peer is named: {problem}");
    if let Some(row) = asker.row(builder.session()) {
        let at = usize::try_from(row.tip.seq.get()).unwrap();
        assert_eq!(row.tip.cid, builder.entries()[at].entry.cid(), "a verified prefix");
    }
    // With somebody honest beside it, the liar only costs time.
    let both = asked(&[liar.ticket().await, honest.ticket().await]);
    asker.network.fetch(both).await.unwrap();
    assert_eq!(asker.row(builder.session()).unwrap().tip.cid, builder.head().entry.cid());
    Outcome { code: problem.code(), stored, charges }
}

fn item(frames: &mut [ChainAnswer], seq: usize) -> &mut EntryItem {
    let ChainAnswer::Entries(items) = &mut frames[HEAD_FRAMES + seq] else { panic!("expected entries") };
    &mut items[0]
}

fn flip(bytes: &mut Arc<[u8]>, at: usize) {
    let mut changed = bytes.to_vec();
    changed[at] ^= 1;
    *bytes = changed.into();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_garbled_signature_is_refused_where_it_stands() {
    in_time(async {
        let outcome = ask_liar("garbled", Then::End, |frames| {
            let entry = &mut item(frames, 20).entry;
            let decoded = throughline_protocol::block::Decoded::<throughline_protocol::entry::Entry>::decode(
                Arc::clone(entry),
            );
            let offset = decoded.unwrap().signature().offset;
            flip(entry, offset);
        })
        .await;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::Sig, 20, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_payload_does_not_hash_to_its_name() {
    in_time(async {
        let outcome = ask_liar("payload", Then::End, |frames| {
            let payload = item(frames, 11).payload.as_mut().unwrap();
            flip(payload, 30);
        })
        .await;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::CidMismatch, 11, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_out_of_order_are_not_what_was_asked_for() {
    in_time(async {
        let outcome = ask_liar("swapped", Then::End, |frames| {
            frames.swap(HEAD_FRAMES + 8, HEAD_FRAMES + 9);
        })
        .await;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::SyncUnsolicited, 8, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_frame_is_no_sign_of_life() {
    in_time(async {
        let outcome = ask_liar("empty", Then::End, |frames| {
            frames.insert(HEAD_FRAMES + 8, ChainAnswer::Entries(Vec::new()));
        })
        .await;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::SyncUnsolicited, 8, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withheld_middle_is_noticed_at_the_gap() {
    in_time(async {
        let outcome = ask_liar("withheld", Then::End, |frames| {
            frames.drain(HEAD_FRAMES + 10..HEAD_FRAMES + 30);
        })
        .await;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::SyncUnsolicited, 10, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_ends_early_or_never_is_not_waited_for() {
    in_time(async {
        let outcome = ask_liar("short", Then::End, |frames| frames.truncate(HEAD_FRAMES + 20)).await;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::SyncUnsolicited, 20, 1));
        let outcome = ask_liar("endless", Then::Repeat, |_| {}).await;
        let whole = u64::try_from(ENTRIES).unwrap() + 1;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::SyncUnsolicited, whole, 1));
        // Somebody who is only slow is left, not charged.
        let outcome = ask_liar("silent", Then::Silence, |frames| frames.truncate(HEAD_FRAMES + 5)).await;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::Timeout, 5, 0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_is_not_the_heads_lets_nothing_in() {
    in_time(async {
        let outcome = ask_liar("path", Then::End, |frames| {
            if let ChainAnswer::Path(path) = &mut frames[0] {
                path.remove(1);
            }
        })
        .await;
        assert_eq!((outcome.code, outcome.stored, outcome.charges), (Code::SyncUnsolicited, 0, 1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_without_authority_is_refused_by_the_rules() {
    in_time(async {
        // Signed well, chained well, by a key that the owner never granted anything.
        let mut builder = session("forged", 5);
        let forger = testing::Party {
            key: testing::key("forger"),
            capability: Some(testing::capability(
                &testing::key("forger"),
                testing::key("forger").principal(),
                Role::Writer,
                None,
            )),
        };
        let body = throughline_protocol::entry::Body::Note(Note::Close { reason: None });
        let (mut entry, payload) = builder.draft(&builder.server1.clone(), body, None);
        entry.signer = forger.key.principal();
        builder.push(&forger, entry, payload).unwrap();
        let liar = Liar::start(&builder, honestly()).await;
        let asker = TestNode::start(TCP).await;
        let problem = asker.bring(builder.session(), &[liar.ticket().await]).await.unwrap_err();
        assert_eq!(problem.code(), Code::CapMissing, "{problem}");
        assert_eq!(charges_of(&asker).await, 1);
        let row = asker.row(builder.session()).unwrap();
        assert_eq!((row.tip.seq.get(), row.summary.verdict.as_str()), (5, "valid"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_told_and_not_shown_is_only_a_claim() {
    in_time(async {
        let (told, real) = (session("claimed", 9), SessionBuilder::new("claimed"));
        assert_eq!(told.session(), real.session());
        let lie: Lie = Arc::new(|_| Script { frames: Vec::new(), then: Then::End });
        let liar = Liar::start(&told, lie).await;
        let (honest, asker) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        honest.take(&told.at(4));
        honest.hold(&[asker.grant(Role::Reader)]);
        let problem = asker.bring(told.session(), &[liar.ticket().await]).await.unwrap_err();
        assert_eq!(problem.code(), Code::SyncUnsolicited);
        assert!(asker.row(told.session()).is_none());
        // It hides nothing that others show, whoever is asked first.
        let both = [liar.ticket().await, honest.ticket().await];
        let fetched = asker.bring(told.session(), &both).await.unwrap();
        assert_eq!(fetched.told.cid, told.entries()[4].entry.cid());
        assert_eq!(asker.row(told.session()).unwrap().tip.seq.get(), 4);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stranger_claims_in_vain_is_looked_at_once() {
    in_time(async {
        let builder = session("in vain", 9);
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        // Without the grants nothing of it can be judged, whoever signed it.
        let lie: Lie = Arc::new(move |mut frames| {
            count.fetch_add(1, Ordering::SeqCst);
            frames[1] = ChainAnswer::Control(Vec::new());
            Script { frames, then: Then::End }
        });
        let (liar, desktop) = (Liar::start(&builder, lie).await, TestNode::start(TCP).await);
        desktop.hold(&[desktop.grant(Role::Agent)]);
        let ticket = liar.ticket().await;
        let Ticket::Peer(PeerTicket { peer, .. }) = ticket.parse().unwrap() else {
            panic!("a peer's ticket")
        };
        let shared = &desktop.network.shared;
        let (who, head) = ((peer, Standing::Stranger), builder.head().entry.cid());
        desktop.network.compare_with(&ticket).await.unwrap();
        while shared.asking.weigh(who, builder.session(), head) == Weight::Fetch {
            tokio::task::yield_now().await;
        }
        // Comparisons with one peer come one after the other: when the second has heard the head again, the first is over.
        for _ in 0..2 {
            let told_at = || shared.contacts.heads(peer).first().map(|(_, told)| told.at);
            let before = told_at();
            desktop.network.compare_with(&ticket).await.unwrap();
            while told_at() == before {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert!(desktop.row(builder.session()).is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_that_the_sender_leaves_out_is_heard_of_others() {
    in_time(async {
        let mut builder = session("left out", 6);
        let (owner, grant) = (builder.owner.clone(), builder.server1.capability.clone().unwrap());
        builder.reference(&owner, 4, testing::Reach::Anchors);
        let tombstone = builder.tombstone(&grant, Vec::new());
        let bytes = Arc::clone(tombstone.bytes());
        let lie: Lie = Arc::new(move |mut frames| {
            let ChainAnswer::Control(controls) = &mut frames[1] else { panic!("expected control blobs") };
            controls.retain(|control| *control != bytes);
            Script { frames, then: Then::End }
        });
        let (liar, honest) = (Liar::start(&builder, lie).await, TestNode::start(TCP).await);
        honest.take(&builder);
        let head = honest.row(builder.session()).unwrap().tip;
        assert_eq!(head.seq.get(), 4, "its chain ends at the anchor");
        let alone = [liar.ticket().await];
        let both = [liar.ticket().await, honest.ticket().await];
        for mode in [Use::Audit, Use::Adopt] {
            let asker = TestNode::start(TCP).await;
            honest.hold(&[asker.grant(Role::Reader)]);
            let verdict = async |from: &[String]| {
                let asked = request(builder.session(), from, mode);
                let fetched = asker.network.fetch(asked).await.unwrap();
                let answer = fetch::answer(&asker.node, &fetched, fetch::Wanted::Referenced).unwrap();
                (answer["verdict"].as_str().unwrap().to_owned(), answer["validThrough"]["seq"].as_u64())
            };
            // Nobody can know what only the liar could have told.
            if mode == Use::Audit {
                assert_eq!(verdict(&alone).await, ("valid".to_owned(), Some(6)));
            }
            assert_eq!(verdict(&both).await, ("revoked-tail".to_owned(), Some(4)), "{mode:?}");
        }
    })
    .await;
}

/// A session whose tombstone the liar leaves out, as it was before, with the tombstone, and the liar.
async fn with_a_tombstone_left_out(label: &str) -> (SessionBuilder, SessionBuilder, Liar) {
    let before = public(label, 6);
    let mut builder = before.clone();
    let (owner, grant) = (builder.owner.clone(), builder.server1.capability.clone().unwrap());
    builder.reference(&owner, 4, testing::Reach::Publishes);
    let bytes = Arc::clone(builder.tombstone(&grant, Vec::new()).bytes());
    let lie: Lie = Arc::new(move |mut frames| {
        let ChainAnswer::Control(controls) = &mut frames[1] else { panic!("expected control blobs") };
        controls.retain(|control| *control != bytes);
        Script { frames, then: Then::End }
    });
    let liar = Liar::start(&builder, lie).await;
    (before, builder, liar)
}

/// Verdict and the last valid seq of what these peers show.
async fn verdict(asker: &TestNode, request: FetchRequest) -> (String, Option<u64>) {
    let fetched = asker.network.fetch(request).await.unwrap();
    let answer = fetch::answer(&asker.node, &fetched, fetch::Wanted::Referenced).unwrap();
    (answer["verdict"].as_str().unwrap().to_owned(), answer["validThrough"]["seq"].as_u64())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_is_heard_of_others_where_the_session_is_held() {
    in_time(async {
        let (before, builder, liar) = with_a_tombstone_left_out("held before").await;
        let honest = TestNode::start(TCP).await;
        honest.take(&builder);
        let both = [liar.ticket().await, honest.ticket().await];
        // To a party its owner's control blobs are told by their digest, to a stranger nothing is.
        for (mode, role) in [
            (Use::Audit, Some(Role::Reader)),
            (Use::Adopt, Some(Role::Reader)),
            (Use::Audit, None),
            (Use::Adopt, None),
        ] {
            let asker = TestNode::start(TCP).await;
            let grants: Vec<_> = role.into_iter().map(|role| asker.grant(role)).collect();
            honest.hold(&grants);
            asker.take(&before);
            let heard = verdict(&asker, request(builder.session(), &both, mode)).await;
            assert_eq!(heard, ("revoked-tail".to_owned(), Some(4)), "{mode:?} by {role:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_may_know_of_a_tombstone_are_asked_at_once() {
    in_time(async {
        let (_, builder, liar) = with_a_tombstone_left_out("asked at once").await;
        // Each answers when the other was asked too: one after the other, neither would.
        let met = Arc::new(tokio::sync::Barrier::new(2));
        let lower = builder.at(5);
        let tells: Lie = Arc::new(|mut frames| {
            let ChainAnswer::Path(path) = &mut frames[0] else { panic!("expected a path") };
            path.truncate(1);
            frames.truncate(HEAD_FRAMES);
            Script { frames, then: Then::End }
        });
        let others = [
            Liar::start_after(&lower, Arc::clone(&tells), Some(Arc::clone(&met))).await,
            Liar::start_after(&lower, tells, Some(met)).await,
        ];
        let from = [liar.ticket().await, others[0].ticket().await, others[1].ticket().await];
        let asker = TestNode::start(TCP).await;
        // Whoever is waited for alone is waited for as long as the wire lets it.
        let idle = Some(Duration::from_secs(3_600));
        let asked = FetchRequest { idle, ..request(builder.session(), &from, Use::Adopt) };
        let fetched = asker.network.fetch(asked).await.unwrap();
        assert_eq!(asker.row(builder.session()).unwrap().summary.verdict, "revoked-tail");
        let answered = fetched.transfer.from.iter().filter(|from| from.bytes > 0);
        assert_eq!(answered.count(), from.len(), "{:?}", fetched.transfer.from);
    })
    .await;
}

/// Charges so far. Commands to the network are taken in order, so what was charged before this question is counted.
async fn charges_of(node: &TestNode) -> u64 {
    node.network.listen_addrs().await;
    node.network.counts().charges
}

fn honestly() -> Lie {
    Arc::new(|frames| Script { frames, then: Then::End })
}
