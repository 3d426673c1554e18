//! The target, command by command.

use super::super::super::Presence;
use super::super::super::testing::{epoch, move_id, opening, point, principal, receipt, session};
use super::*;
use crate::handoff::Tool;

const LIMITS: fn() -> Limits = Limits::default;

fn target() -> Target {
    Target::new(session(), principal("server2"), None, LIMITS())
}

fn request(number: u64) -> RequestId {
    RequestId::new(number)
}

fn head() -> Point {
    point("server1", 0, 7)
}

fn to_us() -> Opening {
    opening(head(), 1, Some(principal("server2")))
}

fn offer(number: u64, id: u8, opens: u64) -> Input {
    let providers = (0..20).map(|at| format!("/ip4/10.0.0.{at}")).collect();
    Input::Offer {
        request: request(number),
        move_id: move_id(id),
        epoch: epoch(opens),
        head: head(),
        providers,
    }
}

fn activate(number: u64) -> Input {
    Input::Activate { request: request(number), move_id: move_id(1), opening: to_us() }
}

/// Feeds an input and does every write; gives everything else that is asked for.
fn settle(target: &mut Target, input: Input) -> Vec<Output> {
    target.handle(input);
    let mut others = Vec::new();
    while let Some(output) = target.poll_output() {
        if let Output::Persist { ticket, row } = output {
            let read = Target::from_bytes(session(), principal("server2"), &row, LIMITS()).unwrap();
            assert_eq!(read.to_bytes(), row, "a row reads back to itself");
            target.handle(Input::Persisted { ticket });
        } else {
            others.push(output);
        }
    }
    others
}

fn reply(outputs: &[Output]) -> &Reply {
    let replies: Vec<&Reply> = outputs
        .iter()
        .filter_map(|output| {
            let Output::Answer { reply, .. } = output else { return None };
            Some(reply)
        })
        .collect();
    let [reply] = replies[..] else { panic!("expected one answer, got {outputs:?}") };
    reply
}

fn refusal(outputs: &[Output]) -> Code {
    reply(outputs).as_ref().unwrap_err().code
}

fn fetch_of(outputs: &[Output]) -> Ticket {
    let fetch = outputs.iter().find_map(|output| {
        let Output::Fetch { ticket, .. } = output else { return None };
        Some(*ticket)
    });
    fetch.unwrap_or_else(|| panic!("expected a fetch, got {outputs:?}"))
}

/// A target that has fetched what was offered in move 1.
fn offered() -> Target {
    let mut target = target();
    let ticket = fetch_of(&settle(&mut target, offer(1, 1, 1)));
    settle(&mut target, Input::FetchDone { ticket, result: Ok(()) });
    assert_eq!(target.answer(), Answer::Offered { head: head() });
    target
}

fn adopt(target: &mut Target, outputs: &[Output]) -> Vec<Output> {
    let Some(Output::Adopt { ticket, opening, row }) =
        outputs.iter().find(|output| matches!(output, Output::Adopt { .. }))
    else {
        panic!("expected an adoption, got {outputs:?}")
    };
    let read = Target::from_bytes(session(), principal("server2"), row, LIMITS()).unwrap();
    assert_eq!(read.adopted(), Some(opening));
    let result = Ok(receipt("server2", opening));
    settle(target, Input::AdoptDone { ticket: *ticket, result })
}

#[test]
fn an_offer_is_fetched_and_a_repeat_tells_how_far_it_is() {
    let mut target = target();
    let outputs = settle(&mut target, offer(1, 1, 1));
    assert_eq!(reply(&outputs), &Ok(Answer::Fetching { through: None, bytes: 0 }));
    let Some(Output::Fetch { ticket, head: up_to, providers }) =
        outputs.iter().find(|output| matches!(output, Output::Fetch { .. }))
    else {
        panic!("no fetch")
    };
    assert_eq!((*up_to, providers.len()), (head(), LIMITS().providers_max));
    settle(&mut target, Input::Fetched { ticket: *ticket, through: Seq::new(3).unwrap(), bytes: 70 });
    let again = settle(&mut target, offer(2, 1, 1));
    assert_eq!(again.len(), 1, "no second fetch: {again:?}");
    assert_eq!(reply(&again), &Ok(Answer::Fetching { through: Some(Seq::new(3).unwrap()), bytes: 70 }));
    settle(&mut target, Input::FetchDone { ticket: *ticket, result: Ok(()) });
    assert_eq!(reply(&settle(&mut target, offer(3, 1, 1))), &Ok(Answer::Offered { head: head() }));
}

#[test]
fn an_epoch_that_is_not_newer_is_refused() {
    let mut target = Target::new(session(), principal("server2"), Some(epoch(1)), LIMITS());
    assert_eq!(refusal(&settle(&mut target, offer(1, 1, 1))), Code::EpochOld);
    assert_eq!(refusal(&settle(&mut target, offer(2, 1, 0))), Code::EpochOld);
    assert!(reply(&settle(&mut target, offer(3, 1, 2))).is_ok());
}

#[test]
fn an_unreachable_provider_is_tried_again_and_a_false_chain_is_told() {
    let mut target = target();
    let ticket = fetch_of(&settle(&mut target, offer(1, 1, 1)));
    settle(&mut target, Input::FetchDone { ticket, result: Err(Code::Unreachable.into()) });
    let again = settle(&mut target, offer(2, 1, 1));
    assert!(reply(&again).is_ok());
    let ticket = fetch_of(&again);
    settle(&mut target, Input::FetchDone { ticket, result: Err(Code::Sig.into()) });
    assert_eq!(refusal(&settle(&mut target, offer(3, 1, 1))), Code::Sig);
    settle(&mut target, Input::FetchDone { ticket, result: Ok(()) });
    assert_eq!(target.dropped(), 1, "a fetch that has ended ends once");
}

#[test]
fn one_move_is_staged_at_a_time_unless_a_later_epoch_comes() {
    let mut target = offered();
    assert_eq!(refusal(&settle(&mut target, offer(2, 2, 1))), Code::MoveState);
    let later = settle(&mut target, offer(3, 2, 2));
    assert!(later.contains(&Output::DropStaging) && reply(&later).is_ok(), "{later:?}");
}

#[test]
fn an_abort_drops_what_is_staged_and_a_late_offer_stages_nothing() {
    let mut target = offered();
    let outputs = settle(&mut target, Input::Abort { request: request(2), move_id: move_id(1) });
    assert!(outputs.contains(&Output::DropStaging));
    assert_eq!(reply(&outputs), &Ok(Answer::Idle { epoch: None }));
    assert_eq!(refusal(&settle(&mut target, offer(3, 1, 1))), Code::MoveState);
    assert_eq!(target.stage(), &Stage::Idle);
}

#[test]
fn it_prepares_once_and_answers_all_who_ask() {
    let mut target = offered();
    let prepare = |number| Input::Prepare { request: request(number), move_id: move_id(1) };
    let asked = settle(&mut target, prepare(2));
    let [Output::Prepare { ticket }] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(settle(&mut target, prepare(3)), []);
    let refused = settle(&mut target, Input::PrepareDone { ticket, result: Err("model-missing".to_owned()) });
    assert_eq!(refused.len(), 2);
    // The offer stands: what was missing may be there now.
    let asked = settle(&mut target, prepare(4));
    let [Output::Prepare { ticket }] = asked[..] else { panic!("{asked:?}") };
    let tools = vec![Tool { name: "bash".to_owned(), presence: Presence::Available }];
    let readiness = Readiness { tools, model: Some("ok".to_owned()), inventory: None };
    let done = settle(&mut target, Input::PrepareDone { ticket, result: Ok(readiness.clone()) });
    assert_eq!(reply(&done), &Ok(Answer::Prepared(readiness.clone())));
    assert_eq!(reply(&settle(&mut target, prepare(5))), &Ok(Answer::Prepared(readiness)));
}

#[test]
fn nothing_is_prepared_before_it_is_verified() {
    let mut target = target();
    settle(&mut target, offer(1, 1, 1));
    let prepare = Input::Prepare { request: request(2), move_id: move_id(1) };
    assert_eq!(refusal(&settle(&mut target, prepare)), Code::MoveState);
}

#[test]
fn activation_is_answered_after_the_transaction_and_again_after_a_crash() {
    let mut target = offered();
    let begun = settle(&mut target, activate(2));
    assert!(matches!(begun[..], [Output::Adopt { .. }]), "{begun:?}");
    assert_eq!(target.adopted(), None);
    // Whatever comes meanwhile waits.
    assert_eq!(settle(&mut target, Input::Abort { request: request(3), move_id: move_id(1) }), []);
    let done = adopt(&mut target, &begun);
    let active = Answer::Active { epoch: epoch(1), receipt: Some(receipt("server2", &to_us())) };
    assert_eq!(done[0], Output::Answer { request: request(2), reply: Ok(active.clone()) });
    assert_eq!(target.adopted(), Some(&to_us()));
    let mut again =
        Target::from_bytes(session(), principal("server2"), &target.to_bytes(), LIMITS()).unwrap();
    let repeated = settle(&mut again, activate(4));
    assert_eq!(reply(&adopt(&mut again, &repeated)), &Ok(active));
}

#[test]
fn an_opening_for_another_server_or_session_is_not_activated() {
    let mut target = offered();
    let other = opening(head(), 1, Some(principal("stranger")));
    let input = Input::Activate { request: request(2), move_id: move_id(1), opening: other };
    assert_eq!(refusal(&settle(&mut target, input)), Code::NotHolder);
}

#[test]
fn a_chain_that_is_missing_is_fetched_before_the_opening_is_adopted() {
    // The staging area was lost, or the handoff stands on another head than was offered.
    let mut target = target();
    let outputs = settle(&mut target, activate(1));
    assert_eq!(reply(&outputs), &Ok(Answer::Fetching { through: None, bytes: 0 }));
    let ticket = fetch_of(&outputs);
    let abort = Input::Abort { request: request(2), move_id: move_id(1) };
    assert_eq!(refusal(&settle(&mut target, abort)), Code::MoveState, "it only goes on");
    // Over a crash too: the fetch begins again by itself, then the adoption.
    let mut again =
        Target::from_bytes(session(), principal("server2"), &target.to_bytes(), LIMITS()).unwrap();
    let Some(Output::Fetch { ticket: resumed, .. }) = again.poll_output() else { panic!("no fetch") };
    for (target, ticket) in [(&mut target, ticket), (&mut again, resumed)] {
        let fetched = settle(target, Input::FetchDone { ticket, result: Ok(()) });
        adopt(target, &fetched);
        assert_eq!(target.adopted(), Some(&to_us()));
    }
}

#[test]
fn a_failed_adoption_is_told_and_tried_again() {
    let mut target = offered();
    let begun = settle(&mut target, activate(2));
    let [Output::Adopt { ticket, .. }] = begun[..] else { panic!("{begun:?}") };
    let failed = settle(&mut target, Input::AdoptDone { ticket, result: Err(Code::StoreIo.into()) });
    assert_eq!(refusal(&failed), Code::StoreIo);
    assert_eq!(target.adopted(), None);
    let again = settle(&mut target, activate(3));
    adopt(&mut target, &again);
    assert_eq!(target.adopted(), Some(&to_us()));
}

#[test]
fn an_opening_that_was_learned_is_as_good_as_one_that_was_sent() {
    let mut target = offered();
    let begun = settle(&mut target, Input::Learned { opening: to_us() });
    adopt(&mut target, &begun);
    assert_eq!(target.adopted(), Some(&to_us()));
}

#[test]
fn an_opening_that_names_another_server_ends_what_is_staged() {
    let mut target = offered();
    let other = opening(head(), 1, Some(principal("stranger")));
    assert!(settle(&mut target, Input::Learned { opening: other }).contains(&Output::DropStaging));
    assert_eq!(target.answer(), Answer::Idle { epoch: Some(epoch(1)) });
    assert_eq!(refusal(&settle(&mut target, activate(2))), Code::EpochOld);
}
