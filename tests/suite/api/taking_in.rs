//! What arrives from elsewhere: the short way and the judgement over everything end in the same place, whatever the order.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use throughline_node::core::{Arrived, Taken, Takeover};
use throughline_protocol::entry::Note;
use throughline_protocol::testing::{Built, Reach, SessionBuilder, key};

use super::home::{Home, checked, code, response};

/// A session of another node with some entries by its server.
fn session(label: &str, entries: usize) -> SessionBuilder {
    let mut builder = SessionBuilder::new(label);
    let server = builder.server1.clone();
    for at in 0..entries {
        builder.response(&server, &format!("{at}"), &[]);
    }
    builder
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_on_the_tip_and_all_at_once_are_the_same() {
    let builder = session("batches", 30);
    let (batched, whole) = (Home::bare().await, Home::bare().await);
    for batch in builder.entries().chunks(7) {
        let evaluated = batched.take_in(&builder, batch).unwrap();
        assert_eq!((evaluated.adopted, evaluated.taken()), (batch.len() as u64, Taken::Advanced));
    }
    whole.take_in(&builder, builder.entries()).unwrap();
    let session = builder.session().to_string();
    assert_eq!(batched.verdict(&session).await, "valid");
    let shown =
        |home: &Home| home.node.reader().unwrap().session(builder.session()).unwrap().unwrap().summary;
    assert_eq!(shown(&batched), shown(&whole));
    assert_eq!(shown(&whole).title.as_deref(), Some("Test batches"));
    // Once more, backwards and with what is known: nothing changes.
    let events = batched.node.reader().unwrap().newest_event().unwrap();
    let mut again: Vec<Built> = builder.entries().to_vec();
    again.reverse();
    let evaluated = batched.take_in(&builder, &again).unwrap();
    assert_eq!((evaluated.adopted, evaluated.kept_aside, evaluated.taken()), (0, 0, Taken::Unchanged));
    assert_eq!(batched.node.reader().unwrap().newest_event().unwrap(), events);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_session_that_is_not_allowed_is_stored() {
    let home = Home::bare().await;
    let builder = session("stranger", 3);
    let before = home.node.reader().unwrap().stats().unwrap();
    // Without the grants.
    let entries = builder.entries().iter().map(checked).collect();
    let evaluated = home.node.take_in(builder.session(), Arrived { entries, ..Arrived::default() }).unwrap();
    // The owner signed the genesis, so it stands alone; what cites a grant that is not held is refused.
    assert_eq!(evaluated.adopted, 1);
    let (count, reject) = evaluated.refused.unwrap();
    assert_eq!((count, reject.code.name()), (3, "E_INCOMPLETE"));
    // Without the genesis.
    let orphan = session("orphan", 3);
    let refused = home.take_in(&orphan, &orphan.entries()[1..]).unwrap_err();
    assert_eq!(refused.code().name(), "E_INCOMPLETE");
    // A genesis that nobody allowed.
    let forged = SessionBuilder::with_genesis("forged", |genesis| {
        genesis.agent = throughline_protocol::id::AgentIri::new(key("somebody").principal(), None);
    });
    let refused = home.take_in(&forged, forged.entries()).unwrap_err();
    assert_eq!(refused.code().name(), "E_CAP_SCOPE");
    let after = home.node.reader().unwrap().stats().unwrap();
    assert_eq!((after.sessions, after.entries, after.controls), (before.sessions + 1, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_of_others_do_not_come_in_with_a_session() {
    let home = Home::bare().await;
    let (builder, other) = (session("mine", 2), session("other", 2));
    let stranger = throughline_protocol::testing::capability(
        &key("stranger"),
        key("server1").principal(),
        throughline_protocol::control::Role::Writer,
        None,
    );
    let mut elsewhere = other.clone();
    let server = elsewhere.server1.clone();
    let reference = elsewhere.reference(&server, 1, Reach::Anchors);
    let mut controls = builder.controls().to_vec();
    let own = controls.len() as u64;
    controls.extend([stranger, reference]);
    let entries = builder.entries().iter().map(checked).collect();
    home.node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
    assert_eq!(home.node.reader().unwrap().stats().unwrap().controls, own);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_stops_the_session_and_is_kept() {
    let builder = session("fork", 4);
    let (mut left, mut right) = (builder.clone().branch("left"), builder.clone().branch("right"));
    let server = builder.server1.clone();
    left.response(&server, "left", &[]);
    right.response(&server, "right", &[]);
    let home = Home::bare().await;
    home.take_in(&left, left.entries()).unwrap();
    let evaluated = home.take_in(&right, &right.entries()[5..]).unwrap();
    assert_eq!((evaluated.verdict.as_str(), evaluated.adopted, evaluated.kept_aside), ("forked", 0, 1));
    let session = builder.session().to_string();
    assert_eq!(home.verdict(&session).await, "forked");
    let shown = home.get(&format!("/v1/sessions/{session}")).await.unwrap();
    assert_eq!(
        (&shown["head"]["seq"], &shown["tip"]["seq"], &shown["pending"]),
        (&json!(4), &json!(5), &json!(0))
    );
    let log = home.get(&format!("/v1/sessions/{session}/entries/5")).await.unwrap();
    assert_eq!(log["status"], "forked");
    // It survives the process, and one handoff ends it: the other branch stays as evidence.
    let home = home.reopened();
    assert_eq!(home.verdict(&session).await, "forked");
    let server2 = right.server2.clone();
    right.handoff(Some(&server2));
    let evaluated = home.take_in(&right, &right.entries()[6..]).unwrap();
    assert_eq!((evaluated.adopted, evaluated.left), (2, 1));
    assert_eq!(home.verdict(&session).await, "fenced-tail");
    let lost = left.head().entry.cid();
    let aside = home.get(&format!("/v1/sessions/{session}/entries/{lost}")).await.unwrap();
    assert_eq!(aside["status"], "fenced");
    // An entry of one session is not found in another.
    let other = self::session("elsewhere", 1);
    home.take_in(&other, other.entries()).unwrap();
    let path = format!("/v1/sessions/{}/entries/{lost}", other.session());
    assert_eq!(home.get(&path).await.unwrap_err().code().name(), "E_NOT_FOUND_YET");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_before_a_dispute_is_taken() {
    let builder = session("late", 2);
    let mut common = builder.clone();
    let server = builder.server1.clone();
    common.response(&server, "common", &[]);
    let (mut left, mut right) = (common.clone().branch("left"), common.clone().branch("right"));
    left.response(&server, "left", &[]);
    right.response(&server, "right", &[]);
    let home = Home::bare().await;
    home.take_in(&builder, builder.entries()).unwrap();
    // Both branches at once: nobody takes a side, and what both stand on is no dispute.
    let mut both: Vec<Built> = left.entries()[3..].to_vec();
    both.extend_from_slice(&right.entries()[4..]);
    let evaluated = home.take_in(&left, &both).unwrap();
    assert_eq!((evaluated.verdict.as_str(), evaluated.adopted, evaluated.kept_aside), ("forked", 1, 2));
    home.verdict(&builder.session().to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_to_this_node_gives_it_the_guard() {
    let home = Home::bare().await;
    let mut builder = session("mine now", 3);
    let own = std::sync::Arc::new(throughline_protocol::testing::Party {
        key: throughline_protocol::sign::SigningKey::from_seed(&home.node.key().seed()),
        capability: None,
    });
    let contributor = builder.contributor.clone();
    builder.handoff(Some(&own));
    builder.user(&contributor, "already waiting");
    home.grant(home.node.principal(), throughline_protocol::control::Role::Writer).await;
    // The handoff and an entry after it arrive in one batch.
    let evaluated = home.take_in(&builder, builder.entries()).unwrap();
    assert_eq!(evaluated.takeover, Takeover::Taken);
    let session = builder.session().to_string();
    assert_eq!(home.verdict(&session).await, "valid");
    home.append(&session, &builder.head().entry.cid().to_string(), "taken over").await;
    assert_eq!(home.verdict(&session).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_begun_for_this_node_is_its_own() {
    let home = Home::bare().await;
    let own = home.node.principal();
    home.grant(own, throughline_protocol::control::Role::Writer).await;
    let builder = SessionBuilder::with_genesis("begun", |genesis| genesis.holder = Some(own));
    let evaluated = home.take_in(&builder, builder.entries()).unwrap();
    assert_eq!(evaluated.takeover, Takeover::Taken);
    let session = builder.session().to_string();
    home.append(&session, &session, "first").await;
    assert_eq!(home.verdict(&session).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_this_key_signed_in_another_life_is_history() {
    // A node whose directory was lost: its key comes back, its guard does not.
    let home = Home::new().await;
    let (session, head) = home.session("before the loss").await;
    home.append(&session, &head, "signed before").await;
    let car = home.client.fetch(export(&format!("/v1/sessions/{session}/entries"))).await.unwrap();
    let home = home.without_store();
    let answer = home.send("/v1/car", "application/vnd.ipld.car", car.to_vec()).await.unwrap();
    assert_eq!((&answer["adopted"], &answer["verdict"]), (&json!(true), &json!("valid")), "{answer}");
    let base = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
    let body = json!({"base": base["prev"], "entry": response("again?")});
    let (status, refused) = home.post_as(&format!("/v1/sessions/{session}/entries"), "k", &body).await;
    assert_eq!((status, code(&refused)), (403, "E_SIGN_GUARD"));
    // A handoff that merely comes opens a new epoch, and the other life may go on in it as well: this one does not.
    let handoff = home.handoff(&session, Some(home.node.principal())).await;
    let (status, answer) = home.post_signed(&session, &handoff, None, &[]).await;
    assert_eq!(status, 201, "{answer}");
    let body = json!({"base": handoff.cid().to_string(), "entry": response("again?")});
    let (status, refused) = home.post_as(&format!("/v1/sessions/{session}/entries"), "l", &body).await;
    assert_eq!((status, code(&refused)), (403, "E_SIGN_GUARD"));
    // One whose offer it answered lets it.
    let handoff = home.handoff(&session, Some(home.node.principal())).await;
    let place = handoff.value().place.unwrap();
    let offer = throughline_store::NoteOffer {
        session: session.parse().unwrap(),
        epoch: place.epoch,
        head: place.prev,
    };
    home.node.store().run(offer).unwrap();
    let (status, answer) = home.post_signed(&session, &handoff, None, &[]).await;
    assert_eq!(status, 201, "{answer}");
    home.append(&session, &handoff.cid().to_string(), "a new epoch").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_from_before_the_loss_takes_nothing_over() {
    let home = Home::new().await.without_store();
    home.grant(home.node.principal(), throughline_protocol::control::Role::Writer).await;
    let mut builder = session("long ago", 2);
    let own = std::sync::Arc::new(throughline_protocol::testing::Party {
        key: throughline_protocol::sign::SigningKey::from_seed(&home.node.key().seed()),
        capability: None,
    });
    builder.handoff(Some(&own));
    // The peers know the chain up to the handoff; what this key signed after it may have been lost with the store.
    let evaluated = home.take_in(&builder, builder.entries()).unwrap();
    assert_eq!((evaluated.adopted, evaluated.verdict.as_str()), (4, "valid"));
    assert!(matches!(evaluated.takeover, Takeover::Refused(_)), "{:?}", evaluated.takeover);
    let session = builder.session().to_string();
    let body = json!({"base": builder.head().entry.cid().to_string(), "entry": response("again?")});
    let (status, refused) = home.post_as(&format!("/v1/sessions/{session}/entries"), "k", &body).await;
    assert_eq!((status, code(&refused)), (403, "E_SIGN_GUARD"));
}

fn export(path: &str) -> throughline_node::api::client::Call<'_> {
    throughline_node::api::client::Call::get(path).header("accept", "application/vnd.ipld.car")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_that_comes_with_one_session_cuts_the_others() {
    let home = Home::bare().await;
    let (mut one, mut two) = (session("one", 2), session("two", 2));
    let contributor = one.contributor.clone();
    one.user(&contributor, "unanchored");
    two.user(&contributor, "unanchored too");
    home.take_in(&one, one.entries()).unwrap();
    home.take_in(&two, two.entries()).unwrap();
    let capability = contributor.capability.clone().unwrap();
    one.tombstone(&capability, Vec::new());
    let server = one.server1.clone();
    let evaluated = home.take_in(&one, &[]).unwrap();
    assert_eq!(evaluated.verdict, "revoked-tail");
    for builder in [&one, &two] {
        assert_eq!(home.verdict(&builder.session().to_string()).await, "revoked-tail");
    }
    // The holder's next entry stands on what counts, beside the tail.
    let mut on = one.at(2);
    on.response(&server, "going on", &[]);
    home.take_in(&on, &on.entries()[3..]).unwrap();
    assert_eq!(home.verdict(&one.session().to_string()).await, "revoked-tail");
}

/// One thing that may happen to a session.
#[derive(Clone, Copy, Debug)]
enum Act {
    Server,
    Contributor,
    Owner,
    /// The server goes on from an earlier entry: it forks the history.
    ServerFromEarlier(usize),
    Handoff(usize),
    Anchor(usize),
    RevokeContributor,
    RevokeServer,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Server),
        3 => Just(Act::Contributor),
        2 => Just(Act::Owner),
        1 => (1_usize..4).prop_map(Act::ServerFromEarlier),
        1 => (0_usize..3).prop_map(Act::Handoff),
        2 => (0_usize..4).prop_map(Act::Anchor),
        1 => Just(Act::RevokeContributor),
        1 => Just(Act::RevokeServer),
    ]
}

/// All blobs of a session in which these things happened, in the order of their making.
fn history(acts: &[Act]) -> (SessionBuilder, Vec<Built>) {
    let mut builder = SessionBuilder::new("history");
    let mut entries = builder.entries().to_vec();
    let mut holder = builder.server1.clone();
    for (at, act) in acts.iter().enumerate() {
        let back = |builder: &SessionBuilder, by: usize| builder.entries().len().saturating_sub(1 + by);
        let known = builder.entries().len();
        match *act {
            Act::Server => drop(builder.response(&holder, &format!("{at}"), &[])),
            Act::Contributor => {
                let contributor = builder.contributor.clone();
                builder.user(&contributor, &format!("{at}"));
            }
            Act::Owner => {
                let owner = builder.owner.clone();
                builder.note(&owner, Note::Resume);
            }
            Act::ServerFromEarlier(by) => {
                let mut branch = builder.at(back(&builder, by)).branch(&format!("{at}"));
                branch.response(&holder, "beside", &[]);
                entries.push(branch.head().clone());
            }
            Act::Handoff(by) => {
                let to = if std::sync::Arc::ptr_eq(&holder, &builder.server1) {
                    builder.server2.clone()
                } else {
                    builder.server1.clone()
                };
                let controls = builder.controls().to_vec();
                builder = builder.at(back(&builder, by));
                assert_eq!(builder.controls().len(), controls.len());
                builder.handoff(Some(&to));
                entries.push(builder.head().clone());
                holder = to;
                continue;
            }
            Act::Anchor(by) => {
                let (owner, seq) = (builder.owner.clone(), back(&builder, by));
                builder.reference(&owner, seq, Reach::Anchors);
            }
            Act::RevokeContributor => {
                let capability = builder.contributor.capability.clone().unwrap();
                builder.tombstone(&capability, Vec::new());
            }
            Act::RevokeServer => {
                let capability = builder.server1.capability.clone().unwrap();
                builder.tombstone(&capability, Vec::new());
            }
        }
        entries.extend_from_slice(&builder.entries()[known..]);
    }
    (builder, entries)
}

#[test]
fn whatever_the_order_the_node_ends_where_selection_says() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
    let strategy =
        (prop::collection::vec(act(), 1..12), prop::collection::vec(1_usize..5, 1..8), any::<u64>());
    runner
        .run(&strategy, |(acts, sizes, seed)| {
            runtime.block_on(converges(&acts, &sizes, seed));
            Ok(())
        })
        .unwrap();
}

/// Blobs arrive in batches of these sizes, controls at any of them; each batch may repeat what came before, and an
/// entry never comes before the one that it stands on, as sync gives them.
async fn converges(acts: &[Act], sizes: &[usize], seed: u64) {
    let (builder, entries) = history(acts);
    let home = Home::bare().await;
    let session = builder.session();
    let grants = 5;
    let (mut next, mut round, mut told) = (0, 0, grants);
    while next < entries.len() {
        let size = sizes[round % sizes.len()];
        let until = (next + size).min(entries.len());
        let from = next.saturating_sub(usize::from(seed >> (round % 60) & 1 == 1));
        let some = told + usize::from(seed >> (round % 50) & 2 == 2) * 2;
        let until_control = some.min(builder.controls().len());
        let controls = builder.controls()[..grants].iter().chain(&builder.controls()[told..until_control]);
        let controls = controls.cloned().collect();
        let batch = entries[from..until].iter().map(checked).collect();
        home.node.take_in(session, Arrived { entries: batch, controls, ..Arrived::default() }).unwrap();
        home.verdict(&session.to_string()).await;
        (next, round, told) = (until, round + 1, until_control);
    }
    home.node.take_controls(builder.controls()[told..].to_vec()).unwrap();
    let verdict = home.verdict(&session.to_string()).await;
    // Selection over everything, as a pure function.
    let mut set = throughline_protocol::fork::Set::new(session);
    for built in &entries {
        set.insert_entry(&built.entry);
    }
    for control in builder.controls() {
        set.insert_control(control);
    }
    let judged = set.judge();
    let selection = judged.selection();
    let row = home.node.reader().unwrap().session(session).unwrap().unwrap();
    let context = format!("{acts:?} {sizes:?} {seed}: {verdict}");
    assert_eq!(row.summary.head, selection.head, "{context}");
    assert_eq!(
        row.summary.anchored_through,
        selection.anchored_through.map(|(mark, _)| mark.seq),
        "{context}"
    );
    // Everything that is in is held: on the chain or beside it.
    let reader = home.node.reader().unwrap();
    for (skeleton, ..) in judged.entries() {
        assert!(reader.entry(skeleton.cid()).unwrap().is_some(), "{context}: lost {}", skeleton.cid());
    }
    // Whoever begins with all of it shows the same.
    let fresh = Home::bare().await;
    fresh.take_in(&builder, &entries).unwrap();
    assert_eq!(fresh.verdict(&session.to_string()).await, verdict, "{context}");
    let shown = fresh.node.reader().unwrap().session(session).unwrap().unwrap().summary;
    assert_eq!(
        (shown.head, shown.anchored_through),
        (row.summary.head, row.summary.anchored_through),
        "{context}"
    );
}
