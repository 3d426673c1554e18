//! A tombstone that is kept is applied: after a crash, beside a session that is damaged, to one that comes meanwhile, and before
//! anything is built on what it revokes.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use throughline_protocol::block::{Block, Signed};
use throughline_protocol::build::sign;
use throughline_protocol::control::Tombstone;
use throughline_protocol::entry::{Body, Class, Origin, UserMessage};
use throughline_protocol::id::{AgentIri, Seq};
use throughline_protocol::payload::{PayloadDraft, UserWords, Words};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::testing::{Built, Party, Reach as Shown, SessionBuilder, capability, key, ts};
use throughline_protocol::verify::Prechecked;
use throughline_protocol::view::EntryDraft;
use throughline_store::{Damage, PutControls, Summary};

use super::super::create::CreateRequest;
use super::super::evaluate::{Input, Way};
use super::super::problems::Lookout;
use super::super::scene::Scene;
use super::super::{AppendRequest, Arrived, now};
use super::*;
use crate::core::authority::ControlKind;
use crate::core::authority::Keeping;
use crate::core::damaged::{damage, open};
use crate::sync::{BlobsCame, Tally};

/// A session with a message of the contributor that nothing anchors.
fn with_tail(label: &str) -> SessionBuilder {
    let mut builder = SessionBuilder::new(label);
    let contributor = Arc::clone(&builder.contributor);
    builder.user(&contributor, "not anchored");
    builder
}

fn revoked(party: &Party) -> Signed<Control> {
    SessionBuilder::new("any").tombstone(party.capability.as_ref().unwrap(), Vec::new())
}

fn entries_of(builder: &SessionBuilder) -> Vec<Prechecked> {
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    builder.entries().iter().map(checked).collect()
}

fn take_in(node: &Node, builder: &SessionBuilder) {
    let (entries, controls) = (entries_of(builder), builder.controls().to_vec());
    node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
}

/// As when the process ends between the commit and the judgement.
fn only_keep(node: &Node, control: &Signed<Control>) {
    node.store().run(PutControls { controls: vec![control.clone()], at: now() }).unwrap();
}

fn reopened(home: &Path, node: Node) -> Node {
    node.stop();
    drop(node);
    open(home)
}

fn summary(node: &Node, session: SessionId) -> Summary {
    node.reader().unwrap().session(session).unwrap().unwrap().summary
}

fn verdict(node: &Node, builder: &SessionBuilder) -> String {
    summary(node, builder.session()).verdict
}

fn owed(node: &Node) -> Vec<Principal> {
    node.reader().unwrap().owners_to_judge().unwrap()
}

fn message(text: &str) -> EntryDraft {
    let body = Body::UserMessage(UserMessage { origin: Some(Origin::Trigger), ..UserMessage::default() });
    let body_of = vec![throughline_protocol::content::Block::paragraph("b1", text)];
    let words = Words::UserMessage(UserWords { body: body_of, ..UserWords::default() });
    EntryDraft { body, payload: Some(PayloadDraft::new(words)), ext: None }
}

#[test]
fn a_revocation_that_was_kept_before_a_crash_is_applied_at_the_start_or_when_it_comes_again() {
    let builder = with_tail("kept before judged");
    let tombstone = revoked(&builder.contributor);
    for again in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let mut node = open(home.path());
        take_in(&node, &builder);
        only_keep(&node, &tombstone);
        assert_eq!(verdict(&node, &builder), "valid");
        if again {
            let told = node.take_control(ControlKind::Tombstone, tombstone.bytes(), Keeping::Store).unwrap();
            let session = builder.session().to_string();
            let changed = json!([{"session": session, "from": "valid", "to": "revoked-tail"}]);
            assert_eq!((&told["unchanged"], &told["sessions"]), (&json!(false), &changed));
            let told = node.take_control(ControlKind::Tombstone, tombstone.bytes(), Keeping::Store).unwrap();
            assert_eq!((&told["unchanged"], &told["sessions"]), (&json!(true), &json!([])));
        } else {
            node = reopened(home.path(), node);
        }
        assert_eq!(verdict(&node, &builder), "revoked-tail", "again: {again}");
        assert_eq!(owed(&node), []);
        node.stop();
    }
}

#[test]
fn a_damaged_session_keeps_no_other_from_being_cut_and_is_cut_when_it_is_mended() {
    let mut all = ["one", "two", "three", "four"].map(with_tail);
    // The damaged one is the first that is judged.
    all.sort_by_key(SessionBuilder::session);
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    all.iter().for_each(|builder| take_in(&node, builder));
    let (tombstone, lost) = (revoked(&all[0].contributor), &all[0].entries()[1].entry);
    damage(node, lost.bytes());
    let node = open(home.path());
    let verdicts = |node: &Node| all.each_ref().map(|builder| verdict(node, builder));
    let problems = |node: &Node| {
        let reader = node.reader().unwrap();
        let row = reader.session(all[0].session()).unwrap().unwrap();
        Lookout::new(node, &reader).of(&row).iter().map(|problem| problem["fix"].clone()).collect::<Vec<_>>()
    };

    let send = |node: &Node| node.take_control(ControlKind::Tombstone, tombstone.bytes(), Keeping::Store);
    let cut = ["valid", "revoked-tail", "revoked-tail", "revoked-tail"];
    for _ in 0..2 {
        let refused = send(&node).unwrap_err();
        assert_eq!(refused.code(), Code::StoreCorrupt, "also when it is sent again");
        assert_eq!(refused.fact("session"), Some(&json!(all[0].session().to_string())));
        assert_eq!(verdicts(&node), cut);
    }
    let node = reopened(home.path(), node);
    let waiting = node.reader().unwrap().to_judge(all[0].owner.key.principal()).unwrap();
    assert_eq!(waiting.tombstones, Vec::<[u8; 32]>::new(), "no start judges the others again");
    assert_eq!(waiting.sessions, BTreeMap::from([(all[0].session(), Wait::Mend)]));
    assert_eq!(problems(&node), [json!("throughline fsck --repair")]);

    let found = node.fsck(&Tally::default()).unwrap();
    let damaged = node.damaged(&found).unwrap().into_values().flatten().collect::<BTreeSet<Damage>>();
    let came = BlobsCame {
        blocks: vec![Block::of(lost.cid().cid().codec(), lost.bytes().to_vec())],
        ..BlobsCame::default()
    };
    assert_eq!(node.mend(&damaged, &came).unwrap(), 1);
    node.mend_rows(&found, &Tally::default()).unwrap();
    assert_eq!(verdicts(&node), ["revoked-tail"; 4]);
    assert_eq!(owed(&node), []);
    assert_eq!(send(&node).unwrap()["unchanged"], json!(true));
    node.stop();
}

#[test]
fn a_tombstone_that_comes_while_a_new_session_is_adopted_cuts_it() {
    for way in [Way::Either, Way::Whole] {
        let home = tempfile::tempdir().unwrap();
        let (node, builder) = (open(home.path()), with_tail("new"));
        let session = builder.session();
        for control in builder.controls() {
            only_keep(&node, control);
        }
        // One act has its snapshot, another one keeps the tombstone and judges what is held, then the first goes on.
        let before = node.reader().unwrap();
        let tombstone = revoked(&builder.contributor);
        assert_eq!(node.take_controls(vec![tombstone]).unwrap().changed, Vec::<Value>::new());
        let entries = entries_of(&builder);
        let input = Input { entries: &entries, way, ..Input::HELD };
        let moved = match way {
            Way::Either => node.extend(&before, session, &input).map(|_| ()),
            Way::Whole => Scene::read(&before, session, &input).unwrap().settle(&node, &input).map(|_| ()),
        };
        assert_eq!(moved.unwrap_err().code(), Code::HeadMoved, "it is decided again");
        assert!(node.reader().unwrap().session(session).unwrap().is_none());
        assert_eq!(node.settle_held(session, &input).unwrap().verdict, "revoked-tail");
        node.stop();
    }
}

#[test]
fn the_holder_does_not_anchor_what_was_revoked_and_not_judged_yet() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    let own = node.principal();
    let mut builder = SessionBuilder::with_genesis("held here", |genesis| genesis.holder = Some(own));
    let contributor = Arc::clone(&builder.contributor);
    builder.user(&contributor, "not anchored");
    only_keep(&node, &capability(&key("account"), own, Role::Writer, None));
    take_in(&node, &builder);
    only_keep(&node, &revoked(&contributor));
    let append = |base: &Built| {
        let (session, base) = (builder.session(), Some(base.entry.cid()));
        let request =
            AppendRequest { session, base, entries: vec![message("next")], key: None, dry_run: false };
        node.append(&request)
    };
    assert_eq!(append(builder.head()).unwrap_err().code(), Code::HeadMoved);
    assert_eq!(verdict(&node, &builder), "revoked-tail");
    append(&builder.entries()[0]).unwrap();
    let state = node.reader().unwrap().session(builder.session()).unwrap().unwrap();
    assert_eq!(state.tip.seq, Seq::new(1).unwrap());
    node.stop();
}

#[test]
fn a_draft_whose_grant_was_revoked_begins_no_session() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    let owner = SigningKey::from_seed(&[7; 32]);
    let grant = capability(&owner, node.principal(), Role::Writer, None);
    node.take_controls(vec![grant.clone()]).unwrap();
    let request = CreateRequest {
        agent: Some(AgentIri::new(owner.principal(), None)),
        title: None,
        class: Class::Internal,
        first_entry: None,
        key: None,
        dry_run: false,
    };
    let answer = node.create(&request).unwrap().answer;
    let session: SessionId = answer["session"].as_str().unwrap().parse().unwrap();
    let tombstone = Tombstone {
        ts: ts(0),
        signer: owner.principal(),
        capability: grant.cid().cid(),
        keep: Vec::new(),
        reason: None,
        ext: None,
    };
    node.take_controls(vec![sign(Control::Tombstone(tombstone), &owner).unwrap()]).unwrap();
    let request =
        AppendRequest { session, base: None, entries: vec![message("first")], key: None, dry_run: false };
    assert_eq!(node.append(&request).unwrap_err().code(), Code::Revoked);
    assert!(node.reader().unwrap().session(session).unwrap().is_none());
    node.stop();
}

/// Sessions of one owner that differ in who wrote, who anchored and what stands beside the chain.
fn sessions() -> Vec<(&'static str, SessionBuilder)> {
    let owners = SessionBuilder::new("only the owner");
    let mut held = SessionBuilder::new("the holder went on");
    let server = Arc::clone(&held.server1);
    held.user(&server, "a message");
    let tail = with_tail("a tail");
    let mut anchored = with_tail("a device anchored the tail");
    let device = Arc::clone(&anchored.device);
    anchored.reference(&device, 1, Shown::Anchors);
    let beside = with_tail("beside the chain");
    vec![("owner", owners), ("held", held), ("tail", tail), ("anchored", anchored), ("beside", beside)]
}

#[test]
fn a_session_that_a_tombstone_is_not_taken_to_concern_keeps_its_verdict() {
    let (all, parties) = (sessions(), SessionBuilder::new("parties"));
    let any = &parties;
    let cases: [(&[&Party], &[&str]); 6] = [
        (&[&any.reader], &["beside"]),
        (&[&any.server2], &["beside"]),
        (&[&any.server1], &["held", "beside"]),
        (&[&any.contributor], &["tail", "anchored", "beside"]),
        (&[&any.device], &["anchored", "beside"]),
        // What the contributor wrote stays while the device's anchor counts.
        (&[&any.contributor, &any.device], &["tail", "anchored", "beside"]),
    ];
    for (parties, expected) in cases {
        let home = tempfile::tempdir().unwrap();
        let node = open(home.path());
        for (_, builder) in &all {
            take_in(&node, builder);
        }
        let rival = &all[4].1.at(0).branch("rival");
        take_in(&node, &{
            let mut rival = rival.clone();
            let contributor = Arc::clone(&rival.contributor);
            rival.user(&contributor, "another");
            rival
        });
        for party in parties {
            let tombstone = revoked(party);
            let before = all.iter().map(|(_, builder)| summary(&node, builder.session())).collect::<Vec<_>>();
            only_keep(&node, &tombstone);
            let reader = node.reader().unwrap();
            let owner = all[0].1.owner.key.principal();
            let reach = Reach::of(node.warm().controls(&reader, owner), owner, &[tombstone.hash()]);
            let mut concerned = Vec::new();
            for ((name, builder), before) in all.iter().zip(before) {
                if reach.may_concern(&reader, builder.session()) {
                    concerned.push(*name);
                } else {
                    node.judge_again(builder.session()).unwrap();
                    assert_eq!(summary(&node, builder.session()), before, "{name}");
                }
            }
            node.judge_owed(owner).unwrap();
            if parties.len() == 1 {
                assert_eq!(concerned, expected);
            }
        }
        let contributor = parties.iter().any(|party| std::ptr::eq(*party, &raw const *any.contributor));
        let device = parties.iter().any(|party| std::ptr::eq(*party, &raw const *any.device));
        let word = |cut| if cut { "revoked-tail" } else { "valid" };
        assert_eq!(verdict(&node, &all[2].1), word(contributor));
        assert_eq!(verdict(&node, &all[3].1), word(contributor && device));
        node.stop();
    }
}

#[test]
fn another_tombstone_of_a_capability_concerns_only_the_sessions_that_it_keeps() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    let mut all = ["kept", "not kept"].map(with_tail);
    all.iter().for_each(|builder| take_in(&node, builder));
    let capability = all[0].contributor.capability.clone().unwrap();
    node.take_controls(vec![revoked(&all[0].contributor)]).unwrap();
    assert_eq!(all.each_ref().map(|builder| verdict(&node, builder)), ["revoked-tail"; 2]);
    let head = all[0].head().entry.clone();
    let keep = throughline_protocol::control::Keep {
        genesis: all[0].session().genesis(),
        head: head.cid(),
        seq: head.value().seq(),
    };
    let tombstone = all[0].tombstone(&capability, vec![keep]);
    only_keep(&node, &tombstone);
    let reader = node.reader().unwrap();
    let owner = all[0].owner.key.principal();
    let reach = Reach::of(node.warm().controls(&reader, owner), owner, &[tombstone.hash()]);
    assert_eq!(all.each_ref().map(|builder| reach.may_concern(&reader, builder.session())), [true, false]);
    node.judge_owed(owner).unwrap();
    assert_eq!(all.each_ref().map(|builder| verdict(&node, builder)), ["valid", "revoked-tail"]);
    // A tombstone that is not held says nothing that could be looked at.
    let unknown = Reach::of(node.warm().controls(&reader, owner), owner, &[[1; 32]]);
    assert_eq!(unknown, Reach::All);
    node.stop();
}
