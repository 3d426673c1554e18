//! Openings that are known before the chain under them is held.

use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::entry::Entry;
use throughline_protocol::handoff::driver::Unsigned;
use throughline_protocol::handoff::{MoveId, Point};
use throughline_protocol::id::{Epoch, SessionId};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::wire::ErrorCode;
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffState, HandoffStep};
use throughline_store::RaiseFence;

use super::testbench::{Bench, append, named, open, sign_handoff};
use super::tests::{holders, learns, row};
use super::wires::copy;
use super::{Asker, Leave, facts, wire};
use crate::core::{Granted, Node, now};

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

/// What the owner has to sign so that the session goes on at `holder` after all that `node` has of it.
fn next_facts(bench: &Bench, node: &Node, session: SessionId, holder: &Node) -> Value {
    let grant = bench.desk().grant_for(session, holder.principal()).unwrap();
    let Granted::Live(grant) = grant else { panic!("the next holder has a grant") };
    let tip = row(node, session).tip;
    let unsigned = Unsigned {
        session,
        epoch: tip.epoch.next(),
        prev: Point { cid: tip.cid, seq: tip.seq },
        seq: tip.seq.next(),
        holder: holder.principal(),
        grant: Some(grant),
    };
    facts::to_sign(&node.reader().unwrap(), &unsigned).unwrap()
}

/// Another device of the owner opens an epoch at B, which writes in it; the facts of the one after that.
fn second_facts(bench: &Bench, session: SessionId, holder: &Node) -> Value {
    copy(&bench.d, &bench.b, session);
    learns(&bench.b, session, &bench.handoff(&next_facts(bench, &bench.b, session, &bench.b)));
    append(&bench.b, session, "in between").unwrap();
    next_facts(bench, &bench.b, session, holder)
}

/// Tells A of an opening.
async fn retire(bench: &Bench, asker: Asker, session: SessionId, handoff: &[u8]) -> HandoffAnswer {
    let step = HandoffStep::Retire { handoff: handoff.into(), receipt: [].as_slice().into() };
    ask(&bench.a, asker, session, step).await
}

async fn ask(node: &Node, asker: Asker, session: SessionId, step: HandoffStep) -> HandoffAnswer {
    let request = wire::request(session, MoveId::from_bytes([5; 16]), step, Vec::new());
    node.moves().unwrap().answer(asker, request).await
}

fn refusal(answer: &HandoffAnswer) -> Code {
    match answer {
        HandoffAnswer::Error(error) => match error.code() {
            ErrorCode::Known(code) => *code,
            ErrorCode::Unknown(name) => panic!("{name}"),
        },
        HandoffAnswer::State(status) => panic!("expected a refusal, got {status:?}"),
    }
}

fn is_retired(answer: &HandoffAnswer, opened: u64) -> bool {
    matches!(answer, HandoffAnswer::State(status)
        if status.state == HandoffState::Retired && status.epoch == epoch(opened))
}

/// A comes back to a move that is taken back while the session went on two epochs: it is told of the last one, and of none of the
/// entries before it.
async fn ends_two_epochs_on(mut bench: Bench, begun: Value, asked: &[&str]) {
    let (session, _) = named(&begun);
    let second = bench.handoff(&second_facts(&bench, session, &bench.b));
    learns(&bench.b, session, &second);
    assert!(copy(&bench.b, &bench.d, session));
    bench.until_shown(&begun, |told| told["supersededBy"]["epoch"] == 2).await;

    bench.wires.revive(&bench.a);
    let told = bench.until(&begun, &["aborted"]).await;
    assert_eq!(told["from"]["state"], "retired", "{told:#}");
    assert_eq!(bench.wires.asked(&bench.a), asked);
    for _ in 0..2 {
        let held = row(&bench.a, session);
        assert_eq!((held.tip.epoch, held.fence), (Epoch::ZERO, epoch(2)));
        assert_eq!(append(&bench.a, session, "in the old epoch"), Err(Code::Retired));
        bench.reopen("a").await;
    }

    assert!(copy(&bench.b, &bench.a, session));
    assert_eq!(row(&bench.a, session).tip, row(&bench.b, session).tip);
    assert_eq!(append(&bench.a, session, "with the chain"), Err(Code::Retired));
    append(&bench.b, session, "goes on").unwrap();
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_source_is_retired_by_an_epoch_whose_chain_it_lacks() {
    let bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
    bench.wires.kill(&bench.a);
    let (_, id) = named(&begun);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["phase"]), (&json!("waiting"), &json!("rollback")), "{told:#}");
    assert_eq!(append(&bench.a, session, "not now"), Err(Code::Frozen));
    ends_two_epochs_on(bench, begun, &["freeze", "retire"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_active_source_is_retired_by_an_epoch_whose_chain_it_lacks() {
    let bench = Bench::new();
    let session = bench.session(2);
    bench.wires.kill(&bench.a);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-confirmation"]).await;
    let (_, id) = named(&begun);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["phase"]), (&json!("waiting"), &json!("rollback")), "{told:#}");
    append(&bench.a, session, "knows of nothing").unwrap();
    ends_two_epochs_on(bench, begun, &["retire"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opening_without_its_chain_ends_nothing_unless_the_owner_signed_it() {
    let bench = Bench::new();
    let (session, other) = (bench.session(2), bench.session(1));
    let gap = {
        let mut facts = next_facts(&bench, &bench.d, session, &bench.b);
        facts["epoch"] = 2.into();
        bench.handoff(&facts)
    };
    let facts = second_facts(&bench, session, &bench.b);
    let second = bench.handoff(&facts);
    let forged = sign_handoff(&SigningKey::from_seed(&[9; 32]), &facts);
    let elsewhere = bench.handoff(&next_facts(&bench, &bench.d, other, &bench.b));
    let mut broken = second.bytes().to_vec();
    *broken.last_mut().unwrap() ^= 1;

    let device = Asker::Proven(bench.d.principal());
    let stranger = Asker::Proven(SigningKey::from_seed(&[9; 32]).principal());
    let cases: [(Asker, &[u8], Option<Code>); 7] = [
        (device, forged.bytes(), Some(Code::CapRole)),
        (device, elsewhere.bytes(), Some(Code::SessionMismatch)),
        (device, gap.bytes(), Some(Code::EpochGap)),
        (device, &broken, None),
        (stranger, second.bytes(), Some(Code::CapMissing)),
        (Asker::Stranger, second.bytes(), Some(Code::CapMissing)),
        (Asker::Proven(bench.b.principal()), second.bytes(), Some(Code::CapMissing)),
    ];
    for (asker, handoff, expected) in cases {
        let refused = refusal(&retire(&bench, asker, session, handoff).await);
        assert!(expected.is_none_or(|code| code == refused), "expected {expected:?}, got {refused}");
        assert_eq!(row(&bench.a, session).fence, Epoch::ZERO, "{refused}");
        append(&bench.a, session, "untouched").unwrap();
    }
    let told = retire(&bench, device, session, second.bytes()).await;
    assert!(is_retired(&told, 2), "{told:?}");
    assert_eq!(append(&bench.a, session, "too late"), Err(Code::Retired));
}

/// As after a crash between the fence and the source's row.
#[tokio::test(flavor = "multi_thread")]
async fn below_the_fence_nothing_is_written_frozen_or_thawed_after_a_restart() {
    let mut bench = Bench::new();
    let (active, frozen) = (bench.session(1), bench.session(1));
    let owner = Asker::Proven(bench.owner.principal());
    let freeze = HandoffStep::Freeze { epoch: Epoch::ZERO };
    let told = ask(&bench.a, owner, frozen, freeze.clone()).await;
    assert!(
        matches!(&told, HandoffAnswer::State(status) if status.state == HandoffState::Frozen),
        "{told:?}"
    );
    for session in [active, frozen] {
        bench.a.store().run(RaiseFence { session, epoch: epoch(2), at: now() }).unwrap();
    }
    bench.reopen("a").await;
    for (session, code) in [(active, Code::Fenced), (frozen, Code::Frozen)] {
        for step in [freeze.clone(), HandoffStep::Abort, HandoffStep::Status] {
            assert_eq!(refusal(&ask(&bench.a, owner, session, step).await), Code::EpochOld);
            assert_eq!(append(&bench.a, session, "below the fence"), Err(code));
        }
        let second = bench.handoff(&second_facts(&bench, session, &bench.b));
        assert!(is_retired(&retire(&bench, owner, session, second.bytes()).await, 2));
        assert_eq!(append(&bench.a, session, "retired"), Err(Code::Retired));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_told_of_its_own_next_epoch_takes_over_once_the_chain_is_there() {
    let mut bench = Bench::new();
    let session = bench.session(1);
    let owner = Asker::Proven(bench.owner.principal());
    let second: Signed<Entry> = bench.handoff(&second_facts(&bench, session, &bench.a));
    assert!(is_retired(&retire(&bench, owner, session, second.bytes()).await, 2));
    for _ in 0..2 {
        assert_eq!(append(&bench.a, session, "without the chain"), Err(Code::Retired));
        bench.reopen("a").await;
    }
    learns(&bench.b, session, &second);
    assert!(copy(&bench.b, &bench.a, session));
    let activate = HandoffStep::Activate { handoff: Arc::clone(second.bytes()) };
    let told = ask(&bench.a, owner, session, activate).await;
    let is_active = |state: &HandoffState| matches!(state, HandoffState::Active { receipt: Some(_) });
    assert!(matches!(&told, HandoffAnswer::State(status) if is_active(&status.state)), "{told:?}");
    assert_eq!(append(&bench.a, session, "back again").unwrap()["epoch"], 2);
    assert_eq!(append(&bench.b, session, "handed over"), Err(Code::Retired));
    assert_eq!(holders(&bench, session), [bench.a.principal()]);
}

/// A replica, too, is told of what it lacks: it holds nothing, and still takes part in no move of an epoch that is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_told_of_a_later_epoch_takes_no_earlier_one() {
    let bench = Bench::new();
    bench.grant(bench.d.principal(), Role::Writer);
    let session = bench.session(1);
    let first = bench.handoff(&next_facts(&bench, &bench.d, session, &bench.d));
    let second = bench.handoff(&second_facts(&bench, session, &bench.b));
    let told = |step| wire::request(session, MoveId::from_bytes([5; 16]), step, Vec::new());
    let step = HandoffStep::Retire { handoff: Arc::clone(second.bytes()), receipt: [].as_slice().into() };
    assert!(is_retired(&bench.desk().answer(Asker::Local, told(step)).await, 2));
    assert!(is_retired(&bench.desk().answer(Asker::Local, told(HandoffStep::Status)).await, 2));
    let step = HandoffStep::Activate { handoff: Arc::clone(first.bytes()) };
    assert_eq!(refusal(&bench.desk().answer(Asker::Local, told(step)).await), Code::EpochOld);
    assert_eq!(holders(&bench, session), [bench.a.principal(), bench.b.principal()]);
}

/// The session was at B, and is at A again. Another device of the owner opened two more epochs since, which only B heard of: it knows
/// the last opening, and none of the entries before it.
async fn only_a_former_source_knows_of_a_later_epoch(bench: &Bench) -> SessionId {
    bench.grant(bench.d.principal(), Role::Writer);
    let session = bench.session(1);
    for holder in [&bench.b, &bench.a] {
        assert_eq!(bench.move_to(session, holder, Leave::Auto).await["state"], "done");
    }
    assert!(copy(&bench.a, &bench.b, session));
    let home = tempfile::tempdir().unwrap();
    let device = open(home.path().to_owned(), bench.owner.principal());
    assert!(copy(&bench.a, &device, session));
    let mut opened = None;
    for _ in 0..2 {
        let handoff = bench.handoff(&next_facts(bench, &device, session, &bench.a));
        learns(&device, session, &handoff);
        opened = Some(handoff);
    }
    let handoff = Arc::clone(opened.unwrap().bytes());
    let step = HandoffStep::Retire { handoff, receipt: [].as_slice().into() };
    let told = ask(&bench.b, Asker::Proven(bench.owner.principal()), session, step).await;
    assert!(is_retired(&told, 4), "{told:?}");
    for node in [&bench.a, &bench.b, &bench.d] {
        assert_eq!(row(node, session).tip.epoch, epoch(2));
    }
    session
}

/// Epoch 3 is used already, and whoever signs it again stops the session for good.
#[tokio::test(flavor = "multi_thread")]
async fn no_handoff_is_signed_below_an_epoch_that_a_former_source_knows_of() {
    let bench = Bench::new();
    let session = only_a_former_source_knows_of_a_later_epoch(&bench).await;
    for leave in [Leave::Auto, Leave::Offline] {
        let begun = bench.begin(session, &bench.d, leave).await;
        let told = bench.until(&begun, &["needs-handoff", "rolled-back"]).await;
        assert_eq!(told["state"], "rolled-back", "{told:#}");
        assert_eq!(told["error"]["code"], "E_EPOCH_OLD", "{told:#}");
        let why = told["error"]["detail"].as_str().unwrap();
        assert!(why.contains("epoch 4") && why.contains(&bench.b.principal().short()), "{why}");
        append(&bench.a, session, "goes on where it was").unwrap();
    }
    // Whoever is off is not asked: that is what the owner decides on.
    bench.wires.kill(&bench.b);
    let begun = bench.begin(session, &bench.d, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
}
