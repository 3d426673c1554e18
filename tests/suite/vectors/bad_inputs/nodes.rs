//! What a node answers: as the holder that puts entries of others in order, and as the target of a move.

use std::future::Future;

use serde_json::json;
use throughline_protocol::handoff::target::{Input, Output};
use throughline_protocol::handoff::{Limits, MoveId, Point, RequestId, Target};
use throughline_protocol::payload::UserWords;
use throughline_protocol::testing;

use super::super::super::api::home::{Home, code as code_of, message_on, of, says};
use super::make::{Outcome, principal, session, word};
use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("CH10", &["W_FUTURE"], |_| vec![run(an_hour_ahead())]),
    row("OW01", &["409"], |_| vec![run(on_an_older_head())]),
    row("OW02", &["first"], |_| vec![run(one_message_twice())]),
    row("MV06", &["E_EPOCH_OLD"], |_| [0, 1].map(offer_of_epoch).to_vec()),
    row("ST03", &["clamped"], |_| vec![run(after_a_clock_that_was_ahead())]),
];

fn run(row: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(row)
}

/// The seq of the newest entry that a node holds.
async fn tip(home: &Home, session: &str) -> u64 {
    home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"].as_u64().unwrap()
}

async fn an_hour_ahead() -> Outcome {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let mut base = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
    base["notBeforeMs"] = (throughline_node::core::now().get() + 3_600_000).into();
    let (entry, payload) = message_on(&base, &home.owner, None, says("from the future"));
    let (_, refused) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    assert_eq!(tip(&home, &session).await, 1, "nothing is stored");
    code_of(&refused).into()
}

async fn on_an_older_head() -> Outcome {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let (entry, payload) = home.message(&session, &home.owner, None, says("late")).await;
    let newer = home.append(&session, &head, "meanwhile").await;
    let before = home.node.reader().unwrap().stats().unwrap();
    let (status, refused) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    assert_eq!((code_of(&refused), of(&refused["head"], "cid")), ("E_HEAD_MOVED", newer.clone()));
    assert_eq!(of(&refused["signingBase"], "prev"), newer);
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), before, "nothing is stored");
    status.to_string().as_str().into()
}

async fn one_message_twice() -> Outcome {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let words = || UserWords { client_message_id: Some("m-1".to_owned()), ..says("once") };
    let (entry, payload) = home.message(&session, &home.owner, None, words()).await;
    let (_, first) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    let (again, payload) = home.message(&session, &home.owner, None, words()).await;
    assert_ne!(again.cid(), entry.cid());
    let (status, same) = home.post_signed(&session, &again, Some(&payload), &[]).await;
    assert_eq!((status, &same["replayed"]), (200, &json!(true)), "{same}");
    let is_one = tip(&home, &session).await == 2;
    Outcome::either(is_one && same["entries"] == first["entries"], "first", "another")
}

/// Offered to a server that knows of epoch 1.
fn offer_of_epoch(epoch: u64) -> Outcome {
    let session = session("offer", 1);
    let known = Some(testing::epoch(1));
    let mut target = Target::new(session.session(), principal("server2"), known, Limits::default());
    let entry = &session.head().entry;
    target.handle(Input::Offer {
        request: RequestId::new(1),
        move_id: MoveId::from_bytes([1; 16]),
        epoch: testing::epoch(epoch),
        head: Point { cid: entry.cid(), seq: entry.value().seq() },
        providers: Vec::new(),
    });
    let answer = std::iter::from_fn(|| target.poll_output()).find_map(|output| {
        let Output::Answer { reply, .. } = output else { return None };
        Some(reply)
    });
    word(answer.unwrap())
}

/// The node's clock is behind the newest entry: its own entry takes that one's time.
async fn after_a_clock_that_was_ahead() -> Outcome {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let mut base = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
    let ahead = throughline_node::core::now().get() + 200_000;
    base["notBeforeMs"] = ahead.into();
    let (entry, payload) = message_on(&base, &home.owner, None, says("a little ahead"));
    assert_eq!(entry.value().ts.get(), ahead);
    let (status, answer) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    assert_eq!(status, 201, "{answer}");
    let own = home.append(&session, &entry.cid().to_string(), "answered").await;
    let own = home.get(&format!("/v1/sessions/{session}/entries/{own}")).await.unwrap();
    assert_eq!(home.verdict(&session).await, "valid");
    Outcome::either(own["entry"]["ts"] == ahead || own["ts"] == ahead, "clamped", "behind")
}
